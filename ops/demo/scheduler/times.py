"""Times and durations in Slurm's notations. A limit keeps its seconds (Slurm rounds up to whole minutes)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

YEAR = 365 * 86400
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


def parse_limit(text: str) -> int:
    """`MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS` or UNLIMITED as seconds, 0 for unlimited."""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return 0
    days, dash, rest = text.rpartition("-")
    fields = rest.split(":")
    if not all(f.isdigit() for f in fields) or len(fields) > 3 or (dash and not days.isdigit()):
        raise ValueError(text)
    n = [int(f) for f in fields]
    if dash:
        h, m, s = [*n, 0, 0][:3]
        return int(days) * 86400 + h * 3600 + m * 60 + s
    if len(n) == 3:
        return n[0] * 3600 + n[1] * 60 + n[2]
    return n[0] * 60 + (n[1] if len(n) == 2 else 0)


def parse_moment(text: str, now: float) -> float:
    """`now`, `now+10`, `now-2hours` or an ISO date and time (local) as seconds since the epoch."""
    found = re.fullmatch(r"now(?:([+-])(\d+)([a-z]*))?", text)
    if found:
        unit = (found[3] or "seconds").rstrip("s")
        if unit not in _UNITS:
            raise ValueError(text)
        shift = int(found[2] or 0) * _UNITS[unit]
        return now - shift if found[1] == "-" else now + shift
    for form in ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"):
        try:
            return time.mktime(time.strptime(text, form))
        except ValueError:
            continue
    if text in ("midnight", "today"):
        return time.mktime(time.strptime(time.strftime("%Y-%m-%d", time.localtime(now)), "%Y-%m-%d"))
    raise ValueError(text)


def moment(seconds: float, env: Mapping[str, str], unknown: str = "N/A") -> str:
    """A time as the commands print it: local ISO, or what `SLURM_TIME_FORMAT` asks for."""
    if not seconds:
        return unknown
    form = env.get("SLURM_TIME_FORMAT", "")
    if form in ("", "standard", "relative"):
        form = "%Y-%m-%dT%H:%M:%S"
    return time.strftime(form, time.localtime(int(seconds)))


def short(seconds: float) -> str:
    """A duration as squeue prints it: `0:03`, `1:02:03`, `1-02:03:04`."""
    days, rest = divmod(max(0, int(seconds)), 86400)
    hours, minutes, secs = rest // 3600, rest // 60 % 60, rest % 60
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{secs:02d}"
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"


def full(seconds: float) -> str:
    """A duration as scontrol and sacct print it: `00:00:03`, `1-02:03:04`."""
    days, rest = divmod(max(0, int(seconds)), 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
