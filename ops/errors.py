"""Every error m4ops raises on purpose.

OpsError          what, where, and the next command
├── RunNotFound   no run directory could be told from where we are
├── BadInput      a file or an argument does not say what it must say
├── Refused       the wish is understood and will not be planned (unsafe, twice, absurd)
├── Drift         the world is no longer what the plan was made for; nothing was touched
├── Unfinished    a change stopped half way; the journal says where, undo or apply end it
├── Busy          somebody else is changing this run
└── Unreachable   a source did not answer (controller down, no access): UNKNOWN, never OK
"""

from __future__ import annotations


class OpsError(Exception):
    """An error in three parts: what happened, where (file, line, job), and the next command.

    `exit_code` is the process's exit status: 1, as click gives for a failed command.
    """

    exit_code = 1

    def __init__(self, what: str, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        return (
            self.what
            + (f"\n  where: {self.where}" if self.where else "")
            + (f"\n  next:  {self.hint}" if self.hint else "")
        )


class RunNotFound(OpsError):
    """No run directory could be told from the current folder, the flags or the configuration."""


class BadInput(OpsError):
    """A file or an argument does not say what it must say."""


class Refused(OpsError):
    """The wish is understood and will not be planned: unsafe now, done already, or absurd."""


class Drift(OpsError):
    """The world no longer holds what the plan starts from. Nothing was touched."""


class Unfinished(OpsError):
    """A change stopped half way: the journal says where, `m4ops undo` or `m4ops apply` end it."""

    exit_code = 2


class Busy(OpsError):
    """Somebody else holds the run's lease."""


class Unreachable(OpsError):
    """A source did not answer. What it would have said is UNKNOWN."""

    exit_code = 3
