"""Where a process stands in its job: by poprun's variables, or by a bare mpirun's.

Below neither of them a process is alone in its job. Below mpirun without poprun each
instance owns one replica.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from popdist import environment as env
from popdist.environment import Instance, whole_number
from popdist.errors import (
    ArenaError,
    MissingVariableError,
    UnreadableVariableError,
)

# Rank and size in the job, then on the host. poprun sets Open MPI's on every MPI.
_OPEN_MPI = (env.OMPI_RANK, env.OMPI_SIZE, env.OMPI_LOCAL_RANK, env.OMPI_LOCAL_SIZE)
_HYDRA = (env.PMI_RANK, env.PMI_SIZE, env.HYDRA_LOCAL_RANK, env.HYDRA_LOCAL_SIZE)

# What hydra calls the process that starts a job's ranks on a host.
_PROXY = "hydra_pmi_proxy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A process among the instances of its job."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @classmethod
    def decode(cls, environ: Mapping[str, str]) -> Self:
        """Return where this process stands.

        Raises:
            MissingVariableError: Some variables of those that belong together.
            UnreadableVariableError: One is no number, or contradicts another.
        """
        if is_launched(environ):
            return cls._of_poprun(environ)
        names = _mpirun(environ)
        return cls._read(environ, names, "mpirun") if names else cls()

    @classmethod
    def _of_poprun(cls, environ: Mapping[str, str]) -> Self:
        instance = Instance.decode(environ)
        alone = instance.num_local_replicas == instance.num_total_replicas
        # Whoever sets only the replicas, by hand, means a job with one instance.
        if alone and env.OMPI_SIZE not in environ:
            return cls()
        self = cls._read(environ, _OPEN_MPI, "poprun")
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
    def _read(cls, environ: Mapping[str, str], names: tuple[str, ...], by: str) -> Self:
        rank, size, local_rank, local_size = (
            whole_number(environ, name, by) for name in names
        )
        for name, value, holds, rule in (
            (names[1], size, size >= 1, "1 or more"),
            (names[0], rank, rank < size, f"less than {size}"),
            (names[3], local_size, 1 <= local_size <= size, f"from 1 to {size}"),
            (names[2], local_rank, local_rank < local_size, f"less than {local_size}"),
        ):
            if not holds:
                raise UnreadableVariableError(name, str(value), rule, by)
        return cls(rank=rank, size=size, local_rank=local_rank, local_size=local_size)

    def instance(self) -> Instance:
        """Return this place as an instance that owns one replica."""
        return Instance(
            num_total_replicas=self.size,
            replica_index_offset=self.rank,
            local_instance_index=self.local_rank,
        )


def is_launched(environ: Mapping[str, str]) -> bool:
    """Return whether poprun started this process, or somebody wants it to seem so.

    Any of the variables counts: with only some of them the environment is broken,
    and must be refused, rather than every instance believing that it is alone.
    """
    return any(name in environ for name in env.TOPOLOGY_VARIABLES)


def instance_of(environ: Mapping[str, str]) -> Instance:
    """Return which replicas are this process's own, whoever started it.

    Raises:
        MissingVariableError: Some variables are set of those that belong together.
        UnreadableVariableError: One is no number, or contradicts another.
    """
    if is_launched(environ):
        return Instance.decode(environ)
    return Place.decode(environ).instance()


def meeting_of(environ: Mapping[str, str], proc: str = "/proc") -> str:
    """Return the name that the instances of this host share, and no other job has.

    Raises:
        MissingVariableError: poprun started the process, but did not say.
        ArenaError: mpirun started the process, but nothing tells which one.
    """
    if is_launched(environ):
        if not environ.get(env.ARENA):
            raise MissingVariableError(env.ARENA)
        return environ[env.ARENA]
    if _mpirun(environ) == _OPEN_MPI:
        return _meeting_of_open_mpi(environ)
    return _meeting_of_hydra(proc)


def _mpirun(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables of the mpirun that started this process, if one did."""
    # All four of them: Slurm sets hydra's first two as well, but does not say what
    # shares a host.
    for names in (_OPEN_MPI, _HYDRA):
        if all(name in environ for name in names):
            return names
    return ()


def _meeting_of_open_mpi(environ: Mapping[str, str]) -> str:
    job = environ.get(env.PMIX_NAMESPACE)
    if not job:
        raise ArenaError(
            f"{env.OMPI_SIZE} is {environ[env.OMPI_SIZE]}, but {env.PMIX_NAMESPACE} is "
            "not set, which mpirun sets besides: the instances cannot find each other. "
            "Start the program with poprun or mpirun, or unset "
            f"{env.OMPI_SIZE} to run it alone."
        )
    # Not above: all programs import this module, few of them need a hash.
    from hashlib import blake2b

    # Jobs have short numbers, and those of two mpiruns may be equal. The daemons'
    # addresses are not, as long as they live.
    told = f"{job} {environ.get(env.PMIX_SERVER, '')}"
    return f"mpirun-{blake2b(told.encode(), digest_size=16).hexdigest()}"


def _meeting_of_hydra(proc: str) -> str:
    pid = "self"
    while pid != "0":
        with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
        # The name stands in parentheses, and may contain some itself.
        head, _, rest = stat.rpartition(")")
        number, _, name = head.partition(" (")
        fields = rest.split()
        if name == _PROXY:
            return f"hydra-{number}-{fields[19]}"
        pid = fields[1]
    raise ArenaError(
        f"{env.PMI_SIZE} is set, as MPICH's and Intel MPI's mpirun do, but no process "
        f"above this one is a {_PROXY}: the instances cannot find each other. Start "
        f"the program with poprun or mpirun, or unset {env.PMI_SIZE} to run it alone."
    )
