/* Tensors that travel between devices as one tensor of their addresses.
 *
 * TensorFlow takes microseconds to move a tensor from one device to another. All devices
 * here are in this process's memory, so that one small tensor can stand for many; it keeps
 * them as long as it lives. */
#ifndef POPDIST_BUNDLE_H
#define POPDIST_BUNDLE_H

#include "tensorflow_api.h"

/* Return a tensor that stands for others and owns them from now on, or NULL. */
TF_Tensor *bundle_of(TF_Tensor *const *tensors, int64_t count);

/* Return the tensors that a bundle of so many stands for, which remain its own, or NULL
 * where it is none, such as a copy that something else has made of one. */
TF_Tensor *const *tensors_in(const TF_Tensor *bundle, int64_t count);

#endif
