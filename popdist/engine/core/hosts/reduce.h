/* The reductions of a group on several hosts. */
#ifndef POPDIST_HOSTS_REDUCE_H
#define POPDIST_HOSTS_REDUCE_H

#include "hosts/links.h"
#include "reduce/call.h"

/* Carry out a call with a split over hosts; its root, if it has one, is a member of the
 * whole group. In a reduce_scatter each member gets its replicas' results at `out`. */
status reduce_over_hosts(const call *k, char *out);

#endif
