/* The table of 64-bit words with which Python describes a call to the core.
 *
 * The fields of the head come first, in the order of CALL_FIELDS; Python reads it as
 * CALL_FIELDS and CALL_FORMAT of the module. Then `num_lengths` lengths follow, and the
 * arrays up to the end of the table. For each array the table has the number of axes that
 * members must agree on, their lengths, the addresses of `num_sources` rows to read, and
 * the addresses of `num_targets` rows to write: none, one for all sources, or one for each.
 */
#ifndef POPDIST_CALL_TABLE_H
#define POPDIST_CALL_TABLE_H

#include "python/binding.h"

/* A field's type, its format in Python's struct, and its name. */
#define CALL_FIELDS(FIELD)                                                             \
    FIELD(int64_t, "q", operation)                                                     \
    FIELD(int64_t, "q", dtype)                                                         \
    FIELD(int64_t, "q", reduction)                                                     \
    FIELD(int64_t, "q", algorithm) /* -1 to choose by size */                          \
    FIELD(int64_t, "q", root)      /* the other member of a message; -1 for none */    \
    FIELD(int64_t, "q", prelude_to)                                                    \
    FIELD(uint64_t, "Q", name)                                                         \
    FIELD(uint64_t, "Q", num_lengths) /* bytes of the members' shares in an exchange */ \
    FIELD(uint64_t, "Q", num_sources)                                                  \
    FIELD(uint64_t, "Q", num_targets)

typedef struct {
#define FIELD(type, format, name) type name;
    CALL_FIELDS(FIELD)
#undef FIELD
} call_head;

/* Add CALL_FIELDS and CALL_FORMAT to the module. */
bool add_call_fields(PyObject *module);

#endif
