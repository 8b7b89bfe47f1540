#define _GNU_SOURCE
#include "hosts/arrivals.h"

#include <sys/epoll.h>
#include <time.h>

enum {
    SLEEP_MS = 1,
    /* So many sleeps that end because of a socket, with nothing for the caller, show that
     * the data there is not for the links. */
    MOST_IN_VAIN = 200,
    /* So many waits in a row whose data has come while no socket told it show that it goes
     * another way. Then sleeps are short, until sockets get another chance after so many. */
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
    /* Sockets have told nothing in this wait either. */
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
