"""The peers that take part, and the reasons of the others."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from popdist.bench import peers
from popdist.bench.tasks import make_task
from tests.popdist.bench.fake_torch import Torch
from tests.popdist.bench.lone_member import LoneMember
from tests.popdist.engine.members import Me, results

IN_PLACE = make_task("all_reduce", 4, "float32", 0, 1)


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

    found, sentences = peers.find(["gloo"], LoneMember())

    assert found == []
    assert sentences == [
        "gloo is left out: torch cannot be imported (import of torch halted; None in "
        "sys.modules). Install it with 'pip install torch'."
    ]


def test_nothing_is_imported_for_peers_that_nobody_wants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)

    assert peers.find([], LoneMember()) == ([], [])


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Functions to be called at exit, which the test calls itself."""
    calls: list[Callable[[], object]] = []
    monkeypatch.setattr(peers.atexit, "register", calls.append)
    return calls


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    fake = Torch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "popdist.torch", ModuleType("popdist.torch"))
    return fake


def test_gloo_joins_all_instances_at_a_port_that_is_free(
    torch: Torch, at_exit: list[Callable[[], object]]
) -> None:
    peers.find(["gloo"], LoneMember())

    assert torch.distributed.joined == [("gloo", {"init_method": "popdist://"})]


def test_gloo_reduces_as_many_rows_as_it_is_told_in_place(
    torch: Torch, at_exit: list[Callable[[], object]]
) -> None:
    (gloo,), sentences = peers.find(["gloo"], LoneMember())
    rows = [np.full(3, value, np.float32) for value in (1, 2, 3)]

    gloo.runner(IN_PLACE.on_arrays(rows))(2)

    assert [row.tolist() for row in rows] == [[2, 2, 2], [4, 4, 4], [3, 3, 3]]
    assert (gloo.library, sentences) == ("gloo of torch 2.0+fake", [])


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("reduce_scatter", "reduce_scatter_tensor"),
        ("all_gather", "all_gather_into_tensor"),
    ],
)
def test_gloo_writes_into_results_of_their_own(
    operation: str, call: str, torch: Torch, at_exit: list[Callable[[], object]]
) -> None:
    (gloo,), _ = peers.find(["gloo"], LoneMember())
    task = make_task(operation, 24, "float32", 1, 2)

    gloo.runner(task)(1)

    assert torch.distributed.calls == [(call, task.results[0], task.inputs[0])]


def test_gloo_is_left_before_the_interpreter_ends(
    torch: Torch, at_exit: list[Callable[[], object]]
) -> None:
    peers.find(["gloo"], LoneMember())
    assert torch.distributed.left == 0

    for call in at_exit:
        call()

    assert torch.distributed.left == 1


def test_gloo_comes_with_its_torch() -> None:
    torch = pytest.importorskip("torch")

    # A fork: this process must not become an instance, or its other forks could not.
    def member(me: Me) -> Any:
        (gloo,), sentences = peers.find(["gloo"], LoneMember())
        row = np.arange(5, dtype=np.float32)
        gloo.runner(IN_PLACE.on_arrays([row]))(1)
        torch.distributed.destroy_process_group()
        return gloo.library, sentences, row.tolist()

    library = f"gloo of torch {torch.__version__}"
    assert results(1, member) == [(library, [], [0, 1, 2, 3, 4])]


def test_beside_popdist_gloo_has_a_group_of_its_own(torch: Torch) -> None:
    torch.distributed.init_process_group("popdist")
    (gloo,), _ = peers.find(["gloo"], LoneMember())
    row = np.ones(2, np.float32)

    gloo.runner(IN_PLACE.on_arrays([row]))(1)

    assert torch.distributed.calls[0][2] == "a group of gloo"


def test_deepspeed_reduces_only() -> None:
    reduced: list[object] = []
    deepspeed = peers.DeepSpeed(Torch(), reduced.append)
    deepspeed.runner(IN_PLACE)(1)
    assert len(reduced) == 1
    assert deepspeed.operations == ("all_reduce",)
