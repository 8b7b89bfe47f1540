"""What an option is, and the rules by which its text becomes a value.

One rule for each kind of option, wherever the text stands: on the command line, in a
variable or in a configuration file.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from popdist.durations import EXAMPLES, read_duration
from poprun.errors import OptionError
from poprun.options import variables
from poprun.options.refusals import alternatives, quoted, refusal
from poprun.output import selection
from poprun.output.lines import tags
from poprun.output.selection import Selection
from poprun.words import FALSE_WORDS, TRUE_WORDS

Item = (
    bool | int | float | str | tuple[int, str] | tuple[str, str, str | None] | Selection
)
Value = Item | tuple[Item, ...] | None

# The number of instances that follows from the CPUs, and the number of replicas that
# follows from that of the instances.
AUTO = "auto"

# No count, port or time in a job comes near this, and int() stays cheap below it.
LARGEST = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, wherever it is written."""

    # Reads a text of it, as `item` does: one of the functions below.
    read: "Callable[[Option, str, str], Item]"
    name: str
    help: str
    # What stands for its value in the help; "" for its choices.
    metavar: str = ""
    # Whether the next word belongs to the option, when it has no `=`.
    takes_value: bool = True
    default: Value = None
    # What happens without the option, in words, where no value says it.
    unset: str = "none"
    short: str = ""
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    # How the names of V-IPU's enumeration begin: ST_C2_COMPATIBLE is c2-compatible.
    prefixes: tuple[str, ...] = ()
    multiple: bool = False
    minimum: int = 1
    maximum: int = LARGEST
    # Another option about the same thing. Given nearer to the user (say, on the
    # command line), either of them silences the other farther away (in a file).
    rival: str = ""
    # The rival may not be given in the same place at all.
    exclusive: bool = False
    in_environment: bool = True
    in_file: bool = True
    # As the user wrote its name on the command line, where that is another: -n.
    typed: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Option) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def flag(self) -> str:
        return self.typed or f"--{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


def variable(name: str) -> str:
    """Return the environment variable that stands for an option."""
    return "POPRUN_" + name.upper().replace("-", "_")


# --- From text to value. `label` is where the text stands, for the error: the
# option on the command line, a variable, or a line of a file.


def item(option: Option, text: str, label: str) -> Item:
    """Read one text of an option.

    Raises:
        OptionError: The text is not valid for this option.
    """
    if "\0" in text:
        # A file can have it, and no path, argument or variable can.
        raise refusal(f"{label} is {quoted(text)}, but must not contain a NUL byte.")
    return option.read(option, text, label)


def combine(option: Option, items: Sequence[Item]) -> Value:
    """Make one value of all that was given in one place, in that order."""
    if option.multiple:
        return tuple(items)
    if option.read is read_count:
        return sum(number for number in items if isinstance(number, int))
    return items[-1]


def read_whole(option: Option, text: str, label: str) -> int:
    """Read a whole number within the option's limits."""
    if not _is_whole(text):
        raise refusal(
            f"{label} is {quoted(text)}, but must be a whole number "
            f"in plain digits, such as {max(option.minimum, 4)}."
        )
    digits = text.removeprefix("-").lstrip("0")
    number = LARGEST + 1 if len(digits) > 10 else int(digits or "0")
    if text.startswith("-"):
        number = -number
    if not option.minimum <= number <= option.maximum:
        shortened = text if len(text) <= 20 else text[:20] + "..."
        raise refusal(f"{label} is {shortened}, but must be {_range(option, number)}.")
    return number


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and text != "-0"


def read_whole_or_auto(option: Option, text: str, label: str) -> int | str:
    """Read a whole number within the option's limits, or auto."""
    if text.lower() == AUTO:
        return AUTO
    if _is_whole(text):
        return read_whole(option, text, label)
    raise refusal(
        f"{label} is {quoted(text)}, but must be a whole number in plain digits, such "
        "as 4, or auto."
    )


def _range(option: Option, number: int) -> str:
    if option.maximum < LARGEST:
        return f"from {option.minimum} to {option.maximum}"
    return (
        f"{option.minimum} or more" if number < option.minimum else f"at most {LARGEST}"
    )


def read_seconds(option: Option, text: str, label: str) -> float:
    """Read a duration in seconds."""
    seconds = read_duration(text)
    if seconds is None or seconds >= LARGEST:
        raise refusal(
            f"{label} is {quoted(text)}, but must be a number of seconds from 0 to "
            f"{LARGEST - 1}, such as 5 or 0.5, or a duration such as {EXAMPLES}."
        )
    return seconds


def read_whole_seconds(option: Option, text: str, label: str) -> int:
    """Read a duration of whole seconds."""
    seconds = read_duration(text)
    if seconds is None or not seconds.is_integer():
        raise refusal(
            f"{label} is {quoted(text)}, but must be a whole number of seconds, such "
            f"as 10, or a duration such as {EXAMPLES}."
        )
    return read_whole(option, str(int(seconds)), label)


def read_boolean(option: Option, text: str, label: str) -> bool:
    """Read yes or no, or what means the same."""
    word = text.lower()
    # An empty text is a yes to the original.
    if word in TRUE_WORDS or not word:
        return True
    if word in FALSE_WORDS:
        return False
    raise refusal(
        f"{label} is {quoted(text)}, but must be yes or no "
        "(on and off, true and false, 1 and 0 mean the same).",
        # Without an equals sign it may have taken the program for its value.
        _yes_or_no(label) if label == option.flag else "",
    )


def _yes_or_no(label: str) -> str:
    return f"Write {label}=yes or {label}=no."


def read_wait(option: Option, text: str, label: str) -> bool | float:
    """Read yes, no or a duration in seconds."""
    # 1 is a number of seconds here.
    if text != "1" and text.lower() in ("", *TRUE_WORDS, *FALSE_WORDS):
        return read_boolean(option, text, label)
    try:
        return read_seconds(option, text, label)
    except OptionError:
        raise refusal(
            f"{label} is {quoted(text)}, but must be yes, no, or a number of seconds, "
            f"such as 600, or a duration such as {EXAMPLES}."
        ) from None


def read_count(option: Option, text: str, label: str) -> int:
    """Read a number, or yes for 1: what is given several times is added up."""
    if text.lower() in (*TRUE_WORDS, *FALSE_WORDS):
        return int(read_boolean(option, text, label))
    return read_whole(option, text, label)


def read_text(option: Option, text: str, label: str) -> str:
    """Read any text that is not empty."""
    if not text:
        raise refusal(
            f"{label} is empty.",
            "Give it a value, or leave it out. Perhaps a variable of your shell is not "
            "set.",
        )
    return text


def read_path(option: Option, text: str, label: str) -> str:
    """Read the path of a file or directory."""
    # A shell expands it only at the beginning of a word, not in --option=~/path.
    path = read_text(option, text, label)
    is_home = path == "~" or path.startswith("~/")
    return os.path.expanduser(path) if is_home else path


def read_choice(option: Option, text: str, label: str) -> str:
    """Read one of the option's choices."""
    word = text.lower()
    if word in option.choices:
        return word
    if option.prefixes:
        for prefix in option.prefixes:
            word = word.removeprefix(prefix)
        for choice in option.choices:
            if _letters(choice) == _letters(word):
                return choice
    raise refusal(
        f"{label} is {quoted(text)}, but must be {alternatives(option.choices)}.",
        # Without an equals sign it may have taken the program for its value.
        _yes_or_no(label) if "yes" in option.choices and label == option.flag else "",
    )


def _letters(word: str) -> str:
    return word.replace("-", "").replace("_", "")


def read_instances(option: Option, text: str, label: str) -> Selection:
    """Read a set of instances."""
    try:
        return selection.parse(text)
    except ValueError as error:
        raise refusal(
            f"{label} is {quoted(text)}, but must be a set of instances, such as 0,4-7 "
            "or first,failed.",
            f"{str(error)[:1].upper()}{str(error)[1:]}." if str(error) else "",
        ) from None


def read_environment(
    option: Option, text: str, label: str
) -> tuple[str, str, str | None]:
    """Read a variable to pass to all instances, or to some."""
    try:
        return variables.parse(read_text(option, text, label))
    except ValueError as error:
        raise refusal(f"{label} {error}") from None


def read_tag_format(option: Option, text: str, label: str) -> str:
    """Read the name of a form of tags, or a template."""
    if text.lower() in option.choices:
        return text.lower()
    try:
        tags.check_template(text)
    except ValueError as error:
        fields = " ".join(f"{{{name}}}" for name in tags.FIELDS)
        raise refusal(
            f"{label} is {quoted(text)}, but must be {alternatives(option.choices)}, "
            f"or a template with one of {fields} in it: {error}."
        ) from None
    return text


def read_subnet(option: Option, text: str, label: str) -> str:
    """Read a network in CIDR notation."""
    try:
        if "/" in text:
            ip_network(text, strict=False)
            return text
    except ValueError:
        pass
    raise refusal(
        f"{label} is {quoted(text)}, but must be a network in CIDR notation, such as "
        "10.5.0.0/16."
    )


def read_mpi_arguments(option: Option, text: str, label: str) -> str:
    """Read arguments for mpirun, which are split into words later."""
    _refuse_bare_x(option, text, label, text)
    return text


def read_instance_arguments(option: Option, text: str, label: str) -> tuple[int, str]:
    """Read the index of an instance, and arguments for mpirun about it."""
    index, colon, arguments = text.partition(":")
    plain = index.isascii() and index.isdigit() and len(index) <= 9
    if not (colon and plain):
        raise refusal(
            f"{label} is {quoted(text)}, but must be the index of an instance, a "
            'colon, and arguments for mpirun, such as "1:-x NAME=VALUE".'
        )
    _refuse_bare_x(option, text, label, arguments)
    return int(index), arguments


def _refuse_bare_x(option: Option, text: str, label: str, arguments: str) -> None:
    # The shell cuts --mpi-local-args=-x A=B at the space, and A=B would be taken
    # for the program.
    if arguments.split()[-1:] == ["-x"]:
        raise refusal(
            f"{label} is {quoted(text)}, which ends in -x with no variable after it.",
            "Put the whole value in quotes, "
            f'as in {option.flag}="{text.strip()} NAME=VALUE".',
        )
