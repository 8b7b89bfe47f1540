"""Which peers take part, and how it is said that one cannot."""

import sys

import pytest

from popdist.bench import peers
from tests.popdist.bench.lone import Lone


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("Open MPI v5.0.11, package: Open MPI user@localhost", "openmpi"),
        ("MPICH Version:      5.0.2", "mpich"),
        ("Intel(R) MPI Library 2021.18.1 for Linux* OS", "intelmpi"),
        ("Another One 1.0", "mpi"),
    ],
)
def test_an_mpi_is_called_by_a_short_name(library: str, name: str) -> None:
    assert peers.name_of_mpi(library) == name


def test_a_peer_that_is_not_installed_is_left_out_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    found, sentences = peers.find(["gloo"], Lone())

    assert found == []
    assert sentences == [
        "gloo is left out: torch cannot be imported (import of torch halted; None in "
        "sys.modules). Install it with 'pip install torch'."
    ]


def test_nothing_is_imported_for_peers_that_nobody_wants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)

    assert peers.find([], Lone()) == ([], [])
