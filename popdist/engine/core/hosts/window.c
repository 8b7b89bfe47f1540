#include "hosts/window.h"

#include <stdlib.h>

bool window_open(window *w, const call *whole, uint32_t ranges)
{
    const uint32_t rows = whole->split->rows[whole->split->rank];
    const size_t many = (size_t)whole->count_of_arrays + ranges;
    *w = (window){.whole = whole, .view = *whole};
    w->arrays = calloc(many, sizeof *w->arrays);
    w->addresses = calloc(2 * many * rows, sizeof *w->addresses);
    w->view.arrays = w->arrays;
    return w->arrays && w->addresses;
}

void window_close(window *w)
{
    free(w->arrays);
    free(w->addresses);
}

void window_clear(window *w)
{
    w->view.total = 0;
    w->view.count_of_arrays = 0;
}

void window_append(window *w, uint64_t begin, uint64_t end)
{
    const call *k = w->whole;
    const uint32_t rows = k->split->rows[k->split->rank];
    const size_t element = element_bytes(k->type);
    char **to = w->addresses + 2 * (size_t)w->view.count_of_arrays * rows;
    w->view.total += end - begin;
    while (begin < end) {
        const piece p = call_piece_at(k, &w->at, begin, end);
        array_rows *s = &w->arrays[w->view.count_of_arrays++];
        *s = (array_rows){.count = p.count, .in = to, .out = p.s->out ? to + rows : NULL};
        for (uint32_t row = 0; row < rows; row++) {
            to[row] = p.s->in[row] + p.offset * element;
            to[rows + row] = p.s->out ? p.s->out[row] + p.offset * element : NULL;
        }
        to += 2 * rows;
        begin += p.count;
    }
}
