/* Texts in which similar events differ, and search in events: the compiled form of `event_texts.py`, which says what is returned.

   Every read is behind a comparison with `stop`. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

typedef struct {
    const char *at;
    Py_ssize_t size;
} Bytes;

static Bytes bytes_of(PyObject *object)
{
    return (Bytes){PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object)};
}

/* Search few bytes; for many, `memmem` takes a quarter of the time. */
static int occurs(const char *from, const char *stop, Bytes searched)
{
    while (stop - from >= searched.size) {
        from = memchr(from, *searched.at, stop - from - searched.size + 1);
        if (from == NULL)
            return 0;
        if (memcmp(from, searched.at, searched.size) == 0)
            return 1;
        from++;
    }
    return 0;
}

/* Whether a sign touches the text from `from` to `to` of an event that lies between `event` and `stop`. */
static int has_sign(const char *event, const char *from, const char *to, const char *stop, PyObject *signs)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(signs); i++) {
        Bytes sign = bytes_of(PyTuple_GET_ITEM(signs, i));
        const char *first = from - event >= sign.size ? from - sign.size + 1 : event;
        const char *last = stop - to >= sign.size ? to + sign.size - 1 : stop;
        if (occurs(first, last, sign))
            return 1;
    }
    return 0;
}

/* Return where the text of the event at `event` ends, NULL if the event has another form; `line` bytes of `end` are on its line. */
static const char *end_of_text(const char *event, const char *stop, Bytes begin, Bytes end, Py_ssize_t line, PyObject *signs)
{
    if (stop - event < begin.size + end.size || memcmp(event, begin.at, begin.size) != 0)
        return NULL;
    const char *from = event + begin.size, *feed = memchr(from, '\n', stop - from);
    if (feed == NULL || feed - from < line)
        return NULL;
    const char *to = feed - line;
    if (stop - to < end.size || memcmp(to, end.at, end.size) != 0 || memchr(from, '\0', to - from) != NULL)
        return NULL;
    return has_sign(event, from, to, to + end.size, signs) ? NULL : to;
}

static int are_signs(PyObject *signs)
{
    if (!PyTuple_Check(signs))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(signs); i++) {
        PyObject *sign = PyTuple_GET_ITEM(signs, i);
        if (!PyBytes_Check(sign) || PyBytes_GET_SIZE(sign) == 0)
            return 0;
    }
    return 1;
}

/* Return the result; takes the reference to `texts`. */
static PyObject *result_of(PyObject *texts, Py_ssize_t count, Py_ssize_t size)
{
    PyObject *counted = PyLong_FromSsize_t(count), *sized = PyLong_FromSsize_t(size), *found = NULL;
    if (counted != NULL && sized != NULL)
        found = PyTuple_Pack(3, texts, counted, sized);
    Py_DECREF(texts);
    Py_XDECREF(counted);
    Py_XDECREF(sized);
    return found;
}

static PyObject *event_texts(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 4 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[1]) || !PyBytes_Check(args[2]) || !are_signs(args[3])) {
        PyErr_SetString(PyExc_TypeError, "event_texts(events: bytes, begin: bytes, end: bytes, signs: tuple of bytes)");
        return NULL;
    }
    Bytes events = bytes_of(args[0]), begin = bytes_of(args[1]), end = bytes_of(args[2]);
    const char *event = events.at, *stop = events.at + events.size, *to;
    const char *feed = memchr(end.at, '\n', end.size);
    Py_ssize_t events_read = 0;
    PyObject *texts = NULL;
    char *next = NULL;
    while (feed != NULL && (to = end_of_text(event, stop, begin, end, feed - end.at, args[3])) != NULL) {
        if (texts == NULL) {
            /* An event is longer than its line. */
            texts = PyBytes_FromStringAndSize(NULL, stop - event);
            if (texts == NULL)
                return NULL;
            next = PyBytes_AS_STRING(texts);
        }
        Py_ssize_t size = to - event - begin.size;
        memcpy(next, event + begin.size, size);
        next += size;
        *next++ = '\n';
        event = to + end.size;
        events_read++;
    }
    if (texts == NULL)
        texts = PyBytes_FromStringAndSize(NULL, 0);
    else if (_PyBytes_Resize(&texts, next - PyBytes_AS_STRING(texts)) < 0)
        return NULL;
    return result_of(texts, events_read, event - events.at);
}

static PyObject *contains(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 2 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[1]) || PyBytes_GET_SIZE(args[1]) == 0) {
        PyErr_SetString(PyExc_TypeError, "contains(events: bytes, searched: bytes), and some are searched");
        return NULL;
    }
    Bytes events = bytes_of(args[0]), searched = bytes_of(args[1]);
    return PyBool_FromLong(memmem(events.at, events.size, searched.at, searched.size) != NULL);
}

static PyMethodDef methods[] = {
    {"contains", (PyCFunction)(void (*)(void))contains, METH_FASTCALL, NULL},
    {"event_texts", (PyCFunction)(void (*)(void))event_texts, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "event_texts", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit_event_texts(void)
{
    return PyModuleDef_Init(&definition);
}
