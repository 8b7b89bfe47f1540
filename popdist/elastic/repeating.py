"""Runs a function again among the new members whenever the members change."""

import logging
from collections.abc import Callable, Iterator
from functools import wraps
from time import sleep
from typing import Concatenate, ParamSpec, TypeVar

from popdist.elastic.reforming import reform, refusal
from popdist.elastic.state import State
from popdist.errors import (
    ArenaError,
    CollectiveAbortedError,
    CollectiveTimeoutError,
    ElasticError,
    GroupUnusableError,
    MembersChangedError,
    PeerLostError,
    PopdistError,
)
from popdist.generations import GENERATIONS

logger = logging.getLogger("popdist")

# How much later than an error poprun may tell of the loss that has caused it.
_TOLD_SECONDS = 1.0
# popdist's errors that a loss may have caused. All others, such as MismatchError, tell
# of an error of the program or of its environment.
_MAY_FOLLOW_LOSS = (
    ArenaError,
    CollectiveAbortedError,
    CollectiveTimeoutError,
    GroupUnusableError,
)

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=State)


def run(
    function: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], T]:
    """Return a function that calls this one again when instances end, join or leave.

    Its first argument is a State. Before each call, the State is synchronised. If
    instances end while the function runs, the State is restored to its last commit and
    the others re-form; if instances join or are to leave, commit() raises
    MembersChangedError, and all re-form. Then the function is called again, until it
    returns. It continues where the State is. It makes groups, process groups of torch
    and samplers itself, because an earlier call's groups have other members. On a host
    that has left the job, LeftJobError is raised instead.

    An error that does not name a loss counts as one if poprun tells of a loss within a
    second, and is logged with its traceback. Where the job cannot re-form, errors pass.
    """

    @wraps(function)
    def run_again(state: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            lost: Exception | None = None
            try:
                state.sync()
                return function(state, *args, **kwargs)
            except MembersChangedError:
                pass
            except Exception as error:
                if not means_loss(error):
                    raise
                if why := refusal():
                    error.add_note(why)
                    raise
                if not is_loss(error):
                    logger.warning(
                        "The function is called again with the last commit, because "
                        "this error may follow from the loss of an instance: poprun "
                        "has told of one. If it is an error of the program, correct "
                        "it.",
                        exc_info=error,
                    )
                lost = error
            if lost is not None:
                state.restore()
            try:
                reform()
            except (ElasticError, CollectiveTimeoutError) as refused:
                raise refused from lost

    return run_again


def means_loss(error: Exception) -> bool:
    """Return whether an error counts as a loss.

    The errors of other libraries, such as gloo, do not name the cause. They count if
    poprun tells of a loss, which may take a moment longer than the error. Errors of
    popdist's checks do not count.
    """
    if is_loss(error):
        return True
    for cause in _causes(error):
        if isinstance(cause, PopdistError) and not isinstance(cause, _MAY_FOLLOW_LOSS):
            return False
    if GENERATIONS.await_loss(_TOLD_SECONDS):
        return True
    # Others that have the same error a little later must not take the end of this
    # instance for its cause.
    if not refusal():
        sleep(_TOLD_SECONDS)
    return False


def is_loss(error: BaseException) -> bool:
    """Return whether an error is raised because instances have ended.

    Frameworks raise errors of their own, with the engine's as the cause.
    """
    return any(
        isinstance(cause, PeerLostError)
        or (isinstance(cause, GroupUnusableError) and bool(cause.instances))
        for cause in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Return an error, its cause, the cause of that, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
