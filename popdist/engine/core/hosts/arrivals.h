/* Sleeping until data may have come from another host.
 *
 * Links are polled. If they use TCP, the sockets of this process show that data has come;
 * the implementation reads them, and this only waits for them. Otherwise sleeps are short.
 */
#ifndef POPDIST_ARRIVALS_H
#define POPDIST_ARRIVALS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int epoll; /* of the TCP connections that may bring data */
    /* Sleeps that a socket has ended since the last successful wait. */
    uint32_t in_vain;
    /* Waits in a row that succeeded after a sleep up to its time limit, and whether the
     * last sleep of the current wait was so long. */
    uint32_t missed;
    bool slept_through;
    uint32_t blind; /* sleeps without sockets since the last ones with them */
    uint64_t blind_ns;
} arrivals;

arrivals arrivals_of(int epoll);

/* The wait has succeeded: count it. */
void arrivals_succeeded(arrivals *a);

/* Sleep until data may have come, about a millisecond at most. */
void arrivals_sleep(arrivals *a);

#endif
