/* The sockets from a process to others; Python connects them. */
#include "python/binding.h"

#include "hosts/tcp.h"

#include <errno.h>
#include <stdlib.h>

typedef struct {
    PyObject_HEAD
    tcp_links *links;
    int size;
    link_table table;
} TcpObject;

static PyObject *tcp_make(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"rank", "size", NULL};
    int rank, size;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "ii", names, &rank, &size))
        return NULL;
    TcpObject *self = new_object(type);
    if (!self)
        return NULL;
    self->size = size;
    self->links = tcp_open(rank, size);
    if (self->links) {
        const int epoll = tcp_epoll(self->links);
        self->table = (link_table){.calls = &tcp_calls, .own = self->links, .epoll = epoll};
        return (PyObject *)self;
    }
    PyErr_SetFromErrno(PyExc_OSError);
    Py_DECREF(self);
    return NULL;
}

static void release_object(PyObject *capsule)
{
    Py_DECREF((PyObject *)PyCapsule_GetContext(capsule));
}

/* Return a capsule for connect_hosts(), which keeps this object. */
static PyObject *tcp_table(TcpObject *self, PyObject *unused)
{
    PyObject *capsule = PyCapsule_New(&self->table, LINK_TABLE, release_object);
    if (!capsule)
        return NULL;
    Py_INCREF((PyObject *)self);
    PyCapsule_SetContext(capsule, self);
    return capsule;
}

/* Return None, or NULL with an OSError. */
static PyObject *result_of(int error)
{
    if (!error)
        Py_RETURN_NONE;
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static bool is_process(const TcpObject *self, int number)
{
    if (number >= 0 && number < self->size)
        return true;
    PyErr_Format(PyExc_ValueError, "There is no process %d.", number);
    return false;
}

static PyObject *tcp_add_socket(TcpObject *self, PyObject *args)
{
    int number, fd;
    if (!PyArg_ParseTuple(args, "ii", &number, &fd) || !is_process(self, number))
        return NULL;
    return result_of(tcp_add(self->links, number, fd));
}

static PyObject *tcp_post_short(TcpObject *self, PyObject *args)
{
    int to, tag;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "iiy*", &to, &tag, &data))
        return NULL;
    PyObject *result = NULL;
    if (is_process(self, to))
        result = result_of(tcp_post(self->links, to, tag, data.buf, (uint64_t)data.len));
    PyBuffer_Release(&data);
    return result;
}

static PyObject *tcp_take_short(TcpObject *self, PyObject *args)
{
    int tag;
    if (!PyArg_ParseTuple(args, "i", &tag))
        return NULL;
    const short_message m = tcp_take(self->links, tag);
    if (!m.data)
        Py_RETURN_NONE;
    PyObject *result =
        Py_BuildValue("iy#", m.from, (const char *)m.data, (Py_ssize_t)m.bytes);
    free(m.data);
    return result;
}

static PyObject *tcp_count_posted(TcpObject *self, PyObject *unused)
{
    return PyLong_FromUnsignedLong(tcp_posted(self->links));
}

static PyObject *tcp_check_ready(TcpObject *self, PyObject *args)
{
    int number;
    if (!PyArg_ParseTuple(args, "i", &number) || !is_process(self, number))
        return NULL;
    return PyBool_FromLong(tcp_calls.is_ready(self->links, number));
}

static PyObject *tcp_fail(TcpObject *self, PyObject *args)
{
    int number, is_silent;
    if (!PyArg_ParseTuple(args, "ip", &number, &is_silent) || !is_process(self, number))
        return NULL;
    tcp_note_failed(self->links, number, is_silent);
    Py_RETURN_NONE;
}

/* Return the processes that have failed, each with whether its host is silent. */
static PyObject *tcp_list_failed(TcpObject *self, PyObject *unused)
{
    PyObject *list = PyList_New(0);
    bool is_silent;
    for (int i = 0; i < self->size; i++)
        if (tcp_has_failed(self->links, i, &is_silent))
            append_to(&list, Py_BuildValue("(iO)", i, is_silent ? Py_True : Py_False));
    return list;
}

static PyObject *tcp_give_up(TcpObject *self, PyObject *unused)
{
    tcp_disown(self->links);
    Py_RETURN_NONE;
}

static PyObject *tcp_check(TcpObject *self, PyObject *unused)
{
    tcp_check_answers(self->links);
    Py_RETURN_NONE;
}

static PyObject *tcp_end(TcpObject *self, PyObject *unused)
{
    tcp_say_goodbye(self->links);
    Py_RETURN_NONE;
}

static PyObject *tcp_close_sockets(TcpObject *self, PyObject *unused)
{
    tcp_shut(self->links);
    Py_RETURN_NONE;
}

static void tcp_end_of_life(PyObject *object)
{
    TcpObject *self = (TcpObject *)object;
    if (self->links)
        tcp_close(self->links);
    free_object(object);
}

static PyMethodDef tcp_methods[] = {
    METHOD("table", tcp_table, METH_NOARGS),
    METHOD("add", tcp_add_socket, METH_VARARGS),
    METHOD("post", tcp_post_short, METH_VARARGS),
    METHOD("take", tcp_take_short, METH_VARARGS),
    METHOD("posted", tcp_count_posted, METH_NOARGS),
    METHOD("is_ready", tcp_check_ready, METH_VARARGS),
    METHOD("note_failed", tcp_fail, METH_VARARGS),
    METHOD("failed", tcp_list_failed, METH_NOARGS),
    METHOD("disown", tcp_give_up, METH_NOARGS),
    METHOD("check_answers", tcp_check, METH_NOARGS),
    METHOD("say_goodbye", tcp_end, METH_NOARGS),
    METHOD("shut", tcp_close_sockets, METH_NOARGS),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot tcp_slots[] = {
    {Py_tp_new, (void *)(uintptr_t)tcp_make},
    {Py_tp_dealloc, (void *)(uintptr_t)tcp_end_of_life},
    {Py_tp_methods, tcp_methods},
    {0, NULL},
};

PyType_Spec tcp_spec = TYPE("TcpLinks", TcpObject, 0, tcp_slots);
