#include "reduce/trial.h"

enum {
    /* Calls from one trial to the next: few at first, then more and more while no other
     * choice is better. */
    SHORTEST_PAUSE = 8,
    LONGEST_PAUSE = 256,
    /* The longest pause after a trial of a much worse choice. */
    MOST_PAUSE = 4096,
};

/* A choice becomes the usual one if it takes less than that share of the time. */
static const double CLEARLY_LESS = 0.95;

/* Trials of slower choices may cost that share of the time. */
static const double BEARABLE = 0.015;

/* In the first call of a trial, the caches are still as the usual choice leaves them. */
static unsigned trial_length(const trial_kind *kind)
{
    return kind->compared + 1;
}

trial_plan trial_plan_of(const trial_kind *kind, uint64_t encoded)
{
    if (encoded == 0)
        return (trial_plan){kind->compared, trial_length(kind), kind->first,
                            (kind->first + 1) % kind->choices};
    return (trial_plan){
        .from = encoded >> 16,
        .length = encoded >> 8 & 0xff,
        .usual = encoded >> 4 & 0xf,
        .other = encoded & 0xf,
    };
}

uint64_t trial_plan_encoded(trial_plan p)
{
    return p.from << 16 | p.length << 8 | p.usual << 4 | p.other;
}

unsigned planned_choice(const trial_plan *p, uint64_t call)
{
    if (call < p->from)
        return p->usual;
    return !p->length || call < p->from + p->length ? p->other : p->usual;
}

/* The next choice to try. All are tried in turn: a call may take longer with the next
 * larger size of blocks, and less time with the one after it. */
static unsigned next_choice(unsigned tried, unsigned usual, unsigned choices)
{
    const unsigned next = (tried + 1) % choices;
    return next == usual ? (next + 1) % choices : next;
}

static void plan_trial(const trial_kind *kind, trial_costs *costs, trial_plan *p,
                       uint64_t call, uint64_t pause)
{
    *p = (trial_plan){.from = call + NOTICE + pause,
                      .length = trial_length(kind),
                      .usual = p->usual,
                      .other = next_choice(costs->last_tried, p->usual, kind->choices)};
    costs->last_tried = p->other;
    costs->usual.count = costs->tried.count = 0;
}

static void add_cost(call_costs *costs, double ns)
{
    unsigned place = costs->count++;
    for (; place > 0 && costs->ns[place - 1] > ns; place--)
        costs->ns[place] = costs->ns[place - 1];
    costs->ns[place] = ns;
}

/* Return the time of a trial's calls divided by the time of calls before it, 1 without
 * any. */
static double ratio_of(const trial_kind *kind, const trial_costs *costs)
{
    const call_costs *usual = &costs->usual, *tried = &costs->tried;
    if (!usual->count || !tried->count)
        return 1;
    return kind->by_median ? tried->ns[tried->count / 2] / usual->ns[usual->count / 2]
                           : tried->ns[0] / usual->ns[0];
}

static void conclude(const trial_kind *kind, trial_costs *costs, trial_plan *p,
                     uint64_t call)
{
    const double ratio = ratio_of(kind, costs);
    if (ratio < CLEARLY_LESS) {
        *p = (trial_plan){call + NOTICE, 0, p->usual, p->other};
        costs->pause = costs->failures = 0;
        return;
    }
    /* Until all have been tried, trials follow each other soon. */
    costs->pause = ++costs->failures < kind->choices ? SHORTEST_PAUSE : 2 * costs->pause;
    if (costs->pause > LONGEST_PAUSE)
        costs->pause = LONGEST_PAUSE;
    const double lost = trial_length(kind) * (ratio - 1) / BEARABLE;
    if (costs->failures >= kind->choices && lost > (double)costs->pause)
        costs->pause = lost < MOST_PAUSE ? (uint64_t)lost : MOST_PAUSE;
    plan_trial(kind, costs, p, call, costs->pause);
}

bool is_compared(const trial_kind *kind, const trial_plan *p, uint64_t call)
{
    return p->length ? call + kind->compared >= p->from && call != p->from : call >= p->from;
}

bool note_cost(const trial_kind *kind, trial_costs *costs, trial_plan *p, uint64_t call,
               double ns_a_byte)
{
    if (!is_compared(kind, p, call))
        return false;
    if (!p->length) {
        p->usual = p->other;
        plan_trial(kind, costs, p, call, kind->compared);
        return true;
    }
    const uint64_t end = p->from + p->length;
    if (call < end)
        add_cost(call > p->from ? &costs->tried : &costs->usual, ns_a_byte);
    if (call + 1 < end)
        return false;
    conclude(kind, costs, p, call);
    return true;
}
