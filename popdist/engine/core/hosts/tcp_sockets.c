#define _GNU_SOURCE
#include "hosts/tcp_state.h"

#include "shm/ranges.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    /* The loss of a host's power or network cannot be distinguished from a pause by a
     * hypervisor, or from a restart of a switch. So a host is taken for dead only if
     * nothing has come from it for so long, and if the kernel has sent the same data
     * again so often: 0.2, 0.6, 1.4 and 3 s after the first time. A pause of 3 s is
     * survived. TCP_USER_TIMEOUT would also end connections to a stopped process: its
     * kernel answers, but takes no more data. */
    SILENT_MS = 5000,
    LEAST_REPEATS = 4,
    EVENTS = 16,
    /* Reads from one socket before others get their turn. */
    MOST_READS = 16,
};

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

void tcp_write_later(tcp_links *l, connection *c)
{
    await_room(l, c, c->first != NULL);
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

void tcp_lose(tcp_links *l, connection *c, int error)
{
    process *p = &l->processes[c->process];
    p->failed |= !p->left;
    p->silent |= error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
    if (p->out == c)
        p->out = NULL;
    tcp_fail_messages(l, c);
    close_connection(l, c);
}

bool tcp_write(tcp_links *l, connection *c)
{
    while (c->first) {
        request *r = c->first;
        const uint64_t head = sizeof r->head;
        const uint64_t of_data = r->at > head ? r->at - head : 0;
        struct iovec memory[2] = {
            {(unsigned char *)&r->head + least(r->at, head), head - least(r->at, head)},
            {r->data + of_data, bytes_after(&r->head) - of_data},
        };
        struct msghdr all = {.msg_iov = memory, .msg_iovlen = 2};
        const ssize_t written = sendmsg(c->fd, &all, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0 && errno == EAGAIN)
            break;
        if (written < 0) {
            tcp_lose(l, c, errno);
            return false;
        }
        r->at += (uint64_t)written;
        if (r->at < head + bytes_after(&r->head))
            continue;
        c->first = r->next;
        tcp_complete(l, r, 0);
    }
    await_room(l, c, c->first != NULL);
    return true;
}

void tcp_append(connection *c, request *r)
{
    if (c->first)
        c->last->next = r;
    else
        c->first = r;
    c->last = r;
}

bool tcp_append_frame(tcp_links *l, connection *c, frame head)
{
    request *r = calloc(1, sizeof *r);
    if (!r)
        return false;
    *r = (request){.head = head, .posted = true};
    l->posted++;
    tcp_append(c, r);
    /* Not written at once: the caller may be reading from it, and a write may close it. */
    tcp_write_later(l, c);
    return true;
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
            tcp_end_frame(l, c);
        } else {
            frame head;
            if (here < sizeof head)
                return true;
            memcpy(&head, c->buffer + c->begin, sizeof head);
            c->begin += sizeof head;
            if (!tcp_begin_frame(l, c, head))
                return false;
            if (!c->left)
                tcp_end_frame(l, c);
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
                tcp_end_frame(l, c);
            continue;
        }
        const int error = came < 0 ? errno : 0;
        c->end += came > 0 ? (uint32_t)came : 0;
        if (came <= 0 || !use_buffer(l, c)) {
            tcp_lose(l, c, error);
            return false;
        }
    }
    return true;
}

void tcp_advance_all(tcp_links *l)
{
    struct epoll_event events[EVENTS];
    const int count = epoll_wait(l->epoll, events, EVENTS, 0);
    for (int i = 0; i < count; i++) {
        connection *c = events[i].data.ptr;
        const bool open = events[i].events & ~(uint32_t)EPOLLOUT ? read_from(l, c) : true;
        if (open && events[i].events & EPOLLOUT)
            tcp_write(l, c);
    }
}

/* --- For Python */

int tcp_epoll(const tcp_links *l)
{
    return l->epoll;
}

static int add_connection(tcp_links *l, connection *c)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
    if (l->is_shut)
        return ECONNABORTED;
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
            tcp_lose(l, c, ETIMEDOUT);
    }
    pthread_mutex_unlock(&l->lock);
}

void tcp_say_goodbye(tcp_links *l)
{
    pthread_mutex_lock(&l->lock);
    for (connection *c = l->connections, *next; c; c = next) {
        next = c->next;
        if (tcp_append_frame(l, c, (frame){0, GOODBYE}))
            tcp_write(l, c);
    }
    pthread_mutex_unlock(&l->lock);
}
