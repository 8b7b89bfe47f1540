/* The results of a reduction over several hosts, from the carriers of a host to all its
 * members.
 */
#ifndef POPDIST_HOSTS_HAND_OUT_H
#define POPDIST_HOSTS_HAND_OUT_H

#include "hosts/division.h"

/* Give the members of this host a block's result. All of them must call this.
 *
 * `block` is one as a separate call. A reduce_scatter does not use it: each member
 * gets its own elements at `out`. A carrier passes its elements as `result`.
 */
status hand_out(const division *d, const call *whole, const call *block, char *out,
                uint64_t number, const unsigned char *result);

#endif
