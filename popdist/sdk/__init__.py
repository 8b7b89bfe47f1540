"""The stand-ins for packages of Graphcore's SDK that cannot be installed here."""

import sys

from popdist.sdk.finder import StandInFinder

__all__ = ["install"]


def install() -> None:
    """Make poptorch, horovod and popart importable in this process.

    What is installed wins: only where there is no package of that name, the stand-in
    is imported. With POPDIST_SDK=no in the environment, it never is.
    """
    if not any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, StandInFinder())
