/* Messages between members on different hosts, and the records with which leaders agree
 * on a call. An implementation of links moves the messages: MPI (mpi.c) or TCP (tcp.c). */
#ifndef POPDIST_LINKS_H
#define POPDIST_LINKS_H

#include "hosts/arrivals.h"
#include "sync/comm.h"

/* The functions of an implementation. Any thread may call them, and they return at once.
 * `own` belongs to the implementation, and processes are numbered by instance. Errors
 * are numbers other than 0; the implementation's Python module explains them. */
typedef struct {
    /* Begin a message; its memory is in use until test() sets `done`. */
    int (*send)(void *own, const void *data, uint64_t bytes, int to, int tag, void **request);
    int (*receive)(void *own, void *data, uint64_t bytes, int from, int tag, void **request);
    int (*test)(void *own, void **request, bool *done);
    /* Whether send() may be called for that process. If not, on_not_ready() prepares it. */
    bool (*is_ready)(void *own, int to);
    /* Use the memory of a message to or from a process no more. NULL if that cannot be. */
    void (*cancel)(void *own, int process, void **request);
} link_calls;

/* An implementation, as it is passed to groups. */
typedef struct {
    const link_calls *calls;
    void *own;
    int epoll; /* of its connections, or -1 */
} link_table;

/* Kinds of messages: a message's tag is the receiver's first tag plus its kind. */
typedef enum {
    RECORD,
    NODES,
    RESULTS,
    ROWS,     /* of an exchange */
    MESSAGES, /* of send and receive */
    MESSAGE_KINDS,
} message_kind;

typedef enum { FROM_OTHERS, TO_OTHERS } direction;

enum {
    /* The most data that goes with the record of a call. */
    RECORD_DATA_BYTES = 16 << 10,
    /* The first messages of a call are for the records. */
    RECORD_MESSAGES = 2,
};

/* A message, in transit while it is begun and not done. */
typedef struct {
    void *request; /* the handle of the implementation */
    int peer;      /* the member of the group at the other end */
    bool begun, done;
} message;

/* A member of the group, which receives messages. */
typedef struct {
    int process;
    int tag;           /* the first tag of messages to it */
    uint32_t host;
    int place;         /* its rank on its host */
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
    int *leaders;      /* of each host its first member */
    int *counterparts; /* for each host the member that this one exchanges nodes with */
    arrivals sockets;
    unsigned char *records; /* of all hosts, in a call */
    const unsigned char **data_of; /* the data of each host: with its record, or nodes */
    /* The messages of a call, and their memory. If a message may be in transit when a
     * call fails, and cannot be cancelled, the memory stays allocated: it may be written
     * at any time. */
    bool under_way;
    unsigned char *memory;
    uint64_t memory_bytes;
    message *messages;
    uint32_t count_of_messages;
    /* The messages of an exchange. The program owns their memory. */
    message *transfers;
    uint32_t count_of_transfers, room_for_transfers;
    /* Called every few hundredths of a second while a message is waited for; true to stop. */
    bool (*during_wait)(comm *, int peer, uint64_t waited_ns);
    /* Called before a send to a member while its process is not ready. */
    status (*on_not_ready)(comm *, int peer);
    /* Called to end the group: the member makes another call, the links have failed, or
     * the member has died. */
    status (*on_mismatch)(comm *, int peer, const descriptor *theirs);
    status (*on_link_error)(comm *, int error);
    status (*on_death)(comm *, int peer);
};

/* Called after a call has failed: record whether messages may be in transit. */
void links_note_failure(links *l);

/* Allocate memory. False if there is none. Then the caller sets the members' processes,
 * tags and hosts, and calls links_place(). */
bool links_open(links *l, uint32_t hosts, uint32_t members);
void links_close(links *l);

/* Find the place of each member on its host, and with whom this one exchanges data: the
 * leaders, and on each host the member with its own place, or the leader if there is none. */
void links_place(links *l);

/* Allocate memory for the messages of a call. False if there is none. */
bool links_reserve(links *l, uint64_t bytes, uint32_t messages);

/* End the group: this member has no memory for a call. */
status links_out_of_memory(comm *c);

/* Begin a call of a group on several hosts; all steps on this host belong to it. */
void links_begin_call(comm *c, const descriptor *d);

/* Begin to send to, or to receive from, a member on another host. */
status links_send(comm *c, message *m, int member, int kind, const void *data,
                  uint64_t bytes);
status links_receive(comm *c, message *m, int member, int kind, void *data,
                     uint64_t bytes);

/* Wait until these messages are done. */
status links_await(comm *c, message *m, uint32_t count);

/* Begin to exchange bytes with a member on another host, as one or more transfers. */
status links_begin(comm *c, direction way, int member, message_kind kind, void *data,
                   uint64_t bytes);

/* Wait for one transfer of the call, or for all of them. */
status links_await_transfer(comm *c, uint32_t number);
status links_await_transfers(comm *c);

/* The leaders exchange records of their calls, with a little data, and check that all
 * make the same call. `data_of` gets the address of each host's data. Other messages may
 * be begun in between. */
status links_begin_records(comm *c, const void *data, uint64_t bytes);
status links_finish_records(comm *c);

#endif
