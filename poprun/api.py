"""poprun from Python: a command as a call, and functions that run on instances.

Both run poprun as a process of its own, because it takes over signals and adopts
processes, which a program that goes on may not have done to it.
"""

import codecs
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from operator import index
from typing import IO, Any, TextIO

from poprun.errors import OptionError, PoprunError
from poprun.options import grammar
from poprun.record import Record

__all__ = [
    "InstanceResult",
    "JobFailedError",
    "JobResult",
    "launch",
    "run_command",
]

# What poprun's process runs: it ends its job when this process is killed.
_START = """\
import sys
from poprun.helpers import own_process
from poprun.__main__ import main
if own_process.die_with_parent(15, int(sys.argv.pop(1))):
    main()
"""


class InstanceResult(Record):
    """How an instance has ended: a line of `--summary`."""

    instance: int
    host: str
    # "succeeded", "failed", "stopped", "lost" or "not_started".
    state: str
    exit_code: int | None
    signal: str | None
    wall_s: float | None
    user_s: float | None
    system_s: float | None
    peak_memory_kib: int | None


class JobResult(Record):
    """How a job has ended: docs/results.md describes the fields."""

    exit_code: int
    # "succeeded", "instance_failed", "timed_out" and so on.
    outcome: str
    # The sentence that poprun prints last; None for a success.
    cause: str | None
    failed_instance: int | None
    hints: tuple[str, ...]
    elapsed_s: float
    # Those of the last attempt.
    instances: tuple[InstanceResult, ...]
    # The whole result, as `--result` writes it.
    fields: Mapping[str, Any]


class JobFailedError(PoprunError):
    """A job that was run by a call from Python has failed."""

    def __init__(self, text: str, result: JobResult) -> None:
        super().__init__(text)
        self.result = result
        self.exit_code = result.exit_code


def run_command(
    words: Sequence[str],
    *,
    check: bool = False,
    environ: Mapping[str, str] | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> JobResult:
    """Run `poprun WORDS...`, and return how its job has ended.

    Its output goes to sys.stdout and sys.stderr, also where those are not files, as in
    a notebook. An interrupt stops the job as Ctrl-C does, and is raised when the job
    has ended.

    Args:
        check: Raise an error if the job does not succeed.
        environ: The environment of poprun; by default that of this process.
        directory: The current directory of the job.

    Raises:
        TypeError: The words are one string.
        OptionError: The words are no command line of poprun.
        JobFailedError: The job has failed, and `check` is true.
    """
    _check_words("The argument of run_command", words)
    line = grammar.parse(words)
    if any(option.name == "result" for option, _ in line.options):
        raise OptionError(
            "--result is how run_command learns of the job's end. Leave it out: what "
            "it would write is in `fields` of the result."
        )
    with SharedMemory() as file:
        command = [sys.executable, "-P", "-c", _START, str(os.getpid())]
        code = _run([*command, f"--result={file.path}", *words], environ, directory)
        # It is empty if poprun was killed, or has only printed a page.
        result = _read_result(file.read(), code)
    if check and result.exit_code:
        raise JobFailedError(result.cause or f"poprun exited with {code}.", result)
    return result


def launch(
    function: Callable[..., Any],
    *arguments: Any,
    num_instances: int = 1,
    num_replicas: int | None = None,
    options: Sequence[str] = (),
) -> list[Any]:
    """Call a function on every instance of a job, and return the results in order.

    The function may be defined in a notebook or on a command line. It and its
    arguments are copied to the instances, and the results back, with cloudpickle.

    Args:
        num_replicas: As many as instances by default.
        options: More options of poprun, as `["--timeout=60"]`.

    Raises:
        TypeError: The function cannot be called, or the options are one string.
        OptionError: A number or an option is not valid.
        JobFailedError: An instance has failed; if by an exception, it is the cause of
            this one.
    """
    if num_replicas is None:
        num_replicas = num_instances
    _check_launch(function, num_instances, num_replicas, options)
    try:
        import cloudpickle
    except ImportError as error:
        raise ImportError(
            "poprun.launch copies functions with cloudpickle, which is not installed. "
            "Install it from poprun's source folder: pip install '.[launch]'"
        ) from error
    call = cloudpickle.dumps((function, arguments))
    words = [
        f"--num-instances={num_instances}",
        f"--num-replicas={num_replicas}",
        *options,
        *(sys.executable, "-P", "-m", "poprun.interpreter.function_call"),
    ]
    with ExitStack() as stack:
        given, *results = [
            stack.enter_context(SharedMemory()) for _ in range(1 + num_instances)
        ]
        # The instances import what this process can import.
        given.write(cloudpickle.dumps((given.path, sys.path, call)))
        ended = run_command([*words, given.path, *(one.path for one in results)])
        data = [one.read() for one in results]
    return _values_of(data, ended)


def _check_words(name: str, words: Sequence[str]) -> None:
    # A string is a sequence of strings, too: its characters.
    if isinstance(words, str | bytes):
        raise TypeError(
            f"{name} is a list with a string for each word, but got {words!r}. "
            "shlex.split() makes such a list of a command line."
        )


def _check_launch(
    function: object, num_instances: int, num_replicas: int, options: Sequence[str]
) -> None:
    """Refuse what poprun.launch cannot start a job with."""
    if not callable(function):
        raise TypeError(
            f"poprun.launch calls a function on every instance, but got {function!r}, "
            "which cannot be called."
        )
    numbers = {"num_instances": num_instances, "num_replicas": num_replicas}
    for name, number in numbers.items():
        if index(number) < 1:
            raise OptionError(f"{name} is {number}, but must be 1 or more.")
    _check_words("The argument options of launch", options)
    for option, text in grammar.parse(options).options:
        if option.name in ("num-instances", "num-processes"):
            raise OptionError(
                f"--{option.name}={text}: poprun.launch makes room for the result of "
                f"each instance before they start. Pass num_instances={text} instead."
            )
        if option.name in ("host", "hostfile"):
            raise OptionError(
                f"--{option.name}={text}: poprun.launch calls functions on this host "
                "only. run_command runs a program on several."
            )


def _values_of(results: Sequence[bytes], ended: JobResult) -> list[Any]:
    """Return what the instances have returned, if all of them have succeeded."""
    import cloudpickle

    if ended.exit_code:
        failed = ended.failed_instance
        cause = None if failed is None else _exception_in(results[failed])
        raise JobFailedError(ended.cause or "poprun has failed.", ended) from cause
    loaded = [cloudpickle.loads(data) if data else ("ended", None) for data in results]
    for instance, (state, _) in enumerate(loaded):
        if state != "returned":
            raise JobFailedError(
                f"Instance {instance} has returned nothing: the function has ended "
                "its process.",
                ended,
            )
    return [value for _, value in loaded]


def _exception_in(data: bytes) -> BaseException | None:
    """Return what an instance has raised, if it has written that."""
    import cloudpickle

    try:
        state, value = cloudpickle.loads(data)
    except Exception:  # it was killed before it had written all
        return None
    return value if state == "raised" else None


class SharedMemory:
    """A file in memory, which other processes of this user can open on this host.

    Nothing of it stays, however the processes end.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("poprun")
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"

    def __enter__(self) -> "SharedMemory":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def write(self, data: bytes) -> None:
        with open(self.path, "wb") as file:
            file.write(data)

    def read(self) -> bytes:
        with open(self.path, "rb") as file:
            return file.read()


def _read_result(text: bytes, code: int) -> JobResult:
    fields = json.loads(text) if text else {}
    attempts = fields.get("attempts", [])
    instances = attempts[-1]["instances"] if attempts else []
    return JobResult(
        exit_code=code,
        outcome=fields.get("outcome", "not_started" if code else "succeeded"),
        cause=fields.get("cause"),
        failed_instance=fields.get("failed_instance"),
        hints=tuple(fields.get("hints", ())),
        elapsed_s=fields.get("elapsed_s", 0.0),
        instances=tuple(InstanceResult(**each) for each in instances),
        fields=fields,
    )


def _run(
    words: Sequence[str],
    environ: Mapping[str, str] | None,
    directory: str | os.PathLike[str] | None,
) -> int:
    """Run a process with this one's streams, and return its exit code."""
    copies = {
        name: stream
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr))
        if stream not in (sys.__stdout__, sys.__stderr__)
    }
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    process = subprocess.Popen(
        words,
        env=environ,
        cwd=directory,
        stdout=subprocess.PIPE if "stdout" in copies else None,
        stderr=subprocess.PIPE if "stderr" in copies else None,
        # A notebook interrupts its process group or its process: this way it is one.
        # In a terminal poprun stays where Ctrl-C and Ctrl-Z reach it.
        process_group=0 if copies else None,
    )
    pipes = {"stdout": process.stdout, "stderr": process.stderr}
    threads = [
        threading.Thread(target=_copy, args=(pipes[name], stream), daemon=True)
        for name, stream in copies.items()
    ]
    for thread in threads:
        thread.start()
    try:
        return _wait(process, has_own_group=bool(copies))
    finally:
        for thread in threads:
            thread.join()


def _wait(process: "subprocess.Popen[bytes]", *, has_own_group: bool) -> int:
    try:
        return process.wait()
    except BaseException as error:
        # Ctrl-C in a terminal has interrupted poprun, too.
        if has_own_group or not isinstance(error, KeyboardInterrupt):
            process.send_signal(signal.SIGINT)
        while process.poll() is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                # Once more: poprun kills the instances.
                if has_own_group:
                    process.send_signal(signal.SIGINT)
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
