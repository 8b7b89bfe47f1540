/* Ranges of a call's long row, one after the other, as a separate call. */
#ifndef POPDIST_WINDOW_H
#define POPDIST_WINDOW_H

#include "reduce/call.h"

typedef struct {
    const call *whole;
    call view;
    array_rows *arrays;
    char **addresses; /* of all rows of all arrays, read and written */
    cursor at;        /* where the last range ended */
} window;

/* `ranges` is the most ranges at a time. False if there is no memory. */
bool window_open(window *w, const call *whole, uint32_t ranges);
void window_close(window *w);

/* Empty the view, and append elements [begin, end) to it. */
void window_clear(window *w);
void window_append(window *w, uint64_t begin, uint64_t end);

#endif
