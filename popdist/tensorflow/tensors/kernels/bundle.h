/* Tensors that travel between devices as one: a tensor whose elements say where they are.
 *
 * What goes from one device to another costs TensorFlow microseconds for each tensor. All
 * devices here are in this process's memory, so that one small tensor can stand for many;
 * it keeps them as long as it lives. */
#ifndef POPDIST_BUNDLE_H
#define POPDIST_BUNDLE_H

#include "tensorflow_api.h"

/* Return a tensor that stands for others, which are its own from now on, or NULL. */
TF_Tensor *bundle_of(TF_Tensor *const *tensors, int64_t count);

/* Return the tensors that a bundle of so many stands for, which remain its own, or NULL
 * where it is none, such as a copy that something else has made of one. */
TF_Tensor *const *tensors_in(const TF_Tensor *bundle, int64_t count);

#endif
