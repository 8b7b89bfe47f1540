"""Reads --stdin and --pdb, which choose the standard input of the instances."""

import os
import stat

from poprun.errors import OptionError
from poprun.options.settings import Settings
from poprun.output.output_files import OutputFolder
from poprun.output.stdin import Stdin
from poprun.plan.topology import check_rank


def choose_stdin(
    settings: Settings, num_instances: int, folder: OutputFolder | None
) -> Stdin:
    """Return the standard input of the instances.

    Args:
        folder: The directory for their output, if it is written to files.

    Raises:
        OptionError: --pdb cannot have the input that its debugger needs, or its output;
            or only the first attempt could read the input.
    """
    stdin = _read_options(settings, num_instances)
    _check_restarts(stdin, settings["max-restarts"])
    if stdin.debugs and folder is not None and folder.only_files:
        raise OptionError(
            f"{folder.option} with :nocopy shows nothing on the terminal, but --pdb "
            f"needs it for the debugger of instance {stdin.rank}. Leave :nocopy out."
        )
    return stdin


def _read_options(settings: Settings, num_instances: int) -> Stdin:
    rank, text = settings["pdb"], settings["stdin"]
    if rank is None:
        return _read_stdin(text, num_instances)
    check_rank(rank, num_instances, f"--pdb is {rank}")
    if settings.is_given("stdin") and text != str(rank):
        raise OptionError(
            f"--stdin is {text}, but --pdb {rank} gives the standard input to the "
            f"debugger of instance {rank}. Leave --stdin out."
        )
    selection = settings["only-output-from-instance"]
    if selection is not None and rank not in selection:
        raise OptionError(
            f"--only-output-from-instance hides instance {rank}, whose debugger "
            f"--pdb shows. Add {rank} to the instances that it names."
        )
    return Stdin(rank=rank, debugs=True)


def _read_stdin(text: str, num_instances: int) -> Stdin:
    if text == "none":
        return Stdin()
    if text == "all":
        return Stdin(copies=num_instances)
    if text.isascii() and text.isdigit():
        hint = f" A file of that name is ./{text}."
        check_rank(int(text), num_instances, f"--stdin is {text}", hint)
        return Stdin(rank=int(text))
    return Stdin(path=_readable_path(text))


def _check_restarts(stdin: Stdin, max_restarts: int) -> None:
    """Check that each attempt of a job can read its standard input."""
    if max_restarts and stdin.debugs:
        raise OptionError(
            f"--max-restarts {max_restarts} and --pdb exclude each other: what the "
            "debugger has read in one attempt is not available in the next. Leave one "
            "of them out."
        )
    if max_restarts and stdin.is_own:
        raise OptionError(
            f"--max-restarts {max_restarts} and --stdin exclude each other where "
            "instances read poprun's own standard input: what one attempt has read is "
            "not available in the next. Name a file, which each attempt reads from its "
            "beginning: --stdin FILE"
        )


def _readable_path(name: str) -> str:
    """Return the path of a file that every instance can read from its beginning."""
    path = os.path.realpath(name)  # /dev/stdin is another file to an instance
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISFIFO(mode):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            f"--stdin is {name!r}, which cannot be read: {reason}. It must be "
            "none, all, the number of an instance or a file."
        ) from None
    if stat.S_ISDIR(mode):
        raise OptionError(f"--stdin is {name!r}, a directory. Name a file in it.")
    if stat.S_ISFIFO(mode):
        raise OptionError(
            f"--stdin is {name!r}, a named pipe, which can have only one reader. Let "
            f"poprun read it, for one instance or for all: --stdin all < {name}"
        )
    return path
