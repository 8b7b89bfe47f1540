#define _GNU_SOURCE
#include "hosts/arrivals.h"

#include <sys/epoll.h>
#include <time.h>

enum {
    SLEEP_MS = 1,
    /* After so many sleeps that ended because of a socket and brought the caller
     * nothing, the data in the sockets is not for the links. */
    MOST_IN_VAIN = 200,
    /* After so many waits in a row in which data came and no socket reported it, data
     * does not come by these sockets. Then sleeps are short, and after MOST_BLIND of
     * them sockets get another chance. */
    MOST_MISSED = 3,
    MOST_BLIND = 5000,
    /* How long a sleep without sockets lasts, at first and at most. */
    LEAST_BLIND_NS = 50000,
    MOST_BLIND_NS = 1000000,
};

arrivals arrivals_of(int epoll)
{
    return (arrivals){.epoll = epoll, .blind_ns = LEAST_BLIND_NS};
}

void arrivals_succeeded(arrivals *a)
{
    a->in_vain = 0;
    a->missed = a->slept_through ? a->missed + 1 : 0;
    a->slept_through = false;
    a->blind_ns = LEAST_BLIND_NS;
}

static void sleep_blind(arrivals *a)
{
    const struct timespec nap = {0, (long)a->blind_ns};
    nanosleep(&nap, NULL);
    /* A twentieth longer each time. */
    a->blind_ns += a->blind_ns / 20;
    if (a->blind_ns > MOST_BLIND_NS)
        a->blind_ns = MOST_BLIND_NS;
    /* This wait, too, got no report from the sockets. */
    a->slept_through = true;
    if (++a->blind > MOST_BLIND)
        a->blind = a->missed = 0;
}

void arrivals_sleep(arrivals *a)
{
    struct epoll_event event;
    if (a->in_vain > MOST_IN_VAIN || a->missed > MOST_MISSED) {
        sleep_blind(a);
        return;
    }
    const int events = epoll_wait(a->epoll, &event, 1, SLEEP_MS);
    if (events < 0) {
        sleep_blind(a);
        return;
    }
    a->in_vain += events > 0;
    a->slept_through = events == 0;
}
