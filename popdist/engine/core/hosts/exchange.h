/* The operations that move data between members, among members on several hosts. */
#ifndef POPDIST_HOSTS_EXCHANGE_H
#define POPDIST_HOSTS_EXCHANGE_H

#include "hosts/links.h"
#include "move/exchange.h"

/* The lengths and the root are in terms of the whole group. Messages read and write the
 * program's memory, which the caller must keep if `under_way` is set after a failure. */
status exchange_over_hosts(const exchange *x);

status barrier_over_hosts(comm *c, uint64_t name);

/* SEND to a member of the whole group, or RECEIVE from it. */
status message_over_hosts(comm *c, operation op, int peer, dtype type, char *row,
                          uint64_t bytes);

#endif
