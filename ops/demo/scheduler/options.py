"""Command-line options as getopt_long reads them: bundled short ones, `--name=value`, unique prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ops.demo.scheduler.words import Refused


@dataclass(frozen=True)
class Grammar:
    """The options of one command. `longs` maps a name to "" (flag), "=" (value) or "?" (optional value)."""

    command: str
    longs: dict[str, str]
    shorts: dict[str, str]
    bad: int = 1
    """Exit code for an unknown option."""
    stop: bool = False
    """Stop at the first word that is no option (sbatch, srun: what follows belongs to the script)."""


Given = list[tuple[str, str]]


def grammar(command: str, text: str, *, bad: int = 1, stop: bool = False) -> Grammar:
    """Build a grammar from words such as `array|a=`, `hold|H`, `nice?`."""
    longs: dict[str, str] = {}
    shorts: dict[str, str] = {}
    for word in text.split():
        kind = word[-1] if word[-1] in "=?" else ""
        name, _, letter = word.removesuffix(kind).partition("|")
        longs[name] = kind
        if letter:
            shorts[letter] = name
    return Grammar(command, longs, shorts, bad, stop)


def parse(rules: Grammar, argv: Sequence[str]) -> tuple[Given, list[str]]:
    """The options given, in order and by their long names, and the other words. Raises Refused."""
    given: Given = []
    words: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return given, words + rest
        if word.startswith("--"):
            given.append(_long(rules, word[2:], rest))
        elif word.startswith("-") and len(word) > 1:
            given.extend(_short(rules, word[1:], rest))
        else:
            words.append(word)
            if rules.stop:
                return given, words + rest
    return given, words


def _long(rules: Grammar, word: str, rest: list[str]) -> tuple[str, str]:
    typed, equals, value = word.partition("=")
    names = [typed] if typed in rules.longs else [n for n in rules.longs if n.startswith(typed)]
    if len(names) != 1:
        choice = " ".join(f"'--{name}'" for name in names)
        ambiguous = f"option '--{word}' is ambiguous; possibilities: {choice}"
        raise _usage(rules, ambiguous if names else f"unrecognized option '--{typed}'")
    kind = rules.longs[names[0]]
    if equals and not kind:
        raise _usage(rules, f"option '--{names[0]}' doesn't allow an argument")
    if not equals and kind == "=":
        if not rest:
            raise _usage(rules, f"option '--{names[0]}' requires an argument")
        value = rest.pop(0)
    return names[0], value


def _short(rules: Grammar, letters: str, rest: list[str]) -> Given:
    given: Given = []
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter not in rules.shorts:
            raise _usage(rules, f"invalid option -- '{letter}'")
        name = rules.shorts[letter]
        kind = rules.longs[name]
        if kind == "=" and not letters and not rest:
            raise _usage(rules, f"option requires an argument -- '{letter}'")
        if kind:
            value = letters or (rest.pop(0) if kind == "=" else "")
            return [*given, (name, value)]
        given.append((name, ""))
    return given


def _usage(rules: Grammar, problem: str) -> Refused:
    name = rules.command
    return Refused(f'{name}: {problem}\nTry "{name} --help" for more information\n', rules.bad)
