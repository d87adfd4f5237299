"""Every change of LR, schedule and optimizer on every layout: the library itself resumes, and trains as was promised.

Of each framework's training (tests/trainings.py) there is a copy a wish, changed at step 10, undone to the byte, changed again; one
process of the framework then resumes all its copies.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from layout_damage import every_damage_is_seen
from runs import tree
from trainings import PROGRAMS, Step, Steps, Trained, Training, train

AT, END = 10, 20
SHIFT = 5
IN_CODE = ("hf_trainer", "torchtitan-old", "nanotron", "composer")
"""Their scheduler's lambdas live in the trainer's code: what LR it has at another step must be given."""


@dataclass(frozen=True)
class Wish:
    """Commands, after a rewind to step 10; what LRs they make of a step's; which frameworks refuse it, with what word."""

    words: Callable[[Training, Steps], tuple[tuple[str, ...], ...]]
    lrs: Callable[[Steps, int], list[float]]
    refused: dict[str, str]


def shifted(training: Training, steps: Steps) -> tuple[tuple[str, ...], ...]:
    given = ("--lr", repr(steps[SHIFT + 1].lrs[0])) if training.framework in IN_CODE else ()
    return (("shift-schedule", "--to-step", str(SHIFT), *given),)


IN_CONFIG = {"torchtitan": "optimizer.lr"}
ONE_FOR_ALL = {"accelerate": "eta_min", "ray_train": "eta_min"}
WISHES = {
    "scaled": Wish(
        lambda training, steps: (("scale-lr", "0.5"),),
        lambda steps, n: [lr * 0.5 for lr in steps[n].lrs],
        IN_CONFIG,
    ),
    "peak": Wish(
        lambda training, steps: (("set-lr", "2e-3", "--peak"),),
        lambda steps, n: [lr * 2 for lr in steps[n].lrs],
        IN_CONFIG,
    ),
    "last-group": Wish(
        lambda training, steps: (
            ("set-lr", repr(3 * steps[AT + 1].lrs[-1]), "--group", str(len(steps[AT + 1].lrs) - 1)),
        ),
        lambda steps, n: [*steps[n].lrs[:-1], steps[n].lrs[-1] * 3],
        IN_CONFIG | ONE_FOR_ALL | dict.fromkeys(("torchtitan-old", "dcp-fsdp2"), "with each parameter"),
    ),
    "off-and-on": Wish(
        lambda training, steps: (("set-lr", "0"), ("set-lr", "back")), lambda steps, n: steps[n].lrs, IN_CONFIG
    ),
    "shifted": Wish(
        shifted,
        lambda steps, n: steps[n - AT + SHIFT].lrs,
        IN_CONFIG,
    ),
    "fresh": Wish(lambda training, steps: (("reset-optimizer",),), lambda steps, n: steps[n].lrs, {}),
}
SOME = {
    "accelerate-fsdp2": ("scaled", "last-group", "shifted", "fresh"),
    "accelerate-fsdp2-full": ("scaled",),
    "accelerate-fsdp1": ("scaled",),
    "hf_trainer-fsdp2": ("fresh",),
    "hf_trainer-fsdp2-full": ("scaled",),
    "dcp-fsdp2": ("scaled", "last-group", "fresh"),
}
"""Which wishes, where what is saved is what others save, in other files."""
FORGOTTEN = ("accelerate-fsdp1",)
"""No moments are loaded, whatever was saved: accelerate 1.15, `load_fsdp_optimizer` of `utils/fsdp_utils.py`, has them fill the state
of an optimizer that has none yet."""


@pytest.mark.parametrize("program", [program for program in PROGRAMS if program != "fsdp_trainers.py"])
def test_the_library_resumes_as_promised(program: str, trainings: Trained, tmp_path: Path) -> None:
    for framework in PROGRAMS[program]:
        every_damage_is_seen(trainings.by(framework)[0].copied(tmp_path / f"{framework}-damaged"))
    resumed_as_promised(program, trainings, tmp_path)


def resumed_as_promised(program: str, trainings: Trained, tmp_path: Path) -> None:
    changed: list[tuple[Training, Steps, str, str]] = []
    for framework in PROGRAMS[program]:
        training, steps = trainings.by(framework)
        for name in SOME.get(framework, WISHES):
            wish = WISHES[name]
            copy = training.copied(tmp_path / f"{framework}-{name}")
            if word := wish.refused.get(framework):
                refused(copy, steps, wish, word)
            else:
                changed.append((copy, steps, name, wished(copy, steps, wish)))
    resumed = train(program, [training for training, *_ in changed], "--resume")
    for (training, steps, name, plan), now in zip(changed, resumed, strict=True):
        case = f"{training.framework}, {name}"
        odd = training.framework == "nanotron"  # it starts a resume with its warm-up's first LR
        assert list(now) == list(range(AT + 1, END + 1)), case
        wanted = {n: WISHES[name].lrs(steps, n) for n in now}
        for number in list(now)[odd:]:
            assert now[number].lrs == pytest.approx(wanted[number], rel=1e-12, abs=0), f"{case}, step {number}"
        for number, lr in list(enumerate(printed(plan), AT + 1))[odd:]:
            assert lr == pytest.approx(now[number].lrs[0], rel=1e-5), f"{case}: {plan}"
        moments_are_what_they_were_or_zero(now, steps, name == "fresh" or training.framework in FORGOTTEN, case)


def wished(training: Training, steps: Steps, wish: Wish) -> str:
    """Rewind, and change what is wished; each is undone once, to the byte. What the last command printed."""
    said = ""
    for words in (("rewind", "--to", training.called(AT)), *wish.words(training, steps)):
        before = tree(training.dir)
        training.done(*words, "-y")
        assert tree(training.dir) != before, words
        training.done("undo", "-y")
        assert tree(training.dir) == before, words
        said = training.done(*words, "-y")
    if words[0] == "scale-lr":
        assert "was already changed" in training.m4ops(*words, "-y").err
    return " ".join(said.split())


def refused(training: Training, steps: Steps, wish: Wish, word: str) -> None:
    """The first command is refused, with what to do in its place; nothing is changed."""
    training.done("rewind", "--to", training.called(AT), "-y")
    before = tree(training.dir)
    said = training.m4ops(*wish.words(training, steps)[0], "-y")
    assert (said.code, word in said.err, "next:" in said.err) == (1, True, True), said.err
    assert tree(training.dir) == before


def printed(plan: str) -> list[float]:
    """The LRs of group 0 in the next steps, as the plan shows them: all it can compute, at least that of the first."""
    pairs = r"((?:[\d.e-]+ → [\d.e-]+(?:, )?)+)"
    if steps := re.search(rf"LR(?: of group 0)? in the next steps: {pairs}", plan):
        return [float(lr) for lr in re.findall(r"→ ([\d.e-]+)", steps[1])]
    first = re.search(rf"LR of the first resumed step: {pairs}", plan)
    return [float(lr) for lr in re.findall(r"→ ([\d.e-]+)", first[1])][:1] if first else []


def moments_are_what_they_were_or_zero(now: Steps, was: Steps, fresh: bool, case: str) -> None:
    first: Step = now[AT + 1]
    assert first.held == (0 if fresh else was[AT + 1].held), case
    assert (first.digest == was[AT + 1].digest) == (not fresh or not first.digest), case
