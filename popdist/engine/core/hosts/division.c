#include "hosts/division.h"

#include "hosts/links.h"

#include <stdlib.h>

enum {
    /* The bytes that a carrier carries of a block's nodes on one host: at least so many
     * for each host. With larger blocks, members wait less often for the other hosts,
     * and MPI libraries copy messages less often. A call of several blocks has some of
     * them in transit. */
    LEAST_CARRIED_BYTES = 512 << 10,
    MOST_CARRIED_BYTES = 8 << 20,
    LEAST_BLOCKS = 2,
    SHARE_BYTES = 32 << 10,
    /* The most bytes of nodes for all other hosts in one exchange, and in records. */
    WHOLE_BYTES = 128 << 10,
    RECORDS_BYTES = 64 << 10,
    /* The most carriers of a host. Each costs additional messages, and four keep a
     * network interface busy. */
    MOST_CARRIERS = 4,
};

range division_carried(const division *d, uint64_t count, int carrier)
{
    return range_of_share(count, (int)d->carriers, carrier, SHARE_UNIT);
}

range division_scattered(const division *d, uint32_t host, uint64_t number, int carrier)
{
    const range all =
        range_of_share(d->of_each_host[host], (int)d->count, (int)number, SHARE_UNIT);
    const range own = division_carried(d, range_length(all), carrier);
    return (range){all.begin + own.begin, all.begin + own.end};
}

uint64_t division_share_length(const division *d, uint64_t number, int carrier,
                               uint32_t host)
{
    if (d->scatters)
        return range_length(division_scattered(d, host, number, carrier));
    const range all = range_of_block(d->total, d->block, number);
    const range own = division_carried(d, range_length(all), carrier);
    const range share =
        range_of_share(range_length(own), (int)d->hosts->hosts, (int)host, SHARE_UNIT);
    return range_length(share);
}

uint64_t division_carried_length(const division *d, uint64_t number, int carrier)
{
    uint64_t length = 0;
    for (uint32_t host = 0; host < d->hosts->hosts; host++)
        length += division_share_length(d, number, carrier, host);
    return length;
}

/* Append a range of a host's results of a reduce_scatter to the window. */
static void append_scattered(const division *d, window *to, uint32_t host, range some)
{
    uint64_t first = 0, before = 0;
    for (int q = 0; q < d->hosts->size && before < some.end; q++) {
        const uint64_t length = d->hosts->rows[q] * d->each;
        if (d->hosts->host_of[q] == host) {
            const uint64_t begin = most(some.begin, before);
            const uint64_t end = least(some.end, before + length);
            if (begin < end)
                window_append(to, first + begin - before, first + end - before);
            before += length;
        }
        first += length;
    }
}

uint32_t division_most_ranges(const division *d)
{
    /* Each carrier may have a range of each member's result. */
    return d->scatters ? d->carriers * ((uint32_t)d->hosts->size + d->hosts->hosts) : 1;
}

void division_set_window(const division *d, window *to, uint64_t number)
{
    const range all = range_of_block(d->total, d->block, number);
    window_clear(to);
    if (!d->scatters)
        window_append(to, all.begin, all.end);
    for (int q = 0; d->scatters && q < (int)d->carriers; q++)
        for (uint32_t host = 0; host < d->hosts->hosts; host++)
            append_scattered(d, to, host, division_scattered(d, host, number, q));
}

/* Find the results of the members of each host in a reduce_scatter, and divide these
 * into as many blocks as other calls have. False if there is no memory. */
static bool divide_among_hosts(division *d)
{
    const host_split *h = d->hosts;
    d->of_each_host = calloc(h->hosts, sizeof *d->of_each_host);
    if (!d->of_each_host)
        return false;
    d->each = d->total / h->replicas;
    for (int q = 0; q < h->size; q++)
        d->of_each_host[h->host_of[q]] += h->rows[q] * d->each;
    if (d->in_records)
        return true;
    d->whole = false;
    d->carried = division_carried_length(d, 0, 0);
    d->share = 0;
    for (uint32_t host = 0; host < h->hosts; host++)
        d->share = most(d->share, division_share_length(d, 0, 0, host));
    return true;
}

bool division_open(division *d, const call *k, size_t node_element)
{
    const host_split *h = k->split->over_hosts;
    const uint64_t width = h->most_nodes * node_element, bytes = k->total * width;
    *d = (division){
        .hosts = h,
        .total = k->total,
        .scatters = k->op == REDUCE_SCATTER,
        .in_records = bytes <= RECORD_DATA_BYTES && bytes * h->hosts <= RECORDS_BYTES,
        .whole = bytes * (h->hosts - 1) <= WHOLE_BYTES,
    };
    d->carriers = d->whole ? 1 : (uint32_t)least(h->fewest_members, MOST_CARRIERS);
    d->carries = (uint32_t)k->c->rank < d->carriers;
    const uint64_t even = least(bytes / d->carriers / LEAST_BLOCKS, MOST_CARRIED_BYTES);
    const uint64_t shares_bytes = (uint64_t)SHARE_BYTES * h->hosts;
    const uint64_t carried_bytes = most(shares_bytes, most(even, LEAST_CARRIED_BYTES));
    d->block = most(carried_bytes / width / SHARE_UNIT, 1) * SHARE_UNIT * d->carriers;
    if (d->block > d->total)
        d->block = d->in_records ? d->total : round_up(d->total, SHARE_UNIT);
    d->count = d->in_records ? 1 : (d->total + d->block - 1) / d->block;
    d->carried = division_carried(d, d->block, 0).end;
    d->share = d->whole ? d->carried
                        : range_of_share(d->carried, (int)h->hosts, 0, SHARE_UNIT).end;
    return !d->scatters || divide_among_hosts(d);
}

void division_close(division *d)
{
    free(d->of_each_host);
}
