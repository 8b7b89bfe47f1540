"""One step of training is the same in any split of the replicas into instances."""

from pathlib import Path

import popdist.sdk

popdist.sdk.install()

import pytest  # noqa: E402
import torch  # noqa: E402
from conftest import ROOT, Poprun  # noqa: E402
from poptorch_program import results  # noqa: E402

PROGRAM = str(ROOT / "tests/poptorch_program.py")
ENVIRON = {"OMP_NUM_THREADS": "1"}


@pytest.mark.mpi
@pytest.mark.timeout(600)
def test_weights_are_the_same_to_the_bit_in_one_process_and_in_two(
    poprun: Poprun, tmp_path: Path
) -> None:
    expected = results(1, 0)
    ran = poprun(
        *("--num-replicas", "8", "--num-instances", "2"),
        *("--offline-mode", "yes", "python", PROGRAM, str(tmp_path)),
        environ=ENVIRON,
        timeout=200,
    )
    assert ran.code == 0, ran.stderr

    for instance in range(2):
        found = torch.load(tmp_path / f"2-{instance}.pt")
        assert len(found) == 6
        for name, weights in found.items():
            for key, value in weights.items():
                # Running statistics are those of the first local replica.
                if instance and ("running" in key or "batches" in key):
                    continue
                assert value.isfinite().all(), f"{name}: {key}"
                same = torch.equal(value, expected[name][key])
                assert same, f"{name}: {key} of instance {instance}"
