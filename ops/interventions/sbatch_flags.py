"""sbatch's own options: told apart from their values, and found in a script's #SBATCH lines (sbatch(1) of Slurm 22.05)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ops.errors import BadInput

OPTIONS = (
    "account|A= array|a= batch= bb= bbf= begin|b= chdir|D= cluster-constraint= clusters|M= comment= constraint|C= "
    "container= contiguous core-spec|S= cores-per-socket= cpu-freq= cpus-per-gpu= cpus-per-task|c= deadline= "
    "delay-boot= dependency|d= distribution|m= error|e= exclude|x= exclusive? export= export-file= "
    "extra-node-info|B= get-user-env? gid= gpu-bind= gpu-freq= gpus|G= gpus-per-node= gpus-per-socket= "
    "gpus-per-task= gres= gres-flags= help|h hint= hold|H ignore-pbs input|i= job-name|J= kill-on-invalid-dep= "
    "licenses|L= mail-type= mail-user= mcs-label= mem= mem-bind= mem-per-cpu= mem-per-gpu= mincpus= network= nice? "
    "no-kill|k? no-requeue nodefile|F= nodelist|w= nodes|N= ntasks|n= ntasks-per-core= ntasks-per-gpu= "
    "ntasks-per-node= ntasks-per-socket= open-mode= output|o= overcommit|O oversubscribe|s parsable partition|p= "
    "power= prefer= priority= profile= propagate? qos|q= quiet|Q reboot requeue reservation= signal= "
    "sockets-per-node= spread-job switches= test-only thread-spec= threads-per-core= time|t= time-min= tmp= uid= "
    "usage use-min-nodes verbose|v version|V wait|W wait-all-nodes= wckey= wrap="
)
"""Long name, `|` short letter, and `=` for a value, `?` for one that may be left out."""
VARIABLES = {
    "SBATCH_ARRAY_INX": "array", "SBATCH_ERROR": "error", "SBATCH_EXPORT": "export", "SBATCH_JOB_NAME": "job-name",
    "SBATCH_OUTPUT": "output", "SBATCH_SIGNAL": "signal", "SBATCH_TIMELIMIT": "time", "SBATCH_DEPENDENCY": "dependency",
    "SBATCH_EXCLUDE": "exclude",
}  # fmt: skip
"""The input variables of sbatch that take the place of a flag m4ops would add."""


class Flag(Struct, frozen=True):
    """One option as it was typed: its long name, its value ("" for none), its words."""

    name: str
    value: str
    words: tuple[str, ...]


def _known() -> tuple[dict[str, str], dict[str, str]]:
    longs, shorts = {}, {}
    for word in OPTIONS.split():
        kind = word[-1] if word[-1] in "=?" else ""
        name, _, letter = word.removesuffix(kind).partition("|")
        longs[name] = kind
        if letter:
            shorts[letter] = name
    return longs, shorts


_LONGS, _SHORTS = _known()


def parse(words: Sequence[str]) -> tuple[Flag, ...]:
    """The options of a command line. Raises BadInput for a word that is none: sbatch would take it for the script."""
    flags, rest = split(words)
    if rest:
        raise BadInput(
            f"`{rest[0]}` is no option of sbatch",
            hint="what follows -- are sbatch's flags; the script is --template FILE; a new flag's value needs `=`",
        )
    return flags


def split(words: Sequence[str]) -> tuple[tuple[Flag, ...], tuple[str, ...]]:
    """The options of a command line, and what follows them: the script and its arguments."""
    flags: list[Flag] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        flags += [_long(word, rest)] if word.startswith("--") else _short(word, rest)
    return tuple(flags), tuple(rest)


def _long(word: str, rest: list[str]) -> Flag:
    typed, equals, value = word[2:].partition("=")
    names = [typed] if typed in _LONGS else [n for n in _LONGS if n.startswith(typed)]
    name = names[0] if len(names) == 1 else typed  # another version's option passes as it is
    if equals or _LONGS.get(name) != "=":
        return Flag(name, value, (word,))
    value = _value(word, rest)
    return Flag(name, value, (word, value))


def _short(word: str, rest: list[str]) -> list[Flag]:
    letters, found = word[1:], []
    while letters:
        letter, letters = letters[0], letters[1:]
        name = _SHORTS.get(letter, letter)
        if not _LONGS.get(name, ""):
            found.append(Flag(name, "", (f"-{letter}",)))
            continue
        given = letters or (_value(f"-{letter}", rest) if _LONGS[name] == "=" else "")
        words = (f"-{letter}{letters}",) if letters or not given else (f"-{letter}", given)
        return [*found, Flag(name, given.removeprefix("=") if letters else given, words)]
    return found


def _value(option: str, rest: list[str]) -> str:
    if not rest:
        raise BadInput(f"{option} lacks its value", hint="man sbatch")
    return rest.pop(0)


def in_script(text: str) -> tuple[Flag, ...]:
    """The options of a script's #SBATCH lines, which end at its first command."""
    words: list[str] = []
    for line in text.splitlines()[1:]:
        if line.startswith("#SBATCH"):
            words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return parse(words)


def in_environment(env: Mapping[str, str]) -> tuple[Flag, ...]:
    """The options that SBATCH_* variables stand for."""
    return tuple(Flag(name, env[v], ()) for v, name in VARIABLES.items() if v in env)


def seconds(limit: str) -> int | None:
    """A `--time` in seconds: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit)
    if not found:
        return None
    days, *parts = (int(n) if n else None for n in found.groups())
    first, second, third = parts
    if days is not None:
        return days * 86400 + (first or 0) * 3600 + (second or 0) * 60 + (third or 0)
    if third is not None:
        return (first or 0) * 3600 + (second or 0) * 60 + third
    return (first or 0) * 60 + (second or 0)
