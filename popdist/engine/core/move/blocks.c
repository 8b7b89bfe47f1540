#include "move/blocks.h"

#include "move/slots.h"

static void write_one(blocks *b, uint64_t block)
{
    traffic_begin(&b->traffic, b->number + block);
    b->write(b->what, block, b->number + block, b->traffic.streaming);
    if (b->traffic.streaming)
        stores_done();
    traffic_end(&b->traffic);
}

static void read_one(blocks *b, uint64_t block)
{
    traffic_begin(&b->traffic, b->number + block);
    b->read(b->what, block, b->number + block);
    traffic_end(&b->traffic);
}

status blocks_run(blocks *b, const descriptor *d)
{
    comm *c = b->c;
    const uint64_t before = c->posted;
    status s;
    b->number = c->blocks;
    b->traffic = traffic_of(c, b->bytes, b->count);
    choose_lane(c, b->extent, b->count);
    begin(c, d);
    if (b->count)
        write_one(b, 0);
    announce(c);
    if ((s = await_calls(c)) != DONE)
        return s;
    for (uint64_t i = 0; i < b->count; i++) {
        if (i > 0 && (s = wait_all(c, before + 2 * i + 1)) != DONE)
            return s;
        read_one(b, i);
        post(c);
        if (i + 1 == b->count)
            break;
        if (i > 0 && (s = wait_all(c, before + 2 * i)) != DONE)
            return s;
        write_one(b, i + 1);
        post(c);
    }
    c->blocks += b->count;
    /* The next call may overwrite all but the last block. */
    return b->count > 1 ? wait_all(c, before + 2 * b->count - 2) : DONE;
}
