import pytest

from poprun.helpers.helper_commands import PYTHON
from poprun.mpirun.hydra import Hydra
from poprun.mpirun.no_mpi import LocalLauncher
from poprun.mpirun.openmpi import OpenMpi4, OpenMpi5
from poprun.mpirun.values import Context, Mpi, MpirunArguments

SHIM = ("/usr/bin/python3", "-I", "-S", "/opt/poprun/helpers/entry.py", "shim", "JOB")
ONE = Context(exports={"A": "1"}, argv=(*SHIM, "0"))
TWO = [
    Context(
        exports={
            **{"POPDIST_NUM_LOCAL_REPLICAS": "2", "J": '{"a":"b c"}'},
            **{"PATH": None, "PYTHONPATH": None},
        },
        argv=(*SHIM, "0"),
    ),
    Context(
        exports={
            **{"POPDIST_NUM_LOCAL_REPLICAS": "1", "J": ""},
            **{"PATH": None, "PYTHONPATH": None},
        },
        passed_on=("--preload-files", "f"),
        argv=(*SHIM, "1"),
    ),
]
ASKED = MpirunArguments(
    tag_output=True,
    allow_run_as_root=True,
    output_filename="logs",
    placement="spreadcores",
    npernode=1,
    passed_on=("--mca", "btl", "self,tcp"),
)


def mpirun(mpi: type[Mpi]) -> Mpi:
    return mpi(path="/opt/bin/mpirun", version="1")


@pytest.mark.parametrize("mpi", [OpenMpi4, OpenMpi5])
def test_open_mpi_starts_one_instance(mpi: type[Mpi]) -> None:
    argv = mpirun(mpi).command(MpirunArguments(), [ONE])

    assert argv == [
        *("/opt/bin/mpirun", "--bind-to", "none", "-np", "1", "-x", "A=1"),
        *(*SHIM, "0"),
    ]


@pytest.mark.parametrize("mpi", [OpenMpi4, OpenMpi5])
def test_open_mpi_starts_two_instances_in_the_order_of_the_original(
    mpi: type[Mpi],
) -> None:
    argv = mpirun(mpi).command(ASKED, TWO)

    assert argv == [
        *("/opt/bin/mpirun", "--bind-to", "none", "--tag-output"),
        *("--mca", "btl", "self,tcp", "--allow-run-as-root"),
        *("-np", "1", "-x", "POPDIST_NUM_LOCAL_REPLICAS=2", "-x", 'J={"a":"b c"}'),
        *("-x", "PATH", "-x", "PYTHONPATH"),
        *(*SHIM, "0"),
        ":",
        *("-np", "1", "-x", "POPDIST_NUM_LOCAL_REPLICAS=1", "-x", "J="),
        *("-x", "PATH", "-x", "PYTHONPATH", "--preload-files", "f"),
        *(*SHIM, "1"),
    ]


def test_allow_run_as_root_is_passed_on_to_open_mpi() -> None:
    arguments = MpirunArguments(allow_run_as_root=True)

    argv = mpirun(OpenMpi5).command(arguments, [Context(argv=["shim"])])

    assert argv == [
        *("/opt/bin/mpirun", "--bind-to", "none", "--allow-run-as-root"),
        *("-np", "1", "shim"),
    ]


def test_hydra_starts_one_instance() -> None:
    argv = mpirun(Hydra).command(MpirunArguments(), [ONE])

    assert argv == [
        *("/opt/bin/mpirun", "-bind-to", "none", "-n", "1", "-env", "A", "1"),
        *(*SHIM, "0"),
    ]


def test_hydra_starts_two_instances() -> None:
    arguments = MpirunArguments(
        tag_output=True, output_filename="logs", allow_run_as_root=True
    )

    argv = mpirun(Hydra).command(arguments, TWO)

    assert argv == [
        *("/opt/bin/mpirun", "-bind-to", "none"),
        *("-n", "1", "-env", "POPDIST_NUM_LOCAL_REPLICAS", "2"),
        *("-env", "J", '{"a":"b c"}'),
        *(*SHIM, "0"),
        ":",
        *("-n", "1", "-env", "POPDIST_NUM_LOCAL_REPLICAS", "1", "-env", "J", ""),
        *("--preload-files", "f"),
        *(*SHIM, "1"),
    ]


def test_the_local_launcher_starts_one_instance_and_two() -> None:
    launcher = LocalLauncher()

    assert launcher.command(MpirunArguments(), [ONE]) == [
        *(*PYTHON, "local"),
        *(*SHIM, "0"),
    ]
    assert launcher.command(ASKED, TWO) == [
        *(*PYTHON, "local"),
        *(*SHIM, "0"),
        ":",
        *(*SHIM, "1"),
    ]


CALLER = {
    "PATH": "/bin",
    "TMPDIR": "/scratch",
    "PMIX_RANK": "3",
    "SLURM_JOB_ID": "9",
    "OMPI_MCA_osc_sm_backing_directory": "/mine",
}


def test_open_mpi_4_keeps_its_files_in_the_directory_of_the_job() -> None:
    found = mpirun(OpenMpi4).environment(CALLER, "/job")

    assert found == {
        "PATH": "/bin",
        "HOME": "/job",
        "TMPDIR": "/job",
        "OMPI_MCA_btl_vader_backing_directory": "/job",
        "OMPI_MCA_osc_rdma_backing_directory": "/job",
        "OMPI_MCA_osc_sm_backing_directory": "/mine",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_plm": "isolated",
    }


def test_open_mpi_5_keeps_its_files_in_the_directory_of_the_job() -> None:
    caller = CALLER | {"HOME": "/home/me"}

    found = mpirun(OpenMpi5).environment(caller, "/job")

    assert found == {
        "PATH": "/bin",
        "HOME": "/home/me",
        "TMPDIR": "/job",
        "OMPI_MCA_btl_sm_backing_directory": "/job",
        "OMPI_MCA_osc_rdma_backing_directory": "/job",
        "OMPI_MCA_osc_sm_backing_directory": "/mine",
        "OMPI_MCA_osc_ucx_backing_directory": "/job",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }


def test_hydra_and_the_local_launcher_need_a_directory_only() -> None:
    caller = {"PATH": "/bin", "PMI_RANK": "1"}

    for mpi in (Hydra, LocalLauncher):
        found = mpirun(mpi).environment(caller, "/job")
        assert found == {"PATH": "/bin", "TMPDIR": "/job"}


def test_only_the_local_launcher_keeps_variables_of_a_batch_system() -> None:
    local = mpirun(LocalLauncher).environment(CALLER, "/job")
    hydra = mpirun(Hydra).environment(CALLER, "/job")

    assert local.pop("SLURM_JOB_ID") == "9"
    assert local == hydra
