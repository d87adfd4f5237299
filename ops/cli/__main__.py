"""`python -m ops.cli`, for cron: the same as `m4ops`."""

from ops.cli import main

main()
