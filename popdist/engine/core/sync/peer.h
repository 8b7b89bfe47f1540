/* Another member's process, and how to detect that it no longer takes part. */
#ifndef POPDIST_PEER_H
#define POPDIST_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct {
    int pidfd;        /* -1 if there is none to watch */
    pid_t pid;        /* 0 if /proc does not show it */
    uint64_t started; /* as /proc shows it here: other time namespaces see another */
    uint64_t program; /* changes with exec(); 0 where the kernel does not show it */
    uint64_t next_look; /* when to read /proc though the pidfd shows no end */
} peer;

/* Begin to watch a process that is alive. */
void watch_peer(peer *p, int pidfd, pid_t pid);

/* Whether the process has ended, or runs another program since. */
bool peer_ended(peer *p);

#endif
