"""The example of tensor-parallel inference computes what one process does."""

import pytest
from conftest import ROOT, Poprun

SIZES = [
    *("--layers", "2", "--width", "64", "--heads", "4"),
    *("--batch", "2", "--prompt", "5", "--tokens", "4"),
]


@pytest.mark.mpi
def test_instances_generate_what_one_process_does(poprun: Poprun) -> None:
    program = str(ROOT / "examples/tensor_parallel.py")
    ran = poprun(
        *("--num-instances", "2", "--num-replicas", "2", "--offline-mode", "yes"),
        *("python", program, *SIZES),
        environ={"OMP_NUM_THREADS": "1"},
        timeout=200,
    )
    assert ran.code == 0, ran.stderr
    measured, compared = ran.stdout.splitlines()
    assert measured.startswith("2 instances, backend popdist: ")
    assert measured.endswith("% of it communication")
    assert compared.startswith("one process: ")
