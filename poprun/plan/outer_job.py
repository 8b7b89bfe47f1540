"""What an outer poprun told this process, and what is left without it.

A poprun below another one starts a job of its own. What the outer one told its
instance is not the user's word, and would mislead the inner job.
"""

from collections.abc import Mapping

from popdist import environment as env

# Never right for another job, whoever has set them.
_OF_ONE_JOB = frozenset({*env.TOPOLOGY_VARIABLES, *env.JOB_VARIABLES})
# Right if a user has set them, wrong if an outer poprun has.
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
