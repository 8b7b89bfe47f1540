/* The layout of the memory that the members of a group share.
 *
 * Nothing here is ever reset: counters only grow, and each has one writer. Two things that
 * different members touch at the same time lie in separate cache lines.
 */
#ifndef POPDIST_ARENA_H
#define POPDIST_ARENA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CACHE_LINE = 64,
    /* Processors fetch lines in pairs, so data of different writers is this far apart. */
    APART = 128,
    PAGE = 4096,
    MAX_MEMBERS = 256,
    MAX_LEAVES = 4096, /* replicas of a group */
    /* The most data that one member can put into an announcement. Longer rows go through
     * slots: there a member writes to lanes that have left the other members' caches. */
    ANNOUNCEMENT_BYTES = 4096,
    MOST_ONESHOT_BYTES = 65536,
    /* The room for messages between a send and its receive. */
    MESSAGE_SLOT_BYTES = 32768,
    /* Shares of a block are whole lines of even the smallest elements. */
    SHARE_UNIT = 64,
    /* In the smallest block, each of 256 members has room for an element of 8 bytes of
     * every node: with 4096 replicas a member has at most 24 nodes. */
    LEAST_BLOCK_BYTES = 65536,
    /* Classes of block sizes with a separate choice of stores: 2 KiB to 4 MiB, by powers
     * of two. */
    STORE_CLASSES = 12,
    /* Classes of array sizes with a separate choice of the block size, and the number of
     * block sizes to choose from. */
    BLOCK_CLASSES = 4,
    BLOCK_SIZES = 5,
    /* Classes of array sizes with a separate choice of oneshot or direct: more than 2
     * KiB to MOST_ONESHOT_BYTES, by powers of two. */
    ALGORITHM_CLASSES = 5,
    /* The index of a new group's block size. */
    FIRST_BLOCK_SIZE = 2,
    /* The number of last calls that a member describes to others. A power of two. */
    RECENT_CALLS = 8,
    MASK_WORDS = MAX_MEMBERS / 64,
    /* The number of lost instances that an error can name. */
    MOST_LOST = 15,
};

#define ARENA_MAGIC UINT64_C(0x616e657261706f70)
/* Marks the last bytes of an arena: "popboard". */
#define BOARD_MAGIC UINT64_C(0x6472616f62706f70)

typedef enum {
    DONE,
    STOPPED,   /* the caller's own hook wants to stop: Ctrl-C */
    ENDED,     /* another member ended the group; the arena's ending says why */
    TIMED_OUT, /* a member took too long */
    PEER_LOST, /* a member's process has ended */
    MISMATCH,  /* two members make different calls */
    END_REQUESTED, /* a member ended the group with its own error */
} status;

typedef enum {
    BARRIER,
    ALL_REDUCE,
    REDUCE,
    REDUCE_SCATTER,
    ALL_GATHER,
    BROADCAST,
    GATHER,
    SCATTER,
    ALL_TO_ALL,
    SEND,
    RECEIVE,
    NEGOTIATION, /* for messages: an exchange of requests for calls */
    REDUCE_TO_NODES, /* a step of a reduction over hosts: members announce that one */
    NO_PRELUDE = BARRIER, /* no call is a prelude to a barrier, which has no arrays */
} operation;

typedef enum { ONESHOT, DIRECT, RING, IN_ARENA } algorithm;

/* The value of `ended` once the reason is written. A higher value means that a member is
 * writing it, and this member may die or be stopped meanwhile. The group has ended in
 * either case. */
enum { EXPLAINED = 2 };

/* A counter with one writer, for which others may sleep. */
typedef struct {
    _Alignas(APART) _Atomic uint64_t count;
    /* The number of threads that sleep until it moves. The sleepers write it. */
    _Alignas(APART) _Atomic uint32_t sleepers;
} counter;

/* A member's current call. All but `in` and `out` must be equal on all members. */
typedef struct {
    uint64_t count; /* elements of a row, or the operation's own unit */
    uint64_t name;  /* 0 for a call without a name */
    uint64_t details_hash; /* distinguishes layouts, shapes and lists of lengths */
    uint8_t operation;
    uint8_t dtype;
    uint8_t reduction;
    uint8_t algorithm;
    int16_t root;
    /* If this call is a prelude, which tells of the members' arrays: the call after it.
     * Else NO_PRELUDE. */
    uint8_t prelude_to;
    uint8_t unused;
    /* Where this member's array lies in the heap, or NOT_IN_HEAP. */
    uint64_t in, out;
    uint64_t stride; /* bytes from one row to the next, of both */
    uint64_t number; /* of the call, for messages */
} descriptor;

_Static_assert(sizeof(descriptor) == CACHE_LINE, "a descriptor fills one line");

#define NOT_IN_HEAP UINT64_MAX

/* Where the arrays of one member, of a subtree of members or of the group lie. */
enum { SOME_IN_HEAP = 1, SOME_ELSEWHERE = 2, ARRAY_PLACES = 3 };

/* A member's announcement of a call, with as much data as fits. The stamp shares a cache
 * line with the beginning of the rest, so a reader that waits for the stamp has this
 * line too. */
typedef struct {
    _Alignas(APART) _Atomic uint64_t stamp; /* which call: 1 for the first */
    /* The descriptor's hash; its lowest bits tell where arrays lie. Atomic, because a
     * member of a tree changes them while a member in another call may read them. */
    _Atomic uint64_t signature;
    unsigned char data[ANNOUNCEMENT_BYTES];
} announcement;

/* One per member. Only its owner writes to it, except for sleepers. */
typedef struct {
    counter posted; /* steps taken since the arena was made */
    /* In a tree of members (see announcing.c): the steps that all members below this one
     * have taken, and the steps taken by all members. */
    counter gathered, released;
    /* Whether the owner has closed its group in good order. */
    _Alignas(APART) _Atomic uint32_t left;
    /* Two: a member may be one call ahead of its readers. */
    announcement announcements[2];
} member;

/* A member's calls, for the other members and for processes that read the file from
 * outside: popdist/environment.py describes it for these. Only its owner writes it. */
typedef struct {
    _Alignas(APART) _Atomic int32_t pid;
    _Atomic int32_t instance; /* what it is called */
    /* Calls of the program, and their bytes; it is in a call while the counts differ. */
    _Atomic uint64_t begun, over, bytes;
    /* The time since which it has waited for others, 0 while it does not wait. Then the
     * instance that it waits for, and after a while the members missing from the call. */
    _Atomic uint64_t waits_since_ns;
    _Atomic int32_t waits_for;
    uint32_t unused;
    _Atomic uint64_t missing[MASK_WORDS];
    /* The last calls: call number n at place n % RECENT_CALLS. */
    _Alignas(APART) descriptor calls[RECENT_CALLS];
} activity;

/* The last bytes of an arena, from which the members' activities are found. */
typedef struct {
    uint64_t magic;
    uint32_t members, activity_bytes;
    uint64_t from_end; /* of the file to the first activity, in bytes */
    uint64_t unused[5];
} board_end;

_Static_assert(sizeof(board_end) == CACHE_LINE, "the end of a board fills one line");

/* One per ordered pair of members, for send and receive. */
typedef struct {
    counter sent;  /* written by the sender */
    counter received; /* written by the receiver */
    struct {
        _Alignas(CACHE_LINE) uint64_t dtype, count;
    } labels[2];
    _Alignas(PAGE) unsigned char messages[2][MESSAGE_SLOT_BYTES];
} channel;

/* The reason for the end of a group, written once, by the first member that ends it. */
typedef struct {
    uint32_t reason;
    int32_t by;    /* the member that detected it */
    int32_t about; /* the member that caused it, or -1 */
    uint32_t error; /* for END_REQUESTED: the status that selects the error raised by all
                     * members */
    uint64_t call;
    descriptor mine, theirs;
    uint64_t missing[MASK_WORDS]; /* members that had not begun the call */
    /* The error's fields: the lost instances, and its message. */
    uint32_t lost_count;
    int32_t lost[MOST_LOST];
    char message[512];
} ending;

/* The sizes for which all members must have the same values. */
typedef struct {
    uint64_t size;          /* members */
    uint64_t block_bytes;   /* of a new group's blocks */
    uint64_t oneshot_bytes; /* the largest array for which oneshot is chosen */
    uint64_t spin_us;       /* how long a counter is polled before the core is yielded */
} settings;

typedef struct {
    uint64_t magic, layout; /* see arena_layout() */
    settings agreed;
    /* 0, then the number of the member that writes the reason, then EXPLAINED. */
    _Alignas(APART) _Atomic uint32_t ended;
    ending end;
    /* The choices for coming calls: see sync/trial.h. Member 0 writes them. */
    _Alignas(APART) _Atomic uint64_t store_plans[STORE_CLASSES];
    _Atomic uint64_t block_plans[BLOCK_CLASSES];
    _Atomic uint64_t algorithm_plans[ALGORITHM_CLASSES];
    _Alignas(APART) uint8_t cache_of[MAX_MEMBERS]; /* each member's last-level cache */
} header;

typedef struct {
    uint64_t members, channels, slots, board; /* offsets in bytes */
    uint64_t input_bytes, result_bytes;     /* of one phase of one slot */
    uint64_t slot_bytes;                    /* of one member: two phases of both */
    uint64_t total;
} places;

static inline uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* The bytes of a block by the index of its size: each size is twice the one before. */
static inline uint64_t block_bytes_at(const settings *s, unsigned number)
{
    const uint64_t bytes = s->block_bytes << number >> FIRST_BLOCK_SIZE;
    return bytes > LEAST_BLOCK_BYTES ? bytes : LEAST_BLOCK_BYTES;
}

/* The room for a member's share of a block, which is rounded up to a multiple of
 * SHARE_UNIT elements. */
static inline uint64_t result_part(uint64_t block_bytes, uint64_t size)
{
    return round_up(block_bytes / size + 8 * SHARE_UNIT, CACHE_LINE);
}

static inline places places_of(const settings *s)
{
    places p;
    p.members = round_up(sizeof(header), PAGE);
    p.channels = round_up(p.members + s->size * sizeof(member), PAGE);
    p.slots = round_up(p.channels + s->size * s->size * sizeof(channel), PAGE);
    const uint64_t largest = block_bytes_at(s, BLOCK_SIZES - 1);
    p.input_bytes = round_up(largest, PAGE);
    p.result_bytes = round_up(result_part(largest, s->size), PAGE);
    p.slot_bytes = 2 * (p.input_bytes + p.result_bytes);
    p.board = p.slots + s->size * p.slot_bytes;
    p.total = p.board + round_up(s->size * sizeof(activity) + sizeof(board_end), PAGE);
    return p;
}

/* A hash of the layout and its limits: equal for builds of the core that can share an
 * arena. */
uint64_t arena_layout(void);

/* Whether an arena can have these sizes. */
static inline bool settings_possible(const settings *s)
{
    return s->size >= 1 && s->size <= MAX_MEMBERS && s->block_bytes >= LEAST_BLOCK_BYTES
           && s->block_bytes <= UINT64_C(1) << 32
           && s->oneshot_bytes <= MOST_ONESHOT_BYTES;
}

#endif
