"""Elastic jobs: states of a training that outlive a change of ranks, and run()."""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import wraps
from typing import Any

from popdist import elastic
from popdist.elastic.reforming import check_members
from popdist.elastic.repeating import is_loss, means_loss
from popdist.elastic.state import LOST_STATE
from popdist.errors import (
    CollectiveTimeoutError,
    ElasticError,
    MembersChangedError,
    MismatchError,
    PeerLostError,
)
from popdist.generations import GENERATIONS

from .calls.objects import broadcast_object
from .calls.submission import BASICS
from .exceptions import HorovodInternalError, HostsUpdatedInterrupt, internal_errors

# Any in this module: objects of all types that can be pickled.

logger = logging.getLogger("horovod")

# What calls raise where a rank has ended.
_LOSSES = (HorovodInternalError, PeerLostError)


class State:
    """The state of a training: commit() keeps it, restore() goes back to that.

    Subclasses define save(), restore() and sync().
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = broadcast_object,
        get_rank: Callable[[], int] = BASICS.rank,
    ) -> None:
        """Begin without callbacks.

        Args:
            bcast_object: Returns rank 0's object on all ranks.
            get_rank: Not used here.
        """
        # poprun must know it before a rank is lost.
        elastic.refusal()
        self._bcast_object = bcast_object
        self._reset_callbacks: list[Callable[[], object]] = []

    def register_reset_callbacks(
        self, callbacks: Iterable[Callable[[], object]]
    ) -> None:
        """Call these after each change of ranks, before the state is shared."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapt to the new ranks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keep the state as it is now, and look whether ranks are to change.

        All ranks must call it at the same point of the program.

        Raises:
            HostsUpdatedInterrupt: Ranks are to be added or to leave; run() expects it.
            HorovodInternalError: A rank has ended.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt on all ranks if ranks are to be added or leave.

        All ranks must call it. Outside of an elastic job the ranks do not change.
        """
        with internal_errors():
            try:
                check_members(BASICS.instances())
            except MembersChangedError as error:
                raise HostsUpdatedInterrupt from error

    def save(self) -> None:
        """Keep the state as it is now."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the state that was kept last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take rank 0's state, on all ranks."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt objects to the new ranks, before the callbacks. By default: nothing."""


class StateHandler:
    """One object of a state, which is kept and shared by its state_dict()."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def read(self) -> Any:
        """Return a copy of the object's state."""
        return deepcopy(self.value.state_dict())

    def write(self, state: Any) -> None:
        """Change the object's state; `state` may become a part of it."""
        self.value.load_state_dict(state)

    def share(self) -> None:
        """Take rank 0's state of the object, on all ranks."""
        self.write(broadcast_object(self.value.state_dict()))

    def save(self) -> None:
        """Keep the state as it is now."""
        self._saved = self.read()

    def restore(self) -> None:
        """Go back to the state that was kept last."""
        self.write(deepcopy(self._saved))

    def sync(self) -> None:
        """Take rank 0's state, and keep it."""
        self.share()
        self.save()

    def set_value(self, value: Any) -> None:
        """Handle another object from now on."""
        self.value = value
        self.save()


class ObjectState(State):
    """A state with objects as its attributes: numbers, lists, objects with handlers."""

    # Handlers of objects that deepcopy() and pickle cannot copy, by the names of the
    # attributes. A subclass may set it before it calls this constructor.
    _handlers: Mapping[str, StateHandler] = {}

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = broadcast_object,
        get_rank: Callable[[], int] = BASICS.rank,
        **kwargs: Any,
    ) -> None:
        """Keep the objects as they are now.

        Args:
            bcast_object: See State.
            get_rank: See State.
            kwargs: The objects without handlers, by the names of the attributes. They
                can be copied and pickled.
        """
        super().__init__(bcast_object, get_rank)
        for name, handler in self._handlers.items():
            setattr(self, name, handler.value)
        self._saved = kwargs
        self._set_attributes(kwargs)
        self.save()

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self._handlers.get(name)
        if handler is not None and handler.value is not value:
            handler.set_value(value)
        super().__setattr__(name, value)

    def save(self) -> None:
        """Keep the objects as they are now."""
        for handler in self._handlers.values():
            handler.save()
        self._save_attributes()

    def restore(self) -> None:
        """Go back to the objects that were kept last."""
        for handler in self._handlers.values():
            handler.restore()
        self._set_attributes(deepcopy(self._saved))

    def sync(self) -> None:
        """Take rank 0's objects, on all ranks, and keep them."""
        for handler in self._handlers.values():
            handler.sync()
        if self._saved:
            self._set_attributes(
                self._bcast_object({name: getattr(self, name) for name in self._saved})
            )
            self._save_attributes()

    def _save_attributes(self) -> None:
        self._saved = {name: deepcopy(getattr(self, name)) for name in self._saved}

    def _set_attributes(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


def run_fn(
    func: Callable[..., Any],
    reset: Callable[[], object],
    errors: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Callable[..., Any]:
    """Return a function that calls `func` again after each change of ranks.

    Args:
        func: A function of a State, and of other arguments.
        reset: Connects to the new ranks.
        errors: Turns errors of a framework into Horovod's.
    """

    @wraps(func)
    def run_again(state: State, *args: Any, **kwargs: Any) -> Any:
        cause: BaseException | None = None
        must_sync = True
        while True:
            try:
                with errors():
                    if cause is not None:
                        _reset_after(cause, reset)
                        state.on_reset()
                        cause = None
                    if must_sync:
                        _sync(state)
                    return func(state, *args, **kwargs)
            except HostsUpdatedInterrupt as interrupt:
                logger.warning("The training continues on other ranks.")
                cause, must_sync = interrupt, not interrupt.skip_sync
            except Exception as error:
                _check_recoverable(error)
                logger.warning(
                    "The training continues from the state that was committed last, "
                    "because of %s: %s",
                    type(error).__name__,
                    error,
                    # It may be an error of the program.
                    exc_info=not isinstance(error, _LOSSES),
                )
                state.restore()
                cause, must_sync = error, True

    return run_again


def _sync(state: State) -> None:
    """Share the state of rank 0.

    Raises:
        ElasticError: The ranks that had a state have ended.
    """
    if BASICS.has_lost_state:
        raise ElasticError(LOST_STATE)
    state.sync()
    GENERATIONS.has_state = True


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of a State train on whatever ranks there are: a decorator.

    All ranks share the state before they call the function. When a rank ends, the
    others go back to the state that was committed last, share it, and call the function
    again. When ranks are added or to leave, commit() ends the function, and they do the
    same; on ranks that leave, LeftJobError ends it.

    Outside of an elastic job the error of a lost rank leaves the function.
    """
    return run_fn(func, reset_ranks)


def reset_ranks() -> None:
    """Connect to the ranks that there are now."""
    BASICS.shutdown()
    if not elastic.refusal():
        elastic.reform()
    BASICS.init()


def _reset_after(cause: BaseException, reset: Callable[[], object]) -> None:
    """Connect to the new ranks. If that is refused, the error names the cause.

    An interrupt is none: ranks on hosts that leave the job are refused after it.
    """
    is_orderly = isinstance(cause, HostsUpdatedInterrupt)
    try:
        reset()
    except (ElasticError, CollectiveTimeoutError) as error:
        raise error from None if is_orderly else cause


def _check_recoverable(error: Exception) -> None:
    """Raise an error after which other ranks would not help, or cannot be had."""
    is_horovods = isinstance(error, _LOSSES)
    # poprun's refusal to go on may follow from a loss, which is then its cause.
    if isinstance(error, ElasticError):
        raise error
    if isinstance(error.__cause__, MismatchError | ElasticError):
        raise error
    if not is_horovods and not means_loss(error):
        raise error
    is_silence = isinstance(error.__cause__, CollectiveTimeoutError)
    if (is_loss(error) or is_silence) and (why := elastic.refusal()):
        error.add_note(why)
        raise error
