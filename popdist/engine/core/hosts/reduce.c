/* A reduction over several hosts: the members of each reduce their rows to nodes of the
 * tree, which its carriers exchange with those of the other hosts, complete, and hand out.
 * Carriers are the first members of each host, as many on all hosts; the leader is one.
 *
 * What is little goes with the records of the call. More goes in blocks. Of a small total,
 * each leader gets all nodes and completes them all: one exchange. Of a large one, each
 * carrier has a part of every block, of which each host completes a share and hands the
 * result of that on: two exchanges, of less data. Blocks overlap: while one is reduced on
 * the hosts, the nodes of the one before go between them, and the result of the one before
 * that.
 *
 * Of a reduce_scatter, each host completes what its own members get: one exchange. A block
 * has elements for every host, so that all receive at the same time.
 */
#include "hosts/reduce.h"

#include "hosts/window.h"
#include "move/blocks.h"
#include "move/slots.h"
#include "reduce/nodes.h"

#include <stdlib.h>

/* What a member ends the group with; the first character is of failures.py. */
#define NO_MEMORY                                                                        \
    "\x15" "A member had no memory left for a call over several hosts, which ended it "   \
    "for all. Give it more memory, or make calls of fewer arrays at once."

enum {
    /* Bytes of a block's nodes on one host: at least so many for each host. */
    BLOCK_BYTES = 512 << 10,
    SHARE_BYTES = 32 << 10,
    /* Blocks on their way. */
    DEPTH = 3,
    /* The most bytes of nodes for all other hosts that go in one exchange, and that go with
     * records. */
    WHOLE_BYTES = 128 << 10,
    RECORDS_BYTES = 64 << 10,
    /* The most carriers of a host: each costs messages of its own, and so many keep a
     * network interface busy. */
    MOST_CARRIERS = 4,
};

/* A block on its way, and the memory that it needs. */
typedef struct {
    uint64_t number;
    uint64_t *shares; /* where each host's share of this carrier's part begins, and ends */
    unsigned char *nodes;    /* of this host, one after the other; of this carrier's part */
    unsigned char *received; /* of the others, for the share that is completed here */
    unsigned char *result;   /* of this carrier's part */
    message *incoming, *results, *outgoing;
    uint32_t count_incoming, count_results, count_outgoing;
} transit;

typedef struct {
    const call *k;
    const host_split *hosts;
    links *l;
    arithmetic a;      /* of all hosts together */
    size_t node_element; /* bytes of an element of a node */
    int root_host;       /* whose members get the result, or -1 for all */
    bool whole;          /* each leader completes all of a block */
    uint32_t carriers;   /* of each host: the members below that rank */
    /* Elements: of a block, of the longest part of one, and of the longest share of that. */
    uint64_t block, part, share;
    uint64_t count; /* blocks */
    /* Of a reduce_scatter: elements that a replica gets, and the members of each host
     * together, and where this member's go. */
    uint64_t each, *of_each_host;
    char *out;
    window reduced, handed_out;
    transit blocks[DEPTH];
    /* Room for where nodes are: of this host, of all in the order of the tree, and the
     * first one of each host. */
    char **own;
    const char **leaf;
    const unsigned char **of_host;
    uint64_t *bytes_of_host;
} work;

static bool carries(const work *w)
{
    return (uint32_t)w->k->c->rank < w->carriers;
}

static bool scatters(const work *w)
{
    return w->k->op == REDUCE_SCATTER;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* --- How a block is divided */

/* Which elements of `count` a carrier has, by its rank on its host. */
static chunk part_of(const work *w, uint64_t count, int carrier)
{
    return chunk_of(count, (int)w->carriers, carrier, CHUNK_UNIT);
}

/* Which elements of what a host's members get of a reduce_scatter a carrier has. */
static chunk scattered_part(const work *w, uint32_t host, uint64_t number, int carrier)
{
    const chunk all =
        chunk_of(w->of_each_host[host], (int)w->count, (int)number, CHUNK_UNIT);
    const chunk part = part_of(w, all.end - all.begin, carrier);
    return (chunk){all.begin + part.begin, all.begin + part.end};
}

/* How many elements of a carrier's part of a block a host completes. */
static uint64_t length_of_share(const work *w, uint64_t number, int carrier, uint32_t host)
{
    chunk share;
    if (scatters(w)) {
        share = scattered_part(w, host, number, carrier);
    } else {
        const chunk all = block_of(w->k->total, w->block, number);
        const chunk part = part_of(w, all.end - all.begin, carrier);
        share = chunk_of(part.end - part.begin, (int)w->hosts->hosts, (int)host, CHUNK_UNIT);
    }
    return share.end - share.begin;
}

static uint64_t length_of_part(const work *w, uint64_t number, int carrier)
{
    uint64_t length = 0;
    for (uint32_t host = 0; host < w->hosts->hosts; host++)
        length += length_of_share(w, number, carrier, host);
    return length;
}

/* Append to the window some of what a host's members get of a reduce_scatter. */
static void append_scattered(work *w, uint32_t host, chunk some)
{
    uint64_t first = 0, before = 0;
    for (int q = 0; q < w->hosts->size && before < some.end; q++) {
        const uint64_t length = w->hosts->rows[q] * w->each;
        if (w->hosts->host_of[q] == host) {
            const uint64_t begin = most(some.begin, before);
            const uint64_t end = least(some.end, before + length);
            if (begin < end)
                window_append(&w->reduced, first + begin - before, first + end - before);
            before += length;
        }
        first += length;
    }
}

/* Let a window be of a block's elements: of those of all carriers, one after the other. */
static void move_to_block(work *w, window *to, uint64_t number)
{
    const chunk all = block_of(w->k->total, w->block, number);
    window_clear(to);
    if (!scatters(w))
        window_append(to, all.begin, all.end);
    for (int q = 0; scatters(w) && q < (int)w->carriers; q++)
        for (uint32_t host = 0; host < w->hosts->hosts; host++)
            append_scattered(w, host, scattered_part(w, host, number, q));
}

/* --- On this host */

/* Reduce a block's rows to nodes, of which each carrier gets its part. */
static status reduce_here(work *w, transit *b)
{
    uint64_t lengths[MAX_MEMBERS] = {0};
    for (uint32_t q = 0; q < w->carriers; q++)
        lengths[q] = length_of_part(w, b->number, (int)q);
    move_to_block(w, &w->reduced, b->number);
    for (uint32_t i = 0; carries(w) && i < w->k->split->host_nodes; i++)
        w->own[i] = (char *)b->nodes + i * w->part * w->node_element;
    return reduce_to_nodes(&w->reduced.part, lengths, w->own);
}

typedef struct {
    const work *w;
    const call *k; /* of the block, or of a reduce_scatter the whole */
    terms t;
    cursor at;
    uint64_t number; /* of the block */
    const unsigned char *result; /* what this carrier hands out */
    uint64_t length;             /* elements of a part that go at once */
} handing;

/* Return what a carrier hands out: elements of the block, or of a reduce_scatter of what
 * the members of this host get. */
static chunk handed_part(const handing *h, int carrier)
{
    return scatters(h->w) ? scattered_part(h->w, h->w->hosts->here, h->number, carrier)
                          : part_of(h->w, h->k->total, carrier);
}

/* Return what of that goes in a block through the slots. */
static chunk handed_by(const handing *h, int carrier, uint64_t block)
{
    const chunk part = handed_part(h, carrier);
    const chunk c = block_of(part.end - part.begin, h->length, block);
    return (chunk){part.begin + c.begin, part.begin + c.end};
}

static const unsigned char *own_result(const handing *h, uint64_t block)
{
    return h->result + block * h->length * h->t.a.element;
}

static void write_block(void *what, uint64_t block, uint64_t number, bool streaming)
{
    const handing *h = what;
    comm *c = h->k->c;
    if (!carries(h->w))
        return;
    const chunk own = handed_by(h, c->rank, block);
    copy(c->simd, input_at(c, c->rank, number), own_result(h, block),
         (own.end - own.begin) * h->t.a.element, streaming);
}

/* Copy what a carrier hands out, of which the first element lies at `from`, to where it
 * goes. */
static void take(handing *h, chunk theirs, const unsigned char *from)
{
    const work *w = h->w;
    if (!scatters(w)) {
        copy_out(h->k, &h->t, &h->at, theirs.begin, theirs.end, from);
        return;
    }
    const replica_split *split = h->k->split;
    const uint64_t first = split->first[split->rank] * w->each;
    const uint64_t begin = most(theirs.begin, first);
    const uint64_t end = least(theirs.end, first + split->rows[split->rank] * w->each);
    const size_t element = h->t.a.element;
    if (begin < end)
        copy(h->k->c->simd, w->out + (begin - first) * element,
             from + (begin - theirs.begin) * element, (end - begin) * element, false);
}

static void read_block(void *what, uint64_t block, uint64_t number, bool streaming)
{
    (void)streaming; /* what is read goes to the program's memory */
    handing *h = what;
    comm *c = h->k->c;
    for (int q = 0; q < (int)h->w->carriers; q++)
        take(h, handed_by(h, q, block),
             q == c->rank ? own_result(h, block) : input_at(c, q, number));
}

/* Let all members of this host take what its carriers hand out. */
static status hand_out_through_slots(handing *h)
{
    comm *c = h->k->c;
    h->length = c->agreed.block_bytes / h->t.a.element;
    /* The first carrier has the most. */
    const chunk first = handed_part(h, 0);
    const uint64_t longest = first.end - first.begin;
    const uint64_t bytes = least(longest, h->length) * h->t.a.element;
    blocks all = {
        .c = c,
        .count = (longest + h->length - 1) / h->length,
        .bytes = bytes,
        .extent = bytes,
        .what = h,
        .write = write_block,
        .read = read_block,
    };
    descriptor d = descriptor_of(h->k);
    d.operation = BROADCAST;
    return blocks_run(&all, &d);
}

/* Give the members of this host the result of a block, if it is theirs. */
static status hand_out(work *w, const transit *b)
{
    status s = DONE;
    if (w->root_host >= 0 && w->root_host != (int)w->hosts->here)
        /* Their leader knows by now that all hosts make this call. */
        return b->number + 1 == w->count ? barrier(w->k->c, 0) : DONE;
    handing h = {.w = w, .k = w->k, .number = b->number, .result = b->result};
    if (scatters(w)) {
        h.result += carries(w) ? b->shares[w->hosts->here] * w->a.element : 0;
    } else {
        move_to_block(w, &w->handed_out, b->number);
        h.k = &w->handed_out.part;
    }
    h.t = terms_of(h.k);
    h.t.stream_out = !scatters(w) && w->k->total * h.t.a.element >= STREAM_OUT_BYTES;
    if (h.k->c->size == 1)
        take(&h, handed_part(&h, 0), h.result);
    else
        s = hand_out_through_slots(&h);
    if (h.t.stream_out)
        stores_done();
    return s;
}

/* --- Between hosts */

/* Which elements of this carrier's part of a block a host completes. */
static chunk share_of(const work *w, const transit *b, uint32_t host)
{
    if (w->whole)
        return (chunk){0, b->shares[w->hosts->hosts]};
    return (chunk){b->shares[host], b->shares[host + 1]};
}

/* Whether shares of the result go to other hosts than those that complete them. */
static bool hands_on(const work *w)
{
    return !w->whole && !scatters(w);
}

/* Begin to receive the nodes of a block that are completed here. */
static status receive_nodes(work *w, transit *b)
{
    const links *l = w->l;
    const chunk own = share_of(w, b, l->here);
    unsigned char *to = b->received;
    b->count_incoming = 0;
    for (uint32_t host = 0; host < l->hosts; host++)
        for (uint32_t i = 0; host != l->here && i < w->hosts->nodes[host]; i++) {
            const status s = receive_from(w->k->c, &b->incoming[b->count_incoming++], host,
                                          NODES, to, (own.end - own.begin) * w->node_element);
            if (s != DONE)
                return s;
            to += w->share * w->node_element;
        }
    return DONE;
}

/* Begin to receive the shares of a result that other hosts complete. */
static status receive_results(work *w, transit *b)
{
    const links *l = w->l;
    b->count_results = 0;
    if (!hands_on(w) || (w->root_host >= 0 && w->root_host != (int)l->here))
        return DONE;
    for (uint32_t step = 1; step < l->hosts; step++) {
        const uint32_t from = (l->here + l->hosts - step) % l->hosts;
        const chunk theirs = share_of(w, b, from);
        const status s = receive_from(w->k->c, &b->results[b->count_results++], from, RESULTS,
                                      b->result + theirs.begin * w->a.element,
                                      (theirs.end - theirs.begin) * w->a.element);
        if (s != DONE)
            return s;
    }
    return DONE;
}

/* Begin to send this host's nodes of a block to those that complete them. */
static status send_nodes(work *w, transit *b)
{
    const links *l = w->l;
    b->count_outgoing = 0;
    for (uint32_t step = 1; step < l->hosts; step++) {
        const uint32_t host = (l->here + step) % l->hosts;
        const chunk theirs = share_of(w, b, host);
        for (uint32_t i = 0; i < w->k->split->host_nodes; i++) {
            const status s =
                send_to(w->k->c, &b->outgoing[b->count_outgoing++], host, NODES,
                        b->nodes + (i * w->part + theirs.begin) * w->node_element,
                        (theirs.end - theirs.begin) * w->node_element);
            if (s != DONE)
                return s;
        }
    }
    return DONE;
}

/* Begin to hand on the share of a result that was completed here. */
static status send_results(work *w, transit *b, chunk own)
{
    const links *l = w->l;
    for (uint32_t step = 1; hands_on(w) && step < l->hosts; step++) {
        const uint32_t to = (l->here + step) % l->hosts;
        if (w->root_host >= 0 && w->root_host != (int)to)
            continue;
        const status s = send_to(w->k->c, &b->outgoing[b->count_outgoing++], to, RESULTS,
                                 b->result + own.begin * w->a.element,
                                 (own.end - own.begin) * w->a.element);
        if (s != DONE)
            return s;
    }
    return DONE;
}

/* Complete a share. The other hosts' nodes of it begin where `of_host` says. */
static void complete(work *w, const transit *b, chunk share)
{
    const host_split *h = w->hosts;
    char *to = (char *)b->result + share.begin * w->a.element;
    w->of_host[h->here] = b->nodes + share.begin * w->node_element;
    for (uint32_t i = 0; i < h->of_hosts.leaves; i++) {
        const host_node n = h->leaf[i];
        const uint64_t apart = n.host == h->here ? w->part : w->share;
        w->leaf[i] = (const char *)w->of_host[n.host] + n.node * apart * w->node_element;
    }
    complete_nodes(w->k->c, &w->a, &h->of_hosts, w->leaf, w->k->nodes_as_given,
                   share.end - share.begin, &to, 1);
}

/* Complete this host's share once the nodes have come. */
static status complete_block(work *w, transit *b)
{
    const unsigned char *at = b->received;
    const status s = await_messages(w->k->c, b->incoming, b->count_incoming);
    if (s != DONE)
        return s;
    for (uint32_t host = 0; host < w->l->hosts; host++) {
        w->of_host[host] = at;
        at += host == w->l->here ? 0 : w->hosts->nodes[host] * w->share * w->node_element;
    }
    const chunk own = share_of(w, b, w->l->here);
    complete(w, b, own);
    return send_results(w, b, own);
}

static status await_results(work *w, transit *b)
{
    const status s = await_messages(w->k->c, b->results, b->count_results);
    return s == DONE ? await_messages(w->k->c, b->outgoing, b->count_outgoing) : s;
}

/* --- The whole */

/* Find how a block is divided that this member carries a part of. */
static void divide_block(const work *w, transit *b, uint64_t number)
{
    b->number = number;
    for (uint32_t host = 0; carries(w) && host < w->hosts->hosts; host++)
        b->shares[host + 1] =
            b->shares[host] + length_of_share(w, number, w->k->c->rank, host);
}

static status reduce_with_records(work *w)
{
    transit *b = &w->blocks[0];
    divide_block(w, b, 0);
    status s = reduce_here(w, b);
    if (s == DONE && w->l->leads) {
        const uint64_t bytes = w->k->split->host_nodes * w->part * w->node_element;
        s = begin_records(w->k->c, b->nodes, bytes);
        if (s == DONE)
            s = finish_records(w->k->c, w->of_host, w->bytes_of_host);
        if (s == DONE)
            complete(w, b, (chunk){0, w->k->total});
    }
    return s == DONE ? hand_out(w, b) : s;
}

/* Let the leaders see that all hosts make this call, before any carrier looks at what has
 * come: of another call it might be too much. */
static status agree(work *w)
{
    const status s = w->l->leads ? finish_records(w->k->c, w->of_host, w->bytes_of_host)
                                 : DONE;
    return s == DONE && w->carriers > 1 ? barrier(w->k->c, 0) : s;
}

/* Let a block be on its way, before its nodes are there: what comes early has its place. */
static status begin_block(work *w, uint64_t number)
{
    transit *b = &w->blocks[number % DEPTH];
    divide_block(w, b, number);
    return carries(w) ? receive_nodes(w, b) : DONE;
}

/* Reduce a block on this host, and let its nodes go to the others. Of the first one, the
 * leaders meanwhile agree on the call. */
static status begin_exchange(work *w, uint64_t number)
{
    transit *b = &w->blocks[number % DEPTH];
    status s = number == 0 && w->l->leads ? begin_records(w->k->c, NULL, 0) : DONE;
    if (s == DONE)
        s = reduce_here(w, b);
    if (s == DONE && carries(w))
        s = send_nodes(w, b);
    if (s == DONE && number == 0)
        s = agree(w);
    return s == DONE && carries(w) ? receive_results(w, b) : s;
}

static status step_of(work *w, uint64_t step)
{
    const uint64_t count = w->count;
    status s = step < count ? begin_exchange(w, step) : DONE;
    if (s == DONE && carries(w) && step >= 1 && step <= count)
        s = complete_block(w, &w->blocks[(step - 1) % DEPTH]);
    if (s == DONE && step >= 2) {
        transit *b = &w->blocks[(step - 2) % DEPTH];
        s = carries(w) ? await_results(w, b) : DONE;
        if (s == DONE)
            s = hand_out(w, b);
    }
    /* Its memory is that of the block just handed out. */
    return s == DONE && step + 1 < count ? begin_block(w, step + 1) : s;
}

static status reduce_in_blocks(work *w)
{
    status s = begin_block(w, 0);
    for (uint64_t step = 0; s == DONE && step < w->count + 2; step++)
        s = step_of(w, step);
    return s;
}

/* Find memory for blocks on their way. */
static bool place_blocks(work *w, uint32_t count)
{
    const host_split *h = w->hosts;
    const uint64_t result = round_up(w->part * w->a.element, PAGE);
    const uint32_t own = h->nodes[h->here], others = h->of_hosts.leaves - own;
    const uint64_t own_nodes = own * w->part * w->node_element;
    const uint64_t all_nodes = own_nodes + others * w->share * w->node_element;
    const uint64_t each = round_up(all_nodes, PAGE) + result;
    const uint32_t outgoing = (h->hosts - 1) * (own + 1);
    const uint32_t messages = others + h->hosts + outgoing;
    if (!links_reserve(w->l, count * each, RECORD_MESSAGES + count * messages))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        unsigned char *at = w->l->memory + i * each;
        message *m = w->l->messages + RECORD_MESSAGES + i * messages;
        w->blocks[i] = (transit){
            .shares = calloc(h->hosts + 1, sizeof(uint64_t)),
            .nodes = at,
            .received = at + own_nodes,
            .result = at + each - result,
            .incoming = m,
            .results = m + others,
            .outgoing = m + others + h->hosts,
        };
        if (!w->blocks[i].shares)
            return false;
    }
    return true;
}

static bool open_work(work *w, uint32_t blocks_on_their_way)
{
    const host_split *h = w->hosts;
    /* Of a reduce_scatter, each carrier may have a range of what each member gets. */
    const uint32_t ranges = scatters(w) ? w->carriers * ((uint32_t)h->size + h->hosts) : 1;
    if (!window_open(&w->reduced, w->k, ranges) || !window_open(&w->handed_out, w->k, 1))
        return false;
    w->reduced.part.op = REDUCE_TO_NODES;
    if (!carries(w))
        return true;
    w->own = calloc(w->k->split->host_nodes, sizeof *w->own);
    w->leaf = calloc(h->of_hosts.leaves, sizeof *w->leaf);
    w->of_host = calloc(h->hosts, sizeof *w->of_host);
    w->bytes_of_host = calloc(h->hosts, sizeof *w->bytes_of_host);
    return w->own && w->leaf && w->of_host && w->bytes_of_host
           && place_blocks(w, blocks_on_their_way);
}

static void close_work(work *w)
{
    window_close(&w->reduced);
    window_close(&w->handed_out);
    for (uint32_t i = 0; i < DEPTH; i++)
        free(w->blocks[i].shares);
    free(w->of_each_host);
    free(w->own);
    free(w->leaf);
    free(w->of_host);
    free(w->bytes_of_host);
}

/* Choose how the call goes, by size. */
static bool choose(work *w)
{
    const host_split *h = w->hosts;
    const uint64_t bytes = w->k->total * h->most_nodes * w->node_element;
    const bool in_records = bytes <= RECORD_DATA_BYTES && bytes * h->hosts <= RECORDS_BYTES;
    w->whole = bytes * (h->hosts - 1) <= WHOLE_BYTES;
    const uint64_t shares = (uint64_t)SHARE_BYTES * h->hosts;
    const uint64_t part_bytes = shares > BLOCK_BYTES ? shares : BLOCK_BYTES;
    w->carriers = h->fewest_members < MOST_CARRIERS ? h->fewest_members : MOST_CARRIERS;
    if (w->whole)
        w->carriers = 1;
    w->block = part_bytes / (h->most_nodes * w->node_element) / CHUNK_UNIT * CHUNK_UNIT;
    if (w->block < CHUNK_UNIT)
        w->block = CHUNK_UNIT;
    w->block *= w->carriers;
    if (w->block > w->k->total)
        w->block = in_records ? w->k->total : round_up(w->k->total, CHUNK_UNIT);
    w->count = in_records ? 1 : (w->k->total + w->block - 1) / w->block;
    w->part = part_of(w, w->block, 0).end;
    w->share = w->whole ? w->part : chunk_of(w->part, (int)h->hosts, 0, CHUNK_UNIT).end;
    return in_records;
}

/* Find what the members of each host get of a reduce_scatter, and divide it into as many
 * blocks as other calls have. False if there is no memory. */
static bool divide_among_hosts(work *w, bool in_records)
{
    const host_split *h = w->hosts;
    w->of_each_host = calloc(h->hosts, sizeof *w->of_each_host);
    if (!w->of_each_host)
        return false;
    w->each = w->k->total / h->replicas;
    for (int q = 0; q < h->size; q++)
        w->of_each_host[h->host_of[q]] += h->rows[q] * w->each;
    if (in_records)
        return true;
    w->whole = false;
    w->part = length_of_part(w, 0, 0);
    w->share = 0;
    for (uint32_t host = 0; host < h->hosts; host++)
        w->share = most(w->share, length_of_share(w, 0, 0, host));
    return true;
}

/* Return the rank of a member among those of its host. */
static int local_rank_of(const host_split *h, int member)
{
    int rank = 0;
    for (int q = 0; q < member; q++)
        rank += h->host_of[q] == h->host_of[member];
    return rank;
}

status reduce_over_hosts(const call *given, char *out)
{
    call k = *given;
    comm *c = k.c;
    work w = {
        .k = &k,
        .hosts = k.split->over_hosts,
        .l = c->links,
        .root_host = -1,
        .out = out,
    };
    w.a = arithmetic_of(c, k.type, k.reduction, w.hosts->replicas);
    /* A node that is a row of bools has whatever bytes the program put there. */
    k.nodes_as_given = w.hosts->single && k.type != BOOL;
    w.node_element = k.nodes_as_given ? w.a.element : w.a.accumulated;
    const bool in_records = choose(&w);
    const algorithm how = in_records ? ONESHOT : DIRECT;
    k.how = k.how == DIRECT ? how : k.how;
    descriptor d = descriptor_of(&k);
    d.details_hash = w.hosts->hash ^ k.shapes_hash;
    begin_larger_call(c, &d);
    if (k.root >= 0) {
        w.root_host = (int)w.hosts->host_of[k.root];
        k.root = local_rank_of(w.hosts, k.root);
    }
    status s = ENDED;
    if ((scatters(&w) && !divide_among_hosts(&w, in_records))
        || !open_work(&w, in_records ? 1 : DEPTH))
        end_group(c, END_REQUESTED, c->rank, NO_MEMORY);
    else
        s = in_records ? reduce_with_records(&w) : reduce_in_blocks(&w);
    close_work(&w);
    if (s != DONE)
        links_note_failure(w.l);
    else if (k.op != REDUCE_SCATTER)
        c->ran = how;
    return s;
}
