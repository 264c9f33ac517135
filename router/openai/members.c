/* Members of a JSON object, and elements of an array, found without parsing the others: the compiled form of `members.py`, which
   says what is returned.

   It accepts less than any JSON parser: whatever is unusual is left to one, by returning None. Every read is behind a
   comparison with `end`, and nesting is bounded by MAX_DEPTH. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { MAX_DEPTH = 64, MAX_DIGITS = 15, MAX_NAME = 64, HALF = sizeof(uint64_t) };

#define NOT_ASCII UINT64_C(0x8080808080808080)

/* The bytes still to be read; `high` has a bit of NOT_ASCII set once a byte of a string was not ASCII, `spaced` is set after spaces,
   and `loose` once something else was written in another form than the shortest. */
typedef struct {
    const unsigned char *at;
    const unsigned char *end;
    uint64_t high;
    int spaced;
    int loose;
} Reader;

static int skip_value(Reader *reader, int depth);

static inline int next_is(const Reader *reader, unsigned char byte)
{
    return reader->at < reader->end && *reader->at == byte;
}

static inline void skip_spaces(Reader *reader)
{
    while (reader->at < reader->end
           && (*reader->at == ' ' || *reader->at == '\n' || *reader->at == '\r' || *reader->at == '\t')) {
        reader->at++;
        reader->spaced = 1;
    }
}

/* Enter an array or object: return 1 if something is in it, 0 if it is empty and was left again, -1 if it is something else. */
static inline int enter(Reader *reader, unsigned char open, unsigned char close)
{
    if (!next_is(reader, open))
        return -1;
    reader->at++;
    skip_spaces(reader);
    if (!next_is(reader, close))
        return 1;
    reader->at++;
    return 0;
}

/* Go on behind a value in an array or object: return 1 if another one follows, 0 if that was the last, -1 if neither is so. */
static inline int go_on(Reader *reader, unsigned char close)
{
    skip_spaces(reader);
    int follows = next_is(reader, ',');
    if (!follows && !next_is(reader, close))
        return -1;
    reader->at++;
    if (follows)
        skip_spaces(reader);
    return follows;
}

#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
typedef unsigned char Block __attribute__((vector_size(2 * HALF)));

/* Go on to the next quote, backslash or control character, or near the end. */
static inline void skip_plain(Reader *reader)
{
    Block block;
    uint64_t text[2], found[2];
    while (reader->end - reader->at >= (Py_ssize_t)sizeof block) {
        memcpy(text, reader->at, sizeof block);
        memcpy(&block, text, sizeof block);
        block = (Block)(block == '"') | (Block)(block == '\\') | (Block)(block < 0x20);
        memcpy(found, &block, sizeof block);
        reader->high |= text[0] | text[1];
        if (found[0] | found[1]) {
            reader->at += found[0] ? __builtin_ctzll(found[0]) / 8 : HALF + __builtin_ctzll(found[1]) / 8;
            return;
        }
        reader->at += sizeof block;
    }
}
#else
static inline void skip_plain(Reader *reader) { (void)reader; }
#endif

/* Read four hexadecimal digits; return -1 if they are none. */
static int hexadecimal(Reader *reader)
{
    int value = 0;
    if (reader->end - reader->at < 4)
        return -1;
    for (int digit = 0; digit < 4; digit++) {
        unsigned char byte = *reader->at++;
        if (byte >= '0' && byte <= '9')
            value = value * 16 + byte - '0';
        else if ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f')
            value = value * 16 + (byte | 0x20) - 'a' + 10;
        else
            return -1;
    }
    return value;
}

/* Skip what follows a backslash: a surrogate must be one of a pair. */
static int skip_escape(Reader *reader)
{
    if (reader->at == reader->end)
        return 0;
    unsigned char letter = *reader->at++;
    if (letter == 'u' || letter == '/')
        reader->loose = 1;
    if (letter != 'u')
        return letter != 0 && strchr("\"\\/bfnrt", letter) != NULL;
    int code = hexadecimal(reader);
    if (code < 0xD800 || code > 0xDFFF)
        return code >= 0;
    if (code >= 0xDC00 || reader->end - reader->at < 2 || reader->at[0] != '\\' || reader->at[1] != 'u')
        return 0;
    reader->at += 2;
    code = hexadecimal(reader);
    return code >= 0xDC00 && code <= 0xDFFF;
}

/* Skip a string after its first quote, and note whether it has escapes. */
static int skip_string(Reader *reader, int *escaped)
{
    for (;;) {
        skip_plain(reader);
        if (reader->at == reader->end)
            return 0;
        unsigned char byte = *reader->at++;
        if (byte == '"')
            return 1;
        if (byte == '\\') {
            *escaped = 1;
            if (!skip_escape(reader))
                return 0;
        } else if (byte < 0x20) {
            return 0;
        }
        reader->high |= byte;
    }
}

static int skip_digits(Reader *reader)
{
    const unsigned char *from = reader->at;
    while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9')
        reader->at++;
    return reader->at > from && reader->at - from <= MAX_DIGITS;
}

/* Skip a number of few digits without an exponent. Only natural numbers have no other form. */
static int skip_number(Reader *reader)
{
    if (next_is(reader, '-')) {
        reader->at++;
        reader->loose = 1;
    }
    int zero = next_is(reader, '0');
    const unsigned char *from = reader->at;
    if (!skip_digits(reader) || (zero && reader->at - from > 1))
        return 0;
    if (!next_is(reader, '.'))
        return 1;
    reader->at++;
    reader->loose = 1;
    return skip_digits(reader);
}

static int skip_word(Reader *reader, const char *word, Py_ssize_t length)
{
    if (reader->end - reader->at < length || memcmp(reader->at, word, length) != 0)
        return 0;
    reader->at += length;
    return 1;
}

static int skip_member(Reader *reader, int depth)
{
    int escaped;
    if (!next_is(reader, '"'))
        return 0;
    reader->at++;
    if (!skip_string(reader, &escaped))
        return 0;
    skip_spaces(reader);
    if (!next_is(reader, ':'))
        return 0;
    reader->at++;
    skip_spaces(reader);
    return skip_value(reader, depth);
}

/* Skip an array or object, from its bracket on. */
static int skip_container(Reader *reader, int depth)
{
    int object = next_is(reader, '{');
    unsigned char close = object ? '}' : ']';
    int more = depth ? enter(reader, object ? '{' : '[', close) : -1;
    while (more > 0) {
        if (!(object ? skip_member(reader, depth - 1) : skip_value(reader, depth - 1)))
            return 0;
        more = go_on(reader, close);
    }
    return more == 0;
}

static int skip_value(Reader *reader, int depth)
{
    int escaped;
    if (reader->at == reader->end)
        return 0;
    switch (*reader->at) {
    case '"':
        reader->at++;
        return skip_string(reader, &escaped);
    case '{':
    case '[':
        return skip_container(reader, depth);
    case 't':
        return skip_word(reader, "true", 4);
    case 'f':
        return skip_word(reader, "false", 5);
    case 'n':
        return skip_word(reader, "null", 4);
    default:
        return skip_number(reader);
    }
}

/* Return a scalar that needs no parser, as a new reference; NULL without an exception for any other value. */
static PyObject *scalar(const unsigned char *from, const unsigned char *end)
{
    switch (*from) {
    case '"':
        if (memchr(from, '\\', end - from) != NULL)
            return NULL;
        return PyUnicode_DecodeUTF8((const char *)from + 1, end - from - 2, "strict");
    case 't':
        Py_RETURN_TRUE;
    case 'f':
        Py_RETURN_FALSE;
    case 'n':
        Py_RETURN_NONE;
    case '{':
    case '[':
    case '-':
        return NULL;
    }
    long long value = 0;
    for (; from < end; from++) {
        if (*from == '.')
            return NULL;
        value = value * 10 + *from - '0';
    }
    return PyLong_FromLongLong(value);
}

/* Find a key among names: 1 if it is the one returned in `found`, 0 if it is none, -1 if it differs from one only in case. */
static int find(const unsigned char *key, Py_ssize_t length, PyObject *names, PyObject **found)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        const char *text = PyUnicode_DATA(name);
        if (PyUnicode_GET_LENGTH(name) != length)
            continue;
        if (memcmp(key, text, length) == 0) {
            *found = name;
            return 1;
        }
        if (((*key ^ *text) & ~0x20) == 0 && PyOS_mystrnicmp((const char *)key, text, length) == 0)
            return -1;
    }
    return 0;
}

/* What is wanted of an object: members as scalars, members as JSON, members that must not occur, and members of an inner object. */
typedef struct Wanted {
    PyObject *plain;
    PyObject *raw;
    PyObject *never;
    PyObject *inner_name; /* a tuple: its name, or empty */
    PyObject *inner;      /* the capsule of what is wanted of it, or None */
    uint64_t lengths;     /* bit n: one of these names has n characters */
} Wanted;

#define CAPSULE "router.openai.members.wanted"

static int read_object(Reader *reader, const Wanted *wanted, int depth, PyObject *members);

/* Read a value, with the results of `read_object`: `value` is then a new reference, or NULL unless the result is 1. */
static int read_value(Reader *reader, const Wanted *within, int raw, int depth, PyObject **value)
{
    const unsigned char *from = reader->at;
    if (within != NULL && next_is(reader, '{')) {
        *value = PyDict_New();
        int read = *value == NULL ? -1 : read_object(reader, within, depth, *value);
        if (read <= 0)
            Py_CLEAR(*value);
        return read;
    }
    if (!skip_value(reader, depth))
        return 0;
    if (raw)
        *value = PyBytes_FromStringAndSize((const char *)from, reader->at - from);
    else if (within == NULL || *from == 'n')
        *value = scalar(from, reader->at);
    if (*value != NULL)
        return 1;
    return PyErr_Occurred() ? -1 : 0;
}

/* Read one member into `members`, with the results of `read_object`. */
static int read_member(Reader *reader, const Wanted *wanted, int depth, PyObject *members)
{
    int escaped = 0, plain = 0, raw = 0, inner = 0;
    PyObject *name = NULL, *value = NULL;
    if (!next_is(reader, '"'))
        return 0;
    const unsigned char *key = ++reader->at;
    if (!skip_string(reader, &escaped) || escaped)
        return 0;
    Py_ssize_t length = reader->at - key - 1;
    skip_spaces(reader);
    if (!next_is(reader, ':'))
        return 0;
    reader->at++;
    skip_spaces(reader);
    if (length < MAX_NAME && wanted->lengths >> length & 1) {
        plain = find(key, length, wanted->plain, &name);
        raw = plain ? 0 : find(key, length, wanted->raw, &name);
        inner = plain || raw ? 0 : find(key, length, wanted->inner_name, &name);
        if (plain < 0 || raw < 0 || inner < 0 || (name == NULL && find(key, length, wanted->never, &name)))
            return 0;
    }
    if (name == NULL)
        return skip_value(reader, depth - 1);
    const Wanted *within = inner ? PyCapsule_GetPointer(wanted->inner, CAPSULE) : NULL;
    int read = read_value(reader, within, raw, depth - 1, &value);
    if (read <= 0)
        return read;
    Py_ssize_t others = PyDict_GET_SIZE(members);
    int failed = PyDict_SetItem(members, name, value);
    Py_DECREF(value);
    return failed ? -1 : PyDict_GET_SIZE(members) > others;
}

/* Read an object into `members`: 1 if it was read, 0 if it is in doubt, -1 with an exception. */
static int read_object(Reader *reader, const Wanted *wanted, int depth, PyObject *members)
{
    int more = enter(reader, '{', '}');
    while (more > 0) {
        int read = read_member(reader, wanted, depth, members);
        if (read <= 0)
            return read;
        more = go_on(reader, '}');
    }
    return more == 0;
}

/* Read a whole body into `members`, with the results of `read_object`. */
static int read_body(Reader *reader, const Wanted *wanted, PyObject *members)
{
    skip_spaces(reader);
    int read = read_object(reader, wanted, MAX_DEPTH, members);
    skip_spaces(reader);
    return read > 0 && reader->at < reader->end ? 0 : read;
}

/* Add the lengths of names; return whether they are a tuple of ASCII texts shorter than MAX_NAME. */
static int add_lengths(PyObject *names, uint64_t *lengths)
{
    if (!PyTuple_Check(names))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (!PyUnicode_Check(name) || !PyUnicode_IS_COMPACT_ASCII(name) || PyUnicode_GET_LENGTH(name) >= MAX_NAME)
            return 0;
        *lengths |= UINT64_C(1) << PyUnicode_GET_LENGTH(name);
    }
    return 1;
}

static void forget(PyObject *capsule)
{
    Wanted *made = PyCapsule_GetPointer(capsule, CAPSULE);
    Py_XDECREF(made->plain);
    Py_XDECREF(made->raw);
    Py_XDECREF(made->never);
    Py_XDECREF(made->inner_name);
    Py_XDECREF(made->inner);
    PyMem_Free(made);
}

static PyObject *wanted(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    uint64_t lengths = 0;
    int valid = count == 5 && (PyCapsule_IsValid(args[4], CAPSULE) || args[4] == Py_None);
    for (int i = 0; valid && i < 4; i++)
        valid = add_lengths(args[i], &lengths);
    if (!valid || PyTuple_GET_SIZE(args[3]) != (args[4] != Py_None)) {
        PyErr_SetString(PyExc_TypeError, "wanted(plain, raw, never, inner_name: tuples of short ASCII names, inner: wanted or None)");
        return NULL;
    }
    Wanted *made = PyMem_Malloc(sizeof *made);
    if (made == NULL)
        return PyErr_NoMemory();
    *made = (Wanted){args[0], args[1], args[2], args[3], args[4], lengths};
    PyObject *capsule = PyCapsule_New(made, CAPSULE, forget);
    if (capsule == NULL)
        PyMem_Free(made);
    for (int i = 0; capsule != NULL && i < count; i++)
        Py_INCREF(args[i]);
    return capsule;
}

static PyObject *members(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 2 || !PyBytes_Check(args[0]) || !PyCapsule_IsValid(args[1], CAPSULE)) {
        PyErr_SetString(PyExc_TypeError, "members(body: bytes, wanted: what `wanted` returns)");
        return NULL;
    }
    const Wanted *wanted = PyCapsule_GetPointer(args[1], CAPSULE);
    const unsigned char *body = (const unsigned char *)PyBytes_AS_STRING(args[0]);
    Reader reader = {body, body + PyBytes_GET_SIZE(args[0]), 0, 0, 0};
    PyObject *found = PyDict_New();
    if (found == NULL)
        return NULL;
    int read = read_body(&reader, wanted, found);
    if (read > 0 && reader.high & NOT_ASCII) {
        PyObject *text = PyUnicode_DecodeUTF8((const char *)body, reader.end - body, "strict");
        read = text == NULL ? -1 : 1;
        Py_XDECREF(text);
    }
    if (read > 0)
        return found;
    Py_DECREF(found);
    if (read < 0 && !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
        return NULL;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* Return JSON that was skipped before, without its spaces. */
static PyObject *compact(const unsigned char *from, const unsigned char *end)
{
    int escaped;
    PyObject *found = PyBytes_FromStringAndSize(NULL, end - from);
    if (found == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(found);
    Reader reader = {from, end, 0, 0, 0};
    while (reader.at < end) {
        const unsigned char *kept = reader.at++;
        if (*kept == '"')
            skip_string(&reader, &escaped);
        else
            while (reader.at < end && strchr("\" \n\r\t", *reader.at) == NULL)
                reader.at++;
        memcpy(to, kept, reader.at - kept);
        to += reader.at - kept;
        skip_spaces(&reader);
    }
    _PyBytes_Resize(&found, to - PyBytes_AS_STRING(found));
    return found;
}

/* Return an element of an array and its member of the only plain name, if it is an object that has it; NULL with an exception, or
   without one if the element is in doubt. */
static PyObject *element(Reader *reader, const Wanted *wanted)
{
    const unsigned char *from = reader->at;
    PyObject *members = NULL, *member = Py_None;
    reader->spaced = 0;
    if (next_is(reader, '{')) {
        members = PyDict_New();
        if (members == NULL)
            return NULL;
        if (read_object(reader, wanted, MAX_DEPTH, members) <= 0) {
            Py_DECREF(members);
            return NULL;
        }
        member = PyDict_GetItemWithError(members, PyTuple_GET_ITEM(wanted->plain, 0));
        if (member == NULL)
            member = Py_None;
    } else if (!skip_value(reader, MAX_DEPTH - 1)) {
        return NULL;
    }
    PyObject *found = NULL, *json = reader->spaced ? compact(from, reader->at)
                                                   : PyBytes_FromStringAndSize((const char *)from, reader->at - from);
    if (json != NULL)
        found = PyTuple_Pack(2, json, member);
    Py_XDECREF(json);
    Py_XDECREF(members);
    return found;
}

/* Append all elements of an array, at most `most`; return 0, maybe with an exception, if that is impossible. */
static int add_elements(Reader *reader, const Wanted *wanted, Py_ssize_t most, PyObject *found)
{
    skip_spaces(reader);
    int more = enter(reader, '[', ']');
    while (more > 0) {
        PyObject *next = PyList_GET_SIZE(found) < most ? element(reader, wanted) : NULL;
        if (next == NULL)
            return 0;
        int failed = PyList_Append(found, next);
        Py_DECREF(next);
        if (failed)
            return 0;
        more = go_on(reader, ']');
    }
    if (more < 0)
        return 0;
    skip_spaces(reader);
    return reader->at == reader->end && !reader->loose;
}

static PyObject *elements(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    const Wanted *wanted = NULL;
    if (count == 3 && PyBytes_Check(args[0]) && PyCapsule_IsValid(args[1], CAPSULE) && PyLong_Check(args[2]))
        wanted = PyCapsule_GetPointer(args[1], CAPSULE);
    if (wanted == NULL || PyTuple_GET_SIZE(wanted->plain) != 1) {
        PyErr_SetString(PyExc_TypeError, "elements(array: bytes, wanted: what `wanted` returns for one plain name, most: int)");
        return NULL;
    }
    Py_ssize_t most = PyLong_AsSsize_t(args[2]);
    if (most == -1 && PyErr_Occurred())
        return NULL;
    PyObject *found = PyList_New(0);
    if (found == NULL)
        return NULL;
    const unsigned char *array = (const unsigned char *)PyBytes_AS_STRING(args[0]);
    Reader reader = {array, array + PyBytes_GET_SIZE(args[0]), 0, 0, 0};
    if (add_elements(&reader, wanted, most, found))
        return found;
    Py_DECREF(found);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
        return NULL;
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"elements", (PyCFunction)(void (*)(void))elements, METH_FASTCALL, NULL},
    {"members", (PyCFunction)(void (*)(void))members, METH_FASTCALL, NULL},
    {"wanted", (PyCFunction)(void (*)(void))wanted, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "members", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit_members(void)
{
    return PyModuleDef_Init(&definition);
}
