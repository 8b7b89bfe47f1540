/* What lies where in the memory that the members of a group share.
 *
 * Nothing here is ever reset: counters only grow, each has one writer, and what
 * two members touch at the same time lies in cache lines of its own.
 */
#ifndef POPDIST_ARENA_H
#define POPDIST_ARENA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CACHE_LINE = 64,
    /* Processors fetch lines in pairs: what must not be shared stands apart. */
    APART = 128,
    PAGE = 4096,
    MAX_MEMBERS = 256,
    MAX_LEAVES = 4096, /* replicas of a group */
    /* The most that one member can say within one announcement. Longer rows go through
     * slots, whose lanes are not in other members' caches when they are written. */
    ANNOUNCEMENT_BYTES = 4096,
    MOST_ONESHOT_BYTES = 65536,
    /* What fits between two members' send and receive at once. */
    MESSAGE_SLOT_BYTES = 32768,
    /* Chunks of a block are whole lines of even the smallest elements. */
    CHUNK_UNIT = 64,
    /* In the smallest block, each of 256 members has room for an element of 8 bytes of
     * every node: of 4096 replicas a member has at most 24 nodes. */
    LEAST_BLOCK_BYTES = 65536,
    /* Sizes of blocks for which the kind of stores is chosen apart: of 2 KiB to 4 MiB, by
     * powers of two. */
    STORE_CLASSES = 12,
    /* Sizes of arrays for which the size of blocks is chosen apart, and how many sizes
     * there are to choose from. */
    BLOCK_CLASSES = 4,
    BLOCK_SIZES = 5,
    /* Sizes of arrays for which oneshot or direct is chosen apart: of more than 2 KiB to
     * MOST_ONESHOT_BYTES, by powers of two. */
    ALGORITHM_CLASSES = 5,
    /* The number of the size that a group begins with. */
    FIRST_BLOCK_SIZE = 2,
    /* Of how many calls a member shows what they are about. A power of two. */
    RECENT_CALLS = 8,
    MASK_WORDS = MAX_MEMBERS / 64,
    /* Of how many lost instances an error tells. */
    MOST_LOST = 15,
};

#define ARENA_MAGIC UINT64_C(0x616e657261706f70)
/* Of the last bytes of an arena: "popboard". */
#define BOARD_MAGIC UINT64_C(0x6472616f62706f70)

typedef enum {
    DONE,
    STOPPED,   /* the caller's own hook wants to stop: Ctrl-C */
    ENDED,     /* another member ended the group; the arena's ending says why */
    TIMED_OUT, /* a member took too long */
    PEER_LOST, /* a member's process has ended */
    MISMATCH,  /* two members do different things */
    END_REQUESTED, /* a member ended the group with an error of its own */
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
    NEGOTIATION, /* for messages: what an exchange of requests for calls is about */
    REDUCE_TO_NODES, /* a step of a reduction over hosts: members announce that one */
    NO_PRELUDE = BARRIER, /* no call is a prelude to one: it has no arrays to tell of */
} operation;

typedef enum { ONESHOT, DIRECT, RING, IN_ARENA } algorithm;

/* What `ended` holds once the reason stands there; more than this while a member writes
 * it, who may die or be stopped over it. The group has ended in either case. */
enum { EXPLAINED = 2 };

/* A counter with one writer, for which others may sleep. */
typedef struct {
    _Alignas(APART) _Atomic uint64_t count;
    /* How many sleep until it moves. Written by the sleepers. */
    _Alignas(APART) _Atomic uint32_t sleepers;
} counter;

/* What a member is doing. All but `in` and `out` must be equal on all members. */
typedef struct {
    uint64_t count; /* elements of a row, or of whatever the operation counts */
    uint64_t name;  /* 0 for a call without a name */
    uint64_t details_hash; /* distinguishes layouts, shapes and lists of lengths */
    uint8_t operation;
    uint8_t dtype;
    uint8_t reduction;
    uint8_t algorithm;
    int16_t root;
    /* The call for which this one tells of the members' arrays, or NO_PRELUDE. */
    uint8_t prelude_to;
    uint8_t unused;
    /* Where this member's array lies in the heap, or NOT_IN_HEAP. */
    uint64_t in, out;
    uint64_t stride; /* bytes from one row to the next, of both */
    uint64_t number; /* of the call, for messages */
} descriptor;

_Static_assert(sizeof(descriptor) == CACHE_LINE, "a descriptor fills one line");

#define NOT_IN_HEAP UINT64_MAX

/* Where arrays lie: those of a member, of all below it in a tree, or of the group. */
enum { SOME_IN_HEAP = 1, SOME_ELSEWHERE = 2, ARRAY_PLACES = 3 };

/* A member's announcement of a call, with as much data as fits. A reader that
 * finds the stamp of the call it is in has, with the same line, the rest of it. */
typedef struct {
    _Alignas(APART) _Atomic uint64_t stamp; /* which call: 1 for the first */
    /* Of the descriptor; its lowest bits tell where arrays lie. Atomic, because a member
     * of a tree changes them while one that makes another call may look. */
    _Atomic uint64_t signature;
    unsigned char data[ANNOUNCEMENT_BYTES];
} announcement;

/* One per member. Only its owner writes to it, except for sleepers. */
typedef struct {
    counter posted; /* steps taken since the arena was made */
    /* In a tree of members, see announcing.c: steps that all below this one have taken, and
     * steps that all members have. */
    counter gathered, released;
    /* Whether the owner has closed its group in good order. */
    _Alignas(APART) _Atomic uint32_t left;
    /* Two: a member may be one call ahead of those who still read. */
    announcement announcements[2];
} member;

/* What a member shows of its calls to the others, and to processes that only look at the
 * file: popdist/environment.py describes it for these. Only its owner writes it. */
typedef struct {
    _Alignas(APART) _Atomic int32_t pid;
    _Atomic int32_t instance; /* what it is called */
    /* Calls of the program, and their bytes; it is in a call while the counts differ. */
    _Atomic uint64_t begun, over, bytes;
    /* Since when it has waited for others, 0 while it does not; then which instance it
     * waits for, and once that takes long which members have not begun the call. */
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

/* Why a group came to its end, written once, by the member that ends it first. */
typedef struct {
    uint32_t reason;
    int32_t by;    /* the member that noticed */
    int32_t about; /* the member that it is about, or -1 */
    uint32_t error; /* of END_REQUESTED: the status whose error all members raise */
    uint64_t call;
    descriptor mine, theirs;
    uint64_t missing[MASK_WORDS]; /* members that had not begun the call */
    /* The error's own fields: the instances that were lost, and its message. */
    uint32_t lost_count;
    int32_t lost[MOST_LOST];
    char message[512];
} ending;

/* The sizes that all members must agree on. */
typedef struct {
    uint64_t size;          /* members */
    uint64_t block_bytes;   /* of the blocks that a group begins with */
    uint64_t oneshot_bytes; /* up to here, oneshot is chosen */
    uint64_t spin_us;       /* how long a counter is polled before the core is yielded */
} settings;

/* How slots are written, for blocks of one class of sizes. */
typedef struct {
    _Atomic uint64_t trial;    /* the block of this class from which on the other
                                * kind is tried */
    _Atomic uint8_t streaming; /* the usual kind: past the caches or not */
} choice;

typedef struct {
    uint64_t magic, layout; /* as arena_layout() has it */
    settings agreed;
    /* 0, then which member writes why, then EXPLAINED. */
    _Alignas(APART) _Atomic uint32_t ended;
    ending end;
    /* Which stores suit the traffic between cores just now: see streaming.c. */
    _Alignas(APART) choice stores[STORE_CLASSES];
    /* How large the blocks of coming calls are: see block_size.c. Member 0 writes it. */
    _Alignas(APART) _Atomic uint64_t block_plans[BLOCK_CLASSES];
    /* The same for oneshot and direct: see reduce.c. */
    _Atomic uint64_t algorithm_plans[ALGORITHM_CLASSES];
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

/* The bytes of a block by the number of its size: each one is twice as large as the one
 * before. */
static inline uint64_t block_bytes_at(const settings *s, unsigned number)
{
    const uint64_t bytes = s->block_bytes << number >> FIRST_BLOCK_SIZE;
    return bytes > LEAST_BLOCK_BYTES ? bytes : LEAST_BLOCK_BYTES;
}

/* The bytes of a member's chunk of a block, which may be longer than its share by less
 * than CHUNK_UNIT elements. */
static inline uint64_t result_part(uint64_t block_bytes, uint64_t size)
{
    return round_up(block_bytes / size + 8 * CHUNK_UNIT, CACHE_LINE);
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

/* A hash of where everything lies and how much there may be of it: equal for builds of
 * the core that can share an arena. */
uint64_t arena_layout(void);

/* Whether an arena can have these sizes. */
static inline bool settings_possible(const settings *s)
{
    return s->size >= 1 && s->size <= MAX_MEMBERS && s->block_bytes >= LEAST_BLOCK_BYTES
           && s->block_bytes <= UINT64_C(1) << 32
           && s->oneshot_bytes <= MOST_ONESHOT_BYTES;
}

#endif
