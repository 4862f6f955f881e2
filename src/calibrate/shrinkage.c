/* shrinkage: see shrinkage.h. The sums of A lie in the free triangle of those of B while A is factored.
 * SPDX-License-Identifier: MIT */
#include "calibrate/shrinkage.h"

#include "base/ranks.h"

#include <string.h>

/* A step of three is as fine as shares can tell. */
static const double ridges[DQ_SHRINKAGE_RIDGES] = {0.01, 0.03, 0.1, 0.3, 1, 3, 10};

static int64_t stride(int64_t n)
{
    return (n + 7) / 8 * 8;
}

int64_t dq_shrinkage_bytes(int64_t m, int64_t n, int64_t max_rows)
{
    return dq_hessian_bytes(n, max_rows) + dq_cross_bytes(m, n, max_rows) +
           m * (stride(n) + 4) * (int64_t)sizeof(double);
}

dq_status dq_shrinkage_new(dq_shrinkage *o, int64_t max_m, int64_t max_n, int64_t max_rows,
                           dq_err *err)
{
    *o = (dq_shrinkage){.h = NULL};
    DQ_TRY(dq_hessian_new(&o->h, max_n, max_rows, err));
    DQ_TRY(dq_cross_new(&o->c, max_m, max_n, max_rows, err));
    o->k = dq_block_new((size_t)(max_m * stride(max_n)), sizeof *o->k, err);
    o->share = dq_block_new((size_t)max_m, 4 * sizeof *o->share, err);
    return err->code;
}

void dq_shrinkage_free(dq_shrinkage *o)
{
    dq_hessian_free(o->h);
    dq_cross_free(o->c);
    dq_block_free(o->k);
    dq_block_free(o->share);
    *o = (dq_shrinkage){.h = NULL};
}

void dq_shrinkage_begin(dq_shrinkage *o, int64_t m, int64_t n)
{
    dq_hessian_begin(o->h, n);
    dq_cross_begin(o->c, m, n);
}

dq_status dq_shrinkage_add_inputs(dq_shrinkage *o, dq_hessian *h, dq_backend *b, dq_mat x,
                                  int64_t piece, dq_err *err)
{
    DQ_TRY(dq_hessian_add(o->h, b, x, (dq_tile_sums_rows){DQ_ROWS_FIRST, piece}, err));
    return dq_hessian_add(h, b, x, (dq_tile_sums_rows){DQ_ROWS_SECOND, piece}, err);
}

dq_status dq_shrinkage_add_lacks(dq_shrinkage *o, dq_cross *c, dq_backend *b, dq_mat lacks,
                                 dq_mat x, int64_t piece, dq_err *err)
{
    DQ_TRY(dq_cross_add(o->c, b, lacks, x, (dq_tile_sums_rows){DQ_ROWS_FIRST, piece}, err));
    return dq_cross_add(c, b, lacks, x, (dq_tile_sums_rows){DQ_ROWS_SECOND, piece}, err);
}

/* Of outputs first .. end - 1 the share of A's correction that takes most away on B, and how much that is. */
static dq_status judge_rows(double *share, double *gain, dq_shrinkage *o, const dq_hessian *h,
                            const dq_cross *c, dq_ranks_rows rows, dq_err *err)
{
    dq_cross k = *o->c;
    const int64_t before = rows.first * k.ld;
    k.c = o->k + before;
    k.m = rows.end - rows.first;
    for (int64_t i = 0; i < k.m * k.ld; i++) k.c[i] = o->c->c[before + i] / (double)k.rows;
    DQ_TRY(dq_correction_solve(&k, o->h, err));
    DQ_TRY(dq_correction_energy(gain + rows.first, &k, h, err));
#pragma omp parallel for schedule(static)
    for (int64_t r = rows.first; r < rows.end; r++) {
        double inner = 0;
        for (int64_t i = 0; i < k.n; i++) inner += o->k[r * k.ld + i] * c->c[r * c->ld + i];
        const double energy = gain[r], best = energy > 0 ? inner / energy : 0;
        share[r] = best < 0 ? 0 : best > 1 ? 1 : best;
        gain[r] = (2 * inner - share[r] * energy) * share[r];
    }
    return DQ_OK;
}

static dq_status judge(double *share, double *gain, dq_shrinkage *o, const dq_hessian *h,
                       const dq_cross *c, dq_err *err)
{
    const int64_t m = o->c->m, unit = DQ_CORRECTION_ROWS;
    judge_rows(share, gain, o, h, c, dq_ranks_stripe(dq_ranks_number(), m, unit), err);
    DQ_TRY(dq_ranks_agree(NULL, NULL, err));
    dq_ranks_join(share, m, unit, sizeof *share);
    dq_ranks_join(gain, m, unit, sizeof *gain);
    return DQ_OK;
}

/* Whether outputs gain by the later of two ridges, each beside its own gain: a few large ones do not decide. */
static bool is_better(const double *later, const double *before, int64_t m)
{
    const double clear = 0.03;
    double sum = 0;
    for (int64_t r = 0; r < m; r++) {
        const double both = later[r] + before[r];
        sum += both > 0 ? (later[r] - before[r]) / both : 0;
    }
    return sum > clear * (double)m;
}

/* The sums of A are lost. */
static dq_status choose(double *ridge, dq_shrinkage *o, const dq_hessian *h, const dq_cross *c,
                        const char *what, dq_err *err)
{
    const int64_t m = c->m;
    const size_t bytes = (size_t)m * sizeof *o->share;
    double *gain = o->share + m, *next_share = gain + m, *next_gain = next_share + m;
    DQ_TRY(dq_hessian_factor(o->h, ridges[0], what, err));
    DQ_TRY(judge(o->share, gain, o, h, c, err));
    for (int i = 1; i < DQ_SHRINKAGE_RIDGES; i++) {
        DQ_TRY(dq_hessian_refactor(o->h, ridges[i], what, err));
        DQ_TRY(judge(next_share, next_gain, o, h, c, err));
        if (!is_better(next_gain, gain, m)) break;
        memcpy(o->share, next_share, bytes);
        memcpy(gain, next_gain, bytes);
        *ridge = ridges[i];
    }
    return DQ_OK;
}

/* That of all rows, of one that A gave. */
static double share_of_all(double share)
{
    const double doubt = 1.3, a = share * doubt < 1 ? share * doubt : 1;
    return 2 * a / (1 + a);
}

dq_status dq_shrinkage_find(double *ridge, dq_shrinkage *o, dq_hessian *h, dq_cross *c,
                            const char *what, dq_err *err)
{
    const int64_t rows = o->h->rows;
    DQ_TRY(dq_hessian_share(o->h, err));
    DQ_TRY(dq_hessian_share(h, err));
    DQ_TRY(dq_cross_share(o->c, err));
    DQ_TRY(dq_cross_share(c, err));
    *ridge = ridges[0];
    memset(o->share, 0, (size_t)c->m * sizeof *o->share);
    dq_hessian_set_aside(h, o->h);
    if (rows > 0) DQ_TRY(choose(ridge, o, h, c, what, err));
    dq_hessian_take_in(h, rows);
    dq_cross_take_in(c, o->c);
    *ridge = *ridge / 2 > ridges[0] ? *ridge / 2 : ridges[0];
    for (int64_t r = 0; r < c->m; r++) o->share[r] = share_of_all(o->share[r]);
    return DQ_OK;
}
