/* A call of a reducing collective, and the ways to carry it out. */
#ifndef POPDIST_CALL_H
#define POPDIST_CALL_H

#include "move/blocks.h"
#include "move/streaming.h"
#include "reduce/tree.h"
#include "shm/ranges.h"
#include "shm/hash.h"

/* An array, with a row for each of the member's replicas. */
typedef struct {
    uint64_t count; /* elements of a row */
    char *const *in;
    char *const *out; /* one for each row; NULL if no result is wanted */
} array_rows;

typedef struct {
    comm *c;
    const replica_split *split;
    dtype type;
    unsigned reduction;
    operation op;
    int root; /* the member that gets the result, or -1 for all */
    bool nodes_as_given; /* nodes are rows, and stay of the type of elements */
    algorithm how;
    uint64_t name;
    const array_rows *arrays; /* one after the other they are one long row */
    uint32_t count_of_arrays;
    uint64_t total; /* elements of that row */
    uint64_t shapes_hash; /* of all arrays: see hash_with_shape() */
    /* Where the only array's rows lie in the heap, or NOT_IN_HEAP. */
    uint64_t heap_in, heap_out, heap_stride;
    /* If trials choose the algorithm: the choice, whether member 0 times it, and the
     * bytes of its array. */
    trial choice;
    bool timed;
    uint64_t bytes;
} call;

/* Values that a member derives from a call to carry it out. */
typedef struct {
    arithmetic a;
    size_t slot_element;  /* bytes of an element in slots and announcements */
    bool widened;         /* they are accumulated, not as the program gave them */
    bool wanted;          /* we get the result */
    bool stream_out;      /* the result is larger than the caches */
    bool stream_in_place; /* and replaces what was just read, yet is not cached */
} terms;

/* Mix one more array's axes into the hash of the shapes before. Members compare the
 * hash, so it also depends on where one array ends and the next begins. */
static inline uint64_t hash_with_shape(uint64_t before, const ssize_t *lengths, int axes)
{
    uint64_t hash = hash_with(before, (uint64_t)axes);
    for (int axis = 0; axis < axes; axis++)
        hash = hash_with(hash, (uint64_t)lengths[axis]);
    return hash;
}

/* A call without arrays; the caller adds them, and sets all unusual fields. */
static inline call call_of(comm *c, const replica_split *split, operation op, int type,
                           long reduction)
{
    return (call){
        .c = c,
        .split = split,
        .op = op,
        .type = (dtype)type,
        .reduction = (unsigned)reduction,
        .root = -1,
        .how = DIRECT,
        .heap_in = NOT_IN_HEAP,
        .heap_out = NOT_IN_HEAP,
    };
}

extern const trial_kind algorithms;

/* Find the arrays of an all-reduce in the heap, and settle the algorithm: `wanted`, or
 * if that is -1 one chosen by size. */
void reduce_prepare(call *k, int wanted);

terms call_terms(const call *k);
descriptor call_descriptor(const call *k);

/* A part of the long row that lies within one array. */
typedef struct {
    const array_rows *s;
    uint64_t offset, count;
} piece;

/* A position in the arrays; makes walking through many of them cheap. */
typedef struct {
    uint32_t array;
    uint64_t before;
} cursor;

piece call_piece_at(const call *k, cursor *at, uint64_t begin, uint64_t end);

/* Write one of this member's nodes, for elements [begin, end), to `to`. */
void call_write_node(const call *k, const terms *t, cursor *at, const node *which,
                     uint64_t begin, uint64_t end, unsigned char *to, bool streaming);

/* The other members' leaves: each member's nodes are `pitch` elements apart, and
 * `from[member]` is the first element of its first node. An initializer would clear 2
 * KiB in each call, so fields are set one by one. */
typedef struct {
    const unsigned char *from[MAX_MEMBERS];
    uint64_t pitch;
} published;

/* Fill in the addresses of one element in this member's rows and the others' nodes: the
 * element `skip` after the first one published. `own` begins with it. */
void call_find_leaves(const call *k, const terms *t, const published *p, piece own,
                      uint64_t skip, const void **leaf, bool *accumulated);

/* Reduce elements [begin, end); `begin` is the first element published. The result goes
 * to `also` (unless NULL) and to this member's rows. */
void call_reduce_range(const call *k, const terms *t, cursor *at, const published *p,
                       uint64_t begin, uint64_t end, unsigned char *also, bool streaming);

/* Copy elements [begin, end) of a result to all of this member's rows. */
void call_copy_out(const call *k, const terms *t, cursor *at, uint64_t begin,
                   uint64_t end, const unsigned char *from);

/* Divide the long row into blocks of at most so many bytes in a slot. Returns the elements
 * of a whole block. */
uint64_t call_divide(blocks *b, const call *k, const terms *t, uint64_t block_bytes);

status all_reduce_oneshot(const call *k);

/* Whether oneshot takes arrays of so many bytes along the hierarchy of a large group. */
bool oneshot_fits_hierarchy(const comm *c, uint64_t bytes);

status all_reduce_direct(const call *k);
status all_reduce_ring(const call *k);

/* Elements of the ring's longest share: the order of its additions depends on it. */
uint64_t ring_share(const comm *c, dtype type);

/* Each member gets its own replicas' equal shares of the rows' sum, at `out`. */
status reduce_scatter(const call *k, char *out);

/* Reduce to nodes, with the split of a host's members: member q gets lengths[q] elements
 * of each node, in the accumulation type, after the elements of the members before it.
 * Node i goes to out[i]. */
status reduce_to_nodes(const call *k, const uint64_t *lengths, char *const *out);

/* Called once all have begun, if all arrays lie in the heap: reduce them there. */
status all_reduce_in_heap(const call *k);

/* Carry out a call by its algorithm; IN_ARENA stands for the best. */
status reduce_run(const call *k);

#endif
