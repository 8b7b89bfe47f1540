"""The verdict on an attempt, and its rules: AttemptEnd -> Verdict. Pure."""

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from poprun.errors import (
    MACHINERY_FAILED,
    NOT_EXECUTABLE,
    NOT_FOUND,
    OUTPUT_CLOSED,
    TIMED_OUT,
    explain_errno,
)
from poprun.helpers.processes import exit_code, signal_name
from poprun.mpirun.values import MpirunFailure, MpirunReport
from poprun.result.instances import FAILED, STOPPED, SUCCEEDED, InstanceEnd
from poprun.supervise.attempt_end import AttemptEnd
from poprun.supervise.job_state import Cause, Reason
from poprun.wire.events import (
    DaemonKilled,
    DevicesLost,
    Event,
    Exited,
    FailedInFinalize,
    HostLost,
    HostsAvailable,
    Interrupted,
    MpirunRefused,
    Orphaned,
    Refused,
    SlurmEndsJob,
)
from poprun.words import counted, format_ranges

MACHINERY = (Reason.MPIRUN_ENDED, Reason.SHIM_LOST)
# The reasons, or none, for which a job with a failed instance or mpirun stops.
BY_FAILURE = (None, Reason.FAILED, *MACHINERY)
# After these another attempt may follow.
RESTARTED = (*BY_FAILURE, Reason.HOST_LOST, Reason.GROWTH)
# A process of mpirun was killed: the reasons for which the attempt stops then, or none.
# mpirun ends before or after its instances, depending on the load.
PROCESS_LOST: Mapping[MpirunFailure, Sequence[Reason | None]] = {
    MpirunFailure.PROXY_LOST: (None, Reason.MPIRUN_ENDED),
    MpirunFailure.DAEMON_LOST: (None, Reason.MPIRUN_ENDED, Reason.SHIM_LOST),
}
KILLED_BY_OTHERS = (
    "was killed, and the job with it. poprun did not do that. Find out what sends "
    "SIGKILL: perhaps the kernel, because memory ran out."
)

AnEvent = TypeVar("AnEvent", bound=Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The exit code of poprun, and the cause."""

    exit_code: int
    # The cause as a sentence, unless the report explains why an instance failed.
    sentence: str = ""
    # The instance that failed first, if an instance failed.
    first: InstanceEnd | None = None
    also: Sequence[InstanceEnd] = ()
    # mpirun's messages, and whether they belong to the explanation.
    mpirun_text: str = ""
    quote_mpirun: bool = False
    warnings: Sequence[str] = ()
    # Whether the job was stopped to start again with more instances: no failure.
    grows: bool = False
    # All instances, in rank order.
    instances: Sequence[InstanceEnd] = field(default=(), compare=False)

    @property
    def has_failed(self) -> bool:
        """Whether the job has failed, and not its output alone."""
        return self.first is not None or bool(self.sentence)


def may_restart(end: AttemptEnd) -> bool:
    """Return whether another attempt may follow if this one has failed.

    It may after the failure of an instance, a host or mpirun, once an instance has
    run, and in order to grow; not if the user ends the job, by a signal, a timeout or a
    pager, nor after the loss of the IPUs.
    """
    cause = end.state.cause
    if not end.state.started or (cause and cause.reason) not in RESTARTED:
        return False
    final = (DevicesLost, Interrupted, MpirunRefused, SlurmEndsJob)
    return not any(isinstance(event, final) for event in end.events)


def judge(
    end: AttemptEnd, instances: Sequence[InstanceEnd], mpirun: MpirunReport
) -> Verdict:
    """Return how an attempt ended.

    The exit code is the one of the first instance that failed by itself. An instance
    that failed because it was being stopped does not count.
    """
    rules = _Rules(end, instances, mpirun)
    # The first rule that applies decides.
    verdict = (
        rules.mpirun_refused()
        or rules.aborted()
        or rules.daemon_killed()
        or rules.host_lost_first()
        or rules.instances_failed()
        or rules.mpirun_ended_with_0()
        or rules.stopped()
        or rules.ended_by_mpirun()
        or rules.devices_lost()
        or rules.not_all_started()
        or rules.all_succeeded()
    )
    return replace(verdict, instances=_named_by(verdict, instances, end.events))


def _named_by(
    verdict: Verdict, instances: Sequence[InstanceEnd], events: Sequence[Event]
) -> Sequence[InstanceEnd]:
    """Return the instances; a failed one counts as stopped if no verdict names it.

    An instance that failed in MPI_Finalize has failed in any case.
    """
    in_finalize = {e.rank for e in events if isinstance(e, FailedInFinalize)}
    ends = {i.rank: i for i in instances}
    for end in instances:
        if end.state == FAILED and end.rank not in in_finalize:
            ends[end.rank] = replace(end, state=STOPPED)
    named = {i.rank: i for i in (verdict.first, *verdict.also) if i}
    return list((ends | named).values())


class _Rules:
    """The rules of the verdict; each returns None if it does not apply."""

    def __init__(
        self, end: AttemptEnd, instances: Sequence[InstanceEnd], mpirun: MpirunReport
    ) -> None:
        self.state, self.events = end.state, end.events
        self.cause = end.state.cause
        is_success = all(instance.state == SUCCEEDED for instance in instances)
        if is_success and self.cause == Cause(reason=Reason.GROWTH):
            # All had ended before they were to be stopped.
            self.cause = None
        self.reason = self.cause and self.cause.reason
        self.status = end.mpirun_status
        self.instances = instances
        self.names_hosts = not all(i.is_own_host for i in instances)
        failed = [i for i in instances if i.state == FAILED]
        self.failed = sorted(failed, key=lambda i: (i.at_ns or 0, i.rank))
        self.mpirun = mpirun
        self.lost_proxy = self.reason in PROCESS_LOST.get(mpirun.failure, ())
        hung = "mpirun did not end after its last instance and was killed."
        self.warnings = [hung] if end.state.mpirun_hung else []

    def mpirun_refused(self) -> Verdict | None:
        if (refused := self._event(MpirunRefused)) is None:
            return None
        call = f"{refused.call}: " if refused.call else ""
        reason = explain_errno(refused.errno)
        return _machinery_failed(f"mpirun could not be started: {call}{reason}")

    def aborted(self) -> Verdict | None:
        """MPI_Abort of an instance has ended the job."""
        mpirun = self.mpirun
        # Open MPI's MPI_Abort ends the instance too, and poprun may detect that first.
        is_same = self.cause == Cause(reason=Reason.FAILED, rank=mpirun.rank)
        may_be_cause = self.reason in (None, *MACHINERY) or is_same
        # hydra reports MPI_Abort by its exit code alone, and an mpirun that was killed
        # has no exit code.
        is_known = bool(mpirun.text) or not _was_killed(self.status)
        is_abort = mpirun.failure is MpirunFailure.ABORTED
        if not (is_abort and may_be_cause and is_known):
            return None
        error = mpirun.code or 0
        # It is a failure in any case.
        code = error & 0xFF or 1
        called = f"called MPI_Abort with error code {error}"
        first, sentence = None, f"An instance {called}."
        # mpirun may name a process that an instance has made by MPI_Comm_spawn.
        if mpirun.rank is not None and mpirun.rank < len(self.instances):
            first = self.instances[mpirun.rank]
            sentence = f"Instance {first.title} {called}, and mpirun ended the others."
            first = replace(
                first, state=FAILED, status=code << 8, at_ns=0, finalizing=False
            )
        also = [i for i in self.failed if i.rank != mpirun.rank]
        return Verdict(exit_code=code, sentence=sentence, first=first, also=also)

    def daemon_killed(self) -> Verdict | None:
        """A daemon of mpirun was killed, and so ended the job.

        On other hosts the agents detect that. On mpirun's own host only hydra has one,
        a child of mpirun: its shims report its end, which also follows the end of
        mpirun.
        """
        if _was_killed(self.status) and not self.state.mpirun_killed:
            return None
        succeeded = [e for e in self.events if isinstance(e, Exited) and not e.status]
        if self.reason not in BY_FAILURE or len(succeeded) == self.state.num_instances:
            return None
        where = self._place_of_killed_daemon()
        if where is None:
            return None
        return _machinery_failed(f"mpirun's daemon{where} {KILLED_BY_OTHERS}")

    def _place_of_killed_daemon(self) -> str | None:
        place = None
        for event in self.events:
            match event:
                case DaemonKilled(host=host):
                    return f" on {host}"
                case Orphaned(rank=rank):
                    is_here = self.instances[rank].is_own_host
                    is_lost = self.mpirun.failure is MpirunFailure.PROXY_LOST
                    if place is None and is_here and is_lost:
                        place = self._on(rank)
                # mpirun kills the other instances as far as it reaches them.
                case Exited(status=status, by_itself=True) if status not in (
                    0,
                    signal.SIGKILL,
                ):
                    break
        return place

    def host_lost_first(self) -> Verdict | None:
        """A host was lost, and instances of other hosts failed before poprun knew.

        Links by TCP detect the loss within a second, poprun's connection after ten. A
        host that could still be reached would have told the ends of its instances.
        """
        lost = self._event(HostLost)
        if lost is None or not lost.ranks or self.reason is not Reason.FAILED:
            return None
        exits = [event for event in self.events if isinstance(event, Exited)]
        # A loss that the job has survived kills no instance of another host.
        later = self.events[self.events.index(lost) :]
        rank = self.cause and self.cause.rank
        if any(e.rank == rank and e in later and _was_killed(e.status) for e in exits):
            return None
        exited = {event.rank for event in exits}
        return None if exited.intersection(lost.ranks) else self._host_lost()

    def instances_failed(self) -> Verdict | None:
        if not self.failed or self.reason not in BY_FAILURE:
            return None
        first, *also = self.failed
        return Verdict(
            exit_code=exit_code(first.status or 0),
            first=first,
            also=also,
            warnings=self.warnings,
        )

    def mpirun_ended_with_0(self) -> Verdict | None:
        """mpirun ended with exit code 0 while instances were running."""
        # poprun stops none without a cause, so mpirun did.
        were_running = self.reason in MACHINERY or (
            self.cause is None
            and any(isinstance(e, Exited) and e.status for e in self.events)
        )
        if self.status != 0 or self.lost_proxy or not were_running:
            return None
        # No supervisor was killed: mpirun would have ended with another code.
        if self.mpirun.if_running is not MpirunFailure.ABORTED:
            return self._mpirun_ended()
        return Verdict(
            exit_code=1,
            sentence="mpirun ended with exit code 0 while instances were running, and "
            "they were stopped. It does that when one of them calls MPI_Abort with "
            "error code 0 or a multiple of 256.",
            quote_mpirun=True,
        )

    def _mpirun_broke(self) -> bool:
        """Return whether an error of mpirun explains that a shim was lost.

        mpirun names a process that another one has killed; here it reports something
        else.
        """
        ended_by_itself = self.status is not None and not _was_killed(self.status)
        is_unexplained = self.mpirun.failure is MpirunFailure.UNEXPLAINED
        return ended_by_itself and is_unexplained and bool(self.mpirun.text)

    def stopped(self) -> Verdict | None:
        if self.cause is None or self.lost_proxy:
            return None
        match self.cause.reason:
            case Reason.REFUSED:
                return self._refused()
            case Reason.INTERRUPTED:
                number = self.cause.signal or signal.SIGINT
                who = self.cause.client or signal_name(number)
                return Verdict(exit_code=128 + number, sentence=f"Stopped by {who}.")
            case Reason.TIMEOUT:
                return Verdict(
                    exit_code=TIMED_OUT,
                    sentence=f"The job took longer than the {self.state.timeout:g} s "
                    "of --timeout and was stopped.",
                )
            case Reason.START_TIMEOUT:
                return self._not_started()
            case Reason.OUTPUT_CLOSED:
                return Verdict(exit_code=OUTPUT_CLOSED)
            case Reason.GROWTH:
                return self._grows()
            case Reason.DEVICES_LOST:
                return _machinery_failed(
                    f"The job lost its IPUs, and was stopped. {self._loss()}"
                )
            case Reason.HOST_LOST:
                return self._host_lost()
            case Reason.SHIM_LOST if not self._mpirun_broke():
                # If mpirun was killed, too, its shims may have ended first.
                if self.state.mpirun_killed or not _was_killed(self.status):
                    rank = self.cause.rank
                    return _machinery_failed(
                        f"The supervisor of instance {rank}{self._on(rank)} "
                        f"{KILLED_BY_OTHERS}"
                    )
        return self._mpirun_ended()

    def ended_by_mpirun(self) -> Verdict | None:
        """mpirun ended the job by itself: no instance failed."""
        has_ended = any(isinstance(e, Exited) and e.status for e in self.events)
        if self.cause is None and not has_ended:
            return None
        if _was_killed(self.status) and not self.state.mpirun_killed:
            return self._mpirun_ended()
        broken = self.mpirun.failure in PROCESS_LOST
        why = ", because a process of its own was killed" if broken else ""
        how = _how(self.status)
        return _mpirun_failed(f"mpirun ended the instances{why}, and then {how}.")

    def devices_lost(self) -> Verdict | None:
        if not (loss := self._loss()):
            return None
        return Verdict(
            exit_code=MACHINERY_FAILED,
            sentence="All instances ended with exit code 0, but the job had lost its "
            f"IPUs by then. {loss}",
            warnings=self.warnings,
        )

    def not_all_started(self) -> Verdict | None:
        state = self.state
        if state.have_all_started:
            return None
        hint = f" {self.mpirun.hint}" if self.mpirun.hint else ""
        return _mpirun_failed(
            f"mpirun {_how(self.status)} before it had started "
            f"{'every' if state.started else 'any'} instance.{hint}"
        )

    def all_succeeded(self) -> Verdict:
        state, mpirun, warnings = self.state, self.mpirun, self.warnings
        # A signal after the success of all instances ends mpirun alone.
        if not self.status or state.mpirun_hung or state.mpirun_killed:
            return Verdict(exit_code=0, warnings=warnings)
        if mpirun.failure is MpirunFailure.NOT_FINALIZED:
            who = "An instance" if mpirun.rank is None else f"Instance {mpirun.rank}"
            warning = f"{who} called MPI_Init and ended without MPI_Finalize."
            return Verdict(exit_code=0, warnings=[*warnings, warning])
        sentence = f"All instances succeeded, but then mpirun {_how(self.status)}."
        return _mpirun_failed(sentence, warnings)

    def _refused(self) -> Verdict:
        refused = self._event(Refused)
        assert refused is not None
        call = ""
        code = NOT_FOUND if refused.errno == errno.ENOENT else NOT_EXECUTABLE
        if refused.call:
            code = MACHINERY_FAILED
            call = f"{refused.call} failed in its supervisor"
        reason = explain_errno(refused.errno) if refused.errno else ""
        parts = [part for part in (call, refused.tried, reason) if part]
        who = f"{self.instances[refused.rank].title}{self._on(refused.rank)}"
        return Verdict(
            exit_code=code,
            sentence=f"Instance {who} could not be started: {': '.join(parts)}",
        )

    def _grows(self) -> Verdict:
        growth = self._event(HostsAvailable)
        assert growth is not None
        change = f"goes from {growth.num_running} to "
        if growth.num_instances > growth.num_running:
            change = f"grows from {growth.num_running} to "
        elif growth.num_instances == growth.num_running:
            change = "goes on with "
        return Verdict(
            # If no attempt can follow.
            exit_code=MACHINERY_FAILED,
            sentence=f"The job {change}{counted(growth.num_instances, 'instance')}, "
            f"because {growth.why}.",
            grows=True,
        )

    def _not_started(self) -> Verdict:
        state = self.state
        missing = sorted(set(range(state.num_instances)) - state.started)
        hosts = dict.fromkeys(self.instances[rank].host for rank in missing)
        where = f" on {' and '.join(hosts)}" if self.names_hosts else ""
        return Verdict(
            exit_code=TIMED_OUT,
            sentence=f"mpirun did not start {len(missing)} of {state.num_instances} "
            f"instances{where} within the {state.start_timeout:g} s of "
            f"--start-timeout, instance {missing[0]} among them.",
            quote_mpirun=True,
        )

    def _host_lost(self) -> Verdict:
        lost = self._event(HostLost)
        assert lost is not None
        noun, verb = "Instances", "were"
        if len(lost.ranks) == 1:
            noun, verb = "Instance", "was"
        return _machinery_failed(
            f"The host {lost.host} was lost: {lost.why}. {noun} "
            f"{format_ranges(lost.ranks)} {verb} on it, and the job was stopped."
        )

    def _mpirun_ended(self) -> Verdict:
        return _mpirun_failed(
            f"mpirun {_how(self.status)} while instances were running, and they were "
            "stopped."
        )

    def _on(self, rank: int | None) -> str:
        """Return where an instance is, for a sentence; "" in a job on one host."""
        if rank is None or not self.names_hosts:
            return ""
        return f" on {self.instances[rank].host}"

    def _loss(self) -> str:
        """Return the sentence about IPUs that the job does not hold any more, or ""."""
        lost = self._event(DevicesLost)
        return "" if lost is None else lost.sentence

    def _event(self, kind: type[AnEvent]) -> AnEvent | None:
        """Return the first event of a kind."""
        return next((e for e in self.events if isinstance(e, kind)), None)


def _machinery_failed(sentence: str) -> Verdict:
    return Verdict(exit_code=MACHINERY_FAILED, sentence=sentence)


def _mpirun_failed(sentence: str, warnings: Sequence[str] = ()) -> Verdict:
    """Return the verdict on an mpirun that failed, with its messages."""
    return replace(_machinery_failed(sentence), quote_mpirun=True, warnings=warnings)


def _was_killed(status: int | None) -> bool:
    return status is not None and os.WIFSIGNALED(status)


def _how(status: int | None) -> str:
    if status is None:
        return "did not end"
    if _was_killed(status):
        return f"was killed by {signal_name(os.WTERMSIG(status))}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"
