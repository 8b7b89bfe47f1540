"""What to say when a collective call did not come to its end."""

from collections.abc import Sequence

from popdist.engine.codes import ALGORITHM_NAMES, Described, Operation, Status
from popdist.engine.dtypes import name_of, reduction_name_of
from popdist.errors import (
    CollectiveAbortedError,
    CollectiveTimeoutError,
    GroupUnusableError,
    MismatchError,
    PeerLostError,
    PopdistError,
)

Ending = tuple[int, int, int, int, Described, Described, str]

_REDUCING = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER)

_ROOTED = {
    Operation.REDUCE: "with root",
    Operation.BROADCAST: "with root",
    Operation.GATHER: "with root",
    Operation.SCATTER: "with root",
    Operation.SEND: "to member",
    Operation.RECEIVE: "from member",
}


def explain(ending: Ending, instances: Sequence[int], timeout: float) -> PopdistError:
    """Return the error that tells on every member how the group came to its end."""
    reason, by, about, _, mine, theirs, words = ending
    noticed, concerned = instances[by], instances[about]
    call = in_words(mine)
    match Status(reason):
        case Status.PEER_LOST:
            return PeerLostError(
                f"Instance {concerned} has ended, or left the group, while instance "
                f"{noticed} needed it for {call}. Look above for what it said last.",
                (concerned,),
            )
        case Status.TIMED_OUT:
            return CollectiveTimeoutError(
                f"Instance {concerned} did not take its part in {call} within "
                f"{timeout:g} s, so instance {noticed} gave up. Look at what it does "
                "instead; if it was only slow, raise POPDIST_TIMEOUT."
            )
        case Status.MISMATCH:
            return MismatchError(
                "Tensor layouts did not match on all instances: instance "
                f"{noticed} came to {call}, but instance {concerned} came to "
                f"{in_words(theirs)}. All instances must make the same calls in the "
                "same order."
            )
        case Status.STOPPED:
            return CollectiveAbortedError(
                f"Instance {noticed} was interrupted in {call}, which ended it for all."
            )
        case _:
            return MismatchError(words)


def unusable(ending: Ending | None, instances: Sequence[int]) -> PopdistError:
    """Return the error for a call to a group that is no longer one."""
    if ending is None:
        return GroupUnusableError(
            "This group is closed, or belongs to the process that this one was forked "
            "from. Make the call before it is closed, or call popdist.init() in a "
            "process that was started anew."
        )
    reason, by, _, number, mine, _, _ = ending
    return GroupUnusableError(
        f"This group came to its end in call {number}, {in_words(mine)}, for which "
        f"instance {instances[by]} found: {Status(reason).name.lower()}. Let the first "
        "error end the program, and start the job again."
    )


def in_words(call: Described) -> str:
    """Return what a call is about: "all_reduce (sum) of 10 float32"."""
    code, dtype, reduction, algorithm, root, count, name = call
    operation = Operation(code)
    if operation is Operation.PEEK:
        return "its next named call"
    if operation is Operation.BARRIER:
        return "barrier" + _named(name)
    how = ""
    if operation in _REDUCING:
        how = reduction_name_of(reduction)
        if operation is not Operation.REDUCE_SCATTER:
            how += f", {ALGORITHM_NAMES[algorithm]}"
        how = f" ({how})"
    to = {
        Operation.SEND: f" to member {root}",
        Operation.RECEIVE: f" from member {root}",
    }
    rooted = (
        Operation.REDUCE,
        Operation.BROADCAST,
        Operation.GATHER,
        Operation.SCATTER,
    )
    end = to.get(operation, f" with root {root}" if operation in rooted else "")
    return f"{operation.words}{how} of {count} {name_of(dtype)}{end}{_named(name)}"


def _named(name: int) -> str:
    return f" named {name:016x}" if name else ""
