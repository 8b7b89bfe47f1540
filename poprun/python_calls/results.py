"""How a job has ended, for the program that has run it by a call."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poprun.errors import LaunchError, PoprunError


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceResult:
    """How an instance ended: a line of `--summary`."""

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
    # For a failed instance: its last traceback, and the last lines of its stderr.
    traceback: str | None
    stderr_tail: str | None
    program: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a job ended. docs/results.md describes the fields."""

    exit_code: int
    # "succeeded", "instance_failed", "timed_out" and so on.
    outcome: str
    # The sentence that poprun prints last; None for a success.
    cause: str | None
    failed_instance: int | None
    hints: tuple[str, ...]
    elapsed_s: float
    # The instances of the last attempt.
    instances: tuple[InstanceResult, ...]
    # The whole result, as `--result` writes it.
    fields: Mapping[str, Any]
    # The output of poprun and its instances, with `capture_output`.
    stdout: str = ""
    stderr: str = ""


class JobFailedError(PoprunError):
    """A job that was started from Python has failed."""

    def __init__(self, text: str, result: JobResult) -> None:
        super().__init__(text)
        self.result = result
        self.exit_code = result.exit_code


def read_result(text: bytes, exit_code: bytes, status: int) -> JobResult:
    """Return how a job ended.

    Args:
        text: The file of `--result`; empty if poprun has only printed a page.
        exit_code: poprun's own, as it wrote that; empty if it was killed.
        status: The exit status of its process, 0 if that is not known.
    """
    fields = json.loads(text) if text else {}
    if fields.get("outcome") == "incomplete":  # poprun was killed
        fields = {}
    if exit_code:
        code, cause = int(exit_code), None
        outcome = "not_started" if code else "succeeded"
    else:
        code, outcome = status or LaunchError.exit_code, "launcher_failed"
        cause = "poprun ended before it could say how its job ended."
    attempts = fields.get("attempts", [])
    instances = attempts[-1]["instances"] if attempts else []
    return JobResult(
        exit_code=code,
        outcome=fields.get("outcome", outcome),
        cause=fields.get("cause") or cause,
        failed_instance=fields.get("failed_instance"),
        hints=tuple(fields.get("hints", ())),
        elapsed_s=fields.get("elapsed_s", 0.0),
        instances=tuple(InstanceResult(**each) for each in instances),
        fields=fields,
    )
