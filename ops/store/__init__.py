"""A second home for checkpoints in an S3-compatible store: pushed whole or not at all, pulled back to the byte.

For a satellite that pushes as one of its steps:

    pushed = store.push(run, checkpoint, "s3://bucket/prefix", endpoint="", how=How(), told=lambda done, total: None)

`run` and `checkpoint` are those of a snapshot. Objects are `prefix/RUN/opt_step-N/FILE`; `prefix/RUN/opt_step-N.m4ops.json`,
written last, lists them with their checksums: without it there is no copy. When the copy is whole and current already,
nothing is sent (`pushed.sent == 0`) and the markers are set right. A push that was cut short goes on when it is called
again. Raises Busy (somebody else pushes this step, on any node), Refused (the save is not complete, no credentials, no
right), Unreachable (the store did not answer for `how.patience` seconds, or `how.until` has come: call again), Drift
(the checkpoint changed meanwhile), OpsError. After any of them but Refused there is no upload marker in the checkpoint.
`standing(run, path)` tells without asking the store what the last push left, and which files it is stale for.
"""

from __future__ import annotations

from ops.store.line import How, Line, Place, place
from ops.store.manifest import Manifest
from ops.store.noted import Standing, current, standing
from ops.store.pull import Pulled, find, held, named, pull, refuse_overwrite, settle
from ops.store.push import Due, Pushed, due, push

__all__ = [
    "Due", "How", "Line", "Manifest", "Place", "Pulled", "Pushed", "Standing",
    "current", "due", "find", "held", "named", "place", "pull", "push", "refuse_overwrite", "settle", "standing",
]  # fmt: skip
