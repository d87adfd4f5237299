"""Which environment variables hold secrets, and what of a log line does. Neither is written anywhere, or told.

A variable is judged by its name and by its value, and in doubt its value is withheld: a record that lacks a value can
be lived with, one that holds a key cannot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from functools import lru_cache

_NAME = re.compile(
    r"SECRET|PASSW|PASSPHRASE|APIKEY|CREDENTIAL"
    r"|(?:^|_)(?:KEYS?|TOKENS?|PASS|PWD|AUTH|COOKIES?|SESSION|PRIVATE|PAT|DSN|WEBHOOK|SIGNATURE|LICENSE)(?:_|$)",
    re.IGNORECASE,
)
_HARMLESS = ("PWD", "OLDPWD", "XDG_SESSION_*", "SSH_AUTH_SOCK", "TERM_SESSION_ID")
_VALUE = re.compile(
    r"://[^/\s@]+@"  # a URL with its password
    r"|-----BEGIN|\bBearer "
    r"|\b(?:hf|sk|ghp|gho|ghs|github_pat|glpat|xox[abeprs])[-_][A-Za-z0-9]|\b(?:AKIA|ASIA)[A-Z0-9]{12}|\beyJ[A-Za-z0-9]{8}"
)
_RANDOM = re.compile(r"[A-Za-z0-9+=_-]{20,}")
_ASSIGNED = re.compile(r"(?<![\w$])(\w+)=(['\"]?)([^\s'\";|&)]+)")
_SHAPES = re.compile(
    r"(?P<user>://)[^/\s@]+(?=@)"
    r"|(?P<header>\bauthorization['\"]?\s*[:=]\s*['\"]?)(?:[A-Za-z]+\s+)?[^\s'\",]+"
    r"|(?P<scheme>\bBearer\s+)[A-Za-z0-9._~+/=-]{8,}"
    r"|(?P<hook>https?://(?:hooks|discord(?:app)?|outlook|api\.telegram)[\w.-]*/(?:(?:services|workflows|triggers|api|webhooks|webhook|bot)\b/?)*)[^\s'\"]+"
    r"|(?P<block>-----BEGIN [A-Z ]*PRIVATE KEY-----).*"
    r"|\b(?:hf_|sk-|gh[opsur]_|github_pat_|glpat-|xox[abeprs]-|npm_|pypi-)[A-Za-z0-9_-]{8,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*",
    re.IGNORECASE,
)
"""What is a secret wherever it stands; a named group is what may stay of it."""
_SAID = re.compile(
    r"(?<![\w$])(?:(--[A-Za-z][\w-]*)(\s+)|([A-Za-z_][\w.-]*)(['\"]?\s*[=:]\s*['\"]?))([^\s'\",;&|)}\]]+)"
)
_LOUD = re.compile(r"SECRET|PASSW|PASSPHRASE|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL", re.IGNORECASE)
_KEY = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=_-]{8,}")
_FIGURE = re.compile(r"[\d.,:%+-]+(?:e[+-]?\d+)?[kmgtb]?(?:/s)?|true|false|none|null", re.IGNORECASE)
SHORTEST = 6
"""Characters from which on a secret's value is looked for in other texts."""


def declared(env: Mapping[str, str]) -> tuple[str, ...]:
    """Names or patterns that M4OPS_SECRETS lists, separated by commas."""
    return tuple(word.strip() for word in env.get("M4OPS_SECRETS", "").split(",") if word.strip())


def is_secret(name: str, value: str, more: Iterable[str] = ()) -> bool:
    """Whether the value must not be written down. `more`: names or patterns (`MY_*`) that are secret besides."""
    if any(fnmatch(name, pattern) for pattern in more):
        return True
    named = _NAME.search(name) and not any(fnmatch(name, pattern) for pattern in _HARMLESS)
    return bool(named or _VALUE.search(value) or any(_drawn(word) for word in _RANDOM.findall(value)))


def parted(env: Mapping[str, str], more: Iterable[str] = ()) -> tuple[dict[str, str], tuple[str, ...]]:
    """What may be written of an environment, and the names whose values may not; each in the order of names.

    A value that repeats a secret one is withheld too. Exported shell functions are left out.
    """
    patterns = tuple(more)
    plain = {name: env[name] for name in sorted(env) if not name.startswith("BASH_FUNC_")}
    secret = {name: value for name, value in plain.items() if is_secret(name, value, patterns)}
    loud = [value for value in secret.values() if len(value) >= SHORTEST]
    withheld = [n for n, value in plain.items() if n in secret or any(s in value for s in loud)]
    return {n: v for n, v in plain.items() if n not in withheld}, tuple(withheld)


def spilled(text: str, env: Mapping[str, str], more: Iterable[str] = ()) -> str:
    """The name of a variable whose secret value stands in the text, or is assigned there; empty when none does."""
    patterns = tuple(more)
    for name, value in env.items():
        by_name = _NAME.search(name) or any(fnmatch(name, pattern) for pattern in patterns)
        if by_name and len(value) >= SHORTEST and not value.startswith("/") and value in text:
            return name
    for name, _, value in _ASSIGNED.findall(text):
        if not value.startswith("$") and len(value) >= SHORTEST and _named(name, patterns) and not _plain(value):
            return str(name)
    return ""


@lru_cache(maxsize=4096)
def redact(text: str) -> str:
    """The text with `***` for every secret in it: tokens by their shape, values by the name before them."""
    shaped = _SHAPES.sub(lambda found: f"{next(filter(None, found.groups()), '')}***", text)
    return _SAID.sub(_said, shaped)


def _said(found: re.Match[str]) -> str:
    """`NAME=value`, `name: value` or `--name value` with the value masked, if it is a secret."""
    name, between, value = found[1] or found[3], found[2] or found[4], found[5]
    words = re.sub(r"[-.]", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.lstrip("-")))
    loud = _LOUD.search(words) or (words.isupper() and _NAME.search(words))
    secret = not _FIGURE.fullmatch(value) if loud else _NAME.search(words) and _KEY.fullmatch(value)
    return f"{name}{between}{'***' if secret else _SAID.sub(_said, value)}"


def _named(name: str, patterns: tuple[str, ...]) -> bool:
    return bool(_NAME.search(name)) or any(fnmatch(name, pattern) for pattern in patterns)


def _plain(value: str) -> bool:
    """A number, a switch, a path: an option such as `max_tokens=100000`, no key."""
    return value.startswith(("/", "./", "~")) or bool(
        re.fullmatch(r"[\d.,:]+|true|false|[A-Za-z]+", value, re.IGNORECASE)
    )


def _drawn(word: str) -> bool:
    """Whether a word looks drawn at random: letters and digits mixed without a pause."""
    return any(
        len(part) >= 20 and sum(c.isdigit() for c in part) >= 3 and sum(c.isalpha() for c in part) >= 3
        for part in re.split(r"[-_=+]", word)
    )
