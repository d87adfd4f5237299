"""When people are told: once an episode, again when it presses, together in a storm, and nobody at night. All pure."""

from collections.abc import Sequence

import pytest
from alerting import NAN, NOW, SPIKE, failed, news
from msgspec.structs import replace

from ops.alerts.episodes import BLIND_LIMIT, advance, escalate
from ops.alerts.gather import AHEAD, compact, gather
from ops.alerts.text import LISTED, subject, text
from ops.alerts.words import Ack, Episode, Message, News, Pending, ident
from ops.errors import BadInput
from ops.model import Finding, Severity
from ops.policy import BURST, Policy, QuietHours, quiet_hours, seconds

HOUR = 3600.0

WORSE = Finding("loss-spike", Severity.CRITICAL, "loss does not come back")
BLIND = Finding("queue", Severity.UNKNOWN, "squeue does not answer")


def ticks(*rounds: Sequence[Finding], every: float = 300) -> list[list[str]]:
    """What is told in each round, as `event kind SEVERITY`."""
    episodes: tuple[Episode, ...] = ()
    told = []
    for number, findings in enumerate(rounds):
        episodes, messages = advance(episodes, findings, NOW + every * number)
        told.append([f"{m.event} {m.finding.kind} {m.finding.severity.name}" for m in messages])
    return told


def test_told_once_and_once_more_when_over() -> None:
    assert ticks([SPIKE], [SPIKE], [SPIKE], [], []) == [
        ["opened loss-spike WARNING"], [], [], ["resolved loss-spike WARNING"], []
    ]  # fmt: skip


def test_told_again_when_it_gets_worse_but_not_when_it_gets_better() -> None:
    assert ticks([SPIKE], [WORSE], [SPIKE], [WORSE], []) == [
        ["opened loss-spike WARNING"], ["worse loss-spike CRITICAL"], [], [], ["resolved loss-spike CRITICAL"]
    ]  # fmt: skip


def test_a_failure_is_told_again_when_its_cause_turns_out_to_be_another() -> None:
    """A node's loss is noticed by Slurm after the other nodes' tracebacks; `training went on` is no news."""
    crash = Finding("traceback", Severity.CRITICAL, "an exception", episode="incident:7")
    lost = Finding("node-failure", Severity.CRITICAL, "n2 failed", node="n2", episode="incident:7")
    assert ticks([crash], [crash], [lost], [lost], [replace(lost, severity=Severity.WARNING)], []) == [
        ["opened traceback CRITICAL"], [], ["worse node-failure CRITICAL"], [], [], ["resolved node-failure CRITICAL"]
    ]  # fmt: skip
    healed = [replace(found, severity=Severity.WARNING) for found in (crash, lost)]
    assert ticks([crash], *([found] for found in healed), []) == [
        ["opened traceback CRITICAL"], [], [], ["resolved traceback CRITICAL"]
    ]  # fmt: skip


def test_a_new_episode_after_the_end_is_told() -> None:
    assert ticks([NAN], [], [NAN])[2] == ["opened nan CRITICAL"]


def test_the_same_trouble_on_two_nodes_is_two() -> None:
    pair = [Finding("node-failure", Severity.CRITICAL, "down", node=node) for node in ("n1", "n2")]
    assert ticks(pair, pair[:1]) == [
        ["opened node-failure CRITICAL"] * 2, ["resolved node-failure CRITICAL"]
    ]  # fmt: skip


def test_the_worst_of_one_kind_is_told_once_and_ok_is_nothing() -> None:
    fine = Finding("stalled", Severity.OK, "all well")
    assert ticks([SPIKE, WORSE, SPIKE, fine], [fine]) == [
        ["opened loss-spike CRITICAL"], ["resolved loss-spike CRITICAL"]
    ]  # fmt: skip


def test_one_silent_squeue_pages_nobody_and_two_in_a_row_do() -> None:
    assert ticks([BLIND], [], [BLIND], []) == [[], [], [], []]
    assert ticks([BLIND], [BLIND], [BLIND], []) == [
        [], ["opened queue UNKNOWN"], [], ["resolved queue UNKNOWN"]
    ]  # fmt: skip


def test_what_was_unknown_and_turns_out_bad_is_told_at_once() -> None:
    absent = Finding("queue", Severity.CRITICAL, "no job of the run is in the queue")
    assert ticks([BLIND], [absent]) == [[], ["opened queue CRITICAL"]]
    assert ticks([BLIND], [BLIND], [absent])[2] == ["worse queue CRITICAL"]


def test_not_knowing_is_not_well() -> None:
    """While squeue is silent its findings are missing: that resolves nothing, and repeats nothing after."""
    absent = Finding("job-absent", Severity.CRITICAL, "no job")
    assert ticks([absent], [BLIND], [BLIND], [absent], []) == [
        ["opened job-absent CRITICAL"], [], ["opened queue UNKNOWN"], ["resolved queue UNKNOWN"],
        ["resolved job-absent CRITICAL"],
    ]  # fmt: skip
    hidden = Finding("job-absent", Severity.UNKNOWN, "cannot tell")
    assert ticks([absent], [hidden], [hidden], [absent])[1:] == [[], [], []]


def test_a_source_that_stays_unknown_does_not_hide_the_next_trouble() -> None:
    told = ticks([BLIND, SPIKE], [BLIND], [BLIND], [BLIND, SPIKE], every=BLIND_LIMIT / 2 + 1)
    assert told[2] == ["unseen loss-spike WARNING"]
    assert told[3] == ["opened loss-spike WARNING"]


# ---------------------------------------------------------------- again, taken, escalated


def told_at(hours: Sequence[float], finding: Finding = NAN, acks: Sequence[Ack] = ()) -> dict[float, str]:
    """At which of these hours an open trouble is told, and as what; with `repeat_after` of six hours."""
    episodes: tuple[Episode, ...] = ()
    said = {}
    for hour in hours:
        episodes, news = advance(episodes, [finding], NOW + hour * HOUR, acks, 6 * HOUR)
        if news:
            said[hour] = news[0].event
    return said


def test_what_presses_is_told_again_ever_more_rarely_and_at_least_once_a_day() -> None:
    assert told_at(range(100)) == {
        0: "opened", 6: "still", 18: "still", 42: "still", 66: "still", 90: "still"
    }  # fmt: skip
    assert told_at(range(100), SPIKE) == {0: "opened"}


def test_what_somebody_has_taken_is_not_repeated_until_the_ack_ends() -> None:
    ack = Ack(ident(NAN), "alice", NOW + HOUR, NOW + 9 * HOUR)
    assert told_at(range(20), acks=[ack]) == {0: "opened", 9: "still"}


def test_an_ack_of_an_episode_hides_neither_its_worsening_nor_the_next_one() -> None:
    ack = Ack(ident(SPIKE), "alice", NOW, NOW + 9 * HOUR)
    episodes, _ = advance((), [SPIKE], NOW)
    episodes, news = advance(episodes, [WORSE], NOW + 60, [ack])
    assert [n.event for n in news] == ["worse"]
    episodes, news = advance(episodes, [], NOW + 120, [ack])
    assert [n.event for n in news] == ["resolved"]
    _, news = advance(episodes, [SPIKE], NOW + 180, [ack])
    assert [n.event for n in news] == ["opened"]


def test_an_ack_of_a_kind_hides_what_opens_meanwhile_and_tells_what_is_left() -> None:
    ack = Ack("nan", "alice", NOW - HOUR, NOW + 2 * HOUR, "known")
    assert told_at([0, 1, 2, 3], acks=[ack]) == {2: "opened"}
    episodes, _ = advance((), [NAN, SPIKE], NOW, [ack])
    _, news = advance(episodes, [], NOW + HOUR, [ack])
    assert [n.finding.kind for n in news] == ["loss-spike"]


def escalated(after_minutes: float, finding: Finding, acks: Sequence[Ack] = ()) -> list[str]:
    episodes, _ = advance((), [finding], NOW)
    if finding.severity is Severity.UNKNOWN:
        episodes, _ = advance(episodes, [finding], NOW)
    episodes, _ = advance(episodes, [finding], NOW + 60 * after_minutes)
    every = (Severity.CRITICAL, Severity.UNKNOWN)
    episodes, news = escalate(episodes, NOW + 60 * after_minutes, acks, 1800, every)
    assert not news or escalate(episodes, NOW + 60 * after_minutes + 300, acks, 1800, every)[1] == ()
    return [n.event for n in news]


def test_what_nobody_takes_is_escalated_once() -> None:
    assert escalated(31, NAN) == escalated(31, BLIND) == ["escalated"]
    assert escalated(29, NAN) == escalated(31, SPIKE) == []
    assert escalated(31, NAN, [Ack(ident(NAN), "bob", NOW + 60, NOW + 9 * HOUR)]) == []


# ---------------------------------------------------------------- together, later, at most so many


def messages(policy: Policy, ticks: Sequence[Sequence[News]], every: float = 60.0) -> list[list[str]]:
    """The messages of ticks that bring these news, each as `SEVERITY kind event`."""
    held: tuple[News, ...] = ()
    episodes: list[Episode] = []
    pace, sent = 0.0, []
    for number, fresh in enumerate(ticks):
        episodes += [Episode(n.finding, n.time, n.time, told=n.finding.severity) for n in fresh]
        told, held, pace = gather((*held, *fresh), NOW + every * number, policy, pace, episodes)
        sent.append([f"{n.finding.severity.name} {n.finding.kind} {n.event}" for n in told])
    return sent


def test_all_that_a_tick_has_to_tell_is_one_message_worst_first() -> None:
    over = news(failed(1)[0], event="resolved")
    assert messages(Policy(), [[over, news(SPIKE), news(NAN)]]) == [
        ["CRITICAL nan opened", "WARNING loss-spike opened", "CRITICAL node-failure resolved"]
    ]  # fmt: skip


def test_a_storm_of_a_minute_is_three_messages_however_often_it_is_looked_at() -> None:
    storm = [[news(finding, NOW + 5.0 * i) for finding in failed(500)[i * 42 : i * 42 + 42]] for i in range(12)]
    sent = messages(Policy(), [*storm, *([[]] * 200)], every=5.0)
    assert sum(bool(s) for s in sent) == 3
    assert sum(len(s) for s in sent) == 500 - 500 % 42 + (500 % 42 if 12 * 42 > 500 else 0)


@pytest.mark.parametrize("per_hour", [3, 12, 60])
def test_no_hour_brings_more_messages_than_the_cap_and_nothing_is_lost(per_hour: int) -> None:
    ticks = [[news(f, NOW + 60.0 * i)] for i, f in enumerate(failed(240))]
    sent = messages(Policy(per_hour=per_hour), [*ticks, *([[]] * 90)])
    times = [i for i, s in enumerate(sent) if s]
    assert per_hour - 1 <= max(sum(start <= t < start + 60 for t in times) for start in times) <= per_hour
    assert times[:2] == [0, 1] and sum(map(len, sent)) == 240


def told_in(rounds: Sequence[Sequence[Finding]], policy: Policy, every: float = 60.0) -> list[list[str]]:
    """What each tick tells, as `event kind`, of the findings it makes."""
    episodes: tuple[Episode, ...] = ()
    held: tuple[News, ...] = ()
    pace, said = 0.0, []
    for number, findings in enumerate(rounds):
        now = NOW + every * number
        episodes, fresh = advance(episodes, findings, now)
        told, held, pace = gather((*held, *fresh), now, policy, pace, episodes)
        said.append([f"{n.event} {n.finding.kind}" for n in told])
    return said


def test_a_critical_of_a_new_kind_waits_behind_nothing_and_more_of_the_same_does() -> None:
    late = [Finding(f"late-{i}", Severity.WARNING, "late") for i in range(3)]
    nodes = failed(2)
    rounds = [late[:1], late[:2], late, [*late, NAN], [*late, NAN, nodes[0]], [*late, NAN, *nodes]]
    said = told_in([*rounds, *([rounds[-1]] * 30)], Policy())
    assert said[:6] == [
        ["opened late-0"], ["opened late-1"], [], ["opened nan", "opened late-2"], ["opened node-failure"], []
    ]  # fmt: skip
    assert [word for words in said[6:] for word in words] == ["opened node-failure"]


def test_a_storm_is_three_messages_also_for_whoever_has_heard_of_its_kind() -> None:
    nodes = failed(120)
    growing = [nodes[: 10 * tick] for tick in range(1, 13)]
    assert sum(bool(words) for words in told_in([*growing, *([nodes] * 100)], Policy(), every=5.0)) == 3


@pytest.mark.parametrize("per_hour", [3, 12])
def test_what_comes_and_goes_all_the_time_stays_under_the_cap_and_two(per_hour: int) -> None:
    flapping = [[NAN] if i % 2 else [] for i in range(400)]
    times = [i for i, words in enumerate(told_in(flapping, Policy(per_hour=per_hour))) if words]
    assert max(sum(start <= t < start + 60 for t in times) for start in times) <= per_hour + AHEAD


def test_warnings_wait_for_their_digest_and_criticals_do_not() -> None:
    policy = Policy(digest_every=2 * HOUR)
    fresh = [[news(SPIKE)], [news(NAN, NOW + HOUR)], [news(SPIKE, NOW + 2 * HOUR, "resolved")], []]
    assert messages(policy, fresh, every=HOUR) == [
        [], ["CRITICAL nan opened"], ["WARNING loss-spike resolved"], []
    ]  # fmt: skip


def test_quiet_hours_hold_what_may_not_pass_until_they_end() -> None:
    night = QuietHours(8 * 60, 10 * 60, "UTC")  # NOW is 08:11 UTC
    fresh = [[news(SPIKE), news(NAN)], [news(BLIND)], []]
    everything = ["UNKNOWN queue opened", "CRITICAL nan opened", "WARNING loss-spike opened"]
    loud = messages(Policy(quiet=night), fresh, every=HOUR)
    assert loud == [["CRITICAL nan opened"], ["UNKNOWN queue opened"], ["WARNING loss-spike opened"]]
    silent = messages(Policy(quiet=night, quiet_passes=()), fresh, every=HOUR)
    assert silent[:2] == [[], []] and sorted(silent[2]) == sorted(everything)


def test_what_ended_meanwhile_is_told_by_its_end_alone() -> None:
    policy = Policy(quiet=QuietHours(8 * 60, 9 * 60, "UTC"), quiet_passes=())
    assert messages(policy, [[news(NAN)], [news(NAN, NOW + HOUR, "resolved")]], every=HOUR)[1] == [
        "CRITICAL nan resolved"
    ]


def test_a_message_of_a_storm_stays_short_and_counts_what_it_leaves_out() -> None:
    storm = Message(tuple(map(news, failed(500))), NOW + 900, "tr_190", "/gpfs/runs/tr_190", "login2")
    assert subject(storm) == "CRITICAL tr_190: n0 failed (and 499 more)"
    lines = text(storm).splitlines()
    assert len(lines) < 3 * LISTED and f"… and {500 - LISTED} more node-failure" in lines
    assert f"CRITICAL tr_190: n7 failed [{ident(failed(8)[7])}]" in lines
    assert f"  ack: m4ops --run /gpfs/runs/tr_190 ack {ident(failed(1)[0])}" in lines
    assert lines[-1] == "500 of these waited to be told, the oldest since 2024-05-28 08:11 UTC"


def test_a_long_outage_of_a_sink_is_put_together_and_loses_nothing() -> None:
    queue = [
        Pending(Message((news(f, NOW + i),), NOW + i), ("taken",) if i < 5 else ()) for i, f in enumerate(failed(200))
    ]
    kept = compact(queue, 20)
    assert len(kept) == 20
    assert [p.done for p in kept].count(("taken",)) == 1
    assert {n.finding.node for p in kept for n in p.message.news} == {f"n{i}" for i in range(200)}


# ---------------------------------------------------------------- how it is said in m4ops.toml


def test_spans_and_quiet_hours_are_read_or_refused() -> None:
    assert (seconds("90m"), seconds("1h30m"), seconds("2d")) == (5400, 5400, 172800)
    assert quiet_hours("22:00-7:30") == QuietHours(1320, 450)
    assert quiet_hours("22:00-07:00 Europe/Paris").hold(NOW) is False
    for wrong in ("", "5", "h", "5x", "-5m", "5 m", "1h-"):
        with pytest.raises(BadInput, match="no span of time"):
            seconds(wrong)
    for wrong in ("22-7", "25:00-07:00", "22:00-22:00", "22:61-07:00", "22:00-07:00 Middle/Earth"):
        with pytest.raises(BadInput):
            quiet_hours(wrong)


def test_a_night_passes_midnight_in_its_own_zone() -> None:
    paris = quiet_hours("22:00-07:00 Europe/Paris")  # UTC+2 in May
    midnight = NOW - NOW % 86400
    assert [h for h in range(24) if paris.hold(midnight + h * HOUR)] == [0, 1, 2, 3, 4, 20, 21, 22, 23]


def test_the_burst_fits_every_cap_that_is_allowed() -> None:
    assert Policy(per_hour=BURST + 1).spacing == HOUR
