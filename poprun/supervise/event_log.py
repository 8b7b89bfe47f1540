"""Reports events while a job runs: the log of -v, the reply to Ctrl-C, warnings."""

import os
import signal

from poprun.helpers.processes import exit_code, signal_name
from poprun.log import Log
from poprun.users import user_name
from poprun.wire.events import (
    AcceptFailed,
    AloneInMpi,
    Clean,
    DebuggerInterrupted,
    Event,
    Exited,
    FailedInFinalize,
    GuardLost,
    HostJoins,
    HostLeaves,
    HostLost,
    HostsAvailable,
    Interrupted,
    MembersChanged,
    MpirunStarted,
    NotUndone,
    Rejected,
    Remains,
    SlurmEndsJob,
    Started,
    StartedAgain,
    WaitsInFinalize,
)
from poprun.words import counted, describe_instances, format_ranges


class EventLog:
    """Listens to the events of one job.

    Args:
        keep_going: A failure does not end the job.
        names_hosts: The job has several hosts at its start.
        debugged: The instance of --pdb.
    """

    def __init__(
        self,
        log: Log,
        *,
        keep_going: bool = False,
        names_hosts: bool = False,
        debugged: int | None = None,
    ) -> None:
        self._log = log
        self._keep_going = keep_going
        self._names_hosts = names_hosts
        # None when it has ended, too.
        self._debugged = debugged
        self._interrupts = 0
        # Why hosts are to leave the job.
        self._leaving: dict[str, str] = {}
        # The keys of `_warn_once` so far.
        self._warned_of: set[object] = set()

    def listen(self, event: Event) -> None:
        match event:
            case MpirunStarted(pid=pid):
                self._log.info(f"Waiting for mpirun (PID {pid})")
            case Started():
                self._on_started(event)
            case Exited():
                self._on_exited(event)
            case Clean(rank=rank, left_behind=left_behind) if left_behind:
                self._log.say(
                    f"Instance {rank} left {left_behind} "
                    f"process{'' if left_behind == 1 else 'es'} running, which poprun "
                    "ended."
                )
            case DebuggerInterrupted(rank=rank, at_prompt=False):
                self._log.say(
                    f"SIGINT: passed to the debugger of instance {rank}; repeat to "
                    "stop the job."
                )
            case Interrupted(signal=number, client=client):
                self._on_interrupt(number, client)
            case MembersChanged():
                self._on_members_changed(event)
            case StartedAgain(rank=rank):
                self._log.info(f"Instance {rank} is started again")
            case HostsAvailable(why=why, num_instances=number):
                self._log.say(f"{why}: stopping the instances, to go on with {number}.")
            case HostJoins(host=host, ranks=ranks):
                self._names_hosts = True
                which = describe_instances(ranks)
                self._log.say(f"The host {host} can be used: starting {which} there.")
            case HostLeaves(host=host, why=why):
                self._leaving[host] = why
                self._log.say(
                    f"{why}: the others go on without it at their next commit."
                )
            case SlurmEndsJob() if not self._interrupts:
                self._warn_once(
                    SlurmEndsJob, "Slurm is ending its job: stopping the instances."
                )
            case _:
                self._on_mpi(event)
                self._on_machinery(event)

    def _on_members_changed(self, event: MembersChanged) -> None:
        number = counted(len(event.members), "instance")
        verb = "goes" if len(event.members) == 1 else "go"
        self._log.say(
            f"{event.why.rstrip('.')}; {number} {verb} on as generation "
            f"{event.generation} after {event.seconds:.1f} s."
        )

    def _on_started(self, event: Started) -> None:
        if not event.memory_is_bound:
            self._warn_once(
                "memory",
                f"The memory of instance {event.rank} is not bound to NUMA nodes: the "
                "kernel or a container forbids set_mempolicy().",
            )
        cpus = format_ranges(event.cpus)
        self._log.info(f"Instance {event.rank} (PID {event.pid}) runs on CPUs {cpus}")

    def _on_exited(self, event: Exited) -> None:
        """Tell how it ended, and why a failure does not end a job with --pdb."""
        self._log.debug(
            f"Instance {event.rank} ended with exit code {exit_code(event.status)} "
            f"after {event.user_s + event.system_s:.2f} s of CPU time"
        )
        if event.rank == self._debugged:
            self._debugged = None
        has_failed = event.by_itself and event.status != 0
        if has_failed and self._debugged is not None and not self._keep_going:
            self._warn_once(
                Exited,
                f"Instance {event.rank} has failed with exit code "
                f"{exit_code(event.status)}. The job goes on until instance "
                f"{self._debugged} ends, because of --pdb.",
            )

    def _on_mpi(self, event: Event) -> None:
        """Tell of instances that wait in MPI, or have none."""
        match event:
            case FailedInFinalize(rank=rank, status=status):
                self._on_failed_in_finalize(rank, exit_code(status))
            case WaitsInFinalize(rank=rank):
                self._log.warn(
                    f"The Python program of instance {rank} has ended and waits in "
                    "MPI_Finalize for the other instances. Its exit status is not "
                    "known; if it failed, they may be waiting for it. With 'python -m "
                    "mpi4py PROGRAM' instead of 'python PROGRAM', the failure of one "
                    "instance ends all of them."
                )
            case AloneInMpi(rank=rank):
                self._warn_once(
                    AloneInMpi,
                    f"Instance {rank} imports mpi4py, but --mpirun local starts no "
                    "MPI, so each instance is rank 0 of 1. Use the mpirun of an MPI.",
                )

    def _on_failed_in_finalize(self, rank: int, code: int) -> None:
        """Tell of an instance that has failed and waits in MPI for the others."""
        failed = f"Instance {rank} failed with exit code {code} and"
        if self._keep_going and self._warn_once(
            FailedInFinalize,
            f"{failed} waits in MPI_Finalize for the other instances. If they "
            "wait for it, the job does not end: --keep-going lets them continue.",
        ):
            return
        self._log.info(f"{failed} waits in MPI_Finalize for the others")

    def _on_machinery(self, event: Event) -> None:
        """Tell of what goes wrong beside the instances."""
        match event:
            # A shim and the guard may report the same one.
            case Remains(pid=pid, user=user, command=command, host=host):
                self._warn_once(
                    (host, pid),
                    f"Process {pid}{self._on(host)} of user {user_name(user)} "
                    f"({command}) is still running: user {user_name()} has no "
                    "permission to end it.",
                )
            case NotUndone(sentence=sentence, host=host):
                prefix = f"{host}: " if self._names_hosts else ""
                self._log.warn(prefix + sentence)
            case GuardLost(host=host):
                self._log.warn(
                    f"poprun's guard{self._on(host)} was killed; another takes its "
                    "place."
                )
            case HostLost(host=host, why=why) if self._leaving.get(host) == why:
                self._log.say(f"The host {host} has left the job.")
            case HostLost(host=host, why=why):
                self._log.warn(f"Lost the host {host}: {why}.")
            case Rejected(why=why):
                self._log.debug(f"A connection to the control socket was closed: {why}")
            case AcceptFailed(errno=number):
                self._warn_once(
                    (AcceptFailed, number),
                    "poprun cannot accept connections from instances at the moment: "
                    f"{os.strerror(number)}. It keeps trying until --start-timeout.",
                )

    def _warn_once(self, key: object, sentence: str) -> bool:
        """Warn, but of each key only once; return whether this is the first time."""
        is_first = key not in self._warned_of
        if is_first:
            self._warned_of.add(key)
            self._log.warn(sentence)
        return is_first

    def _on(self, host: str) -> str:
        return f" on {host}" if self._names_hosts else ""

    def _on_interrupt(self, number: int, client: str) -> None:
        self._interrupts += 1
        name = client or signal_name(number)
        if self._interrupts == 1 and SlurmEndsJob in self._warned_of:
            # SIGTERM is then the signal that Slurm has sent to poprun, too.
            if number != signal.SIGTERM:
                self._log.say(f"{name}: killing everything.")
        elif self._interrupts == 1:
            self._log.say(f"{name}: stopping the instances; repeat to kill them.")
        else:
            self._log.say(f"{name} again: killing everything.")
