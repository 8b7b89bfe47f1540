import errno
import gc
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from meeting import Meeting, run

from popdist.engine.meet.meeting import Meeting as OneMeeting
from popdist.engine.meet.pidfds import started
from popdist.engine.shm import arena, shm_member
from popdist.engine.shm.heap import HEAP_SPAN
from popdist.engine.tuning import Tuning
from popdist.errors import ArenaError
from tests.popdist.engine.members import group_of


def meet_alone(nbytes: int = 65536, seldom: tuple[int, int] = (0, 0)) -> arena.Arena:
    return arena.share_arena(
        OneMeeting("alone", 0, [0], timeout=200, stall=200),
        lambda pids: arena.Memory(nbytes, seldom, lambda memory: None),
        "",
    )


def target_of(fd: str) -> str:
    path = f"/proc/self/fd/{fd}"
    return os.readlink(path) if os.path.lexists(path) else ""


def open_files() -> list[str]:
    # Groups of other tests close theirs when they are collected.
    gc.collect()
    return sorted(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7])
def test_all_members_have_one_memory_and_know_each_other(size: int) -> None:
    body = """
        shared = join()
        assert shared.memory[:5] == b"hello"
        shared.memory[100 + rank] = 1
        while sum(shared.memory[100 : 100 + size]) < size:
            time.sleep(0.001)
        for other, pidfd in enumerate(shared.pidfds):
            assert (pidfd == -1) == (other == rank)
            if other != rank:
                assert f"Pid:\\t{shared.pids[other]}\\n" in open(
                    f"/proc/self/fdinfo/{pidfd}"
                ).read()
        print(shared.pids)
        shared.memory[200 + rank] = 1
        while sum(shared.memory[200 : 200 + size]) < size:
            time.sleep(0.001)
    """
    with Meeting(size) as meeting:
        pids = tuple(meeting.start(rank, body) for rank in range(size))
        ended = meeting.finish()

    assert ended == [(0, f"{pids}\n", "")] * size


def test_the_end_of_a_member_makes_its_pidfd_readable() -> None:
    ended = run(
        2,
        """
        import select
        shared = join()
        print(select.select([shared.pidfds[1 - rank]], [], [], 200)[0] != [])
        """,
        {1: "join()"},
    )

    assert ended == [(0, "True\n", ""), (0, "", "")]


def test_a_thousand_meetings_leave_no_file_and_no_mapping_open() -> None:
    ended = run(
        2,
        """
        def things():
            maps = [line for line in open("/proc/self/maps") if "memfd" in line]
            return len(maps), sorted(os.listdir("/proc/self/fd"))

        before = things()
        for _ in range(1000):
            join().close()
        assert things() == before
        print("the same")
        """,
    )

    assert ended == [(0, "the same\n", "")] * 2


def test_no_file_is_handed_down_to_programs() -> None:
    ended = run(
        3,
        """
        kept = join()
        for fd in os.listdir("/proc/self/fd"):
            if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}"):
                assert not os.get_inheritable(int(fd)), fd
        print(len(kept.pidfds))
        """,
    )

    assert ended == [(0, "3\n", "")] * 3


def test_views_of_the_memory_outlive_the_arena() -> None:
    shared = meet_alone()
    view = memoryview(shared.memory)

    shared.close()
    view[7] = 42

    assert view[7] == 42


def test_closing_twice_is_closing_once() -> None:
    before = open_files()
    shared = meet_alone()
    shared.close()
    shared.close()

    assert open_files() == before
    assert repr(shared) == "<Arena: 0 of 1, closed>"


def test_files_that_the_program_has_put_in_place_of_its_own_stay_open() -> None:
    shared = meet_alone()
    os.dup2(0, shared.fd)
    shared.close()

    assert os.path.sameopenfile(0, shared.fd)
    os.close(shared.fd)


def test_its_name_shows_who_and_how_much() -> None:
    shared = meet_alone(3 << 20)

    assert repr(shared) == "<Arena: 0 of 1, 3 MiB>"
    shared.close()


def test_the_heap_is_long_and_takes_no_memory() -> None:
    shared = meet_alone()
    status = os.stat(shared.fd)

    assert (status.st_size, status.st_blocks) == (HEAP_SPAN + 65536, 0)
    shared.close()


def test_nothing_can_make_its_file_longer_or_shorter() -> None:
    shared = meet_alone(3 << 20)
    assert "popdist-arena" in target_of(str(shared.fd))
    length = os.stat(shared.fd).st_size
    for other in (0, length - 4096, length + 4096):
        with pytest.raises(PermissionError):
            os.ftruncate(shared.fd, other)
    with (
        open(f"/proc/self/fd/{shared.fd}", "r+b") as again,
        pytest.raises(PermissionError),
    ):
        again.truncate(0)

    assert os.stat(shared.fd).st_size == length
    os.posix_fallocate(shared.fd, 4096, 4096)
    shared.close()


def test_a_core_dump_leaves_the_memory_out() -> None:
    shared = meet_alone()
    smaps = Path("/proc/self/smaps").read_text()

    _, _, ours = smaps.partition("/memfd:popdist-arena")
    flags = next(line for line in ours.splitlines() if line.startswith("VmFlags:"))
    assert "dd" in flags.split()
    shared.close()


def test_the_file_has_no_heap_if_long_files_are_forbidden() -> None:
    ended = run(
        2,
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        shared = join()
        print(os.stat(shared.fd).st_size == len(shared.memory))
        """,
    )

    assert ended == [(0, "True\n", "")] * 2


def test_memory_beyond_the_cgroups_limit_is_refused_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = open_files()
    monkeypatch.setattr(arena, "memory_left", lambda: 1 << 20)

    with pytest.raises(ArenaError) as refusal:
        meet_alone(3 << 20)

    assert str(refusal.value) == (
        "The instances of this host need 3 MiB of shared memory, but the memory "
        "cgroup of instance 0 has only 1 MiB left. Raise its limit, or start fewer "
        "instances on this host."
    )
    assert open_files() == before


def test_memory_up_to_the_cgroups_limit_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arena, "memory_left", lambda: 1 << 20)
    shared = meet_alone(1 << 20)

    assert len(shared.memory) == 1 << 20
    shared.close()


def test_seldom_used_memory_need_not_fit_into_the_cgroup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arena, "memory_left", lambda: 1 << 20)
    shared = meet_alone(3 << 20, seldom=(4096, 4096 + (2 << 20)))

    assert len(shared.memory) == 3 << 20
    shared.close()
    with pytest.raises(ArenaError, match=r"need 1\.004 MiB of shared memory, but"):
        meet_alone(3 << 20, seldom=(4096, 2 << 20))


def test_of_a_large_group_the_channels_of_all_pairs_are_seldom_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def note(*arguments: object) -> None:
        asked.extend(arguments)
        raise ArenaError("This is all that the test wants to know.")

    monkeypatch.setattr(shm_member, "share_arena", note)
    with pytest.raises(ArenaError):
        group_of("large", 0, 64, tuning=Tuning(block_bytes=1 << 19))

    nbytes, (begin, end), _ = asked[1]([])
    # Two messages of 32 KiB each.
    assert end - begin >= 64 * 64 * 2 * 32768
    assert nbytes < 2 * (end - begin)


@pytest.mark.parametrize("strict", [False, True])
def test_a_kernel_that_counts_every_page_is_asked_for_all_in_use_at_once(
    strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "commits_strictly", lambda: strict)
    shared = meet_alone(3 << 20, seldom=(1 << 20, 2 << 20))

    taken = os.stat(shared.fd).st_blocks * 512
    assert taken == (2 << 20 if strict else 0)
    shared.close()


def test_memory_that_such_a_kernel_refuses_is_an_arena_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(fd: int, begin: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = open_files()
    monkeypatch.setattr(arena, "commits_strictly", lambda: True)
    monkeypatch.setattr(os, "posix_fallocate", refuse)

    with pytest.raises(ArenaError) as refusal:
        meet_alone(3 << 20)

    assert str(refusal.value) == (
        "The instances of this host need 3 MiB of shared memory, but the kernel grants "
        "no more (No space left on device), as vm.overcommit_memory is 2 here. Raise "
        "vm.overcommit_ratio, add swap, or start fewer instances on this host."
    )
    assert open_files() == before


def test_memory_that_member_0_cannot_make_is_refused_on_all() -> None:
    ended = run(3, "join()", {0: "arena.memory_left = lambda: 4096\njoin()"})

    refusal = (
        "ArenaError: The instances of this host need 64 KiB of shared memory, but the "
        "memory cgroup of instance 0 has only 4 KiB left. Raise its limit, or start "
        "fewer instances on this host.\n"
    )
    assert ended == [(0, refusal, "")] * 3


def test_a_file_that_is_too_long_is_an_arena_error() -> None:
    ended = run(
        1,
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        join()
        """,
    )

    refusal = (
        "ArenaError: Instance 0 could not share memory with the others: "
        "[Errno 27] File too large.\n"
    )
    assert ended == [(0, refusal, "")]


def test_an_error_of_the_initialiser_reaches_all() -> None:
    ended = run(
        3,
        "join()",
        {
            0: """
            def initialise(memory):
                raise KeyError("layout")
            join()
            """
        },
    )

    told = (
        "ArenaError: Instance 0 could not join the others: KeyError: 'layout'. "
        "Look above for its output.\n"
    )
    assert ended[0].code == 1
    assert ended[0].err.endswith("KeyError: 'layout'\n")
    assert ended[1:] == [(0, told, "")] * 2


def test_a_member_that_cannot_map_the_memory_stops_all() -> None:
    body = "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
    ended = run(3, "join(nbytes=2 << 30)", {2: body + "join(nbytes=2 << 30)"})

    told = (
        "ArenaError: Instance 2 could not join the others: OSError: [Errno 12] "
        "Cannot allocate memory. Look above for its output.\n"
    )
    raised = (
        "ArenaError: Instance 2 could not share memory with the others: "
        "[Errno 12] Cannot allocate memory.\n"
    )
    assert ended == [(0, told, ""), (0, told, ""), (0, raised, "")]


def test_a_member_that_may_open_no_more_files_stops_all() -> None:
    body = """
        import _socket, mmap, select
        kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
        most = max(kept) + 2
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        join()
    """
    ended = run(3, "join()", {2: body})

    refusal = (
        "ArenaError: Instance 2 could not take over the file descriptor of instance "
        "0. Raise its limit of open files (ulimit -n).\n"
    )
    assert ended == [(0, refusal, "")] * 3


@pytest.mark.parametrize("victim", [0, 1])
def test_a_member_without_files_for_pidfds_names_the_limit(victim: int) -> None:
    # They run out only when the members have met.
    body = """
        from popdist.engine.shm import arena as module

        def watch(instance, member):
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
            return real(instance, member)

        real, module.watch = module.watch, watch
        join()
    """
    ended = run(2, "join()", {victim: body})

    refusal = (
        f"ArenaError: Instance {victim} cannot share memory with the others, because "
        "it has as many open files as the limit allows. Close files, or raise the "
        "limit (ulimit -n).\n"
    )
    assert ended == [(0, refusal, "")] * 2


def test_the_start_of_a_process_is_read_behind_any_name() -> None:
    program = "open('/proc/self/comm', 'w').write(') 1 (x'); print(1); input()"
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        select.select([process.stdout], [], [], 200)
        renamed = started(process.pid)
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        process.kill()

    assert ") 1 (x" in stat
    assert renamed == int(stat.replace(") 1 (x", "x").split()[21])


def test_a_process_that_is_not_there_has_no_start() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass

    with pytest.raises(
        ProcessLookupError, match=f"There is no process {process.pid}\\."
    ):
        started(process.pid)
