/* Computes whether two builds of the core can share an arena. */
#include "kernels/kernels.h"
#include "shm/arena.h"
#include "shm/hash.h"

#define FIELD(type, field) offsetof(type, field), sizeof(((type *)NULL)->field)

static const uint64_t layout[] = {
    /* Sizes, and the numbers of enumerations. */
    CACHE_LINE, APART, PAGE, MAX_MEMBERS, MAX_LEAVES, ANNOUNCEMENT_BYTES,
    MOST_ONESHOT_BYTES, MESSAGE_SLOT_BYTES, SHARE_UNIT, STORE_CLASSES, EXPLAINED,
    BLOCK_CLASSES, BLOCK_SIZES, ALGORITHM_CLASSES, FIRST_BLOCK_SIZE, RECENT_CALLS, ARRAY_PLACES,
    DTYPES, REDUCTIONS, MEAN,
    NEGOTIATION, IN_ARENA, END_REQUESTED, __BYTE_ORDER__,
    /* The offset and size of every field. */
    sizeof(counter), FIELD(counter, count), FIELD(counter, sleepers),
    sizeof(descriptor), FIELD(descriptor, count), FIELD(descriptor, name),
    FIELD(descriptor, details_hash), FIELD(descriptor, operation), FIELD(descriptor, dtype),
    FIELD(descriptor, reduction), FIELD(descriptor, algorithm), FIELD(descriptor, root),
    FIELD(descriptor, prelude_to),
    FIELD(descriptor, in), FIELD(descriptor, out), FIELD(descriptor, stride),
    FIELD(descriptor, number),
    sizeof(announcement), FIELD(announcement, stamp), FIELD(announcement, signature),
    FIELD(announcement, data),
    sizeof(member), FIELD(member, posted), FIELD(member, gathered),
    FIELD(member, released), FIELD(member, left), FIELD(member, announcements),
    sizeof(activity), FIELD(activity, pid), FIELD(activity, instance),
    FIELD(activity, begun), FIELD(activity, over), FIELD(activity, bytes),
    FIELD(activity, waits_since_ns), FIELD(activity, waits_for), FIELD(activity, missing),
    FIELD(activity, calls),
    sizeof(channel), FIELD(channel, sent), FIELD(channel, received), FIELD(channel, labels),
    FIELD(channel, messages),
    sizeof(ending), FIELD(ending, reason), FIELD(ending, by), FIELD(ending, about),
    FIELD(ending, call), FIELD(ending, mine), FIELD(ending, theirs), FIELD(ending, missing),
    FIELD(ending, error), FIELD(ending, lost_count), FIELD(ending, lost),
    FIELD(ending, message),
    sizeof(settings), FIELD(settings, size), FIELD(settings, block_bytes),
    FIELD(settings, oneshot_bytes), FIELD(settings, spin_us),
    sizeof(header), FIELD(header, magic), FIELD(header, layout), FIELD(header, agreed),
    FIELD(header, cache_of),
    FIELD(header, ended), FIELD(header, end), FIELD(header, store_plans),
    FIELD(header, block_plans), FIELD(header, algorithm_plans),
};

uint64_t arena_layout(void)
{
    /* The arena's sizes determine where the parts begin; any sizes serve for the hash. */
    const settings s = {.size = 3, .block_bytes = 100000};
    const places p = places_of(&s);
    const uint64_t begins[] = {p.members, p.channels, p.slots, p.board,
                               p.input_bytes, p.result_bytes, p.slot_bytes, p.total};
    const uint64_t hash = hash_with_all(1, layout, sizeof layout / sizeof *layout);
    return hash_with_all(hash, begins, sizeof begins / sizeof *begins);
}
