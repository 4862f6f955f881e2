/* pairings: every way to pair heads, and attention by one of them. For tests.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAIRINGS_H
#define DQ_PAIRINGS_H

#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

static const dq_pairing pairings[] = {DQ_PAIR_NONE,   DQ_PAIR_ADJACENT, DQ_PAIR_ADJACENT_NAIVE,
                                      DQ_PAIR_HALVES, DQ_PAIR_GROUPED,  DQ_PAIR_SHARED_KV};
enum { N_PAIRINGS = sizeof pairings / sizeof pairings[0] };

/* Of the arena of the case; DQ_PAIR_GROUPED has two noise heads. */
static inline dq_head_order pairings_map(dq_pairing pairing, int n_q, int n_kv, int head_dim)
{
    dq_head_order map;
    dq_err err = {0};
    const int n_noise = pairing == DQ_PAIR_GROUPED ? 2 : 0;
    assert_int_equal(
        dq_head_order_build(&map, pairing, n_q, n_kv, head_dim, n_noise, given_arena(), &err),
        DQ_OK);
    return map;
}

/* Without a norm; lambda where there are two maps. */
static inline dq_attn pairings_attn(const dq_head_order *map, float lambda)
{
    dq_attn attn = {.map = map, .out_scale = 1.0f};
    if (map->n_maps == 2) {
        attn.lambda_kind = DQ_LAMBDA_LAYER;
        attn.lambda = lambda;
    }
    return attn;
}

#endif
