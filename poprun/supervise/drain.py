"""The end of a job's output: the last output of instances, for a slow reader.

It owns the wait for the readers of poprun's stdout and stderr when the job is over.
That wait ends: after a time without any progress that depends on how the job ended.
"""

import time
from collections.abc import Callable
from math import inf

from poprun.output.router import OutputRouter
from poprun.output.streams import Streams
from poprun.supervise.job_state import Cause, Reason

# How long a reader may take nothing at all before the rest is given up: after a
# failure of the job, after an order to stop it, and after a second signal.
AFTER_FAILURE_S = 60.0
AFTER_STOP_S = 5.0
AFTER_SECOND_SIGNAL_S = 0.2
# How long to wait for the end of streams when all who could write are gone.
STREAMS_END_S = 1.0

STOPPED = (Reason.INTERRUPTED, Reason.TIMEOUT, Reason.START_TIMEOUT)


def reader_timeout(cause: Cause | None, *, failed: bool, signals: int) -> float:
    """Return for how long a reader may take nothing before the rest is given up.

    Args:
        cause: Why the job was stopped, if it was.
        failed: Whether an instance failed.
        signals: How many signals to stop poprun has got, before the end or after it.
    """
    if signals > 1:
        return AFTER_SECOND_SIGNAL_S
    if signals or (cause is not None and cause.reason in STOPPED):
        return AFTER_STOP_S
    if failed or cause is not None:
        return AFTER_FAILURE_S
    return inf


def drain(
    router: OutputRouter,
    streams: Streams,
    serve: Callable[[float], None],
    limit: Callable[[], float],
) -> None:
    """Read the rest of the streams, and write all unwritten output.

    Args:
        serve: Waits until a time for output and signals, and serves them.
        limit: Says for how long a reader may take nothing; signals change it.
    """
    now = time.monotonic()
    progress, moved, streams_end = router.written, now, now + STREAMS_END_S
    received = streams.received
    while streams or router.queued:
        if not router.queued or router.written != progress:
            progress, moved = router.written, now
        elif now >= moved + limit():
            router.give_up()
            continue
        if router.full or streams.received != received:
            # Nothing is read before a reader comes: that time does not count, and the
            # time of a slow connection does not, either.
            received, streams_end = streams.received, now + STREAMS_END_S
        elif streams and now >= streams_end:
            streams.close()
            continue
        due = min(streams.deadline(), moved + limit() if router.queued else inf)
        if streams and not router.full:
            due = min(due, streams_end)
        serve(min(due, router.deadline()))
        streams.tick()
        now = time.monotonic()
        router.tick(now)
