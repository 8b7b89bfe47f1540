import pytest

from poprun.errors import OptionError
from poprun.mpirun import environment
from poprun.mpirun.environment import (
    INSTANCE_PREFIXES,
    MPIRUN_PREFIXES,
    check_is_only_rank,
    without_batch_system,
    without_outer_mpi,
    without_outer_poprun,
)
from poprun.wire.protocol import Decoder, Spec

KEPT = {
    "PATH": "/bin",
    "OMPI_CC": "clang",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_MCA_btl": "self,sm",
    "OMPI_MCA_orte_base_help_aggregate": "0",
    "PMIX_MCA_gds": "hash",
    "PRTE_MCA_plm": "ssh",
    "HYDRA_IFACE": "lo",
    "PMIXTAPE": "x",
    "SLURM_JOB_ID": "4",
}


@pytest.mark.parametrize(
    "left",
    [
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_UNIVERSE_SIZE": "2", "OMPI_ARGV": ""},
        {"PMIX_RANK": "0", "PMIX_SERVER_URI4": "x;tcp4://127.0.0.1:1"},
        {"PRTE_LAUNCHED": "1", "OPAL_USER_PARAMS_GIVEN": "1"},
        {"OMPI_MCA_ess": "^singleton", "OMPI_MCA_ess_base_jobid": "1"},
        {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://", "OMPI_MCA_initial_wdir": "/"},
        {"PMI_RANK": "0", "PMI_FD": "9", "HYDI_CONTROL_FD": "7"},
        {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
        {"OPAL_PREFIX": "/outer", "PMIX_PREFIX": "/outer", "PMIX_NAMESPACE": "1"},
        {"OPAL_PREFIX": "/outer", "OMPI_FILE_LOCATION": "/tmp/x"},
    ],
)
def test_what_an_outer_mpi_left_is_taken_away(left: dict[str, str]) -> None:
    assert without_outer_mpi(KEPT | left) == KEPT


def test_a_place_that_the_user_gives_is_kept() -> None:
    places = {"OPAL_PREFIX": "/opt/mpi", "PMIX_PREFIX": "/opt/mpi"}

    assert without_outer_mpi(KEPT | places) == KEPT | places


def test_bytes_are_scrubbed_as_text_is() -> None:
    environ = {b"PMI_RANK": b"0", b"\xff": b"\xfe", b"PMIX_NAMESPACE": b"1"}

    assert without_outer_mpi(environ) == {b"\xff": b"\xfe"}


def test_mpirun_does_not_see_the_batch_system() -> None:
    environ = {"SLURM_JOB_ID": "1", "PBS_NODEFILE": "f", "PE_HOSTFILE": "f", "A": "1"}

    assert without_batch_system(environ) == {"A": "1"}


def is_set_by_mpi(name: str) -> bool:
    """Return whether a shim adds this variable of mpirun's to the program's."""
    message = Spec(
        path=b"/bin/true",
        argv=[b"true"],
        environment=[],
        cwd=b"/",
        mpi_prefixes=[prefix.encode() for prefix in INSTANCE_PREFIXES],
        mpirun_prefixes=[prefix.encode() for prefix in MPIRUN_PREFIXES],
        users=[],
        cpus=[],
        memory_nodes=[],
        stdin=b"/dev/null",
        grace_ms=0,
        ignored=[],
        terminals=(False, True),
        size=(24, 80),
        merge_stderr=False,
        open_files=0,
        umask=0o022,
    ).pack()
    [(_, fields)] = Decoder().feed(message)
    return Spec.read(fields).is_set_by_mpi(name.encode())


@pytest.mark.parametrize(
    "name",
    [
        *("PMI_RANK", "PMIX_NAMESPACE", "PRTE_LAUNCHED", "OMPI_COMM_WORLD_RANK"),
        *("HYDI_CONTROL_FD", "OPAL_PREFIX", "OMPI_MCA_btl_sm_backing_directory"),
        "MPI_LOCALRANKID",
    ],
)
def test_variables_that_an_mpi_sets_are_known_by_name(name: str) -> None:
    assert is_set_by_mpi(name)


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "TMPDIR", "HOME", "LD_LIBRARY_PATH", "MPI4PY_LIBMPI"),
        *("PRTE_MCA_rmaps_default_mapping_policy", "OMPI_MCA_rmaps_base_oversubscribe"),
    ],
)
def test_what_steers_mpirun_alone_does_not_reach_the_program(name: str) -> None:
    assert not is_set_by_mpi(name)


# --- Below another poprun.

OUTER = {
    "POPDIST_NUM_TOTAL_REPLICAS": "64",
    "POPDIST_NUM_IPUS_PER_REPLICA": "4",
    "POPDIST_NUM_LOCAL_REPLICAS": "8",
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
    "POPDIST_REPLICA_INDEX_OFFSET": "8",
    "POPDIST_LOCAL_INSTANCE_INDEX": "1",
    "POPDIST_CONTRACT_VERSION": "0",
    "POPDIST_JOB_ID": "outer",
    "POPDIST_CONTROL": "@poprun-outer",
    "POPDIST_OFFLINE_MODE": "0",
    "POPDIST_ARENA": "outer-0",
    "POPDIST_RESTART_COUNT": "3",
}
# A user may set these too.
EITHER = {
    "POPDIST_NODE_DEVICE_ID": "64",
    "POPDIST_EXECUTABLE_CACHE_PATH": "/cache",
    "MPI4PY_LIBMPI": "/mpi/libmpi.so",
    "OMP_NUM_THREADS": "2",
}
USERS = {"PATH": "/usr/bin", "POPDIST_TIMEOUT": "30", "POPDIST_LOG_LEVEL": "debug"}


def test_variables_of_an_outer_poprun_are_removed() -> None:
    assert without_outer_poprun({**USERS, **EITHER, **OUTER}) == USERS


def test_what_a_user_has_set_is_kept_outside_of_any_job() -> None:
    assert without_outer_poprun({**USERS, **EITHER}) == {**USERS, **EITHER}


def test_a_part_of_a_topology_is_removed() -> None:
    assert without_outer_poprun({"POPDIST_REPLICA_INDEX_OFFSET": "8"}) == {}


@pytest.mark.parametrize(
    ("parent", "variable"),
    [
        ("prterun\n", "OMPI_COMM_WORLD_SIZE"),
        ("orterun_wrapper\n", "OMPI_COMM_WORLD_SIZE"),
        ("hydra_pmi_proxy\n", "PMI_SIZE"),
    ],
)
def test_one_of_several_ranks_does_not_start_the_job(
    monkeypatch: pytest.MonkeyPatch, parent: str, variable: str
) -> None:
    monkeypatch.setattr(environment, "_parent_name", lambda: parent)

    with pytest.raises(OptionError) as refusal:
        check_is_only_rank({variable: "3"})

    assert str(refusal.value) == (
        "mpirun has started 3 copies of poprun, and each would start the "
        "whole job. poprun calls mpirun itself: write poprun -n 3 PROGRAM, "
        "without mpirun before it."
    )


@pytest.mark.parametrize(
    ("parent", "size"),
    [
        pytest.param("prterun\n", "1", id="only-rank"),
        pytest.param("prterun\n", "x", id="no-number"),
        pytest.param("bash\n", "2", id="script-of-a-rank"),
        pytest.param("train_mpirun.py\n", "2", id="script-named-after-mpirun"),
        pytest.param("python3\n", "2", id="shim-of-an-outer-poprun"),
        pytest.param("", "2", id="hidden-parent"),
    ],
)
def test_any_other_process_starts_it(
    monkeypatch: pytest.MonkeyPatch, parent: str, size: str
) -> None:
    monkeypatch.setattr(environment, "_parent_name", lambda: parent)

    check_is_only_rank({"OMPI_COMM_WORLD_SIZE": size})
