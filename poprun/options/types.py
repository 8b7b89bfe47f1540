"""An option, and the rules that turn its text into a value.

The rules are the same on the command line, in a variable and in a configuration file.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network

from popdist.durations import EXAMPLES, read_duration
from popdist.environment import JOB_VARIABLES, PLACE_VARIABLES, TOPOLOGY_VARIABLES
from poprun.errors import OptionError
from poprun.output import selection
from poprun.output.lines import tags
from poprun.output.selection import Selection
from poprun.words import (
    FALSE_WORDS,
    NAME_RULE,
    TRUE_WORDS,
    alternatives,
    is_variable_name,
    quoted,
)

Item = (
    bool | int | float | str | tuple[int, str] | tuple[str, str, str | None] | Selection
)
Value = Item | tuple[Item, ...] | None

# One instance for each CPU, or one replica for each instance.
AUTO = "auto"

# No count, port or time in a job comes near this, and int() stays cheap below it.
LARGEST = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, wherever it is written."""

    # Reads a text of the option: one of the functions below. The sentence of its error
    # lacks the subject, which `item` adds.
    read: "Callable[[Option, str], Item]"
    name: str
    # All names and the placeholder of the value, as the help shows them.
    spelling: str
    help: str = ""
    metavar: str = ""
    # Whether the next word belongs to the option, when it has no `=`.
    takes_value: bool = True
    default: Value = None
    # The default in words, where `default` does not say it.
    unset: str = "none"
    short: str = ""
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    # How the names of V-IPU's enumeration begin: ST_C2_COMPATIBLE is c2-compatible.
    prefixes: tuple[str, ...] = ()
    multiple: bool = False
    minimum: int = 1
    maximum: int = LARGEST
    # Whether a number may be auto.
    takes_auto: bool = False
    in_environment: bool = True
    in_file: bool = True
    # The user's spelling on the command line, such as -n or --time.
    flag: str = field(compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def default_text(self) -> str:
        """The default value as help shows it."""
        if isinstance(self.default, bool):
            return "yes" if self.default else "no"
        if isinstance(self.default, float):
            return f"{self.default:g}"
        return self.unset if self.default in (None, ()) else str(self.default)


def variable(name: str) -> str:
    """Return the environment variable that stands for an option."""
    return "POPRUN_" + name.upper().replace("-", "_")


def item(option: Option, text: str, label: str) -> Item:
    """Read one text of an option.

    Args:
        label: The place of the text, for the error: the option on the command line, a
            variable, or a line of a file.

    Raises:
        OptionError: The text is not valid for this option.
    """
    try:
        # A file can have it, and no path, argument or variable can.
        if "\0" in text:
            raise OptionError(f"is {quoted(text)}, but must not contain a NUL byte.")
        return option.read(option, text)
    except OptionError as error:
        hint = "".join(error.hints)
        is_yes_or_no = option.read is read_boolean or "yes" in option.choices
        if is_yes_or_no and label.startswith("-"):
            # Without an equals sign it may have taken the program for its value.
            hint = f"Write {label}=yes or {label}=no."
        raise OptionError(f"{label} {error}", hint) from None


def combine(option: Option, items: Sequence[Item]) -> Value:
    """Make one value of all items from one place, in their order."""
    if option.multiple:
        return tuple(items)
    if option.read is read_count:
        return sum(number for number in items if isinstance(number, int))
    return items[-1]


def _must_be(text: str, rule: str, hint: str = "") -> OptionError:
    return OptionError(f"is {quoted(text)}, but must be {rule}.", hint)


def read_whole(option: Option, text: str) -> int | str:
    """Read a whole number within the option's limits, or auto."""
    if option.takes_auto and text.lower() == AUTO:
        return AUTO
    if not re.fullmatch("-?[0-9]+", text) or text == "-0":
        rule = f"a whole number in plain digits, such as {max(option.minimum, 4)}"
        raise _must_be(text, f"{rule}, or auto" if option.takes_auto else rule)
    # int() of a long text takes long; the first digits show that it is too large.
    digits = text.lstrip("-0")[:11] or "0"
    number = -int(digits) if text.startswith("-") else int(digits)
    if option.minimum <= number <= option.maximum:
        return number
    if option.maximum < LARGEST:
        rule = f"from {option.minimum} to {option.maximum}"
    elif number < option.minimum:
        rule = f"{option.minimum} or more"
    else:
        rule = f"at most {LARGEST}"
    shortened = text if len(text) <= 20 else text[:20] + "..."
    raise OptionError(f"is {shortened}, but must be {rule}.")


def read_seconds(option: Option, text: str) -> float:
    """Read a duration in seconds."""
    seconds = read_duration(text)
    if seconds is not None and seconds < LARGEST:
        return seconds
    rule = f"a number of seconds from 0 to {LARGEST - 1}, such as 5 or 0.5"
    raise _must_be(text, f"{rule}, or a duration such as {EXAMPLES}")


def read_whole_seconds(option: Option, text: str) -> int | str:
    """Read a duration of whole seconds."""
    seconds = read_duration(text)
    if seconds is not None and seconds.is_integer():
        return read_whole(option, str(int(seconds)))
    rule = "a whole number of seconds, such as 10, or a duration such as"
    raise _must_be(text, f"{rule} {EXAMPLES}")


def read_boolean(option: Option, text: str) -> bool:
    """Read yes or no, or what means the same."""
    word = text.lower()
    # An empty text is a yes to the original.
    if word in TRUE_WORDS or not word:
        return True
    if word in FALSE_WORDS:
        return False
    rule = "yes or no (on and off, true and false, 1 and 0 mean the same)"
    raise _must_be(text, rule)


def read_wait(option: Option, text: str) -> bool | float:
    """Read yes, no or a duration in seconds."""
    # 1 is a number of seconds here.
    if text != "1" and text.lower() in ("", *TRUE_WORDS, *FALSE_WORDS):
        return read_boolean(option, text)
    try:
        return read_seconds(option, text)
    except OptionError:
        rule = "yes, no, or a number of seconds, such as 600, or a duration such as"
        raise _must_be(text, f"{rule} {EXAMPLES}") from None


def read_count(option: Option, text: str) -> int | str:
    """Read a number, or yes for 1: `combine` adds up several of them."""
    if text.lower() in (*TRUE_WORDS, *FALSE_WORDS):
        return int(read_boolean(option, text))
    return read_whole(option, text)


def read_text(option: Option, text: str) -> str:
    """Read any text that is not empty."""
    if text:
        return text
    raise OptionError(
        "is empty.",
        "Give it a value, or leave it out. Perhaps a variable of your shell is not "
        "set.",
    )


def read_path(option: Option, text: str) -> str:
    """Read the path of a file or directory."""
    # A shell expands it only at the beginning of a word, not in --option=~/path.
    path = read_text(option, text)
    is_home = path == "~" or path.startswith("~/")
    return os.path.expanduser(path) if is_home else path


def read_choice(option: Option, text: str) -> str:
    """Read one of the option's choices."""
    word = text.lower()
    if word in option.choices:
        return word
    for prefix in option.prefixes:
        word = word.removeprefix(prefix)
    for choice in option.choices if option.prefixes else ():
        if choice.replace("-", "") == word.replace("-", "").replace("_", ""):
            return choice
    raise _must_be(text, alternatives(option.choices))


def read_instances(option: Option, text: str) -> Selection:
    """Read a set of instances."""
    try:
        return selection.parse(text)
    except ValueError as error:
        why = str(error)
        hint = f"{why[0].upper()}{why[1:]}." if why else ""
        rule = "a set of instances, such as 0,4-7 or first,failed"
        raise _must_be(text, rule, hint) from None


def read_environment(option: Option, text: str) -> tuple[str, str, str | None]:
    """Read a variable for instances: [INSTANCES:]NAME[=VALUE].

    Return the set of instances, the name and the value. The set is "" for all
    instances. The value is None where poprun's own environment has it; the name may
    then end in `*`, for all names with that beginning. An error does not show the
    value, which may be a secret.
    """
    head, equals, value = read_text(option, text).partition("=")
    instances, colon, name = head.rpartition(":")
    if colon:
        _check_instances(instances)
    if not is_variable_name(name if equals else name.removesuffix("*")):
        raise OptionError(
            f"names {name[:100]!r}, which cannot be the name of a variable: "
            f"{NAME_RULE}. Write NAME=VALUE, NAME for the value that poprun's own "
            "environment has, or NAME* for all names that begin with NAME."
        )
    if name in (*TOPOLOGY_VARIABLES, *JOB_VARIABLES, *PLACE_VARIABLES):
        raise OptionError(
            f"names {name}, which poprun sets itself for each instance. Leave it out."
        )
    return instances, name, value if equals else None


def _check_instances(text: str) -> None:
    try:
        if selection.FAILED in text.lower().split(","):
            raise ValueError("no instance has failed before the job starts")
        selection.parse(text)
    except ValueError as error:
        why = f": {error}" if str(error) else ""
        raise OptionError(
            f"has {text[:100]!r} before the colon, which must be a set of instances, "
            f"such as 0,4-7:NAME=VALUE{why}."
        ) from None


def read_tag_format(option: Option, text: str) -> str:
    """Read the name of a form of tags, or a template."""
    if text.lower() in option.choices:
        return text.lower()
    try:
        tags.check_template(text)
    except ValueError as error:
        fields = " ".join(f"{{{name}}}" for name in tags.FIELDS)
        rule = f"{alternatives(option.choices)}, or a template with one of {fields}"
        raise _must_be(text, f"{rule} in it: {error}") from None
    return text


def read_subnet(option: Option, text: str) -> str:
    """Read a network in CIDR notation."""
    try:
        if "/" in text:
            ip_network(text, strict=False)
            return text
    except ValueError:
        pass
    raise _must_be(text, "a network in CIDR notation, such as 10.5.0.0/16")


def read_range(option: Option, text: str) -> str:
    """Read a number from 1, or the smallest and the largest one: MIN:MAX."""
    if re.fullmatch("[0-9]{1,9}(:[0-9]{1,9})?", text):
        least, most = range_of(text)
        if 1 <= least <= most:
            return text
    rule = "MIN:MAX, two whole numbers from 1, the smaller one first, such as 1:4"
    raise _must_be(text, f"{rule}, or one number")


def range_of(text: str) -> tuple[int, int]:
    """Return the smallest and the largest number of a range that was read."""
    least, _, most = text.partition(":")
    return int(least), int(most or least)


def read_mpi_arguments(option: Option, text: str) -> str:
    """Read arguments for mpirun, which are split into words later."""
    _refuse_bare_x(option, text, text)
    return text


def read_instance_arguments(option: Option, text: str) -> tuple[int, str]:
    """Read the index of an instance, and arguments for mpirun about it."""
    index, colon, arguments = text.partition(":")
    if not (colon and re.fullmatch("[0-9]{1,9}", index)):
        rule = "the index of an instance, a colon, and arguments for mpirun, such as"
        raise _must_be(text, f'{rule} "1:-x NAME=VALUE"')
    _refuse_bare_x(option, text, arguments)
    return int(index), arguments


def _refuse_bare_x(option: Option, text: str, arguments: str) -> None:
    # The shell cuts --mpi-local-args=-x A=B at the space, and A=B would be taken
    # for the program.
    if arguments.split()[-1:] == ["-x"]:
        raise OptionError(
            f"is {quoted(text)}, which ends in -x with no variable after it.",
            "Put the whole value in quotes, "
            f'as in {option.flag}="{text.strip()} NAME=VALUE".',
        )
