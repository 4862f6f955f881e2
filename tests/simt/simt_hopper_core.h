/* simt_hopper_core: what a block of a device of compute capability 9.0 has beside that of
 * simt_core.h. simt_mbarrier.cpp has mbarriers, copies, clusters and the view of the async proxy,
 * simt_wgmma.cpp what warpgroups do.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMT_HOPPER_CORE_H
#define DQ_SIMT_HOPPER_CORE_H

#include "tests/simt/simt_core.h"

#include <bitset>
#include <deque>
#include <vector>

enum {
    SIMT_MBARRIERS = 64,
    SIMT_WORD = 4,  /* bytes that belong to one thread's store */
    SIMT_CELL = 16, /* bytes that copies and products read and write as one */
    SIMT_MAX_PAGES = 128,
    SIMT_WARPGROUPS = SIMT_MAX_WARPS / 4
};

struct simt_mbarrier {
    unsigned char *at;
    const char *name;
    int line; /* where it was initialised */
    unsigned count, thread;
    int64_t pending; /* arrivals that the phase still waits for */
    int64_t bytes;   /* likewise; less than 0 where bytes have come before they are expected */
    uint64_t phase;
    uint64_t crossed; /* the thread's barriers before the initialisation */
    bool fenced;      /* copies see it */
    bool fenced_cluster;
    uint64_t cluster_crossed; /* the thread's cluster barriers before that fence */
    char token[2];            /* orders arrivals before waits, by parity */
};

struct simt_hopper;
struct simt_bulk { /* a copy on its way, to one block */
    simt_hopper *to;
    unsigned char *dst;
    const unsigned char *src;
    unsigned bytes;
    simt_mbarrier *signal;
    std::vector<unsigned char> was; /* the source at the start */
    int line;
    bool late; /* it lands when no thread can run */
};

struct simt_cluster {
    simt_block *block[SIMT_MAX_CLUSTER];
    unsigned n, arrived;
    uint64_t opened;
    char token[2];
    std::vector<simt_bulk> copies;
    unsigned polls; /* in vain, since a phase ended or a copy landed */
    uint64_t random;
};

struct simt_product { /* one wgmma of a warpgroup */
    simt_wgmma what;
    uint64_t group;
    unsigned warps; /* that have started it, as bits */
    bool late;      /* it runs when it is waited for */
    void *d[128];
    const uint32_t *a[128];
    std::vector<uint32_t> a_cells,
        b_cells; /* 16-byte cells of shared memory, by row, then along k */
};

struct simt_claim { /* one setmaxnreg of a warpgroup */
    int registers, line;
    bool more, done;
    unsigned warps;
};

struct simt_warpgroup {
    std::deque<simt_product> products;
    uint64_t first;   /* number of products[0] */
    uint64_t next[4]; /* product that each warp starts next */
    std::vector<simt_claim> claims;
    size_t next_claim[4];
    uint64_t claim_crossed[4]; /* barriers that each warp's first lane had met at its last claim */
    int registers;             /* of each thread */
};

struct simt_hopper {
    simt_block *block;
    simt_cluster *cluster; /* owned by the block of rank 0 */
    unsigned rank;
    simt_mbarrier barrier[SIMT_MBARRIERS];
    int n_barriers;
    simt_warpgroup group[SIMT_WARPGROUPS];
    int free_registers;
    std::vector<unsigned char> seen; /* the arena as last noted */
    std::vector<uint16_t>
        writer; /* of every word: the thread (plus 1) whose store the async proxy does not see */
    std::vector<uint16_t> reading,
        writing; /* of every cell: products that read and copies that write it */
    std::bitset<SIMT_MAX_PAGES> dirty;
    std::vector<std::bitset<SIMT_MAX_PAGES>> wrote; /* by thread: pages with bytes of its */
};

/* ThreadSanitizer looks away while one lives. */
struct simt_unseen {
    simt_unseen()
    {
        simt_lock(NULL);
    }
    ~simt_unseen()
    {
        simt_unlock(NULL);
    }
    simt_unseen(const simt_unseen &) = delete;
};

/* Of the calling thread's block; fails below compute capability 9.0. */
simt_hopper *simt_hopper_here(const char *what, int line);
/* Reports as simt_fail does where a thread runs, else for the block; then it returns. */
void simt_say(simt_block *b, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The thread waits until simt_wake; simt_wake_all: all of that block that wait so. */
void simt_block_on(simt_thread *t, simt_waits what, int line);
void simt_wake(simt_thread *t);

/* The thread (plus 1) whose store to the cell the async proxy does not see, 0: it sees all. */
unsigned simt_unfenced(const simt_hopper *h, uint32_t cell);

/* Of simt_wgmma.cpp. */
bool simt_product_some(
    simt_thread *t); /* runs the next product of the thread's warpgroup, if it can */
void simt_warpgroups_open(simt_hopper *h);
void simt_warpgroups_end(simt_hopper *h);
int simt_warpgroup_text(char *out, size_t capacity, const simt_thread *t);
/* The line of a product on its way that reads the cell, 0: none. */
int simt_product_at(const simt_hopper *h, uint32_t cell);

#endif
