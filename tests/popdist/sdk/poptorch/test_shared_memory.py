"""Data is loaded also where /dev/shm cannot be written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHANGE = "mount -t tmpfs -o ro none /dev/shm"
PROGRAM = """
import popdist.sdk

popdist.sdk.install()
import torch

import poptorch

if __name__ == "__main__":
    settings = poptorch.Options().randomSeed(1)
    data = torch.utils.data.TensorDataset(torch.arange(16.0), torch.empty(16, 0))
    for mode in poptorch.DataLoaderMode.Sync, poptorch.DataLoaderMode.Async:
        loader = poptorch.DataLoader(
            settings, data, batch_size=4, shuffle=True, mode=mode
        )
        for _ in range(2):
            batches = [batch.tolist() for batch, _ in loader]
            print([len(batch) for batch in batches])
            assert len({number for batch in batches for number in batch}) == 8
        loader.terminate()
    try:
        poptorch.DataLoader(settings, data, num_workers=2)
    except AssertionError as error:
        print(error)
"""


@pytest.mark.timeout(180)
def test_data_is_loaded_without_dev_shm(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    within = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    ran = subprocess.run(
        [*within, f'{CHANGE}; exec "$@"', "sh", sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=150,
        # Half of the data is this process's.
        env=os.environ | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == ["[4, 4]"] * 4 + [
        "num_workers is 2, but /dev/shm cannot be written, where Python makes the "
        "semaphores of workers. Use num_workers=0, also with DataLoaderMode.Async, or "
        "mount a tmpfs on /dev/shm."
    ]
