/* Requests to the kernel for the pages of the heap. Addresses and lengths are whole
 * pages; each function leaves errno where it returns false. */
#ifndef POPDIST_PAGES_H
#define POPDIST_PAGES_H

#include <stdbool.h>
#include <stddef.h>

/* The heap's regions are made accessible in steps of this, a multiple of every page
 * size. */
enum { ACCESS_UNIT = 2 << 20 };

/* Map a part of a file, shared with all other processes that map it, and left out of
 * core dumps. Without access, the mapping only reserves addresses. NULL if the kernel
 * refuses. */
void *map_shared(int fd, long long offset, size_t length, bool accessible);

/* Let this process read and write what was mapped without access. */
bool make_accessible(void *at, size_t length);

/* Give the memory of these pages back. They read as zeros from then on. */
bool remove_pages(void *at, size_t length);

#endif
