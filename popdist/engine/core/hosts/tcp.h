/* Links by TCP: one socket for each pair of processes that exchange messages.
 *
 * Python connects and authenticates the sockets; this file moves messages over them. A
 * message is a frame: its length and tag, and its bytes. A frame that comes before its
 * receive is kept in memory. A sender with too many of these waits for credit. Short
 * messages, with tags below FIRST_GROUP_TAG, are always kept.
 */
#ifndef POPDIST_HOSTS_TCP_H
#define POPDIST_HOSTS_TCP_H

#include "hosts/links.h"

enum { FIRST_GROUP_TAG = 16 };

typedef struct tcp_links tcp_links;

/* For these, `own` is a tcp_links. Errors have the numbers of errno. */
extern const link_calls tcp_calls;

/* Links of a process to all others. NULL with errno set if there is no memory or
 * descriptor. */
tcp_links *tcp_open(int rank, int size);
void tcp_close(tcp_links *l);

/* The epoll of all sockets. */
int tcp_epoll(const tcp_links *l);

/* Use a connected socket to a process. It is closed with the links, or at once if this
 * returns an error and not 0: ECONNABORTED after tcp_shut(). */
int tcp_add(tcp_links *l, int process, int fd);

/* A process has died, or its host is silent. */
void tcp_note_failed(tcp_links *l, int process, bool is_silent);
bool tcp_has_failed(tcp_links *l, int process, bool *is_silent);

/* Begin to send a copy of a short message. 0 or an error. */
int tcp_post(tcp_links *l, int to, int tag, const void *data, uint64_t bytes);
/* Short messages that are still being sent. */
uint32_t tcp_posted(tcp_links *l);

/* A short message that has come. */
typedef struct {
    unsigned char *data; /* the caller's to free; NULL if none has come */
    uint64_t bytes;
    int from;
} short_message;

/* Read and write on all ready sockets, and return the first short message with a tag. */
short_message tcp_take(tcp_links *l, int tag);

/* Call this several times a second: it detects hosts that do not answer. */
void tcp_check_answers(tcp_links *l);

/* Close the sockets in a forked child: they are its parent's. */
void tcp_disown(tcp_links *l);

/* Close all sockets for good: the others see the end of this process, which takes them
 * for failed. */
void tcp_shut(tcp_links *l);

/* Tell all connected processes that this one ends in good order. */
void tcp_say_goodbye(tcp_links *l);

#endif
