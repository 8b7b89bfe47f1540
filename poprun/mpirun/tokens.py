"""Splits a text of arguments for mpirun into options and their values."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from poprun.errors import MpiArgumentError
from poprun.mpirun.option_table import (
    INSTANCE_ARGS,
    NUMBER_OF_VALUES,
    QUESTIONS,
    REFUSED,
    canonical,
)

_OPTION = r"(?s)--?([A-Za-z].*)"


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiArgument:
    """One option as it was given."""

    # The name under which the tables know it.
    name: str
    # The text of the option; without the value after "=" if poprun knows the option.
    flag: str
    values: Sequence[str]


def split_arguments(text: str, source: str) -> Iterator[MpiArgument]:
    """Yield the options of a text, each with its values.

    Args:
        source: The option of poprun that the text was given by, for messages.

    Raises:
        MpiArgumentError: This is no list of options.
    """
    tokens = _split(text, source)
    position = 0
    while position < len(tokens):
        token = tokens[position]
        name, joined = _name(token, source)
        values = [] if joined is None else [joined]
        count = _number_of_values(name, values, tokens[position + 1 :])
        next_position = position + 1 + count - len(values)
        values += tokens[position + 1 : next_position]
        if len(values) < count:
            raise _value_is_missing(token, count, source)
        known = name in NUMBER_OF_VALUES or name in REFUSED
        yield MpiArgument(
            name=name, flag=token.partition("=")[0] if known else token, values=values
        )
        position = next_position


def _split(text: str, source: str) -> list[str]:
    if "\0" in text:
        raise MpiArgumentError(
            f"{source} contains a NUL byte, which is not possible in an argument."
        )
    try:
        # A line may be continued as in a shell.
        return shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise MpiArgumentError(
            f"{source} is {text!r}, in which a quote is opened and not closed, "
            "or the last argument is a single backslash. It is split as in a "
            'shell: to have a quote in a value, write it as \\" or within '
            "quotes of the other kind."
        ) from error


def _name(token: str, source: str) -> tuple[str, str | None]:
    """Return the option's canonical name, and its value if that is joined by "="."""
    if token == ":":
        raise MpiArgumentError(
            f"{source} has ':', which would start another program. {REFUSED[':']}"
        )
    option = re.fullmatch(_OPTION, token)
    if option is None:
        raise MpiArgumentError(
            f"{source} contains {token!r} where an option should be. mpirun would take "
            "it for the program. If it is part of a value, put quotes around the value."
        )
    name, equals, value = option[1].partition("=")
    name = canonical(name)
    if equals and NUMBER_OF_VALUES.get(name) != 1 and name not in REFUSED:
        # It is one token, with a meaning that only mpirun knows.
        return option[1], None
    return name, value if equals else None


def _number_of_values(name: str, given: Sequence[str], rest: Sequence[str]) -> int:
    if name in REFUSED and name not in QUESTIONS:
        return len(given)
    if name in NUMBER_OF_VALUES:
        return NUMBER_OF_VALUES[name]
    # All tokens after an unknown option, up to the next option, are its values.
    for count, token in enumerate(rest):
        if token == ":" or re.fullmatch(_OPTION, token):
            return count
    return len(rest)


def _value_is_missing(token: str, count: int, source: str) -> MpiArgumentError:
    if canonical(token.lstrip("-")) == "x":
        example = '"1:-x NAME=VALUE"' if source == INSTANCE_ARGS else '"-x NAME=VALUE"'
        return MpiArgumentError(
            f"{source} ends with {token!r}, and a name must follow. Put quotes around "
            f"the whole value: {source} {example}."
        )
    noun = "a value" if count == 1 else f"{count} values"
    return MpiArgumentError(
        f"{source} ends with {token!r}, which needs {noun}. Put quotes around the "
        f"whole value of {source}."
    )
