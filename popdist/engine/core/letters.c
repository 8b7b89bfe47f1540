/* Send and receive: letters in the channel of the two, two on their way at most. */
#include "exchange.h"

#include <string.h>

static uint64_t letters_of(uint64_t bytes)
{
    return bytes ? (bytes + LETTER_BYTES - 1) / LETTER_BYTES : 1;
}

static uint64_t letter_bytes(uint64_t bytes, uint64_t number)
{
    uint64_t begun = number * LETTER_BYTES;
    return bytes - begun < LETTER_BYTES ? bytes - begun : LETTER_BYTES;
}

/* For messages: what we do, in our own line; no announcement goes with it. */
static void note(comm *c, operation op, int peer, dtype type, uint64_t bytes)
{
    const descriptor d = {
        .count = bytes / element_bytes(type),
        .operation = (uint8_t)op,
        .dtype = (uint8_t)type,
        .root = peer,
    };
    describe(c, &d);
}

status send_letters(comm *c, int to, dtype type, const char *from, uint64_t bytes)
{
    channel *ch = channel_at(c, c->rank, to);
    uint64_t *sent = &c->letters_to[to];
    note(c, SEND, to, type, bytes);
    for (uint64_t i = 0; i < letters_of(bytes); i++) {
        if (*sent >= 2) {
            status s = wait_word(c, to, &ch->taken.count, *sent - 1, &ch->taken);
            if (s != DONE)
                return s;
        }
        ch->labels[*sent & 1].dtype = type;
        ch->labels[*sent & 1].count = bytes;
        memcpy(ch->letters[*sent & 1], from + i * LETTER_BYTES, letter_bytes(bytes, i));
        advance(&ch->sent, ++*sent);
    }
    return DONE;
}

status receive_letters(comm *c, int from, dtype type, char *to, uint64_t bytes)
{
    channel *ch = channel_at(c, from, c->rank);
    uint64_t *taken = &c->letters_from[from];
    note(c, RECEIVE, from, type, bytes);
    for (uint64_t i = 0; i < letters_of(bytes); i++) {
        status s = wait_word(c, from, &ch->sent.count, *taken + 1, &ch->sent);
        if (s != DONE)
            return s;
        if (ch->labels[*taken & 1].dtype != type || ch->labels[*taken & 1].count != bytes)
            return end_group(c, MISMATCH, from, "");
        memcpy(to + i * LETTER_BYTES, ch->letters[*taken & 1], letter_bytes(bytes, i));
        advance(&ch->taken, ++*taken);
    }
    return DONE;
}
