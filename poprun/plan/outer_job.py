"""The environment of poprun's caller: what Python and an outer poprun added is removed.

A poprun below another one starts a job of its own. What the outer one told its
instance is not the user's word, and would mislead the inner job.
"""

import os
from collections.abc import Mapping

from popdist import environment as env

# What Python sets LC_CTYPE to, in its own environment, when it finds the C locale.
PYTHONS_OWN_LOCALES = ("C.UTF-8", "C.utf8", "UTF-8")

# Wrong for another job in any case.
_OF_ONE_JOB = frozenset({*env.TOPOLOGY_VARIABLES, *env.JOB_VARIABLES})
# Right if the user has set them, wrong if an outer poprun has.
_OF_AN_OUTER_JOB = frozenset(
    {
        env.NODE_DEVICE_ID,
        env.EXECUTABLE_CACHE_PATH,
        env.MPI4PY_LIBMPI,
        env.OMP_NUM_THREADS,
    }
)


def without_outer_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment as a user would have set it."""
    wrong = _OF_ONE_JOB
    if env.JOB_ID in environ:
        wrong |= _OF_AN_OUTER_JOB
    return {name: value for name, value in environ.items() if name not in wrong}


def without_own_changes(environ: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment as it was given: Python may have added to it.

    Args:
        environ: os.environ.
    """
    # exec accepts no variable without a name, and no program can read one.
    given = {name: value for name, value in environ.items() if name}
    if given.get("LC_CTYPE") in PYTHONS_OWN_LOCALES:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
        del given["LC_CTYPE"]
        for entry in entries:
            name, _, value = entry.partition(b"=")
            if name == b"LC_CTYPE":
                given["LC_CTYPE"] = os.fsdecode(value)
    return given
