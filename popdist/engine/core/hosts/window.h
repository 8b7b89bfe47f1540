/* A range of the long row of a call, as a call of its own. */
#ifndef POPDIST_WINDOW_H
#define POPDIST_WINDOW_H

#include "reduce/call.h"

typedef struct {
    const call *whole;
    call part;
    segment *segments;
    char **addresses; /* of all rows of all segments, read and written */
    cursor at;        /* where the last range began */
} window;

/* False if there is no memory. */
bool window_open(window *w, const call *whole);
void window_close(window *w);

/* Let the part be elements [begin, end). */
void window_move(window *w, uint64_t begin, uint64_t end);

#endif
