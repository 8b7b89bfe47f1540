"""Likely causes of an instance's failure, from its signal and its last words. Pure."""

import re
import signal
import sys
from collections.abc import Sequence

from poprun.result.instances import InstanceEnd

# By a pattern of the whole last line, whose groups are fields of the text. `stdin` is
# the value of --stdin to advise, and `python` the Python of poprun.
AT_END_OF_INPUT = {
    "EOFError: EOF when reading a line": "It has no standard input: write --stdin "
    "{stdin}.",
    r"bdb\.BdbQuit": "breakpoint() found no terminal. Add --pdb {rank} to give "
    "poprun's terminal to instance {rank}.",
}
EXCEPTIONS = {
    "ModuleNotFoundError: No module named 'popdist'": "It comes with poprun, which is "
    "installed for {python}: run the program with that Python, or install poprun for "
    "the other one.",
    # popdist/sdk/finder.py has the same names.
    "ModuleNotFoundError: No module named '(?P<module>poptorch|horovod|popart|"
    r"tensorflow\.python\.ipu|tensorflow\.compiler\.plugin)'": "popdist has a "
    "stand-in for {module}, which Python finds unless --emulate-sdk=no or "
    "POPDIST_SDK=no is set. If Python ignores PYTHONPATH, or another program starts "
    "it, enable the stand-ins in its environment: python -m popdist.sdk enable",
    "(?:ModuleNotFoundError: No module named |ImportError: cannot import name .* from )"
    r"'tensorflow\.(?:python\.ipu|compiler\.plugin)\b[^']*'.*": "It is part of "
    "Graphcore's TensorFlow, but not of popdist's stand-in for it: "
    "docs/tensorflow_ipu.md lists what the stand-in has.",
    "ModuleNotFoundError: No module named '[^']+'": "Install it for the Python that "
    "runs the program, or run the program with another Python. poprun's own is "
    "{python}.",
}
READ_ONLY = (
    "MPICH keeps shared memory in /dev/shm, where this process could not create any: "
    "'findmnt /dev/shm' shows whether it is read-only. Mount it for writing on that "
    "host, or use Open MPI, which needs none there (--mpirun)."
)
LITTLE_MEMORY = (
    "There is not enough memory, or a limit is too low: see 'free -m', 'ulimit -v' and "
    "memory.max of the cgroup."
)
# By what the last line contains, in any case of letters.
SHORTAGES = {
    "address already in use": "Another process listens there, perhaps one from an "
    "earlier run: 'ss -ltnp' names it. poprun gives each attempt a free port in "
    "MASTER_PORT.",
    "no space left on device": "A disk or /dev/shm is full: see 'df -h'. Loaders of "
    "torch and other libraries keep data in /dev/shm.",
    # Each part of MPICH reports it in its own words: UCX, and POSIX shared memory.
    "mpidi_ucx_init_worker shared memory error": READ_ONLY,
    "mpidi_posix_comm_bootstrap": READ_ONLY,
    "too many open files": "Raise the limit of open files with 'ulimit -n'.",
    "cannot allocate memory": LITTLE_MEMORY,
    "std::bad_alloc": LITTLE_MEMORY,
    "cannot open shared object file": "The library is not where the loader looks for "
    "it: see 'ldconfig -p' and LD_LIBRARY_PATH.",
}
CPU_LIMIT = "Its CPU time is limited: see 'ulimit -t'."
SIGNALS: dict[int, str] = {
    signal.SIGBUS: "This happens when /dev/shm is full or a mapped file was "
    "truncated: see 'df -h /dev/shm'.",
    signal.SIGILL: "The program contains an instruction that this CPU does not "
    "have: it was compiled for another CPU.",
    signal.SIGXCPU: CPU_LIMIT,
    signal.SIGXFSZ: "The size of its files is limited: see 'ulimit -f'.",
}
# How C++ reports an uncaught exception, and a thread that was not joined.
TERMINATE = "terminate called "
FAULTHANDLER = (
    "Set PYTHONFAULTHANDLER=1 to have Python show where it was when this happens."
)
DESTROY_GROUPS = (
    "Call torch.distributed.destroy_process_group() before the program ends: threads "
    "of a process group that still exists then may abort it."
)


def hint_for_signal(
    end: InstanceEnd, lines: Sequence[str], kills: int | None, *, has_fault: bool
) -> str:
    """Return how to find or mend what a signal means that killed an instance, or "".

    Args:
        lines: The lines of its stderr.
        kills: As in hint_for_sigkill.
        has_fault: Whether the cause has a fault that faulthandler has reported.
    """
    if end.killed_by == signal.SIGKILL:
        return hint_for_sigkill(kills)
    is_by_cpp = any(line.startswith(TERMINATE) for line in lines)
    if end.killed_by == signal.SIGABRT and end.uses_torch_groups and is_by_cpp:
        return DESTROY_GROUPS
    if end.lacks_faulthandler and not has_fault:
        return FAULTHANDLER
    return SIGNALS.get(end.killed_by or 0, "")


def hint_for_sigkill(kills: int | None) -> str:
    """Return a sentence on who sent SIGKILL: it was not poprun.

    Args:
        kills: How many processes of that host the kernel killed because memory ran out
            during the attempt; None if it is not known.
    """
    if kills is None:
        return "poprun did not send it."
    if not kills:
        return (
            "poprun did not send it, and the kernel has not killed any process because "
            "memory ran out. Another process sent it: a user's 'kill', a service, "
            "the batch system, or the program itself."
        )
    return (
        f"poprun did not send it. The kernel has killed {kills} "
        f"{'process' if kills == 1 else 'processes'} of that host because memory ran "
        "out, while the job ran: 'dmesg' names each."
    )


def hint_for_words(last_line: str, stdin_advice: str, rank: int) -> str:
    """Return how to mend the failure in an instance's last line, or "".

    Args:
        stdin_advice: The value of --stdin to advise, if the instance had an empty
            standard input.
    """
    hints = AT_END_OF_INPUT | EXCEPTIONS if stdin_advice else EXCEPTIONS
    for pattern, hint in hints.items():
        if match := re.fullmatch(pattern, last_line):
            values = {"python": sys.executable, "rank": rank, "stdin": stdin_advice}
            return hint.format(**values, **match.groupdict())
    words = last_line.lower()
    return next((hint for text, hint in SHORTAGES.items() if text in words), "")
