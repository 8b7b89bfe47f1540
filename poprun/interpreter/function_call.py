"""Calls the function of poprun.launch on one instance: its program.

python -m poprun.interpreter.function_call CALL RESULT...

CALL is a file in memory of poprun's caller with the function and its arguments. Each
instance has a RESULT, a file for the value or the exception.
"""

import os
import sys

import cloudpickle

import popdist


def main() -> None:
    """Call the function, and write what it returns or raises."""
    call, *results = sys.argv[1:]
    function, arguments = cloudpickle.loads(_read_call(call))
    result = results[popdist.getInstanceIndex()]
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
            name, folders, call = cloudpickle.loads(file.read())
    except Exception as error:
        name, reason = "", f": {error}"
    else:
        reason = ""
    # On another host the path may be another file's.
    if name != path:
        sys.exit(
            f"The function of poprun.launch cannot be read on {os.uname().nodename}"
            f"{reason}. poprun.launch calls functions on its own host only; "
            "poprun.run_command runs a program on several."
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
