#include "reduce/block_size.h"

enum {
    /* A trial is so many calls long, and the first one finds the caches as blocks of
     * the usual size have left them. The fastest of the others is compared with the
     * fastest of as many calls before the trial: the rest were held up. */
    TRIAL = 7,
    COMPARED = TRIAL - 1,
    /* A new plan holds from the call after the next one: a member that begins that call
     * has seen what member 0 did in the one between. */
    NOTICE = 2,
    /* Calls from one trial to the next: at first few, then ever more while no other size
     * is better. */
    SHORTEST_PAUSE = 8,
    LONGEST_PAUSE = 256,
    /* The longest one after a trial of a size that is much worse. */
    MOST_PAUSE = 1024,
    /* Of the classes, in bytes: an array in each is four times as large as below. */
    FIRST_CLASS = 1 << 20,
};

/* A size becomes the usual one if it takes less than that share of the time. */
static const double CLEARLY_LESS = 0.95;

/* Trials of what is slower may cost that much of the time. */
static const double BEARABLE = 0.015;

block_plan block_plan_of(uint64_t encoded)
{
    if (encoded == 0)
        return (block_plan){COMPARED, TRIAL, FIRST_BLOCK_SIZE, FIRST_BLOCK_SIZE + 1};
    return (block_plan){
        .from = encoded >> 16,
        .length = encoded >> 8 & 0xff,
        .usual = encoded >> 4 & 0xf,
        .other = encoded & 0xf,
    };
}

uint64_t block_plan_encoded(block_plan p)
{
    return p.from << 16 | p.length << 8 | p.usual << 4 | p.other;
}

unsigned planned_size(const block_plan *p, uint64_t call)
{
    if (call < p->from)
        return p->usual;
    return !p->length || call < p->from + p->length ? p->other : p->usual;
}

/* The next size to try. All are, one after the other: with the next larger one a call may
 * take longer, and less time with the one after that. */
static unsigned next_size(unsigned tried, unsigned usual)
{
    const unsigned next = (tried + 1) % BLOCK_SIZES;
    return next == usual ? (next + 1) % BLOCK_SIZES : next;
}

static void plan_trial(block_costs *costs, block_plan *p, uint64_t call, uint64_t pause)
{
    *p = (block_plan){.from = call + NOTICE + pause, .length = TRIAL, .usual = p->usual};
    p->other = next_size(costs->last_tried, p->usual);
    costs->last_tried = p->other;
    costs->usual = costs->tried = 0;
}

static void conclude(block_costs *costs, block_plan *p, uint64_t call)
{
    const bool is_seen = costs->usual > 0 && costs->tried > 0;
    if (is_seen && costs->tried < CLEARLY_LESS * costs->usual) {
        *p = (block_plan){call + NOTICE, 0, p->usual, p->other};
        costs->pause = costs->failures = 0;
        return;
    }
    /* Until all have been tried, trials follow each other soon. */
    costs->pause = ++costs->failures < BLOCK_SIZES ? SHORTEST_PAUSE : 2 * costs->pause;
    if (costs->pause > LONGEST_PAUSE)
        costs->pause = LONGEST_PAUSE;
    const double lost =
        is_seen ? TRIAL * (costs->tried / costs->usual - 1) / BEARABLE : 0;
    if (costs->failures >= BLOCK_SIZES && lost > (double)costs->pause)
        costs->pause = lost < MOST_PAUSE ? (uint64_t)lost : MOST_PAUSE;
    plan_trial(costs, p, call, costs->pause);
}

bool note_block_cost(block_costs *costs, block_plan *p, uint64_t call, double ns_a_byte)
{
    if (!p->length) {
        if (call < p->from)
            return false;
        p->usual = p->other;
        plan_trial(costs, p, call, COMPARED);
        return true;
    }
    if (call + COMPARED < p->from || call == p->from)
        return false;
    const uint64_t end = p->from + p->length;
    double *least = call > p->from ? &costs->tried : &costs->usual;
    if (call < end && (*least == 0 || ns_a_byte < *least))
        *least = ns_a_byte;
    if (call + 1 < end)
        return false;
    conclude(costs, p, call);
    return true;
}

/* Return the class of arrays of that many bytes, -1 where all sizes are the same. */
static int size_class_of(const comm *c, uint64_t bytes)
{
    int size_class = 0;
    if (c->size == 1 || bytes <= block_bytes_at(&c->agreed, 0))
        return -1;
    for (uint64_t most = FIRST_CLASS; bytes > most && size_class < BLOCK_CLASSES - 1; most *= 4)
        size_class++;
    return size_class;
}

static block_plan plan_of_class(const comm *c, int size_class)
{
    return block_plan_of(atomic_load_explicit(&c->head->block_plans[size_class],
                                              memory_order_relaxed));
}

uint64_t block_size_begin(block_trial *t, comm *c, uint64_t bytes)
{
    *t = (block_trial){.c = c, .size_class = size_class_of(c, bytes)};
    if (t->size_class < 0)
        return c->agreed.block_bytes;
    t->call = c->block_costs[t->size_class].calls++;
    const block_plan p = plan_of_class(c, t->size_class);
    return block_bytes_at(&c->agreed, planned_size(&p, t->call));
}

uint64_t usual_block_bytes(const comm *c, uint64_t bytes)
{
    const int size_class = size_class_of(c, bytes);
    if (size_class < 0)
        return c->agreed.block_bytes;
    const block_plan p = plan_of_class(c, size_class);
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

/* Let the classes of larger arrays of which there were none begin with that size. Another
 * member may have begun the first call of one: that has the size that it had. */
static void begin_larger_classes(const block_trial *t, unsigned size)
{
    const block_plan p = {NOTICE, 0, FIRST_BLOCK_SIZE, size};
    for (int i = t->size_class + 1; i < BLOCK_CLASSES; i++)
        if (t->c->block_costs[i].calls == 0)
            atomic_store_explicit(&t->c->head->block_plans[i], block_plan_encoded(p),
                                  memory_order_relaxed);
}

void block_trial_end(block_trial *t, uint64_t bytes)
{
    block_trial_pause(t);
    if (!t->spent_ns)
        return;
    block_plan p = plan_of_class(t->c, t->size_class);
    const double cost = (double)t->spent_ns / (double)bytes;
    if (!note_block_cost(&t->c->block_costs[t->size_class], &p, t->call, cost))
        return;
    /* Relaxed: what comes before our next announcement is seen by all that take part in
     * that call, and before the one after it nothing of this holds. */
    atomic_store_explicit(&t->c->head->block_plans[t->size_class],
                          block_plan_encoded(p), memory_order_relaxed);
    if (!p.length)
        begin_larger_classes(t, p.other);
}
