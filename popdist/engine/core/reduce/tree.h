/* The order of additions: one fixed binary tree over the replicas of a group.
 *
 * Its nodes are the aligned spans of powers of two, so it does not depend on how the
 * replicas are shared out among members. A member publishes the largest nodes that lie
 * wholly in its block of replicas.
 */
#ifndef POPDIST_TREE_H
#define POPDIST_TREE_H

#include "sync/comm.h"

enum { MAX_DEPTH = 16 };

/* A scratch block that no partial sum uses. */
enum { SPARE_BLOCK = MAX_DEPTH };

/* A program for a sequence of leaves: push each, then merge the two topmost values
 * `merges` times. */
typedef struct {
    uint32_t leaves;
    uint8_t *merges;
} program;

typedef struct {
    uint32_t first, rows; /* local rows that it sums */
} node;

/* A leaf of the tree among hosts: node number `node` of a host. */
typedef struct {
    uint32_t host, node;
} host_node;

/* How the replicas of a group are shared out among hosts. Each host reduces its own to
 * nodes; the nodes of all hosts are then completed to the result. */
typedef struct {
    uint32_t hosts, here;
    uint64_t replicas;  /* of all hosts */
    uint64_t hash;      /* equal for equal splits */
    bool single;        /* each node is a row, the only one of its member */
    uint32_t *nodes;    /* the number of nodes of each host */
    uint32_t most_nodes;
    uint32_t fewest_members; /* of a host */
    host_node *leaf;    /* the program's leaves, in the order of replicas */
    int size;           /* members of the group */
    uint32_t *host_of, *rows; /* of each of them */
    program of_hosts;
} host_split;

/* How the replicas of a group are shared out, as one member sees it. */
typedef struct {
    int rank, size;
    uint64_t replicas;            /* of the whole group */
    uint64_t hash;                /* equal for equal splits */
    uint32_t rows[MAX_MEMBERS];   /* of each member */
    uint32_t first[MAX_MEMBERS];  /* the number of its first row */
    uint32_t nodes[MAX_MEMBERS];  /* the number of nodes that each publishes */
    uint32_t most_nodes;
    bool single; /* each member has one row: its node is the row itself */
    node *mine;  /* nodes[rank] of them */
    program of_node;  /* the leaves of the largest node; smaller ones are prefixes */
    program of_all;   /* own rows singly, the others' nodes */
    program of_rows;  /* all rows of all members */
    program of_local; /* own rows by local number */
    /* Only for a split over hosts, which has none of the three above: a program for each
     * node of this host. Its leaves are consecutive own rows and others' nodes. */
    uint32_t host_nodes;
    program *of_host_node;
    host_split *over_hosts; /* of a split over hosts, else NULL */
} replica_split;

/* NULL if there is no memory, or there are more than MAX_LEAVES replicas. */
replica_split *split_new(int rank, int size, const uint32_t *rows);

/* The same for the members on the host of member `rank`; the group has `size` members on
 * hosts that are numbered from 0. The members reduce their replicas to the largest nodes
 * of the whole tree that contain no other replicas. Their ranks need not follow each
 * other. */
replica_split *split_new_over_hosts(int rank, int size, const uint32_t *rows,
                                    const uint32_t *host_of);
void split_free(replica_split *split);

/* The reduction of one dtype. */
typedef struct {
    const kernels *simd;
    dtype type;
    reduction op; /* never MEAN: that is a SUM with a divisor */
    uint64_t divisor;
    size_t element, accumulated; /* bytes */
    size_t piece;                /* elements that fit a scratch block */
    unsigned char *scratch;
} arithmetic;

arithmetic arithmetic_of(const comm *c, dtype type, unsigned reduction,
                         uint64_t replicas);

unsigned char *scratch_block(const arithmetic *a, uint32_t number);

/* Reduce n <= piece elements of the leaves. A leaf is accumulated if its entry in
 * `accumulated` is set, and has elements otherwise (NULL: all have). The result is
 * accumulated; it lies in scratch, or is the only leaf itself. */
const void *tree_fold(const arithmetic *a, const program *p, const void *const *leaf,
                      const bool *accumulated, size_t n);

/* The same to elements at `to`, finished. `to` may be one of the leaves. */
void tree_fold_finished(const arithmetic *a, const program *p, const void *const *leaf,
                        const bool *accumulated, size_t n, void *to);

#endif
