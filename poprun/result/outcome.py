"""How a job ended: (what happened, mpirun's verdict) -> exit code and cause. Pure."""

import errno
import os
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from poprun.errors import (
    MACHINERY_FAILED,
    NOT_EXECUTABLE,
    NOT_FOUND,
    OUTPUT_CLOSED,
    TIMED_OUT,
    explain_errno,
)
from poprun.helpers.processes import exit_code, signal_name
from poprun.mpirun.values import Failure, MpiVerdict
from poprun.supervise.stopping import Cause, Course, Reason
from poprun.wire.events import (
    DaemonKilled,
    DevicesLost,
    Event,
    Exited,
    FailedInFinalize,
    HostLost,
    Interrupted,
    MpirunRefused,
    Orphaned,
    Refused,
    SlurmEndsJob,
)
from poprun.words import format_ranges, printable

MACHINERY = (Reason.MPIRUN_ENDED, Reason.SHIM_LOST)
# After these another attempt may follow, and where nothing has stopped the job.
RESTARTED = (Reason.FAILED, Reason.HOST_LOST, *MACHINERY)
KILLED_BY_OTHERS = (
    "was killed, and the job with it. poprun did not do that. Find out what sends "
    "SIGKILL: perhaps the kernel, because memory ran out."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An instance that failed by itself."""

    rank: int
    status: int
    at_ns: int
    # It did not end, because MPI_Finalize waits for the other instances.
    finalizing: bool = False

    @property
    def exit_code(self) -> int:
        return exit_code(self.status)

    @property
    def killed_by(self) -> int | None:
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None

    @property
    def how(self) -> str:
        if self.finalizing:
            return (
                f"failed with exit code {self.exit_code} and waited in MPI_Finalize "
                "for the others"
            )
        if self.killed_by is not None:
            return f"was killed by {signal_name(self.killed_by)}"
        return f"exited with code {self.exit_code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What poprun exits with, and why, as far as words are needed."""

    exit_code: int
    # The cause as a sentence, where it is not an instance's failure.
    sentence: str = ""
    # The instance that failed first, if an instance failed.
    first: Failed | None = None
    also: Sequence[Failed] = ()
    # mpirun's messages, and whether they belong to the explanation.
    mpirun_text: str = ""
    quote_mpirun: bool = False
    warnings: Sequence[str] = ()


def judge(
    course: Course,
    events: Sequence[Event],
    mpirun_status: int | None,
    verdict: MpiVerdict,
    hosts: Sequence[str] = (),
    elsewhere: Collection[int] = (),
    programs: Sequence[str] = (),
) -> Outcome:
    """Return how the job ended.

    The exit code is that of the first instance that failed by itself. What failed
    because it was being stopped counts for nothing.

    Args:
        hosts: The host of each instance, where the job has several.
        elsewhere: The instances that are not on mpirun's host.
        programs: The name of each instance's program, where the job has several.
    """
    for event in events:
        if isinstance(event, MpirunRefused):
            return _mpirun_refused(event)
    failed = failures(events)
    cause = course.cause
    if _is_abort(cause, verdict, mpirun_status):
        return _aborted(verdict, failed, programs)
    killed = _killed_daemon(course, events, mpirun_status, verdict, hosts, elsewhere)
    if killed is not None:
        sentence = f"mpirun's daemon{killed} {KILLED_BY_OTHERS}"
        return Outcome(exit_code=MACHINERY_FAILED, sentence=sentence)
    if failed and (cause is None or cause.reason in (Reason.FAILED, *MACHINERY)):
        return Outcome(
            exit_code=failed[0].exit_code,
            first=failed[0],
            also=failed[1:],
            warnings=_warnings(course),
        )
    lost_proxy = _lost_its_proxy(cause, verdict)
    if mpirun_status == 0 and not lost_proxy and _ended_while_running(cause, events):
        return _ended_with_0(verdict)
    if cause is not None and _mpirun_broke(cause, mpirun_status, verdict):
        return _mpirun_ended(mpirun_status)
    if cause is not None and not lost_proxy:
        if cause.reason is Reason.REFUSED:
            return _refused(events, hosts, programs)
        return _stopped(course, cause, events, mpirun_status, hosts)
    if cause or any(isinstance(e, Exited) and e.status for e in events):
        return _ended_by_mpirun(course, mpirun_status, verdict)
    if loss := _loss(events):
        sentence = (
            "All instances ended with exit code 0, but the job had lost its IPUs by "
            f"then. {loss}"
        )
        return Outcome(
            exit_code=MACHINERY_FAILED, sentence=sentence, warnings=_warnings(course)
        )
    return _all_succeeded(course, mpirun_status, verdict)


def failures(events: Sequence[Event]) -> list[Failed]:
    """Return the instances that failed by themselves, the first one first."""
    failed = [
        Failed(rank=e.rank, status=e.status, at_ns=e.at_ns)
        for e in events
        if isinstance(e, Exited) and e.status and e.by_itself
    ]
    ended = {f.rank for f in failed}
    failed += [
        Failed(rank=e.rank, status=e.status, at_ns=e.at_ns, finalizing=True)
        for e in events
        if isinstance(e, FailedInFinalize) and e.rank not in ended
    ]
    return sorted(failed, key=lambda f: (f.at_ns, f.rank))


def has_failed(outcome: Outcome) -> bool:
    """Return whether the job has failed, and not its output alone."""
    return outcome.first is not None or bool(outcome.sentence)


def may_restart(course: Course, events: Sequence[Event]) -> bool:
    """Return whether another attempt may follow if this one has failed.

    It may after the failure of an instance, a host or mpirun, once an instance has
    run; not if the user ends the job, by a signal, a timeout or a pager, nor after the
    loss of the IPUs.
    """
    cause = course.cause
    if not course.started or (cause is not None and cause.reason not in RESTARTED):
        return False
    final = (DevicesLost, Interrupted, MpirunRefused, SlurmEndsJob)
    return not any(isinstance(event, final) for event in events)


def _mpirun_broke(cause: Cause, mpirun_status: int | None, verdict: MpiVerdict) -> bool:
    """Return whether an error of mpirun's own explains that a shim was lost.

    mpirun names a process that another one has killed; here it reports something else.
    """
    ended_by_itself = mpirun_status is not None and not _was_killed(mpirun_status)
    return (
        cause.reason is Reason.SHIM_LOST
        and ended_by_itself
        and verdict.failure is Failure.UNEXPLAINED
        and bool(verdict.text)
    )


def _killed_daemon(
    course: Course,
    events: Sequence[Event],
    mpirun_status: int | None,
    verdict: MpiVerdict,
    hosts: Sequence[str],
    elsewhere: Collection[int],
) -> str | None:
    """Return where a daemon of mpirun was killed, and so ended the job.

    On other hosts the agents detect that. On mpirun's own host only hydra has one, a
    child of mpirun: its shims report that it is gone, which also follows from the end
    of mpirun itself.
    """
    reasons = (Reason.FAILED, *MACHINERY)
    if _was_killed(mpirun_status) and not course.mpirun_killed:
        return None
    if course.cause is not None and course.cause.reason not in reasons:
        return None
    succeeded = [e for e in events if isinstance(e, Exited) and not e.status]
    if len(succeeded) == course.num_instances:
        return None
    orphaned = None
    for event in events:
        match event:
            case DaemonKilled(host=host):
                return f" on {host}"
            case Orphaned(rank=rank) if verdict.failure is Failure.PROXY_LOST:
                if orphaned is None and rank not in elsewhere:
                    orphaned = _on(hosts, rank)
            # mpirun kills what is left of the job, as far as it reaches it.
            case Exited(status=status, by_itself=True) if status not in (
                0,
                signal.SIGKILL,
            ):
                break
    return orphaned


def _lost_its_proxy(cause: Cause | None, verdict: MpiVerdict) -> bool:
    # mpirun then ends before or after the instances, as the machine's load has it.
    reasons = [Reason.MPIRUN_ENDED]
    if verdict.failure is Failure.DAEMON_LOST:
        reasons.append(Reason.SHIM_LOST)
    may_follow = cause is None or cause.reason in reasons
    return may_follow and verdict.failure in (Failure.PROXY_LOST, Failure.DAEMON_LOST)


def _is_abort(
    cause: Cause | None, verdict: MpiVerdict, mpirun_status: int | None
) -> bool:
    """Return whether MPI_Abort of an instance has ended the job."""
    # Open MPI's MPI_Abort ends the instance too, and poprun may detect that first.
    is_same = cause == Cause(reason=Reason.FAILED, rank=verdict.rank)
    may_be_cause = cause is None or cause.reason in MACHINERY or is_same
    # hydra tells of MPI_Abort by its exit code alone, and one that was killed has
    # none of its own.
    is_known = bool(verdict.text) or not _was_killed(mpirun_status)
    return may_be_cause and is_known and verdict.failure is Failure.ABORTED


def _aborted(
    verdict: MpiVerdict, failed: Sequence[Failed], programs: Sequence[str]
) -> Outcome:
    error = verdict.code or 0
    # It is a failure in any case.
    code = error & 0xFF or 1
    also = [f for f in failed if f.rank != verdict.rank]
    if verdict.rank is None:
        sentence = f"An instance called MPI_Abort with error code {error}."
        return Outcome(exit_code=code, sentence=sentence, also=also)
    return Outcome(
        exit_code=code,
        sentence=f"Instance {named(verdict.rank, programs)} called MPI_Abort with "
        f"error code {error}, and mpirun ended the others.",
        first=Failed(rank=verdict.rank, status=code << 8, at_ns=0),
        also=also,
    )


def _ended_while_running(cause: Cause | None, events: Sequence[Event]) -> bool:
    if cause is not None:
        return cause.reason in MACHINERY
    # poprun has stopped none of them, so it was mpirun.
    return any(isinstance(e, Exited) and e.status and not e.by_itself for e in events)


def _ended_with_0(verdict: MpiVerdict) -> Outcome:
    # No supervisor was killed: mpirun would have ended with another code.
    if verdict.if_running is not Failure.ABORTED:
        return _mpirun_ended(0)
    return Outcome(
        exit_code=1,
        sentence="mpirun ended with exit code 0 while instances were running, and "
        "they were stopped. It does that when one of them calls MPI_Abort "
        "with error code 0 or a multiple of 256.",
        quote_mpirun=True,
    )


def _stopped(
    course: Course,
    cause: Cause,
    events: Sequence[Event],
    mpirun_status: int | None,
    hosts: Sequence[str],
) -> Outcome:
    match cause.reason:
        case Reason.INTERRUPTED:
            number = cause.signal or signal.SIGINT
            who = cause.client or signal_name(number)
            return Outcome(exit_code=128 + number, sentence=f"Stopped by {who}.")
        case Reason.TIMEOUT:
            return Outcome(
                exit_code=TIMED_OUT,
                sentence=f"The job took longer than the {course.timeout:g} s of "
                "--timeout and was stopped.",
            )
        case Reason.START_TIMEOUT:
            return _not_started(course, hosts)
        case Reason.OUTPUT_CLOSED:
            return Outcome(exit_code=OUTPUT_CLOSED)
        case Reason.DEVICES_LOST:
            sentence = f"The job lost its IPUs, and was stopped. {_loss(events)}"
            return Outcome(exit_code=MACHINERY_FAILED, sentence=sentence)
        case Reason.HOST_LOST:
            return _host_lost(events)
        # An mpirun that is killed may take shims with it, and they are missed first.
        case Reason.SHIM_LOST if course.mpirun_killed or not _was_killed(mpirun_status):
            return Outcome(
                exit_code=MACHINERY_FAILED,
                sentence="The supervisor of instance "
                f"{cause.rank}{_on(hosts, cause.rank)} {KILLED_BY_OTHERS}",
            )
    return _mpirun_ended(mpirun_status)


def _loss(events: Sequence[Event]) -> str:
    """Return the sentence about IPUs that the job does not hold any more, or ""."""
    return next((e.sentence for e in events if isinstance(e, DevicesLost)), "")


def _mpirun_failed(sentence: str, warnings: Sequence[str] = ()) -> Outcome:
    return Outcome(
        exit_code=MACHINERY_FAILED,
        sentence=sentence,
        quote_mpirun=True,
        warnings=warnings,
    )


def _host_lost(events: Sequence[Event]) -> Outcome:
    lost = next(e for e in events if isinstance(e, HostLost))
    noun = "Instance" if len(lost.ranks) == 1 else "Instances"
    verb = "was" if len(lost.ranks) == 1 else "were"
    return Outcome(
        exit_code=MACHINERY_FAILED,
        sentence=f"The host {lost.host} was lost: {lost.why}. {noun} "
        f"{format_ranges(lost.ranks)} {verb} on it, and the job was stopped.",
    )


def _mpirun_ended(mpirun_status: int | None) -> Outcome:
    return _mpirun_failed(
        f"mpirun {_how(mpirun_status)} while instances were running, and "
        "they were stopped."
    )


def _on(hosts: Sequence[str], rank: int | None) -> str:
    """Return where an instance is, for a sentence; "" in a job on one host."""
    return f" on {hosts[rank]}" if hosts and rank is not None else ""


def named(rank: int, programs: Sequence[str]) -> str:
    """Return the number of an instance, with the program that it runs.

    Args:
        programs: The name of each instance's program, where the job has several.
    """
    return f"{rank} ({printable(programs[rank])})" if programs else str(rank)


def _refused(
    events: Sequence[Event], hosts: Sequence[str], programs: Sequence[str]
) -> Outcome:
    refused = next(e for e in events if isinstance(e, Refused))
    if refused.call:
        code = MACHINERY_FAILED
    else:
        code = NOT_FOUND if refused.errno == errno.ENOENT else NOT_EXECUTABLE
    call = f"{refused.call} failed in its supervisor" if refused.call else ""
    reason = explain_errno(refused.errno) if refused.errno else ""
    parts = [part for part in (call, refused.tried, reason) if part]
    return Outcome(
        exit_code=code,
        sentence=f"Instance {named(refused.rank, programs)}{_on(hosts, refused.rank)} "
        f"could not be started: {': '.join(parts)}",
    )


def _mpirun_refused(refused: MpirunRefused) -> Outcome:
    call = f"{refused.call}: " if refused.call else ""
    reason = explain_errno(refused.errno)
    return Outcome(
        exit_code=MACHINERY_FAILED,
        sentence=f"mpirun could not be started: {call}{reason}",
    )


def _not_started(course: Course, hosts: Sequence[str]) -> Outcome:
    missing = sorted(set(range(course.num_instances)) - course.started)
    names = list(dict.fromkeys(hosts[rank] for rank in missing)) if hosts else []
    where = f" on {' and '.join(names)}" if names else ""
    return Outcome(
        exit_code=TIMED_OUT,
        sentence=f"mpirun did not start {len(missing)} of {course.num_instances} "
        f"instances{where} within the {course.start_timeout:g} s of --start-timeout, "
        f"instance {missing[0]} among them.",
        quote_mpirun=True,
    )


def _ended_by_mpirun(
    course: Course, mpirun_status: int | None, verdict: MpiVerdict
) -> Outcome:
    """Return the outcome of a job that mpirun ended by itself: no instance failed."""
    if _was_killed(mpirun_status) and not course.mpirun_killed:
        return _mpirun_ended(mpirun_status)
    broken = verdict.failure in (Failure.PROXY_LOST, Failure.DAEMON_LOST)
    why = ", because a process of its own was killed" if broken else ""
    return _mpirun_failed(
        f"mpirun ended the instances{why}, and then {_how(mpirun_status)}."
    )


def _all_succeeded(
    course: Course, mpirun_status: int | None, verdict: MpiVerdict
) -> Outcome:
    if len(course.started) < course.num_instances:
        hint = f" {verdict.hint}" if verdict.hint else ""
        return _mpirun_failed(
            f"mpirun {_how(mpirun_status)} before it had started "
            f"{'every' if course.started else 'any'} instance.{hint}"
        )
    warnings = _warnings(course)
    # A signal that comes when all have succeeded ends what is left, and no more.
    if not mpirun_status or course.mpirun_hung or course.mpirun_killed:
        return Outcome(exit_code=0, warnings=warnings)
    if verdict.failure is Failure.NOT_FINALIZED:
        who = "An instance" if verdict.rank is None else f"Instance {verdict.rank}"
        warnings.append(f"{who} called MPI_Init and ended without MPI_Finalize.")
        return Outcome(exit_code=0, warnings=warnings)
    sentence = f"All instances succeeded, but then mpirun {_how(mpirun_status)}."
    return _mpirun_failed(sentence, warnings)


def _warnings(course: Course) -> list[str]:
    if not course.mpirun_hung:
        return []
    return ["mpirun did not end after its last instance and was killed."]


def _was_killed(status: int | None) -> bool:
    return status is not None and os.WIFSIGNALED(status)


def _how(status: int | None) -> str:
    if status is None:
        return "did not end"
    if _was_killed(status):
        return f"was killed by {signal_name(os.WTERMSIG(status))}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"
