"""Calls of all members, made of the functions that prepare them."""

from collections.abc import Callable
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from typing import Any

from popdist.engine.calls.array_rows import NUMPY, Array
from popdist.engine.calls.array_transport import ArrayTransport
from popdist.engine.handle import AsyncOp
from popdist.engine.spec.operations import number_of

# Carries a call out, and returns the call's result. Any, because the operations have
# results of different types.
Action = Callable[[ArrayTransport[Array]], Any]

_NAME = "str | None"
_OPTIONS = [
    Parameter("async_op", Parameter.KEYWORD_ONLY, default=False, annotation=AsyncOp),
    Parameter("name", Parameter.KEYWORD_ONLY, default=None, annotation=_NAME),
]


def collective(
    *, shortcut: Callable[..., Any] | None = None, named: bool = True
) -> Callable[[Callable[..., Action]], Callable[..., Any]]:
    """Make a group's call of a function that prepares it.

    The function takes the group and the call's arguments, checks these, and returns the
    call's action. The call also takes `async_op` and `name`.

    Args:
        shortcut: Takes the same arguments, and makes the call at once if it has neither
            of these options. It returns the result, or NotImplemented if it has done
            nothing.
        named: The call takes `name`.
    """

    def decorate(prepare: Callable[..., Action]) -> Callable[..., Any]:
        operation = prepare.__name__.removeprefix("_")

        @wraps(prepare)
        def call(
            group: Any,
            /,
            *args: Any,
            async_op: AsyncOp = False,
            name: str | None = None,
            **keywords: Any,
        ) -> Any:
            if name is not None and not named:
                raise TypeError(f"{operation}() has no name.")
            try:
                if shortcut is not None and not (async_op or name):
                    result = shortcut(group, *args, **keywords)
                    if result is not NotImplemented:
                        return result
                action = prepare(group, *args, **keywords)
            except MemoryError as error:
                # The other members wait for the first step of the call.
                group.give_up(operation, error)
                raise
            number = 0 if name is None else number_of(name)
            carrier = ArrayTransport(group.transport, NUMPY, number)
            return group.submit(operation, partial(action, carrier), async_op)

        # Any, because types of functions lack it.
        documented: Any = call
        documented.__signature__ = _with_options(signature(prepare), named)
        return call

    return decorate


def _with_options(prepared: Signature, named: bool) -> Signature:
    options = _OPTIONS if named else _OPTIONS[:1]
    return prepared.replace(parameters=[*prepared.parameters.values(), *options])
