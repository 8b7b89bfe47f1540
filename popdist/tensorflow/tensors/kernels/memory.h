/* Python objects with the memory of tensors, and tensors with the memory of Python objects.
 * The caller has Python's lock. */
#ifndef POPDIST_MEMORY_H
#define POPDIST_MEMORY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "tensorflow_api.h"

/* Make the type of what memory_of() returns. Returns false with an exception. */
bool make_memory_type(void);

/* Return a buffer that can be read: a tensor's elements. The tensor is the buffer's from now
 * on. Returns NULL with an exception. */
PyObject *memory_of(TF_Tensor *tensor);

/* Return a tensor of an object's elements, which keeps the object; a copy if they are not
 * aligned. Returns NULL where there is no memory. */
TF_Tensor *tensor_over(PyObject *owner, TF_DataType type, const int64_t *lengths, int axes,
                       void *data, size_t bytes);

/* Forget the owners of the tensors that TensorFlow has deleted. */
void release_owners(void);

#endif
