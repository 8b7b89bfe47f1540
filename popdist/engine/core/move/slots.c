#include "move/slots.h"

void slots_choose_lane(comm *c, uint64_t block_bytes, uint64_t count)
{
    c->lane_input = c->lane_result = 0;
    if (count != 1 || comm_shares_core(c))
        return;
    const uint64_t input = round_up(block_bytes, PAGE);
    const uint64_t result = result_part(block_bytes, c->agreed.size);
    /* Fewer than the room allows: more would push each other out of the caches. */
    uint64_t lanes = c->agreed.block_bytes / input;
    if (c->at.result_bytes / result < lanes)
        lanes = c->at.result_bytes / result;
    if (lanes < 2)
        return;
    /* Two calls use a lane, one in each phase, before the next lane has its turn. */
    uint64_t lane = (c->blocks / 2) % lanes;
    c->lane_input = lane * input;
    c->lane_result = lane * result;
}

static unsigned char *slot_of(const comm *c, int rank)
{
    return c->base + c->at.slots + (uint64_t)rank * c->at.slot_bytes;
}

unsigned char *slot_input_at(const comm *c, int rank, uint64_t block)
{
    return slot_of(c, rank) + (block & 1) * c->at.input_bytes + c->lane_input;
}

unsigned char *slot_result_at(const comm *c, int rank, uint64_t block)
{
    return slot_of(c, rank) + 2 * c->at.input_bytes + (block & 1) * c->at.result_bytes
           + c->lane_result;
}
