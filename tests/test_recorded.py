"""What Slurm printed on clusters of others (tests/recorded names its source): no version is supported by hearsay."""

from pathlib import Path

import pytest

from ops.catalogue.reasons import reason_of
from ops.hostlist import expand
from ops.model import Job
from ops.views import words

RECORDED = Path(__file__).with_name("recorded")


def rows() -> list[list[str]]:
    lines = (RECORDED / "squeue.txt").read_text().splitlines()
    return [line.split("|#") for line in lines if not line.startswith("#")]


def test_node_lists_reasons_and_arrays_of_newer_clusters_are_understood() -> None:
    for identity, state, count, nodes, _, reason in rows():
        assert state != "RUNNING" or len(expand(nodes)) == int(count)
        assert reason == "None" or reason_of(reason), reason
        array, _, task = identity.partition("_")
        job = Job(identity, array, task, array, state, reason, "", "")
        assert job.running != job.pending and not job.held
        assert words.tasks(job) == {"3": "task 3", "[7-8%1]": "2 tasks (%1)"}.get(task, "")
    assert [reason_of(row[5]).stuck for row in rows() if row[1] == "PENDING"] == [True, False]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:node[028,054,074,079-084]", "ReqNodeNotAvail"),
        ("ReqNodeNotAvail,_Reserved_for_maintenance", "ReqNodeNotAvail"),
        ("RaisedSignal:9(Killed)", "RaisedSignal"),
        ("launch_failed_requeued_held", "launch failed requeued held"),
    ],
)
def test_a_reason_with_details_is_known_by_its_code(text: str, code: str) -> None:
    found = reason_of(text)
    assert found is not None and found.code == code
