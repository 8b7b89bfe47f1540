"""Parses arguments for mpirun: the texts of --mpi-global-args and its kin.

Every MPI gets its own translation, so that one command line works on all of them.
What contradicts poprun's own arguments is refused by name; what is unknown here is
passed on to Open MPI, which has hundreds of options, and refused for hydra.
"""

import re
from collections.abc import Sequence

from popdist.environment import JOB_VARIABLES, TOPOLOGY_VARIABLES
from poprun.errors import MpiArgumentError
from poprun.mpirun import values
from poprun.mpirun.option_table import (
    FULFILLED,
    GLOBAL_ARGS,
    LOCAL_ARGS,
    NOT_SHOWN,
    NUMBER_OF_VALUES,
    PLACEMENTS,
    REFUSED,
    SHOWS_INSTANCES,
)
from poprun.mpirun.tokens import MpiArgument, split_arguments
from poprun.mpirun.values import (
    OPENMPI4,
    OPENMPI5,
    GlobalArguments,
    LocalArguments,
)
from poprun.record import replace

_CALLED = {
    OPENMPI4: "Open MPI 4",
    OPENMPI5: "Open MPI 5",
    values.HYDRA: "hydra",
    values.LOCAL: "poprun's own launcher",
}
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
# All variables whose names begin so, as Open MPI 5 has it.
_VARIABLES = r"[A-Za-z_][A-Za-z0-9_]*\*"
# What Open MPI accepts after the directory for output, behind a colon.
_COPY_MODIFIERS = frozenset({"copy", "nocopy"})
_LAYOUT_MODIFIERS = frozenset({"jobid", "nojobid", "pattern", "nopattern", "raw"})
# What in Open MPI 5's --output stands for an option of 4.1.
_OUTPUT_WORDS = {
    "tag": "tag-output",
    "timestamp": "timestamp-output",
    "xml": "xml",
    "merge-stderr-to-stdout": "merge-stderr-to-stdout",
}
_FOR_THE_JOB = frozenset(
    {
        "tag-output",
        "timestamp-output",
        "xml",
        "merge-stderr-to-stdout",
        "output-filename",
        "bind-to",
        "allow-run-as-root",
    }
)


def parse_global(text: str, flavour: str) -> GlobalArguments:
    """Understand the arguments for mpirun that count for the whole job.

    Raises:
        MpiArgumentError: One contradicts poprun, or this mpirun has no such one.
    """
    found = _parse(text, flavour, GLOBAL_ARGS)
    return replace(
        _for_the_job(found),
        npernode=found.npernode(),
        wdir=found.settings.get("wdir"),
        exports=found.exports,
        passed_on=tuple(found.passed_on),
        warnings=tuple(found.warnings),
    )


def parse_local(text: str, flavour: str, option: str = LOCAL_ARGS) -> LocalArguments:
    """Understand the arguments for mpirun that stand with every instance, or one.

    What mpirun takes there and counts for the whole job is in the field `job`.

    Args:
        option: Where the text comes from, for messages.

    Raises:
        MpiArgumentError: One contradicts poprun, or this mpirun has no such one.
    """
    found = _parse(text, flavour, option)
    return LocalArguments(
        job=_for_the_job(found),
        npernode=found.npernode(),
        wdir=found.settings.get("wdir"),
        exports=found.exports,
        passed_on=tuple(found.passed_on),
        warnings=tuple(found.warnings),
    )


def merge(job: GlobalArguments, others: Sequence[GlobalArguments]) -> GlobalArguments:
    """Add what was asked for the whole job in the arguments of instances.

    Raises:
        MpiArgumentError: Two places contradict each other.
    """
    for other in others:
        job = replace(
            job,
            tag_output=job.tag_output or other.tag_output,
            timestamp_output=job.timestamp_output or other.timestamp_output,
            xml=job.xml or other.xml,
            merge_stderr=job.merge_stderr or other.merge_stderr,
            output_filename=_same(
                "--output-filename", job.output_filename, other.output_filename
            ),
            output_nocopy=job.output_nocopy or other.output_nocopy,
            show_instances=job.show_instances or other.show_instances,
            allow_run_as_root=job.allow_run_as_root or other.allow_run_as_root,
            placement=_same("--bind-to", job.placement, other.placement),
        )
    return job


def _same(name: str, one: str | None, other: str | None) -> str | None:
    if one is not None and other is not None and one != other:
        raise MpiArgumentError(
            f"{name} counts for the whole job, but is given as {one!r} and as "
            f"{other!r}. Leave one of them out."
        )
    return other if one is None else one


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
            f"{option} is {value!r}, but must be the name of a directory, with :nocopy "
            "after it to have no copy on the console. Its files are 1/rank.N/stdout "
            "and stderr."
        )
    return directory, "nocopy" in modifiers


class _Found:
    """What has been read so far."""

    def __init__(self, option: str, flavour: str) -> None:
        self.option = option
        self.flavour = flavour
        self.settings: dict[str, str] = {}
        self.exports: dict[str, str | None] = {}
        self.passed_on: list[str] = []
        self.warnings: list[str] = []

    @property
    def open_mpi(self) -> bool:
        return self.flavour in (OPENMPI4, OPENMPI5)

    def set(self, name: str, value: str) -> bool:
        """Store a value, and return whether it is the first with this name."""
        before = self.settings.get(name)
        if before is not None and before != value:
            raise MpiArgumentError(
                f"{self.option} has --{name} twice, with {before!r} and {value!r}. "
                "Leave one of them out."
            )
        self.settings[name] = value
        return before is None

    def npernode(self) -> int | None:
        text = self.settings.get("npernode")
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and int(text) >= 1):
            raise MpiArgumentError(
                f"{self.option} has --npernode {text!r}, but that must be 1 or more."
            )
        return int(text)

    def placement(self) -> str | None:
        wish = self.settings.get("bind-to")
        if wish is None:
            return None
        # What follows a colon is about how mpirun binds, and poprun does that itself.
        place = wish.partition(":")[0]
        if place not in PLACEMENTS:
            raise MpiArgumentError(
                f"{self.option} has --bind-to {wish!r}, but poprun binds only to "
                f"{', '.join(PLACEMENTS)}. See --process-placement."
            )
        return PLACEMENTS[place]


def _parse(text: str, flavour: str, option: str) -> _Found:
    found = _Found(option=option, flavour=flavour)
    for given in split_arguments(text, option):
        _understand(found, given)
    return found


def _for_the_job(found: _Found) -> GlobalArguments:
    asked = found.settings
    directory, nocopy = None, "nocopy" in asked
    if "output-filename" in asked:
        directory, no_copy = parse_output_directory(
            asked["output-filename"], f"--output-filename in {found.option}"
        )
        nocopy = nocopy or no_copy
    return GlobalArguments(
        tag_output="tag-output" in asked,
        timestamp_output="timestamp-output" in asked,
        xml="xml" in asked,
        merge_stderr="merge-stderr-to-stdout" in asked,
        output_filename=directory,
        output_nocopy=nocopy,
        show_instances="show-instances" in asked,
        allow_run_as_root="allow-run-as-root" in asked,
        placement=found.placement(),
    )


def _understand(found: _Found, given: MpiArgument) -> None:
    name, flag = given.name, given.flag
    if name in REFUSED:
        raise MpiArgumentError(
            f"{found.option} has {flag!r}, which contradicts poprun. {REFUSED[name]}"
        )
    match name:
        case "x":
            _export(found, given)
        case "output":
            _output(found, given)
        case "bind-to-core" | "bind-to-socket":
            found.set("bind-to", name.removeprefix("bind-to-"))
        case "pernode":
            found.set("npernode", "1")
        case "wdir" if not given.values[0]:
            raise MpiArgumentError(
                f"{found.option} has {flag!r} with an empty value. Name a directory."
            )
        case "npernode" | "wdir":
            found.set(name, given.values[0])
        case "mca" | "gmca" | "prtemca" | "pmixmca" | "gpmixmca":
            _parameter(found, given)
        case _ if name in _FOR_THE_JOB:
            found.set(name, given.values[0] if given.values else "")
        case _ if name in FULFILLED:
            pass
        case _ if name in SHOWS_INSTANCES:
            found.set("show-instances", "")
        case _ if name in NOT_SHOWN:
            found.warnings.append(
                f"{found.option} has {flag!r}, which has no effect: mpirun's output "
                f"is shown only when it fails. {NOT_SHOWN[name]}."
            )
        case "oversubscribe" if not found.open_mpi:
            # Others count no slots.
            pass
        case _ if found.open_mpi:
            _pass_on(found, given)
        case _ if name in NUMBER_OF_VALUES:
            found.warnings.append(_has_no_effect(found, flag))
        case _:
            raise MpiArgumentError(
                f"{found.option} has {flag!r}, which poprun cannot translate for "
                f"{_CALLED[found.flavour]}. Leave it out, or choose an Open MPI with "
                "--mpirun."
            )


def _pass_on(found: _Found, given: MpiArgument) -> None:
    if given.name in ("report-pid", "report-uri") and given.values[0] in ("-", "+"):
        raise MpiArgumentError(
            f"{found.option} has {given.flag} {given.values[0]}, but mpirun's output "
            f"is shown only when it fails. Name a file: {given.flag} FILE."
        )
    # Open MPI 5 does not start when an option is given twice.
    if given.name in NUMBER_OF_VALUES:
        value = " ".join(given.values)
        if not found.set(given.name, value):
            return
    found.passed_on += [given.flag, *given.values]


def _export(found: _Found, given: MpiArgument) -> None:
    assignment = given.values[0]
    if given.flag.endswith("set-env") and "=" not in assignment:
        raise MpiArgumentError(
            f"{found.option} has {given.flag} {assignment!r}, which lacks a value. "
            f"Write {given.flag} NAME=VALUE."
        )
    name, equals, value = assignment.partition("=")
    pattern = _VARIABLE if equals else _VARIABLES
    if not (re.fullmatch(_VARIABLE, name) or re.fullmatch(pattern, name)):
        raise MpiArgumentError(
            f"{found.option} has -x {assignment!r}, but {name!r} cannot be the name of "
            "a variable: that consists of letters, digits and '_', and does not begin "
            "with a digit. Write -x NAME, -x NAME=VALUE, or -x NAME* for all "
            "names that begin so."
        )
    if name in TOPOLOGY_VARIABLES or name in JOB_VARIABLES:
        raise MpiArgumentError(
            f"{found.option} has -x {assignment!r}, but {name} is set by "
            "poprun for each instance. Leave it out."
        )
    # The last one counts, and stands where it was given.
    found.exports.pop(name, None)
    found.exports[name] = value if equals else None


def _output(found: _Found, given: MpiArgument) -> None:
    """Carry out Open MPI 5's --output, as far as poprun has the same."""
    for part in given.values[0].split(","):
        key, equals, value = part.partition("=")
        key = key.lower()
        names = [name for name in _OUTPUT_WORDS if name.startswith(key)]
        if equals and key in ("dir", "directory"):
            found.set("output-filename", value)
        elif key == "nocopy":
            found.set("nocopy", "")
        elif key and len(names) == 1 and not equals:
            found.set(_OUTPUT_WORDS[names[0]], "")
        else:
            known = ", ".join(_OUTPUT_WORDS)
            raise MpiArgumentError(
                f"{found.option} has {given.flag} {part!r}, but poprun handles the "
                f"output of the instances itself and supports only {known}, nocopy and "
                "dir=DIRECTORY."
            )


def _parameter(found: _Found, given: MpiArgument) -> None:
    parameter, value = given.values
    # mpirun has one table for both, and does not start when one is given twice.
    table = {"gmca": "mca", "gpmixmca": "pmixmca"}.get(given.name, given.name)
    if not found.set(f"{table} {parameter}", value):
        return
    for_others = found.flavour == OPENMPI4 and table != "mca"
    if found.open_mpi and not for_others:
        found.passed_on += [given.flag, parameter, value]
    else:
        found.warnings.append(_has_no_effect(found, f"{given.flag} {parameter}"))


def _has_no_effect(found: _Found, what: str) -> str:
    return (
        f"{found.option} has {what!r}, which has no effect on {_CALLED[found.flavour]}."
    )
