"""Tells of a job while it runs: the log of -v, Ctrl-C's answer, notes."""

import os
import pwd

from poprun.job.events import (
    AcceptFailed,
    AloneInMpi,
    Clean,
    Event,
    Exited,
    FailedInFinalize,
    GuardLost,
    Interrupted,
    MpirunStarted,
    NotUndone,
    Rejected,
    Remains,
    Started,
    WaitsInFinalize,
)
from poprun.job.wait_status import exit_code, signal_name
from poprun.log import Log
from poprun.plan.placement import describe_cpus


class EventLog:
    """Listens to the events of one job.

    Args:
        keep_going: A failure does not end the job.
    """

    def __init__(self, log: Log, *, keep_going: bool = False) -> None:
        self._log = log
        self._keep_going = keep_going
        self._interrupts = 0
        self._warned_of_memory = False
        self._warned_of_mpi = False
        self._warned_of_finalize = False
        # Each errno is told once.
        self._accept_failures: set[int] = set()

    def listen(self, event: Event) -> None:
        match event:
            case MpirunStarted(pid):
                self._log.info(f"Waiting for mpirun (PID {pid})")
            case Started(rank, pid, cpus, memory_is_bound):
                if not memory_is_bound and not self._warned_of_memory:
                    self._warned_of_memory = True
                    self._log.warn(
                        f"The memory of instance {rank} is not bound to NUMA nodes: "
                        "the kernel or a container forbids set_mempolicy()."
                    )
                self._log.info(
                    f"Instance {rank} (PID {pid}) runs on CPUs {describe_cpus(cpus)}"
                )
            case Exited(rank, status):
                self._log.debug(
                    f"Instance {rank} ended with exit code {exit_code(status)} after "
                    f"{event.user_s + event.system_s:.2f} s of CPU time"
                )
            case FailedInFinalize(rank, status) if (
                self._keep_going and not self._warned_of_finalize
            ):
                self._warned_of_finalize = True
                self._log.warn(
                    f"Instance {rank} failed with exit code {exit_code(status)} and "
                    "waits in MPI_Finalize for the other instances. If they wait for "
                    "it, the job does not end: --keep-going lets them run on."
                )
            case FailedInFinalize(rank, status):
                self._log.info(
                    f"Instance {rank} failed with exit code {exit_code(status)} and "
                    "waits in MPI_Finalize for the others"
                )
            case WaitsInFinalize(rank):
                self._log.warn(
                    f"The Python program of instance {rank} has ended and waits in "
                    "MPI_Finalize for the other instances. Its exit status is not "
                    "known; if it has failed, they may wait for it. 'python -m mpi4py "
                    "PROGRAM' instead of 'python PROGRAM' ends all when one fails."
                )
            case Clean(rank, left_behind) if left_behind:
                processes = (
                    "1 process" if left_behind == 1 else f"{left_behind} processes"
                )
                self._log.say(
                    f"Instance {rank} left {processes} running, which poprun ended."
                )
            case Remains(pid, user, command):
                self._log.warn(
                    f"Process {pid} of user {_name(user)} goes on ({command}): the "
                    f"kernel forbids user {_name(os.geteuid())} to end it."
                )
            case NotUndone(sentence):
                self._log.warn(sentence)
            case GuardLost():
                self._log.warn("poprun's guard was killed; another takes its place.")
            case AloneInMpi(rank) if not self._warned_of_mpi:
                self._warned_of_mpi = True
                self._log.warn(
                    f"Instance {rank} imports mpi4py, but --mpirun local starts no "
                    "MPI: in MPI each instance is rank 0 of 1. Use an mpirun of an MPI."
                )
            case Rejected(why):
                self._log.debug(f"A connection to the control socket was closed: {why}")
            case AcceptFailed(number) if number not in self._accept_failures:
                self._accept_failures.add(number)
                self._log.warn(
                    "poprun cannot accept connections of instances at the moment: "
                    f"{os.strerror(number)}. It tries again until --start-timeout."
                )
            case Interrupted(number):
                self._on_interrupt(number)

    def _on_interrupt(self, number: int) -> None:
        self._interrupts += 1
        name = signal_name(number)
        if self._interrupts == 1:
            self._log.say(f"{name}: stopping the instances; once more kills them.")
        else:
            self._log.say(f"{name} again: killing everything.")


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
