"""The stand-ins for packages of Graphcore's SDK that cannot be installed here."""

import sys

from popdist.sdk.finder import StandInFinder

__all__ = ["install"]


def install() -> None:
    """Make the stand-ins importable in this process: poptorch, horovod and others.

    What is installed wins: only where there is no package of that name, the stand-in
    is imported. With POPDIST_SDK=no in the environment, it never is.
    """
    if not any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, StandInFinder())
