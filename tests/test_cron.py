"""Who runs the check: a chain of jobs that is one and cannot die in silence, and Slurm's own cron. On a real cluster."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm
from runs import Said, m4ops
from slurm_lab import Cluster
from slurm_lab.processes import until

from ops import chain, scrontab, shell, state
from ops.errors import BadInput, OpsError
from ops.model import Run
from ops.shell import Answer

LINE = "iteration: 5/10 50% | per_token_loss: 2.1 | lr: 1.000E-05 |\n"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "tr 0"  # a path with a blank, on purpose
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "main_log.txt").write_text(LINE)
    return Run(folder, folder.name)


@pytest.fixture
def call(run: Run, slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """m4ops on that run with the cluster's commands."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    return lambda *words: m4ops("--run", str(run.dir), *words, slurm=shell.run)


def links(slurm: Cluster) -> list[str]:
    """State and chain of each link."""
    names = slurm.ask("squeue", "-h", "-o", "%T %j").splitlines()
    return sorted(line for line in names if "m4ops-check-" in line)


def one_waits(slurm: Cluster) -> str:
    """The job of the link that waits, when it is the only one in the queue."""
    found = slurm.ask("squeue", "-h", "-o", "%A %T %j").splitlines()
    return found[0].split()[0] if len(found) == 1 and " PENDING " in found[0] else ""


def settled(run: Run, slurm: Cluster) -> bool:
    """A link has run and ended, and one waits."""
    return (chain.folder(run) / "check.out").exists() and bool(one_waits(slurm))


def test_however_often_it_is_installed_there_is_one_chain_and_it_goes_on(
    run: Run, slurm: Cluster, call: Callable[..., Said]
) -> None:
    for _ in range(3):
        said = call("cron", "install", "--backend", "sbatch", "--minutes", "10")
        assert said.code == 0, said.err
    assert until(lambda: settled(run, slurm)), links(slurm)
    token = (chain.folder(run) / "token").read_text().strip()
    assert links(slurm)[0].endswith(token)
    assert until(lambda: "job-absent" in json.dumps(findings(call)))
    assert until(lambda: "no job of tr 0" in (chain.folder(run) / "check.out").read_text()), "the link checks the run"
    first = waiting(slurm)
    slurm.ask("scontrol", "update", f"jobid={first}", "StartTime=now")
    assert until(lambda: one_waits(slurm) not in ("", first)), links(slurm)
    status = call("cron", "status")
    assert status.code == 0 and f"{waiting(slurm)} PENDING" in status.out
    assert "sbatch" in call("cron", "remove").err and links(slurm) == []
    assert call("cron", "status").code == 1


def findings(call: Callable[..., Said]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(call("check", "--json").out)["findings"]
    return found


def waiting(slurm: Cluster) -> str:
    return slurm.ask("squeue", "-h", "-t", "PENDING", "-o", "%A")


def test_a_chain_that_cannot_go_on_says_so(run: Run, slurm: Cluster, call: Callable[..., Said]) -> None:
    """The partition is closed while a link runs: its successor is refused, and the link's own check tells."""
    assert call("cron", "install", "--backend", "sbatch", "--minutes", "10").code == 0
    assert until(lambda: settled(run, slurm))
    script = chain.folder(run) / "link.sh"
    script.write_text(script.read_text().replace("--requeue", "--partition=closed").replace("5 20 60 120", "0"))
    slurm.ask("scancel", waiting(slurm))
    slurm.ask("sbatch", "-o", str(chain.folder(run) / "check.out"), "--open-mode=append", str(script))
    assert until(lambda: (chain.folder(run) / "broken").exists())
    assert "closed" in (chain.folder(run) / "broken").read_text()
    assert [f for f in findings(call) if f["kind"] == "check-broken"]
    status = call("cron", "status")
    assert status.code == 1 and "could not submit its successor" in status.out
    assert "nobody will check this run" in call("status").out
    assert call("cron", "install", "--backend", "sbatch").code == 0
    assert not [f for f in findings(call) if f["kind"] == "check-broken"]


def test_doubled_links_become_one_again(run: Run, slurm: Cluster, call: Callable[..., Said]) -> None:
    """A submission that was not answered may have been taken: then two successors wait."""
    assert call("cron", "install", "--backend", "sbatch", "--minutes", "10").code == 0
    assert until(lambda: settled(run, slurm))
    name = links(slurm)[0].partition(" ")[2]
    double = slurm.ask(
        "sbatch", "--parsable", "-J", name, "--begin=now+1", "-o/dev/null", str(chain.folder(run) / "link.sh")
    )
    assert len(links(slurm)) == 2
    assert until(lambda: len(links(slurm)) == 1), links(slurm)
    assert waiting(slurm) != double


def test_one_chain_checks_every_run_of_the_roots(
    run: Run, slurm: Cluster, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = run.dir.with_name("tr_1")
    shutil.copytree(run.dir, other)
    monkeypatch.setenv("M4OPS_ROOTS", str(run.dir.parent))
    monkeypatch.setenv("XDG_STATE_HOME", str(run.dir.parent / "state"))
    for _ in range(2):
        said = m4ops("cron", "install", "--all", "--backend", "sbatch", "--minutes", "10", slurm=shell.run)
        assert said.code == 0 and "checks 2 runs" in said.out, said.err
    everything = state.everything()
    assert until(lambda: settled(everything, slurm)), links(slurm)
    told = (chain.folder(everything) / "check.out").read_text
    assert until(lambda: "no job of tr 0" in told() and "no job of tr_1" in told()), told()
    assert len(links(slurm)) == 1
    assert m4ops("cron", "status", "--all", slurm=shell.run).code == 0
    assert "all runs by sbatch: every 10 minutes" in call("cron", "status").out
    slurm.ask("scancel", waiting(slurm))
    status = m4ops("cron", "status", "--all", slurm=shell.run)
    assert status.code == 1 and "the chain has ended" in status.out


def test_what_cannot_be_submitted_is_no_chain(run: Run, slurm: Cluster, call: Callable[..., Said]) -> None:
    said = call("cron", "install", "--backend", "sbatch", "--", "--partition=nowhere")
    assert said.code == 1 and "partition" in said.err and "nowhere" in said.err
    assert call("cron", "status").code == 1 and links(slurm) == []


def test_a_link_gets_no_secret_and_is_no_job_of_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k3y")
    given: list[dict[str, str]] = []

    def submit(argv: Sequence[str], timeout: float, env: object) -> Answer:
        given.append(dict(env))  # type: ignore[call-overload]
        assert f"--job-name={chain.name(run)}-" in " ".join(argv) and "--chdir=/" in argv
        return Answer(0, "7\n", "")

    assert chain.install(run, chain.Every(10), FakeSlurm(), submit) == "7"
    assert "WANDB_API_KEY" not in given[0] and "k3y" not in (chain.folder(run) / "link.sh").read_text()
    assert chain.name(run) != run.name


def test_a_submission_without_an_answer_is_looked_for(run: Run) -> None:
    silent = Answer(124, "", "sbatch did not answer within 30 s")
    with pytest.raises(OpsError, match="did not answer"):
        chain.install(run, chain.Every(10), lambda argv, timeout: Answer(0, "", ""), lambda *_: silent)
    assert chain.installed(run) is None
    seen: list[str] = []

    def taken(argv: Sequence[str], timeout: float, env: object) -> Answer:
        seen.extend(word.removeprefix("--job-name=") for word in argv if word.startswith("--job-name="))
        return silent

    def queue(argv: Sequence[str], timeout: float) -> Answer:
        return Answer(0, "".join(f"77 PENDING {name}\n" for name in seen), "")

    assert chain.install(run, chain.Every(10), queue, taken) == "77"


def test_a_chain_that_fell_silent_is_told_of(run: Run) -> None:
    chain.install(run, chain.Every(10), lambda argv, timeout: Answer(0, "", ""), lambda *_: Answer(0, "7", ""))
    now = time.time()
    assert chain.look(run, now + 1700) == ()
    (finding,) = chain.look(run, now + 1900)
    assert finding.kind == "check-silent"
    (chain.folder(run) / "beat").write_text(f"{now + 1800:.0f}\n")
    assert chain.look(run, now + 1900) == ()


def test_the_link_is_a_clean_script(run: Run, need: Callable[[str, str], str], tmp_path: Path) -> None:
    script = tmp_path / "link.sh"
    script.write_text(chain.script(run, chain.Every(10, ("--sink", "mailto:a b"), ("--qos=x y",)), "t"))
    subprocess.run([need("shellcheck", "shellcheck"), str(script)], check=True)


class Scron:
    """A scrontab program that keeps its text as Slurm 22.05 does."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    def __call__(self, argv: Sequence[str], timeout: float) -> Answer:
        if argv[1] == "-l":
            return Answer(0, self.text, "") if self.text else Answer(1, "no crontab for alice\n", "")
        self.text = Path(argv[1]).read_text()
        return Answer(0, "", "")


THEIRS = "# mine\n#SCRON --time=5\n0 3 * * * backup\n"


def test_the_scrontab_keeps_what_is_others_and_has_one_entry_a_run(tmp_path: Path) -> None:
    one, other = Run(tmp_path / "tr_1", "tr_1"), Run(tmp_path / "tr_11", "tr_11")
    for run in (one, other):
        run.dir.mkdir()
    kept = Scron(THEIRS)
    for run in (one, other, one):
        scrontab.install(run, 5, (), ("--partition=cpu",), kept)
    assert kept.text.startswith(THEIRS) and kept.text.count("#SCRON") == 3 and kept.text.count("--partition=cpu") == 2
    assert scrontab.installed(one, kept) == scrontab.block(one, 5, (), ("--partition=cpu",))
    assert scrontab.remove(one, kept) and not scrontab.remove(one, kept)
    assert scrontab.installed(one, kept) is None and scrontab.installed(other, kept)
    scrontab.remove(other, kept)
    assert kept.text == THEIRS
    empty = Scron()
    assert scrontab.installed(one, empty) is None
    with pytest.raises(BadInput):
        scrontab.block(one, 5, (), ("--comment=two words",))


def test_an_entry_whose_end_is_lost_is_not_guessed(tmp_path: Path) -> None:
    run = Run(tmp_path, "tr_1")
    torn = Scron(f"# m4ops:{tmp_path} begin\n* * * * * x\n0 3 * * * backup\n")
    with pytest.raises(OpsError, match="has no end"):
        scrontab.remove(run, torn)
    assert "backup" in torn.text


def test_a_cancelled_entry_is_shown_as_disabled(tmp_path: Path) -> None:
    """`scancel` of a scrontab job comments its lines out: seen with 22.05."""
    run = Run(tmp_path, "tr_1")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "main_log.txt").write_text(LINE)
    kept = Scron()
    scrontab.install(run, 5, (), (), kept)
    kept.text = re.sub(r"(?m)^(#SCRON|\*/5)", r"#DISABLED: \1", kept.text)
    said = m4ops("--run", str(tmp_path), "cron", "status", slurm=kept)
    assert said.code == 1 and "DISABLED" in said.out


def test_without_scrontab_the_way_on_is_named(run: Run) -> None:
    said = m4ops(
        "--run", str(run.dir), "cron", "install", "--backend", "scrontab",
        slurm=lambda argv, timeout: Answer(127, "", "scrontab: command not found"),
    )  # fmt: skip
    assert said.code == 1 and ("--backend sbatch" in said.err or "no quoted flags" in said.err)
    assert os.environ.get("M4OPS_EMBEDDED") is None
