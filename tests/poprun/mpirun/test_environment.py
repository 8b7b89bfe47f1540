import pytest

from poprun.helpers.protocol import Decoder, Spec, pack_spec
from poprun.mpirun.environment import (
    GIFT_PREFIXES,
    NO_GIFT_PREFIXES,
    scrub,
    without_batch_system,
)

KEPT = {
    "PATH": "/bin",
    "OMPI_CC": "clang",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_MCA_btl": "self,sm",
    "OMPI_MCA_orte_base_help_aggregate": "0",
    "PMIX_MCA_gds": "hash",
    "PRTE_MCA_plm": "ssh",
    "HYDRA_IFACE": "lo",
    "I_MPI_FABRICS": "shm",
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
    assert scrub(KEPT | left) == KEPT


def test_a_place_that_the_user_gives_is_kept() -> None:
    places = {"OPAL_PREFIX": "/opt/mpi", "PMIX_PREFIX": "/opt/mpi"}

    assert scrub(KEPT | places) == KEPT | places


def test_bytes_are_scrubbed_as_text_is() -> None:
    environ = {b"PMI_RANK": b"0", b"\xff": b"\xfe", b"PMIX_NAMESPACE": b"1"}

    assert scrub(environ) == {b"\xff": b"\xfe"}


def test_mpirun_does_not_see_the_batch_system() -> None:
    environ = {"SLURM_JOB_ID": "1", "PBS_NODEFILE": "f", "PE_HOSTFILE": "f", "A": "1"}

    assert without_batch_system(environ) == {"A": "1"}


def is_gift(name: str) -> bool:
    """Return whether a shim adds this variable of mpirun's to the program's."""
    message = pack_spec(
        path=b"/bin/true",
        argv=[b"true"],
        environment=[],
        cwd=b"/",
        gifts=[prefix.encode() for prefix in GIFT_PREFIXES],
        no_gifts=[prefix.encode() for prefix in NO_GIFT_PREFIXES],
        users=[],
        cpus=[],
        memory_nodes=[],
        stdin=b"/dev/null",
        grace_ms=0,
        ignored=[],
    )
    [(_, fields)] = Decoder().feed(message)
    return Spec(fields).is_gift(name.encode())


@pytest.mark.parametrize(
    "name",
    [
        *("PMI_RANK", "PMIX_NAMESPACE", "PRTE_LAUNCHED", "OMPI_COMM_WORLD_RANK"),
        *("HYDI_CONTROL_FD", "OPAL_PREFIX", "OMPI_MCA_btl_sm_backing_directory"),
        *("MPI_LOCALRANKID", "I_MPI_HYDRA_HOST"),
    ],
)
def test_gifts_of_an_mpi_are_known_by_name(name: str) -> None:
    assert is_gift(name)


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "TMPDIR", "HOME", "LD_LIBRARY_PATH", "MPI4PY_LIBMPI"),
        *("PRTE_MCA_rmaps_default_mapping_policy", "OMPI_MCA_rmaps_base_oversubscribe"),
    ],
)
def test_what_steers_mpirun_alone_is_no_gift(name: str) -> None:
    assert not is_gift(name)
