"""Where reading a log stopped, as it is kept until the next look."""

from __future__ import annotations

import json

from msgspec import Struct, to_builtins

from ops.errors import BadInput


class Cursor(Struct, frozen=True):
    """Where reading stopped, and which file it was.

    `restarted`: another file or other content was found, and read from 0, without the rest of the one before. Whoever sees
    it forgets what it concluded from the lines before, or goes on where the new ones do.
    """

    device: int
    inode: int
    offset: int
    line: int
    """Lines before `offset`."""
    head: str
    """Hash of the first `head_size` bytes: the same inode may have been truncated and written anew."""
    head_size: int
    restarted: bool = False
    progress: tuple[int, int, int | None, bool, int, int, tuple[int, float, float | None] | None] | None = None
    """The `Place` of the log's progress."""
    size: int = 0
    own: str = ""
    """How its progress lines look, where they are of no known format."""
    written: int = 0
    """When it was last written, in ns. With the same size and time there is nothing new."""
    quiet: bool = False
    """Was that long ago? Then its last line was looked at too, whether it has ended or not."""
    moved: bool = False
    """The log goes on in another file, which is read from 0: it was rotated, or the next job has one of its own. The rest
    of the file before was read first, or is `unseen`."""
    back: str = ""
    """Hash of the `head_size` bytes before `offset`: they tell a copy from another file that begins alike."""
    unseen: bool = False
    """What was written to the file before since the last look could not be read: it is gone, or was cut."""

    def to_json(self) -> str:
        return json.dumps(to_builtins(self))

    @classmethod
    def from_json(cls, text: str) -> Cursor:
        """Raises BadInput if the text is no cursor."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise BadInput(f"this is no log position: {error}", hint="read the log from its start") from error
