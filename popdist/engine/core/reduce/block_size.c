#include "reduce/block_size.h"

/* The largest array of the first class, in bytes; in each next class it is four times as
 * large. */
enum { FIRST_CLASS = 1 << 20 };

const trial_kind block_sizes = {
    .choices = BLOCK_SIZES,
    .unsettled = 1,
    .compared = 6,
    .clearly_less = 0.95,
    .shortest_pause = 8,
    .longest_pause = 256,
    .most_pause = 4096,
};

/* Return the class of arrays of that many bytes, -1 if they fit the smallest block. */
static int block_class_of(const comm *c, uint64_t bytes)
{
    int size_class = 0;
    if (c->size == 1 || bytes <= block_bytes_at(&c->agreed, 0))
        return -1;
    for (uint64_t most = FIRST_CLASS; bytes > most && size_class < BLOCK_CLASSES - 1; most *= 4)
        size_class++;
    return size_class;
}

static trial next_trial(comm *c, int size_class)
{
    trial_costs *costs = &c->block_costs[size_class];
    return (trial){&block_sizes, FIRST_BLOCK_SIZE, &c->head->block_plans[size_class], costs,
                   costs->calls};
}

uint64_t block_size_begin(block_trial *t, comm *c, uint64_t bytes)
{
    *t = (block_trial){.c = c, .size_class = block_class_of(c, bytes)};
    if (t->size_class < 0)
        return c->agreed.block_bytes;
    t->choice = next_trial(c, t->size_class);
    t->choice.costs->calls++;
    return block_bytes_at(&c->agreed, trial_choice(&t->choice));
}

uint64_t block_size_usual(comm *c, uint64_t bytes)
{
    const int size_class = block_class_of(c, bytes);
    if (size_class < 0)
        return c->agreed.block_bytes;
    const trial choice = next_trial(c, size_class);
    return block_bytes_at(&c->agreed, trial_usual(&choice));
}

void block_trial_begin(block_trial *t)
{
    if (t->size_class >= 0 && t->c->rank == 0)
        t->began = now_ns();
}

void block_trial_pause(block_trial *t)
{
    if (t->began)
        t->spent_ns += now_ns() - t->began;
    t->began = 0;
}

void block_trial_end(block_trial *t, uint64_t bytes)
{
    block_trial_pause(t);
    if (!t->spent_ns || !trial_note(&t->choice, (double)t->spent_ns / (double)bytes))
        return;
    /* Begin with the new size in the classes of larger arrays. */
    for (int i = t->size_class + 1; i < BLOCK_CLASSES; i++) {
        const trial larger = next_trial(t->c, i);
        trial_begin_with(&larger, trial_usual(&t->choice));
    }
}
