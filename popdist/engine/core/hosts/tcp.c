#define _GNU_SOURCE
#include "hosts/tcp.h"

#include "shm/ranges.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    /* The tag of a process's last frame. No bytes follow frames with negative tags. */
    GOODBYE = -1,
    /* The tag of frames that allow a process to send more messages of groups. */
    CREDIT = -2,
    /* A process may send so many bytes of messages of groups, and the message that
     * exceeds them, before the other one has begun receives for them. */
    CREDIT_BYTES = 32 << 20,
    /* The loss of a host's power or network cannot be distinguished from a pause by a
     * hypervisor, or from a restart of a switch. So a host is taken for dead only if
     * nothing has come from it for so long, and if the kernel has sent the same data
     * again so often: 0.2, 0.6, 1.4 and 3 s after the first time. A pause of 3 s is
     * survived. TCP_USER_TIMEOUT would also end connections to a stopped process: its
     * kernel answers, but takes no more data. */
    SILENT_MS = 5000,
    LEAST_REPEATS = 4,
    /* The most bytes of one read, except for longer messages. */
    BUFFER_BYTES = 16 << 10,
    EVENTS = 16,
    /* Reads from one socket before others get their turn. */
    MOST_READS = 16,
};

typedef struct {
    uint64_t bytes;
    int64_t tag;
} frame;

/* A message that is begun here: a send until all is written, a receive until all is
 * read. */
typedef struct request {
    struct request *next;
    frame head;
    unsigned char *data; /* of a send, only read */
    uint64_t at; /* bytes of the frame that have been written */
    bool posted; /* a short one: its data follows in memory, and it is freed when it is
                  * done */
    int error;
    _Atomic bool done;
} request;

/* A message that came before its receive. */
typedef struct arrival {
    struct arrival *next;
    frame head;
    int from;
    struct connection *by; /* which brings the rest of it; NULL once it is complete */
    unsigned char data[];
} arrival;

typedef struct connection {
    struct connection *next;
    int fd, process;
    request *first, *last; /* to be written */
    bool awaits_room;
    /* Bytes that have been read from the socket and are not parsed yet. */
    unsigned char buffer[BUFFER_BYTES];
    uint32_t begin, end;
    /* The rest of the message in progress, if its bytes are not all read. */
    uint64_t left;
    unsigned char *into; /* or NULL, if it is dropped */
    request *target;
    arrival *early;
} connection;

typedef struct {
    connection *out; /* for messages to it */
    request *receives;
    arrival *early; /* messages of groups */
    /* Bytes of groups' messages that were sent to it, and how many it has allowed; the
     * messages that wait until it allows more. */
    uint64_t sent, may_send;
    request *waiting;
    /* Bytes of groups' messages that came from it, how many of them have had a receive,
     * and how many it was allowed to send. */
    uint64_t came, used, allowed;
    bool failed, left;
} process;

struct tcp_links {
    pthread_mutex_t lock;
    int rank, size, epoll;
    uint32_t posted;
    connection *connections;
    arrival *short_ones;
    process processes[];
};

/* --- Requests */

static void complete(tcp_links *l, request *r, int error)
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

/* The bytes that follow a frame. */
static uint64_t bytes_after(const frame *f)
{
    return f->tag < 0 ? 0 : f->bytes;
}

/* The bytes that a message counts in flow control. */
static uint64_t cost_of(const frame *f)
{
    return sizeof *f + f->bytes;
}

/* --- Sockets */

static void await_room(tcp_links *l, connection *c, bool awaits)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
    if (awaits == c->awaits_room)
        return;
    if (awaits)
        event.events |= EPOLLOUT;
    c->awaits_room = awaits;
    epoll_ctl(l->epoll, EPOLL_CTL_MOD, c->fd, &event);
}

static void close_connection(tcp_links *l, connection *c)
{
    connection **at = &l->connections;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    close(c->fd);
    free(c);
}

static void fail_requests(tcp_links *l, request **list)
{
    while (*list) {
        request *r = *list;
        *list = r->next;
        complete(l, r, ECONNRESET);
    }
}

/* A connection has ended: its process has died, unless it said goodbye. */
static void lose(tcp_links *l, connection *c)
{
    process *p = &l->processes[c->process];
    p->failed |= !p->left;
    if (p->out == c) {
        p->out = NULL;
        fail_requests(l, &p->waiting);
    }
    fail_requests(l, &c->first);
    if (c->early) {
        /* It will never be complete. */
        arrival **at = c->early->head.tag < FIRST_GROUP_TAG ? &l->short_ones : &p->early;
        while (*at != c->early)
            at = &(*at)->next;
        *at = c->early->next;
        free(c->early);
    }
    close_connection(l, c);
}

/* Write as much as there is room for. False if the connection has ended and was closed. */
static bool write_to(tcp_links *l, connection *c)
{
    while (c->first) {
        request *r = c->first;
        const uint64_t head = sizeof r->head;
        const uint64_t of_data = r->at > head ? r->at - head : 0;
        struct iovec parts[2] = {
            {(unsigned char *)&r->head + least(r->at, head), head - least(r->at, head)},
            {r->data + of_data, bytes_after(&r->head) - of_data},
        };
        struct msghdr all = {.msg_iov = parts, .msg_iovlen = 2};
        const ssize_t written = sendmsg(c->fd, &all, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0 && errno == EAGAIN)
            break;
        if (written < 0) {
            lose(l, c);
            return false;
        }
        r->at += (uint64_t)written;
        if (r->at < head + bytes_after(&r->head))
            continue;
        c->first = r->next;
        complete(l, r, 0);
    }
    await_room(l, c, c->first != NULL);
    return true;
}

static void append_to(connection *c, request *r)
{
    if (c->first)
        c->last->next = r;
    else
        c->first = r;
    c->last = r;
}

/* Append a frame without bytes. False if there is no memory for it. */
static bool append_frame(tcp_links *l, connection *c, frame head)
{
    request *r = calloc(1, sizeof *r);
    if (!r)
        return false;
    *r = (request){.head = head, .posted = true};
    l->posted++;
    append_to(c, r);
    /* Not written at once: the caller may be reading from it, and a write may close it. */
    await_room(l, c, true);
    return true;
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
        append_to(p->out, r);
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
    if (append_frame(l, p->out, (frame){limit, CREDIT}))
        p->allowed = limit;
}

/* --- Messages that come */

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
        complete(l, r, EMSGSIZE);
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
        await_room(l, p->out, p->out->first != NULL);
}

/* A frame's head has been read. False if there is no memory for it. */
static bool begin_frame(tcp_links *l, connection *c, frame head)
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

static void end_frame(tcp_links *l, connection *c)
{
    if (c->target)
        complete(l, c->target, 0);
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
        complete(l, r, fits ? 0 : EMSGSIZE);
    }
    free(one);
}

/* Parse the bytes in the buffer. False if there is no memory. */
static bool use_buffer(tcp_links *l, connection *c)
{
    for (;;) {
        const uint64_t here = c->end - c->begin;
        if (c->left) {
            const uint64_t now = least(here, c->left);
            if (c->into && now) {
                memcpy(c->into, c->buffer + c->begin, now);
                c->into += now;
            }
            c->begin += (uint32_t)now;
            c->left -= now;
            if (c->left)
                return true;
            end_frame(l, c);
        } else {
            frame head;
            if (here < sizeof head)
                return true;
            memcpy(&head, c->buffer + c->begin, sizeof head);
            c->begin += sizeof head;
            if (!begin_frame(l, c, head))
                return false;
            if (!c->left)
                end_frame(l, c);
        }
    }
}

/* Read from a connection. False if it has ended and was closed. */
static bool read_from(tcp_links *l, connection *c)
{
    for (int i = 0; i < MOST_READS; i++) {
        memmove(c->buffer, c->buffer + c->begin, c->end - c->begin);
        c->end -= c->begin;
        c->begin = 0;
        const bool directly = c->into && c->left > BUFFER_BYTES;
        const ssize_t came =
            directly ? recv(c->fd, c->into, c->left, MSG_DONTWAIT)
                     : recv(c->fd, c->buffer + c->end, BUFFER_BYTES - c->end, MSG_DONTWAIT);
        if (came < 0 && errno == EINTR)
            continue;
        if (came < 0 && errno == EAGAIN)
            return true;
        if (came > 0 && directly) {
            c->into += came;
            c->left -= (uint64_t)came;
            if (!c->left)
                end_frame(l, c);
            continue;
        }
        c->end += came > 0 ? (uint32_t)came : 0;
        if (came <= 0 || !use_buffer(l, c)) {
            lose(l, c);
            return false;
        }
    }
    return true;
}

/* Read and write on all ready sockets; the caller has the lock. */
static void advance_all(tcp_links *l)
{
    struct epoll_event events[EVENTS];
    const int count = epoll_wait(l->epoll, events, EVENTS, 0);
    for (int i = 0; i < count; i++) {
        connection *c = events[i].data.ptr;
        const bool open = events[i].events & ~(uint32_t)EPOLLOUT ? read_from(l, c) : true;
        if (open && events[i].events & EPOLLOUT)
            write_to(l, c);
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
        append_to(c, r);
    } else {
        append_request(&p->waiting, r);
        append_waiting(p);
    }
    /* If the connection ends here, the request gets the error. */
    if (was_idle && c->first)
        write_to(l, c);
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
        complete(l, r, error);
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
        advance_all(l);
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

const link_calls tcp_calls = {tcp_send, tcp_receive, tcp_test, tcp_is_ready};

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
        lose(l, l->connections);
    for (int i = 0; i < l->size; i++)
        free_arrivals(l->processes[i].early);
    free_arrivals(l->short_ones);
    close(l->epoll);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

int tcp_epoll(const tcp_links *l)
{
    return l->epoll;
}

static int add_connection(tcp_links *l, connection *c)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &event) < 0)
        return errno;
    process *p = &l->processes[c->process];
    c->next = l->connections;
    l->connections = c;
    if (!p->out)
        p->out = c;
    return 0;
}

int tcp_add(tcp_links *l, int number, int fd)
{
    const int on = 1;
    int error = ENOMEM;
    connection *c = calloc(1, sizeof *c);
    if (c) {
        c->fd = fd;
        c->process = number;
        error = fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0
                        || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0
                    ? errno
                    : 0;
    }
    if (!error) {
        /* Another thread may read from it as soon as the epoll has it. */
        pthread_mutex_lock(&l->lock);
        error = add_connection(l, c);
        pthread_mutex_unlock(&l->lock);
    }
    if (error) {
        close(fd);
        free(c);
    }
    return error;
}

void tcp_note_failed(tcp_links *l, int number)
{
    pthread_mutex_lock(&l->lock);
    process *p = &l->processes[number];
    p->failed |= !p->left;
    pthread_mutex_unlock(&l->lock);
}

bool tcp_has_failed(tcp_links *l, int number)
{
    pthread_mutex_lock(&l->lock);
    const bool failed = l->processes[number].failed;
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
        complete(l, r, error);
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
    advance_all(l);
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

void tcp_disown(tcp_links *l)
{
    /* They stay in the epoll, which the parent shares. */
    for (connection *c = l->connections; c; c = c->next) {
        close(c->fd);
        c->fd = -1;
    }
    close(l->epoll);
    l->epoll = -1;
}

static bool is_silent(const connection *c)
{
    struct tcp_info info = {.tcpi_retransmits = 0};
    socklen_t length = sizeof info;
    if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &length) < 0)
        return false;
    /* Probes ask a kernel that takes no more data whether it does again. */
    return (info.tcpi_retransmits >= LEAST_REPEATS || info.tcpi_probes >= LEAST_REPEATS)
           && info.tcpi_last_ack_recv >= SILENT_MS && info.tcpi_last_data_recv >= SILENT_MS;
}

void tcp_check_answers(tcp_links *l)
{
    pthread_mutex_lock(&l->lock);
    for (connection *c = l->connections, *next; c; c = next) {
        next = c->next;
        if (is_silent(c))
            lose(l, c);
    }
    pthread_mutex_unlock(&l->lock);
}

void tcp_say_goodbye(tcp_links *l)
{
    pthread_mutex_lock(&l->lock);
    for (connection *c = l->connections, *next; c; c = next) {
        next = c->next;
        if (append_frame(l, c, (frame){0, GOODBYE}))
            write_to(l, c);
    }
    pthread_mutex_unlock(&l->lock);
}
