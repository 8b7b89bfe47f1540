/* Another member's process, and how to see that it takes part no more. */
#ifndef POPDIST_PEER_H
#define POPDIST_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct {
    int pidfd;        /* -1 where there is none to watch */
    pid_t pid;        /* 0 where /proc does not tell of it */
    uint64_t started; /* as /proc shows it here: other time namespaces see another */
    uint64_t program; /* changes with exec(); 0 where the kernel does not show it */
    uint64_t next_look; /* when to ask /proc though the pidfd says nothing */
} peer;

/* Begin to watch a process that is alive. */
void watch_peer(peer *p, int pidfd, pid_t pid);

/* Whether the process has ended, or runs another program since. */
bool peer_ended(peer *p);

#endif
