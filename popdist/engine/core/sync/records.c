#define _GNU_SOURCE
#include "sync/records.h"
#include "sync/waiting.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SEGMENT_BYTES = SEGMENT_RECORDS * (int)sizeof(call_record) };

/* Map the segment that begins with this record. Room is allocated for it first: on a
 * full disk, a write to the mapping would end the process. */
static bool map_segment(recorder *r, uint64_t first)
{
    const off_t begin = (off_t)(first * sizeof(call_record));
    const int failure = posix_fallocate(r->fd, begin, SEGMENT_BYTES);
    if (failure) {
        errno = failure;
        return false;
    }
    void *at = mmap(NULL, SEGMENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, begin);
    if (at == MAP_FAILED)
        return false;
    r->segment = at;
    return true;
}

static uint64_t realtime_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool recorder_open(recorder *r, int fd, uint64_t most)
{
    *r = (recorder){.fd = fd, .most = most};
    if (!map_segment(r, 0))
        return false;
    r->head = (record_header *)(void *)r->segment;
    *r->head = (record_header){
        .version = RECORDS_VERSION,
        .pid = getpid(),
        .records = 1,
        .monotonic_ns = now_ns(),
        .realtime_ns = realtime_ns(),
    };
    __atomic_store_n(&r->head->magic, RECORDS_MAGIC, __ATOMIC_RELEASE);
    return true;
}

void recorder_close(recorder *r)
{
    if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
}

call_record *record_begin(recorder *r, uint32_t group, uint64_t bytes)
{
    const uint64_t index = r->head->records;
    const uint64_t place = index % SEGMENT_RECORDS;
    if (r->fd < 0 || index >= r->most || (!place && !map_segment(r, index))) {
        r->head->lost++;
        return NULL;
    }
    r->head->records = index + 1;
    call_record *record = &r->segment[place];
    record->group = group;
    record->bytes = bytes;
    record->status = IN_PROGRESS;
    record->began_ns = now_ns();
    return record;
}

void record_description(call_record *r, const descriptor *d)
{
    r->number = d->number;
    r->name = d->name;
    r->root = d->root;
    r->operation = d->operation;
    r->dtype = d->dtype;
    r->reduction = d->reduction;
    r->algorithm = d->algorithm;
    r->prelude_to = d->prelude_to;
    r->is_described = 1;
}

void record_end(call_record *r, status s, algorithm how)
{
    if (r->operation == ALL_REDUCE || r->operation == REDUCE)
        r->algorithm = (uint8_t)how;
    r->status = (uint8_t)s;
    r->ended_ns = now_ns();
}
