import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT
from jobs import environments

from popdist.environment import Instance
from popdist.errors import (
    ArenaError,
    LauncherError,
    MissingVariableError,
    UnreadableVariableError,
)
from popdist.job import Place, instance_of
from popdist.launchers import shared_name_of

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "12",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "66453505",
    "PMIX_SERVER_URI2": "66453504.0;tcp4://127.0.0.1:40027",
}
HYDRA = {
    "PMI_RANK": "5",
    "PMI_SIZE": "12",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "4",
}
SIXTH = Place(rank=5, size=12, local_rank=1, local_size=4, host_index=None, hosts=None)
SIXTH_OF_HOSTS = replace(SIXTH, host_index=2, hosts=4)


def test_a_process_that_nobody_launched_is_alone() -> None:
    assert Place.decode({"HOME": "/"}) == Place()
    assert Place() == Place(rank=0, size=1, local_rank=0, local_size=1)


def test_an_instance_of_poprun_knows_its_place() -> None:
    assert [Place.decode(told) for told in environments((2, 2, 2))] == [
        Place(rank=0, size=3, local_rank=0, local_size=3),
        Place(rank=1, size=3, local_rank=1, local_size=3),
        Place(rank=2, size=3, local_rank=2, local_size=3),
    ]


def test_instances_with_different_numbers_of_replicas_know_their_places() -> None:
    ranks = [Place.decode(told).rank for told in environments((1, 3, 2))]

    assert ranks == [0, 1, 2]


def test_a_job_with_one_instance_needs_no_more_than_its_replicas() -> None:
    assert Place.decode(Instance(num_total_replicas=4, num_local_replicas=4).encode())


@pytest.mark.parametrize("environ", [OPEN_MPI, HYDRA], ids=["openmpi", "hydra"])
def test_below_mpirun_each_process_owns_one_replica(environ: dict[str, str]) -> None:
    assert Place.decode(environ) == SIXTH
    assert instance_of(environ) == Instance(
        num_total_replicas=12, replica_index_offset=5, local_instance_index=1
    )


def test_poprun_has_the_last_word_below_mpirun() -> None:
    told = environments((2, 2))[1]

    assert Place.decode({**HYDRA, **told}).rank == 1
    assert instance_of({**HYDRA, **told}).num_total_replicas == 4


TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "12",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "GROUP_RANK": "2",
    "GROUP_WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "12",
    "SLURM_STEP_NUM_TASKS": "12",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),4(x2)",
    "SLURM_JOB_ID": "71",
    "SLURM_STEP_ID": "0",
    # With --mpi=pmi2.
    "PMI_RANK": "5",
    "PMI_SIZE": "12",
}


@pytest.mark.parametrize("environ", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_below_another_launcher_each_process_owns_one_replica(
    environ: dict[str, str],
) -> None:
    assert Place.decode(environ) == SIXTH_OF_HOSTS
    assert instance_of(environ) == Instance(
        num_total_replicas=12, replica_index_offset=5, local_instance_index=1
    )


def test_a_host_is_numbered_only_by_a_launcher_that_tells() -> None:
    without = {k: v for k, v in TORCHRUN.items() if not k.startswith("GROUP")}

    assert Place.decode(without) == SIXTH
    assert not SIXTH.on_one_host
    assert Place.decode({**TORCHRUN, "LOCAL_WORLD_SIZE": "12"}) == Place(
        rank=5, size=12, local_rank=1, local_size=12, host_index=0, hosts=1
    )
    with pytest.raises(UnreadableVariableError, match="GROUP_RANK is '4', but must be"):
        Place.decode({**TORCHRUN, "GROUP_RANK": "4"})


def test_the_inner_of_two_launchers_counts() -> None:
    assert Place.decode({**SRUN, **TORCHRUN, "RANK": "4"}).rank == 4
    assert Place.decode({**SRUN, **TORCHRUN, **OPEN_MPI}) == SIXTH


@pytest.mark.parametrize(
    "environ",
    [
        # What starts others itself, as with torch.multiprocessing.
        {"WORLD_SIZE": "4"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}
        | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        # A script of sbatch, and a shell of salloc.
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "ENVIRONMENT": "BATCH"},
        {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "71"},
    ],
)
def test_a_process_that_is_one_of_one_is_alone(environ: dict[str, str]) -> None:
    assert Place.decode(environ) == Place()


@pytest.mark.parametrize(
    ("rank", "size"),
    [
        ("PMI_RANK", "PMI_SIZE"),
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ],
)
def test_one_of_several_that_cannot_find_the_others_is_refused(
    rank: str, size: str
) -> None:
    for read in (Place.decode, instance_of):
        with pytest.raises(LauncherError) as refusal:
            read({rank: "1", size: "2"})

        assert str(refusal.value) == (
            f"{size} is 2 and {rank} is 1, so a launcher has started this process as "
            "one of 2, but it does not tell popdist how they find each other. Start "
            "the program with poprun, mpirun, torchrun or srun, or unset "
            f"{size} to run it alone."
        )


@pytest.mark.parametrize(
    ("rank", "size", "launcher"),
    [
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MVAPICH"),
        ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "flux run"),
        ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "jsrun"),
        ("HOROVOD_RANK", "HOROVOD_SIZE", "horovodrun"),
    ],
)
def test_a_launcher_that_says_too_little_is_named(
    rank: str, size: str, launcher: str
) -> None:
    with pytest.raises(LauncherError) as refusal:
        Place.decode({rank: "0", size: "12"})

    assert str(refusal.value) == (
        f"{size} is 12 and {rank} is 0, so {launcher} has started this process as one "
        "of 12, but it does not tell popdist how they find each other. Start the "
        "program with poprun, mpirun, torchrun or srun, or unset "
        f"{size} to run it alone."
    )
    assert Place.decode({rank: "0", size: "1"}) == Place()


def test_pmix_alone_does_not_say_how_many_there_are() -> None:
    with pytest.raises(LauncherError) as refusal:
        Place.decode({"PMIX_RANK": "0", "PMIX_NAMESPACE": "prterun-host-12@1"})

    assert str(refusal.value) == (
        "PMIX_RANK is 0, so a launcher with PMIx has started this process, but it "
        "tells popdist neither how many there are nor how they find each other. Start "
        "the program with poprun, mpirun, torchrun or srun, or unset PMIX_RANK to run "
        "it alone."
    )


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("SLURM_STEP_TASKS_PER_NODE", "2(y2)", "a list as 2(x3),1"),
        ("SLURM_NODEID", "4", "a node of 2(x2),4(x2)"),
    ],
)
def test_impossible_variables_of_srun_are_refused(
    name: str, value: str, rule: str
) -> None:
    with pytest.raises(UnreadableVariableError) as refusal:
        Place.decode({**SRUN, name: value})

    assert str(refusal.value) == (
        f"{name} is '{value}', but must be {rule}. srun sets it; unset it to run "
        "without srun."
    )


def test_processes_of_another_launcher_meet_as_one_job() -> None:
    for environ, rank, job in (
        (TORCHRUN, "RANK", "MASTER_PORT"),
        (TORCHRUN, "RANK", "TORCHELASTIC_RESTART_COUNT"),
        (SRUN, "SLURM_PROCID", "SLURM_STEP_ID"),
    ):
        assert shared_name_of(environ) == shared_name_of({**environ, rank: "6"})
        assert shared_name_of(environ) != shared_name_of({**environ, job: "9"})


@pytest.mark.parametrize("by", ["torchrun", "srun"])
def test_processes_below_another_launcher_reduce_among_all(by: str) -> None:
    port = str(os.getpid())
    told = {
        "torchrun": [
            {**TORCHRUN, "MASTER_PORT": port, "RANK": str(r), "LOCAL_RANK": str(r)}
            | {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
            for r in range(3)
        ],
        "srun": [
            {**SRUN, "SLURM_JOB_ID": port, "SLURM_PROCID": str(r)}
            | {"SLURM_LOCALID": str(r), "SLURM_NODEID": "0"}
            | {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "3"}
            for r in range(3)
        ],
    }[by]
    program = (
        "import numpy, popdist\n"
        "popdist.init()\n"
        "mine = numpy.array([popdist.getInstanceIndex()])\n"
        "print(popdist.collectives.allGather(mine).tolist())\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, **one},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for one in told
    ]

    assert [one.communicate(timeout=200)[0] for one in started] == [
        "[[0], [1], [2]]\n"
    ] * 3


def test_all_that_is_missing_is_told_at_once() -> None:
    by_hand = {"POPDIST_NUM_TOTAL_REPLICAS": "2", "POPDIST_NUM_LOCAL_REPLICAS": "1"}
    of_several = (
        "OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK, "
        "OMPI_COMM_WORLD_LOCAL_SIZE and POPDIST_ARENA are not set, although other "
        "POPDIST_ variables are. poprun sets all of them or none: start the program "
        "with poprun, or unset them all to run without it."
    )
    for read in (Place.decode, instance_of):
        with pytest.raises(MissingVariableError) as refusal:
            read(by_hand)

        assert str(refusal.value) == (
            "POPDIST_NUM_IPUS_PER_REPLICA, POPDIST_UNIFORM_REPLICAS_PER_INSTANCE, "
            "POPDIST_REPLICA_INDEX_OFFSET, POPDIST_LOCAL_INSTANCE_INDEX, " + of_several
        )
    with pytest.raises(MissingVariableError) as refusal:
        Place.decode(Instance(num_total_replicas=2).encode())

    assert str(refusal.value) == of_several


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("OMPI_COMM_WORLD_SIZE", "0", "1 or more"),
        ("OMPI_COMM_WORLD_RANK", "12", "less than 12"),
        ("OMPI_COMM_WORLD_RANK", "-1", "a whole number"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "13", "from 1 to 12"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "4", "less than 4"),
    ],
)
def test_impossible_variables_of_mpirun_are_refused(
    name: str, value: str, rule: str
) -> None:
    with pytest.raises(UnreadableVariableError) as refusal:
        Place.decode({**OPEN_MPI, name: value})

    assert str(refusal.value) == (
        f"{name} is '{value}', but must be {rule}. mpirun sets it; unset it to run "
        "without mpirun."
    )


@pytest.mark.parametrize(
    ("name", "value", "truth"),
    [("OMPI_COMM_WORLD_SIZE", "3", "2"), ("OMPI_COMM_WORLD_RANK", "0", "1")],
)
def test_a_place_that_contradicts_the_replicas_is_refused(
    name: str, value: str, truth: str
) -> None:
    told = environments((2, 2))[1]

    with pytest.raises(UnreadableVariableError) as refusal:
        Place.decode({**told, name: value})

    assert str(refusal.value) == (
        f"{name} is '{value}', but must be {truth}. poprun sets it; unset it to run "
        "without poprun."
    )


@pytest.mark.parametrize(
    ("name", "read"),
    [("OMPI_COMM_WORLD_RANK", Place.decode), ("POPDIST_ARENA", shared_name_of)],
)
def test_missing_variables_of_poprun_are_named(
    name: str, read: Callable[[dict[str, str]], object]
) -> None:
    told = environments((1, 1))[0]
    del told[name]

    with pytest.raises(MissingVariableError, match=f"^{name} is not set"):
        read(told)


def test_instances_of_a_host_meet_where_poprun_says() -> None:
    assert shared_name_of(environments((1, 1), "cafe-0")[1]) == "cafe-0"


def test_ranks_of_one_mpirun_meet_and_those_of_another_do_not() -> None:
    other_rank = {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "6"}
    other_job = {**OPEN_MPI, "PMIX_NAMESPACE": "66453506"}
    other_mpirun = {**OPEN_MPI, "PMIX_SERVER_URI2": "66453504.0;tcp4://127.0.0.1:1"}

    assert shared_name_of(OPEN_MPI) == shared_name_of(other_rank)
    assert shared_name_of(OPEN_MPI) not in (
        shared_name_of(other_job),
        shared_name_of(other_mpirun),
    )


def test_without_the_jobs_name_the_ranks_of_open_mpi_cannot_meet() -> None:
    environ = {k: v for k, v in OPEN_MPI.items() if not k.startswith("PMIX")}

    with pytest.raises(ArenaError) as refusal:
        shared_name_of(environ)

    assert str(refusal.value) == (
        "OMPI_COMM_WORLD_SIZE is 12, but PMIX_NAMESPACE is not set, although mpirun "
        "sets both: the instances cannot find each other. Start the program with "
        "poprun or mpirun, or unset OMPI_COMM_WORLD_SIZE to run it alone."
    )


def processes(proc: Path, *lines: str) -> str:
    for line in lines:
        folder = proc / line.split()[0]
        folder.mkdir()
        fields = " ".join(str(number) for number in range(5, 22))
        (folder / "stat").write_text(f"{line} {fields} 4711 23\n")
    (proc / "self").symlink_to(proc / lines[0].split()[0])
    return str(proc)


def test_ranks_of_hydra_meet_by_the_proxy_above_them(tmp_path: Path) -> None:
    proc = processes(
        tmp_path,
        "90 (python) S 80",
        "80 (sh) x) (y) S 70",
        "70 (hydra_pmi_proxy) S 60",
        "60 (mpiexec.hydra) S 0",
    )

    assert shared_name_of(HYDRA, proc) == "hydra 70-4711-"
    # Other users see the proxy and its start, but not where its memory lies.
    (tmp_path / "70" / "auxv").write_bytes(b"\1\2")
    assert shared_name_of(HYDRA, proc) == "hydra 70-4711-0102"


def test_ranks_of_open_mpi_meet_by_the_daemon_above_them(tmp_path: Path) -> None:
    proc = processes(tmp_path, "90 (python) S 70", "70 (prterun) S 0")
    (tmp_path / "70" / "auxv").write_bytes(b"\1\2")

    assert shared_name_of(OPEN_MPI, proc).endswith(" 70-4711-0102")


def test_without_a_proxy_the_ranks_of_hydra_cannot_meet(tmp_path: Path) -> None:
    proc = processes(tmp_path, "90 (python) S 1", "1 (init) S 0")

    with pytest.raises(ArenaError, match="no process above this one is a hydra_pmi"):
        shared_name_of(HYDRA, proc)


@pytest.mark.mpi
def test_a_bare_mpirun_is_enough_for_collectives(
    every_mpirun: str, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, numpy, popdist\n"
        "popdist.init()\n"
        "index = popdist.getInstanceIndex()\n"
        "mine = numpy.array([index, popdist.getLocalInstanceIndex()])\n"
        "all = popdist.collectives.allGather(mine)\n"
        "if index == 2:\n"
        "    print(all.tolist(), popdist.getNumInstances(), 'mpi4py' in sys.modules)\n"
    )
    openmpi = ROOT / ".venv-mpich" not in Path(every_mpirun).parents
    root = ["--allow-run-as-root", "--oversubscribe"] if openmpi else []

    ran = subprocess.run(
        [every_mpirun, *root, "-n", "3", sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )

    assert ran.stdout in (
        "[[0, 0], [1, 1], [2, 2]] 3 False\n",
        # Open MPI 5 may number the ranks of a host in another order.
        "[[0, 0], [1, 2], [2, 1]] 3 False\n",
    )
