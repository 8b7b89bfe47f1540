/* The blocks of a reduction on their way between hosts: nodes go to the hosts that complete
 * them, each a share, and the results to all. Only carriers take part.
 */
#ifndef POPDIST_HOSTS_SHARES_H
#define POPDIST_HOSTS_SHARES_H

#include "hosts/division.h"
#include "hosts/links.h"

/* Blocks on their way. */
enum { DEPTH = 3 };

typedef enum { FROM_OTHERS, TO_OTHERS } direction;

typedef struct {
    message *first;
    uint32_t count;
} messages;

/* A block on its way, and the memory that it needs. */
typedef struct {
    uint64_t *begins; /* of each host's share of this carrier's part, and the end of all */
    unsigned char *nodes;    /* of this host, one after the other; of this carrier's part */
    unsigned char *received; /* of the others, for the share that is completed here */
    unsigned char *result;   /* of this carrier's part */
    messages nodes_of_others, results_of_others, outgoing;
} transit;

typedef struct {
    const division *d;
    const call *k;
    links *l;
    arithmetic a;        /* of all hosts together */
    size_t node_element; /* bytes of an element of a node */
    int root_host;       /* whose members get the result, or -1 for all */
    transit blocks[DEPTH];
    /* Room for where nodes are: of this host, of all in the order of the tree, and the
     * first one of each host. */
    char **own;
    const char **leaf;
    const unsigned char **of_host;
    uint64_t *bytes_of_host;
} shares;

/* Find memory for that many blocks of a call; the other members are the caller's to set. */
bool shares_open(shares *x, uint32_t blocks_on_their_way);
void shares_close(shares *x);

/* The place of a block on its way; of one that begins. */
transit *transit_of(shares *x, uint64_t number);
transit *divide_block(shares *x, uint64_t number);

/* Begin to receive or to send the nodes or the results of a block. */
status begin_messages(shares *x, transit *b, message_kind kind, direction way);

/* Complete this host's share once the nodes have come, and begin to send the result. */
status complete_block(shares *x, transit *b);

/* Complete elements whose nodes of the other hosts begin where `of_host` says. */
void complete_share(shares *x, const transit *b, chunk share);

/* Wait until all results have come, and nothing of the block is on its way. */
status await_results(shares *x, transit *b);

#endif
