"""`poprun.run_command`: the command as another process, and its streams.

poprun takes over signals and adopts processes. That would harm a calling program that
goes on.
"""

import codecs
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import IO, TextIO

from poprun.errors import OptionError
from poprun.helpers.own_process import CALLER_INTERRUPT
from poprun.options import grammar
from poprun.python_calls.results import JobFailedError, JobResult, read_result

# The program of poprun's process, which ends its job when this process is killed.
_START = """\
import sys
from poprun.helpers import own_process
from poprun.__main__ import main
parent, exit_code_file = int(sys.argv.pop(1)), sys.argv.pop(1)
if own_process.die_with_parent(15, parent):
    main(exit_code_file)
"""


def run_command(
    words: Sequence[str | os.PathLike[str]],
    *,
    check: bool = False,
    capture_output: bool = False,
    environ: Mapping[str, str] | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> JobResult:
    """Run `poprun WORDS...`, and return how its job ended.

    The output goes to sys.stdout and sys.stderr, even if these are not files, as in a
    notebook. An interrupt stops the job as Ctrl-C does; KeyboardInterrupt is raised
    when the job has ended.

    Args:
        check: Raise an error if the job does not succeed.
        capture_output: Return the output in the result instead of writing it.
        environ: poprun's environment; by default this process's.
        directory: The current directory of the job.

    Raises:
        TypeError: The words are one string, or one of them is not a string or path.
        OptionError: The words are not a valid command line.
        JobFailedError: The job failed, and `check` is true.
    """
    words = check_words("The argument of run_command", words)
    line = grammar.parse(words)
    if any(option.name == "result" for option, _ in line.options):
        raise OptionError(
            "--result is how run_command learns of the job's end. Leave it out: what "
            "it would write is in `fields` of the result."
        )
    output, errors = io.StringIO(), io.StringIO()
    copies = {"stdout": output, "stderr": errors} if capture_output else None
    with shared_memory() as file, shared_memory() as exit_code:
        argv = [
            *(sys.executable, "-P", "-c", _START, str(os.getpid())),
            *(path_of(exit_code), f"--result={path_of(file)}", *words),
        ]
        status = _run(argv, environ, directory, copies or _replaced_streams())
        result = read_result(file.read(), exit_code.read(), status)
    result = replace(result, stdout=output.getvalue(), stderr=errors.getvalue())
    if check and result.exit_code:
        raise JobFailedError(
            result.cause or f"poprun exited with {result.exit_code}.", result
        )
    return result


def check_words(name: str, words: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the words of a list as strings.

    Raises:
        TypeError: It is one string, or one of them is no string or path.
    """
    # A string is a sequence of strings, too: its characters.
    if isinstance(words, str | bytes):
        raise TypeError(
            f"{name} is a list with a string for each word, but got {words!r}. "
            "shlex.split() makes such a list of a command line."
        )
    texts = []
    for word in words:
        text = os.fspath(word) if isinstance(word, os.PathLike) else word
        if not isinstance(text, str):
            raise TypeError(
                f"{name} is a list with a string for each word, but has {word!r} in "
                "it. Write it as a string, or leave it out."
            )
        texts.append(text)
    return texts


def shared_memory() -> IO[bytes]:
    """Return a file in memory: nothing of it stays, however the processes end."""
    return open(os.memfd_create("poprun"), "w+b")


def path_of(file: IO[bytes]) -> str:
    """Return where other processes of this user can open a file on this host."""
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _replaced_streams() -> dict[str, TextIO | None]:
    """Return the standard streams that the program has replaced, by name."""
    own = (sys.__stdout__, sys.__stderr__)
    streams = {"stdout": sys.stdout, "stderr": sys.stderr}
    return {name: stream for name, stream in streams.items() if stream not in own}


def _run(
    argv: Sequence[str],
    environ: Mapping[str, str] | None,
    directory: str | os.PathLike[str] | None,
    copies: Mapping[str, TextIO | None],
) -> int:
    """Run a process, and return its exit status, 0 if that cannot be known.

    The kernel keeps none for a process that ignores SIGCHLD.

    Args:
        copies: The destinations of streams that are copied, by the stream's name.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    process = _start(argv, environ, directory, copies)
    pipes = {"stdout": process.stdout, "stderr": process.stderr}
    threads = [
        threading.Thread(target=_copy, args=(pipes[name], stream), daemon=True)
        for name, stream in copies.items()
    ]
    for thread in threads:
        thread.start()
    try:
        return _wait(process)
    finally:
        for thread in threads:
            thread.join()


def _start(
    argv: Sequence[str],
    environ: Mapping[str, str] | None,
    directory: str | os.PathLike[str] | None,
    copies: Collection[str],
) -> "subprocess.Popen[bytes]":
    # The signal stays pending until poprun handles it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (CALLER_INTERRUPT,))
    try:
        return subprocess.Popen(
            argv,
            env=environ,
            cwd=directory,
            stdout=subprocess.PIPE if "stdout" in copies else None,
            stderr=subprocess.PIPE if "stderr" in copies else None,
            # In a terminal poprun stays where Ctrl-C and Ctrl-Z reach it.
            process_group=0 if copies else None,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _wait(process: "subprocess.Popen[bytes]") -> int:
    try:
        return process.wait()
    except BaseException:
        process.send_signal(CALLER_INTERRUPT)
        while process.poll() is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                # Once more: poprun kills the instances.
                process.send_signal(CALLER_INTERRUPT)
        raise


def _copy(pipe: IO[bytes] | None, stream: TextIO | None) -> None:
    """Copy what comes out of a pipe to a stream of text, as it comes."""
    if pipe is None:
        return
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with pipe:
        while data := os.read(pipe.fileno(), 65536):
            _write(stream, decoder.decode(data))
        _write(stream, decoder.decode(b"", final=True))


def _write(stream: TextIO | None, text: str) -> None:
    if stream is not None:
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):
            # It is closed. poprun goes on without it, and its pipe is read on.
            return
