"""How people want to be told: what m4ops.toml says of alerts, as figures. Times are seconds."""

from __future__ import annotations

import re

from msgspec import Struct

from ops.errors import BadInput
from ops.model import Severity

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}
BURST = 2
"""Messages that may follow one another at once; after them they are spread over the hour."""


def seconds(text: str) -> float:
    """Seconds of `30m`, `2h`, `1d`, `1h30m`. Raises BadInput."""
    found = re.findall(r"(\d+)([mhd])", text)
    if not found or "".join(map("".join, found)) != text.strip():
        raise BadInput(f"`{text}` is no span of time", hint="for instance 30m, 2h or 1d")
    return sum(int(number) * _UNITS[unit] for number, unit in found)


class QuietHours(Struct, frozen=True):
    """A daily span, in minutes after midnight; it may pass midnight. `zone`: an IANA name, empty: this host's."""

    begin: int
    end: int
    zone: str = ""

    def hold(self, now: float) -> bool:
        """Whether it is quiet at this time."""
        from datetime import UTC, datetime

        moment = datetime.fromtimestamp(now, UTC).astimezone(_zone(self.zone) if self.zone else None)
        minute = 60 * moment.hour + moment.minute
        if self.begin <= self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end


def quiet_hours(text: str) -> QuietHours:
    """`22:00-07:00`, or `22:00-07:00 Europe/Paris`. Raises BadInput."""
    found = re.fullmatch(r"(\d\d?):(\d\d)-(\d\d?):(\d\d)(?: ([\w/+-]+))?", text.strip())
    marks = [int(found[h]) * 60 + int(found[h + 1]) for h in (1, 3) if int(found[h]) < 24] if found else []
    if not found or len(marks) < 2 or marks[0] == marks[1] or int(found[2]) > 59 or int(found[4]) > 59:
        raise BadInput(f"`{text}` are no quiet hours", hint='for instance "22:00-07:00" or "22:00-07:00 Europe/Paris"')
    if found[5]:
        _zone(found[5])
    return QuietHours(marks[0], marks[1], found[5] or "")


def address(text: str) -> str:
    """The address of a heartbeat, or of the file that holds it. Raises BadInput, without showing what may be a secret."""
    if not re.fullmatch(r"https?://[^\s/?#$]+([/?]\S*)?|file:[/~].*", text):
        raise BadInput("this is no web address", hint='heartbeat = "https://hc-ping.com/…", as the service shows it')
    return text


class Policy(Struct, frozen=True):
    """When, how often and to whom. A span of 0 stands for never."""

    sinks: tuple[str, ...] = ()
    escalate_to: tuple[str, ...] = ()
    escalate_after: float = 1800.0
    """Of a pressing trouble that nobody acked."""
    repeat_after: float = 6 * 3600.0
    """Of a pressing trouble that is still there and that nobody acked; twice as long each time, a day at most."""
    digest_every: float = 0.0
    """Over how long WARNINGs are gathered into one message."""
    quiet: QuietHours | None = None
    quiet_passes: tuple[Severity, ...] = (Severity.CRITICAL, Severity.UNKNOWN)
    per_hour: int = 12
    heartbeat: str = ""
    """Asked for after every check that saw everything."""

    def urgent(self, now: float) -> tuple[Severity, ...]:
        """The severities that are told at this time without waiting for the morning."""
        quiet = self.quiet is not None and self.quiet.hold(now)
        return self.quiet_passes if quiet else (Severity.CRITICAL, Severity.UNKNOWN)

    @property
    def spacing(self) -> float:
        """Seconds between messages once the burst is used up, so that no hour sees more than `per_hour`."""
        return 3600.0 / (self.per_hour - BURST)


def severity(text: str) -> Severity:
    """A severity by its name. Raises BadInput."""
    try:
        return Severity[text.upper()]
    except KeyError:
        raise BadInput(f"`{text}` is no severity", hint="CRITICAL, WARNING or UNKNOWN") from None


def _zone(name: str):  # type: ignore[no-untyped-def]
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadInput(f"`{name}` is no time zone of this host", hint="an IANA name such as Europe/Paris") from None
