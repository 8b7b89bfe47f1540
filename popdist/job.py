"""Where a process stands in its job: by poprun's variables, or by another launcher's.

Below mpirun, torchrun or srun without poprun each process is an instance that owns one
replica. Below none of them it is alone in its job.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple, Self

from popdist import environment as env
from popdist.environment import Instance, whole_number
from popdist.errors import MissingVariableError, UnreadableVariableError
from popdist.launchers import (
    OPEN_MPI,
    SRUN,
    Launcher,
    is_launched,
    launcher_of,
    shared_name_of,
    with_slurms_hosts,
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
        launcher = launcher_of(environ)
        if launcher is None:
            return cls()
        if launcher is SRUN:
            environ = with_slurms_hosts(environ)
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
        self = cls._read(environ, OPEN_MPI._replace(name="poprun"))
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
    def _read(cls, environ: Mapping[str, str], launcher: Launcher) -> Self:
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
