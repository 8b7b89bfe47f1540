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
} job;

static bool carries(const job *j)
{
    return (uint32_t)j->k->c->rank < j->carriers;
}

static bool scatters(const job *j)
{
    return j->k->op == REDUCE_SCATTER;
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
static chunk part_of(const job *j, uint64_t count, int carrier)
{
    return chunk_of(count, (int)j->carriers, carrier, CHUNK_UNIT);
}

/* Which elements of what a host's members get of a reduce_scatter a carrier has. */
static chunk scattered_part(const job *j, uint32_t host, uint64_t number, int carrier)
{
    const chunk all =
        chunk_of(j->of_each_host[host], (int)j->count, (int)number, CHUNK_UNIT);
    const chunk part = part_of(j, all.end - all.begin, carrier);
    return (chunk){all.begin + part.begin, all.begin + part.end};
}

/* How many elements of a carrier's part of a block a host completes. */
static uint64_t length_of_share(const job *j, uint64_t number, int carrier, uint32_t host)
{
    chunk share;
    if (scatters(j)) {
        share = scattered_part(j, host, number, carrier);
    } else {
        const chunk all = block_of(j->k->total, j->block, number);
        const chunk part = part_of(j, all.end - all.begin, carrier);
        share = chunk_of(part.end - part.begin, (int)j->hosts->hosts, (int)host, CHUNK_UNIT);
    }
    return share.end - share.begin;
}

static uint64_t length_of_part(const job *j, uint64_t number, int carrier)
{
    uint64_t length = 0;
    for (uint32_t host = 0; host < j->hosts->hosts; host++)
        length += length_of_share(j, number, carrier, host);
    return length;
}

/* Append to the window some of what a host's members get of a reduce_scatter. */
static void append_scattered(job *j, uint32_t host, chunk some)
{
    uint64_t first = 0, before = 0;
    for (int q = 0; q < j->hosts->size && before < some.end; q++) {
        const uint64_t length = j->hosts->rows[q] * j->each;
        if (j->hosts->host_of[q] == host) {
            const uint64_t begin = most(some.begin, before);
            const uint64_t end = least(some.end, before + length);
            if (begin < end)
                window_append(&j->reduced, first + begin - before, first + end - before);
            before += length;
        }
        first += length;
    }
}

/* Let a window be of a block's elements: of those of all carriers, one after the other. */
static void move_to_block(job *j, window *w, uint64_t number)
{
    const chunk all = block_of(j->k->total, j->block, number);
    window_clear(w);
    if (!scatters(j))
        window_append(w, all.begin, all.end);
    for (int q = 0; scatters(j) && q < (int)j->carriers; q++)
        for (uint32_t host = 0; host < j->hosts->hosts; host++)
            append_scattered(j, host, scattered_part(j, host, number, q));
}

/* --- On this host */

/* Reduce a block's rows to nodes, of which each carrier gets its part. */
static status reduce_here(job *j, transit *b)
{
    uint64_t lengths[MAX_MEMBERS] = {0};
    for (uint32_t q = 0; q < j->carriers; q++)
        lengths[q] = length_of_part(j, b->number, (int)q);
    move_to_block(j, &j->reduced, b->number);
    for (uint32_t i = 0; carries(j) && i < j->k->split->part_nodes; i++)
        j->own[i] = (char *)b->nodes + i * j->part * j->node_element;
    return reduce_to_nodes(&j->reduced.part, lengths, j->own);
}

typedef struct {
    const job *j;
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
    return scatters(h->j) ? scattered_part(h->j, h->j->hosts->here, h->number, carrier)
                          : part_of(h->j, h->k->total, carrier);
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
    if (!carries(h->j))
        return;
    const chunk own = handed_by(h, c->rank, block);
    copy(c->simd, input_at(c, c->rank, number), own_result(h, block),
         (own.end - own.begin) * h->t.a.element, streaming);
}

/* Copy what a carrier hands out, of which the first element lies at `from`, to where it
 * goes. */
static void take(handing *h, chunk theirs, const unsigned char *from)
{
    const job *j = h->j;
    if (!scatters(j)) {
        copy_out(h->k, &h->t, &h->at, theirs.begin, theirs.end, from);
        return;
    }
    const replica_split *split = h->k->split;
    const uint64_t first = split->first[split->rank] * j->each;
    const uint64_t begin = most(theirs.begin, first);
    const uint64_t end = least(theirs.end, first + split->rows[split->rank] * j->each);
    const size_t element = h->t.a.element;
    if (begin < end)
        copy(h->k->c->simd, j->out + (begin - first) * element,
             from + (begin - theirs.begin) * element, (end - begin) * element, false);
}

static void read_block(void *what, uint64_t block, uint64_t number, bool streaming)
{
    (void)streaming; /* what is read goes to the program's memory */
    handing *h = what;
    comm *c = h->k->c;
    for (int q = 0; q < (int)h->j->carriers; q++)
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
static status hand_out(job *j, const transit *b)
{
    status s = DONE;
    if (j->root_host >= 0 && j->root_host != (int)j->hosts->here)
        /* Their leader knows by now that all hosts make this call. */
        return b->number + 1 == j->count ? barrier(j->k->c, 0) : DONE;
    handing h = {.j = j, .k = j->k, .number = b->number, .result = b->result};
    if (scatters(j)) {
        h.result += carries(j) ? b->shares[j->hosts->here] * j->a.element : 0;
    } else {
        move_to_block(j, &j->handed_out, b->number);
        h.k = &j->handed_out.part;
    }
    h.t = terms_of(h.k);
    h.t.stream_out = !scatters(j) && j->k->total * h.t.a.element >= STREAM_OUT_BYTES;
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
static chunk share_of(const job *j, const transit *b, uint32_t host)
{
    if (j->whole)
        return (chunk){0, b->shares[j->hosts->hosts]};
    return (chunk){b->shares[host], b->shares[host + 1]};
}

/* Whether shares of the result go to other hosts than those that complete them. */
static bool hands_on(const job *j)
{
    return !j->whole && !scatters(j);
}

/* Begin to receive the nodes of a block that are completed here. */
static status receive_nodes(job *j, transit *b)
{
    const links *l = j->l;
    const chunk own = share_of(j, b, l->here);
    unsigned char *to = b->received;
    b->count_incoming = 0;
    for (uint32_t host = 0; host < l->hosts; host++)
        for (uint32_t i = 0; host != l->here && i < j->hosts->nodes[host]; i++) {
            const status s = receive_from(j->k->c, &b->incoming[b->count_incoming++], host,
                                          NODES, to, (own.end - own.begin) * j->node_element);
            if (s != DONE)
                return s;
            to += j->share * j->node_element;
        }
    return DONE;
}

/* Begin to receive the shares of a result that other hosts complete. */
static status receive_results(job *j, transit *b)
{
    const links *l = j->l;
    b->count_results = 0;
    if (!hands_on(j) || (j->root_host >= 0 && j->root_host != (int)l->here))
        return DONE;
    for (uint32_t step = 1; step < l->hosts; step++) {
        const uint32_t from = (l->here + l->hosts - step) % l->hosts;
        const chunk theirs = share_of(j, b, from);
        const status s = receive_from(j->k->c, &b->results[b->count_results++], from, RESULTS,
                                      b->result + theirs.begin * j->a.element,
                                      (theirs.end - theirs.begin) * j->a.element);
        if (s != DONE)
            return s;
    }
    return DONE;
}

/* Begin to send this host's nodes of a block to those that complete them. */
static status send_nodes(job *j, transit *b)
{
    const links *l = j->l;
    b->count_outgoing = 0;
    for (uint32_t step = 1; step < l->hosts; step++) {
        const uint32_t host = (l->here + step) % l->hosts;
        const chunk theirs = share_of(j, b, host);
        for (uint32_t i = 0; i < j->k->split->part_nodes; i++) {
            const status s =
                send_to(j->k->c, &b->outgoing[b->count_outgoing++], host, NODES,
                        b->nodes + (i * j->part + theirs.begin) * j->node_element,
                        (theirs.end - theirs.begin) * j->node_element);
            if (s != DONE)
                return s;
        }
    }
    return DONE;
}

/* Begin to hand on the share of a result that was completed here. */
static status send_results(job *j, transit *b, chunk own)
{
    const links *l = j->l;
    for (uint32_t step = 1; hands_on(j) && step < l->hosts; step++) {
        const uint32_t to = (l->here + step) % l->hosts;
        if (j->root_host >= 0 && j->root_host != (int)to)
            continue;
        const status s = send_to(j->k->c, &b->outgoing[b->count_outgoing++], to, RESULTS,
                                 b->result + own.begin * j->a.element,
                                 (own.end - own.begin) * j->a.element);
        if (s != DONE)
            return s;
    }
    return DONE;
}

/* Complete a share. The other hosts' nodes of it begin where `of_host` says. */
static void complete(job *j, const transit *b, chunk share)
{
    const host_split *h = j->hosts;
    char *to = (char *)b->result + share.begin * j->a.element;
    j->of_host[h->here] = b->nodes + share.begin * j->node_element;
    for (uint32_t i = 0; i < h->of_hosts.leaves; i++) {
        const host_node n = h->leaf[i];
        const uint64_t apart = n.host == h->here ? j->part : j->share;
        j->leaf[i] = (const char *)j->of_host[n.host] + n.node * apart * j->node_element;
    }
    complete_nodes(j->k->c, &j->a, &h->of_hosts, j->leaf, j->k->nodes_as_given,
                   share.end - share.begin, &to, 1);
}

/* Complete this host's share once the nodes have come. */
static status complete_block(job *j, transit *b)
{
    const unsigned char *at = b->received;
    const status s = await_messages(j->k->c, b->incoming, b->count_incoming);
    if (s != DONE)
        return s;
    for (uint32_t host = 0; host < j->l->hosts; host++) {
        j->of_host[host] = at;
        at += host == j->l->here ? 0 : j->hosts->nodes[host] * j->share * j->node_element;
    }
    const chunk own = share_of(j, b, j->l->here);
    complete(j, b, own);
    return send_results(j, b, own);
}

static status await_results(job *j, transit *b)
{
    const status s = await_messages(j->k->c, b->results, b->count_results);
    return s == DONE ? await_messages(j->k->c, b->outgoing, b->count_outgoing) : s;
}

/* --- The whole */

/* Find how a block is divided that this member carries a part of. */
static void divide_block(const job *j, transit *b, uint64_t number)
{
    b->number = number;
    for (uint32_t host = 0; carries(j) && host < j->hosts->hosts; host++)
        b->shares[host + 1] =
            b->shares[host] + length_of_share(j, number, j->k->c->rank, host);
}

static status reduce_with_records(job *j)
{
    transit *b = &j->blocks[0];
    divide_block(j, b, 0);
    status s = reduce_here(j, b);
    if (s == DONE && j->l->leads) {
        const uint64_t bytes = j->k->split->part_nodes * j->part * j->node_element;
        s = begin_records(j->k->c, b->nodes, bytes);
        if (s == DONE)
            s = finish_records(j->k->c, j->of_host, j->bytes_of_host);
        if (s == DONE)
            complete(j, b, (chunk){0, j->k->total});
    }
    return s == DONE ? hand_out(j, b) : s;
}

/* Let the leaders see that all hosts make this call, before any carrier looks at what has
 * come: of another call it might be too much. */
static status agree(job *j)
{
    const status s = j->l->leads ? finish_records(j->k->c, j->of_host, j->bytes_of_host)
                                 : DONE;
    return s == DONE && j->carriers > 1 ? barrier(j->k->c, 0) : s;
}

/* Let a block be on its way, before its nodes are there: what comes early has its place. */
static status begin_block(job *j, uint64_t number)
{
    transit *b = &j->blocks[number % DEPTH];
    divide_block(j, b, number);
    return carries(j) ? receive_nodes(j, b) : DONE;
}

/* Reduce a block on this host, and let its nodes go to the others. Of the first one, the
 * leaders meanwhile agree on the call. */
static status begin_exchange(job *j, uint64_t number)
{
    transit *b = &j->blocks[number % DEPTH];
    status s = number == 0 && j->l->leads ? begin_records(j->k->c, NULL, 0) : DONE;
    if (s == DONE)
        s = reduce_here(j, b);
    if (s == DONE && carries(j))
        s = send_nodes(j, b);
    if (s == DONE && number == 0)
        s = agree(j);
    return s == DONE && carries(j) ? receive_results(j, b) : s;
}

static status step_of(job *j, uint64_t step)
{
    const uint64_t count = j->count;
    status s = step < count ? begin_exchange(j, step) : DONE;
    if (s == DONE && carries(j) && step >= 1 && step <= count)
        s = complete_block(j, &j->blocks[(step - 1) % DEPTH]);
    if (s == DONE && step >= 2) {
        transit *b = &j->blocks[(step - 2) % DEPTH];
        s = carries(j) ? await_results(j, b) : DONE;
        if (s == DONE)
            s = hand_out(j, b);
    }
    /* Its memory is that of the block just handed out. */
    return s == DONE && step + 1 < count ? begin_block(j, step + 1) : s;
}

static status reduce_in_blocks(job *j)
{
    status s = begin_block(j, 0);
    for (uint64_t step = 0; s == DONE && step < j->count + 2; step++)
        s = step_of(j, step);
    return s;
}

/* Find memory for blocks on their way. */
static bool place_blocks(job *j, uint32_t count)
{
    const host_split *h = j->hosts;
    const uint64_t result = round_up(j->part * j->a.element, PAGE);
    const uint32_t own = h->nodes[h->here], others = h->of_hosts.leaves - own;
    const uint64_t own_nodes = own * j->part * j->node_element;
    const uint64_t all_nodes = own_nodes + others * j->share * j->node_element;
    const uint64_t each = round_up(all_nodes, PAGE) + result;
    const uint32_t outgoing = (h->hosts - 1) * (own + 1);
    const uint32_t messages = others + h->hosts + outgoing;
    if (!links_reserve(j->l, count * each, RECORD_MESSAGES + count * messages))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        unsigned char *at = j->l->memory + i * each;
        message *m = j->l->messages + RECORD_MESSAGES + i * messages;
        j->blocks[i] = (transit){
            .shares = calloc(h->hosts + 1, sizeof(uint64_t)),
            .nodes = at,
            .received = at + own_nodes,
            .result = at + each - result,
            .incoming = m,
            .results = m + others,
            .outgoing = m + others + h->hosts,
        };
        if (!j->blocks[i].shares)
            return false;
    }
    return true;
}

static bool open_job(job *j, uint32_t blocks_on_their_way)
{
    const host_split *h = j->hosts;
    /* Of a reduce_scatter, each carrier may have a range of what each member gets. */
    const uint32_t ranges = scatters(j) ? j->carriers * ((uint32_t)h->size + h->hosts) : 1;
    if (!window_open(&j->reduced, j->k, ranges) || !window_open(&j->handed_out, j->k, 1))
        return false;
    j->reduced.part.op = REDUCE_TO_NODES;
    if (!carries(j))
        return true;
    j->own = calloc(j->k->split->part_nodes, sizeof *j->own);
    j->leaf = calloc(h->of_hosts.leaves, sizeof *j->leaf);
    j->of_host = calloc(h->hosts, sizeof *j->of_host);
    j->bytes_of_host = calloc(h->hosts, sizeof *j->bytes_of_host);
    return j->own && j->leaf && j->of_host && j->bytes_of_host
           && place_blocks(j, blocks_on_their_way);
}

static void close_job(job *j)
{
    window_close(&j->reduced);
    window_close(&j->handed_out);
    for (uint32_t i = 0; i < DEPTH; i++)
        free(j->blocks[i].shares);
    free(j->of_each_host);
    free(j->own);
    free(j->leaf);
    free(j->of_host);
    free(j->bytes_of_host);
}

/* Choose how the call goes, by size. */
static bool choose(job *j)
{
    const host_split *h = j->hosts;
    const uint64_t bytes = j->k->total * h->most_nodes * j->node_element;
    const bool in_records = bytes <= RECORD_DATA_BYTES && bytes * h->hosts <= RECORDS_BYTES;
    j->whole = bytes * (h->hosts - 1) <= WHOLE_BYTES;
    const uint64_t shares = (uint64_t)SHARE_BYTES * h->hosts;
    const uint64_t part_bytes = shares > BLOCK_BYTES ? shares : BLOCK_BYTES;
    j->carriers = h->fewest_members < MOST_CARRIERS ? h->fewest_members : MOST_CARRIERS;
    if (j->whole)
        j->carriers = 1;
    j->block = part_bytes / (h->most_nodes * j->node_element) / CHUNK_UNIT * CHUNK_UNIT;
    if (j->block < CHUNK_UNIT)
        j->block = CHUNK_UNIT;
    j->block *= j->carriers;
    if (j->block > j->k->total)
        j->block = in_records ? j->k->total : round_up(j->k->total, CHUNK_UNIT);
    j->count = in_records ? 1 : (j->k->total + j->block - 1) / j->block;
    j->part = part_of(j, j->block, 0).end;
    j->share = j->whole ? j->part : chunk_of(j->part, (int)h->hosts, 0, CHUNK_UNIT).end;
    return in_records;
}

/* Find what the members of each host get of a reduce_scatter, and divide it into as many
 * blocks as other calls have. False if there is no memory. */
static bool divide_among_hosts(job *j, bool in_records)
{
    const host_split *h = j->hosts;
    j->of_each_host = calloc(h->hosts, sizeof *j->of_each_host);
    if (!j->of_each_host)
        return false;
    j->each = j->k->total / h->replicas;
    for (int q = 0; q < h->size; q++)
        j->of_each_host[h->host_of[q]] += h->rows[q] * j->each;
    if (in_records)
        return true;
    j->whole = false;
    j->part = length_of_part(j, 0, 0);
    j->share = 0;
    for (uint32_t host = 0; host < h->hosts; host++)
        j->share = most(j->share, length_of_share(j, 0, 0, host));
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
    job j = {
        .k = &k,
        .hosts = k.split->over_hosts,
        .l = c->links,
        .root_host = -1,
        .out = out,
    };
    j.a = arithmetic_of(c, k.type, k.reduction, j.hosts->replicas);
    /* A node that is a row of bools has whatever bytes the program put there. */
    k.nodes_as_given = j.hosts->single && k.type != BOOL;
    j.node_element = k.nodes_as_given ? j.a.element : j.a.accumulated;
    const bool in_records = choose(&j);
    const algorithm how = in_records ? ONESHOT : DIRECT;
    k.how = k.how == DIRECT ? how : k.how;
    descriptor d = descriptor_of(&k);
    d.details_hash = j.hosts->hash ^ k.shapes_hash;
    begin_larger_call(c, &d);
    if (k.root >= 0) {
        j.root_host = (int)j.hosts->host_of[k.root];
        k.root = local_rank_of(j.hosts, k.root);
    }
    status s = ENDED;
    if ((scatters(&j) && !divide_among_hosts(&j, in_records))
        || !open_job(&j, in_records ? 1 : DEPTH))
        end_group(c, END_REQUESTED, c->rank, NO_MEMORY);
    else
        s = in_records ? reduce_with_records(&j) : reduce_in_blocks(&j);
    close_job(&j);
    if (s != DONE)
        links_note_failure(j.l);
    else if (k.op != REDUCE_SCATTER)
        c->ran = how;
    return s;
}
