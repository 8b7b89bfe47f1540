"""Checks the numbers of instances that options name. Pure."""

from poprun.errors import OptionError
from poprun.options.settings import Settings
from poprun.words import counted


def check_instance(settings: Settings, name: str, num_instances: int) -> None:
    """Check that the job has the instance that an option names, if it names one."""
    rank = settings[name]
    if rank is not None and rank >= num_instances:
        raise OptionError(
            f"--{name} is {rank}, but the job has only "
            f"{count_instances(num_instances)}. {valid_numbers(num_instances)}"
        )


def count_instances(number: int) -> str:
    """Return the number of instances for a sentence."""
    return counted(number, "instance")


def valid_numbers(number: int) -> str:
    """Return the advice which numbers a job of so many instances has."""
    return "Give 0." if number == 1 else f"Give a number from 0 to {number - 1}."
