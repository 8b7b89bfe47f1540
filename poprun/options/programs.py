"""The programs of a job: mpirun's `-n 1 a : -n 3 b`. Command line -> Program. Pure.

-n, --env and --cwd apply to the program after them. All other options apply to the
whole job.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from poprun.errors import OptionError
from poprun.options.grammar import COLON_AS_ARGUMENT, CommandLine, join_programs
from poprun.options.settings import Settings, resolve_settings
from poprun.options.table import IPU_OPTIONS, OF_ONE_PROGRAM, OPTIONS
from poprun.options.types import AUTO

NUMBERS = ("num-instances", "num-processes")
SHELLS = ("ash", "bash", "dash", "ksh", "sh", "zsh")
# The options of Python that take the next word as their value.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")

# PopRun's options with long names that hardly any other program has.
_OWN_NAMES = """
    num-instances print-topology topology-format process-placement numa-aware
    host-subnet synchronise-python-venv synchronise-poplar-sdk distribute-ssh-key
    mpi-global-args mpi-local-args instance-mpi-local-args allow-run-as-root
    only-output-from-instance offline-mode executable-cache-path emulate-sdk
"""
_OWN = frozenset([*_OWN_NAMES.split(), *IPU_OPTIONS])
# Programs with some of these options.
_OWN_PROGRAMS = ("poprun", "popctl", "vipu", "vipu-admin", "vipu-server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program of the job, and the instances that run it."""

    argv: Sequence[str]
    # Empty where it is the only program, until their number is known.
    instances: range
    # The values of --env and --cwd.
    variables: Sequence[tuple[str, str, str | None]] = ()
    cwd: str | None = None

    @property
    def name(self) -> str:
        """A short name for users: the script, where an interpreter runs one."""
        return name_of(self.argv)


def resolve_programs(
    line: CommandLine, environ: Mapping[str, str]
) -> tuple[Settings, list[Program]]:
    """Return the settings of the job, and its programs.

    Raises:
        OptionError: A value is not valid; the sentence says where it is.
    """
    if not line.others:
        settings = resolve_settings(line.options, environ)
        # Their number may follow from the hosts.
        return settings, [_program(line.program, settings, range(0))]
    parts = (line, *line.others)
    common = [pair for pair in line.options if pair[0].name not in OF_ONE_PROGRAM]
    programs: list[Program] = []
    first = 0
    for part in parts:
        if not any(option.name in NUMBERS for option, _ in part.options):
            raise OptionError(
                f"The program {name_of(part.program)!r} has no number of instances. "
                "Where ':' separates several programs, each has its own: poprun -n 1 "
                "a.py : -n 3 b.py",
                COLON_AS_ARGUMENT,
            )
        own = [pair for pair in part.options if pair[0].name in OF_ONE_PROGRAM]
        settings = resolve_settings([*common, *own], environ)
        if settings["num-instances"] == AUTO:
            raise OptionError(
                f"The number of instances of {name_of(part.program)!r} is auto, which "
                "is for a job of one program. Write a number."
            )
        instances = range(first, first + settings["num-instances"])
        programs.append(_program(part.program, settings, instances))
        first = instances.stop
    # With -n each instance is one replica, unless --num-replicas is given.
    names = {option.name for part in parts for option, _ in part.options}
    total = "num-processes" if "num-processes" in names else "num-instances"
    settings = resolve_settings([*common, (OPTIONS[total], str(first))], environ)
    return settings, programs


def _program(argv: Sequence[str], settings: Settings, instances: range) -> Program:
    return Program(
        argv=argv, instances=instances, variables=settings["env"], cwd=settings["cwd"]
    )


def words_of(programs: Sequence[Program]) -> list[str]:
    """Return the words of all programs."""
    return join_programs(program.argv for program in programs)


def name_of(argv: Sequence[str]) -> str:
    """Return a short name of a program: the script that an interpreter runs."""
    name = os.path.basename(argv[0])
    is_python = name.startswith(("python", "pypy"))
    if not (is_python or name in SHELLS):
        return name
    words = iter(argv[1:])
    for word in words:
        # Python and shells take several short options in one word: -uc, -Im.
        letters = word[1:] if word[1:].isalpha() and word[0] == "-" else ""
        if letters.endswith("c"):
            return f"{name} -c"
        if is_python and letters.endswith("m"):
            return next(words, name)
        if is_python and word in _WITH_VALUE:
            next(words, "")
        elif not word.startswith("-"):
            return os.path.basename(word.rstrip("/"))
    return name


def explain_misplaced(words: Sequence[str], given: Collection[str] = ()) -> list[str]:
    """Return a sentence about options of poprun after the program, if there are any.

    Args:
        words: The program with its arguments.
        given: The names of options given to poprun: the program may have them as well.
    """
    misplaced: dict[str, None] = {}
    for word in words:
        if word == "--" or os.path.basename(word) in _OWN_PROGRAMS:
            break
        name = word.removeprefix("--").partition("=")[0]
        if word.startswith("--") and name in _OWN and name not in given:
            misplaced[f"--{name}"] = None
    if not misplaced:
        return []
    *most, last = misplaced
    problem = f"{last} comes after the program, so it is passed to the program."
    if most:
        names = f"{', '.join(most)} and {last}"
        problem = f"{names} come after the program, so they are passed to the program."
    return [f"{problem} Write poprun's options before the program."]
