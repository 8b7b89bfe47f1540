import pytest

from poprun.mpirun import adapter, command, no_mpi
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
    output_filename="logs",
    placement="spreadcores",
    npernode=1,
    passed_on=("--mca", "btl", "self,tcp"),
)


def mpi(flavour: str) -> Mpi:
    return Mpi(path="/opt/bin/mpirun", flavour=flavour, vendor="V", version="1")


@pytest.mark.parametrize("flavour", ["openmpi4", "openmpi5"])
def test_open_mpi_starts_one_instance(flavour: str) -> None:
    argv = command(mpi(flavour), MpirunArguments(), [ONE], as_root=False)

    assert argv == [
        *("/opt/bin/mpirun", "--bind-to", "none", "-np", "1", "-x", "A=1"),
        *(
            "/usr/bin/python3",
            "-I",
            "-S",
            "/opt/poprun/helpers/entry.py",
            "shim",
            "JOB",
            "0",
        ),
    ]


@pytest.mark.parametrize("flavour", ["openmpi4", "openmpi5"])
def test_open_mpi_starts_two_instances_in_the_order_of_the_original(
    flavour: str,
) -> None:
    argv = command(mpi(flavour), ASKED, TWO, as_root=True)

    assert argv == [
        *("/opt/bin/mpirun", "--bind-to", "none", "--tag-output"),
        *("--mca", "btl", "self,tcp", "--allow-run-as-root"),
        *("-np", "1", "-x", "POPDIST_NUM_LOCAL_REPLICAS=2", "-x", 'J={"a":"b c"}'),
        *("-x", "PATH", "-x", "PYTHONPATH"),
        *(
            "/usr/bin/python3",
            "-I",
            "-S",
            "/opt/poprun/helpers/entry.py",
            "shim",
            "JOB",
            "0",
        ),
        ":",
        *("-np", "1", "-x", "POPDIST_NUM_LOCAL_REPLICAS=1", "-x", "J="),
        *("-x", "PATH", "-x", "PYTHONPATH", "--preload-files", "f"),
        *(
            "/usr/bin/python3",
            "-I",
            "-S",
            "/opt/poprun/helpers/entry.py",
            "shim",
            "JOB",
            "1",
        ),
    ]


def test_allow_run_as_root_is_passed_on_to_open_mpi() -> None:
    arguments = MpirunArguments(allow_run_as_root=True)

    argv = command(mpi("openmpi5"), arguments, [Context(argv=["shim"])], as_root=False)

    assert argv == [
        *("/opt/bin/mpirun", "--bind-to", "none", "--allow-run-as-root"),
        *("-np", "1", "shim"),
    ]


def test_hydra_starts_one_instance() -> None:
    argv = command(mpi("hydra"), MpirunArguments(), [ONE], as_root=True)

    assert argv == [
        *("/opt/bin/mpirun", "-bind-to", "none", "-n", "1", "-env", "A", "1"),
        *(
            "/usr/bin/python3",
            "-I",
            "-S",
            "/opt/poprun/helpers/entry.py",
            "shim",
            "JOB",
            "0",
        ),
    ]


def test_hydra_starts_two_instances() -> None:
    arguments = MpirunArguments(tag_output=True, output_filename="logs")

    argv = command(mpi("hydra"), arguments, TWO, as_root=True)

    assert argv == [
        *("/opt/bin/mpirun", "-bind-to", "none"),
        *("-n", "1", "-env", "POPDIST_NUM_LOCAL_REPLICAS", "2"),
        *("-env", "J", '{"a":"b c"}'),
        *(
            "/usr/bin/python3",
            "-I",
            "-S",
            "/opt/poprun/helpers/entry.py",
            "shim",
            "JOB",
            "0",
        ),
        ":",
        *("-n", "1", "-env", "POPDIST_NUM_LOCAL_REPLICAS", "1", "-env", "J", ""),
        *("--preload-files", "f"),
        *(
            "/usr/bin/python3",
            "-I",
            "-S",
            "/opt/poprun/helpers/entry.py",
            "shim",
            "JOB",
            "1",
        ),
    ]


def test_the_local_launcher_starts_one_instance_and_two() -> None:
    words = ["/usr/bin/python3", "-I", "-S", "/opt/poprun/helpers/entry.py", "local"]
    launcher = no_mpi.launcher(words, "0.1.0")

    assert command(launcher, MpirunArguments(), [ONE], as_root=True) == [
        *("/usr/bin/python3", "-I", "-S", "/opt/poprun/helpers/entry.py", "local"),
        *(
            "/usr/bin/python3",
            "-I",
            "-S",
            "/opt/poprun/helpers/entry.py",
            "shim",
            "JOB",
            "0",
        ),
    ]
    assert command(launcher, ASKED, TWO, as_root=True) == [
        *("/usr/bin/python3", "-I", "-S", "/opt/poprun/helpers/entry.py", "local"),
        *(
            "/usr/bin/python3",
            "-I",
            "-S",
            "/opt/poprun/helpers/entry.py",
            "shim",
            "JOB",
            "0",
        ),
        ":",
        *(
            "/usr/bin/python3",
            "-I",
            "-S",
            "/opt/poprun/helpers/entry.py",
            "shim",
            "JOB",
            "1",
        ),
    ]


CALLER = {
    "PATH": "/bin",
    "TMPDIR": "/scratch",
    "PMIX_RANK": "3",
    "SLURM_JOB_ID": "9",
    "OMPI_MCA_osc_sm_backing_directory": "/mine",
}


def test_open_mpi_4_keeps_its_files_in_the_directory_of_the_job() -> None:
    found = adapter("openmpi4").environment(mpi("openmpi4"), CALLER, "/job")

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

    found = adapter("openmpi5").environment(mpi("openmpi5"), caller, "/job")

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

    for flavour in ("hydra", "local"):
        found = adapter(flavour).environment(mpi(flavour), caller, "/job")
        assert found == {"PATH": "/bin", "TMPDIR": "/job"}


def test_only_the_local_launcher_keeps_variables_of_a_batch_system() -> None:
    local = adapter("local").environment(mpi("local"), CALLER, "/job")
    hydra = adapter("hydra").environment(mpi("hydra"), CALLER, "/job")

    assert local.pop("SLURM_JOB_ID") == "9"
    assert local == hydra
