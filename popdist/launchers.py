"""The launchers that start processes as the instances of a job, and their variables."""

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from popdist import environment as env
from popdist.environment import whole_number
from popdist.errors import (
    ArenaError,
    LauncherError,
    MissingVariableError,
    UnreadableVariableError,
)


class Launcher(NamedTuple):
    """A launcher, and the variables that tell a process its place in the job."""

    name: str
    # Rank and size in the job, then on the host.
    places: tuple[str, ...]
    # Further variables of the launcher: with them, the processes find each other.
    others: tuple[str, ...] = ()
    # The index of the host and the number of hosts, if it tells these.
    hosts: tuple[str, ...] = ()

    def started(self, environ: Mapping[str, str]) -> bool:
        return all(name in environ for name in (*self.places, *self.others))


# poprun sets Open MPI's on every MPI.
OPEN_MPI = Launcher(
    "mpirun",
    (env.OMPI_RANK, env.OMPI_SIZE, env.OMPI_LOCAL_RANK, env.OMPI_LOCAL_SIZE),
)
HYDRA = Launcher(
    "mpirun",
    (env.PMI_RANK, env.PMI_SIZE, env.HYDRA_LOCAL_RANK, env.HYDRA_LOCAL_SIZE),
)
TORCHRUN = Launcher(
    "torchrun",
    (env.RANK, env.WORLD_SIZE, env.LOCAL_RANK, env.LOCAL_WORLD_SIZE),
    (env.MASTER_ADDR, env.MASTER_PORT),
    (env.GROUP_RANK, env.GROUP_WORLD_SIZE),
)
# The number of tasks on this node replaces the list for all: see with_slurms_hosts.
SRUN = Launcher(
    "srun",
    (
        *(env.SLURM_RANK, env.SLURM_STEP_SIZE),
        *(env.SLURM_LOCAL_RANK, env.SLURM_STEP_TASKS_PER_NODE),
    ),
    (env.SLURM_NODE, env.SLURM_JOB, env.SLURM_STEP),
    (env.SLURM_NODE, env.SLURM_STEP_NODES),
)
# Innermost launcher first: srun starts torchrun's and mpirun's agents.
_LAUNCHERS = (OPEN_MPI, HYDRA, TORCHRUN, SRUN)

_UNKNOWN = "a launcher"
# Variables of further launchers, or of other versions: rank and size in the job, and
# the launcher's name, if it is known.
_SIGNS = (
    (env.OMPI_RANK, env.OMPI_SIZE, _UNKNOWN),
    (env.PMI_RANK, env.PMI_SIZE, _UNKNOWN),
    (env.RANK, env.WORLD_SIZE, _UNKNOWN),
    (env.SLURM_RANK, env.SLURM_STEP_SIZE, _UNKNOWN),
    (env.SLURM_RANK, env.SLURM_SIZE, _UNKNOWN),
    (env.MVAPICH_RANK, env.MVAPICH_SIZE, "MVAPICH"),
    (env.FLUX_RANK, env.FLUX_SIZE, "flux run"),
    (env.JSRUN_RANK, env.JSRUN_SIZE, "jsrun"),
    (env.HOROVOD_RANK, env.HOROVOD_SIZE, "horovodrun"),
)

# The names of the process that starts a job's ranks on a host, in hydra and Open MPI.
_HYDRA_PROXIES = ("hydra_pmi_proxy",)
_OPEN_MPI_DAEMONS = (
    *("mpirun", "mpiexec", "orterun", "prterun"),
    *("orted", "prted", "prte"),
)


def is_launched(environ: Mapping[str, str]) -> bool:
    """Return whether a variable that poprun sets is in the environment.

    Any of the variables counts: with only some of them no instance can find the others.
    That must be an error, rather than each instance running as if it were alone.
    """
    return any(name in environ for name in env.TOPOLOGY_VARIABLES)


def launcher_of(environ: Mapping[str, str]) -> Launcher | None:
    """Return the launcher that started this process, None if it is alone.

    Raises:
        LauncherError: It started several, but does not say how they find each other.
    """
    for launcher in _LAUNCHERS:
        if launcher.started(environ):
            return launcher
    for rank, size, name in _SIGNS:
        number = environ.get(size, "")
        several = number.isascii() and number.isdigit() and len(number.strip("0")) > 0
        if rank not in environ or not several or int(number) < 2:
            continue
        # sbatch starts its script once, and describes the whole allocation.
        if size == env.SLURM_SIZE and environ.get(env.SLURM_ENVIRONMENT) == "BATCH":
            continue
        raise LauncherError(
            f"{size} is {number} and {rank} is {environ[rank]}, so {name} has "
            f"started this process as one of {number}, but it does not tell popdist "
            "how they find each other. Start the program with poprun, mpirun, torchrun "
            f"or srun, or unset {size} to run it alone."
        )
    if environ.get(env.PMIX_RANK) and environ.get(env.PMIX_NAMESPACE):
        raise LauncherError(
            f"{env.PMIX_RANK} is {environ[env.PMIX_RANK]}, so a launcher with PMIx has "
            "started this process, but it tells popdist neither how many there are nor "
            "how they find each other. Start the program with poprun, mpirun, torchrun "
            f"or srun, or unset {env.PMIX_RANK} to run it alone."
        )
    return None


def with_slurms_hosts(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the number of nodes, and of tasks on this one.

    Slurm lists the tasks on all nodes of a step as "2(x3),1".
    """
    node = whole_number(environ, env.SLURM_NODE, "srun")
    text = environ[env.SLURM_STEP_TASKS_PER_NODE]
    local_tasks, nodes = "", 0
    for part in text.split(","):
        tasks, _, times = part.removesuffix(")").partition("(x")
        if not (tasks.isascii() and tasks.isdigit() and (times or "1").isdigit()):
            raise UnreadableVariableError(
                env.SLURM_STEP_TASKS_PER_NODE, text[:40], "a list as 2(x3),1", "srun"
            )
        nodes += int(times or 1)
        if node < nodes and not local_tasks:
            local_tasks = tasks
    if not local_tasks:
        raise UnreadableVariableError(
            env.SLURM_NODE, environ[env.SLURM_NODE], f"a node of {text}", "srun"
        )
    return {
        **environ,
        env.SLURM_STEP_TASKS_PER_NODE: local_tasks,
        env.SLURM_STEP_NODES: str(nodes),
    }


def check_mpi(environ: Mapping[str, str]) -> None:
    """Check that poprun, if it has started this process, has done so by an MPI.

    Raises:
        ArenaError: poprun used no MPI, so this process cannot reach other hosts.
    """
    if env.CONTROL in environ and not {env.PMI_RANK, env.PMIX_RANK} & environ.keys():
        raise ArenaError(
            "Instances on several hosts reach each other by MPI, which --mpirun local "
            f"does not start, or by TCP, but {env.LINKS} is not set: poprun knows no "
            "address of instance 0's host. Start poprun with an mpirun of an MPI, or "
            f"set {env.LINKS}."
        )


def has_mpi(environ: Mapping[str, str]) -> bool:
    """Return whether what started this process and the others connects them by MPI."""
    # torchrun's own parent may be a process of MPI.
    is_of_torchrun = not is_launched(environ) and launcher_of(environ) is TORCHRUN
    return not is_of_torchrun and bool({env.PMI_RANK, env.PMIX_RANK} & environ.keys())


def shared_name_of(environ: Mapping[str, str], proc: str = "/proc") -> str:
    """Return the name that the instances of this host share, and no other job has.

    It is as secret as the launcher makes it: other users cannot derive it from what
    they see of a job of poprun or mpirun.

    Raises:
        MissingVariableError: poprun started the process, but did not say.
        ArenaError: mpirun started the process, but nothing tells which one.
    """
    if is_launched(environ):
        if not environ.get(env.ARENA):
            raise MissingVariableError(env.ARENA)
        return environ[env.ARENA]
    launcher = launcher_of(environ)
    if launcher is OPEN_MPI:
        return _shared_name_of_open_mpi(environ, proc)
    if launcher is HYDRA:
        return _shared_name_of_hydra(proc)
    if launcher is SRUN:
        names = [env.SLURM_JOB, env.SLURM_STEP]
    else:
        names = [env.MASTER_ADDR, env.MASTER_PORT]
        names += [env.TORCH_RUN_ID, env.TORCH_RESTART_COUNT]
    return " ".join(["launcher", *(f"{n}={environ.get(n, '')}" for n in names)])


def _shared_name_of_open_mpi(environ: Mapping[str, str], proc: str) -> str:
    job = environ.get(env.PMIX_NAMESPACE)
    if not job:
        raise ArenaError(
            f"{env.OMPI_SIZE} is {environ[env.OMPI_SIZE]}, but {env.PMIX_NAMESPACE} is "
            "not set, although mpirun sets both: the instances cannot find each "
            f"other. Start the program with poprun or mpirun, or unset {env.OMPI_SIZE} "
            "to run it alone."
        )
    # Jobs have short numbers, and two mpiruns may use the same one. The addresses of
    # their daemons differ while both run.
    daemon = _ancestor(_OPEN_MPI_DAEMONS, proc)
    return f"mpirun {job} {environ.get(env.PMIX_SERVER, '')} {daemon}"


def _shared_name_of_hydra(proc: str) -> str:
    proxy = _ancestor(_HYDRA_PROXIES, proc)
    if proxy:
        return f"hydra {proxy}"
    raise ArenaError(
        f"{env.PMI_SIZE} is set, as MPICH's and Intel MPI's mpirun do, but no process "
        f"above this one is a {_HYDRA_PROXIES[0]}: the instances cannot find each "
        "other. Start the program with poprun or mpirun, or unset "
        f"{env.PMI_SIZE} to run it alone."
    )


def _ancestor(names: tuple[str, ...], proc: str) -> str:
    """Return an identifier of the nearest process above with one of these names.

    Its number, its start time, and what only its own user may read of it: where the
    kernel has put its parts in memory, at random.
    """
    pid = "self"
    while pid != "0":
        with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
        # The name stands in parentheses, and may contain some itself.
        head, _, tail = stat.rpartition(")")
        number, _, name = head.partition(" (")
        fields = tail.split()
        if name in names:
            secret = b""
            with suppress(OSError), open(f"{proc}/{number}/auxv", "rb") as file_:
                secret = file_.read()
            return f"{number}-{fields[19]}-{secret.hex()}"
        pid = fields[1]
    return ""
