"""Options of poprun among the arguments of the program. Pure."""

import os
from collections.abc import Collection, Iterator, Sequence

from poprun.options.table import IPU_OPTIONS

# PopRun's options whose long names hardly any program has.
_OWN_NAMES = """
    num-instances print-topology topology-format process-placement numa-aware
    host-subnet synchronise-python-venv synchronise-poplar-sdk distribute-ssh-key
    mpi-global-args mpi-local-args instance-mpi-local-args allow-run-as-root
    only-output-from-instance offline-mode executable-cache-path emulate-sdk
"""
_OWN = frozenset([*_OWN_NAMES.split(), *IPU_OPTIONS])
# These have such options of their own.
_OWN_PROGRAMS = ("poprun", "popctl", "vipu", "vipu-admin", "vipu-server")


def find_misplaced(program: Sequence[str], given: Collection[str] = ()) -> list[str]:
    """Return the options of poprun that stand after the program.

    Args:
        given: The names of options given to poprun: the program may have them as well.
    """
    found: dict[str, None] = {}
    for word in program:
        if word == "--" or os.path.basename(word) in _OWN_PROGRAMS:
            break
        name = word.removeprefix("--").partition("=")[0]
        if word.startswith("--") and name in _OWN and name not in given:
            found[f"--{name}"] = None
    return list(found)


def explain_misplaced(flags: Sequence[str]) -> Iterator[str]:
    """Yield a sentence about such options, if there are any."""
    if not flags:
        return
    if len(flags) == 1:
        problem = f"{flags[0]} comes after the program, so it is passed to the program."
    else:
        names = f"{', '.join(flags[:-1])} and {flags[-1]}"
        problem = f"{names} come after the program, so they are passed to the program."
    yield f"{problem} Write poprun's options before the program."
