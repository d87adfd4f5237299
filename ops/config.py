"""`m4ops.toml`: one optional file a run, and one a user for the roots under which runs are found by name.

A run needs no configuration at all; an unknown key is an error with a suggestion, so that a typing mistake is never
a silent default.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ops.errors import BadInput

if TYPE_CHECKING:
    from ops.policy import Policy

FILE = "m4ops.toml"


class Config(Struct, frozen=True):
    """What `m4ops.toml` may say. Relative paths are relative to the file's folder."""

    save_dir: str = ""
    """SAVE_DIR, when the file does not lie in it."""
    layout: str = ""
    """Whose checkpoints these are, where the folder alone does not tell: a name of docs/layouts.md."""
    name: str = ""
    """The run's (and its Slurm jobs') name; default: the name of SAVE_DIR."""
    log: str = ""
    """The main log, which may be JSON lines or a CSV (`step,loss,…`) too; default: `logs/main_log.txt`. Of a pattern,
    `logs/slurm-*.out` or as Slurm writes it (`%x-%j.out`, `%A_%a`), the file that was written last, those of the jobs before being its history."""
    progress: str = ""
    """How a progress line looks, if no format is recognised: `step {step}/{total} | loss: {loss} | {} | lr: {lr}`."""
    evals: str = ""
    """The evaluations file; default: `../evals/results/{run}_evaluations.jsonl` where it exists."""
    kill_switch: str = ""
    save_switch: str = ""
    """Default of both: what the newest `{job_id}_config.yaml` says."""
    trainer_config: str = ""
    """The config file that the next job will read; needed for `--reset-optimizer` by the trainer's own switch."""
    ds_config: str = ""
    """DeepSpeed's config that the next job will read: the LR of DeepSpeed's own schedulers is changed there."""
    sinks: tuple[str, ...] = ()
    """Where `m4ops check` sends new findings: `stdout:`, `https://…` (Slack, Teams and Discord by the address they show),
    `mailto:…`, `smtp://host:port/…`, `pagerduty://KEY`, `wandb:…`, `prometheus:/…`, and with the extra `alerts` what
    [apprise](https://github.com/caronc/apprise) knows ([alerts](alerts.md))."""
    repeat_after: str = "6h"
    """When what is CRITICAL or UNKNOWN is told again while nobody acks it: then after twice as long each time, at least
    once a day; `never`."""
    escalate_to: tuple[str, ...] = ()
    """More sinks, for what is CRITICAL or UNKNOWN and was told `escalate_after` ago with nobody acking it."""
    escalate_after: str = "30m"
    """See `escalate_to`."""
    digest_every: str = "never"
    """Over how long WARNINGs are gathered into one message; `never`: they are told at once."""
    quiet_hours: str = ""
    """`22:00-07:00`, or `22:00-07:00 Europe/Paris`: news wait for their end, but what `quiet_passes`."""
    quiet_passes: tuple[str, ...] = ("CRITICAL", "UNKNOWN")
    """The severities that are told in quiet hours too; `[]`: none."""
    messages_per_hour: int = 12
    """No hour brings more messages than this, but for two of a CRITICAL of a new kind; what is held back comes together in
    the next one."""
    heartbeat: str = ""
    """An address outside, of healthchecks.io or its likes, that is asked for after every check that saw everything, so
    that somebody notices when no check comes any more ([alerts](alerts.md#who-watches-the-watcher)). In your own
    `~/.config/m4ops/m4ops.toml`: after every `check --all`, once for all runs."""
    keep: tuple[str, ...] = ()
    """What `m4ops prune` keeps: `last 3`, `every 5000`, `best 2 by TASK`, `lowest 2 by TASK`, `around incidents`,
    `until uploaded`, `until evaluated`, `discarded 7 days`."""
    store: str = ""
    """Where `m4ops push` sends checkpoints: `s3://BUCKET/PREFIX`; each run has a folder of its name in it."""
    store_endpoint: str = ""
    """The store's address where it is not AWS; default: `AWS_ENDPOINT_URL`, or `endpoint_url` in `~/.aws/config`."""
    on_save: tuple[str, ...] = ()
    """What `m4ops watch-saves` does with each finished checkpoint, in this order: `verify` or `verify deep`, `extract bf16`
    or `extract fp32`, `push`, `evals NAME: sbatch …`, `prune`."""
    cluster: str = ""
    """The Slurm cluster of the run's jobs, given to Slurm's commands as `-M` (needs slurmdbd; runs of several are
    asked for by one `squeue`); default: the one they mean themselves."""
    operators: tuple[str, ...] = ()
    """Users whose `m4ops request` the owner's `m4ops check` carries out; the file must be writable by its owner alone."""
    work: tuple[tuple[str, str], ...] = ()
    """A table of sbatch's options for `--on slurm`: `[work]`, then `partition = "cpu"`, `time = "02:00:00"`, …;
    `array-parallelism`: tasks at once."""
    roots: tuple[str, ...] = ()
    """Folders whose sub-folders are runs; for `--run NAME`."""

    def alerts(self, more: tuple[str, ...] = ()) -> Policy:
        """What it says of alerts, as figures; `more`: further sinks. Raises BadInput naming the key."""
        from ops import policy

        def read(key: str, meaning: Callable[[str], Any]) -> Any:
            try:
                return meaning(getattr(self, key))
            except BadInput as error:
                raise BadInput(f"`{key}`: {error.what}", hint=error.hint) from None

        if self.messages_per_hour <= policy.BURST:
            raise BadInput(f"`messages_per_hour` must be more than {policy.BURST}", hint="messages_per_hour = 12")
        return policy.Policy(
            sinks=(*self.sinks, *more),
            escalate_to=self.escalate_to,
            escalate_after=read("escalate_after", policy.seconds),
            repeat_after=read("repeat_after", _or_never),
            digest_every=read("digest_every", _or_never),
            quiet=read("quiet_hours", policy.quiet_hours) if self.quiet_hours else None,
            quiet_passes=read("quiet_passes", lambda names: tuple(map(policy.severity, names))),
            per_hour=self.messages_per_hour,
            heartbeat=read("heartbeat", policy.address) if self.heartbeat else "",
        )


def _or_never(text: str) -> float:
    from ops import policy

    return 0.0 if text == "never" else policy.seconds(text)


def load(path: Path) -> Config:
    """Read one configuration file. Raises BadInput, naming file, key and the nearest known key."""
    import tomllib

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the configuration cannot be read: {error}", str(path)) from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"the configuration is no TOML: {error}", str(path)) from None
    config = Config(**{key: _checked(key, value, path) for key, value in data.items()})
    try:
        config.alerts()
    except BadInput as error:
        raise BadInput(error.what, str(path), error.hint) from None
    return config


def _checked(key: str, value: Any, path: Path) -> Any:
    known = dict(zip(Config.__struct_fields__, Config.__struct_defaults__, strict=True))
    if key not in known:
        import difflib

        near = difflib.get_close_matches(key, known, n=1)
        if isinstance(value, dict) and value.keys() & known.keys():
            hint = f"keys stand by themselves: write them without [{key}], above all tables"
            raise BadInput(f"unknown table [{key}]", str(path), hint)
        hint = f"did you mean `{near[0]}`?" if near else "known keys: " + ", ".join(known)
        raise BadInput(f"unknown key `{key}`", str(path), hint)
    if key == "work":
        return _options(value, path)
    if isinstance(known[key], tuple):
        if isinstance(value, str):
            raise BadInput(f"`{key}` must be a list of strings", str(path), f'in brackets: {key} = ["…"]')
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise BadInput(f"`{key}` must be a list of strings", str(path), f'for instance: {key} = ["…"]')
        return tuple(value)
    if isinstance(known[key], int):
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadInput(f"`{key}` must be a whole number", str(path), f"for instance: {key} = {known[key]}")
        return value
    if not isinstance(value, str):
        raise BadInput(f"`{key}` must be a string", str(path), f'for instance: {key} = "…"')
    return value


def _options(value: Any, path: Path) -> tuple[tuple[str, str], ...]:
    """A table of options with plain values. True stands for an option without a value."""
    plain = isinstance(value, dict) and all(isinstance(v, str | int) for v in value.values())
    if not plain:
        raise BadInput(
            "`work` must be a table of sbatch's options", str(path), 'for instance: [work] partition = "cpu"'
        )
    return tuple((str(name).replace("_", "-"), str(option)) for name, option in value.items())
