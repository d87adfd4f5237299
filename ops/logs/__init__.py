"""Reading training logs: progress lines, events, and going on from where the last look stopped."""

from ops.logs.cursor import Cursor
from ops.logs.events import parse_event
from ops.logs.progress import Branch, parse_sample, split_branches
from ops.logs.reader import read_log
from ops.logs.rotated import read_batches, read_new

__all__ = ["Branch", "Cursor", "parse_event", "parse_sample", "read_batches", "read_log", "read_new", "split_branches"]
