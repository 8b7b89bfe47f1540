/* The tree of additions cut between the hosts of a group.
 *
 * The members of each host reduce their replicas to the largest nodes of the group's tree
 * that lie in these, in the accumulation type; the nodes of all hosts are then completed to
 * the result. Where every node is a row, nodes may be as they are given instead: of
 * elements.
 */
#ifndef POPDIST_NODES_H
#define POPDIST_NODES_H

#include "reduce/call.h"

/* Reduce elements [begin, end) to the nodes of this host, as call_reduce_range() does to
 * the result. Node number i goes to to[i], from element `skip` on. */
void reduce_range_to_nodes(const call *k, const terms *t, cursor *at, const published *p,
                           uint64_t begin, uint64_t end, char *const *to, uint64_t skip);

/* Complete the nodes of all hosts, in the order of `p`, to rows of finished elements.
 * The arithmetic's divisor is for all hosts. Rows and nodes lie in different memory. */
void complete_nodes(comm *c, const arithmetic *a, const program *p,
                    const char *const *nodes, bool as_given, uint64_t count,
                    char *const *out, uint32_t rows);

#endif
