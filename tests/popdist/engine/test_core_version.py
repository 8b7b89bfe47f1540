"""A compiled core that is older or newer than the Python files is refused."""

import subprocess
import sys

import pytest

from popdist import engine
from popdist.engine import _core
from popdist.engine.call_table import EngineCall

# The version of the core, the fields of a call in their order, and all methods.
VERSION = 13
CALL_FIELDS = "operation arrays dtype reduction algorithm root name prelude_to lengths"
METHODS = {
    "Comm": "blocks close connect_hosts deferred_seconds doing end ending explain_by "
    "in_call larger_call last make_deferred missing note_death queue recent record_to "
    "ring_share run runs set_heap set_timeout set_trace waits watch",
    "Failure": "",
    "Mapping": "",
    "Recorder": "close",
    "Reducer": "_bind _gather_array _reduce_at _reduce_lists _scatter_array all_reduce",
    "Split": "",
    "TcpLinks": "add check_answers disown failed is_ready note_failed post posted "
    "say_goodbye shut table take",
    "TensorCall": "is_number is_over wait",
    "TensorCalls": "all_gather all_reduce broadcast made reduce_scatter",
}


@pytest.mark.parametrize("version", ["", "_core.VERSION = 0"])
def test_another_core_is_refused_with_the_way_out(version: str) -> None:
    program = f"""
import sys, types
_core = types.ModuleType("popdist.engine._core")
_core.__file__ = "/x/_core.abi3.so"
{version}
import popdist
sys.modules["popdist.engine._core"] = _core
try:
    import popdist.engine.group
except ImportError as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        timeout=200,
        stdout=subprocess.PIPE,
        text=True,
    )

    assert ran.stdout == (
        "The compiled core of popdist, /x/_core.abi3.so, is of another version than "
        "its Python files. Compile it again, in poprun's source folder: "
        "pip install -e .\n"
    )


def methods_of(kind: type) -> str:
    return " ".join(sorted(name for name in vars(kind) if not name.startswith("__")))


def test_the_version_goes_up_with_the_interface() -> None:
    # If this fails, and code that is written for the new interface needs the new core:
    # raise the version in popdist/engine/__init__.py and in core/python/module.c.
    # Write both here.
    assert engine.CORE_VERSION == VERSION
    assert " ".join(EngineCall._fields) == CALL_FIELDS
    kinds = [kind for kind in vars(_core).values() if isinstance(kind, type)]
    assert {kind.__name__: methods_of(kind) for kind in kinds} == METHODS
