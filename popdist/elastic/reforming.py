"""A process leaves its groups, waits for the new members, and begins anew."""

import os
from collections.abc import Sequence

import numpy as np

from popdist.errors import ElasticError, MembersChangedError, PeerLostError
from popdist.generations import GENERATIONS, LOST
from popdist.session import STATE


def reform() -> None:
    """Leave all groups, wait for the new members of the job, and begin anew.

    All living instances of the job must call it; it blocks until they have. Existing
    groups, and calls under way in other threads, raise errors from then on. Afterwards
    the place of this process in the job has changed: os.environ and popdist's functions
    have the new one, and new groups are among the new members. Calls of several threads
    at the same time count as one.

    If another instance ends meanwhile, the next call of a group raises PeerLostError,
    and reform() may be called again.

    Raises:
        LeftJobError: This instance has left the job with its host.
        ElasticError: The job cannot re-form, or poprun has refused to go on.
        CollectiveTimeoutError: Other instances have not called it in time.
        GroupUnusableError: This process has finalised the backend, or was forked.
        RuntimeError: The caller is a callback of a call under way, or the handler of a
            signal that has interrupted reform() in the same thread.
    """
    GENERATIONS.check(os.environ)
    present = GENERATIONS.current

    def reform_once() -> None:
        # Another thread may have done so meanwhile.
        if GENERATIONS.current == present:
            timeout = STATE.settings.timeout
            silent = STATE.leave()
            GENERATIONS.reform(os.environ, timeout, STATE.begin, silent)

    GENERATIONS.alone(reform_once)


def generation() -> int:
    """Return how often the members of the job have changed."""
    # A newcomer learns it when it tells poprun that it can re-form.
    refusal()
    return GENERATIONS.current


def members_changed() -> str:
    """Return the sentence why a change of members is pending, "" if none is.

    It does not wait for one. Other instances may learn of the change a little earlier
    or later; State.check() raises an error on all of them at the same call.
    """
    change = None if refusal() else GENERATIONS.pending()
    return "" if change is None else change.why


def refusal() -> str:
    """Return the sentence why this job cannot re-form, "" if it can.

    The first call tells poprun that this instance can. Programs that use neither State
    nor run() must make it before another instance ends: otherwise poprun ends the job.
    """
    return GENERATIONS.refusal(os.environ)


def check_members(members: tuple[int, ...] | None = None) -> None:
    """Raise an error if the members of the job change.

    Args:
        members: The instances that call it; by default all members.

    Raises:
        MembersChangedError: Instances are to join or leave the job; on all members.
        PeerLostError: Instances have ended.
        ElasticError: Only some members can re-form; on all members.
    """
    why = refusal()
    if GENERATIONS.none_can:
        return
    change = None if why else GENERATIONS.pending()
    if change is not None and change.kind == LOST:
        raise PeerLostError(change.why)
    is_told = change is not None
    group = STATE.group("replicas", members or STATE.job.members)
    flags = group.all_reduce(np.array([is_told, bool(why), not why]), "max")
    is_one_told, one_cannot, one_can = flags.tolist()
    # The members agree on it here once, and make no more calls for it.
    GENERATIONS.none_can = not one_can
    check_refusals([one_cannot, not one_can])
    if is_one_told:
        raise MembersChangedError(
            change.why if change else "poprun has told another instance of a change."
        )


def check_refusals(refused: Sequence[bool]) -> None:
    """Raise ElasticError if some members of a job can re-form, and others cannot.

    Args:
        refused: Whether they cannot, the same on all members: then all get the error.
    """
    if any(refused) and not all(refused):
        raise ElasticError(
            refusal()
            or "Another instance of this job cannot re-form, and its error says why. "
            "All must be able to, so the job cannot go on."
        )
