#include "move/blocks.h"

#include "move/slots.h"

void blocks_begin(blocks *b)
{
    b->before = b->c->posted;
    b->number = b->c->blocks;
    b->traffic = traffic_of(b->c, b->bytes, b->count);
    slots_choose_lane(b->c, b->extent, b->count);
}

void blocks_write(blocks *b, uint64_t block)
{
    traffic_begin(&b->traffic, b->number + block);
    b->write(b->what, block, b->number + block, b->traffic.streaming);
    if (b->traffic.streaming)
        stores_done();
    traffic_end(&b->traffic, b->number + block);
}

static void blocks_read(blocks *b, uint64_t block)
{
    traffic_begin(&b->traffic, b->number + block);
    b->read(b->what, block, b->number + block, b->traffic.streaming);
    if (b->traffic.streaming)
        stores_done();
    traffic_end(&b->traffic, b->number + block);
}

static status go_through_one(blocks *b, uint64_t block)
{
    comm *c = b->c;
    status s;
    if (block > 0 && (s = wait_all(c, b->before + 2 * block + 1)) != DONE)
        return s;
    blocks_read(b, block);
    comm_post(c);
    if (block + 1 < b->count) {
        if (block > 0 && (s = wait_all(c, b->before + 2 * block)) != DONE)
            return s;
        blocks_write(b, block + 1);
        comm_post(c);
    }
    return b->take ? b->take(b, block) : DONE;
}

status blocks_go_through(blocks *b)
{
    for (uint64_t block = 0; block < b->count; block++) {
        const status s = go_through_one(b, block);
        if (s != DONE)
            return s;
        traffic_done(&b->traffic, b->number + block);
    }
    b->c->blocks += b->count;
    return DONE;
}

status blocks_run(blocks *b, const descriptor *d)
{
    comm *c = b->c;
    status s;
    blocks_begin(b);
    announce_begin(c, d);
    if (b->count)
        blocks_write(b, 0);
    announce_call(c);
    if ((s = announce_await_all(c)) != DONE || (s = blocks_go_through(b)) != DONE)
        return s;
    /* The next call may overwrite all but the last block. */
    return b->count > 1 ? wait_all(c, b->before + 2 * b->count - 2) : DONE;
}
