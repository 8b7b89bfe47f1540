#include "bundle.h"

#include <stdlib.h>
#include <string.h>

/* TensorFlow copies memory with a smaller alignment. */
enum { ALIGNMENT = 64, MARK = 0x706f7064 };

typedef struct {
    uint64_t mark;
    const void *self; /* tells a bundle from its copies */
    int64_t count;
    TF_Tensor *tensors[];
} bundle;

static size_t bytes_of(int64_t count)
{
    const size_t bytes = sizeof(bundle) + (size_t)count * sizeof(TF_Tensor *);
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void delete_bundle(void *data, size_t bytes, void *argument)
{
    (void)bytes;
    (void)argument;
    bundle *b = data;
    for (int64_t i = 0; i < b->count; i++)
        TF_DeleteTensor(b->tensors[i]);
    free(b);
}

TF_Tensor *bundle_of(TF_Tensor *const *tensors, int64_t count)
{
    const size_t bytes = bytes_of(count);
    const int64_t length = (int64_t)(bytes / sizeof(int64_t));
    bundle *b = aligned_alloc(ALIGNMENT, bytes);
    if (!b)
        return NULL;
    memset(b, 0, bytes);
    b->mark = MARK;
    b->self = b;
    b->count = count;
    memcpy(b->tensors, tensors, (size_t)count * sizeof *tensors);
    return TF_NewTensor(TF_INT64, &length, 1, b, bytes, delete_bundle, NULL);
}

TF_Tensor *const *tensors_in(const TF_Tensor *tensor, int64_t count)
{
    if (TF_TensorType(tensor) != TF_INT64 || TF_TensorByteSize(tensor) != bytes_of(count))
        return NULL;
    const bundle *b = TF_TensorData(tensor);
    return b->mark == MARK && b->self == b && b->count == count ? b->tensors : NULL;
}
