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

# The stand-ins, and the framework that each of them imports. A name with dots is that
# of a package in another stand-in, or of a submodule of one that is installed, as the
# framework itself: its folder is in SUBMODULES.
STAND_INS: dict[str, str | None] = {
    "poptorch": "torch",
    "horovod": None,
    "horovod.torch": "torch",
    "horovod.tensorflow": "tensorflow",
    "horovod.keras": "tensorflow",
    "horovod.popart": None,
    "popart": None,
    "popxl": None,
    "libpvti": None,
    "tensorflow.python.ipu": "tensorflow",
    "tensorflow.compiler.plugin": "tensorflow",
}
_FOLDER = os.path.dirname(os.path.abspath(__file__))
PACKAGES = os.path.join(_FOLDER, "packages")
# Not on sys.path, as PACKAGES is: a folder named like the framework would be taken for
# it where it is not installed.
SUBMODULES = os.path.join(_FOLDER, "submodules")

logger = logging.getLogger("popdist.sdk")


def find_spec(
    name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
) -> ModuleSpec | None:
    """Return where an installed package is, or else the stand-in for it."""
    if name not in STAND_INS:
        return None
    parent, _, last = name.rpartition(".")
    if path and path[0].startswith(PACKAGES):
        return _stand_in(name, os.path.join(path[0], last))
    # An installed package is not mixed with parts of the stand-in for it.
    if parent in STAND_INS:
        return None
    folder = None
    for finder in sys.meta_path:
        if getattr(finder, "finds_stand_ins", False):
            continue
        spec = finder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None and spec.origin is not None:
            return spec
        folder = folder or spec
    if os.environ.get(env.SDK) == "no":
        return folder
    return _stand_in(
        name, os.path.join(SUBMODULES if parent else PACKAGES, *name.split("."))
    )


class StandInFinder:
    """An entry of sys.meta_path that finds the stand-ins after all else.

    It is the first entry, and asks the others itself: the last one would lose to any
    folder of the same name beside a script, which Python takes for a package.
    """

    # The finders that are set up where popdist is not imported yet have this too.
    finds_stand_ins = True
    find_spec = staticmethod(find_spec)


def _stand_in(name: str, folder: str) -> ModuleSpec | None:
    file = os.path.join(folder, "__init__.py")
    return spec_from_file_location(
        name,
        file,
        loader=StandInLoader(name, file),
        submodule_search_locations=[folder],
    )


def is_stand_in(origin: str) -> bool:
    """Return whether a file is one of the stand-ins."""
    return origin.startswith((PACKAGES, SUBMODULES))


def need_of(name: str) -> str:
    """Return the sentence on a stand-in whose framework is not installed."""
    framework = STAND_INS[name]
    return (
        f"popdist's stand-in for {name} needs {framework}, which is not installed in "
        f"{sys.prefix}. Install it from poprun's source folder: pip install "
        f"'.[{framework}]'"
    )


class StandInLoader(SourceFileLoader):
    """Imports a stand-in, and makes it importable for processes that are spawned."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the stand-in.

        Raises:
            ModuleNotFoundError: Its framework is not installed.
        """
        name = module.__name__
        # multiprocessing hands sys.path to the processes that it spawns: those without
        # dots in their names are found there.
        if PACKAGES not in sys.path:
            sys.path.append(PACKAGES)
        if name.rpartition(".")[0] not in STAND_INS:
            _report(name)
        try:
            super().exec_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or error.name != STAND_INS[name]:
                raise
            raise ModuleNotFoundError(need_of(name), name=error.name) from None


@cache
def _report(name: str) -> None:
    """Log that a package is a stand-in, once."""
    logger.info(
        "%s is popdist's stand-in: no package of that name is installed in %s.",
        name,
        sys.prefix,
    )
