/* Links by MPI. The caller passes its functions: the core is not linked with it.
 *
 * Handles of MPI are integers of 32 bits or pointers, by library; both are passed here as
 * pointers are, since integers and pointers use the same registers on the processors that
 * we support.
 */
#ifndef POPDIST_HOSTS_MPI_H
#define POPDIST_HOSTS_MPI_H

#include "hosts/links.h"

/* MPI_Isend, MPI_Irecv and MPI_Test. Each returns 0 or the number of an error. */
typedef int isend_fn(const void *data, int bytes, void *type, int to, int tag, void *group,
                     void *request);
typedef int irecv_fn(void *data, int bytes, void *type, int from, int tag, void *group,
                     void *request);
typedef int test_fn(void *request, int *done, void *status);

typedef struct {
    isend_fn *isend;
    irecv_fn *irecv;
    test_fn *test;
    void *group, *byte; /* handles of the communicator and of MPI_BYTE */
    /* An epoll of MPI's connections, readable once one has hung up, or -1. MPICH crashes
     * in a send to a dead process. */
    int hangups;
} mpi_links;

/* For these, `own` is a mpi_links. */
extern const link_calls mpi_calls;

#endif
