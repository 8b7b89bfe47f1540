/* Messages between members on different hosts, and the records by which leaders agree on a
 * call.
 *
 * An implementation of links moves the messages: MPI (mpi.c) or TCP (tcp.c).
 */
#ifndef POPDIST_LINKS_H
#define POPDIST_LINKS_H

#include "hosts/arrivals.h"
#include "sync/comm.h"

/* The functions of an implementation. Any thread may call them, and they return at once.
 * `own` is the implementation's, and processes are numbered by instance. Errors are numbers
 * other than 0, whose meaning the implementation's Python module knows. */
typedef struct {
    /* Begin a message, whose memory is in use until test() says that it is done. */
    int (*send)(void *own, const void *data, uint64_t bytes, int to, int tag, void **request);
    int (*receive)(void *own, void *data, uint64_t bytes, int from, int tag, void **request);
    int (*test)(void *own, void **request, bool *done);
    /* Whether send() may be called for that process. If not, on_not_ready() prepares it. */
    bool (*is_ready)(void *own, int to);
} link_calls;

/* An implementation as groups get it. */
typedef struct {
    const link_calls *calls;
    void *own;
    int epoll; /* of its connections, or -1 */
} link_table;

/* What messages are tagged with, from the receiver's first tag on. */
typedef enum { RECORD, NODES, RESULTS } message_kind;

enum {
    /* The most data that goes with the record of a call. */
    RECORD_DATA_BYTES = 16 << 10,
    /* The first ones of a call's messages are those of records. */
    RECORD_MESSAGES = 2,
};

/* A message that is under way from when it is begun until it is done. */
typedef struct {
    void *request; /* the handle of the implementation */
    int peer;      /* the member of the group at the other end */
    bool begun, done;
} message;

/* A member of the group, as a receiver of messages. */
typedef struct {
    int process;
    int tag;           /* the first one of messages to it */
    _Atomic bool dead; /* nothing may be sent to it */
} remote;

struct links {
    const link_calls *calls;
    void *own; /* of the implementation */
    uint32_t hosts, here;
    bool leads; /* this member is its host's leader */
    int rank;   /* of this member in the group */
    uint32_t count_of_members;
    remote *members;   /* of the group */
    int *counterparts; /* for each host the member that this one exchanges data with */
    arrivals sockets;
    unsigned char *records; /* of all hosts, in a call */
    /* Memory of messages, and the messages themselves. It stays allocated if one of these
     * may be under way when a call fails: its memory may be written at any time. */
    bool under_way;
    unsigned char *memory;
    uint64_t memory_bytes;
    message *messages;
    uint32_t count_of_messages;
    /* Messages of a call whose steps Python carries out. Their memory is the caller's. */
    message *transfers;
    uint32_t count_of_transfers, room_for_transfers;
    /* Called every few hundredths of a second while a message is waited for; true to stop. */
    bool (*during_wait)(comm *, int peer, uint64_t waited_ns);
    /* Called before a send to a member whose process is not ready for it. */
    status (*on_not_ready)(comm *, int peer);
    /* Called to end the group: that member makes another call, the links have failed, or
     * that member has died. */
    status (*on_mismatch)(comm *, int peer, const descriptor *theirs);
    status (*on_link_error)(comm *, int error);
    status (*on_death)(comm *, int peer);
};

/* After a call has failed: take note of whether messages may be under way. */
void links_note_failure(links *l);

/* False if there is no memory. */
bool links_open(links *l, uint32_t hosts, uint32_t members);
void links_close(links *l);

/* Find memory for the messages of a call. False if there is none. */
bool links_reserve(links *l, uint64_t bytes, uint32_t messages);

/* Begin a call of a group on several hosts: of it, all steps on this host are parts. */
void begin_larger_call(comm *c, const descriptor *d);

/* Begin to send to, or to receive from, a member on another host. */
status send_to(comm *c, message *m, int member, int kind, const void *data, uint64_t bytes);
status receive_from(comm *c, message *m, int member, int kind, void *data, uint64_t bytes);

/* Wait until these messages are done. */
status await_messages(comm *c, message *m, uint32_t count);

/* Return a message for links->transfers, the last one there; NULL if there is no memory. */
message *links_new_transfer(links *l);

/* Forget all transfers, and return whether one may still be under way. */
bool links_end_transfers(links *l);

/* The leaders tell each other which call they make, with a little data, and see that it
 * is the same. Of each host, `data_of` gets where its data is. Other messages may be begun
 * in between. */
status begin_records(comm *c, const void *data, uint64_t bytes);
status finish_records(comm *c, const unsigned char **data_of, uint64_t *bytes_of);

#endif
