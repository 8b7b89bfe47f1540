/* The calls that a member makes of the others, as methods of its endpoint. */
#ifndef POPDIST_COMM_CALLS_H
#define POPDIST_COMM_CALLS_H

#include "python/comm_object.h"

PyObject *comm_reduce_rows(CommObject *self, PyObject *args);
PyObject *comm_reduce_to_nodes(CommObject *self, PyObject *args);
PyObject *comm_complete_nodes(CommObject *self, PyObject *args);
PyObject *comm_exchange(CommObject *self, PyObject *args);
PyObject *comm_barrier(CommObject *self, PyObject *args);
PyObject *comm_send(CommObject *self, PyObject *args);
PyObject *comm_receive(CommObject *self, PyObject *args);

#endif
