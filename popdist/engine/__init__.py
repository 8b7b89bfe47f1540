"""Collectives between the processes of one host, in memory that they share."""

from popdist.engine import _core

# As in core/python/module.c: both go up when Python's side needs another core.
CORE_VERSION = 1

if getattr(_core, "VERSION", 0) != CORE_VERSION:
    raise ImportError(
        f"The compiled core of popdist, {_core.__file__}, is of another version than "
        "its Python files. Compile it again, in poprun's source folder: "
        "pip install -e ."
    )
