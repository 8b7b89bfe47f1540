"""Calls the function of poprun.launch on one instance: its program.

python -m poprun.interpreter.function_call MACHINE CALL RESULT...

CALL is a file in memory of poprun's caller with the function and its arguments. Each
instance has a RESULT, a file for the value or the exception. On other machines than
the caller's, both are files in the directory of the job.
"""

import os
import sys

import cloudpickle

import popdist
from popdist import environment as env
from poprun.wire.call_files import CALL, result_name
from poprun.wire.machine import machine_id


def main() -> None:
    """Call the function, and write what it returns or raises."""
    machine, call, *results = sys.argv[1:]
    rank = popdist.getInstanceIndex()
    result = results[rank]
    if machine_id() != machine:
        directory = os.path.dirname(os.environ[env.ENDED_INSTANCES])
        call = os.path.join(directory, CALL)
        result = os.path.join(directory, result_name(rank))
    function, arguments = cloudpickle.loads(_read_call(call))
    try:
        data = cloudpickle.dumps(("returned", function(*arguments)))
    except Exception as error:
        _write(result, _copy_of(error))
        raise
    _write(result, data)


def _read_call(path: str) -> bytes:
    """Return the function and its arguments, and import what its caller imports."""
    try:
        with open(path, "rb") as file:
            folders, call = cloudpickle.loads(file.read())
    except Exception as error:
        sys.exit(
            f"The function of poprun.launch cannot be read on {os.uname().nodename}: "
            f"{error}."
        )
    sys.path[:] = folders
    return bytes(call)


def _copy_of(error: Exception) -> bytes:
    """Return an exception as bytes; empty if it cannot be copied."""
    try:
        data = cloudpickle.dumps(("raised", error))
        cloudpickle.loads(data)
    except Exception:  # the traceback on stderr has it
        return b""
    return bytes(data)


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


if __name__ == "__main__":
    main()
