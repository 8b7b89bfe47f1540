"""The stand-ins for packages of Graphcore's SDK that cannot be installed here."""

import sys
from typing import TYPE_CHECKING, Any

from popdist.sdk.finder import StandInFinder

if TYPE_CHECKING:
    from popdist.sdk.custom_ops import register_custom_op

__all__ = ["install", "register_custom_op"]


def install() -> None:
    """Make the stand-ins importable in this process: poptorch, horovod and others.

    What is installed wins: only where there is no package of that name, the stand-in
    is imported. With POPDIST_SDK=no in the environment, it never is.
    """
    if not any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, StandInFinder())


# Any: whatever the module has by that name.
def __getattr__(name: str) -> Any:
    # Its imports take 60 ms, and each program that imports a stand-in imports this.
    if name == "register_custom_op":
        from popdist.sdk.custom_ops import register_custom_op

        return register_custom_op
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
