#define _GNU_SOURCE
#include "sync/peer.h"

#include "shm/hash.h"
#include "sync/waiting.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    /* For so long a pidfd alone is trusted: it does not show exec(), and its number may
     * have been given to a pidfd of another process. */
    LOOK_NS = 250000000,
    /* Room for all 52 fields of /proc/PID/stat. */
    STAT_BYTES = 1536,
    /* Fields of proc(5), from the third one on, the first after the name. */
    STATE = 0,
    NUM_THREADS = 17,
    STARTTIME = 19,
    STARTCODE = 23,
    ENDCODE = 24,
    STARTSTACK = 25,
    START_DATA = 42,
    END_DATA = 43,
    START_BRK = 44,
    FIELDS = 45,
};

typedef enum { HIDDEN, NO_PROCESS, FOUND } finding;

typedef struct {
    bool ended; /* a zombie with no thread left */
    uint64_t started, program;
} facts;

/* The program's place, chosen by exec(), at random as a rule; nothing else moves it. */
static uint64_t program_of(const uint64_t *fields)
{
    static const int places[] = {STARTCODE,  ENDCODE,  STARTSTACK,
                                 START_DATA, END_DATA, START_BRK};
    uint64_t hash = 1;
    /* A process that may not be traced shows 1 and 0 instead. */
    if (fields[STARTCODE] <= 1 || fields[STARTSTACK] == 0)
        return 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        hash = hash_with(hash, fields[places[i]]);
    return hash | 1;
}

static finding look_up(pid_t pid, facts *process)
{
    char text[STAT_BYTES];
    uint64_t fields[FIELDS];
    snprintf(text, sizeof text, "/proc/%d/stat", (int)pid);
    int fd = open(text, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        /* Without /proc nothing is known. */
        return errno == ENOENT && access("/proc/self/stat", F_OK) == 0 ? NO_PROCESS
                                                                       : HIDDEN;
    ssize_t length = read(fd, text, sizeof text - 1);
    int error = errno;
    close(fd);
    if (length <= 0)
        return length < 0 && error == ESRCH ? NO_PROCESS : HIDDEN;
    text[length] = 0;
    /* The name stands in parentheses, and may hold anything. */
    char *at = strrchr(text, ')');
    if (!at || at[1] != ' ')
        return HIDDEN;
    const char state = at[2];
    at += 3;
    for (int i = STATE + 1; i < FIELDS; i++) {
        char *end;
        fields[i] = strtoull(at, &end, 10);
        if (end == at)
            return HIDDEN;
        at = end;
    }
    /* A main thread that has ended is a zombie as well; the others go on. */
    process->ended = (state == 'Z' || state == 'X') && fields[NUM_THREADS] <= 1;
    process->started = fields[STARTTIME];
    process->program = program_of(fields);
    return FOUND;
}

void watch_peer(peer *p, int pidfd, pid_t pid)
{
    facts seen;
    *p = (peer){.pidfd = pidfd, .next_look = now_ns() + LOOK_NS};
    if (pidfd < 0 || look_up(pid, &seen) != FOUND)
        return;
    p->pid = pid;
    p->started = seen.started;
    p->program = seen.program;
}

/* Whether the process of the pidfd has ended. The program may have closed it,
 * and its number may belong to another file now. */
static bool pidfd_has_ended(peer *p)
{
    if (p->pidfd < 0)
        return false;
    if (syscall(SYS_pidfd_send_signal, p->pidfd, 0, NULL, 0) < 0) {
        if (errno == ESRCH)
            return true;
        if (errno == EBADF) {
            p->pidfd = -1;
            return false;
        }
    }
    struct pollfd fd = {p->pidfd, POLLIN, 0};
    return poll(&fd, 1, 0) == 1 && fd.revents & POLLIN;
}

bool peer_ended(peer *p)
{
    bool pidfd_ended = pidfd_has_ended(p);
    if (!p->pid)
        return pidfd_ended;
    uint64_t at = now_ns();
    if (!pidfd_ended && p->pidfd >= 0 && at < p->next_look)
        return false;
    p->next_look = at + LOOK_NS;
    facts seen;
    switch (look_up(p->pid, &seen)) {
    case NO_PROCESS:
        return true;
    case HIDDEN:
        return pidfd_ended;
    case FOUND:
        break;
    }
    if (seen.ended || seen.started != p->started)
        return true;
    if (pidfd_ended)
        p->pidfd = -1; /* of another process */
    return seen.program && p->program && seen.program != p->program;
}
