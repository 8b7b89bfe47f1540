"""Functions that torch.compile calls as they are.

What it cannot take into a graph runs in Python, beside the graphs, and it would compile
each Python function there, too: a process group's methods, which it cannot trace.
"""

from inspect import isfunction
from typing import Any, TypeVar

# What torch._dynamo uses itself, which takes a second to import.
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
