/* attend_rig: random caches, units and heads for attention over operands, and what it must give, in
 * plain loops over tokens that know nothing of tiles.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ATTEND_RIG_H
#define DQ_ATTEND_RIG_H

#include "tests/simt/check.h"

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/page.cuh"

enum { MAX_PAGES = 18, MAX_HEADS = 4, MAX_DIM = 128, MAX_UNITS = 2, MAX_SETS = 64 };

/* One side of a cache of one sequence: every token of every slot of heads, in all forms. */
struct rig_side {
    dq_page_form form;
    int n_heads;
    float plain[MAX_PAGES][MAX_HEADS][64][MAX_DIM];
    int8_t code[MAX_PAGES][MAX_HEADS][64][MAX_DIM];
    float scale[MAX_PAGES][MAX_HEADS][2 * MAX_DIM / 16][64]; /* by form.n_scales */
    float step[MAX_PAGES][2][MAX_SETS][MAX_DIM], low[MAX_PAGES][2][MAX_SETS][MAX_DIM];
    uint8_t *packed[MAX_PAGES];
    float *device_plain[MAX_PAGES], *sinks[MAX_PAGES];
    void *device_scale[MAX_PAGES];
};

struct rig_list {
    dq_attention_unit unit;
    int n_pages;
    rig_side side[2];
    dq_page page[MAX_PAGES];
    int hidden[64], visible[64]; /* rows see tokens hidden .. visible-1 */
};

struct rig_spec {
    int dim, bits[2], group;
    int maps, slabs, outs;
    float lambda;
    bool token_lambda, shared_second, same_keys, rotated, norm;
    int round;
    bool int8;    /* operands are: codes of keys are multiplied as they are */
    int max_rows; /* of a unit; 0: 64 */
    int max_keys; /* of a list, apart from its rows */
    int window;   /* 0: none */
    bool sets, dither;
    bool mixed;     /* of `sets` keys alone; values have a step and a low for each token and run */
    bool all_coded; /* all tokens but sinks */
    bool many_sets; /* pages have up to 12 */
    bool each_slot; /* every slot of a page is a set of its own, most of whose tokens are gone */
    /* bits of the second map's keys, where per-channel codes have widths by map, and pages of mixed ones fewer bits of values than
     * their form; 0: they have none */
    int second;
    float large; /* one plain number; 0: none */
    /* S is 0 but for slot 13 of a page, which is so much larger than that of the page before; in
     * the first 8 rows a quarter of that; 0: S is random */
    float rise;
};

/* A whole call, on both sides. */
struct rig {
    rig_spec spec;
    check_random random;
    int n_units, rows, width;
    rig_list *list;
    dq_attention_units units;
    dq_attention_finish finish;
    dq_attend_logits logits;
    dq_attention_unit unit[2 * MAX_UNITS]; /* units.n of them, as the device has them */
    float dither[2][64];
    dq_q_head q_head[2 * MAX_HEADS];
    dq_o_head o_head[MAX_HEADS];
    check_array<float> *q, *out, *lambda, *gain, *absmax, *strip, *factor;
    check_array<double> *sum;
    void *cached[512];
    int n_cached;
};

void rig_open(rig *r, const rig_spec *spec, uint64_t seed);
void rig_close(rig *r);

/* Whether a side has per-channel codes; which set of them slot t has; slots of a page that lie before `index` of its list; what is
 * added to slot t before its values are rounded. */
bool rig_has_sets(const rig *r, int side);
int rig_set_of(const dq_page *p, int t);
int rig_slots(int64_t index, int page);
float rig_dither(const rig *r, const dq_page *p, int side, int t);

/* The same on the device, with operands: items of at most `together` units; close frees what open
 * took. share is there where parts are. */
struct rig_call {
    dq_attend_plan plan;
    dq_attend_call call;
    const dq_attend_join *joins;
    const dq_unfold_list *lists;
    int32_t *beyond;
    uint32_t *row_max; /* maxima by rows, and their bytes */
    size_t row_bytes, share_bytes;
    void *memory[8];
    int n_memory;
};
void rig_call_open(rig_call *c, rig *r, int together);
void rig_call_unfold(rig_call *c);
/* Of rows; with rounding by rows after their maxima. */
void rig_call_run(rig_call *c, bool hopper);
void rig_call_close(rig_call *c);

/* S of query head i of the group, row and token of a unit. Of int8 operands it is exact where the
 * row reads the token's key as a code. */
bool rig_is_exact(const rig *r, int unit, int row, int t);
double rig_score(const rig *r, int unit, int i, int row, int t);
/* The maximum over what rows of a unit see, and over one row. */
double rig_row_absmax(const rig *r, int unit, int i, int row);
double rig_absmax(const rig *r, int unit, int i);
/* y[width] and how far a result may be from it. */
void rig_row(const rig *r, int unit, int out, int row, double *y, double *bound);

#endif
