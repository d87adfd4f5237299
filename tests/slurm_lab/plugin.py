"""Real clusters for tests. One is up in a fraction of a second, so every test has its own, and may break it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from . import cluster
from .cluster import Cluster, LabError
from .shape import Shape

Lab = Callable[..., Cluster]


def _lab() -> Iterator[Lab]:
    made: list[Cluster] = []

    def up(**wanted: Any) -> Cluster:
        shape = Shape(**wanted)
        if os.geteuid() != 0:
            pytest.skip("a Slurm cluster on one machine needs root (namespaces, jobs of several users)")
        if lacking := cluster.missing(shape):
            pytest.fail(f"Slurm is missing; {lacking}", pytrace=False)
        try:
            made.append(Cluster.up(shape, tied=True))
        except LabError as error:
            pytest.fail(str(error), pytrace=False)
        return made[-1]

    yield up
    for each in made:
        each.down()


@pytest.fixture
def slurm_lab() -> Iterator[Lab]:
    """``slurm_lab(nodes=3, dbd=True, …)``: a new cluster of that shape, down at the test's end."""
    yield from _lab()


@pytest.fixture(scope="module")
def lasting_lab() -> Iterator[Lab]:
    """The same, for a cluster that all tests of a file share."""
    yield from _lab()


@pytest.fixture
def slurm(slurm_lab: Lab) -> Cluster:
    """A cluster of three nodes."""
    return slurm_lab(nodes=3)
