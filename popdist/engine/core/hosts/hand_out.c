#include "hosts/hand_out.h"

#include "move/blocks.h"
#include "move/slots.h"

typedef struct {
    const division *d;
    const call *k; /* the block, or the whole reduce_scatter */
    terms t;
    cursor at;
    char *out;
    uint64_t number; /* of the block */
    const unsigned char *result;
    uint64_t length; /* elements of a carrier in one block through the slots */
} handing;

/* Return a carrier's elements to hand out: of the block, or of this host's results of a
 * reduce_scatter. */
static range handed_range(const handing *h, int carrier)
{
    const division *d = h->d;
    return d->scatters ? division_scattered(d, d->hosts->here, h->number, carrier)
                       : division_carried(d, h->k->total, carrier);
}

/* Return the elements of it in one block through the slots. */
static range handed_by(const handing *h, int carrier, uint64_t block)
{
    const range all = handed_range(h, carrier);
    const range c = range_of_block(range_length(all), h->length, block);
    return (range){all.begin + c.begin, all.begin + c.end};
}

static const unsigned char *own_result(const handing *h, uint64_t block)
{
    return h->result + block * h->length * h->t.a.element;
}

static void write_block(void *what, uint64_t block, uint64_t number, bool streaming)
{
    const handing *h = what;
    comm *c = h->k->c;
    if (!h->d->carries)
        return;
    const range own = handed_by(h, c->rank, block);
    streaming_copy(c->simd, slot_input_at(c, c->rank, number), own_result(h, block),
                   range_length(own) * h->t.a.element, streaming);
}

/* Copy a carrier's elements, which begin at `from`, to their destination. */
static void take(handing *h, range theirs, const unsigned char *from)
{
    if (!h->d->scatters) {
        call_copy_out(h->k, &h->t, &h->at, theirs.begin, theirs.end, from);
        return;
    }
    const replica_split *split = h->k->split;
    const uint64_t first = split->first[split->rank] * h->d->each;
    const uint64_t last = first + split->rows[split->rank] * h->d->each;
    const uint64_t begin = most(theirs.begin, first), end = least(theirs.end, last);
    const size_t element = h->t.a.element;
    if (begin < end)
        streaming_copy(h->k->c->simd, h->out + (begin - first) * element,
                       from + (begin - theirs.begin) * element,
                       (end - begin) * element, false);
}

static void read_block(void *what, uint64_t block, uint64_t number, bool streaming)
{
    (void)streaming; /* for stores to slots; these go to the program's memory */
    handing *h = what;
    comm *c = h->k->c;
    for (int q = 0; q < (int)h->d->carriers; q++)
        take(h, handed_by(h, q, block),
             q == c->rank ? own_result(h, block) : slot_input_at(c, q, number));
}

/* Copy the carriers' elements to all members of this host. */
static status through_slots(handing *h)
{
    comm *c = h->k->c;
    h->length = c->agreed.block_bytes / h->t.a.element;
    /* The first carrier's range is the longest. */
    const uint64_t longest = range_length(handed_range(h, 0));
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
    descriptor d = call_descriptor(h->k);
    d.operation = BROADCAST;
    return blocks_run(&all, &d);
}

status hand_out(const division *d, const call *whole, const call *block, char *out,
                uint64_t number, const unsigned char *result)
{
    status s = DONE;
    handing h = {
        .d = d,
        .k = d->scatters ? whole : block,
        .out = out,
        .number = number,
        .result = result,
    };
    h.t = call_terms(h.k);
    h.t.stream_out = !d->scatters && d->total * h.t.a.element >= STREAM_OUT_BYTES;
    if (whole->c->size == 1)
        take(&h, handed_range(&h, 0), result);
    else
        s = through_slots(&h);
    if (h.t.stream_out)
        stores_done();
    return s;
}
