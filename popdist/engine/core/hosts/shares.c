#include "hosts/shares.h"

#include "reduce/nodes.h"

#include <stdlib.h>

enum {
    /* If leaders complete whole blocks, a message has at most so many bytes: MPI
     * libraries send messages of this size at once, and ask the receiver before larger
     * ones, which costs more than several messages. */
    EAGER_BYTES = 32 << 10,
};

/* Return the number of messages that bring the nodes of one number. */
static uint32_t messages_of_nodes(const division *d, size_t node_element)
{
    const uint64_t bytes = d->carried * node_element;
    return d->whole && bytes ? (uint32_t)((bytes + EAGER_BYTES - 1) / EAGER_BYTES) : 1;
}

/* The elements that this carrier carries of a block and a host completes. */
static range share_of(const shares *x, const transit *b, uint32_t host)
{
    if (x->d->whole)
        return (range){0, b->begins[x->l->hosts]};
    return (range){b->begins[host], b->begins[host + 1]};
}

/* `count` times so many bytes, at intervals of `apart`. */
typedef struct {
    unsigned char *at;
    uint64_t bytes, apart;
    uint32_t count;
} strided;

/* The memory for the nodes from another host. */
static unsigned char *received_from(const shares *x, const transit *b, uint32_t host)
{
    uint32_t before = 0;
    for (uint32_t other = 0; other < host; other++)
        before += other == x->l->here ? 0 : x->d->hosts->nodes[other];
    return b->received + before * x->d->share * x->node_element;
}

/* The data that this host sends to another one, or receives from it. */
static strided strided_of(const shares *x, const transit *b, message_kind kind,
                          direction way, uint32_t host)
{
    const uint32_t here = x->l->here, receiver = way == TO_OTHERS ? host : here;
    const uint32_t completes = kind == NODES ? receiver : here + host - receiver;
    const range share = share_of(x, b, completes);
    if (kind == RESULTS)
        return (strided){
            .at = b->result + share.begin * x->a.element,
            .bytes = range_length(share) * x->a.element,
            .count = !x->d->whole && !x->d->scatters
                     && (x->root_host < 0 || x->root_host == (int)receiver),
        };
    const bool sends = way == TO_OTHERS;
    return (strided){
        .at = sends ? b->nodes + share.begin * x->node_element : received_from(x, b, host),
        .bytes = range_length(share) * x->node_element,
        .apart = (sends ? x->d->carried : x->d->share) * x->node_element,
        .count = x->d->hosts->nodes[sends ? here : host],
    };
}

/* Begin to exchange bytes with a host. */
static status begin_bytes(const shares *x, messages *to, message_kind kind, direction way,
                          uint32_t host, unsigned char *at, uint64_t bytes)
{
    comm *c = x->k->c;
    const int member = x->l->counterparts[host];
    const uint64_t most_bytes = x->d->whole ? EAGER_BYTES : bytes;
    status s;
    do {
        const uint64_t now = least(bytes, most_bytes);
        message *m = &to->first[to->count++];
        s = way == TO_OTHERS ? links_send(c, m, member, (int)kind, at, now)
                             : links_receive(c, m, member, (int)kind, at, now);
        at += now;
        bytes -= now;
    } while (s == DONE && bytes);
    return s;
}

status shares_begin(shares *x, transit *b, message_kind kind, direction way)
{
    const links *l = x->l;
    messages *to = way == TO_OTHERS ? &b->outgoing : kind == NODES ? &b->nodes_of_others
                                                                   : &b->results_of_others;
    /* Each host begins with another one, so that no host is the first receiver of all. */
    for (uint32_t step = 1; step < l->hosts; step++) {
        const uint32_t ahead = way == TO_OTHERS ? step : l->hosts - step;
        const uint32_t host = (l->here + ahead) % l->hosts;
        const strided p = strided_of(x, b, kind, way, host);
        for (uint32_t i = 0; i < p.count; i++) {
            const status s =
                begin_bytes(x, to, kind, way, host, p.at + i * p.apart, p.bytes);
            if (s != DONE)
                return s;
        }
    }
    return DONE;
}

void shares_complete(shares *x, const transit *b, range share)
{
    const host_split *h = x->d->hosts;
    char *to = (char *)b->result + share.begin * x->a.element;
    x->l->data_of[h->here] = b->nodes + share.begin * x->node_element;
    for (uint32_t i = 0; i < h->of_hosts.leaves; i++) {
        const host_node n = h->leaf[i];
        const uint64_t apart = n.host == h->here ? x->d->carried : x->d->share;
        x->leaf[i] = (const char *)x->l->data_of[n.host] + n.node * apart * x->node_element;
    }
    complete_nodes(x->k->c, &x->a, &h->of_hosts, x->leaf, x->k->nodes_as_given,
                   range_length(share), &to, 1);
}

static status await_all(const shares *x, const messages *of)
{
    return links_await(x->k->c, of->first, of->count);
}

status shares_complete_block(shares *x, transit *b)
{
    const status s = await_all(x, &b->nodes_of_others);
    if (s != DONE)
        return s;
    for (uint32_t host = 0; host < x->l->hosts; host++)
        x->l->data_of[host] = received_from(x, b, host);
    shares_complete(x, b, share_of(x, b, x->l->here));
    return shares_begin(x, b, RESULTS, TO_OTHERS);
}

status shares_await_results(shares *x, transit *b)
{
    const status s = await_all(x, &b->results_of_others);
    return s == DONE ? await_all(x, &b->outgoing) : s;
}

transit *shares_transit(shares *x, uint64_t number)
{
    return &x->blocks[number % DEPTH];
}

transit *shares_divide_block(shares *x, uint64_t number)
{
    transit *b = shares_transit(x, number);
    b->nodes_of_others.count = b->results_of_others.count = b->outgoing.count = 0;
    for (uint32_t host = 0; host < x->l->hosts; host++)
        b->begins[host + 1] =
            b->begins[host] + division_share_length(x->d, number, x->k->c->rank, host);
    return b;
}

static bool place_blocks(shares *x, uint32_t count)
{
    const host_split *h = x->d->hosts;
    const uint64_t result = round_up(x->d->carried * x->a.element, PAGE);
    const uint32_t own = h->nodes[h->here], others = h->of_hosts.leaves - own;
    const uint64_t own_nodes = own * x->d->carried * x->node_element;
    const uint64_t all_nodes = own_nodes + others * x->d->share * x->node_element;
    const uint64_t each = round_up(all_nodes, PAGE) + result;
    const uint32_t of_nodes = messages_of_nodes(x->d, x->node_element);
    const uint32_t incoming = of_nodes * others;
    const uint32_t outgoing = (h->hosts - 1) * (of_nodes * own + 1);
    const uint32_t each_messages = incoming + h->hosts + outgoing;
    if (!links_reserve(x->l, count * each, RECORD_MESSAGES + count * each_messages))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        unsigned char *at = x->l->memory + i * each;
        message *m = x->l->messages + RECORD_MESSAGES + i * each_messages;
        x->blocks[i] = (transit){
            .begins = calloc(h->hosts + 1, sizeof(uint64_t)),
            .nodes = at,
            .received = at + own_nodes,
            .result = at + each - result,
            .nodes_of_others = {m, 0},
            .results_of_others = {m + incoming, 0},
            .outgoing = {m + incoming + h->hosts, 0},
        };
        if (!x->blocks[i].begins)
            return false;
    }
    return true;
}

bool shares_open(shares *x, uint32_t blocks_on_their_way)
{
    const host_split *h = x->d->hosts;
    x->own = calloc(x->k->split->host_nodes, sizeof *x->own);
    x->leaf = calloc(h->of_hosts.leaves, sizeof *x->leaf);
    return x->own && x->leaf && place_blocks(x, blocks_on_their_way);
}

void shares_close(shares *x)
{
    for (uint32_t i = 0; i < DEPTH; i++)
        free(x->blocks[i].begins);
    free(x->own);
    free(x->leaf);
}
