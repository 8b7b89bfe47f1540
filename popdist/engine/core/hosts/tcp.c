#define _GNU_SOURCE
#include "hosts/tcp_state.h"

#include "shm/ranges.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* A process may send so many bytes of messages of groups, and the message that exceeds
 * them, before the other one has begun receives for them. */
enum { CREDIT_BYTES = 32 << 20 };

/* --- Requests */

void tcp_complete(tcp_links *l, request *r, int error)
{
    if (r->posted) {
        l->posted--;
        free(r);
        return;
    }
    r->error = error;
    atomic_store_explicit(&r->done, true, memory_order_release);
}

static void append_arrival(arrival **list, arrival *one)
{
    while (*list)
        list = &(*list)->next;
    *list = one;
}

static void append_request(request **list, request *r)
{
    while (*list)
        list = &(*list)->next;
    *list = r;
}

/* The bytes that a message counts in flow control. */
static uint64_t cost_of(const frame *f)
{
    return sizeof *f + f->bytes;
}

/* --- Flow control of groups' messages */

/* Append the messages that wait to those to be written, as far as the process allows. */
static void append_waiting(process *p)
{
    while (p->out && p->waiting && p->sent < p->may_send) {
        request *r = p->waiting;
        p->waiting = r->next;
        r->next = NULL;
        p->sent += cost_of(&r->head);
        tcp_append(p->out, r);
    }
}

/* Allow a process to send more, if half of what it may send has had receives, or if it
 * has sent all of that and a receive still waits for a message. */
static void give_credit(tcp_links *l, process *p)
{
    const bool is_stuck = p->receives && p->came >= p->allowed;
    const uint64_t limit = (is_stuck ? p->came : p->used) + CREDIT_BYTES;
    if (limit < p->allowed + CREDIT_BYTES / 2 || !p->out)
        return;
    if (tcp_append_frame(l, p->out, (frame){limit, CREDIT}))
        p->allowed = limit;
}

/* Find the first receive with a tag, and take it out of the list. */
static request *take_receive(process *p, int64_t tag)
{
    request **at = &p->receives;
    while (*at && (*at)->head.tag != tag)
        at = &(*at)->next;
    request *r = *at;
    if (r)
        *at = r->next;
    return r;
}

/* Let a receive get a message that comes, or drop the message if it is too long. */
static void receive_into(tcp_links *l, connection *c, request *r, uint64_t bytes)
{
    const bool fits = bytes <= r->head.bytes;
    c->target = fits ? r : NULL;
    c->into = fits ? r->data : NULL;
    if (!fits)
        tcp_complete(l, r, EMSGSIZE);
}

/* A frame without bytes has come. */
static void use_signal(tcp_links *l, process *p, frame head)
{
    if (head.tag == GOODBYE)
        p->left = true;
    if (head.tag != CREDIT || head.bytes <= p->may_send)
        return;
    p->may_send = head.bytes;
    append_waiting(p);
    if (p->out)
        tcp_write_later(l, p->out);
}

bool tcp_begin_frame(tcp_links *l, connection *c, frame head)
{
    process *p = &l->processes[c->process];
    const bool is_short = head.tag < FIRST_GROUP_TAG;
    c->left = bytes_after(&head);
    c->into = NULL;
    c->target = NULL;
    c->early = NULL;
    if (head.tag < 0) {
        use_signal(l, p, head);
        return true;
    }
    request *r = is_short ? NULL : take_receive(p, head.tag);
    p->came += is_short ? 0 : cost_of(&head);
    p->used += r ? cost_of(&head) : 0;
    if (!is_short)
        give_credit(l, p);
    if (r) {
        receive_into(l, c, r, head.bytes);
        return true;
    }
    arrival *one = malloc(sizeof *one + head.bytes);
    if (!one)
        return false;
    *one = (arrival){.head = head, .from = c->process, .by = c};
    append_arrival(is_short ? &l->short_ones : &p->early, one);
    c->early = one;
    c->into = one->data;
    return true;
}

void tcp_end_frame(tcp_links *l, connection *c)
{
    if (c->target)
        tcp_complete(l, c->target, 0);
    if (c->early)
        c->early->by = NULL;
    c->target = NULL;
    c->early = NULL;
}

/* Hand an early message over to its receive, and let the receive get the rest of it. */
static void deliver(tcp_links *l, arrival *one, request *r)
{
    connection *c = one->by;
    const uint64_t here = one->head.bytes - (c ? c->left : 0);
    const bool fits = one->head.bytes <= r->head.bytes;
    if (fits && here)
        memcpy(r->data, one->data, here);
    if (c) {
        c->early = NULL;
        receive_into(l, c, r, one->head.bytes);
        c->into += c->into ? here : 0;
    } else {
        tcp_complete(l, r, fits ? 0 : EMSGSIZE);
    }
    free(one);
}

static void fail_requests(tcp_links *l, request **list)
{
    while (*list) {
        request *r = *list;
        *list = r->next;
        tcp_complete(l, r, ECONNRESET);
    }
}

void tcp_fail_messages(tcp_links *l, connection *c)
{
    process *p = &l->processes[c->process];
    if (!p->out)
        fail_requests(l, &p->waiting);
    fail_requests(l, &c->first);
    if (c->early) {
        /* It will never be complete. */
        arrival **at = c->early->head.tag < FIRST_GROUP_TAG ? &l->short_ones : &p->early;
        while (*at != c->early)
            at = &(*at)->next;
        *at = c->early->next;
        free(c->early);
    }
}

/* --- The functions of links */

static int send_request(tcp_links *l, request *r, int to)
{
    process *p = &l->processes[to];
    connection *c = p->out;
    if (!c)
        return p->left ? EPIPE : p->failed ? ECONNRESET : ENOTCONN;
    const bool was_idle = !c->first;
    if (r->posted) {
        tcp_append(c, r);
    } else {
        append_request(&p->waiting, r);
        append_waiting(p);
    }
    /* If the connection ends here, the request gets the error. */
    if (was_idle && c->first)
        tcp_write(l, c);
    return 0;
}

static int tcp_send(void *own, const void *data, uint64_t bytes, int to, int tag,
                    void **given)
{
    tcp_links *l = own;
    request *r = calloc(1, sizeof *r);
    if (!r)
        return ENOMEM;
    r->head = (frame){bytes, tag};
    r->data = (unsigned char *)(uintptr_t)data;
    *given = r;
    pthread_mutex_lock(&l->lock);
    const int error = send_request(l, r, to);
    pthread_mutex_unlock(&l->lock);
    if (error)
        tcp_complete(l, r, error);
    return error;
}

static int tcp_receive(void *own, void *data, uint64_t bytes, int from, int tag, void **given)
{
    tcp_links *l = own;
    process *p = &l->processes[from];
    request *r = calloc(1, sizeof *r);
    if (!r)
        return ENOMEM;
    r->head = (frame){bytes, tag};
    r->data = data;
    *given = r;
    pthread_mutex_lock(&l->lock);
    arrival **at = &p->early;
    while (*at && (*at)->head.tag != tag)
        at = &(*at)->next;
    arrival *one = *at;
    if (one) {
        *at = one->next;
        p->used += cost_of(&one->head);
        deliver(l, one, r);
    } else {
        append_request(&p->receives, r);
    }
    give_credit(l, p);
    pthread_mutex_unlock(&l->lock);
    return 0;
}

static int tcp_test(void *own, void **given, bool *done)
{
    tcp_links *l = own;
    request *r = *given;
    *done = atomic_load_explicit(&r->done, memory_order_acquire);
    /* If another thread has the lock, it reads and writes for all. */
    if (!*done && pthread_mutex_trylock(&l->lock) == 0) {
        tcp_advance_all(l);
        pthread_mutex_unlock(&l->lock);
        *done = atomic_load_explicit(&r->done, memory_order_acquire);
    }
    if (!*done)
        return 0;
    const int error = r->error;
    free(r);
    *given = NULL;
    return error;
}

static bool tcp_is_ready(void *own, int to)
{
    tcp_links *l = own;
    const process *p = &l->processes[to];
    pthread_mutex_lock(&l->lock);
    const bool ready = p->out || p->failed || p->left;
    pthread_mutex_unlock(&l->lock);
    return ready;
}

/* Take a request out of a list. False if it is not in it. */
static bool take_request(request **list, const request *r)
{
    while (*list && *list != r)
        list = &(*list)->next;
    if (!*list)
        return false;
    *list = r->next;
    return true;
}

/* Let a copy take the place of a request whose message has been written in part: the
 * other end expects the rest. NULL if there is no memory for it. */
static request *copy_of(tcp_links *l, const request *r)
{
    request *copy = malloc(sizeof *copy + r->head.bytes);
    if (!copy)
        return NULL;
    *copy = *r;
    copy->posted = true;
    copy->data = (unsigned char *)(copy + 1);
    memcpy(copy->data, r->data, r->head.bytes);
    l->posted++;
    return copy;
}

/* Take a request out of those to be written. */
static void cancel_write(tcp_links *l, connection *c, request *r)
{
    request **at = &c->first, *before = NULL;
    for (; *at && *at != r; at = &(*at)->next)
        before = *at;
    if (!*at)
        return;
    request *after = r->next, *copy = r->at ? copy_of(l, r) : NULL;
    if (r->at && !copy) {
        /* The request gets the error, too. */
        tcp_lose(l, c, ENOMEM);
        return;
    }
    if (!copy)
        l->processes[c->process].sent -= cost_of(&r->head);
    *at = copy ? copy : after;
    if (c->last == r)
        c->last = copy ? copy : before;
}

static void tcp_cancel(void *own, int number, void **given)
{
    tcp_links *l = own;
    request *r = *given;
    *given = NULL;
    pthread_mutex_lock(&l->lock);
    process *p = &l->processes[number];
    const bool waits = take_request(&p->receives, r) || take_request(&p->waiting, r);
    for (connection *c = l->connections, *next; c && !waits; c = next) {
        next = c->next;
        if (c->target == r) {
            /* The rest of the message is dropped. */
            c->target = NULL;
            c->into = NULL;
        }
        if (c->process == number)
            cancel_write(l, c, r);
    }
    /* The cancelled message may have been the one that exceeded the credit. */
    append_waiting(p);
    if (p->out)
        tcp_write_later(l, p->out);
    pthread_mutex_unlock(&l->lock);
    free(r);
}

const link_calls tcp_calls = {tcp_send, tcp_receive, tcp_test, tcp_is_ready, tcp_cancel};

/* --- For Python */

tcp_links *tcp_open(int rank, int size)
{
    tcp_links *l = calloc(1, sizeof *l + (size_t)size * sizeof *l->processes);
    if (!l)
        return NULL;
    l->rank = rank;
    l->size = size;
    for (int i = 0; i < size; i++)
        l->processes[i].may_send = l->processes[i].allowed = CREDIT_BYTES;
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (l->epoll < 0) {
        free(l);
        return NULL;
    }
    pthread_mutex_init(&l->lock, NULL);
    return l;
}

static void free_arrivals(arrival *one)
{
    while (one) {
        arrival *next = one->next;
        free(one);
        one = next;
    }
}

void tcp_close(tcp_links *l)
{
    while (l->connections)
        tcp_lose(l, l->connections, 0);
    for (int i = 0; i < l->size; i++)
        free_arrivals(l->processes[i].early);
    free_arrivals(l->short_ones);
    close(l->epoll);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

void tcp_shut(tcp_links *l)
{
    pthread_mutex_lock(&l->lock);
    l->is_shut = true;
    while (l->connections)
        tcp_lose(l, l->connections, 0);
    /* Messages to processes without a connection must not wait for one. */
    for (int i = 0; i < l->size; i++)
        l->processes[i].failed |= i != l->rank && !l->processes[i].left;
    pthread_mutex_unlock(&l->lock);
}

void tcp_note_failed(tcp_links *l, int number, bool is_silent)
{
    pthread_mutex_lock(&l->lock);
    process *p = &l->processes[number];
    p->failed |= !p->left;
    p->silent |= is_silent;
    pthread_mutex_unlock(&l->lock);
}

bool tcp_has_failed(tcp_links *l, int number, bool *is_silent)
{
    pthread_mutex_lock(&l->lock);
    const bool failed = l->processes[number].failed;
    *is_silent = l->processes[number].silent;
    pthread_mutex_unlock(&l->lock);
    return failed;
}

int tcp_post(tcp_links *l, int to, int tag, const void *data, uint64_t bytes)
{
    request *r = calloc(1, sizeof *r + bytes);
    if (!r)
        return ENOMEM;
    r->head = (frame){bytes, tag};
    r->data = (unsigned char *)(r + 1);
    r->posted = true;
    memcpy(r->data, data, bytes);
    pthread_mutex_lock(&l->lock);
    l->posted++;
    const int error = send_request(l, r, to);
    if (error)
        tcp_complete(l, r, error);
    pthread_mutex_unlock(&l->lock);
    return error;
}

uint32_t tcp_posted(tcp_links *l)
{
    pthread_mutex_lock(&l->lock);
    const uint32_t count = l->posted;
    pthread_mutex_unlock(&l->lock);
    return count;
}

short_message tcp_take(tcp_links *l, int tag)
{
    short_message found = {.data = NULL};
    pthread_mutex_lock(&l->lock);
    tcp_advance_all(l);
    arrival **at = &l->short_ones;
    while (*at && ((*at)->head.tag != tag || (*at)->by))
        at = &(*at)->next;
    arrival *one = *at;
    if (one)
        *at = one->next;
    pthread_mutex_unlock(&l->lock);
    if (!one)
        return found;
    found = (short_message){malloc(one->head.bytes + 1), one->head.bytes, one->from};
    if (found.data)
        memcpy(found.data, one->data, one->head.bytes);
    free(one);
    return found;
}
