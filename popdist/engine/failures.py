"""The errors for collective calls that did not come to their end."""

import errno
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from popdist.engine import _core
from popdist.engine.spec.dtypes import name_of, reduction_name_of
from popdist.engine.spec.operations import (
    ALGORITHM_NAMES,
    NO_PRELUDE,
    Described,
    Operation,
    Status,
    display_name,
    name_of_number,
)
from popdist.errors import (
    ArenaError,
    CollectiveAbortedError,
    CollectiveTimeoutError,
    GroupUnusableError,
    MismatchError,
    PeerLostError,
    PopdistError,
)


class ErrorFields(NamedTuple):
    """An error as one member sends it to the others, so that all raise the same.

    Attributes:
        kind: The Status of the error.
        lost: The instances of a PeerLostError.
    """

    kind: int
    message: str
    lost: Sequence[int] = ()


# Why a group has ended: the Status; the member that detected the end, and the member
# concerned; the number of the call, and the descriptions of both members' calls; with
# END_REQUESTED, the error of the member that ended the group.
Ending = tuple[
    *tuple[int, int, int, int],
    *tuple[Described, Described],
    tuple[int, str, Sequence[int]],
]

# How many missing members an error describes, and how many last calls of each.
_MOST_MEMBERS = 4
_MOST_CALLS = 3


class Missing(NamedTuple):
    """A member that has not begun the others' call.

    is_in_call: Whether it is in an earlier call; None where its calls are not known,
        as of one on another host.
    recent: Its last calls with their numbers, the last one first.
    """

    member: int
    is_in_call: bool | None
    recent: Sequence[tuple[int, Described]]


_ERRORS: dict[Status, type[PopdistError]] = {
    Status.STOPPED: CollectiveAbortedError,
    Status.TIMED_OUT: CollectiveTimeoutError,
    Status.PEER_LOST: PeerLostError,
    Status.MISMATCH: MismatchError,
}

# Their descriptions name the reduction.
_REDUCING = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER)

# The phrase for the root in the descriptions of calls.
_ROOTED = {
    Operation.REDUCE: "with root on",
    Operation.BROADCAST: "with root on",
    Operation.GATHER: "with root on",
    Operation.SCATTER: "with root on",
    Operation.SEND: "to",
    Operation.RECEIVE: "from",
}


def explain(
    ending: Ending,
    instances: Sequence[int],
    timeout: float,
    names: Sequence[object] = (),
    missing: Sequence[Missing] = (),
    silence: int = 0,
) -> PopdistError:
    """Return the error that every member raises for the end of the group.

    Args:
        names: The names of the instances, if they differ from the numbers.
        missing: The members that had not begun the call, as far as they are known.
        silence: For how many seconds the host of a lost member has not answered; 0 if
            the member itself is known to have ended or left.
    """
    reason, by, about, _, own_call, other_call, error = ending
    names = names or instances
    finder, concerned = names[by], names[about]
    call = describe_call(own_call, names)
    match Status(reason):
        case Status.PEER_LOST if silence:
            return PeerLostError(
                f"Instance {concerned} has not answered for {silence} s, while "
                f"instance {finder} needed it for {call}. Its host or the network to "
                "it has failed, or stood still: check both.",
                (instances[about],),
            )
        case Status.PEER_LOST:
            return PeerLostError(
                f"Instance {concerned} has ended, or closed the group, while instance "
                f"{finder} needed it for {call}. Look above for its last output.",
                (instances[about],),
            )
        case Status.TIMED_OUT:
            late = [names[one.member] for one in missing] or [concerned]
            several = len(late) > 1
            recent = "".join(
                f" I{line[1:]}" for line in describe_missing(missing, names)
            )
            return CollectiveTimeoutError(
                f"I{name_instances(late)[1:]} did not take "
                f"{'their' if several else 'its'} part in {call} within "
                f"{timeout:g} s, so instance {finder} gave up. Look at what "
                f"{'they do' if several else 'it does'} instead; if "
                f"{'they were' if several else 'it was'} only slow, raise "
                f"POPDIST_TIMEOUT.{recent}"
            )
        case Status.MISMATCH:
            there = describe_call(other_call, names)
            if own_call == other_call:
                there += " in arrays of other shapes, or of other replicas"
            return MismatchError(
                "Tensor layouts did not match on all instances: instance "
                f"{finder} came to {call}, but instance {concerned} came to {there}. "
                "All instances must make the same calls in the same order."
            )
        case Status.STOPPED:
            return CollectiveAbortedError(
                f"Instance {finder} was interrupted in {call}, which ended it for all."
            )
        case _:
            return error_of(ErrorFields(*error))


def name_instances(names: Sequence[object]) -> str:
    """Return "instances 1, 2 and 5" for these."""
    *others, last = map(str, names)
    if not others:
        return f"instance {last}"
    return f"instances {', '.join(others)} and {last}"


def describe_missing(
    missing: Sequence[Missing], names: Sequence[object]
) -> Iterator[str]:
    """Yield a sentence about the last calls of each missing member, but not of many."""
    known = [one for one in missing if one.is_in_call is not None]
    for one in known[:_MOST_MEMBERS]:
        who = f"instance {names[one.member]}"
        if not one.recent:
            yield f"{who} has made no call of this group yet."
            continue
        calls = "; before that, ".join(
            f"call {number}, {describe_call(call, names)}"
            for number, call in one.recent[:_MOST_CALLS]
        )
        yield f"{who} is in {'' if one.is_in_call else 'no call since '}{calls}."


def fields_of(error: PopdistError) -> ErrorFields:
    """Return the fields of an error with which a member ends the group."""
    # The core takes UTF-8 without zeros.
    text = str(error).replace("\0", " ").encode(errors="replace").decode()
    if isinstance(error, PeerLostError):
        return ErrorFields(Status.PEER_LOST, text, error.instances[: _core.MOST_LOST])
    kinds = (kind for kind, each in _ERRORS.items() if isinstance(error, each))
    return ErrorFields(next(kinds, Status.STOPPED), text)


def error_of(fields: ErrorFields) -> PopdistError:
    """Return the error with which a member has ended the group."""
    if fields.kind == Status.PEER_LOST:
        return PeerLostError(fields.message, fields.lost)
    return _ERRORS[Status(fields.kind)](fields.message)


def lost_by(error: BaseException | None) -> set[int]:
    """Return the instances that have ended and so have caused an exception.

    They must end first. Otherwise the launcher would take this process, which fails
    because of them, for the first failure of the job.
    """
    instances: set[int] = set()
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        if isinstance(error, PeerLostError):
            instances |= set(error.instances)
        error = error.__cause__ or error.__context__
    return instances


def cannot_share(who: str, error: OSError) -> ArenaError:
    """Return the error for a member that gets no memory or descriptors for a group."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        limit = "it" if error.errno == errno.EMFILE else "the machine"
        return ArenaError(
            f"{who} cannot share memory with the others, because {limit} has as many "
            "open files as the limit allows. Close files, or raise the limit "
            f"({'ulimit -n' if limit == 'it' else 'sysctl fs.file-max'})."
        )
    return ArenaError(f"{who} could not share memory with the others: {error}.")


def failed(instance: object, what: str, error: BaseException) -> CollectiveAbortedError:
    """Return the error with which a member ends the group.

    Args:
        what: The call that it cannot finish.
        error: Why it cannot.
    """
    if not isinstance(error, Exception):
        # Its program is stopped, by Ctrl-C as a rule: there is nothing wrong with it.
        happened, why = "was interrupted", "."
    else:
        happened, why = "failed", f": {type(error).__name__}: {error}"
    return CollectiveAbortedError(
        f"Instance {instance} {happened} in {what}, which ended it for all{why}"
    )


def unusable(ending: Ending | None, instances: Sequence[int]) -> PopdistError:
    """Return the error for a call to a group that is no longer one."""
    if ending is None:
        return GroupUnusableError(
            "This group is closed, or belongs to the process that this one was forked "
            "from. Make the call before it is closed, or call popdist.init() in a "
            "newly started process."
        )
    reason, by, _, number, own_call, _, error = ending
    why = Status(reason).name.lower()
    if reason == Status.END_REQUESTED:
        why = error[1].removesuffix(".")
    call = describe_call(own_call, instances)
    return GroupUnusableError(
        f"This group ended in call {number}, {call}, for which instance "
        f"{instances[by]} found: {why}. Let the first error end the program, and "
        "start the job again."
    )


def unusable_because(
    why: PopdistError, ending: Ending, instances: Sequence[int]
) -> PopdistError:
    """Return the error for a call to a group that has ended, with its first error.

    The first one may be in a handle, and the program has not waited for it yet.
    """
    error = unusable(ending, instances)
    error.__cause__ = why
    if isinstance(why, PeerLostError) and isinstance(error, GroupUnusableError):
        error.instances = why.instances
    return error


def describe_call(call: Described, instances: Sequence[object]) -> str:
    """Return the description of a call: "all_reduce (sum) of 10 float32".

    Args:
        instances: The instances of the group. The call's root is an index into them.
    """
    code, dtype, reduction, algorithm, root, count, name, prelude_to = call
    operation = Operation(code)
    if operation is Operation.BARRIER:
        return "barrier" + _named(name)
    if prelude_to == Operation.NEGOTIATION:
        return "its next named call"
    if prelude_to != NO_PRELUDE:
        # The first step of a call in which the members' arrays may differ.
        return f"{Operation(prelude_to).public_name}{_named(name)}"
    how = ""
    if operation in _REDUCING:
        how = reduction_name_of(reduction)
        # On one host it has one algorithm only, so none is named.
        if operation is not Operation.REDUCE_SCATTER:
            how += f", {ALGORITHM_NAMES[algorithm]}"
        how = f" ({how})"
    end = ""
    # Another member may be overwriting its description with the next call's.
    if operation in _ROOTED and 0 <= root < len(instances):
        end = f" {_ROOTED[operation]} instance {instances[root]}"
    return (
        f"{operation.public_name}{how} of {count} {name_of(dtype)}{end}{_named(name)}"
    )


def _named(number: int) -> str:
    """Return the phrase for a call's name. Perhaps only another member knows it."""
    name = name_of_number(number)
    if name is not None:
        return f" named {display_name(name)}"
    return " under another name" if number else ""
