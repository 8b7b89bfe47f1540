"""The command with which each MPI starts instances on the hosts of a bed."""

from collections.abc import Sequence

from beds.host import Host
from conftest import mpirun_of

from poprun.mpirun.identify import detect

SUBNET = "10.31.0.0/16"
# Open MPI is told the subnet, because without it mpirun has hung after its ranks had
# ended. Its ranks yield their cores, or they would keep them from the network.
OPTIONS = {
    "openmpi5": [
        *("--prtemca", "prte_if_include", SUBNET),
        *("--mca", "btl_tcp_if_include", SUBNET, "--mca", "mpi_yield_when_idle", "1"),
    ],
    "openmpi4": [
        *("--mca", "oob_tcp_if_include", SUBNET, "--mca", "btl_tcp_if_include", SUBNET),
        *("--mca", "mpi_yield_when_idle", "1"),
    ],
    "hydra": [],
}
AS_ROOT = {
    f"{tool}_ALLOW_RUN_AS_ROOT{confirm}": "1"
    for tool in ("OMPI", "PRTE")
    for confirm in ("", "_CONFIRM")
}


def launcher(mpi: str) -> str:
    """Return the value of --mpirun for an MPI, or for "local"."""
    return mpi if mpi == "local" else mpirun_of(mpi)


def command(
    hosts: Sequence[Host], mpi: str, instances: int, program: Sequence[str]
) -> list[str]:
    """Return what starts so many instances of a program on each of these hosts."""
    mpirun = mpirun_of(mpi)
    places = ",".join(f"{host.name}:{instances}" for host in hosts)
    words = [mpirun, *OPTIONS[mpi], "-hosts" if mpi == "hydra" else "--host", places]
    words += ["-n", str(instances * len(hosts)), "env"]
    return [*words, f"MPI4PY_LIBMPI={detect(mpirun, {}).libmpi}", *program]
