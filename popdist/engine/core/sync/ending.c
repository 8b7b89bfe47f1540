#define _GNU_SOURCE
#include "sync/comm.h"

#include <string.h>
#include <time.h>

enum {
    /* The longest time for a member to write why it ended the group. Writing takes
     * microseconds, and longer only if the member waits for a processor or is stopped. */
    EXPLAIN_NS = 2000000000,
};

/* Copy a message. If it is too long, cut it between two characters of UTF-8. */
static void copy_text(char *to, size_t room, const char *message)
{
    size_t length = strnlen(message, room - 1);
    if (message[length])
        while (length > 0 && ((unsigned char)message[length] & 0xc0) == 0x80)
            length--;
    memcpy(to, message, length);
    to[length] = '\0';
}

/* Begin to write the reason for the end. False if another member does. */
static bool explain_begins(comm *c)
{
    uint32_t none = 0;
    return atomic_compare_exchange_strong(&c->head->ended, &none, writing(c->rank));
}

/* Write the reason for the end, once `ended` says that this member does, and wake all. */
static void explain(comm *c, status why, int about, const descriptor *theirs)
{
    ending *e = &c->head->end;
    e->reason = why;
    e->by = c->rank;
    e->about = about;
    e->call = calls_of(c);
    copy_descriptor(&e->mine, description_at(c, c->rank, e->call));
    e->theirs = *theirs;
    find_missing(c, about, e->missing);
    atomic_store(&c->head->ended, EXPLAINED);
    comm_wake_all(c);
}

status end_over(comm *c, status why, int about, const descriptor *theirs)
{
    if (!explain_begins(c))
        return why == STOPPED ? STOPPED : ENDED;
    explain(c, why, about, theirs);
    return why;
}

static descriptor description_by(const comm *c, int rank)
{
    descriptor d = {0};
    if (rank >= 0)
        copy_descriptor(&d, description_at(c, rank, calls_of(c)));
    return d;
}

status end_group(comm *c, status why, int about)
{
    const descriptor theirs = description_by(c, about);
    return end_over(c, why, about, &theirs);
}

status end_with_error(comm *c, status error, const int32_t *lost, uint32_t lost_count,
                      const char *message)
{
    const descriptor theirs = description_by(c, c->rank);
    ending *e = &c->head->end;
    if (!explain_begins(c))
        return ENDED;
    e->error = error;
    e->lost_count = lost_count < MOST_LOST ? lost_count : MOST_LOST;
    for (uint32_t i = 0; i < e->lost_count; i++)
        e->lost[i] = lost[i];
    copy_text(e->message, sizeof e->message, message);
    explain(c, END_REQUESTED, c->rank, &theirs);
    return END_REQUESTED;
}

bool why_ended(comm *c, ending *why)
{
    const uint64_t began = now_ns();
    const struct timespec nap = {0, 1000000};
    _Atomic uint32_t *state = &c->head->ended;
    uint32_t ended;
    while ((ended = atomic_load_explicit(state, memory_order_acquire)) != EXPLAINED) {
        if (!ended)
            return false;
        const int writer = (int)(ended - writing(0));
        const descriptor theirs = description_by(c, writer);
        /* It will never write again, so another member may. */
        if (comm_has_left(c, writer)
            && atomic_compare_exchange_strong(state, &ended, writing(c->rank))) {
            explain(c, PEER_LOST, writer, &theirs);
        } else if (now_ns() - began > EXPLAIN_NS) {
            /* It may write at any time, so this is for our caller only. */
            *why = (ending){.reason = STOPPED,
                            .by = writer,
                            .about = writer,
                            .call = calls_of(c),
                            .mine = theirs,
                            .theirs = theirs};
            return true;
        } else {
            nanosleep(&nap, NULL);
        }
    }
    *why = c->head->end;
    return true;
}
