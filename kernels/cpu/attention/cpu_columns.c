/* cpu_columns: per-key sums over the rows of an attend call, for eviction policies.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/attention/cpu_attention.h"

#include <math.h>
#include <string.h>

static void add_map(double *sums, const float *p, int64_t n, float a)
{
    for (int64_t i = 0; i < n; i++) sums[i] += (double)(p[i] * a);
}

/* |P1 - lambda P2| with the roundings of the subtraction itself. */
static void add_difference(double *sums, const float *p1, const float *p2, int64_t n, float a,
                           float b)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = p1[i] * a, y = p2 ? p2[i] * b : 0.0f;
        sums[i] += (double)fabsf(x - y);
    }
}

/* The sum of p in 8 interleaved lanes. */
static double sum_of(const float *p, int64_t n)
{
    double lane[8] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int k = 0; k < 8; k++) lane[k] += (double)p[i + k];
    }
    for (; i < n; i++) lane[i % 8] += (double)p[i];
    for (int k = 0; k < 8; k++) sum += lane[k];
    return sum;
}

/* 1 / sum of p over the tokens that a part's softmax is over; 0 where the row gives them nothing. all: over every token. */
static double part_scale(const float *p, double all, const dq_column_part *t, int64_t n)
{
    const bool whole = t->sinks == t->from && t->to == t->own;
    const double sum = whole ? all
                             : sum_of(p, t->sinks) + sum_of(p + t->from, t->to - t->from) +
                                   sum_of(p + t->own, n - t->own);
    return sum > 0 ? 1.0 / sum : 0.0;
}

/* peak = max(peak, a p). Nothing is NaN here, which fmax would look for. */
static void raise_peaks(double *peak, const float *p, int64_t n, double a)
{
    for (int64_t i = 0; i < n; i++) {
        const double x = (double)p[i] * a;
        peak[i] = peak[i] < x ? x : peak[i];
    }
}

/* Row r's part in the column `peak`. */
static void add_peaks(const dq_cpu_column_job *j, int64_t r, double *peak, const dq_column_part *t)
{
    for (int m = 0; m < 2 && j->p[m]; m++) {
        const float *p = j->p[m] + r * j->ld;
        const double weight =
            m ? fabs((double)dq_cpu_lambda(j->args, j->rows.first + r, j->out)) : 1.0;
        raise_peaks(peak + t->from, p + t->from, t->to - t->from,
                    weight * part_scale(p, j->sum[m][r], t, j->visible[r]));
    }
}

/* Index of the job's sequence and group. */
static int64_t list_of(const dq_cpu_column_job *j)
{
    const dq_head_order *map = j->args->attn->map;
    return (int64_t)j->rows.seq * map->n_groups + map->group[map->head[j->out].v[0]];
}

static void count_row(const dq_cpu_column_job *j, int64_t r, int64_t at)
{
    const dq_columns *c = j->args->columns;
    const float *p1 = j->p[0] + r * j->ld, *p2 = j->p[1] ? j->p[1] + r * j->ld : NULL;
    const int64_t n = j->visible[r];
    const float a = (float)(1.0 / j->sum[0][r]);
    float b = 0.0f, lambda_b = 0.0f;
    if (p2) {
        b = (float)(1.0 / j->sum[1][r]);
        lambda_b =
            (float)((double)dq_cpu_lambda(j->args, j->rows.first + r, j->out) / j->sum[1][r]);
    }
    if (c->mass[0]) add_map(c->mass[0] + at, p1, n, a);
    if (c->mass[1] && p2) add_map(c->mass[1] + at, p2, n, b);
    if (c->lambda_mass && p2) add_map(c->lambda_mass + at, p2, n, lambda_b);
    if (c->diff) add_difference(c->diff + at, p1, p2, n, a, lambda_b);
    if (c->peak) add_peaks(j, r, c->peak + at, &c->part[list_of(j)]);
}

/* The column `loo`. With x = o1 - v and e = o1 - o2,
 *     d = a x - b (o2 - v) = w x + b e,  w = a - b,
 *     |d|^2 = w^2 |x|^2 + 2 w b e.x + b^2 |e|^2,
 * so all keys of a page take two products, O1 V^T and E V^T. Two things keep f32 products good enough.
 * Values (and so outputs) are taken relative to a centre, because what they have in common cancels in
 * x. And the one key of a row that may have p > 1/2 is left out of o, as there a = p / (1 - p) would
 * blow up the rounding of o - v: with r = sum of p v over the others, o - v = r - (1 - p) v. Its d, and
 * that of keys whose |d|^2 is small against its terms, is summed directly. */
typedef struct loo_row {
    int64_t star[2];            /* the key with p > 1/2, -1: none */
    double total[2], others[2]; /* of exp(S - max): all keys, all but the star */
    double lambda, o1_o1, o1_e, e_e;
} loo_row;

typedef struct loo {
    const dq_cpu_column_job *job;
    int64_t first;     /* row that counts */
    int64_t coded_end; /* tokens before it are read as codes, by all rows */
    int64_t at, dim, width, v_cols;
    int n_maps, n_slabs;
    float *rest[2], *o1, *e; /* [rows][width] */
    /* centred values: [slab][DQ_PAGE_TOKENS][v_cols]; one slab [dim][DQ_PAGE_TOKENS] */
    float *page, *turned;
    float *dot[2]; /* [rows][DQ_PAGE_TOKENS] with o1, e */
    float *centre; /* [width], negative */
    loo_row row[DQ_PAGE_TOKENS];
} loo;

int64_t dq_cpu_column_floats(const dq_attend_args *args, int64_t rows)
{
    const dq_head_order *map = args->attn->map;
    const int64_t width = (int64_t)map->n_slabs * map->head_dim;
    if (!args->columns || !args->columns->loo) return 0;
    const int64_t floats = 4 * rows * width + DQ_PAGE_TOKENS * map->n_slabs * args->kv->v_cols +
                           DQ_PAGE_TOKENS * (int64_t)map->head_dim + 2 * rows * DQ_PAGE_TOKENS +
                           width;
    return (floats + 15) / 16 * 16;
}

/* As the rows read them; good until the next call. */
static const float *page_values(const loo *l, int64_t page, int slab)
{
    const dq_cpu_column_job *j = l->job;
    return dq_cpu_kv_read_values(j->simd, j->args->kv, j->list, page,
                                 j->args->attn->map->head[j->out].v[slab], l->coded_end, j->read);
}

static void loo_scratch(loo *l)
{
    const int64_t block = l->job->rows.n * l->width;
    float *p = l->job->scratch;
    for (int m = 0; m < 2; m++, p += block) l->rest[m] = p;
    l->o1 = p;
    l->e = p + block;
    l->page = l->e + block;
    l->turned = l->page + DQ_PAGE_TOKENS * l->n_slabs * l->v_cols;
    l->dot[0] = l->turned + DQ_PAGE_TOKENS * l->dim;
    l->dot[1] = l->dot[0] + l->job->rows.n * DQ_PAGE_TOKENS;
    l->centre = l->dot[1] + l->job->rows.n * DQ_PAGE_TOKENS;
}

/* Any centre is right; the mean of one page in the middle is near all values, and depends on the list
 * alone. */
static void find_centre(loo *l)
{
    const int64_t pages = (l->job->list->count + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS,
                  p = (pages - 1) / 2;
    const int64_t left = l->job->list->count - p * DQ_PAGE_TOKENS,
                  n = left < DQ_PAGE_TOKENS ? left : DQ_PAGE_TOKENS;
    memset(l->centre, 0, (size_t)l->width * sizeof *l->centre);
    for (int slab = 0; slab < l->n_slabs; slab++) {
        const float *v = page_values(l, p, slab);
        float *into = l->centre + slab * l->dim;
        for (int64_t i = 0; i < n; i++) l->job->simd->add(into, v + i * l->v_cols, l->dim);
        l->job->simd->scale(into, l->dim, -1.0f / (float)n);
    }
}

/* The centred values of one slab, n tokens of a page. */
static float *centred(const loo *l, int64_t page, int slab, int64_t n)
{
    float *to = l->page + slab * DQ_PAGE_TOKENS * l->v_cols;
    memcpy(to, page_values(l, page, slab), (size_t)(n * l->v_cols) * sizeof *to);
    for (int64_t i = 0; i < n; i++)
        l->job->simd->add(to + i * l->v_cols, l->centre + slab * l->dim, l->dim);
    return to;
}

/* A sum below 2 has one value of 1 (the maximum) that outweighs the others. */
static void find_star(loo *l, int64_t r, int m)
{
    const dq_cpu_column_job *j = l->job;
    loo_row *row = &l->row[r];
    const float *p = j->p[m] + r * j->ld;
    row->star[m] = -1;
    row->total[m] = j->sum[m][r];
    if (!(row->total[m] < 2.0)) return;
    double sum[4] = {0};
    for (int64_t i = 0; i < j->visible[r]; i++) {
        if (p[i] == 1.0f && row->star[m] < 0)
            row->star[m] = i;
        else
            sum[i % 4] += (double)p[i];
    }
    row->others[m] = sum[0] + sum[1] + (sum[2] + sum[3]);
    row->total[m] = 1.0 + row->others[m];
}

static void set_stars(const loo *l, float value)
{
    const dq_cpu_column_job *j = l->job;
    for (int m = 0; m < l->n_maps; m++) {
        for (int64_t r = l->first; r < j->rows.n; r++) {
            if (l->row[r].star[m] >= 0) j->p[m][r * j->ld + l->row[r].star[m]] = value;
        }
    }
}

static int64_t page_tokens(const loo *l, int64_t page)
{
    const int64_t left = l->job->visible[l->job->rows.n - 1] - page * DQ_PAGE_TOKENS;
    return left < DQ_PAGE_TOKENS ? left : DQ_PAGE_TOKENS;
}

/* Where a row's star stands in this page, its value waits in o1 or e for find_outputs. */
static void stash_stars(const loo *l, int64_t page, int slab, const float *v)
{
    for (int m = 0; m < l->n_maps; m++) {
        for (int64_t r = l->first; r < l->job->rows.n; r++) {
            const int64_t star = l->row[r].star[m];
            if (star >= 0 && star / DQ_PAGE_TOKENS == page)
                memcpy((m ? l->e : l->o1) + r * l->width + slab * l->dim,
                       v + star % DQ_PAGE_TOKENS * l->v_cols, (size_t)l->dim * sizeof *v);
        }
    }
}

/* rest[m] = sum of p v over all keys but the star. */
static void average_values(const loo *l)
{
    const dq_cpu_column_job *j = l->job;
    const int64_t rows = j->rows.n - l->first;
    for (int64_t p = 0; page_tokens(l, p) > 0; p++) {
        const int64_t k = page_tokens(l, p);
        for (int slab = 0; slab < l->n_slabs; slab++) {
            const float *v = centred(l, p, slab, k);
            stash_stars(l, p, slab, v);
            for (int64_t c = 0; c < l->dim; c += DQ_TILE_N) {
                const int64_t n = l->dim - c < DQ_TILE_N ? l->dim - c : DQ_TILE_N;
                for (int m = 0; m < l->n_maps; m++)
                    j->simd->gemm(l->rest[m] + l->first * l->width + slab * l->dim + c, l->width,
                                  j->p[m] + l->first * j->ld + p * DQ_PAGE_TOKENS, j->ld, v + c,
                                  l->v_cols, rows, n, k, p > 0);
            }
        }
    }
    for (int m = 0; m < l->n_maps; m++) {
        for (int64_t r = l->first; r < j->rows.n; r++)
            j->simd->scale(l->rest[m] + r * l->width, l->width, (float)(1.0 / l->row[r].total[m]));
    }
}

/* o of one row and map: the rest and what the star, whose value waits in o, adds to it. */
static void add_star(const loo *l, float *o, int64_t r, int m)
{
    const float *rest = l->rest[m] + r * l->width;
    const float p = l->row[r].star[m] < 0 ? 0.0f : (float)(1.0 / l->row[r].total[m]);
    if (p == 0.0f) memset(o, 0, (size_t)l->width * sizeof *o); /* nothing waits there */
    for (int64_t c = 0; c < l->width; c++) o[c] = rest[c] + p * o[c];
}

static void find_outputs(loo *l, int64_t r)
{
    loo_row *row = &l->row[r];
    float *o1 = l->o1 + r * l->width, *e = l->e + r * l->width;
    add_star(l, o1, r, 0);
    row->lambda = row->o1_e = row->e_e = 0;
    row->o1_o1 = l->job->simd->sum_squares(o1, l->width);
    if (l->n_maps == 1) return;
    row->lambda = (double)dq_cpu_lambda(l->job->args, l->job->rows.first + r, l->job->out);
    add_star(l, e, r, 1);
    for (int64_t c = 0; c < l->width; c++) {
        e[c] = o1[c] - e[c];
        row->o1_e += (double)o1[c] * (double)e[c];
    }
    row->e_e = l->job->simd->sum_squares(e, l->width);
}

/* p / (1 - p), for p up to the largest f32 below 1. */
static double odds(double x, double total)
{
    const double p = x / total, max = 1.0 - 0x1p-24;
    return p <= max ? p / (1.0 - p) : max / (1.0 - max);
}

/* |d|^2 by its components, for token i of a page. */
static double direct(const loo *l, int64_t r, int64_t key, double a, double b)
{
    const loo_row *row = &l->row[r];
    const bool star1 = row->star[0] == key, star2 = l->n_maps == 2 && row->star[1] == key;
    const double left1 = row->others[0] / row->total[0];
    const double left2 = star2 ? row->others[1] / row->total[1] : 0.0;
    double sum = 0;
    for (int64_t c = 0; c < l->width; c++) {
        const int64_t slab = c / l->dim;
        const double v =
            (double)l->page[(slab * DQ_PAGE_TOKENS + key % DQ_PAGE_TOKENS) * l->v_cols + c -
                            slab * l->dim];
        const double o1 = (double)l->o1[r * l->width + c] - v;
        const double e = l->n_maps == 2 ? (double)l->e[r * l->width + c] : 0.0;
        double d = (a - b) * o1 + b * e;
        if (star1 || star2) {
            const double x = star1 ? (double)l->rest[0][r * l->width + c] - left1 * v : o1;
            const double y = star2 ? (double)l->rest[1][r * l->width + c] - left2 * v : o1 - e;
            d = a * x - b * y;
        }
        sum += d * d;
    }
    return sum;
}

/* Adds one row's lengths for n tokens of a page; v_v: squared lengths of their values. */
static void add_lengths(const loo *l, int64_t r, int64_t page, int64_t n, const double *v_v)
{
    const dq_cpu_column_job *j = l->job;
    const loo_row *row = &l->row[r];
    const float *p1 = j->p[0] + r * j->ld + page * DQ_PAGE_TOKENS;
    const float *p2 = l->n_maps == 2 ? j->p[1] + r * j->ld + page * DQ_PAGE_TOKENS : NULL;
    const float *o_v = l->dot[0] + r * DQ_PAGE_TOKENS, *e_v = l->dot[1] + r * DQ_PAGE_TOKENS;
    double *into = j->args->columns->loo + l->at + page * DQ_PAGE_TOKENS;
    for (int64_t i = 0; i < n; i++) {
        const int64_t key = page * DQ_PAGE_TOKENS + i;
        const double a = odds((double)p1[i], row->total[0]);
        const double b = p2 ? row->lambda * odds((double)p2[i], row->total[1]) : 0.0, w = a - b;
        const double x_x = row->o1_o1 + v_v[i] - 2.0 * (double)o_v[i];
        const double e_x = p2 ? row->o1_e - (double)e_v[i] : 0.0;
        const double terms = w * w * (row->o1_o1 + v_v[i]) + b * b * row->e_e;
        double d_d = w * w * x_x + 2.0 * w * b * e_x + b * b * row->e_e;
        if (!(d_d >= 0.125 * terms) || key == row->star[0] || (p2 && key == row->star[1]))
            d_d = direct(l, r, key, a, b);
        into[i] += sqrt(d_d);
    }
}

static void add_page(const loo *l, int64_t page)
{
    const dq_cpu_column_job *j = l->job;
    const int64_t n = page_tokens(l, page), rows = j->rows.n - l->first;
    double v_v[DQ_PAGE_TOKENS] = {0};
    for (int slab = 0; slab < l->n_slabs; slab++) {
        const float *v = centred(l, page, slab, n);
        for (int64_t i = 0; i < n; i++) v_v[i] += j->simd->sum_squares(v + i * l->v_cols, l->dim);
        j->simd->transpose(l->turned, DQ_PAGE_TOKENS, v, l->v_cols, n, l->dim);
        for (int m = 0; m < l->n_maps; m++)
            j->simd->gemm(l->dot[m] + l->first * DQ_PAGE_TOKENS, DQ_PAGE_TOKENS,
                          (m ? l->e : l->o1) + l->first * l->width + slab * l->dim, l->width,
                          l->turned, DQ_PAGE_TOKENS, rows, n, l->dim, slab > 0);
    }
    for (int64_t r = l->first; r < j->rows.n; r++) {
        const int64_t seen = j->visible[r] - page * DQ_PAGE_TOKENS;
        if (seen > 0) add_lengths(l, r, page, seen < n ? seen : n, v_v);
    }
}

/* Rows from `first` on count; all of them read the same tokens as codes. */
static void count_left_out(const dq_cpu_column_job *j, int64_t first, int64_t coded_end, int64_t at)
{
    const dq_head_order *map = j->args->attn->map;
    loo l = {.job = j,
             .first = first,
             .coded_end = coded_end,
             .at = at,
             .dim = map->head_dim,
             .width = (int64_t)map->n_slabs * map->head_dim,
             .v_cols = j->args->kv->v_cols,
             .n_maps = map->n_maps,
             .n_slabs = map->n_slabs};
    loo_scratch(&l);
    find_centre(&l);
    for (int m = 0; m < l.n_maps; m++) {
        for (int64_t r = first; r < j->rows.n; r++) find_star(&l, r, m);
    }
    set_stars(&l, 0.0f);
    average_values(&l);
    set_stars(&l, 1.0f);
    for (int64_t r = first; r < j->rows.n; r++) find_outputs(&l, r);
    for (int64_t p = 0; page_tokens(&l, p) > 0; p++) add_page(&l, p);
}

/* Rows of a block may read a page in two forms: each part is a job of its own. */
static void count_spans(const dq_cpu_column_job *j, int64_t first, int64_t at)
{
    dq_kv_span span[2];
    const int n = dq_kv_spans(span, j->args->kv, j->list, &j->rows);
    for (int i = 0; i < n; i++) {
        const int64_t skip = span[i].first;
        dq_cpu_column_job part = *j;
        if (skip + span[i].n <= first) continue;
        part.rows.first += skip;
        part.rows.pos += skip;
        part.rows.n = span[i].n;
        part.visible += skip;
        for (int m = 0; m < 2 && j->p[m]; m++) {
            part.p[m] += skip * j->ld;
            part.sum[m] += skip;
        }
        count_left_out(&part, first > skip ? first - skip : 0, span[i].coded_end, at);
    }
}

void dq_cpu_count_columns(const dq_cpu_column_job *j)
{
    const dq_columns *c = j->args->columns;
    const int64_t end = j->args->batch->cu_rows[j->rows.seq + 1];
    const int64_t at = c->offset[list_of(j)];
    int64_t first = c->last_rows ? end - c->last_rows - j->rows.first : 0; /* that counts */
    if (first < 0) first = 0;
    while (first < j->rows.n && j->visible[first] == 0) first++;
    if (first >= j->rows.n) return;
    for (int64_t r = first; r < j->rows.n; r++) count_row(j, r, at);
    if (c->loo) count_spans(j, first, at);
}
