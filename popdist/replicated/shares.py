"""The part of a data set that one process loads."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A range of samples, and how far it may move to the end."""

    offset: int
    length: int
    # How many samples no process would load if the range never moved.
    leftovers: int = 0


def even_share(samples: int, process: int, processes: int) -> Share:
    """Return one process's part of all samples.

    The first processes get one more, where they cannot be shared equally.
    """
    each, more = divmod(samples, processes)
    return Share(
        offset=process * each + min(process, more), length=each + (process < more)
    )


def share_of(
    samples: int, *, step: int, process: int, processes: int, drop_last: bool
) -> Share:
    """Return which samples of a data set a process loads.

    Args:
        samples: How many there are.
        step: How many one process loads at a time.
        process: The index of the process.
        processes: How many there are.
        drop_last: Whether each process loads full steps only, and all as many.

    Raises:
        ZeroDivisionError: There is not one full step for each process.
    """
    if not drop_last:
        return even_share(samples, process, processes)
    each = samples // (step * processes) * step
    if not each:
        raise ZeroDivisionError(
            f"The data set has {samples} samples, but {processes} processes that load "
            f"{step} at a time need {step * processes} or more. Make the batch "
            "smaller, or load them with drop_last=False."
        )
    return Share(offset=process * each, length=each, leftovers=samples % each)
