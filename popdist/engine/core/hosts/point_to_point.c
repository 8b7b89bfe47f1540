/* Send and receive among members on several hosts. Between two hosts a label goes first, so
 * that the receiver detects a message of another type or length. */
#include "hosts/exchange.h"

typedef struct {
    uint64_t dtype, count;
} label;

static status send_between_hosts(comm *c, label own, char *row, uint64_t bytes)
{
    const int to = c->larger_call.root;
    /* The records' memory: such a call has no records. */
    label *sent = (label *)(void *)c->links->records;
    *sent = own;
    const status s = links_begin(c, TO_OTHERS, to, MESSAGES, sent, sizeof *sent);
    return s == DONE ? links_begin(c, TO_OTHERS, to, MESSAGES, row, bytes) : s;
}

static status receive_between_hosts(comm *c, label own, char *row, uint64_t bytes)
{
    const int from = c->larger_call.root;
    label *sent = (label *)(void *)c->links->records;
    status s = links_begin(c, FROM_OTHERS, from, MESSAGES, sent, sizeof *sent);
    if (s == DONE)
        s = links_await_transfers(c);
    if (s != DONE)
        return s;
    if (sent->dtype == own.dtype && sent->count == own.count)
        return links_begin(c, FROM_OTHERS, from, MESSAGES, row, bytes);
    const descriptor theirs = {
        .count = sent->count,
        .operation = SEND,
        .dtype = (uint8_t)sent->dtype,
        .root = (int16_t)c->links->rank,
    };
    return c->links->on_mismatch(c, from, &theirs);
}

status message_over_hosts(comm *c, operation op, int peer, dtype type, char *row,
                          uint64_t bytes)
{
    const remote *other = &c->links->members[peer];
    const descriptor d = {
        .count = bytes / element_bytes(type),
        .operation = (uint8_t)op,
        .dtype = (uint8_t)type,
        .root = (int16_t)peer,
    };
    links_begin_call(c, &d);
    if (other->host == c->links->here)
        return op == SEND ? send_message(c, other->place, type, row, bytes)
                          : receive_message(c, other->place, type, row, bytes);
    announce_describe(c, &d);
    const label own = {type, d.count};
    status s = op == SEND ? send_between_hosts(c, own, row, bytes)
                          : receive_between_hosts(c, own, row, bytes);
    if (s == DONE)
        s = links_await_transfers(c);
    if (s != DONE)
        links_note_failure(c->links);
    return s;
}
