"""Finds the stand-ins, where no package of their name is installed."""

import logging
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import ModuleType

from popdist import environment as env

STAND_INS = ("poptorch", "horovod", "popart")
# The package in one of them that imports torch, if that itself does not.
WITH_TORCH = ("horovod.torch",)
PACKAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "packages")

logger = logging.getLogger("popdist.sdk")


class StandInFinder:
    """An entry of sys.meta_path that finds the stand-ins after all else.

    It is the first entry, and asks the others itself: the last one would lose to any
    folder of the same name beside a script, which Python takes for a package.
    """

    # The finders that are set up where popdist is not imported yet have this too.
    finds_stand_ins = True

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return where an installed package is, or else the stand-in for it."""
        return find_spec(name, path, target)


def find_spec(
    name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
) -> ModuleSpec | None:
    """Return where an installed package is, or else the stand-in for it."""
    if name in WITH_TORCH and path and os.path.dirname(path[0]) == PACKAGES:
        return _stand_in(name)
    if name not in STAND_INS:
        return None
    folder = None
    for finder in sys.meta_path:
        if getattr(finder, "finds_stand_ins", False):
            continue
        spec = finder.find_spec(name, None, target)
        if spec is not None and spec.loader is not None and spec.origin is not None:
            return spec
        folder = folder or spec
    if os.environ.get(env.SDK) == "no":
        return folder
    return _stand_in(name)


def _stand_in(name: str) -> ModuleSpec | None:
    folder = os.path.join(PACKAGES, *name.split("."))
    file = os.path.join(folder, "__init__.py")
    return spec_from_file_location(
        name,
        file,
        loader=StandInLoader(name, file),
        submodule_search_locations=[folder],
    )


class StandInLoader(SourceFileLoader):
    """Imports a stand-in, and makes it importable for processes that are spawned."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the stand-in.

        Raises:
            ModuleNotFoundError: torch is not installed.
        """
        # multiprocessing hands sys.path to the processes that it spawns.
        if PACKAGES not in sys.path:
            sys.path.append(PACKAGES)
        _report(module.__name__.partition(".")[0])
        try:
            super().exec_module(module)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(
                f"popdist's stand-in for {module.__name__} needs torch, which is not "
                f"installed in {sys.prefix}. Install it from poprun's source folder: "
                "pip install '.[torch]'",
                name="torch",
            ) from None


@cache
def _report(name: str) -> None:
    """Log that a package is a stand-in, once."""
    logger.info(
        "%s is popdist's stand-in: no package of that name is installed in %s.",
        name,
        sys.prefix,
    )
