"""What may mend a failure, by its signal and by what was written last."""

import signal
import sys

import pytest

from poprun.reach.own_host.out_of_memory import MemoryCounters
from poprun.result.hints import SIGNALS, hint_for_sigkill, hint_for_words
from poprun.result.instances import InstanceEnd
from poprun.result.report import render
from poprun.result.verdict import Verdict


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("OSError: [Errno 98] Address already in use", "ss -ltnp"),
        ("bind: Address already in use", "ss -ltnp"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/x'", "df -h"),
        ("OSError: [Errno 24] Too many open files: 'x'", "ulimit -n"),
        ("OSError: [Errno 12] Cannot allocate memory", "memory.max"),
        ("terminate called after throwing 'std::bad_alloc'", "memory.max"),
        (
            "MPIDI_UCX_init_worker(86):  ucx function returned with failed status("
            "ucx_init.c 86 MPIDI_UCX_init_worker Shared memory error)",
            "findmnt /dev/shm",
        ),
        ("MPIDI_POSIX_comm_bootstrap(288).......: Out of memory", "findmnt /dev/shm"),
        (
            "ImportError: libx.so.1: cannot open shared object file: No such file",
            "LD_LIBRARY_PATH",
        ),
        ("ModuleNotFoundError: No module named 'pandas'", sys.executable),
        ("ModuleNotFoundError: No module named 'popdist'", "comes with poprun"),
    ],
)
def test_a_known_failure_has_a_hint(words: str, part: str) -> None:
    assert part in hint_for_words(words, "", 0)


def test_an_unknown_failure_has_none() -> None:
    assert hint_for_words("ValueError: the loss is nan", "", 0) == ""
    assert hint_for_words("", "", 0) == ""


def test_sigkill_is_for_want_of_memory_only_where_the_kernel_has_killed() -> None:
    assert hint_for_sigkill(None) == "poprun did not send it."
    assert hint_for_sigkill(0) == (
        "poprun did not send it, and the kernel has not killed any process because "
        "memory ran out. Another process sent it: a user's 'kill', a service, "
        "the batch system, or the program itself."
    )
    assert hint_for_sigkill(1) == (
        "poprun did not send it. The kernel has killed 1 process of that host because "
        "memory ran out, while the job ran: 'dmesg' names each."
    )
    assert "killed 2 processes of" in hint_for_sigkill(2)


def test_sigbus_hints_at_shared_memory() -> None:
    assert "df -h /dev/shm" in SIGNALS[signal.SIGBUS]


def exited_with_1(stderr: bytes) -> Verdict:
    first = InstanceEnd(rank=2, state="failed", host="n1", status=1 << 8, stderr=stderr)
    return Verdict(exit_code=1, first=first)


def test_the_hint_follows_the_cause_as_a_sentence() -> None:
    stderr = b"Traceback (most recent call last):\n  x\nOSError: Too many open files\n"
    verdict = exited_with_1(stderr)

    assert render(verdict, MemoryCounters(), is_in_sight=True) == [
        "Instance 2 on n1 exited with code 1: OSError: Too many open "
        "files. Raise the limit of open files with 'ulimit -n'."
    ]


def test_a_program_without_a_traceback_has_a_hint_too() -> None:
    verdict = exited_with_1(b"bind: Address already in use\n")

    [cause] = render(verdict, MemoryCounters())
    assert cause.startswith(
        'Instance 2 on n1 exited with code 1; its stderr ends with "bind: Address '
        'already in use". Another process'
    )
