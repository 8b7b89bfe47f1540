/* Exchanges over several hosts. The leaders first agree on the call. Then the members of
 * each host exchange their shares in the arena. Messages between hosts are read from the
 * program's memory and written to it.
 *
 * In most operations a leader receives and sends for all members of its host. Data for all
 * members travels in blocks, and a leader hands out each block as soon as it has come.
 */
#include "hosts/exchange.h"

#include "shm/ranges.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 1 << 20 };

typedef struct {
    const exchange *x; /* of the whole group */
    comm *c;
    links *l;
    char *in, *out;
    uint64_t *begins; /* of the members' shares in an array of all, and the last one's end */
    uint64_t bytes_here;                 /* of the shares of this host's members */
    uint64_t *lengths_here, *begins_here; /* of these */
    char *scratch;
} plan;

/* --- Within the host */

/* A step of this host's members. Their shares lie in an array of all members' shares, or
 * are `packed` one after the other. */
static status step_here(const plan *p, operation op, int root, const char *in, char *out,
                        bool packed)
{
    const exchange step = {
        .c = p->c,
        .op = op,
        .type = UINT8,
        .root = root,
        .lengths = p->lengths_here,
        .begins = packed ? NULL : p->begins_here,
        .prelude_to = NO_PRELUDE,
        .in = in,
        .out = out,
    };
    return exchange_run(&step);
}

static status broadcast_here(const plan *p, int root, const char *in, char *out,
                             uint64_t bytes)
{
    const exchange step = {
        .c = p->c,
        .op = BROADCAST,
        .type = UINT8,
        .root = root,
        .prelude_to = NO_PRELUDE,
        .in = in,
        .out = out,
    };
    return exchange_equal(step, bytes);
}

/* --- Between hosts */

/* Let the leaders check that all hosts make this call. */
static status agree(comm *c)
{
    if (!c->links->leads)
        return DONE;
    const status s = links_begin_records(c, NULL, 0);
    return s == DONE ? links_finish_records(c) : s;
}

/* Find the bytes after `b` of the shares of a host's members: as many as lie together, and
 * at most `most_bytes`. False after the last ones. */
static bool next_part(const plan *p, uint32_t host, uint64_t most_bytes, range *b)
{
    const remote *members = p->l->members;
    const uint32_t count = p->l->count_of_members;
    uint32_t q = 0;
    while (q < count && (members[q].host != host || p->begins[q + 1] <= b->end))
        q++;
    if (q == count)
        return false;
    b->begin = most(b->end, p->begins[q]);
    while (q + 1 < count && members[q + 1].host == host)
        q++;
    b->end = b->begin + least(p->begins[q + 1] - b->begin, most_bytes);
    return true;
}

/* Begin to exchange the shares of a host's members with a member of another host. They lie
 * in an array of all members' shares, or are `packed`. */
static status begin_shares(const plan *p, direction way, int peer, uint32_t host, char *at,
                           bool packed)
{
    const uint64_t most_bytes = p->x->op == ALL_GATHER ? BLOCK_BYTES : UINT64_MAX;
    uint64_t before = 0;
    status s = DONE;
    for (range b = {0, 0}; s == DONE && next_part(p, host, most_bytes, &b);) {
        const uint64_t bytes = range_length(b);
        s = links_begin(p->c, way, peer, ROWS, at + (packed ? before : b.begin), bytes);
        before += bytes;
    }
    return s;
}

/* Begin to exchange the shares of all other hosts with their leaders. */
static status begin_shares_of_others(const plan *p, direction way, char *at)
{
    status s = DONE;
    for (uint32_t step = 1; s == DONE && step < p->l->hosts; step++) {
        const uint32_t host = (p->l->here + step) % p->l->hosts;
        s = begin_shares(p, way, p->l->leaders[host], host, at, false);
    }
    return s;
}

/* --- All-gather */

/* The rows go with the records. */
static status gather_records(const plan *p)
{
    const links *l = p->l;
    status s = links_begin_records(p->c, p->scratch, p->bytes_here);
    if (s == DONE)
        s = links_finish_records(p->c);
    for (uint32_t q = 0; s == DONE && q < l->count_of_members; q++) {
        const unsigned char **from = &l->data_of[l->members[q].host];
        memcpy(p->out + p->begins[q], *from, p->x->lengths[q]);
        *from += p->x->lengths[q];
    }
    return s;
}

static status all_gather_in_records(const plan *p)
{
    status s = step_here(p, GATHER, 0, p->in, p->scratch, true);
    if (s == DONE && p->l->leads)
        s = gather_records(p);
    const uint64_t all = p->begins[p->l->count_of_members];
    return s == DONE ? broadcast_here(p, 0, p->out, p->out, all) : s;
}

/* Begin to receive from all leaders, and to send to them. Each host begins with another
 * one, so that no host is the first receiver of all. */
static status begin_all_gather(const plan *p)
{
    const links *l = p->l;
    status s = begin_shares_of_others(p, FROM_OTHERS, p->out);
    for (uint32_t step = 1; s == DONE && step < l->hosts; step++) {
        const uint32_t host = (l->here + l->hosts - step) % l->hosts;
        s = begin_shares(p, TO_OTHERS, l->leaders[host], l->here, p->out, false);
    }
    return s;
}

static status all_gather_in_blocks(const plan *p)
{
    const links *l = p->l;
    uint32_t received = 0;
    status s = agree(p->c);
    if (s == DONE)
        s = step_here(p, ALL_GATHER, -1, p->in, p->out, false);
    if (s == DONE && l->leads)
        s = begin_all_gather(p);
    for (uint32_t step = 1; step < l->hosts; step++) {
        const uint32_t host = (l->here + step) % l->hosts;
        for (range b = {0, 0}; s == DONE && next_part(p, host, BLOCK_BYTES, &b);) {
            if (l->leads)
                s = links_await_transfer(p->c, received++);
            char *at = p->out + b.begin;
            s = s == DONE ? broadcast_here(p, 0, at, at, range_length(b)) : s;
        }
    }
    return s;
}

static bool fits_records(const plan *p)
{
    return p->begins[p->l->count_of_members] <= RECORD_DATA_BYTES;
}

/* --- Broadcast */

/* Hosts form a binomial tree. They are numbered from the root's on, and the number of the
 * host above is a host's own without the lowest bit. */
typedef struct {
    uint32_t number, lowest_bit;
    int above;        /* the member that sends to this host, or -1 */
    int first_here;   /* the first member here with the row, by its place on this host */
} tree;

static int sender_of(const plan *p, uint32_t number)
{
    const links *l = p->l;
    const uint32_t root_host = l->members[p->x->root].host;
    return number ? l->leaders[(root_host + number) % l->hosts] : p->x->root;
}

static tree tree_of(const plan *p)
{
    const links *l = p->l;
    const remote *root = &l->members[p->x->root];
    tree t = {.number = (l->here + l->hosts - root->host) % l->hosts, .lowest_bit = 1};
    while (t.lowest_bit < l->hosts && !(t.number & t.lowest_bit))
        t.lowest_bit *= 2;
    t.above = t.number ? sender_of(p, t.number - t.lowest_bit) : -1;
    t.first_here = t.number ? 0 : root->place;
    return t;
}

/* Begin to send a block to the hosts below this one. */
static status send_down(const plan *p, const tree *t, char *at, uint64_t bytes)
{
    status s = DONE;
    for (uint32_t step = t->lowest_bit / 2; s == DONE && step; step /= 2)
        if (t->number + step < p->l->hosts)
            s = links_begin(p->c, TO_OTHERS, sender_of(p, t->number + step), ROWS, at,
                            bytes);
    return s;
}

static status broadcast(const plan *p)
{
    const tree t = tree_of(p);
    const bool sends = p->c->rank == t.first_here, receives = sends && t.number;
    const uint64_t bytes = p->x->lengths[p->l->rank];
    const uint64_t blocks = most(1, (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES);
    char *row = t.number ? p->out : p->in;
    status s = agree(p->c);
    for (uint64_t i = 0; s == DONE && receives && i < blocks; i++) {
        const range b = range_of_block(bytes, BLOCK_BYTES, i);
        s = links_begin(p->c, FROM_OTHERS, t.above, ROWS, row + b.begin, range_length(b));
    }
    for (uint64_t i = 0; s == DONE && i < blocks; i++) {
        const range b = range_of_block(bytes, BLOCK_BYTES, i);
        if (receives)
            s = links_await_transfer(p->c, (uint32_t)i);
        if (s == DONE && sends)
            s = send_down(p, &t, row + b.begin, range_length(b));
        if (s == DONE)
            s = broadcast_here(p, t.first_here, row + b.begin, p->out + b.begin, range_length(b));
    }
    return s;
}

/* --- The others */

static status gather(const plan *p)
{
    const links *l = p->l;
    const remote *root = &l->members[p->x->root];
    const bool is_root = l->rank == p->x->root;
    status s = agree(p->c);
    if (s == DONE && is_root)
        s = begin_shares_of_others(p, FROM_OTHERS, p->out);
    if (s == DONE && root->host == l->here)
        return step_here(p, GATHER, root->place, p->in, p->out, false);
    if (s == DONE)
        s = step_here(p, GATHER, 0, p->in, p->scratch, true);
    if (s == DONE && l->leads)
        s = begin_shares(p, TO_OTHERS, p->x->root, l->here, p->scratch, true);
    return s;
}

static status scatter(const plan *p)
{
    const links *l = p->l;
    const remote *root = &l->members[p->x->root];
    const bool is_root = l->rank == p->x->root;
    status s = agree(p->c);
    if (s == DONE && is_root)
        s = begin_shares_of_others(p, TO_OTHERS, p->in);
    if (s == DONE && root->host == l->here)
        return step_here(p, SCATTER, root->place, p->in, p->out, false);
    if (s == DONE && l->leads) {
        s = begin_shares(p, FROM_OTHERS, p->x->root, l->here, p->scratch, true);
        if (s == DONE)
            s = links_await_transfers(p->c);
    }
    return s == DONE ? step_here(p, SCATTER, 0, p->scratch, p->out, true) : s;
}

/* Every member exchanges messages with the members of other hosts. */
static status all_to_all(const plan *p)
{
    const links *l = p->l;
    const uint32_t count = l->count_of_members, rank = (uint32_t)l->rank;
    status s = agree(p->c);
    char *in = p->in;
    if (in == p->out)
        in = memcpy(p->scratch, in, p->begins[count]);
    for (uint32_t step = 1; s == DONE && step < count; step++) {
        const uint32_t to = (rank + step) % count, from = (rank + count - step) % count;
        if (l->members[from].host != l->here)
            s = links_begin(p->c, FROM_OTHERS, (int)from, ROWS, p->out + p->begins[from],
                            p->x->lengths[from]);
        if (s == DONE && l->members[to].host != l->here)
            s = links_begin(p->c, TO_OTHERS, (int)to, ROWS, in + p->begins[to],
                            p->x->lengths[to]);
    }
    return s == DONE ? step_here(p, ALL_TO_ALL, -1, in, p->out, false) : s;
}

/* --- A call */

/* Return the bytes of memory that the call needs beside the program's. */
static uint64_t scratch_bytes(const plan *p)
{
    const exchange *x = p->x;
    switch (x->op) {
    case ALL_GATHER:
        return p->l->leads && fits_records(p) ? p->bytes_here : 0;
    case ALL_TO_ALL:
        return x->in == x->out ? p->begins[p->l->count_of_members] : 0;
    case BROADCAST:
        return 0;
    default:
        return p->l->leads && p->l->members[x->root].host != p->l->here ? p->bytes_here : 0;
    }
}

static bool plan_open(plan *p)
{
    const uint32_t count = p->l->count_of_members;
    const size_t here = (size_t)p->c->size;
    p->begins = calloc(count + 1 + 2 * here, sizeof *p->begins);
    if (!p->begins)
        return false;
    p->lengths_here = p->begins + count + 1;
    p->begins_here = p->lengths_here + here;
    for (uint32_t q = 0; q < count; q++) {
        const uint64_t length = p->x->lengths[q];
        const remote *m = &p->l->members[q];
        p->begins[q + 1] = p->begins[q] + length;
        if (m->host != p->l->here)
            continue;
        p->lengths_here[m->place] = length;
        p->begins_here[m->place] = p->begins[q];
        p->bytes_here += length;
    }
    p->scratch = malloc(scratch_bytes(p) + 1);
    return p->scratch;
}

static status carry_out(const plan *p)
{
    switch (p->x->op) {
    case ALL_GATHER:
        return fits_records(p) ? all_gather_in_records(p) : all_gather_in_blocks(p);
    case BROADCAST:
        return broadcast(p);
    case GATHER:
        return gather(p);
    case SCATTER:
        return scatter(p);
    default:
        return all_to_all(p);
    }
}

status exchange_over_hosts(const exchange *x)
{
    comm *c = x->c;
    links *l = c->links;
    plan p = {.x = x, .c = c, .l = l, .in = (char *)(uintptr_t)x->in, .out = x->out};
    const descriptor d = exchange_described(x, l->count_of_members);
    links_begin_call(c, &d);
    status s = plan_open(&p) ? carry_out(&p) : links_out_of_memory(c);
    if (s == DONE)
        s = links_await_transfers(c);
    if (s != DONE)
        links_note_failure(l);
    if (!l->under_way)
        free(p.scratch);
    free(p.begins);
    return s;
}

status barrier_over_hosts(comm *c, uint64_t name)
{
    const descriptor d = {.operation = BARRIER, .name = name};
    links_begin_call(c, &d);
    status s = barrier_run(c, 0);
    if (s == DONE)
        s = agree(c);
    if (s != DONE)
        links_note_failure(c->links);
    return s == DONE ? barrier_run(c, 0) : s;
}
