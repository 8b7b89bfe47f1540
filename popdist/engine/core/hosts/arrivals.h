/* Sleeping until data may have come from another host.
 *
 * Links are polled. Where they use TCP, the sockets of this process show that data has come;
 * the implementation reads them, and this only waits for them. Where they do not, sleeps are
 * short.
 */
#ifndef POPDIST_ARRIVALS_H
#define POPDIST_ARRIVALS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int epoll; /* of the TCP connections by which data may come */
    /* Sleeps that have ended because of a socket, since the last wait that succeeded. */
    uint32_t in_vain;
    /* Waits in a row that ended with a sleep which lasted as long as it might, and whether
     * the last sleep was such. */
    uint32_t missed;
    bool slept_through;
    uint32_t blind; /* sleeps without sockets, since these were last tried */
    uint64_t blind_ns;
} arrivals;

arrivals arrivals_of(int epoll);

/* Take note that what was waited for has come. */
void arrivals_succeeded(arrivals *a);

/* Sleep until data may have come, about a millisecond at most. */
void arrivals_sleep(arrivals *a);

#endif
