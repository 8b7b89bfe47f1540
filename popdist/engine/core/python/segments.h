/* The general entry point: arrays given by the addresses of their rows. */
#ifndef POPDIST_SEGMENTS_H
#define POPDIST_SEGMENTS_H

#include "python/binding.h"

/* Fill in a call's segments, their total and the hash of their shapes; k->split is there.
 * `list` has (count, addresses read, addresses written or None) of each array, `shapes`
 * the lengths of its axes. False with an exception set; otherwise the segments are the
 * caller's to give_back_segments(). */
bool find_segments(call *k, PyObject *list, PyObject *shapes);
void give_back_segments(const call *k);

/* Return so many addresses, which are the caller's to free, or NULL with an exception. */
uint64_t *addresses_from(PyObject *list, uint64_t count, const char *what);

/* Mix the axes of some more arrays into a hash. False with an exception set. */
bool hash_shapes(PyObject *shapes, uint64_t *hash);

#endif
