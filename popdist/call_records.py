"""The contract between poprun and popdist: what others see of an instance's calls.

While it runs, the arenas of its groups show its calls; programs outside read them
through /proc/PID/fd. In a folder of records, which POPDIST_TRACE names, it records each
call and the program's spans; that stays when it ends. The C core writes all of it, by
popdist/engine/core/shm/arena.h and sync/records.h, but for the spans and groups.
"""

import struct

# The names of the codes, in the order of popdist.engine.spec and the C core.
OPERATIONS = (
    *("barrier", "all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast"),
    *("gather", "scatter", "all_to_all", "send", "recv", "negotiation"),
)
SEND, RECEIVE, NEGOTIATION = (
    OPERATIONS.index(n) for n in ("send", "recv", "negotiation")
)
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool"),
)
ITEM_BYTES = (4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1)
REDUCTIONS = ("sum", "min", "max", "prod", "mean")
ALGORITHMS = ("oneshot", "direct", "ring", "arena")
DONE, IN_PROGRESS = 0, 255

# --- The calls in progress.

# The file in memory that a host's members of a group share, as /proc/PID/fd has it.
ARENA_LINK = "/memfd:popdist-arena (deleted)"
# Its last bytes: BOARD_MAGIC, the number of members, the bytes of a member's activity,
# and how many bytes before the end of the file the first member's begins.
BOARD_END = struct.Struct("=QIIQ40x")
BOARD_MAGIC = int.from_bytes(b"popboard", "little")
# An activity: its process, the number of the instance, how many calls it has begun and
# finished, the bytes of all, the time at which it began to wait for others (by
# CLOCK_MONOTONIC; 0 while it does not), the awaited instance, or -1, and a bit for each
# member that has not begun the call. At CALLS_AT the last RECENT_CALLS calls follow, in
# a circle.
ACTIVITY = struct.Struct("=iiQQQQi4x32s")
CALLS_AT, RECENT_CALLS = 128, 8
# A call: elements, number of its name, operation, dtype, reduction, algorithm, root,
# the operation that it is a prelude to (0 for none), and the number of the call in its
# group. The last call has the largest number.
CALL = struct.Struct("=QQ8x4BhBx24xQ")

# --- The calls of torch.distributed with gloo, which poprun has each process show.

# The file in memory of a process, and its name as /proc/PID/fd has it.
TORCH_NAME = "popdist-torch"
TORCH_LINK = f"/memfd:{TORCH_NAME} (deleted)"
# It begins with TORCH_MAGIC and the process. The groups of the process follow: how many
# calls the group has begun; at TORCH_WAIT_AT the number of the call that the process
# waits for, since when (by CLOCK_MONOTONIC; 0 while it does not) and its name; at
# TORCH_MEMBERS_AT a bit for each member's rank, and the beginning of the group's name,
# the same on all members.
TORCH_HEADER = struct.Struct("=Qi52x")
TORCH_MAGIC = int.from_bytes(b"poptorch", "little")
TORCH_BEGUN, TORCH_WAIT = struct.Struct("=Q"), struct.Struct("=QQ24s")
TORCH_MEMBERS = struct.Struct("=128s64s")
TORCH_WAIT_AT, TORCH_MEMBERS_AT, TORCH_GROUP_BYTES = 8, 64, 256
MOST_TORCH_GROUPS, MOST_TORCH_RANKS = 31, 1024
TORCH_BYTES = TORCH_HEADER.size + MOST_TORCH_GROUPS * TORCH_GROUP_BYTES
# The name of a backward pass of DistributedDataParallel: it computes, too.
TORCH_BACKWARD = b"DDP backward"

# --- The folder of records.

# Both files of a process are named by its number in the job and its pid.
CALLS_SUFFIX, NOTES_SUFFIX = ".calls", ".notes"
# The recordings of torch.profiler, in Chrome's trace format: any number of files.
PROFILE_SUFFIX = ".profile"
# The first record of a file of calls is a header: RECORDS_MAGIC, the version, the
# process, how many records there are with this one, how many more calls there were, and
# CLOCK_MONOTONIC and CLOCK_REALTIME when it was written.
HEADER = struct.Struct("=QIiQQQQ16x")
RECORDS_MAGIC = int.from_bytes(b"popcalls", "little")
RECORDS_VERSION = 2
# A call: its begin and end, the time in between that it waited for others, the bytes of
# its rows, its number in its group, the numbers of its name and of its group, its root,
# operation, dtype, reduction, algorithm, how it ended, whether it was described, and
# the operation that it is a prelude to (0 for none).
RECORD = struct.Struct("=6QIi7Bx")
# The most records of a process: 8 MiB.
MOST_RECORDS = 1 << 17
# The notes are lines of JSON, of these kinds.
PROCESS, GROUP, BEGIN, END, NAMES = "process", "group", "begin", "end", "names"
