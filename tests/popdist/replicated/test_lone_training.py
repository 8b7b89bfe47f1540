import subprocess
import sys

import pytest

from tests.jobs import environments

WARNING = (
    "The 2 instances have trained separately: they have reduced nothing, so each has "
    "a different model. Say so.\n"
)


def ended(body: str, instance: int = 0, instances: int = 2) -> str:
    """Return what a program of an instance writes to stderr."""
    program = (
        f"from popdist.replicated.lone_training import note_training, told\n{body}"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environments([1] * instances)[instance],
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        timeout=200,
    )
    return ran.stderr


def test_instance_0_warns_once_when_it_ends() -> None:
    body = "note_training('Say so.'); note_training('Say so.'); print('trained')"

    assert ended(body) == WARNING
    assert ended(body, instance=1) == ""
    assert ended(body, instances=1) == ""


@pytest.mark.parametrize(
    "body",
    [
        "",
        "note_training('Say so.'); told.set()",
        "import types, sys; sys.modules['mpi4py.MPI'] = types.ModuleType('MPI')\n"
        "note_training('Say so.')",
        "import os; os.environ.clear()\n"
        "os.environ.update(OMPI_COMM_WORLD_RANK='0', OMPI_COMM_WORLD_SIZE='2')\n"
        "note_training('Say so.')",
        "from popdist.session import STATE; STATE._past_runs['tree'] += 1\n"
        "note_training('Say so.')",
    ],
    ids=[
        "no training",
        "told already",
        "other collectives",
        "another launcher",
        "reductions",
    ],
)
def test_a_healthy_program_gets_no_warning(body: str) -> None:
    assert ended(body) == ""
