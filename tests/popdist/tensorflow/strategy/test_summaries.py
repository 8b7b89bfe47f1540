"""Event files of several instances: one in a shared folder, and all of their own."""

import os
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
import tensorflow as tf
from conftest import Poprun

from popdist import collectives
from popdist.tensorflow import PopDistStrategy
from tests.popdist.tensorflow.instances import on_all


def write(folder: Path, step: int, **options: Any) -> None:
    writer = tf.summary.create_file_writer(str(folder), **options)
    with writer.as_default():
        tf.summary.write("loss", 1.5, step=step)
    writer.close()


def steps_in(folder: Path) -> list[list[int]]:
    """Return the steps of the events of each file in a folder."""
    return [
        [
            event.step
            for event in tf.compat.v1.train.summary_iterator(str(path))
            if event.summary.value
        ]
        for path in sorted(folder.glob("events.out.tfevents.*"))
    ]


def test_instance_0_alone_writes_to_a_folder_that_all_name(tmp_path: Path) -> None:
    def program(rank: int) -> None:
        before = tmp_path / "before"
        early = tf.summary.create_file_writer(str(before))
        PopDistStrategy()
        with early.as_default():
            tf.summary.write("loss", 1.5, step=10 + rank)
        early.close()
        # In each of the two orders.
        for folder, first in (("first", 0), ("last", 1)):
            for writing in (first, 1 - first):
                if rank == writing:
                    write(tmp_path / folder, 20 + rank, filename_suffix=".here")
                collectives.barrier()

    on_all(2, program)

    found = {folder: steps_in(tmp_path / folder) for folder in os.listdir(tmp_path)}
    assert found == {"before": [[10]], "first": [[20]], "last": [[20]]}


def test_instances_write_to_folders_of_their_own_beside_other_files(
    tmp_path: Path,
) -> None:
    def program(rank: int) -> None:
        # Processes of an earlier job and of another host have the id of instance 0.
        first = os.getpid() if rank == 0 else None
        PopDistStrategy()
        if first:
            for folder in ("own0", "own1"):
                (tmp_path / folder).mkdir()
                for begin in (f"1600000000.{gethostname()}", "9000000000.another.host"):
                    name = f"events.out.tfevents.{begin}.{first}.0.v2"
                    (tmp_path / folder / name).touch()
        collectives.barrier()
        write(tmp_path / f"own{rank}", 10 + rank)
        if rank == 1:
            write(tmp_path / "alone", 21)

    on_all(2, program)

    found = {folder: steps_in(tmp_path / folder) for folder in os.listdir(tmp_path)}
    assert found == {"own0": [[], [10], []], "own1": [[], [11], []], "alone": [[21]]}


PROGRAM = """
import tensorflow as tf
from popdist.tensorflow import PopDistStrategy
import popdist

PopDistStrategy()
rank = popdist.getInstanceIndex()
writers = [tf.summary.create_file_writer(name) for name in ("shared", f"own{rank}")]
for writer in writers:
    with writer.as_default():
        tf.summary.write("loss", 1.5, step=10 + rank)
del writer
writers.pop(0)
raise SystemExit(f"as instance {rank} ends")
"""


@pytest.mark.mpi
def test_writers_that_stay_open_have_written_at_the_end_of_the_program(
    poprun: Poprun, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "temporary").mkdir()

    ran = poprun(
        *("-n", "2", "--mpirun", "local", "--keep-going", "python", "program.py"),
        environ={"TF_CPP_MIN_LOG_LEVEL": "3", "TMPDIR": f"{tmp_path}/temporary"},
        timeout=200,
    )

    assert ran.code == 1, ran.stderr
    folders = ("shared", "own0", "own1")
    assert [steps_in(tmp_path / folder) for folder in folders] == [
        [[10]],
        [[10]],
        [[11]],
    ]
    assert not [*(tmp_path / "temporary").glob("popdist-summaries-*")]
