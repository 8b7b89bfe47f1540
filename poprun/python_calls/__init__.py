"""A command or a function, called from Python -> a job -> its result, or values."""

from poprun.python_calls.command import run_command
from poprun.python_calls.functions import launch
from poprun.python_calls.results import InstanceResult, JobFailedError, JobResult

__all__ = ["InstanceResult", "JobFailedError", "JobResult", "launch", "run_command"]
