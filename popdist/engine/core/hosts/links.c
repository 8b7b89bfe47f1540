#define _GNU_SOURCE
#include "hosts/links.h"

#include "shm/ranges.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* The interval between checks for other reasons to end a wait. */
    LOOK_NS = 20000000,
    FIRST_TRANSFERS = 16,
    /* The most bytes of a transfer: MPI counts them in an int. */
    TRANSFER_BYTES = 64 << 20,
};

#define NO_MEMORY                                                                        \
    "A member had no memory left for a call over several hosts, which ended it for all. " \
    "Give it more memory, or make calls of fewer arrays at once."

/* A leader's description of a call; so many bytes of data follow. */
typedef struct {
    descriptor call;
    uint64_t bytes;
} record;

enum { LONGEST_RECORD = sizeof(record) + RECORD_DATA_BYTES };

bool links_open(links *l, uint32_t hosts, uint32_t members)
{
    l->hosts = hosts;
    l->count_of_members = members;
    l->members = calloc(members, sizeof *l->members);
    l->leaders = calloc(hosts, sizeof *l->leaders);
    l->counterparts = calloc(hosts, sizeof *l->counterparts);
    l->records = malloc((size_t)hosts * LONGEST_RECORD);
    l->data_of = calloc(hosts, sizeof *l->data_of);
    return l->members && l->leaders && l->counterparts && l->records && l->data_of
           && links_reserve(l, 0, RECORD_MESSAGES);
}

void links_place(links *l)
{
    for (int q = 0; q < (int)l->count_of_members; q++) {
        remote *m = &l->members[q];
        m->place = 0;
        for (int before = 0; before < q; before++)
            m->place += l->members[before].host == m->host;
        if (m->place == 0)
            l->leaders[m->host] = q;
    }
    const remote *own = &l->members[l->rank];
    l->here = own->host;
    l->leads = own->place == 0;
    memcpy(l->counterparts, l->leaders, l->hosts * sizeof *l->leaders);
    for (int q = 0; q < (int)l->count_of_members; q++)
        if (l->members[q].place == own->place)
            l->counterparts[l->members[q].host] = q;
}

/* Cancel the messages that are in transit, if that can be. */
static void cancel_each(links *l, message *m, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!m[i].begun || m[i].done)
            continue;
        if (!l->calls->cancel) {
            l->under_way = true;
            continue;
        }
        /* A message that could not be begun has no request. */
        if (m[i].request)
            l->calls->cancel(l->own, l->members[m[i].peer].process, &m[i].request);
        m[i].done = true;
    }
}

void links_note_failure(links *l)
{
    cancel_each(l, l->messages, l->count_of_messages);
    cancel_each(l, l->transfers, l->count_of_transfers);
}

void links_close(links *l)
{
    free(l->members);
    free(l->leaders);
    free(l->counterparts);
    free(l->data_of);
    free(l->transfers);
    if (l->under_way)
        return;
    free(l->records);
    free(l->memory);
    free(l->messages);
}

bool links_reserve(links *l, uint64_t bytes, uint32_t messages)
{
    if (messages > l->count_of_messages) {
        free(l->messages);
        l->messages = calloc(messages, sizeof *l->messages);
        l->count_of_messages = l->messages ? messages : 0;
    }
    if (bytes > l->memory_bytes) {
        free(l->memory);
        l->memory = aligned_alloc(PAGE, round_up(bytes, PAGE));
        l->memory_bytes = l->memory ? bytes : 0;
    }
    return l->messages && l->memory_bytes >= bytes;
}

status links_out_of_memory(comm *c)
{
    return end_with_error(c, STOPPED, NULL, 0, NO_MEMORY);
}

void links_begin_call(comm *c, const descriptor *d)
{
    /* The other members take no part in a message between two. */
    if (d->operation != SEND && d->operation != RECEIVE)
        c->larger_calls++;
    c->larger_call = *d;
    c->larger_call.in = c->larger_call.out = NOT_IN_HEAP;
    c->larger_call.stride = 0;
    c->larger_call.number = c->larger_calls;
    c->in_larger_call = true;
    if (c->record)
        record_description(c->record, &c->larger_call);
}

/* --- Messages */

status links_send(comm *c, message *m, int member, int kind, const void *data,
                  uint64_t bytes)
{
    const links *l = c->links;
    const remote *to = &l->members[member];
    const status s =
        l->calls->is_ready(l->own, to->process) ? DONE : l->on_not_ready(c, member);
    if (s != DONE)
        return s;
    if (atomic_load(&to->dead))
        return l->on_death(c, member);
    *m = (message){.peer = member, .begun = true};
    const int error =
        l->calls->send(l->own, data, bytes, to->process, to->tag + kind, &m->request);
    return error ? l->on_link_error(c, error) : DONE;
}

status links_receive(comm *c, message *m, int member, int kind, void *data,
                     uint64_t bytes)
{
    const links *l = c->links;
    *m = (message){.peer = member, .begun = true};
    const int error = l->calls->receive(l->own, data, bytes, l->members[member].process,
                                        l->members[l->rank].tag + kind, &m->request);
    return error ? l->on_link_error(c, error) : DONE;
}

/* Test each message that is not done once, and count these tests. Set `open` to the
 * number of messages that are still not done, and `peer` to the other end of the first
 * of them. */
static status test_each(comm *c, message *m, uint32_t count, uint32_t *open, int *peer,
                        uint32_t *tests)
{
    const links *l = c->links;
    *open = *tests = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (m[i].done)
            continue;
        ++*tests;
        const int error = l->calls->test(l->own, &m[i].request, &m[i].done);
        if (error)
            return l->on_link_error(c, error);
        if (!m[i].done && !(*open)++)
            *peer = m[i].peer;
    }
    return DONE;
}

/* Test which of the messages are done. A test may read from all connections, and so
 * complete a message that was tested before. No connection then has data left to end a
 * sleep, so the messages are tested once more. */
static status test_all(comm *c, message *m, uint32_t count, uint32_t *open, int *peer)
{
    uint32_t tests;
    const status s = test_each(c, m, count, open, peer, &tests);
    return s == DONE && *open && tests > 1 ? test_each(c, m, count, open, peer, &tests) : s;
}

/* Check for other reasons to end a wait. */
static status look(comm *c, int peer, uint64_t waited_ns)
{
    const bool stop = c->links->during_wait(c, peer, waited_ns);
    if (!comm_is_ours(c))
        return STOPPED;
    return stop ? end_group(c, STOPPED, c->rank) : DONE;
}

static void give_core_up(comm *c, uint64_t began, uint64_t now)
{
    if (now - began < YIELD_OVER_HOSTS_NS && may_yield(&c->waits, now)) {
        sched_yield();
        note_yield(&c->waits, now, now_ns());
    } else {
        c->waits.sleeps++;
        arrivals_sleep(&c->links->sockets);
    }
}

static status await_since(comm *c, message *m, uint32_t count, int peer, uint64_t began)
{
    uint64_t next_look = began + LOOK_NS;
    uint32_t open;
    if (c->before_long_wait)
        c->before_long_wait(c);
    for (uint64_t now = began;; now = now_ns()) {
        give_core_up(c, began, now);
        /* Before the messages: a member may end the group after the call that needs them. */
        const bool ended = atomic_load_explicit(&c->head->ended, memory_order_acquire);
        status s = test_all(c, m, count, &open, &peer);
        if (s == DONE && open && now >= next_look) {
            s = look(c, peer, now - began);
            next_look = now + LOOK_NS;
        }
        if (s != DONE || !open)
            return s;
        if (ended)
            return ENDED;
    }
}

static status await_long(comm *c, message *m, uint32_t count, int peer)
{
    const uint64_t began = now_ns();
    show_wait(c, began, c->links->members[peer].process);
    const status s = await_since(c, m, count, peer, began);
    show_wait(c, 0, -1);
    return s;
}

status links_await(comm *c, message *m, uint32_t count)
{
    int peer = 0;
    uint32_t open;
    const uint64_t began = waiting_begins(c);
    status s = test_all(c, m, count, &open, &peer);
    const uint64_t until = now_ns() + c->waits.spin_ns;
    const bool polls = s == DONE && open && c->waits.spin_ns;
    while (polls && s == DONE && open && now_ns() < until)
        s = test_all(c, m, count, &open, &peer);
    if (polls && s == DONE)
        note_spin(&c->waits, !open);
    if (s == DONE && open)
        s = await_long(c, m, count, peer);
    waiting_ends(c, began);
    if (s == DONE)
        arrivals_succeeded(&c->links->sockets);
    return s;
}

/* --- Transfers */

/* Append a transfer; NULL if there is no memory. */
static message *new_transfer(links *l)
{
    if (l->count_of_transfers == l->room_for_transfers) {
        const uint32_t room = l->room_for_transfers ? 2 * l->room_for_transfers
                                                    : FIRST_TRANSFERS;
        message *more = realloc(l->transfers, room * sizeof *more);
        if (!more)
            return NULL;
        l->transfers = more;
        l->room_for_transfers = room;
    }
    message *m = &l->transfers[l->count_of_transfers++];
    *m = (message){.begun = false};
    return m;
}

status links_begin(comm *c, direction way, int member, message_kind kind, void *data,
                   uint64_t bytes)
{
    char *at = data;
    status s;
    do {
        const uint64_t now = least(bytes, TRANSFER_BYTES);
        message *m = new_transfer(c->links);
        if (!m)
            return links_out_of_memory(c);
        s = way == TO_OTHERS ? links_send(c, m, member, (int)kind, at, now)
                             : links_receive(c, m, member, (int)kind, at, now);
        at += now;
        bytes -= now;
    } while (s == DONE && bytes);
    return s;
}

status links_await_transfer(comm *c, uint32_t number)
{
    return links_await(c, &c->links->transfers[number], 1);
}

status links_await_transfers(comm *c)
{
    links *l = c->links;
    const status s = links_await(c, l->transfers, l->count_of_transfers);
    if (s == DONE)
        l->count_of_transfers = 0;
    return s;
}

/* --- Records */

static const record *record_in(const unsigned char *at)
{
    return (const record *)(const void *)at;
}

static uint64_t extent_of(const record *r)
{
    return round_up(sizeof *r + r->bytes, sizeof(uint64_t));
}

/* Return the end of `count` records that begin here. */
static unsigned char *end_of_records(unsigned char *at, uint32_t count)
{
    while (count--)
        at += extent_of(record_in(at));
    return at;
}

static bool is_same_call(const comm *c, const record *r)
{
    return r->bytes <= RECORD_DATA_BYTES
           && memcmp(&r->call, &c->larger_call, sizeof r->call) == 0;
}

/* Return the number of records that a leader gets from the one `step` places behind. */
static uint32_t records_from(const links *l, uint32_t step)
{
    return step < l->hosts - step ? step : l->hosts - step;
}

/* Begin to send all records here to the host `step` places before, which has none of
 * them, and to receive from the host `step` places behind. */
static status exchange_records(comm *c, unsigned char *end, uint32_t step)
{
    links *l = c->links;
    const uint32_t count = records_from(l, step);
    const int to = l->counterparts[(l->here + l->hosts - step) % l->hosts];
    const int from = l->counterparts[(l->here + step) % l->hosts];
    const uint64_t bytes = (uint64_t)(end_of_records(l->records, count) - l->records);
    message *m = l->messages;
    status s = links_receive(c, &m[0], from, RECORD, end, (uint64_t)count * LONGEST_RECORD);
    return s == DONE ? links_send(c, &m[1], to, RECORD, l->records, bytes) : s;
}

status links_begin_records(comm *c, const void *data, uint64_t bytes)
{
    links *l = c->links;
    record own = {.call = c->larger_call, .bytes = bytes};
    memcpy(l->records, &own, sizeof own);
    if (bytes)
        memcpy(l->records + sizeof own, data, bytes);
    return exchange_records(c, end_of_records(l->records, 1), 1);
}

status links_finish_records(comm *c)
{
    links *l = c->links;
    unsigned char *end = end_of_records(l->records, 1);
    for (uint32_t step = 1; step < l->hosts; step *= 2) {
        status s = step > 1 ? exchange_records(c, end, step) : DONE;
        if (s == DONE)
            s = links_await(c, l->messages, RECORD_MESSAGES);
        if (s != DONE)
            return s;
        end = end_of_records(end, records_from(l, step));
    }
    const unsigned char *at = l->records;
    for (uint32_t i = 0; i < l->hosts; i++) {
        const uint32_t host = (l->here + i) % l->hosts;
        const record *r = record_in(at);
        if (!is_same_call(c, r))
            return l->on_mismatch(c, l->counterparts[host], &r->call);
        l->data_of[host] = at + sizeof *r;
        at += extent_of(r);
    }
    return DONE;
}
