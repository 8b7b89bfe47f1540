/* The blocks of a reduction in transit between hosts. Each host gets the nodes for its
 * share, and all get the results. Only carriers take part. */
#ifndef POPDIST_HOSTS_SHARES_H
#define POPDIST_HOSTS_SHARES_H

#include "hosts/division.h"
#include "hosts/links.h"

/* Blocks on their way. */
enum { DEPTH = 3 };

typedef struct {
    message *first;
    uint32_t count;
} messages;

/* A block in transit, and its memory. */
typedef struct {
    uint64_t *begins; /* the begin of each host's share of what this carrier carries, and
                       * the end of the last */
    unsigned char *nodes;    /* what this carrier carries of this host's nodes, one
                              * after the other */
    unsigned char *received; /* the other hosts' nodes for this host's share */
    unsigned char *result;   /* of what this carrier carries */
    messages nodes_of_others, results_of_others, outgoing;
} transit;

typedef struct {
    const division *d;
    const call *k;
    links *l;
    arithmetic a;        /* of all hosts together */
    size_t node_element; /* bytes of an element of a node */
    int root_host;       /* the host with the call's root, or -1: all get the result */
    transit blocks[DEPTH];
    /* Room for addresses of nodes: this host's, and all in the order of the tree. */
    char **own;
    const char **leaf;
} shares;

/* Allocate memory for that many blocks of a call; the caller sets the other members. */
bool shares_open(shares *x, uint32_t blocks_on_their_way);
void shares_close(shares *x);

/* The place of a block in transit, and of one that begins. */
transit *shares_transit(shares *x, uint64_t number);
transit *shares_divide_block(shares *x, uint64_t number);

/* Begin to receive or to send the nodes or the results of a block. */
status shares_begin(shares *x, transit *b, message_kind kind, direction way);

/* Complete this host's share once the nodes have come, and begin to send the result. */
status shares_complete_block(shares *x, transit *b);

/* Complete elements; `data_of` the links has the other hosts' nodes for them. */
void shares_complete(shares *x, const transit *b, range share);

/* Wait until all results have come, and no message of the block is in transit. */
status shares_await_results(shares *x, transit *b);

#endif
