/* The general entry point: arrays given by the addresses of their rows. */
#ifndef POPDIST_SEGMENTS_H
#define POPDIST_SEGMENTS_H

#include "python/binding.h"

/* Fill in a call's segments, their total and their shape; k->l is there. `list` has
 * (count, addresses read, addresses written or None) of each array, `shapes` the
 * lengths of its axes. False with an exception set; otherwise give_back_segments()
 * what was found. */
bool find_segments(call *k, PyObject *list, PyObject *shapes);
void give_back_segments(const call *k);

/* Mix the axes of some more arrays into a shape. False with an exception set. */
bool shape_from(PyObject *shapes, uint64_t *shape);

#endif
