#define _GNU_SOURCE
#include "shm/pages.h"

#include <errno.h>
#include <sys/mman.h>

bool make_accessible(void *at, size_t length)
{
    return mprotect(at, length, PROT_READ | PROT_WRITE) == 0;
}

bool remove_pages(void *at, size_t length)
{
    if (madvise(at, length, MADV_REMOVE) == 0)
        return true;
    /* The kernel does not remove what mlockall() has locked. */
    return errno == EINVAL && munlock(at, length) == 0
           && madvise(at, length, MADV_REMOVE) == 0;
}
