"""The backend popdist of torch.distributed, without an import of popdist."""

import logging
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist

from poprun.interpreter import torch_backend

SHOW = """
import sys, torch, torch.distributed as dist
print(
    dist.is_backend_available("popdist"),
    dist.init_process_group.__module__,
    any(name.partition(".")[0] == "popdist" for name in sys.modules),
)
"""
USUAL = "torch.distributed.distributed_c10d"


def run(
    program: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize(
    ("variables", "registered"),
    [
        ({}, False),
        ({"POPDIST_NUM_TOTAL_REPLICAS": "2"}, True),
        ({"POPDIST_TORCH_BACKEND": "popdist"}, True),
    ],
)
def test_programs_of_poprun_know_the_name_without_an_import(
    variables: dict[str, str], registered: bool
) -> None:
    ran = run(SHOW, **variables)

    assert ran.stdout == f"{registered} {USUAL} False\n", ran.stderr


def test_an_unknown_backend_fails_the_first_group_and_not_the_import() -> None:
    program = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""

    ran = run(program, POPDIST_TORCH_BACKEND="mpi")

    assert ran.stderr.endswith(
        "\nValueError: POPDIST_TORCH_BACKEND is 'mpi', but must be popdist or gloo.\n"
    )


def test_what_is_wrong_with_torch_is_a_warning_at_its_import(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise TypeError("unexpected keyword argument 'devices'")

    monkeypatch.setenv("POPDIST_NUM_TOTAL_REPLICAS", "2")
    monkeypatch.setattr(torch_backend, "_register", fail)

    with caplog.at_level(logging.WARNING):
        torch_backend.register()

    assert [record.getMessage() for record in caplog.records] == [
        f"torch {torch.__version__} has no backend popdist after `import torch`: "
        "TypeError(\"unexpected keyword argument 'devices'\"). Import popdist.torch in "
        "the program, and name the backend there."
    ]


# Each backend's group in turn, because importing torch takes long.
GROUPS = """
import sys, torch.distributed as dist
for backend in sys.argv[1:]:
    named = {"backend": backend} if backend else {}
    dist.init_process_group(**named, store=dist.HashStore(), rank=0, world_size=1)
    ours = type(dist.group.WORLD).__name__ == "ProcessGroupPopdist"
    print(ours, dist.get_backend(), dist.get_backend(dist.new_group([0])))
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        (
            "popdist",
            {
                "gloo": "True gloo gloo",
                "cpu:gloo": "True cpu:gloo cpu:gloo",
                "cpu:gloo,cuda:nccl": "True cpu:gloo,cuda:nccl cpu:gloo,cuda:nccl",
                "": "True undefined undefined",
                "popdist": "True popdist popdist",
            },
        ),
        ("gloo", {"gloo": "False gloo gloo", "popdist": "True popdist popdist"}),
    ],
    ids=["popdist", "gloo"],
)
def test_groups_are_ours_and_have_the_name_that_the_program_gave(
    asked: str, answers: dict[str, str]
) -> None:
    ran = run(GROUPS, *answers, POPDIST_TORCH_BACKEND=asked)

    # gloo has lines of its own.
    lines = [
        one for one in ran.stdout.splitlines() if one.startswith(("True", "False"))
    ]
    assert lines == [*answers.values()], ran.stderr


def test_groups_that_are_for_gpus_too_stay_torchs_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = {"cpu": dist.Backend("gloo"), "cuda": dist.Backend("nccl")}
    gloo = dict.fromkeys(["cpu", "cuda"], dist.Backend("gloo"))

    found = {}
    for gpu in (False, True):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda gpu=gpu: gpu)
        found[gpu] = [
            torch_backend.is_for_cpu(devices)
            for devices in (both, gloo, {"cuda": dist.Backend("nccl")})
        ]

    assert found == {False: [True, True, False], True: [False, True, False]}
