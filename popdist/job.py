"""Where a process stands in its job: by poprun's variables, or by another launcher's.

Below mpirun, torchrun or srun without poprun each process is an instance that owns one
replica. Below none of them it is alone in its job.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple, Self

from popdist import environment as env
from popdist.environment import Instance, whole_number
from popdist.errors import (
    ArenaError,
    LauncherError,
    MissingVariableError,
    UnreadableVariableError,
)


class _Launcher(NamedTuple):
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
_OPEN_MPI = _Launcher(
    "mpirun",
    (env.OMPI_RANK, env.OMPI_SIZE, env.OMPI_LOCAL_RANK, env.OMPI_LOCAL_SIZE),
)
_HYDRA = _Launcher(
    "mpirun",
    (env.PMI_RANK, env.PMI_SIZE, env.HYDRA_LOCAL_RANK, env.HYDRA_LOCAL_SIZE),
)
_TORCHRUN = _Launcher(
    "torchrun",
    (env.RANK, env.WORLD_SIZE, env.LOCAL_RANK, env.LOCAL_WORLD_SIZE),
    (env.MASTER_ADDR, env.MASTER_PORT),
    (env.GROUP_RANK, env.GROUP_WORLD_SIZE),
)
# The number of tasks on this node replaces the list for all: see _with_slurms_hosts.
_SRUN = _Launcher(
    "srun",
    (
        *(env.SLURM_RANK, env.SLURM_STEP_SIZE),
        *(env.SLURM_LOCAL_RANK, env.SLURM_STEP_TASKS_PER_NODE),
    ),
    (env.SLURM_NODE, env.SLURM_JOB, env.SLURM_STEP),
    (env.SLURM_NODE, env.SLURM_STEP_NODES),
)
# Innermost launcher first: srun starts torchrun's and mpirun's agents.
_LAUNCHERS = (_OPEN_MPI, _HYDRA, _TORCHRUN, _SRUN)

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A process among the instances of its job."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    # The index of the host in the job; None where the launcher does not say.
    host_index: int | None = 0
    hosts: int | None = 1
    # How many instances each host has; empty where the launcher does not say.
    per_host: tuple[int, ...] = ()

    @property
    def on_one_host(self) -> bool:
        """Whether all instances of the job are on this host."""
        return self.local_size == self.size

    @classmethod
    def decode(cls, environ: Mapping[str, str]) -> Self:
        """Return where this process stands.

        Raises:
            MissingVariableError: Some variables of those that belong together.
            UnreadableVariableError: One is no number, or contradicts another.
            LauncherError: Another launcher started several processes, but does not
                say enough for them to meet.
        """
        if is_launched(environ):
            return cls._of_poprun(environ)._spread_over_hosts(environ)
        launcher = _launcher_of(environ)
        if launcher is None:
            return cls()
        if launcher is _SRUN:
            environ = _with_slurms_hosts(environ)
        return cls._read(environ, launcher)._spread_over_hosts(environ)

    @classmethod
    def _of_poprun(cls, environ: Mapping[str, str]) -> Self:
        instance = Instance.decode(environ)
        alone = instance.num_local_replicas == instance.num_total_replicas
        # Variables of replicas alone, set by hand, describe a job with one instance.
        if alone and env.OMPI_SIZE not in environ:
            return cls()
        missing = [name for name in env.MEETING_VARIABLES if not environ.get(name)]
        if missing:
            raise MissingVariableError(*missing)
        self = cls._read(environ, _OPEN_MPI._replace(name="poprun"))
        if instance.uniform and instance.num_instances != self.size:
            raise UnreadableVariableError(
                env.OMPI_SIZE, str(self.size), str(instance.num_instances)
            )
        if instance.uniform and instance.index != self.rank:
            raise UnreadableVariableError(
                env.OMPI_RANK, str(self.rank), str(instance.index)
            )
        return self

    @classmethod
    def _read(cls, environ: Mapping[str, str], launcher: _Launcher) -> Self:
        by, names = launcher.name, launcher.places
        rank, size, local_rank, local_size = (
            whole_number(environ, name, by) for name in names
        )
        rules = [
            (names[1], size, size >= 1, "1 or more"),
            (names[0], rank, rank < size, f"less than {size}"),
            (names[3], local_size, 1 <= local_size <= size, f"from 1 to {size}"),
            (names[2], local_rank, local_rank < local_size, f"less than {local_size}"),
        ]
        host_index = hosts = None
        if launcher.hosts and all(name in environ for name in launcher.hosts):
            host_index, hosts = (whole_number(environ, n, by) for n in launcher.hosts)
            rule = f"less than {hosts}"
            rules.append((launcher.hosts[0], host_index, host_index < hosts, rule))
        for name, value, holds, rule in rules:
            if not holds:
                raise UnreadableVariableError(name, str(value), rule, by)
        on_one_host = local_size == size
        return cls(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            host_index=0 if on_one_host else host_index,
            hosts=1 if on_one_host else hosts,
        )

    def _spread_over_hosts(self, environ: Mapping[str, str]) -> Self:
        """Return this place on the host that poprun tells, if it does."""
        text = environ.get(env.INSTANCES_PER_HOST, "")
        if not text or self.size == 1:
            return self
        counts = text.split(",")
        per_host = tuple(int(n) for n in counts if n.isascii() and n.isdigit())
        if len(per_host) < len(counts) or sum(per_host) != self.size:
            raise UnreadableVariableError(
                env.INSTANCES_PER_HOST, text[:40], f"numbers that make up {self.size}"
            )
        begins = list(accumulate(per_host, initial=0))
        host = next(h for h, end in enumerate(begins[1:]) if self.rank < end)
        return replace(
            self,
            local_rank=self.rank - begins[host],
            local_size=per_host[host],
            host_index=host,
            hosts=len(per_host),
            per_host=per_host,
        )

    def instance(self) -> Instance:
        """Return this place as an instance that owns one replica."""
        return Instance(
            num_total_replicas=self.size,
            replica_index_offset=self.rank,
            local_instance_index=self.local_rank,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """The job of this process and its place in it, read from the environment."""

    place: Place
    instance: Instance
    # A name that the instances of this host have in common; "" for one instance.
    shared_name: str
    # The file to which poprun appends the ended instances; empty without poprun.
    ended_file: str

    @classmethod
    def decode(cls, environ: Mapping[str, str]) -> Self:
        """Return the job of the process that has this environment.

        Raises:
            PopdistError: See Place.decode(), instance_of() and shared_name_of().
        """
        place = Place.decode(environ)
        return cls(
            place=place,
            instance=instance_of(environ),
            shared_name=shared_name_of(environ) if place.size > 1 else "",
            ended_file=environ.get(env.ENDED_INSTANCES, ""),
        )

    @property
    def members(self) -> tuple[int, ...]:
        """All instances of the job."""
        return tuple(range(self.place.size))

    def group_name(self, purpose: str, members: Sequence[int]) -> str:
        """Return the name under which these instances of the job make a group."""
        name = f"{self.shared_name}.{purpose}"
        if len(members) == self.place.size:
            return name
        # Not above: most programs have no group but the one of all instances.
        from hashlib import blake2b

        text = ",".join(map(str, members))
        return f"{name}.{blake2b(text.encode(), digest_size=8).hexdigest()}"

    def has_numbering(self, rank: int, size: int) -> bool:
        """Return whether the job numbers this process and all others like this."""
        return (self.place.rank, self.place.size) == (rank, size)

    def ended_file_of(self, rank: int, size: int) -> str:
        """Return the launcher's file of ended instances, "" if there is none.

        Also "" where the program numbers its processes in another way.
        """
        return self.ended_file if self.has_numbering(rank, size) else ""


class TorchPlace(NamedTuple):
    """The place of a process by torch's env://, and the address of rank 0's store."""

    rank: int
    size: int
    host: str
    port: int

    @classmethod
    def decode(
        cls, environ: Mapping[str, str], rank: str | None, size: str | None
    ) -> Self | None:
        """Return the place by torch's variables, None if one is missing or no number.

        Args:
            rank: The program's own value, which overrides the variable.
            size: The same for how many there are.
        """
        numbers = (
            rank or environ.get(env.RANK, ""),
            size or environ.get(env.WORLD_SIZE, ""),
            environ.get(env.MASTER_PORT, ""),
        )
        host = environ.get(env.MASTER_ADDR)
        if not (host and all(text.isdecimal() for text in numbers)):
            return None
        return cls(int(numbers[0]), int(numbers[1]), host, int(numbers[2]))

    @classmethod
    def of_poprun(
        cls,
        environ: Mapping[str, str],
        rank: str | None = None,
        size: str | None = None,
    ) -> Self | None:
        """Return the same if it is the place that poprun has given this process."""
        place = cls.decode(environ, rank, size)
        if place is None or not environ.get(env.ENDED_INSTANCES):
            return None
        own = Place.decode(environ)
        return place if (own.rank, own.size) == (place.rank, place.size) else None


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
    is_of_torchrun = not is_launched(environ) and _launcher_of(environ) is _TORCHRUN
    return not is_of_torchrun and bool({env.PMI_RANK, env.PMIX_RANK} & environ.keys())


def is_launched(environ: Mapping[str, str]) -> bool:
    """Return whether a variable that poprun sets is in the environment.

    Any of the variables counts: with only some of them no instance can find the others.
    That must be an error, rather than each instance running as if it were alone.
    """
    return any(name in environ for name in env.TOPOLOGY_VARIABLES)


def instance_of(environ: Mapping[str, str]) -> Instance:
    """Return which replicas this process owns, under any launcher.

    Raises:
        MissingVariableError: Some variables are set of those that belong together.
        UnreadableVariableError: One is no number, or contradicts another.
    """
    if is_launched(environ):
        return Instance.decode(environ)
    return Place.decode(environ).instance()


def topology_number(environ: Mapping[str, str], name: str) -> int:
    """Return the number of one variable of the topology, under any launcher.

    It is PopDist's default where poprun's other variables are set, but this one is not.

    Raises:
        UnreadableVariableError: The value is not one that the variable can have.
    """
    if not is_launched(environ):
        environ = Place.decode(environ).instance().encode()
    return env.topology_number(environ, name)


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
    launcher = _launcher_of(environ)
    if launcher is _OPEN_MPI:
        return _shared_name_of_open_mpi(environ, proc)
    if launcher is _HYDRA:
        return _shared_name_of_hydra(proc)
    if launcher is _SRUN:
        names = [env.SLURM_JOB, env.SLURM_STEP]
    else:
        names = [env.MASTER_ADDR, env.MASTER_PORT]
        names += [env.TORCH_RUN_ID, env.TORCH_RESTART_COUNT]
    return " ".join(["launcher", *(f"{n}={environ.get(n, '')}" for n in names)])


def _launcher_of(environ: Mapping[str, str]) -> _Launcher | None:
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


def _with_slurms_hosts(environ: Mapping[str, str]) -> dict[str, str]:
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
