/* The operations that hand data from members to members, in blocks through slots. */
#ifndef POPDIST_EXCHANGE_H
#define POPDIST_EXCHANGE_H

#include "reduce/call.h"

/* All lengths are in bytes. What is not used by the operation is zero. */
typedef struct {
    comm *c;
    operation op;
    dtype type;
    uint64_t name;
    int root;
    const uint64_t *lengths; /* of each member's part */
    uint64_t shape; /* of the arrays, where all members must pass the same */
    operation headers_of; /* the call for which headers are exchanged, for messages, or 0 */
    const char *in;
    char *out;
} exchange;

status exchange_run(const exchange *x);

/* Each member gets its own replicas' equal shares of the rows' sum, at `out`. */
status reduce_scatter(const call *k, char *out);

/* For a layout of a part: member q gets lengths[q] elements of each node of the part, in
 * the accumulation type, after those of the members before it. Node i goes to out[i]. */
status reduce_to_nodes(const call *k, const uint64_t *lengths, char *const *out);

status barrier(comm *c, uint64_t name);

/* One member to another; the others take no part. */
status send_message(comm *c, int to, dtype type, const char *from, uint64_t bytes);
status receive_message(comm *c, int from, dtype type, char *to, uint64_t bytes);

#endif
