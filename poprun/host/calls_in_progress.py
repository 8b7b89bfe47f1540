"""The calls that an instance is in, read from outside: a process -> its calls.

It looks at the memory that the instances share, and asks none of them for anything.
"""

import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from popdist import call_records as records

# No job has so many instances on one host.
MOST_MEMBERS = 256
MOST_INT = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInProgress:
    """A process's part in one of its groups.

    operation: "all_reduce", for example; "" outside of a call.
    nbytes: The length of one row of the arrays.
    number: The calls of a group are numbered from 1.
    waits_since: Since when it waits for other instances, as time.monotonic() counts;
        None while it does not.
    missing: The instances that have not begun the call, as far as this host knows.
    num_calls, total_bytes: The sums over all its calls in the group so far.
    """

    operation: str
    nbytes: int
    number: int
    waits_since: float | None
    missing: tuple[int, ...]
    num_calls: int
    total_bytes: int
    # The instances of this host in the group; with torch's gloo, of all hosts.
    members: tuple[int, ...]
    # With torch's gloo a number for the name of the group; else 0.
    group: int = 0


def read_calls(pid: int) -> list[CallInProgress]:
    """Return what a process does in each of its groups; none if it has none.

    A process that this user may not look at has none, either.
    """
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(f"/proc/{pid}/fd")
    calls: list[CallInProgress] = []
    arenas: dict[tuple[int, int], CallInProgress] = {}
    for name in names:
        path = f"/proc/{pid}/fd/{name}"
        with suppress(OSError):  # it has been closed meanwhile
            link = os.readlink(path)
            if link not in (records.ARENA_LINK, records.TORCH_LINK):
                continue
            with open(path, "rb", buffering=0) as file:
                if link == records.ARENA_LINK:
                    status = os.fstat(file.fileno())
                    call = _read_arena(file.fileno(), status.st_size, pid)
                    if call is not None:
                        arenas[status.st_dev, status.st_ino] = call
                # A process makes one; a program may have made others.
                elif not calls:
                    calls += _read_torch(file.read(records.TORCH_BYTES), pid)
    return [*arenas.values(), *calls]


def _read_torch(board: bytes, pid: int) -> Iterator[CallInProgress]:
    """Yield what a process does in each of its groups of torch's gloo.

    A fork has the file of its parent, and is no member.
    """
    whole = len(board) == records.TORCH_BYTES
    if not whole or records.TORCH_HEADER.unpack_from(board) != (
        records.TORCH_MAGIC,
        pid,
    ):
        return
    for index in range(records.MOST_TORCH_GROUPS):
        at = records.TORCH_HEADER.size + index * records.TORCH_GROUP_BYTES
        (begun,) = records.TORCH_BEGUN.unpack_from(board, at)
        wait_at, members_at = at + records.TORCH_WAIT_AT, at + records.TORCH_MEMBERS_AT
        number, since, operation = records.TORCH_WAIT.unpack_from(board, wait_at)
        mask, name = records.TORCH_MEMBERS.unpack_from(board, members_at)
        bits = int.from_bytes(mask, "little")
        name_of_call = operation.rstrip(b"\0").decode("ascii", "replace")
        # A program may have written anything here, and terminals show it.
        if not bits or not (name_of_call.isascii() and name_of_call.isprintable()):
            return
        yield CallInProgress(
            operation=name_of_call,
            nbytes=0,
            number=number,
            waits_since=since / 1e9 if since else None,
            missing=(),
            num_calls=begun,
            total_bytes=0,
            members=tuple(i for i in range(bits.bit_length()) if bits >> i & 1),
            group=zlib.crc32(name) & MOST_INT or 1,
        )


def _read_arena(fd: int, size: int, pid: int) -> CallInProgress | None:
    """Return what a process does in the group of an arena; None if it is no member."""
    end_bytes = records.BOARD_END.size
    end = os.pread(fd, end_bytes, max(size - end_bytes, 0))
    if len(end) != end_bytes:
        return None
    magic, members, each, from_end = records.BOARD_END.unpack(end)
    if magic != records.BOARD_MAGIC or not 0 < members <= MOST_MEMBERS:
        return None
    # A program that writes outside of its arrays may have written anything here.
    calls_bytes = each - records.CALLS_AT
    if calls_bytes <= 0 or calls_bytes % records.CALL.size or members * each > size:
        return None
    board = os.pread(fd, members * each, size - from_end)
    if len(board) != members * each:
        return None
    activities = [
        records.ACTIVITY.unpack_from(board, member * each) for member in range(members)
    ]
    for member, activity in enumerate(activities):
        if activity[0] == pid:
            calls = board[member * each + records.CALLS_AT : (member + 1) * each]
            instances = tuple(activity[1] for activity in activities)
            return _describe(activity, calls, instances)
    return None


def _describe(
    activity: tuple[int, int, int, int, int, int, int, bytes],
    calls: bytes,
    instances: tuple[int, ...],
) -> CallInProgress:
    _, _, begun, over, total, since_ns, _, mask = activity
    bits = int.from_bytes(mask, "little")
    count, _, operation, dtype, *_, number = max(
        records.CALL.iter_unpack(calls), key=lambda call: call[-1]
    )
    is_known = operation < len(records.OPERATIONS) and dtype < len(records.ITEM_BYTES)
    is_in_call = begun != over and is_known
    return CallInProgress(
        operation=records.OPERATIONS[operation] if is_in_call else "",
        nbytes=count * records.ITEM_BYTES[dtype] if is_in_call else 0,
        number=number,
        waits_since=since_ns / 1e9 if since_ns and is_in_call else None,
        missing=tuple(
            instance for i, instance in enumerate(instances) if bits >> i & 1
        ),
        num_calls=begun,
        total_bytes=total,
        members=instances,
    )
