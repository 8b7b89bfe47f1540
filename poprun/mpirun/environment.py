"""Environments without what an outer job or its MPI has added to them.

A job may be started by an instance of another one. Variables describe to a process its
place in the outer job, and the processes of the inner job must not inherit them.
"""

import os
import re
from collections.abc import Mapping
from typing import AnyStr

from popdist import environment as env
from poprun.errors import OptionError

# An mpirun sets these for its own processes. Variables that users set are not in the
# list (OMPI_CC, OMPI_ALLOW_RUN_AS_ROOT, OMPI_MCA_btl, HYDRA_IFACE, ...).
_STALE_PREFIXES = (
    "OMPI_APP_",
    "OMPI_COMM_",
    "OMPI_MCA_ess",
    "OMPI_MCA_orte_ess_",
    "OMPI_UNIVERSE",
    "OMPI_WORLD_",
    "HYDI_",
    "MPI_LOCAL",
    "PMI_",
    "PMI2_",
    "PMIX_",
    "PRTE_",
)
_STALE_NAMES = """
    OMPI_ARGV OMPI_COMMAND OMPI_FILE_LOCATION OMPI_FIRST_RANKS OMPI_LIBDIR_LOC
    OMPI_MCA_PREFIXES OMPI_MCA_cpu_type OMPI_MCA_initial_wdir
    OMPI_MCA_mpi_oversubscribe OMPI_MCA_num_procs OMPI_MCA_orte_app_num
    OMPI_MCA_orte_bound_at_launch OMPI_MCA_orte_hnp_uri
    OMPI_MCA_orte_jobfam_session_dir OMPI_MCA_orte_launch
    OMPI_MCA_orte_local_daemon_uri OMPI_MCA_orte_num_nodes
    OMPI_MCA_orte_precondition_transports OMPI_MCA_orte_tmpdir_base
    OMPI_MCA_orte_top_session_dir OMPI_MCA_pmix OMPI_MCA_shmem_RUNTIME_QUERY_hint
    OMPI_NUM_APP_CTX OMPI_TOOL_NAME OMPI_VERSION OPAL_USER_PARAMS_GIVEN
"""
_STALE = frozenset(_STALE_NAMES.split())
_KEPT_PREFIXES = ("PMIX_MCA_", "PRTE_MCA_", "PRTE_ALLOW_RUN_AS_ROOT")

# Where an MPI was moved to. Users set them, and an mpirun does for its own processes:
# then it is where the outer MPI is.
_PLACES = frozenset({"OPAL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX"})
_SIGNS_OF_AN_OUTER_JOB = ("PMIX_NAMESPACE", "OMPI_FILE_LOCATION")

# An mpirun that finds these starts its processes through the batch system instead of
# by itself.
_BATCH_PREFIXES = ("SLURM_", "SLURMD_", "PBS_", "LSB_", "LSF_", "COBALT_")
_BATCH = frozenset({"PE_HOSTFILE", "LOADL_HOSTFILE", "LOADL_STEP_ID"})

# A process of the job needs these to find its MPI.
INSTANCE_PREFIXES = ("HYDI", "MPI_LOCAL", "OMPI_", "OPAL_", "PMI", "PRTE")
# These steer mpirun itself: an mpirun that the program starts is none of ours.
MPIRUN_PREFIXES = ("OMPI_MCA_rmaps_", "PRTE_MCA_")

# An mpirun compares each variable with all others, for each instance: with 20 000 it
# takes seconds. The instances get theirs from poprun, so an mpirun needs only those
# that an MPI, the loader, the C library or a script in its place may read.
MANY_VARIABLES = 1000
_READ_PREFIXES = (
    *INSTANCE_PREFIXES,
    *("FI_", "HWLOC_", "HYDRA_", "MPI", "ORTE_", "PSM", "UCX_"),
    *("GLIBC_", "KRB5", "LC_", "LD_", "MALLOC_", "POPRUN_", "PYTHON"),
    *("SSH_", "XDG_"),
)
_READ_NAMES = """
    DISPLAY HOME HOSTNAME LANG LANGUAGE LOGNAME PATH PWD SHELL TERM TMPDIR TZ USER
    VIRTUAL_ENV
"""
_READ = frozenset(_READ_NAMES.split())

# Prefixes of the names of processes through which an mpirun starts ranks: prterun,
# prted, orterun_wrapper, mpiexec.hydra, ...
_STARTERS_OF_RANKS = "mpirun|mpiexec|orterun|orted|prte|hydra_pmi_proxy"

# Wrong for another job in any case.
_OF_ONE_JOB = frozenset({*env.TOPOLOGY_VARIABLES, *env.JOB_VARIABLES})
# Right if the user has set them, wrong if an outer poprun has.
_OF_AN_OUTER_JOB = frozenset(
    {
        env.NODE_DEVICE_ID,
        env.EXECUTABLE_CACHE_PATH,
        env.MPI4PY_LIBMPI,
        env.LINKS,
        env.OMP_NUM_THREADS,
        env.VIPU_API_PARTITION_ID,
        env.VIPU_API_GCD_ID,
        env.POPLAR_TARGET_OPTIONS,
    }
)


def check_is_only_rank(environ: Mapping[str, str]) -> None:
    """Refuse to be one of several ranks of an mpirun: each would start the job.

    A program that an mpirun has started may start poprun in one of its ranks.

    Raises:
        OptionError: An mpirun has started several copies of poprun.
    """
    sizes = [environ.get(name, "") for name in (env.OMPI_SIZE, env.PMI_SIZE)]
    size = next((text for text in sizes if re.fullmatch("[1-9][0-9]{0,8}", text)), "1")
    if size != "1" and re.match(_STARTERS_OF_RANKS, _parent_name()):
        raise OptionError(
            f"mpirun has started {size} copies of poprun, and each would start "
            f"the whole job. poprun calls mpirun itself: write poprun -n {size} "
            "PROGRAM, without mpirun before it."
        )


def _parent_name() -> str:
    """Return the name of the program that has started poprun, "" if it is hidden."""
    try:
        with open(f"/proc/{os.getppid()}/comm", encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def without_outer_poprun(environ: Mapping[str, str]) -> dict[str, str]:
    """Leave out what an outer poprun set for this process."""
    wrong = _OF_ONE_JOB
    if env.JOB_ID in environ:
        wrong |= _OF_AN_OUTER_JOB
    return {name: value for name, value in environ.items() if name not in wrong}


def without_outer_mpi(environ: Mapping[AnyStr, AnyStr]) -> dict[AnyStr, AnyStr]:
    """Leave out what an outer mpirun set for this process; keep what the user set."""
    names = {os.fsdecode(name) for name in environ}
    is_inside = not names.isdisjoint(_SIGNS_OF_AN_OUTER_JOB)

    def is_stale(name: str) -> bool:
        if name in _PLACES:
            return is_inside
        if name.startswith(_KEPT_PREFIXES):
            return False
        return name in _STALE or name.startswith(_STALE_PREFIXES)

    return {
        name: value
        for name, value in environ.items()
        if not is_stale(os.fsdecode(name))
    }


def without_many(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Leave out what no mpirun reads, if there are very many variables."""
    if len(environ) <= MANY_VARIABLES:
        return environ
    return {
        name: value
        for name, value in environ.items()
        if name in _READ or name.startswith(_READ_PREFIXES)
    }


def without_batch_system(environ: Mapping[str, str]) -> dict[str, str]:
    """Leave out the variables of a batch system, which an mpirun would use."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _BATCH and not name.startswith(_BATCH_PREFIXES)
    }
