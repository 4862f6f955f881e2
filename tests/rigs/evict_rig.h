/* evict_rig: a small model whose operations are spied on. Between the runner and the device's
 * operations stands a spy that hands keys, values and queries to the f64 oracle, which attends and sums beside the
 * kernels.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVICT_RIG_H
#define DQ_EVICT_RIG_H

#include "base/random.h"
#include "engine/runner.h"
#include "tests/rigs/device.h"
#include "tests/rigs/given.h"
#include "tests/rigs/oracle.h"
#include "tests/rigs/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQS = DQ_ORACLE_SEQ, GROUPS = 2, LAYERS = 3, COLUMNS = 4, TOKENS = 512, ROWS = 512 };

/* Of f32 attention beside f64: the norm after maps that nearly cancel magnifies rounding. 8.4e-6 on the CPU; keys and
 * queries of another device differ in their last bits. */
#define LARGEST_ERROR 3e-5

typedef struct rig {
    dq_model *m;
    dq_backend *b;
    const dq_ops *own;
    dq_ops spy;
    dq_runner *r;
    dq_kv_spec kv;
    dq_evict_spec spec;
    dq_evictor *e;
    dq_evict_report report;
    dq_oracle *oracle[LAYERS];      /* NULL: nothing is compared */
    double (*sum)[COLUMNS][TOKENS]; /* [place(layer, seq, group)] the oracle's */
    int n_compared, n_unsure;
    int32_t length[SEQS], tag[SEQS];
    int64_t cu[SEQS + 1];
    int32_t seq[SEQS], prefix[SEQS], ids[ROWS], pos[ROWS];
    dq_batch batch;
    float *hidden; /* of the last pass */
    int64_t hidden_floats;
} rig;

static rig *spied;

static int groups(const rig *x)
{
    return x->m->map.n_groups;
}

static int place(int layer, int seq, int group)
{
    return (layer * SEQS + seq) * GROUPS + group;
}

/* A copy of what lies on the device. */
static float *on_host(dq_backend *b, dq_mat m)
{
    const size_t bytes = m.p ? (size_t)(m.rows * m.cols) * sizeof(float) : 0;
    float *host = malloc(bytes + 1);
    assert_non_null(host);
    if (bytes) spied->own->get(b, host, m.p, bytes);
    return host;
}

static void spy_append(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch, dq_mat k,
                       dq_mat v, dq_num reads)
{
    float *keys = on_host(b, k), *values = on_host(b, v);
    spied->own->kv_append(b, kv, layer, batch, k, v, reads);
    dq_oracle_append(spied->oracle[layer], batch, keys, values);
    free(keys);
    free(values);
}

static void spy_attend(dq_backend *b, dq_mat dst, const dq_attend_args *args)
{
    rig *x = spied;
    int64_t offset[SEQS * GROUPS], n = dst.rows * dst.cols;
    double *want = calloc((size_t)n, sizeof *want), max = 0, worst = 0;
    dq_columns columns = {.offset = offset};
    float *q = on_host(b, args->q), *lambda = on_host(b, args->lambda);
    dq_oracle_args o = {args->attn, args->batch, q, lambda, args->logit, NULL};
    for (int k = 0; k < args->batch->n_seq * groups(x); k++)
        offset[k] = (int64_t)place(args->layer, args->batch->seq[k / groups(x)], k % groups(x)) *
                    COLUMNS * TOKENS;
    if (args->columns) {
        double *base = &x->sum[0][0][0];
        columns.last_rows = args->columns->last_rows;
        columns.mass[0] = args->columns->mass[0] ? base : NULL;
        columns.mass[1] = args->columns->mass[1] ? base + TOKENS : NULL;
        columns.lambda_mass = args->columns->lambda_mass ? base + 2 * TOKENS : NULL;
        columns.diff = args->columns->diff ? base + 3 * TOKENS : NULL;
        o.columns = &columns;
    }
    x->own->attend(b, dst, args);
    float *got = on_host(b, dst);
    dq_oracle_attend(want, x->oracle[args->layer], &o);
    for (int64_t i = 0; i < n; i++) {
        max = fmax(max, fabs(want[i]));
        worst = fmax(worst, fabs(want[i] - (double)got[i]));
    }
    if (!(worst <= LARGEST_ERROR * max)) print_error("%g of %g\n", worst, max);
    assert_true(worst <= LARGEST_ERROR * max);
    free(want);
    free(got);
    free(q);
    free(lambda);
}

/* All groups, the last one first; the first two share where there are more. */
static void rig_roles(char *heads, const dq_model *m)
{
    const int n = m->map.n_groups, lists = m->n_layers * n;
    size_t at = 0;
    for (int i = lists - 1; i >= 0; i--) {
        const char *after = i == 0 ? "" : lists - i == 2 ? "/" : ",";
        at += (size_t)snprintf(heads + at, DQ_KV_HEADS_TEXT - at, "%d.%d%s", i / n, i % n, after);
    }
}

static const dq_kv_gates *rig_gates(const dq_model *m)
{
    dq_kv_gates *g;
    dq_err err = {0};
    dq_random r = dq_random_of(3, 0);
    assert_int_equal(dq_model_new_gates(&g, m, given_arena(), &err), DQ_OK);
    for (int64_t i = 0; i < g->at[m->n_layers * m->map.n_groups]; i++)
        g->weight[i] = (double)dq_random_next(&r) / 0x1p64 - 0.5;
    return g;
}

/* How it stores keys and values is as `codes` says. */
static void rig_open_codes(rig *x, const char *model, const dq_kv_spec *codes,
                           const dq_evict_spec *spec, int threads, bool compare)
{
    dq_err err = {0};
    memset(x, 0, sizeof *x);
    x->kv = *codes;
    x->kv.sink = 3;
    x->kv.recent = 8;
    x->spec = x->kv.evict = *spec;
    x->report = dq_evict_report_none;
    x->m = given_model("%s", model);
    assert_true(x->m->n_layers <= LAYERS && x->m->map.n_groups <= GROUPS);
    if (spec->budget == DQ_KV_BUDGET_HEADS) rig_roles(x->kv.evict.heads, x->m);
    if (spec->policy && spec->policy->needs & DQ_NEEDS_GATES) x->m->gates = rig_gates(x->m);
    x->b = given_backend(threads);
    assert_int_equal(dq_runner_new(&x->r, x->m, x->b, &x->kv, &err), DQ_OK);
    const dq_pass plain = {.logit = {.bits = 16}};
    dq_evictor_new(&x->e, x->r, &x->kv, &plain, &err);
    assert_string_equal(err.text, "");
    x->batch = (dq_batch){.cu_rows = x->cu, .seq = x->seq, .ids = x->ids, .pos = x->pos};
    if (!compare) return;
    x->sum = calloc((size_t)place(LAYERS, 0, 0), sizeof *x->sum);
    for (int l = 0; l < x->m->n_layers; l++) x->oracle[l] = dq_oracle_new(&x->m->map);
    x->own = x->b->ops;
    x->spy = *x->own;
    x->spy.kv_append = spy_append;
    x->spy.attend = spy_attend;
    x->b->ops = &x->spy;
    spied = x;
}

static void rig_open(rig *x, const char *model, const dq_evict_spec *spec, int threads,
                     bool compare)
{
    rig_open_codes(x, model, &dq_kv_plain, spec, threads, compare);
}

static void rig_close(rig *x)
{
    for (int l = 0; l < LAYERS && x->oracle[l]; l++) dq_oracle_free(x->oracle[l]);
    dq_evictor_free(x->e);
    dq_runner_free(x->r);
    dq_backend_close(x->b);
    dq_model_close(x->m);
    free(x->sum);
    free(x->hidden);
}

static int32_t new_sequence(rig *x, int tag)
{
    const int32_t s = x->b->ops->kv_seq_new(x->b, dq_runner_kv(x->r));
    assert_in_range(s, 0, SEQS - 1);
    x->length[s] = 0;
    x->tag[s] = tag;
    return s;
}

static void begin(rig *x)
{
    x->batch.n_seq = 0;
    x->batch.n_rows = 0;
}

/* n rows; ids depend on the tag and the position only, and repeat, so that attention has something to
 * find. */
static void add(rig *x, int32_t seq, int n)
{
    dq_batch *b = &x->batch;
    for (int i = 0; i < n; i++) {
        const uint32_t p = (uint32_t)x->length[seq]++, t = (uint32_t)x->tag[seq];
        const uint32_t word = (p % 5 < 2 ? p % 7 : p * p + 3 * t) * 2654435761u + t;
        x->ids[b->n_rows] = (int32_t)((word >> 8) % (uint32_t)x->m->vocab);
        x->pos[b->n_rows++] = (int32_t)p;
    }
    x->seq[b->n_seq] = seq;
    x->prefix[b->n_seq++] = x->length[seq];
    x->cu[b->n_seq] = b->n_rows;
}

/* A window starts anew with a pass that is long enough. */
static void restart_windows(rig *x, int64_t window)
{
    for (int i = 0; window && i < x->batch.n_seq; i++) {
        if (x->cu[i + 1] - x->cu[i] < window) continue;
        for (int l = 0; l < LAYERS; l++)
            for (int g = 0; g < GROUPS; g++)
                memset(x->sum[place(l, x->seq[i], g)], 0, sizeof *x->sum);
    }
}

static int64_t window_of(const dq_evict_spec *spec)
{
    return spec->policy ? dq_evict_window(spec) : 0;
}

static void pass(rig *x)
{
    dq_err err = {0};
    dq_pass p = {.logit = {.bits = 16}};
    dq_mat h;
    dq_evictor_watch(x->e, &x->batch, &p.columns, &err);
    if (x->oracle[0]) restart_windows(x, window_of(&x->spec));
    dq_runner_pass(x->r, &x->batch, &p, &h, &err);
    assert_string_equal(err.text, "");
    x->hidden_floats = h.rows * h.cols;
    free(x->hidden);
    x->hidden = malloc((size_t)x->hidden_floats * sizeof(float));
    x->b->ops->get(x->b, x->hidden, h.p, (size_t)x->hidden_floats * sizeof(float));
}

#endif
