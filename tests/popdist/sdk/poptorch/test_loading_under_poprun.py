"""One launch: the loaders of all instances, with what the guide's programs use."""

import json
import sys
from typing import Any

import pytest
from conftest import Poprun

PROGRAM = """
import json
import torch
import popdist
import popdist.poptorch
import poptorch


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 50000

    def __getitem__(self, index):
        return torch.tensor([index, 2 * index])


if __name__ == "__main__":
    options = popdist.poptorch.Options()
    options.randomSeed(2022)
    options.Training.gradientAccumulation(8)
    options.deviceIterations(4)
    ahead = poptorch.DataLoader(
        options,
        Numbers(),
        batch_size=64,
        shuffle=True,
        mode=poptorch.DataLoaderMode.Async,
    )
    plain = poptorch.DataLoader(poptorch.Options(), Numbers(), batch_size=32)
    passes = []
    for _ in range(2):
        samples = []
        for batch in ahead:
            assert torch.equal(batch[:, 1], 2 * batch[:, 0])
            samples += batch[:, 0].tolist()
        passes.append(samples)
    found = {
        "index": popdist.getInstanceIndex(),
        "replicas": options.replication_factor,
        "lengths": [len(ahead), len(plain)],
        "first": int(next(iter(plain))[0, 0]),
        "passes": passes,
    }
    with open(f"found{found['index']}", "w") as file:
        json.dump(found, file)
"""


@pytest.mark.mpi
def test_instances_load_disjoint_parts_ahead_and_leave_nothing(poprun: Poprun) -> None:
    program = poprun.script("main.py", PROGRAM)

    ran = poprun(
        "--num-instances=2",
        "--num-replicas=4",
        "--offline-mode=1",
        sys.executable,
        program,
        environ={"OMP_NUM_THREADS": "1"},
    )

    assert ran.code == 0, ran.stderr
    assert " left " not in ran.stderr
    found: list[dict[str, Any]] = [
        json.loads((poprun.directory / f"found{index}").read_text())
        for index in range(2)
    ]
    assert [one["replicas"] for one in found] == [2, 2]
    # 50000 samples; 2 instances, and a step of 64 * 8 * 4 * 2 or of 32.
    assert [one["lengths"] for one in found] == [[6, 781], [6, 781]]
    assert [one["first"] for one in found] == [0, 781 * 32]
    for mine, others in zip(found[0]["passes"], found[1]["passes"], strict=True):
        assert len(mine) == len(others) == 6 * 4096
        assert len({*mine, *others}) == 2 * 6 * 4096
    assert found[0]["passes"][0] != found[0]["passes"][1]
