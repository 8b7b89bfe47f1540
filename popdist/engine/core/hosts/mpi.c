#include "hosts/mpi.h"

#include <sys/epoll.h>

/* Larger than the status of any MPI. */
enum { STATUS_BYTES = 256 };

static int mpi_send(void *own, const void *data, uint64_t bytes, int to, int tag,
                    void **request)
{
    const mpi_links *l = own;
    return l->isend(data, (int)bytes, l->byte, to, tag, l->group, request);
}

static int mpi_receive(void *own, void *data, uint64_t bytes, int from, int tag,
                       void **request)
{
    const mpi_links *l = own;
    return l->irecv(data, (int)bytes, l->byte, from, tag, l->group, request);
}

static int mpi_test(void *own, void **request, bool *done)
{
    const mpi_links *l = own;
    unsigned char unused[STATUS_BYTES];
    int is_done = 0;
    const int error = l->test(request, &is_done, unused);
    *done = is_done;
    return error;
}

static bool mpi_is_ready(void *own, int to)
{
    const mpi_links *l = own;
    struct epoll_event event;
    (void)to; /* a hangup does not identify the process */
    return l->hangups < 0 || epoll_wait(l->hangups, &event, 1, 0) <= 0;
}

const link_calls mpi_calls = {mpi_send, mpi_receive, mpi_test, mpi_is_ready, NULL};
