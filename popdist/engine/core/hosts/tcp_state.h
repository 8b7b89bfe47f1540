/* The state of links by TCP: tcp_sockets.c reads and writes frames, tcp.c makes messages
 * of them. Functions here want the lock. */
#ifndef POPDIST_HOSTS_TCP_STATE_H
#define POPDIST_HOSTS_TCP_STATE_H

#include "hosts/tcp.h"

#include <pthread.h>

enum {
    /* The tag of a process's last frame. No bytes follow frames with negative tags. */
    GOODBYE = -1,
    /* The tag of frames that allow a process to send more messages of groups. */
    CREDIT = -2,
    /* The most bytes of one read, except for longer messages. */
    BUFFER_BYTES = 16 << 10,
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
    bool failed, silent, left;
} process;

struct tcp_links {
    pthread_mutex_t lock;
    int rank, size, epoll;
    bool is_shut; /* no connection may be added */
    uint32_t posted;
    connection *connections;
    arrival *short_ones;
    process processes[];
};

/* The bytes that follow a frame. */
static inline uint64_t bytes_after(const frame *f)
{
    return f->tag < 0 ? 0 : f->bytes;
}

/* --- tcp_sockets.c */

/* Append a request to those to be written. */
void tcp_append(connection *c, request *r);

/* Append a frame without bytes, to be written soon. False if there is no memory for it. */
bool tcp_append_frame(tcp_links *l, connection *c, frame head);

/* Write as much as there is room for. False if the connection has ended and was closed. */
bool tcp_write(tcp_links *l, connection *c);

/* Write what has been appended once there is room for it, but not at once. */
void tcp_write_later(tcp_links *l, connection *c);

/* Read and write on all ready sockets. */
void tcp_advance_all(tcp_links *l);

/* A connection has ended, with an error or 0: its process has died or its host is
 * silent, unless it said goodbye. */
void tcp_lose(tcp_links *l, connection *c, int error);

/* --- tcp.c */

/* A request is done: it succeeded, or has an error. */
void tcp_complete(tcp_links *l, request *r, int error);

/* A frame's head has been read. False if there is no memory for it. */
bool tcp_begin_frame(tcp_links *l, connection *c, frame head);

/* All bytes of a frame have been read. */
void tcp_end_frame(tcp_links *l, connection *c);

/* A connection has ended: its messages fail. */
void tcp_fail_messages(tcp_links *l, connection *c);

#endif
