"""Whose checkpoints a folder holds, and what m4ops says where it cannot tell."""

from pathlib import Path

import pytest

from ops.checkpoints import layouts
from ops.discovery import describe
from ops.errors import BadInput


def test_a_layout_that_nobody_knows_is_told_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "m4ops.toml").write_text('layout = "m5"\n')
    with pytest.raises(BadInput, match="no layout `m5`") as told:
        describe(tmp_path)
    assert "m4" in told.value.hint


def test_a_folder_without_checkpoints_is_an_m4_run_that_has_none_yet(tmp_path: Path) -> None:
    run, _ = describe(tmp_path)
    assert run.layout.name == "m4"
    assert layouts.read(run) == ()
