/* The operations that move data between members, in blocks through slots. */
#ifndef POPDIST_EXCHANGE_H
#define POPDIST_EXCHANGE_H

#include "sync/comm.h"

/* All lengths are in bytes. Fields that the operation does not use are zero. */
typedef struct {
    comm *c;
    operation op;
    dtype type;
    uint64_t name;
    int root;
    const uint64_t *lengths; /* of each member's share */
    /* Where each member's share begins in an array of all; NULL if they follow each other. */
    const uint64_t *begins;
    uint64_t shapes_hash; /* of the arrays, if all members must pass the same ones */
    operation prelude_to; /* the call that this one prepares, by telling of its arrays,
                           * or NO_PRELUDE */
    const char *in;
    char *out;
} exchange;

status exchange_run(const exchange *x);

/* An exchange with shares of so many bytes for all members. */
status exchange_equal(exchange x, uint64_t bytes);

/* The description of an exchange among so many members. */
descriptor exchange_described(const exchange *x, size_t members);

/* One member to another; the others take no part. */
status send_message(comm *c, int to, dtype type, const char *from, uint64_t bytes);
status receive_message(comm *c, int from, dtype type, char *to, uint64_t bytes);

#endif
