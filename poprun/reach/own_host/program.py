"""Finds the file of a program, and checks it before anything is started."""

import difflib
import os
import re
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress

from poprun.errors import ProgramNotExecutableError, ProgramNotFoundError

# The kernel reads so much of a file's first line.
_FIRST_LINE_BYTES = 256
# Here the kernel lists the further formats that it has been told to run.
_OTHER_FORMATS = "/proc/sys/fs/binfmt_misc"


def find_program(argv: Sequence[str], search_path: str | None, cwd: str) -> str:
    """Return the path of the file that an argv names.

    A name without a slash is looked for on PATH first and in the current directory
    then, so that a program there needs no "./".

    Args:
        search_path: PATH as the instance has it; None if it has none.

    Raises:
        ProgramNotFoundError: There is no such program, or none to interpret it.
        ProgramNotExecutableError: It is there and cannot be run.
    """
    name = argv[0]
    if not name:
        raise ProgramNotFoundError(
            "The program's name is empty. Is there a variable in it that is not set?"
        )
    if "\0" in name:
        raise ProgramNotFoundError(
            f"There is no program {name!r}: a name cannot contain a NUL byte."
        )
    try:
        path = _locate(name, search_path, cwd)
    except ProgramNotFoundError as error:
        first, *others = name.split() or [name]
        if others:
            with suppress(ProgramNotFoundError, ProgramNotExecutableError):
                _locate(first, search_path, cwd)
                error.add_note(
                    "It is one word with a space in it. Write it without quotes: "
                    f"poprun {name}"
                )
        raise
    _check_file(name, path)
    _check_format(name, path, cwd)
    return path


def _locate(name: str, search_path: str | None, cwd: str) -> str:
    if "/" not in name:
        return _search(name, search_path, cwd)
    path = os.path.join(cwd, name)
    _check_reachable(name, path)
    return path


def _search(name: str, search_path: str | None, cwd: str) -> str:
    directories = _directories(search_path, cwd)
    candidates = [os.path.join(directory, name) for directory in directories]
    if executable := next(filter(shutil.which, candidates), ""):
        return executable
    # An error about this file is more useful than "there is no program".
    for path in candidates:
        if os.path.isfile(path):
            return path
    if os.path.isdir(candidates[-1]):
        return candidates[-1]
    if question := _did_you_mean(name, directories):
        raise ProgramNotFoundError(f"There is no program {name!r}.{question}")
    where = "on PATH"
    if search_path is None:
        where = f"in {os.defpath!r} (PATH is not set)"
    advice = ""
    if name == "help":
        advice = " 'poprun help', without more words, shows where to read more."
    raise ProgramNotFoundError(
        f"There is no program {name!r}, neither {where} nor in the current directory, "
        f"{cwd!r}.{advice}"
    )


def _directories(search_path: str | None, cwd: str) -> list[str]:
    text = os.defpath if search_path is None else search_path
    # An empty entry is the current directory, as in a shell.
    return [*(os.path.join(cwd, entry) for entry in text.split(os.pathsep)), cwd]


def _check_reachable(name: str, path: str) -> None:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _no_such_path(name, path) from error
    except PermissionError as error:
        raise ProgramNotExecutableError(
            f"{name!r} cannot be run: you may not enter all the directories in its "
            "path."
        ) from error
    except OSError as error:
        raise ProgramNotFoundError(
            f"There is no program {name!r}: {error.strerror}."
        ) from error


def _no_such_path(name: str, path: str) -> ProgramNotFoundError:
    if os.path.islink(path):
        return ProgramNotFoundError(
            f"There is no program {name!r}: it is a link to {os.readlink(path)!r}, "
            "which does not exist."
        )
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        return ProgramNotFoundError(
            f"There is no program {name!r}: the directory {directory!r} does not exist."
        )
    # A similar name is worth showing only with the directory that was asked for.
    advice = _did_you_mean(os.path.basename(path), [directory], os.path.dirname(name))
    return ProgramNotFoundError(f"There is no program {name!r}.{advice}")


def _did_you_mean(name: str, directories: Sequence[str], before: str = "") -> str:
    known: set[str] = set()
    for directory in directories:
        with suppress(OSError), os.scandir(directory) as entries:
            known |= {
                entry.name
                for entry in entries
                # "python a.py" is no python2.7.
                if len(entry.name.split()) == len(name.split())
                and (os.access(entry.path, os.X_OK) or entry.name.endswith(".py"))
                and not os.path.isdir(entry.path)
            }
    for similar in difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75):
        return f" Did you mean {os.path.join(before, similar)!r}?"
    return ""


def _check_file(name: str, path: str) -> None:
    if os.path.isdir(path):
        raise ProgramNotExecutableError(
            f"{name!r} is a directory, not a program. Name a file in it."
        )
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ProgramNotExecutableError(
            f"{name!r} is not a regular file and cannot be run."
        )
    if os.access(path, os.X_OK):
        return
    word = _shown_name(name)
    way_out = f"make it executable with: chmod +x {word}"
    if name.endswith(".py"):
        way_out = f"run it with: python {word}"
    raise ProgramNotExecutableError(f"{word} is not executable; {way_out}")


def _shown_name(name: str) -> str:
    """Show a name as it would be typed, or escaped if it is an odd one."""
    return name if re.fullmatch(r"[A-Za-z0-9_./+-]+", name) else repr(name)


def _check_format(name: str, path: str, cwd: str) -> None:
    """Refuse a file that the kernel would not run: its own error is only a number."""
    try:
        line = _first_line(path)
    except OSError:
        # A program that may be run and not read.
        return
    if line.startswith(b"#!"):
        _check_interpreter(name, _interpreter(line), cwd)
    elif not line.startswith(b"\x7fELF") and not _other_formats():
        content = "is empty" if not line else "is neither a binary nor a script"
        first_lines, interpreter = "'#!/bin/sh' or '#!/usr/bin/env python3'", "sh"
        if name.endswith(".py"):
            first_lines, interpreter = "'#!/usr/bin/env python3'", "python"
        raise ProgramNotExecutableError(
            f"{name!r} {content}: its first line does not name an interpreter. "
            f"Make {first_lines} its first line, or run it with: {interpreter} "
            f"{_shown_name(name)}"
        )


def _check_interpreter(name: str, interpreter: bytes, cwd: str) -> None:
    text = os.fsdecode(interpreter)
    if not interpreter:
        raise ProgramNotExecutableError(
            f"{name!r} begins with '#!' but names no interpreter. Make "
            "'#!/bin/sh' or '#!/usr/bin/env python3' its first line."
        )
    path = os.path.join(os.fsencode(cwd), interpreter)
    if not os.path.exists(path):
        advice = "Correct its first line, or name the interpreter before the program."
        if interpreter.endswith(b"\r"):
            advice = "Its lines end as on Windows: convert them with: dos2unix"
        raise ProgramNotFoundError(
            f"The first line of {name!r} names the interpreter {text!r}, which "
            f"does not exist. {advice}"
        )
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        raise ProgramNotExecutableError(
            f"The first line of {name!r} names the interpreter {text!r}, which is not "
            "executable. Correct its first line, or name the interpreter before the "
            "program."
        )


def _first_line(path: str) -> bytes:
    # A terminal or a pipe of that name would make this wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as file:
        return file.read(_FIRST_LINE_BYTES) or b""


def _interpreter(line: bytes) -> bytes:
    # A carriage return is part of the name, to the kernel too.
    words = line[2:].partition(b"\n")[0].strip(b" \t").replace(b"\t", b" ")
    return words.partition(b" ")[0]


def _other_formats() -> bool:
    try:
        entries = os.listdir(_OTHER_FORMATS)
    except OSError:
        return False
    return not {"register", "status"}.issuperset(entries)
