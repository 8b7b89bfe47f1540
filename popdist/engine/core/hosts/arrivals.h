/* Sleeping until data may have come from another host, and seeing that one has hung up.
 *
 * MPI tells nothing of that: it must be polled. Where it goes over TCP, the sockets of this
 * process tell it; MPI reads them, and here they are only looked at. Where it does not,
 * sleeps are short.
 */
#ifndef POPDIST_ARRIVALS_H
#define POPDIST_ARRIVALS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int epoll; /* of all TCP connections of this process */
    int hangups; /* an epoll of MPI's connections, which tells that some hung up, or -1 */
    /* Sleeps that have ended because of a socket, since the last wait that succeeded. */
    uint32_t in_vain;
    /* Waits in a row that ended with a sleep which lasted as long as it might, and whether
     * the last sleep was such. */
    uint32_t missed;
    bool slept_through;
    uint32_t blind; /* sleeps without sockets, since these were last tried */
    uint64_t blind_ns;
} arrivals;

arrivals arrivals_of(int epoll, int hangups);

/* Take note that what was waited for has come. */
void arrivals_succeeded(arrivals *a);

/* Sleep until data may have come, about a millisecond at most. */
void arrivals_sleep(arrivals *a);

/* Whether a process to which MPI has a connection may have died. */
bool arrivals_hung_up(const arrivals *a);

#endif
