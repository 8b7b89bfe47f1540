#include "reduce/block_size.h"

/* The largest array of the first class, in bytes; in each next class it is four times as
 * large. */
enum { FIRST_CLASS = 1 << 20 };

const trial_kind block_sizes = {
    .choices = BLOCK_SIZES, .first = FIRST_BLOCK_SIZE, .compared = 6};

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

static trial_plan plan_of_class(const comm *c, int size_class)
{
    return trial_plan_of(&block_sizes,
                         atomic_load_explicit(&c->head->block_plans[size_class],
                                              memory_order_relaxed));
}

uint64_t block_size_begin(block_trial *t, comm *c, uint64_t bytes)
{
    *t = (block_trial){.c = c, .size_class = block_class_of(c, bytes)};
    if (t->size_class < 0)
        return c->agreed.block_bytes;
    t->call = c->block_costs[t->size_class].calls++;
    const trial_plan p = plan_of_class(c, t->size_class);
    return block_bytes_at(&c->agreed, planned_choice(&p, t->call));
}

uint64_t usual_block_bytes(const comm *c, uint64_t bytes)
{
    const int size_class = block_class_of(c, bytes);
    if (size_class < 0)
        return c->agreed.block_bytes;
    const trial_plan p = plan_of_class(c, size_class);
    return block_bytes_at(&c->agreed, p.length ? p.usual : p.other);
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

/* Begin with that size in the classes of larger arrays, if they have had no calls.
 * Another member may have begun the first call of such a class: that call keeps its
 * size. */
static void begin_larger_classes(const block_trial *t, unsigned size)
{
    const trial_plan p = {NOTICE, 0, FIRST_BLOCK_SIZE, size};
    for (int i = t->size_class + 1; i < BLOCK_CLASSES; i++)
        if (t->c->block_costs[i].calls == 0)
            atomic_store_explicit(&t->c->head->block_plans[i], trial_plan_encoded(p),
                                  memory_order_relaxed);
}

void block_trial_end(block_trial *t, uint64_t bytes)
{
    block_trial_pause(t);
    if (!t->spent_ns)
        return;
    trial_plan p = plan_of_class(t->c, t->size_class);
    const double cost = (double)t->spent_ns / (double)bytes;
    if (!note_cost(&block_sizes, &t->c->block_costs[t->size_class], &p, t->call, cost))
        return;
    /* Relaxed: our next announcement makes the plan visible to all members of that call,
     * and the plan takes effect after it. */
    atomic_store_explicit(&t->c->head->block_plans[t->size_class],
                          trial_plan_encoded(p), memory_order_relaxed);
    if (!p.length)
        begin_larger_classes(t, p.other);
}
