#include "memory.h"

#include <stdatomic.h>
#include <stdlib.h>

static PyTypeObject *memory_type;

typedef struct {
    PyObject_HEAD
    TF_Tensor *tensor;
} memory;

/* The object with a tensor's elements. Once the tensor is deleted, it waits for its
 * release. */
typedef struct owner {
    PyObject *object;
    struct owner *next;
} owner;

/* TensorFlow deletes tensors in its own threads. They must not wait for Python's lock: the
 * thread that has it may wait for them. */
static _Atomic(owner *) to_release;

static void memory_end(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    TF_DeleteTensor(((memory *)self)->tensor);
    ((freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static int memory_buffer(PyObject *self, Py_buffer *view, int flags)
{
    /* An empty tensor has no memory. */
    static char nothing;
    const TF_Tensor *tensor = ((memory *)self)->tensor;
    const Py_ssize_t bytes = (Py_ssize_t)TF_TensorByteSize(tensor);
    return PyBuffer_FillInfo(view, self, bytes ? TF_TensorData(tensor) : &nothing, bytes, 1,
                             flags);
}

bool make_memory_type(void)
{
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, (void *)(uintptr_t)memory_end},
        {Py_bf_getbuffer, (void *)(uintptr_t)memory_buffer},
        {0, NULL},
    };
    static PyType_Spec spec = {"popdist.tensorflow.tensors._kernels.Memory",
                               (int)sizeof(memory), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    memory_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return memory_type;
}

PyObject *memory_of(TF_Tensor *tensor)
{
    const allocfunc allocate
        = (allocfunc)(uintptr_t)PyType_GetSlot(memory_type, Py_tp_alloc);
    PyObject *self = allocate(memory_type, 0);
    if (self)
        ((memory *)self)->tensor = tensor;
    else
        TF_DeleteTensor(tensor);
    return self;
}

static void add_to_release(void *data, size_t bytes, void *argument)
{
    (void)data;
    (void)bytes;
    owner *o = argument;
    o->next = atomic_load_explicit(&to_release, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&to_release, &o->next, o,
                                                  memory_order_release, memory_order_relaxed))
        continue;
}

TF_Tensor *tensor_over(PyObject *object, TF_DataType type, const int64_t *lengths, int axes,
                       void *data, size_t bytes)
{
    owner *o = malloc(sizeof *o);
    if (!o)
        return NULL;
    o->object = Py_NewRef(object);
    return TF_NewTensor(type, lengths, axes, data, bytes, add_to_release, o);
}

void release_owners(void)
{
    owner *o = atomic_exchange_explicit(&to_release, NULL, memory_order_acquire);
    while (o) {
        owner *next = o->next;
        Py_DECREF(o->object);
        free(o);
        o = next;
    }
}
