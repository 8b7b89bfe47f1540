"""The end of a job: Ended -> Outcome -> the report and the exit code."""

import os
import signal

from poprun.job.events import Exited
from poprun.job.values import Ended
from poprun.job.wait_status import exit_code
from poprun.log import Log
from poprun.mpirun import adapter, hydra
from poprun.mpirun.values import HYDRA, Failure, MpiVerdict
from poprun.plan.planner import Setup
from poprun.result import out_of_memory, report
from poprun.result.exit_codes import OUTPUT_CLOSED, UNWRITTEN
from poprun.result.outcome import MACHINERY, Outcome, judge
from poprun.stdio.router import OutputRouter


def conclude(
    ended: Ended,
    made: Setup,
    router: OutputRouter,
    log: Log,
    memory: out_of_memory.Memory,
    *,
    debug: bool,
) -> int:
    """Report how a job ended, the cause last, and return poprun's exit code.

    Args:
        memory: The counters of the cgroup when the job began.
    """
    status = ended.mpirun_status
    code = 1 if status is None else exit_code(status)
    text = ended.mpirun_output.decode(errors="replace")
    verdict = adapter(made.mpi.flavour).explain(text, code)
    if made.mpi.flavour == HYDRA and verdict.failure in (Failure.ABORTED, Failure.NONE):
        verdict = _explain_abort(ended, made, router) or verdict
    outcome = judge(ended.course, ended.events, status, verdict)
    for warning in outcome.warnings:
        log.warn(warning)
    if router.failure is not None:
        what, number = router.failure
        log.error(
            f"Output was lost: {what} cannot be written: {os.strerror(number)}. The "
            "instances were not stopped for that."
        )
    for what, size in router.lost.items():
        log.error(
            f"Output was lost: {what} was not read, so its last {size} bytes or more "
            "were not written."
        )
    if debug and verdict.text and not outcome.quote_mpirun:
        log.say(f"mpirun printed:\n{verdict.text}")
    evidence = _evidence(outcome, ended, made, router, memory)
    *more, cause = report.render(outcome, evidence, verdict.text) or [""]
    for sentence in more:
        log.say(sentence)
    if cause:
        log.error(cause)
    if router.closed:
        return outcome.exit_code or OUTPUT_CLOSED
    if router.failure is not None or router.lost:
        return outcome.exit_code or UNWRITTEN
    return outcome.exit_code


def _explain_abort(
    ended: Ended, made: Setup, router: OutputRouter
) -> MpiVerdict | None:
    """Return what MPICH wrote on MPI_Abort, where mpirun has ended the job."""
    cause = ended.course.cause
    if cause is not None and cause.reason not in MACHINERY:
        return None
    for assignment in made.plan.assignments:
        stderr = router.tail(assignment.rank).decode(errors="replace")
        if verdict := hydra.explain_abort(stderr, assignment.rank):
            return verdict
    return None


def _machine_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def _evidence(
    outcome: Outcome,
    ended: Ended,
    made: Setup,
    router: OutputRouter,
    before: out_of_memory.Memory,
) -> report.Evidence:
    if outcome.first is None:
        return report.Evidence()
    rank = outcome.first.rank
    after = out_of_memory.read()
    # A shell, and other programs that start one, exit with 128 and the signal's number.
    killed = outcome.first.exit_code == 128 + signal.SIGKILL
    starved = killed and after.kills > before.kills
    if starved and after.limit is None:
        after = after._replace(limit=_machine_memory())
    peaks = [
        e.peak_kib for e in ended.events if isinstance(e, Exited) and e.rank == rank
    ]
    return report.Evidence(
        host=made.plan.assignments[rank].host.name,
        stderr=router.tail(rank),
        just_shown=router.was_last(rank),
        out_of_memory=after if starved else None,
        peak_kib=max(peaks, default=0),
        no_stdin=not made.stdin.gives(rank),
    )
