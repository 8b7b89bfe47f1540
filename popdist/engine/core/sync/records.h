/* Records of calls, in a file that is mapped into memory: they stay in the file, however
 * the process ends. popdist/environment.py describes the file for its readers. */
#ifndef POPDIST_RECORDS_H
#define POPDIST_RECORDS_H

#include "shm/arena.h"

enum {
    /* Records are mapped so many at a time: 1 MiB. */
    SEGMENT_RECORDS = 16384,
    RECORDS_VERSION = 2,
    /* The status of a call in progress. */
    IN_PROGRESS = 255,
};

/* "popcalls" */
#define RECORDS_MAGIC UINT64_C(0x736c6c6163706f70)

typedef struct {
    uint64_t began_ns, ended_ns; /* by CLOCK_MONOTONIC; the latter 0 while it goes on */
    uint64_t waited_ns;          /* the part of it spent waiting for other members */
    uint64_t bytes;              /* of this member's rows */
    uint64_t number;             /* of the call in its group, the same on all members */
    uint64_t name;               /* as in a descriptor */
    uint32_t group;              /* as the process numbers its groups */
    int32_t root;
    uint8_t operation, dtype, reduction, algorithm, status;
    uint8_t is_described; /* the call's description is known */
    uint8_t prelude_to;
    uint8_t unused;
} call_record;

_Static_assert(sizeof(call_record) == CACHE_LINE, "a record fills one line");

/* The file's header, in the place of the first record. */
typedef struct {
    uint64_t magic;
    uint32_t version;
    int32_t pid;
    uint64_t records; /* so far, with this one */
    uint64_t lost;    /* calls for which there was no room left */
    uint64_t monotonic_ns, realtime_ns; /* the clocks when it was made */
    uint64_t unused[2];
} record_header;

_Static_assert(sizeof(record_header) == sizeof(call_record), "it takes a record's place");

typedef struct {
    int fd; /* -1 after recorder_close() */
    uint64_t most; /* records */
    record_header *head;
    call_record *segment; /* the segment of the next record */
} recorder;

/* Record in an empty file; false, with errno, if it cannot be mapped. */
bool recorder_open(recorder *r, int fd, uint64_t most);

/* Stop recording. The mapped records stay mapped: calls may be in progress. */
void recorder_close(recorder *r);

/* Begin the record of a call of a group; NULL where there is no room. One thread at a
 * time. */
call_record *record_begin(recorder *r, uint32_t group, uint64_t bytes);

void record_description(call_record *r, const descriptor *d);

/* The call is over; `algorithm` is the one that carried a reduction out. */
void record_end(call_record *r, status s, algorithm how);

#endif
