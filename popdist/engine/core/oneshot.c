/* The one-shot algorithm: everybody says all it has within its announcement, and
 * everybody adds up everything. One wait, N times the additions: for tiny arrays. */
#include "call.h"

static status one_piece(const call *k, const terms *t, cursor *at, uint64_t begun,
                        uint64_t end)
{
    comm *c = k->c;
    const layout *l = k->l;
    const descriptor d = descriptor_of(k);
    published p = {.pitch = end - begun};
    box *said = begin(c, &d);

    for (uint32_t i = 0; i < l->nodes[c->rank]; i++)
        write_node(k, t, at, &l->mine[i], begun, end,
                   said->data + i * p.pitch * t->slot_element, false);
    announce(c);
    for (int i = 1; i < c->size; i++) {
        int q = c->rank + i < c->size ? c->rank + i : c->rank + i - c->size;
        status s = meet_one(c, q);
        if (s != DONE)
            return s;
        p.from[q] = member_at(c, q)->boxes[c->calls & 1].data;
    }
    if (t->wanted)
        reduce_range(k, t, at, &p, begun, end, NULL, false);
    return DONE;
}

status all_reduce_oneshot(const call *k)
{
    terms t = terms_of(k);
    cursor at = {0, 0};
    uint64_t capacity = BOX_BYTES / (k->l->most_nodes * t.slot_element);
    uint64_t begun = 0;
    k->c->ran = ONESHOT;
    do {
        uint64_t end = k->total - begun < capacity ? k->total : begun + capacity;
        status s = one_piece(k, &t, &at, begun, end);
        if (s != DONE)
            return s;
        begun = end;
    } while (begun < k->total);
    return DONE;
}
