"""Pickles of every protocol, held against pickle itself: the same values, each where the reader says, changed and changed back."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.checkpoints import lr
from ops.checkpoints.states import numbers_of_file
from ops.checkpoints.symbols import Call, Float, Global, Int, Text
from ops.checkpoints.torchfile import StateError, read
from ops.model import LrSite

PROTOCOLS = range(6)
NUMBERS = st.integers() | st.floats(allow_nan=False)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text() | st.binary(min_size=1)
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.lists(inner, max_size=5).map(tuple)
    ),
)
RATES = st.floats(1e-12, 10) | st.integers(0, 9)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pickles") / "scheduler.pt"


@given(state=STATES, protocol=st.sampled_from(PROTOCOLS))
def test_what_is_read_is_what_pickle_reads(file: Path, state: Any, protocol: int) -> None:
    shared = {"first": [state], "again": None}
    shared["again"] = shared["first"]
    file.write_bytes(raw := pickle.dumps(shared, protocol))
    tree = read(file).tree
    assert tree == pickle.loads(raw)
    assert tree["again"] is tree["first"]
    for found, wanted in zip(leaves(tree), leaves(shared), strict=True):
        assert isinstance(found, type(wanted))
        if isinstance(found, Float | Int | Text):
            assert pickle.loads(raw[found.at : found.end] + b".") == wanted


def leaves(tree: Any) -> list[Any]:
    """Every value, in the order of the tree."""
    match tree:
        case dict():
            return [leaf for pair in tree.items() for one in pair for leaf in leaves(one)]
        case list() | tuple():
            return [leaf for one in tree for leaf in leaves(one)]
    return [tree]


@given(
    rates=st.lists(RATES, min_size=1, max_size=3),
    new=st.lists(RATES.map(float), min_size=3, max_size=3),
    protocol=st.sampled_from(PROTOCOLS),
)
def test_a_changed_lr_is_read_by_pickle_and_changed_back_to_the_byte(
    file: Path, rates: list[float], new: list[float], protocol: int
) -> None:
    state = {"base_lrs": rates, "_last_lr": list(rates), "last_epoch": 7, "verbose": False, "name": "née"}
    file.write_bytes(raw := pickle.dumps(state, protocol))
    before = lr.file_sites(file)
    values = [new[i % len(rates)] for i in range(len(before))]
    file.write_bytes(lr.rebuilt(file, list(zip(before, values, strict=True))))
    loaded = pickle.loads(file.read_bytes())
    assert [*loaded["_last_lr"], *loaded["base_lrs"]] == values[len(rates) :] + values[: len(rates)]
    assert {k: v for k, v in loaded.items() if "lr" not in k} == {"last_epoch": 7, "verbose": False, "name": "née"}
    now = {site.label: site for site in numbers_of_file(file)}
    assert all(now[site.label].value == value for site, value in zip(before, values, strict=True))
    back = [(LrSite(s.file, s.label, v, s.kind), s.value) for s, v in zip(before, values, strict=True)]
    assert lr.rebuilt(file, back) == raw


@pytest.mark.parametrize("protocol", [1, 2])
def test_binary_floats_are_changed_in_their_place(file: Path, protocol: int) -> None:
    file.write_bytes(raw := pickle.dumps({"base_lrs": [1e-4], "last_epoch": 3}, protocol))
    (splice,) = lr.edit(file, [(site, site.value / 2) for site in lr.file_sites(file)])
    assert raw[splice.offset : splice.offset + 9] == splice.old
    changed = raw[: splice.offset] + splice.new + raw[splice.offset + 9 :]
    assert pickle.loads(changed) == {"base_lrs": [5e-5], "last_epoch": 3}


def test_what_python_2_wrote(file: Path) -> None:
    """Strings as their repr or bytes, longs, an instance of an old class; a numpy scalar, whose bytes are a string."""
    file.write_bytes(
        b"(dp0\nS'base_lrs'\np1\n(lp2\nF0.0001\naL3L\nasU\x07momentsI01\nsS\"it's\"\n(i__main__\nOld\np3\n(dp4\nS'a'\nI1\nsbs."
    )
    tree = read(file).tree
    assert tree["base_lrs"] == [1e-4, 3]
    assert tree["moments"] is True
    assert isinstance(tree["it's"], Call)
    assert (tree["it's"].func, tree["it's"].state) == (Global("__main__", "Old"), {"a": 1})
    file.write_bytes(
        b"\x80\x02}U\x08base_lrs]cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nU\x02f8K\0K\1\x87R(K\3U\1<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
        b"U\x08\0\0\0\0\0\0\0@\x86Ras."
    )
    (site,) = lr.file_sites(file)
    assert (site.kind, site.value) == ("numpy-float64", 2.0)
    assert pickle.loads(lr.rebuilt(file, [(site, 3.0)]), encoding="latin1") == {"base_lrs": [3.0]}


def test_digits_that_undo_could_not_give_back_are_left_alone(file: Path) -> None:
    """Python before 2.7 wrote more of them than Python does now."""
    file.write_bytes(b"(dS'base_lrs'\n(lF0.00010000000000000000479\nas.")
    with pytest.raises(StateError, match="undo could not give these digits back"):
        lr.rebuilt(file, [(site, 5e-5) for site in lr.file_sites(file)])
