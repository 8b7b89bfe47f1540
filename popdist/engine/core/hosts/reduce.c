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
    /* Messages that records need. */
    RECORD_MESSAGES = 2,
    /* The most carriers of a host: each costs messages of its own, and so many keep a
     * network interface busy. */
    MOST_CARRIERS = 4,
};

/* A block on its way, and the memory that it needs. */
typedef struct {
    uint64_t begin, end;
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

/* Which elements of `count` a carrier has, by its rank on its host. */
static chunk part_of(const job *j, uint64_t count, int carrier)
{
    return chunk_of(count, (int)j->carriers, carrier, CHUNK_UNIT);
}

/* --- On this host */

/* Reduce a block's rows to nodes, of which each carrier gets its part. */
static status reduce_here(job *j, transit *b)
{
    uint64_t lengths[MAX_MEMBERS] = {0};
    for (uint32_t q = 0; q < j->carriers; q++) {
        const chunk part = part_of(j, b->end - b->begin, (int)q);
        lengths[q] = part.end - part.begin;
    }
    window_move(&j->reduced, b->begin, b->end);
    for (uint32_t i = 0; carries(j) && i < j->k->split->part_nodes; i++)
        j->own[i] = (char *)b->nodes + i * j->part * j->node_element;
    return reduce_to_nodes(&j->reduced.part, lengths, j->own);
}

typedef struct {
    const job *j;
    const call *k;
    terms t;
    cursor at;
    const unsigned char *result; /* of this carrier's part */
    uint64_t length;             /* elements of a part that go at once */
} handing;

/* Return what of a carrier's part goes in a block through the slots. */
static chunk handed_by(const handing *h, int carrier, uint64_t block)
{
    const chunk part = part_of(h->j, h->k->total, carrier);
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

static void read_block(void *what, uint64_t block, uint64_t number, bool streaming)
{
    (void)streaming; /* what is read goes to the program's memory */
    handing *h = what;
    comm *c = h->k->c;
    for (int q = 0; q < (int)h->j->carriers; q++) {
        const chunk theirs = handed_by(h, q, block);
        copy_out(h->k, &h->t, &h->at, theirs.begin, theirs.end,
                 q == c->rank ? own_result(h, block) : input_at(c, q, number));
    }
}

/* Give the members of this host the result of a block, if it is theirs. */
static status hand_out(job *j, const transit *b)
{
    if (j->root_host >= 0 && j->root_host != (int)j->hosts->here)
        /* Their leader knows by now that all hosts make this call. */
        return b->end == j->k->total ? barrier(j->k->c, 0) : DONE;
    window_move(&j->handed_out, b->begin, b->end);
    const call *k = &j->handed_out.part;
    handing h = {.j = j, .k = k, .t = terms_of(k), .result = b->result};
    h.t.stream_out = j->k->total * h.t.a.element >= STREAM_OUT_BYTES;
    if (k->c->size == 1) {
        copy_out(k, &h.t, &h.at, 0, k->total, h.result);
        return DONE;
    }
    h.length = k->c->agreed.block_bytes / h.t.a.element;
    const uint64_t longest = part_of(j, k->total, 0).end;
    const uint64_t bytes = (longest < h.length ? longest : h.length) * h.t.a.element;
    blocks all = {
        .c = k->c,
        .count = (longest + h.length - 1) / h.length,
        .bytes = bytes,
        .extent = bytes,
        .what = &h,
        .write = write_block,
        .read = read_block,
    };
    descriptor d = descriptor_of(k);
    d.operation = BROADCAST;
    const status s = blocks_run(&all, &d);
    if (h.t.stream_out)
        stores_done();
    return s;
}

/* --- Between hosts */

/* Which elements of this carrier's part of a block a host completes. */
static chunk share_of(const job *j, const transit *b, uint32_t host)
{
    const chunk part = part_of(j, b->end - b->begin, j->k->c->rank);
    const uint64_t count = part.end - part.begin;
    if (j->whole)
        return (chunk){0, count};
    return chunk_of(count, (int)j->l->hosts, (int)host, CHUNK_UNIT);
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
    if (j->whole || (j->root_host >= 0 && j->root_host != (int)l->here))
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
    for (uint32_t step = 1; !j->whole && step < l->hosts; step++) {
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

static status reduce_with_records(job *j)
{
    transit *b = &j->blocks[0];
    b->end = j->k->total;
    status s = reduce_here(j, b);
    if (s == DONE && j->l->leads) {
        const uint64_t bytes = j->k->split->part_nodes * j->part * j->node_element;
        s = share_records(j->k->c, b->nodes, bytes, j->of_host, j->bytes_of_host);
        if (s == DONE)
            complete(j, b, (chunk){0, b->end});
    }
    return s == DONE ? hand_out(j, b) : s;
}

/* Let the leaders see that all hosts make this call, before any carrier sends. */
static status agree(job *j)
{
    const status s = j->l->leads ? share_records(j->k->c, NULL, 0, j->of_host,
                                                 j->bytes_of_host)
                                 : DONE;
    return s == DONE && j->carriers > 1 ? barrier(j->k->c, 0) : s;
}

/* Let a block be on its way, before its nodes are there: what comes early has its place. */
static status begin_block(job *j, uint64_t number)
{
    transit *b = &j->blocks[number % DEPTH];
    b->begin = number * j->block;
    b->end = b->begin + j->block < j->k->total ? b->begin + j->block : j->k->total;
    return carries(j) ? receive_nodes(j, b) : DONE;
}

/* Reduce a block on this host, and let its nodes go to the others. */
static status begin_exchange(job *j, uint64_t number)
{
    transit *b = &j->blocks[number % DEPTH];
    status s = reduce_here(j, b);
    if (s == DONE && number == 0)
        s = agree(j);
    if (s == DONE && carries(j))
        s = send_nodes(j, b);
    return s == DONE && carries(j) ? receive_results(j, b) : s;
}

static status step_of(job *j, uint64_t step, uint64_t count)
{
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
    const uint64_t count = (j->k->total + j->block - 1) / j->block;
    status s = begin_block(j, 0);
    for (uint64_t step = 0; s == DONE && step < count + 2; step++)
        s = step_of(j, step, count);
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
            .nodes = at,
            .received = at + own_nodes,
            .result = at + each - result,
            .incoming = m,
            .results = m + others,
            .outgoing = m + others + h->hosts,
        };
    }
    return true;
}

static bool open_job(job *j, uint32_t blocks_on_their_way)
{
    const host_split *h = j->hosts;
    if (!window_open(&j->reduced, j->k) || !window_open(&j->handed_out, j->k))
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
    j->part = part_of(j, j->block, 0).end;
    j->share = j->whole ? j->part : chunk_of(j->part, (int)h->hosts, 0, CHUNK_UNIT).end;
    return in_records;
}

/* Return the rank of a member among those of its host. */
static int local_rank_of(const host_split *h, int member)
{
    int rank = 0;
    for (int q = 0; q < member; q++)
        rank += h->host_of[q] == h->host_of[member];
    return rank;
}

status reduce_over_hosts(const call *given)
{
    call k = *given;
    comm *c = k.c;
    job j = {.k = &k, .hosts = k.split->over_hosts, .l = c->links, .root_host = -1};
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
    if (!open_job(&j, in_records ? 1 : DEPTH))
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
