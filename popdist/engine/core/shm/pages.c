#define _GNU_SOURCE
#include "shm/pages.h"

#include <errno.h>
#include <sys/mman.h>

void *map_shared(int fd, long long offset, size_t length, bool accessible)
{
    const int access = accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
    void *begin = mmap(NULL, length, access, MAP_SHARED | MAP_NORESERVE, fd, (off_t)offset);
    if (begin == MAP_FAILED)
        return NULL;
    /* A core dump would otherwise fill the file with zeros. If the kernel refuses this,
     * only the dump is longer. */
    (void)madvise(begin, length, MADV_DONTDUMP);
    return begin;
}

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
