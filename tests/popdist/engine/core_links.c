#include "core_links.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The error for a message that is longer than its receiver's memory. */
enum { TRUNCATED = 15 };

/* One end of a message. */
typedef struct end end;

struct end {
    const void *data; /* that is sent */
    void *memory;     /* of the receiver */
    uint64_t bytes;
    int from, to, tag;
    bool sends, tested, done;
    end *other;
    end *next; /* of those whose other ends have not come, in their order */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static end *alone;

/* Find the other end of a message, which waits no longer alone; or wait for it. */
static void meet(end *one)
{
    end **at = &alone;
    while (*at && ((*at)->sends == one->sends || (*at)->from != one->from
                   || (*at)->to != one->to || (*at)->tag != one->tag))
        at = &(*at)->next;
    if (!*at) {
        /* The last one, behind those of its own kind. */
        *at = one;
        return;
    }
    one->other = *at;
    one->other->other = one;
    *at = one->other->next;
    one->other->next = NULL;
}

static int start(end given, void **request)
{
    end *one = malloc(sizeof *one);
    if (!one)
        return 1;
    *one = given;
    pthread_mutex_lock(&lock);
    meet(one);
    pthread_mutex_unlock(&lock);
    *request = one;
    return 0;
}

static int rank_of(const void *own)
{
    return (int)(intptr_t)own - 1;
}

static int fake_send(void *own, const void *data, uint64_t bytes, int to, int tag,
                     void **request)
{
    return start((end){.data = data, .bytes = bytes, .from = rank_of(own), .to = to,
                       .tag = tag, .sends = true}, request);
}

static int fake_receive(void *own, void *data, uint64_t bytes, int from, int tag,
                        void **request)
{
    return start((end){.memory = data, .bytes = bytes, .from = from, .to = rank_of(own),
                       .tag = tag}, request);
}

/* Copy a message to its receiver's memory; return 0 or an error. */
static int deliver(end *one)
{
    const end *source = one->sends ? one : one->other;
    const end *target = one->sends ? one->other : one;
    if (source->bytes > target->bytes)
        return TRUNCATED;
    if (source->bytes)
        memcpy(target->memory, source->data, source->bytes);
    one->done = one->other->done = true;
    return 0;
}

static int fake_test(void *own, void **request, bool *done)
{
    end *one = *request;
    int error = 0;
    (void)own;
    pthread_mutex_lock(&lock);
    if (one->other && one->tested && !one->done)
        error = deliver(one);
    one->tested = true;
    *done = one->done;
    pthread_mutex_unlock(&lock);
    if (*done)
        free(one);
    return error;
}

static bool fake_is_ready(void *own, int to)
{
    (void)own, (void)to;
    return true;
}

const link_calls fake_calls = {fake_send, fake_receive, fake_test, fake_is_ready, NULL};
