/* Messages between members on different hosts, and what leaders tell each other of a call.
 *
 * They go by MPI, whose functions the caller has found. Handles of MPI are integers of 32
 * bits or pointers, by library; both are passed here as pointers are, since integers and
 * pointers use the same registers on the processors that we support.
 */
#ifndef POPDIST_LINKS_H
#define POPDIST_LINKS_H

#include "hosts/arrivals.h"
#include "sync/comm.h"

/* MPI_Isend, MPI_Irecv and MPI_Test. Each returns 0 or the number of an error. */
typedef int isend_fn(const void *data, int bytes, void *type, int to, int tag, void *group,
                     void *request);
typedef int irecv_fn(void *data, int bytes, void *type, int from, int tag, void *group,
                     void *request);
typedef int test_fn(void *request, int *done, void *status);

/* What messages are tagged with, from the receiver's first tag on. */
typedef enum { RECORD, NODES, RESULTS } message_kind;

enum {
    /* The most data that goes with the record of a call. */
    RECORD_DATA_BYTES = 16 << 10,
    /* The first ones of a call's messages are those of records. */
    RECORD_MESSAGES = 2,
};

/* A message that is under way until it is done. */
typedef struct {
    void *own;     /* the request as MPI has it */
    void *request; /* where that is: here, or with another owner */
    int peer;      /* the member of the group at the other end */
    bool done;
} message;

/* The member of a host that this one exchanges messages with: of a leader, the leader. */
typedef struct {
    int member; /* of the group */
    int rank;   /* of that one for MPI */
    int tag;    /* the first one of messages to it */
    _Atomic bool dead; /* nothing may be sent to it: MPICH would crash */
} counterpart;

struct links {
    isend_fn *isend;
    irecv_fn *irecv;
    test_fn *test;
    void *group, *byte; /* handles of the communicator and of MPI_BYTE */
    uint32_t hosts, here;
    bool leads; /* this member is its host's leader */
    counterpart *counterparts; /* on all hosts; here, this member */
    arrivals sockets;
    unsigned char *records; /* of all hosts, in a call */
    /* Memory of messages, and the messages themselves. It stays if one of these may be
     * under way when a call fails: MPI may write to it at any time. */
    bool under_way;
    unsigned char *memory;
    uint64_t memory_bytes;
    message *messages;
    uint32_t count_of_messages;
    /* Called every few hundredths of a second while a message is waited for; true to stop. */
    bool (*during_wait)(comm *, int peer, uint64_t waited_ns);
    /* Called before something is sent to that member once a process has hung up: wait
     * until it is known who has died. */
    status (*on_hangup)(comm *, int peer);
    /* Called to end the group: that member makes another call, MPI has failed, or that
     * member has died. */
    status (*on_mismatch)(comm *, int peer, const descriptor *theirs);
    status (*on_mpi_error)(comm *, int error);
    status (*on_death)(comm *, int peer);
};

/* After a call has failed: take note of whether messages may be under way. */
void links_note_failure(links *l);

/* False if there is no memory. */
bool links_open(links *l, uint32_t hosts);
void links_close(links *l);

/* Find memory for the messages of a call. False if there is none. */
bool links_reserve(links *l, uint64_t bytes, uint32_t messages);

/* Begin a call of a group on several hosts: of it, all steps on this host are parts. */
void begin_larger_call(comm *c, const descriptor *d);

/* Begin to send to, or to receive from, the counterpart on another host. */
status send_to(comm *c, message *m, uint32_t host, message_kind kind, const void *data,
               uint64_t bytes);
status receive_from(comm *c, message *m, uint32_t host, message_kind kind, void *data,
                    uint64_t bytes);

/* Wait until these messages are done. */
status await_messages(comm *c, message *m, uint32_t count);

/* The leaders tell each other which call they make, with a little data, and see that it
 * is the same. Of each host, `data_of` gets where its data is. Other messages may be begun
 * in between. */
status begin_records(comm *c, const void *data, uint64_t bytes);
status finish_records(comm *c, const unsigned char **data_of, uint64_t *bytes_of);

#endif
