"""Functions that torch.compile must call without compiling them.

Code that it cannot take into a graph runs in Python, between the graphs. It would
compile the Python functions there, too, but it cannot trace a process group's methods.
"""

from inspect import isfunction
from typing import Any, TypeVar

# The C module behind torch._dynamo, because torch._dynamo takes a second to import.
from torch._C._dynamo import eval_frame

# Any, because torch declares no types for these.
_dynamo: Any = eval_frame
# For a function, and for all that it calls.
_SKIP = _dynamo._FrameExecStrategy(_dynamo._FrameAction.SKIP, _dynamo._FrameAction.SKIP)

T = TypeVar("T")


def untraced(target: T) -> T:
    """Keep torch.compile from compiling a function, or the methods of a class.

    This decorator returns what it was given: a call costs nothing more.
    """
    for function in vars(target).values() if isinstance(target, type) else [target]:
        if isfunction(function):
            _dynamo.set_code_exec_strategy(function.__code__, _SKIP)
    return target
