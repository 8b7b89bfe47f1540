"""What users say to mpirun, understood: the texts of --mpi-global-args and its kin.

Every MPI gets its own translation, so that one command line works on all of them.
What contradicts poprun's own arguments is refused by name; what nobody here knows is
passed on to Open MPI, which has hundreds of options, and refused for hydra.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from popdist.environment import JOB_VARIABLES, TOPOLOGY_VARIABLES
from poprun.errors import MpiArgumentError
from poprun.mpirun import values
from poprun.mpirun.options import (
    GLOBAL,
    INSTANCE,
    LOCAL,
    NUMBER_OF_VALUES,
    PLACEMENTS,
    REFUSED,
)
from poprun.mpirun.values import (
    OPENMPI4,
    OPENMPI5,
    GlobalArguments,
    LocalArguments,
)
from poprun.mpirun.words import Option, options

_CALLED = {
    OPENMPI4: "Open MPI 4",
    OPENMPI5: "Open MPI 5",
    values.HYDRA: "hydra",
    values.LOCAL: "poprun's own launcher",
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Open MPI 4.1 allows such words after the directory.
_DIRECTORY_WITH_WORDS = re.compile(r".*:(no)?(copy|jobid|pattern|raw)\b.*", re.DOTALL)


def parse_global(text: str, flavour: str) -> GlobalArguments:
    """Understand the arguments for mpirun that count for the whole job.

    Raises:
        MpiArgumentError: One contradicts poprun, or this mpirun has no such one.
    """
    found = _parse(text, flavour, GLOBAL)
    return GlobalArguments(
        tag_output=found.tag_output,
        output_filename=found.settings.get("output-filename"),
        allow_run_as_root=found.allow_run_as_root,
        placement=found.placement(),
        npernode=found.npernode(),
        exports=found.exports,
        passed_on=tuple(found.passed_on),
        warnings=tuple(found.warnings),
    )


def parse_local(text: str, flavour: str, option: str = LOCAL) -> LocalArguments:
    """Understand the arguments for mpirun that count for every instance, or one.

    Args:
        option: Where the text comes from, for messages.

    Raises:
        MpiArgumentError: One contradicts poprun, or this mpirun has no such one.
    """
    found = _parse(text, flavour, option)
    for name in ("tag-output", "output-filename", "bind-to", "allow-run-as-root"):
        if name in found.settings:
            raise MpiArgumentError(
                f"{option} has --{name}, which counts for the whole job. "
                f"Give it by {GLOBAL}."
            )
    return LocalArguments(
        npernode=found.npernode(),
        exports=found.exports,
        passed_on=tuple(found.passed_on),
        warnings=tuple(found.warnings),
    )


def parse_instance_arguments(texts: Sequence[str]) -> dict[int, str]:
    """Split each "INSTANCE:ARGUMENTS"; what is said twice of one instance is merged.

    Raises:
        MpiArgumentError: There is no number before a colon.
    """
    merged: dict[int, str] = {}
    for text in texts:
        number, colon, arguments = text.partition(":")
        if not (colon and number.isascii() and number.strip().isdigit()):
            raise MpiArgumentError(
                f"{INSTANCE} is {text!r}, but must be the number of an instance, a "
                f'colon and arguments, as in {INSTANCE} "1:-x NAME=VALUE".'
            )
        index = int(number)
        merged[index] = f"{merged[index]} {arguments}" if index in merged else arguments
    return merged


@dataclass(slots=True)
class _Found:
    """What has been read so far."""

    option: str
    flavour: str
    settings: dict[str, str] = field(default_factory=dict)
    exports: dict[str, str | None] = field(default_factory=dict)
    passed_on: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def tag_output(self) -> bool:
        return "tag-output" in self.settings

    @property
    def allow_run_as_root(self) -> bool:
        return "allow-run-as-root" in self.settings

    @property
    def open_mpi(self) -> bool:
        return self.flavour in (OPENMPI4, OPENMPI5)

    def set(self, name: str, value: str) -> bool:
        """Return whether this is the first time that this is said."""
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
        # What follows a colon says how to do it, which poprun knows itself.
        place = wish.partition(":")[0]
        if place not in PLACEMENTS:
            raise MpiArgumentError(
                f"{self.option} has --bind-to {wish!r}, but poprun can bind to "
                f"{', '.join(PLACEMENTS)} only. See --process-placement."
            )
        return PLACEMENTS[place]


def _parse(text: str, flavour: str, option: str) -> _Found:
    found = _Found(option=option, flavour=flavour)
    for given in options(text, option):
        _understand(found, given)
    return found


def _understand(found: _Found, given: Option) -> None:
    name, word = given.name, given.word
    if name in REFUSED:
        raise MpiArgumentError(
            f"{found.option} has {word!r}, which contradicts poprun. {REFUSED[name]}"
        )
    match name:
        case "x":
            _export(found, given.values[0])
        case "tag-output" | "allow-run-as-root":
            found.set(name, "")
        case "output-filename":
            found.set(name, _directory(given.values[0], found.option))
        case "bind-to" | "npernode":
            found.set(name, given.values[0])
        case "mca" | "gmca" | "prtemca" | "pmixmca":
            _parameter(found, given)
        case "quiet":
            # mpirun's own words are kept back anyway, and wanted when it fails.
            pass
        case "oversubscribe" if not found.open_mpi:
            # Others count no slots.
            pass
        case _ if found.open_mpi:
            _pass_on(found, given)
        case _ if name in NUMBER_OF_VALUES:
            found.warnings.append(_has_no_effect(found, word))
        case _:
            raise MpiArgumentError(
                f"{found.option} has {word!r}, which poprun cannot translate for "
                f"{_CALLED[found.flavour]}. Leave it out, or choose an Open MPI with "
                "--mpirun."
            )


def _pass_on(found: _Found, given: Option) -> None:
    # Open MPI 5 does not start when an option is said twice.
    if given.name in NUMBER_OF_VALUES:
        value = " ".join(given.values)
        if not found.set(given.name, value):
            return
    found.passed_on += [given.word, *given.values]


def _export(found: _Found, assignment: str) -> None:
    name, equals, value = assignment.partition("=")
    if not _VARIABLE.fullmatch(name):
        raise MpiArgumentError(
            f"{found.option} has -x {assignment!r}, but {name!r} cannot be the name of "
            "a variable: that consists of letters, digits and '_', and does not begin "
            "with a digit. Write -x NAME or -x NAME=VALUE."
        )
    if name in TOPOLOGY_VARIABLES or name in JOB_VARIABLES:
        raise MpiArgumentError(
            f"{found.option} has -x {assignment!r}, but nobody except poprun sets "
            f"{name}: it tells each instance its place in the job. Leave it out."
        )
    # The last one counts, and stands where it was given.
    found.exports.pop(name, None)
    found.exports[name] = value if equals else None


def _directory(value: str, option: str) -> str:
    if not value or _DIRECTORY_WITH_WORDS.fullmatch(value):
        raise MpiArgumentError(
            f"{option} has --output-filename {value!r}, but it must be the name of a "
            "directory and nothing else. Its files are 1/rank.N/stdout and stderr, "
            "and the console keeps its copy."
        )
    return value


def _parameter(found: _Found, given: Option) -> None:
    parameter, value = given.values
    # mpirun has one table for both, and does not start when one is said twice.
    table = "mca" if given.name == "gmca" else given.name
    if not found.set(f"{table} {parameter}", value):
        return
    for_others = found.flavour == OPENMPI4 and table != "mca"
    if found.open_mpi and not for_others:
        found.passed_on += [given.word, parameter, value]
    else:
        found.warnings.append(_has_no_effect(found, f"{given.word} {parameter}"))


def _has_no_effect(found: _Found, what: str) -> str:
    return (
        f"{found.option} has {what!r}, which has no effect on {_CALLED[found.flavour]}."
    )
