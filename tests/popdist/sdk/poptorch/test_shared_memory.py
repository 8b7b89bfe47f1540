"""Data is loaded also where /dev/shm cannot be written, or is too small for it."""

import os
import subprocess
import sys
from pathlib import Path

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


# 16 MiB, in batches of 4 MiB; and tensors that a batch has no memory of its own for.
LARGE_PROGRAM = """
import popdist.sdk

popdist.sdk.install()
import torch

import poptorch

torch.sparse.check_sparse_tensor_invariants.disable()


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = torch.arange(16.0).repeat(1 << 18, 1).T.contiguous()

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return self.rows[index]


def with_sparse(rows):
    whole = torch.stack(rows)
    return whole, whole.to_sparse()


if __name__ == "__main__":
    loader = poptorch.DataLoader(
        poptorch.Options(),
        Rows(),
        batch_size=4,
        collate_fn=with_sparse,
        mode=poptorch.DataLoaderMode.Async,
    )
    for whole, sparse in loader:
        print(whole[:, -1].tolist(), sparse.to_dense().equal(whole))
    loader.terminate()
"""


def run_with_dev_shm(option: str, program: Path) -> "subprocess.CompletedProcess[str]":
    """Run a program where /dev/shm is mounted with an option."""
    mount = f'mount -t tmpfs -o {option} none /dev/shm; exec "$@"'
    within = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    return subprocess.run(
        [*within, sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=200,
        # Half of the data is this process's.
        env=os.environ | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
    )


def test_data_is_loaded_without_dev_shm(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    ran = run_with_dev_shm("ro", program)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == ["[4, 4]"] * 4 + [
        "num_workers is 2, but /dev/shm cannot be written, where Python makes the "
        "semaphores of workers. Use num_workers=0, also with DataLoaderMode.Async, or "
        "mount a tmpfs on /dev/shm."
    ]


def test_more_data_is_loaded_than_dev_shm_has_room_for(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LARGE_PROGRAM)

    ran = run_with_dev_shm("size=1m", program)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        "[0.0, 1.0, 2.0, 3.0] True",
        "[4.0, 5.0, 6.0, 7.0] True",
    ]
