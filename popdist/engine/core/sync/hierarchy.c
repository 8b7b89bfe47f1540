#include "sync/hierarchy.h"

#include <string.h>

typedef struct {
    int above[MAX_MEMBERS];
    bool is_first[MAX_MEMBERS]; /* of its cache */
} links_above;

/* The members of a cache are numbered by their ranks, and so are the first ones of all
 * caches. Among these, the one above number n is number (n - 1) / MOST_BELOW. */
static int find_above(const links_above *l, const uint8_t *cache_of, int rank)
{
    int lower[MAX_MEMBERS], count = 0;
    for (int q = 0; q < rank; q++)
        if (l->is_first[rank] ? l->is_first[q] : cache_of[q] == cache_of[rank])
            lower[count++] = q;
    return count ? lower[(count - 1) / MOST_BELOW] : -1;
}

static void find_all_above(links_above *l, const uint8_t *cache_of, int size)
{
    bool seen[UINT8_MAX + 1] = {false};
    for (int q = 0; q < size; q++) {
        l->is_first[q] = !seen[cache_of[q]];
        seen[cache_of[q]] = true;
        l->above[q] = find_above(l, cache_of, q);
    }
}

/* The one above a member has a lower rank. */
static void find_places(hierarchy *h, const links_above *l, int size)
{
    int next[MAX_MEMBERS];
    for (int q = size - 1; q > 0; q--)
        h->members[l->above[q]] += ++h->members[q];
    h->members[0]++;
    for (int q = 1; q < size; q++) {
        const int above = l->above[q];
        h->top[q] = above ? h->top[above] : q;
        h->place[q] = above ? next[above] : 0;
        next[q] = h->place[q] + 1;
        if (above)
            next[above] += h->members[q];
        else if (h->members[q] > h->largest)
            h->largest = h->members[q];
    }
}

void hierarchy_make(hierarchy *h, const uint8_t *cache_of, int rank, int size)
{
    links_above l;
    memset(h, 0, sizeof *h);
    find_all_above(&l, cache_of, size);
    h->above = l.above[rank];
    for (int same = 1; same >= 0; same--)
        for (int q = rank + 1; q < size; q++)
            if (l.above[q] == rank && (cache_of[q] == cache_of[rank]) == same)
                h->below[h->below_count++] = q;
    find_places(h, &l, size);
}
