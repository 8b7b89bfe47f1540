import os
import subprocess

import pytest
from conftest import POPRUN

from poprun.errors import LaunchError
from poprun.job import resource_limits


def test_a_machine_without_proc_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(path: str) -> list[str]:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "listdir", fail)

    with pytest.raises(LaunchError) as caught:
        resource_limits.raise_descriptor_limit(1, 0)

    assert str(caught.value) == (
        "poprun finds the processes of a job through /proc, which cannot "
        "be read: No such file or directory. Mount it with 'mount -t proc "
        "proc /proc'."
    )


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
    reason="only root may unmount, and not in every container",
)
def test_poprun_without_proc_ends_with_that_sentence() -> None:
    script = f"umount -l /proc && exec {POPRUN} --mpirun local true"

    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True
    )

    assert ended.returncode == 125, ended.stderr
    assert ended.stderr.startswith("poprun: error: poprun finds the processes of a job")
    assert ended.stderr.count("\n") == 1
