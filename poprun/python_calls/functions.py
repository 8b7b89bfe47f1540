"""`poprun.launch`: a function of this program runs on the instances of a job."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from operator import index
from typing import Any

from poprun.errors import OptionError
from poprun.options import grammar
from poprun.python_calls.command import check_words, path_of, run_command, shared_memory
from poprun.python_calls.results import JobFailedError, JobResult
from poprun.wire.call_files import VARIABLE
from poprun.wire.machine import machine_id


def launch(
    function: Callable[..., Any],
    *arguments: Any,
    num_instances: int = 1,
    num_replicas: int | None = None,
    options: Sequence[str | os.PathLike[str]] = (),
) -> list[Any]:
    """Call a function on every instance of a job, and return the results in order.

    The function may be defined in a notebook or on a command line. Cloudpickle copies
    it and its arguments to the instances, and the results back.

    Args:
        num_replicas: The number of replicas; by default one for each instance.
        options: More options of poprun, such as `["--timeout=60"]`.

    Raises:
        TypeError: The function cannot be called, or the options are not strings.
        OptionError: A number or an option is not valid, or the options would start no
            instance.
        JobFailedError: An instance has failed. If an exception ended it, that is the
            `__cause__`.
    """
    if num_replicas is None:
        num_replicas = num_instances
    words = _check_launch(function, num_instances, num_replicas, options)
    try:
        import cloudpickle  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(
            "poprun.launch copies functions with cloudpickle, which is not installed. "
            "Install it from poprun's source folder: pip install '.[launch]'"
        ) from error
    call = cloudpickle.dumps((function, arguments))
    words = [
        f"--num-instances={num_instances}",
        f"--num-replicas={num_replicas}",
        *words,
        *(sys.executable, "-P", "-m", "poprun.interpreter.function_call"),
    ]
    # The instances import what this process can import.
    results, ended = _run_job(words, cloudpickle.dumps((sys.path, call)), num_instances)
    return _values_of(results, ended)


def _run_job(
    words: Sequence[str], call: bytes, num_instances: int
) -> tuple[list[bytes], JobResult]:
    """Run a job; return the bytes that each instance has written, and its result.

    Args:
        call: What the instances read, from a file in memory.
    """
    with ExitStack() as stack:
        given, *results = [
            stack.enter_context(shared_memory()) for _ in range(1 + num_instances)
        ]
        given.write(call)
        given.flush()
        paths = list(map(path_of, (given, *results)))
        files = " ".join((str(os.getpid()), *paths))
        ended = run_command(
            [*words, machine_id(), *paths], environ={**os.environ, VARIABLE: files}
        )
        return [one.read() for one in results], ended


def _check_launch(
    function: object,
    num_instances: int,
    num_replicas: int,
    options: Sequence[str | os.PathLike[str]],
) -> list[str]:
    """Return the options; refuse what poprun.launch cannot start a job with."""
    if not callable(function):
        raise TypeError(
            f"poprun.launch calls a function on every instance, but got {function!r}, "
            "which cannot be called."
        )
    numbers = {"num_instances": num_instances, "num_replicas": num_replicas}
    for name, number in numbers.items():
        if not hasattr(number, "__index__"):
            raise TypeError(f"{name} is {number!r}, but must be an int, such as 4.")
        if index(number) < 1:
            raise OptionError(f"{name} is {number}, but must be 1 or more.")
    words = check_words("The argument options of launch", options)
    for option, text in grammar.parse(words).options:
        if option.name in ("num-instances", "num-processes"):
            count = text if text.isdigit() else "N"
            raise OptionError(
                f"--{option.name}={text}: poprun.launch makes room for the result of "
                f"each instance before they start. Pass num_instances={count} instead."
            )
    return words


def _values_of(results: Sequence[bytes], ended: JobResult) -> list[Any]:
    """Return what the instances have returned, if all of them have succeeded."""
    import cloudpickle  # noqa: PLC0415

    if ended.exit_code:
        # Where poprun was killed, it has named no instance.
        failed = ended.failed_instance
        suspects = results if failed is None else [results[failed]]
        raised = map(_exception_in, suspects)
        cause = next((error for error in raised if error is not None), None)
        raise JobFailedError(ended.cause or "poprun has failed.", ended) from cause
    if not ended.instances:
        raise OptionError(
            "poprun has printed a page and started no instance, so the function was "
            "not called. Leave out what asks for that, such as --dry-run, or call "
            "poprun.run_command."
        )
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
    """Return the exception of an instance, if its result has one."""
    import cloudpickle  # noqa: PLC0415

    try:
        state, value = cloudpickle.loads(data)
    except Exception:  # it was killed before it had written all
        return None
    return value if state == "raised" else None
