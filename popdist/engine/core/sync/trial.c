#include "sync/trial.h"

/* Trials of slower choices may cost that share of the time. */
static const double BEARABLE = 0.015;

/* `other` in the calls from `from` on, `length` of them or all to come if it is 0;
 * `usual` in the rest. */
typedef struct {
    uint64_t from;
    unsigned length, usual, other;
} trial_plan;

static unsigned trial_length(const trial_kind *kind)
{
    return kind->unsettled + kind->compared;
}

static trial_plan plan_of(const trial *t)
{
    const uint64_t encoded = atomic_load_explicit(t->plan, memory_order_relaxed);
    if (encoded == 0)
        return (trial_plan){t->kind->warm_up + t->kind->compared, trial_length(t->kind),
                            t->first, (t->first + 1) % t->kind->choices};
    return (trial_plan){
        .from = encoded >> 16,
        .length = encoded >> 8 & 0xff,
        .usual = encoded >> 4 & 0xf,
        .other = encoded & 0xf,
    };
}

/* Relaxed: our next announcement makes the plan visible to all members of that call, and
 * the plan takes effect after it. */
static void publish(const trial *t, trial_plan p)
{
    atomic_store_explicit(t->plan, p.from << 16 | p.length << 8 | p.usual << 4 | p.other,
                          memory_order_relaxed);
}

unsigned trial_choice(const trial *t)
{
    const trial_plan p = plan_of(t);
    if (t->call < p.from)
        return p.usual;
    return !p.length || t->call < p.from + p.length ? p.other : p.usual;
}

unsigned trial_usual(const trial *t)
{
    const trial_plan p = plan_of(t);
    return p.length ? p.usual : p.other;
}

/* The next choice to try. All are tried in turn: a call may take longer with the next
 * larger size of blocks, and less time with the one after it. */
static unsigned next_choice(unsigned tried, unsigned usual, unsigned choices)
{
    const unsigned next = (tried + 1) % choices;
    return next == usual ? (next + 1) % choices : next;
}

static void plan_trial(const trial *t, unsigned usual, uint64_t pause)
{
    trial_costs *costs = t->costs;
    costs->last_tried = next_choice(costs->last_tried, usual, t->kind->choices);
    costs->usual.count = costs->tried.count = 0;
    publish(t, (trial_plan){t->call + NOTICE + pause, trial_length(t->kind), usual,
                            costs->last_tried});
}

static void add_cost(call_costs *costs, double ns)
{
    unsigned place = costs->count++;
    for (; place > 0 && costs->ns[place - 1] > ns; place--)
        costs->ns[place] = costs->ns[place - 1];
    costs->ns[place] = ns;
}

/* Return the time of a trial's calls divided by the time of calls before it, 1 if too few
 * were measured. */
static double ratio_of(const trial *t)
{
    const call_costs *usual = &t->costs->usual, *tried = &t->costs->tried;
    const unsigned least = (t->kind->compared + 1) / 2;
    if (usual->count < least || tried->count < least)
        return 1;
    return t->kind->by_median ? tried->ns[tried->count / 2] / usual->ns[usual->count / 2]
                              : tried->ns[0] / usual->ns[0];
}

/* Return whether the tried choice becomes the usual one; else plan the next trial. */
static bool conclude(const trial *t, const trial_plan *p)
{
    const trial_kind *kind = t->kind;
    trial_costs *costs = t->costs;
    const double ratio = ratio_of(t);
    if (ratio < kind->clearly_less) {
        publish(t, (trial_plan){t->call + NOTICE, 0, p->usual, p->other});
        costs->pause = costs->failures = 0;
        return true;
    }
    /* Until all have been tried, trials follow each other soon. */
    const bool tried_all = ++costs->failures >= kind->choices;
    costs->pause = tried_all ? 2 * costs->pause : kind->shortest_pause;
    if (costs->pause > kind->longest_pause)
        costs->pause = kind->longest_pause;
    const double lost = trial_length(kind) * (ratio - 1) / BEARABLE;
    if (tried_all && lost > (double)costs->pause)
        costs->pause = lost < (double)kind->most_pause ? (uint64_t)lost : kind->most_pause;
    plan_trial(t, p->usual, costs->pause);
    return false;
}

static bool compares(const trial *t, const trial_plan *p)
{
    if (!p->length)
        return t->call >= p->from;
    return t->call + t->kind->compared >= p->from
           && (t->call < p->from || t->call >= p->from + t->kind->unsettled);
}

bool trial_compares(const trial *t)
{
    const trial_plan p = plan_of(t);
    return compares(t, &p);
}

bool trial_note(const trial *t, double ns_a_byte)
{
    const trial_plan p = plan_of(t);
    if (!compares(t, &p))
        return false;
    if (!p.length) {
        /* The next trial comes soon, in case noise led to this choice. */
        const unsigned compared = t->kind->compared;
        plan_trial(t, p.other,
                   t->kind->shortest_pause > compared ? t->kind->shortest_pause : compared);
        return false;
    }
    const uint64_t end = p.from + p.length;
    if (t->call < end)
        add_cost(t->call < p.from ? &t->costs->usual : &t->costs->tried, ns_a_byte);
    return t->call + 1 >= end && conclude(t, &p);
}

void trial_begin_with(const trial *t, unsigned choice)
{
    if (t->costs->calls == 0)
        publish(t, (trial_plan){NOTICE, 0, t->first, choice});
}
