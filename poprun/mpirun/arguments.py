"""Parses arguments for mpirun: the texts of --mpi-global-args and its kin.

Every MPI gets its own translation, so that one command line works on all of them.
Options that contradict poprun's own are refused by name. Open MPI has hundreds of
options and gets those that are unknown here; for hydra they are refused.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from popdist.environment import JOB_VARIABLES, TOPOLOGY_VARIABLES
from poprun.errors import MpiArgumentError
from poprun.mpirun.option_table import (
    FULFILLED,
    GLOBAL_ARGS,
    INSTANCE_ARGS,
    MAPPINGS,
    MEANINGS,
    NOT_SHOWN,
    NUMBER_OF_VALUES,
    PLACEMENTS,
    QUESTIONS,
    REFUSED,
    canonical,
)
from poprun.mpirun.values import Mpi, MpirunArguments
from poprun.words import NAME_RULE, is_variable_name

# The words that Open MPI accepts behind a colon after the directory for output.
_COPY_MODIFIERS = frozenset({"copy", "nocopy"})
_LAYOUT_MODIFIERS = frozenset({"jobid", "nojobid", "pattern", "nopattern", "raw"})
# The words of Open MPI 5's --output, with the option of 4.1 that does the same.
_OUTPUT_WORDS = {
    "tag": "tag-output",
    "timestamp": "timestamp-output",
    "xml": "xml",
    "merge-stderr-to-stdout": "merge-stderr-to-stdout",
}
# The options without a value that apply to the whole job wherever they are given, and
# their fields. A name with a space is no option of mpirun.
_FLAGS = {
    "tag-output": "tag_output",
    "timestamp-output": "timestamp_output",
    "xml": "xml",
    "merge-stderr-to-stdout": "merge_stderr",
    "no copy": "output_nocopy",
    "show instances": "show_instances",
    "allow-run-as-root": "allow_run_as_root",
}
_CARRIED_OUT = (*_FLAGS, "output-filename", "bind-to", "npernode", "wdir")
_OPTION = r"(?s)--?([A-Za-z].*)"
_NUMBER_PER_NODE = r"ppr:([1-9][0-9]*):node"


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiArgument:
    """One option as it was given."""

    # The name under which the tables know it.
    name: str
    # The text of the option; without the value after "=" if poprun knows the option.
    flag: str
    values: Sequence[str]


def parse_arguments(
    text: str, mpi: type[Mpi], option: str = GLOBAL_ARGS
) -> MpirunArguments:
    """Return what arguments for mpirun ask for.

    Args:
        option: Where the text comes from, for messages.

    Raises:
        MpiArgumentError: One contradicts poprun, or this mpirun has no such one.
    """
    reader = _Reader(option, mpi)
    for argument in _split_arguments(text, option):
        reader.read(argument)
    return reader.arguments()


def find_question(text: str) -> list[str]:
    """Return the words that ask mpirun for its version or help; none without such.

    Args:
        text: The arguments for mpirun as a whole.

    Raises:
        MpiArgumentError: This is no list of options.
    """
    for argument in _split_arguments(text, GLOBAL_ARGS):
        if argument.name in QUESTIONS:
            return [argument.flag, *argument.values]
    return []


def merge(job: MpirunArguments, others: Sequence[MpirunArguments]) -> MpirunArguments:
    """Add the arguments of instances that apply to the whole job to the job's own.

    Raises:
        MpiArgumentError: Two places contradict each other.
    """
    for other in others:
        job = replace(
            job,
            **{f: getattr(job, f) or getattr(other, f) for f in _FLAGS.values()},
            output_filename=_merge_values(
                "--output-filename", job.output_filename, other.output_filename
            ),
            placement=_merge_values("--bind-to", job.placement, other.placement),
            warnings=(*job.warnings, *other.warnings),
        )
    return job


def _merge_values(name: str, first: str | None, second: str | None) -> str | None:
    if first is not None and second is not None and first != second:
        raise MpiArgumentError(
            f"{name} applies to the whole job, but is given as {first!r} and as "
            f"{second!r}. Leave one of them out."
        )
    return second if first is None else first


def parse_output_directory(value: str, option: str) -> tuple[str, bool]:
    """Return the directory for output, and whether the console gets no copy.

    Raises:
        MpiArgumentError: There is no directory, or its files would be named otherwise.
    """
    directory, colon, ending = value.rpartition(":")
    modifiers = {name.lower() for name in ending.split(",")}
    if not colon or not modifiers <= _COPY_MODIFIERS | _LAYOUT_MODIFIERS:
        directory, modifiers = value, set()
    if not directory or modifiers & _LAYOUT_MODIFIERS or modifiers == _COPY_MODIFIERS:
        raise MpiArgumentError(
            f"{option} is {value!r}, but must be the name of a directory, with "
            ":nocopy after it to have no copy on the console. poprun names the "
            "files in it: rank.N/stdout and stderr."
        )
    return directory, "nocopy" in modifiers


class _Reader:
    """Reads the arguments of one text."""

    def __init__(self, option: str, mpi: type[Mpi]) -> None:
        self._option = option
        self._mpi = mpi
        # The values of the options that poprun carries out, by mpirun's names of them.
        self._values: dict[str, str] = {}
        self._exports: dict[str, str | None] = {}
        self._passed_on: list[str] = []
        self._warnings: list[str] = []

    def arguments(self) -> MpirunArguments:
        """Return what was read."""
        values = self._values
        fields = {field: name in values for name, field in _FLAGS.items()}
        directory = None
        if "output-filename" in values:
            directory, nocopy = parse_output_directory(
                values["output-filename"], f"--output-filename in {self._option}"
            )
            fields["output_nocopy"] |= nocopy
        return MpirunArguments(
            **fields,
            output_filename=directory,
            placement=self._placement(),
            npernode=self._npernode(),
            wdir=values.get("wdir"),
            exports=self._exports,
            passed_on=tuple(self._passed_on),
            warnings=tuple(self._warnings),
        )

    def read(self, argument: MpiArgument) -> None:
        """Note what an argument asks for."""
        name, flag = argument.name, argument.flag
        value = argument.values[0] if argument.values else ""
        if name in REFUSED:
            raise self._error(f"{flag!r}, which contradicts poprun. {REFUSED[name]}")
        name, value = MEANINGS.get(name, (name, value))
        match name:
            case "x":
                self._export(flag, value)
            case "output":
                self._read_output(flag, value)
            case "map-by":
                self._read_mapping(flag, value)
            case "wdir" if not value:
                raise self._error(f"{flag!r} with an empty value. Name a directory.")
            case "mca" | "gmca" | "prtemca" | "pmixmca" | "gpmixmca":
                self._set_parameter(argument)
            case _ if name in _CARRIED_OUT:
                self._set(name, value)
            case _ if name in NOT_SHOWN:
                self._warn(
                    f"{flag!r}, which has no effect: mpirun's output is shown only "
                    f"when it fails. {NOT_SHOWN[name]}."
                )
            case _ if name not in FULFILLED:
                self._pass_on(argument, value)

    def _pass_on(self, argument: MpiArgument, value: str) -> None:
        """Keep an argument for mpirun itself."""
        name, flag = argument.name, argument.flag
        if not self._mpi.takes_any_option:
            if name == "oversubscribe":  # others count no slots
                return
            if name in NUMBER_OF_VALUES:
                self._warn_of_no_effect(flag)
                return
            raise self._error(
                f"{flag!r}, which poprun cannot translate for {self._mpi.launcher}. "
                "Leave it out, or choose Open MPI with --mpirun."
            )
        if name in ("report-pid", "report-uri") and value in ("-", "+"):
            raise self._error(
                f"{flag} {value}, but mpirun's output is shown only when it fails. "
                f"Name a file: {flag} FILE."
            )
        # Open MPI 5 does not start when an option is given twice.
        is_known = name in NUMBER_OF_VALUES
        if not is_known or self._set(name, " ".join(argument.values)):
            self._passed_on += [flag, *argument.values]

    def _set(self, name: str, value: str) -> bool:
        """Store a value, and return whether it is the first with this name."""
        before = self._values.get(name)
        if before not in (None, value):
            raise self._error(
                f"--{name} twice, with {before!r} and {value!r}. Leave one of them out."
            )
        self._values[name] = value
        return before is None

    def _npernode(self) -> int | None:
        text = self._values.get("npernode")
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and int(text) >= 1):
            raise self._error(f"--npernode {text!r}, but that must be 1 or more.")
        return int(text)

    def _placement(self) -> str | None:
        text = self._values.get("bind-to")
        if text is None:
            return MAPPINGS[self._values.get("map-by", "")]
        # Text after a colon says how mpirun binds; poprun binds the instances itself.
        place = text.partition(":")[0]
        if place not in PLACEMENTS:
            raise self._error(
                f"--bind-to {text!r}, but poprun binds only to "
                f"{', '.join(PLACEMENTS)}. See --process-placement."
            )
        return PLACEMENTS[place]

    def _export(self, flag: str, assignment: str) -> None:
        if flag.endswith("set-env") and "=" not in assignment:
            raise self._error(
                f"{flag} {assignment!r}, which lacks a value. Write {flag} NAME=VALUE."
            )
        name, equals, value = assignment.partition("=")
        stem = name if equals else name.removesuffix("*")
        if not is_variable_name(stem):
            raise self._error(
                f"-x {assignment!r}, but {name!r} cannot be the name of a variable: "
                f"{NAME_RULE}. Write -x NAME, -x NAME=VALUE, or -x NAME* for all names "
                "that begin with NAME."
            )
        if name in (*TOPOLOGY_VARIABLES, *JOB_VARIABLES):
            raise self._error(
                f"-x {assignment!r}, but {name} is set by "
                "poprun for each instance. Leave it out."
            )
        # The last one counts, and stands where it was given.
        self._exports.pop(name, None)
        self._exports[name] = value if equals else None

    def _read_output(self, flag: str, text: str) -> None:
        """Carry out Open MPI 5's --output, as far as poprun has the same."""
        for part in text.split(","):
            key, equals, value = part.partition("=")
            key = key.lower()
            names = [name for name in _OUTPUT_WORDS if name.startswith(key)]
            if equals and key in ("dir", "directory"):
                self._set("output-filename", value)
            elif key == "nocopy":
                self._set("no copy", "")
            elif key and len(names) == 1 and not equals:
                self._set(_OUTPUT_WORDS[names[0]], "")
            else:
                known = ", ".join(_OUTPUT_WORDS)
                raise self._error(
                    f"{flag} {part!r}, but poprun handles the output of the instances "
                    f"itself and supports only {known}, nocopy and dir=DIRECTORY."
                )

    def _read_mapping(self, flag: str, text: str) -> None:
        """Carry out --map-by, as far as poprun has the same."""
        # poprun starts any number of instances on a host.
        place = text.lower().removesuffix(":oversubscribe")
        if match := re.fullmatch(_NUMBER_PER_NODE, place):
            self._set("npernode", match[1])
        elif place in MAPPINGS:
            self._set("map-by", place)
        else:
            known = ", ".join(filter(None, MAPPINGS))
            raise self._error(
                f"{flag} {text!r}, but poprun maps only by {known} and ppr:N:node, "
                "with :oversubscribe or nothing after them. How many instances a "
                "host gets follows from --num-instances and --host, and which "
                "cores an instance gets from --process-placement."
            )

    def _set_parameter(self, argument: MpiArgument) -> None:
        parameter, value = argument.values
        # mpirun has one table for both, and does not start when one is given twice.
        table = {"gmca": "mca", "gpmixmca": "pmixmca"}.get(argument.name, argument.name)
        if not self._set(f"{table} {parameter}", value):
            return
        if argument.name in self._mpi.parameter_options:
            self._passed_on += [argument.flag, parameter, value]
        else:
            self._warn_of_no_effect(f"{argument.flag} {parameter}")

    def _error(self, problem: str) -> MpiArgumentError:
        return MpiArgumentError(f"{self._option} has {problem}")

    def _warn(self, problem: str) -> None:
        self._warnings.append(f"{self._option} has {problem}")

    def _warn_of_no_effect(self, argument: str) -> None:
        self._warn(f"{argument!r}, which has no effect on {self._mpi.launcher}.")


def _split_arguments(text: str, source: str) -> Iterator[MpiArgument]:
    """Yield the options of a text, each with its values.

    Args:
        source: The option of poprun that the text was given by, for messages.

    Raises:
        MpiArgumentError: This is no list of options.
    """
    tokens = _split_words(text, source)
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


def _split_words(text: str, source: str) -> list[str]:
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
