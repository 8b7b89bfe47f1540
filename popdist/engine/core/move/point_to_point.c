/* Send and receive: a message goes in parts through the channel of the two members, which
 * holds two parts at most. */
#include "move/exchange.h"

#include <string.h>

static uint64_t parts_of_message(uint64_t bytes)
{
    return bytes ? (bytes + MESSAGE_SLOT_BYTES - 1) / MESSAGE_SLOT_BYTES : 1;
}

static uint64_t part_bytes(uint64_t bytes, uint64_t number)
{
    uint64_t begun = number * MESSAGE_SLOT_BYTES;
    return bytes - begun < MESSAGE_SLOT_BYTES ? bytes - begun : MESSAGE_SLOT_BYTES;
}

static descriptor described(operation op, int peer, dtype type, uint64_t bytes)
{
    return (descriptor){
        .count = bytes / element_bytes(type),
        .operation = (uint8_t)op,
        .dtype = (uint8_t)type,
        .root = (int16_t)peer,
    };
}

/* Describe this call for messages; send and receive announce nothing. */
static void note(comm *c, operation op, int peer, dtype type, uint64_t bytes)
{
    const descriptor d = described(op, peer, type, bytes);
    announce_describe(c, &d);
}

status send_message(comm *c, int to, dtype type, const char *from, uint64_t bytes)
{
    channel *ch = channel_at(c, c->rank, to);
    uint64_t *sent = &c->sent_to[to];
    note(c, SEND, to, type, bytes);
    for (uint64_t i = 0; i < parts_of_message(bytes); i++) {
        if (*sent >= 2) {
            status s = wait_word(c, to, &ch->received.count, *sent - 1, &ch->received);
            if (s != DONE)
                return s;
        }
        ch->labels[*sent & 1].dtype = type;
        ch->labels[*sent & 1].count = bytes;
        memcpy(ch->messages[*sent & 1], from + i * MESSAGE_SLOT_BYTES,
               part_bytes(bytes, i));
        counter_advance(&ch->sent, ++*sent);
    }
    return DONE;
}

/* Report a message by its label: the sender may be in another call by now. */
static status refuse(comm *c, const channel *ch, int from)
{
    const uint64_t number = c->received_from[from] & 1;
    const descriptor theirs = described(SEND, c->larger_rank, (dtype)ch->labels[number].dtype,
                                        ch->labels[number].count);
    return end_over(c, MISMATCH, from, &theirs);
}

status receive_message(comm *c, int from, dtype type, char *to, uint64_t bytes)
{
    channel *ch = channel_at(c, from, c->rank);
    uint64_t *received = &c->received_from[from];
    note(c, RECEIVE, from, type, bytes);
    for (uint64_t i = 0; i < parts_of_message(bytes); i++) {
        status s = wait_word(c, from, &ch->sent.count, *received + 1, &ch->sent);
        if (s != DONE)
            return s;
        if (ch->labels[*received & 1].dtype != type || ch->labels[*received & 1].count != bytes)
            return refuse(c, ch, from);
        memcpy(to + i * MESSAGE_SLOT_BYTES, ch->messages[*received & 1], part_bytes(bytes, i));
        counter_advance(&ch->received, ++*received);
    }
    return DONE;
}
