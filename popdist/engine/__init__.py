"""Collectives between the processes of one host, in memory that they share."""

from types import ModuleType

from popdist.engine import _core

# Equal to VERSION in core/python/module.c. Both go up when the Python files need a new
# core.
CORE_VERSION = 13


def check_compiled(module: ModuleType, version: int) -> None:
    """Raise ImportError unless a compiled module has the version of its callers."""
    if getattr(module, "VERSION", 0) != version:
        raise ImportError(
            f"The compiled core of popdist, {module.__file__}, is of another version "
            "than its Python files. Compile it again, in poprun's source folder: "
            "pip install -e ."
        )


check_compiled(_core, CORE_VERSION)
