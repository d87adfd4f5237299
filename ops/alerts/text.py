"""How a message reads: its subject, its text for people, and the JSON that a webhook gets."""

from __future__ import annotations

import shlex
from collections import Counter
from datetime import UTC, datetime

from ops.alerts.words import ESCALATED, RESOLVED, STILL, UNSEEN, Message, News, ident, over
from ops.model import Severity

WHOLE = 3
"""News of one message that are told with their evidence."""
LISTED = 20
"""News of one message that have a line of their own."""
IN_JSON = 100
_WORD = {RESOLVED: "RESOLVED", UNSEEN: "NO LONGER SEEN"}
_PREFIX = {STILL: "still: ", ESCALATED: "nobody has taken it: "}


def subject(message: Message) -> str:
    """The message in one line: `CRITICAL tr_190_01_64n: loss is NaN since step 16250 (and 2 more)`."""
    more = len(message.news) - 1
    return _line(message.news[0], message) + (f" (and {more} more)" if more else "")


def text(message: Message) -> str:
    """The message for people, ending in a newline. It stays short however much there is to tell."""
    lines: list[str] = []
    for news in message.news[:WHOLE]:
        lines += [_line(news, message), *_body(news, message)]
    lines += [_line(news, message) + _name(news) for news in message.news[WHOLE:LISTED]]
    if hidden := Counter(news.finding.kind for news in message.news[LISTED:]):
        lines.append("… and " + ", ".join(f"{count} more {kind}" for kind, count in hidden.most_common()))
    waited = [news.time for news in message.news if news.time < message.time]
    if waited:
        lines.append(f"{len(waited)} of these waited to be told, the oldest since {_clock(min(waited))}")
    return "".join(f"{plain(line)}\n" for line in lines)


def payload(message: Message) -> dict[str, object]:
    """What a webhook gets, `m4ops.alert/1`: the first of the news as it is, all of them in `news`."""
    return {
        "schema": "m4ops.alert/1",
        "text": text(message),
        "id": message.id,
        "run": message.run,
        "dir": message.dir,
        "host": message.host,
        "time": _iso(message.time),
        **_news(message.news[0]),
        "count": len(message.news),
        "news": [_news(news) for news in message.news[:IN_JSON]],
    }


def short(words: str, most: int) -> str:
    """At most so many characters; what is cut off is at the end, where the least important stands."""
    return words if len(words) <= most else f"{words[: most - 2].rstrip()} …"


def plain(words: str) -> str:
    """Without what a log line may carry: control characters, and bytes that are no text."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in words)


def _news(news: News) -> dict[str, object]:
    finding = news.finding
    return {
        "episode": ident(finding),
        "event": news.event,
        "kind": finding.kind,
        "severity": finding.severity.name,
        "summary": plain(finding.summary),
        "node": finding.node,
        "step": finding.step,
        "line": finding.line,
        "evidence": [plain(line) for line in finding.evidence],
        "runbook": finding.runbook,
        "actions": list(finding.actions),
        "since": _iso(news.since),
    }


def _line(news: News, message: Message) -> str:
    word = _WORD.get(news.event, news.finding.severity.name)
    told = f"{word} {message.run}: {_PREFIX.get(news.event, '')}{news.finding.summary}"
    return " ".join(plain(told).split())


def _body(news: News, message: Message) -> list[str]:
    finding = news.finding
    if news.event == RESOLVED:
        return [f"  over after {_duration(news.time - news.since)}"]
    if news.event == UNSEEN:
        return ["  no proof that it is over: something else cannot be read"]
    lines = [f"  {line}" for line in finding.evidence]
    lines += [f"  since {_clock(news.since)}"] if news.since < news.time else []
    lines += [f"  consider: {action}" for action in finding.actions]
    where = f"--run {shlex.quote(message.dir)} " if message.dir else ""
    lines += [f"  ack: m4ops {where}ack {ident(finding)}"] if finding.severity is not Severity.OK else []
    return lines + ([f"  runbook: {finding.runbook}"] if finding.runbook else [])


def _name(news: News) -> str:
    return "" if over(news) else f" [{ident(news.finding)}]"


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _duration(seconds: float) -> str:
    minutes = round(max(0.0, seconds) / 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"
