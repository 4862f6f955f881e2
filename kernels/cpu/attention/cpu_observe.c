/* The largest logits of a call, which granularities that span rows are rounded by.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "kernels/cpu/attention/cpu_attention.h"
#include "kernels/paged/kv_pages.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <string.h>

/* Takes the logits s[n] that a query head has in a row, of tokens from `first` on of the list.
 * at.col is not set. */
typedef void dq_cpu_take_logits(void *arg, int thread, const float *s, int64_t n,
                                const dq_kv_list *list, int64_t first, dq_place at);
static dq_tally *new_tallies(dq_backend *b, const dq_tally *tally);
static void join_tallies(dq_tally *tally, const dq_tally *local, int n);
static void free_tallies(dq_tally *local, int n);
static void walk_logits(dq_backend *b, const dq_attend_args *args, int32_t seq_base,
                        dq_cpu_take_logits *take, void *arg);
static int seq_of_row(const dq_batch *batch, int64_t row);

/* ---- CPU absmax ---- */

/* Floats for a maximum of every query head, such that what follows stands on 64 bytes. */
static int64_t max_floats(const dq_head_order *map)
{
    return (map->n_q + 15) / 16 * 16;
}

/* What attn_absmax needs of a thread's block: products, maxima of every query head, a page. */
static size_t absmax_bytes(const dq_attend_args *args)
{
    const int n_q = args->attn->map->n_q;
    const int64_t floats = DQ_PAGE_TOKENS * DQ_PAGE_TOKENS + max_floats(args->attn->map);
    return (size_t)(floats + dq_cpu_score_floats(args, DQ_PAGE_TOKENS, n_q)) * sizeof(float) +
           (size_t)n_q * (sizeof(dq_simd_int8_rows) + sizeof(int));
}

/* Raises *max to the largest |q . k|, where NaN stays; rows that see all are one run. */
static void raise_max(const dq_simd *simd, float *max, const float *product, const dq_kv_span *a,
                      const int64_t *hidden, const int64_t *visible, int64_t p)
{
    hidden += a->first;
    visible += a->first;
    for (int64_t r = 0, end; r < a->n; r = end) {
        const int64_t from = dq_kv_slots(hidden[r], p), n = dq_kv_slots(visible[r], p) - from;
        end = r + 1;
        while (n == DQ_PAGE_TOKENS && end < a->n && dq_kv_slots(hidden[end], p) == 0 &&
               dq_kv_slots(visible[end], p) == DQ_PAGE_TOKENS)
            end++;
        const int64_t at = r * DQ_PAGE_TOKENS + from, more = (end - r - 1) * DQ_PAGE_TOKENS;
        float pair[2] = {*max, simd->absmax(product + at, n + more)};
        *max = simd->absmax(pair, 2);
    }
}

/* Rounding is monotonic and scale positive: scaling the largest |q . k| gives the largest |S|. */
static void tile_absmax(const dq_cpu *cpu, float *absmax, const dq_attend_args *args,
                        const dq_kv_rows *rows, int key, float *block)
{
    const dq_simd *simd = cpu->simd;
    const dq_head_order *map = args->attn->map;
    const int window = args->attn->window;
    const dq_kv_list seen = dq_kv_seen(
        dq_kv_list_of(args->kv, args->batch->seq[rows->seq], args->layer, map->group[key]), window,
        rows->pos[0]);
    const dq_kv_list *list = &seen;
    float *product = block, *max = product + DQ_PAGE_TOKENS * DQ_PAGE_TOKENS;
    float *read = max + max_floats(map);
    dq_simd_int8_rows *q = (void *)(read + dq_cpu_score_floats(args, DQ_PAGE_TOKENS, map->n_q));
    int *head = (void *)(q + map->n_q), n_heads = 0;
    int64_t hidden[DQ_PAGE_TOKENS], visible[DQ_PAGE_TOKENS];
    dq_kv_span span[2], at[2];
    const int n_spans = dq_kv_spans(span, args->kv, list, rows);
    for (int h = 0; h < map->n_q; h++) {
        if (map->key[h] == key) head[n_heads++] = h;
    }
    dq_cpu_round_queries(q, cpu, args, rows, head, n_heads, read);
    memset(max, 0, (size_t)n_heads * sizeof *max);
    for (int64_t r = 0; r < rows->n; r++) {
        hidden[r] = dq_kv_hidden(list, window, rows->pos[r]);
        visible[r] = dq_kv_visible(list, rows->pos[r]);
    }
    const int64_t keys = visible[rows->n - 1];
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < keys && !dq_os_stop_signal(); p++) {
        const int n_at = dq_kv_page_spans(at, span, n_spans, p);
        for (int i = 0; i < n_at; i++) {
            const dq_cpu_page page =
                dq_cpu_open_page(cpu, args, list, p, DQ_K, key, at[i].coded_end,
                                 dq_kv_slots(keys, p), DQ_PAGE_TOKENS, read);
            for (int h = 0; h < n_heads; h++) {
                dq_cpu_times_keys(cpu, product, DQ_PAGE_TOKENS, args, rows, &at[i], head[h], &q[h],
                                  &page, read);
                raise_max(simd, &max[h], product, &at[i], hidden, visible, p);
            }
        }
    }
    for (int h = 0; h < n_heads; h++) absmax[head[h]] = max[h] * map->scale;
}

/* Tiles of rows of all sequences. Fills list (NULL: only counts). */
static int64_t list_tiles(dq_kv_rows *list, const dq_batch *batch)
{
    int64_t n = 0;
    for (int i = 0; i < batch->n_seq; i++) {
        for (int64_t end = batch->cu_rows[i + 1]; end > batch->cu_rows[i]; n++) {
            dq_kv_rows tile;
            dq_cpu_rows_last_tile(&tile, batch, i, batch->cu_rows[i], end);
            end = tile.first;
            if (list) list[n] = tile;
        }
    }
    return n;
}

void dq_cpu_attn_absmax(dq_backend *b, float *absmax, const dq_attend_args *args)
{
    if (b->err.code != DQ_OK) return;
    const dq_cpu *cpu = dq_cpu_of(b);
    const dq_simd *simd = cpu->simd;
    const int n_q = args->attn->map->n_q, n_kv = args->attn->map->n_kv;
    const int64_t n = list_tiles(NULL, args->batch);
    const size_t each = sizeof(dq_kv_rows) + (size_t)n_q * sizeof(float);
    memset(absmax, 0, (size_t)args->batch->n_seq * (size_t)n_q * sizeof *absmax);
    dq_kv_rows *tiles = dq_cpu_shared(b, (size_t)(n + 1) * each);
    if (!tiles || !dq_cpu_reserve(b, absmax_bytes(args))) return;
    float *max = (float *)(void *)(tiles + n);
    list_tiles(tiles, args->batch);
#pragma omp parallel for schedule(dynamic, 1) num_threads(b->threads)
    for (int64_t t = 0; t < n * n_kv; t++) {
        tile_absmax(cpu, max + t / n_kv * n_q, args, &tiles[t / n_kv], (int)(t % n_kv),
                    cpu->block[omp_get_thread_num()]);
    }
    dq_os_check_stop(&b->err);
    for (int64_t t = 0; b->err.code == DQ_OK && t < n * n_q; t++) {
        float *into = &absmax[tiles[t / n_q].seq * n_q + t % n_q];
        float pair[2] = {*into, max[t]};
        *into = simd->absmax(pair, 2);
    }
}

void dq_cpu_absmax_join(dq_backend *b, float *absmax, int n_seq, int n_q)
{
    if (b->err.code != DQ_OK) return;
    for (int i = 0; i < n_seq; i++) {
        float *row = absmax + (int64_t)i * n_q;
        float max = dq_cpu_of(b)->simd->absmax(row, n_q);
        for (int h = 0; h < n_q; h++) row[h] = max;
    }
}

/* ---- CPU columns ----
 * Per-key sums over the rows of an attend call, for eviction policies. */

static void add_map(double *sums, const float *p, int64_t n, float a)
{
    for (int64_t i = 0; i < n; i++) sums[i] += (double)(p[i] * a);
}

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

/* 1 / sum of p over the tokens of the range's softmax; 0 where the row gives them nothing. */
static double range_scale(const float *p, double all, const dq_column_range *t, int64_t n)
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

static int64_t list_of(const dq_cpu_column_job *j)
{
    const dq_head_order *map = j->args->attn->map;
    return (int64_t)j->rows.seq * map->n_groups + map->group[map->head[j->out].v[0]];
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
    for (int64_t r = first; r < j->rows.n; r++) {
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
        if (c->diff) {
            for (int64_t i = 0; i < n; i++) {
                const float x = p1[i] * a, y = p2 ? p2[i] * lambda_b : 0.0f;
                c->diff[at + i] += (double)fabsf(x - y);
            }
        }
        if (c->peak) {
            const dq_column_range *t = &c->range[list_of(j)];
            for (int m = 0; m < 2 && j->p[m]; m++) {
                const float *p = j->p[m] + r * j->ld;
                const double weight =
                    m ? fabs((double)dq_cpu_lambda(j->args, j->rows.first + r, j->out)) : 1.0;
                raise_peaks(c->peak + at + t->from, p + t->from, t->to - t->from,
                            weight * range_scale(p, j->sum[m][r], t, j->visible[r]));
            }
        }
    }
}

/* ---- CPU measure ----
 * What the maps of an output head look like, on their way from softmax to subtraction. */

enum { RUN_PAGES = 64, RUN_KEYS = RUN_PAGES * DQ_PAGE_TOKENS };
static_assert((int)DQ_N_THRESHOLDS == (int)DQ_SIMD_LIMITS, "loops compare with each threshold");
static_assert((int)DQ_PAGE_TOKENS == (int)DQ_TILE_N, "loops add up pages");

/* The least float that is not below the threshold: no float lies between the two. */
static float limit_of(double threshold)
{
    const float near = (float)threshold;
    return (double)near < threshold ? nextafterf(near, INFINITY) : near;
}

/* Keys of whole pages, but for the row's last: what is near zero, and which pages are. */
static void measure_run(const dq_simd *simd, dq_head_measure *m, const float *p1, const float *p2,
                        int64_t n, float a, float b)
{
    double page[RUN_PAGES];
    float limit[DQ_N_THRESHOLDS];
    for (int k = 0; k < DQ_N_THRESHOLDS; k++) limit[k] = limit_of(dq_head_measure_thresholds[k]);
    m->negative += simd->map_sizes(page, m->near_zero, p1, p2, n, a, b, limit);
    for (int64_t i = 0; i * DQ_PAGE_TOKENS < n; i++) {
        for (int k = 0; k < DQ_N_THRESHOLDS; k++)
            m->skippable[k] += page[i] < dq_head_measure_thresholds[k];
        m->variation += page[i];
        m->pages++;
    }
}

void dq_cpu_measure(const dq_simd *simd, const dq_cpu_column_job *j, dq_head_measure *m)
{
    for (int64_t r = 0; r < j->rows.n; r++) {
        if (j->visible[r] > 0) {
            const int64_t hidden = j->hidden[r], at = r * j->ld + hidden;
            const float *p[2] = {j->p[0] + at, j->p[1] ? j->p[1] + at : NULL};
            const int64_t n = j->visible[r] - hidden;
            int64_t sinks = dq_kv_visible(j->list, DQ_SINKS - 1) - hidden;
            float b = 0.0f;
            if (sinks > n) sinks = n;
            for (int k = 0; k < 2 && p[k]; k++) {
                const float a = (float)(1.0 / j->sum[k][r]);
                m->entropy[k] += simd->entropy(p[k], n, a);
                double sum = 0;
                for (int64_t i = 0; i < sinks; i++) sum += (double)(p[k][i] * a);
                m->sink_mass[k] += sum;
            }
            if (p[1])
                b = (float)((double)dq_cpu_lambda(j->args, j->rows.first + r, j->out) /
                            j->sum[1][r]);
            for (int64_t i = 0; i < n; i += RUN_KEYS)
                measure_run(simd, m, p[0] + i, p[1] ? p[1] + i : NULL,
                            n - i < RUN_KEYS ? n - i : RUN_KEYS, (float)(1.0 / j->sum[0][r]), b);
            m->rows++;
            m->keys += n;
        }
    }
}

/* ---- CPU profile ----
 * Magnitudes by classes of tokens, by heads and by channels. Keys that are not ordinary are few: a
 * row of logits is cut at them into runs. Threads have tallies of their own; a table of channels
 * is shared by columns, so it takes no copies. */

enum { ROWS = 32, COLS = 64 };

typedef struct partials {
    const dq_profile *to;
    const dq_batch *batch;
    int n;                      /* threads */
    dq_tally *ordinary, *other; /* [n] */
    dq_moments *head;           /* [n][n_q][DQ_TOKEN_CLASSES], of logits */
    int64_t n_head;             /* of a thread */
    int64_t *cu;                /* [n_seq + 1] where a sequence begins in `special` */
    int32_t *special;           /* positions of keys that are not ordinary, rising */
} partials;

static void partials_end(partials *p)
{
    free_tallies(p->ordinary, p->n);
    free_tallies(p->other, p->n);
    dq_block_free(p->head);
    dq_block_free(p->cu);
    dq_block_free(p->special);
}

static bool partials_begin(dq_backend *b, partials *p, const dq_profile *to, const dq_batch *batch)
{
    *p = (partials){.to = to, .batch = batch, .n = b->threads};
    p->ordinary = new_tallies(b, to->ordinary);
    p->other = new_tallies(b, to->all);
    return b->err.code == DQ_OK;
}

static void partials_join(const partials *p)
{
    const dq_profile *to = p->to;
    join_tallies(to->all, p->ordinary, p->n);
    join_tallies(to->all, p->other, p->n);
    join_tallies(to->ordinary, p->ordinary, p->n);
    for (int64_t i = 0; i < p->n_head * p->n; i++)
        dq_moments_merge(&to->head[i % p->n_head], &p->head[i]);
}

/* ---- Logits ---- */

static bool list_special(dq_backend *b, partials *p)
{
    const dq_batch *batch = p->batch;
    int64_t n = 0;
    for (int64_t row = 0; row < batch->n_rows; row++) n += p->to->class[row] != DQ_TOKEN_ORDINARY;
    p->special = dq_block_new((size_t)n + 1, sizeof *p->special, &b->err);
    p->cu = dq_block_new((size_t)batch->n_seq + 1, sizeof *p->cu, &b->err);
    if (b->err.code != DQ_OK) return false;
    n = 0;
    for (int i = 0; i < batch->n_seq; i++) {
        for (int64_t row = batch->cu_rows[i]; row < batch->cu_rows[i + 1]; row++) {
            if (p->to->class[row] != DQ_TOKEN_ORDINARY)
                p->special[n++] = (int32_t)(row - batch->cu_rows[i]);
        }
        p->cu[i + 1] = n;
    }
    return true;
}

/* A row's logits, cut at the keys that are not ordinary. */
static void take_logits(void *arg, int thread, const float *s, int64_t n, const dq_kv_list *list,
                        int64_t first, dq_place at)
{
    const partials *p = arg;
    const int seq = at.seq - p->to->seq_base;
    const uint8_t *class = p->to->class + p->batch->cu_rows[seq];
    dq_moments *m = p->head + thread * p->n_head + (int64_t)at.head * DQ_TOKEN_CLASSES;
    int64_t from = dq_kv_pos(list, first); /* the rows of the batch alone: its place among them */
    const int64_t end = from + n;
    s -= from;
    for (int64_t i = p->cu[seq]; i <= p->cu[seq + 1]; i++) {
        const int64_t key = i < p->cu[seq + 1] && p->special[i] < end ? p->special[i] : end;
        if (key < from) continue;
        at.col = (int32_t)from;
        if (key > from)
            dq_tally_add_with(&p->ordinary[thread], &m[DQ_TOKEN_ORDINARY], s + from, key - from,
                              at);
        if (key == end) return;
        at.col = (int32_t)key;
        dq_tally_add_with(&p->other[thread], &m[class[key]], s + key, 1, at);
        from = key + 1;
    }
}

void dq_cpu_profile_logits(dq_backend *b, const dq_profile *to, const dq_attend_args *args)
{
    partials p;
    if (b->err.code != DQ_OK) return;
    if (partials_begin(b, &p, to, args->batch) && list_special(b, &p)) {
        p.n_head = (int64_t)args->attn->map->n_q * DQ_TOKEN_CLASSES;
        p.head = dq_block_new((size_t)(p.n_head * p.n), sizeof *p.head, &b->err);
        if (p.head) walk_logits(b, args, to->seq_base, take_logits, &p);
        if (b->err.code == DQ_OK) partials_join(&p);
    }
    partials_end(&p);
}

/* ---- Activations ---- */

/* Rows after `row` of its sequence and class, up to `end`. */
static int64_t run_end(const partials *p, int64_t row, int64_t end, int64_t seq_end)
{
    const uint8_t *class = p->to->class;
    int64_t next = row + 1;
    while (next < end && next < seq_end && class[next] == class[row]) next++;
    return next;
}

static void add_columns(const partials *p, dq_mat x, int64_t first, int64_t col, int64_t end)
{
    const dq_batch *batch = p->batch;
    const int64_t last = first + x.rows;
    for (int64_t row = first, next; row < last; row = next) {
        const int seq = seq_of_row(batch, row);
        next = run_end(p, row, last, batch->cu_rows[seq + 1]);
        dq_channels_add(p->to->channels, p->to->class[row], x.p + (row - first) * x.cols,
                        next - row, col, end, p->to->seq_base + seq, batch->pos[row]);
    }
}

void dq_cpu_profile_rows(dq_backend *b, const dq_profile *to, dq_mat x, int64_t first,
                         const dq_batch *batch, int layer)
{
    partials p;
    if (b->err.code != DQ_OK) return;
    if (partials_begin(b, &p, to, batch)) {
#pragma omp parallel num_threads(b->threads)
        {
            const int thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, ROWS)
            for (int64_t r = 0; r < x.rows; r++) {
                const int64_t row = first + r;
                const dq_place at = {to->seq_base + seq_of_row(batch, row), layer, -1,
                                     batch->pos[row], 0};
                dq_tally_add(to->class[row] == DQ_TOKEN_ORDINARY ? &p.ordinary[thread]
                                                                 : &p.other[thread],
                             x.p + r * x.cols, x.cols, at);
            }
#pragma omp for schedule(dynamic, 1)
            for (int64_t col = 0; col < x.cols; col += COLS)
                add_columns(&p, x, first, col, col + COLS < x.cols ? col + COLS : x.cols);
        }
        for (int64_t row = first; row < first + x.rows; row++)
            p.to->channels->rows[p.to->class[row]]++;
        partials_join(&p);
    }
    partials_end(&p);
}

/* ---- Spans ----
 * What rows give to classes of tokens, between softmax and subtraction. */

/* In the order of the list, with the roundings of the subtraction itself. */
static void count_spans(const dq_cpu_column_job *j, dq_span_mass *mass, const uint8_t *label,
                        int64_t r)
{
    const float *p1 = j->p[0] + r * j->ld, *p2 = j->p[1] ? j->p[1] + r * j->ld : NULL;
    const float a = (float)(1.0 / j->sum[0][r]);
    float b = 0.0f;
    if (p2) b = (float)((double)dq_cpu_lambda(j->args, j->rows.first + r, j->out) / j->sum[1][r]);
    for (int64_t i = j->hidden[r]; i < j->visible[r]; i++) {
        const float x = p1[i] * a, y = p2 ? p2[i] * b : 0.0f;
        const double d = (double)(x - y);
        if (d < 0)
            mass[label[i]].negative -= d;
        else
            mass[label[i]].positive += d;
    }
}

void dq_cpu_count_spans(const dq_cpu_column_job *j, dq_span_mass *mass, const dq_span_rows *s)
{
    const dq_head_order *map = j->args->attn->map;
    const dq_attention_spans *spans = j->args->spans;
    const int n_classes = spans->n_classes, seq = j->rows.seq;
    const int64_t first = dq_attention_spans_first(spans, j->args->batch->cu_rows, seq);
    const int list = seq * map->n_groups + map->group[map->head[j->out].v[0]];
    const uint8_t *label = s->label + s->key[list + 1] - j->list->count;
    for (int64_t r = first > j->rows.first ? first - j->rows.first : 0; r < j->rows.n; r++) {
        const int64_t record = s->at[seq] + j->rows.first + r - first;
        count_spans(j, mass + (record * map->n_out + j->out) * n_classes, label, r);
    }
}

/* ---- CPU observe ----
 * Reducers that look at values on their way through the forward pass. Every thread has a tally of
 * its own; tallies merge in any order. */

enum { ACTIVATION_ROWS = 32 };

/* Of the pass of *tally, one per thread, without what cannot enter its list. NULL: sticky error. */
static dq_tally *new_tallies(dq_backend *b, const dq_tally *tally)
{
    dq_tally *local = dq_block_new((size_t)b->threads, sizeof *local, &b->err);
    for (int i = 0; local && i < b->threads; i++) {
        if (dq_tally_init(&local[i], &b->err) != DQ_OK) break;
        local[i].threshold = tally->threshold; /* what cannot enter there need not enter here */
        local[i].powers = dq_cpu_of(b)->simd->power_sums;
        if (!tally->fine) continue;
        local[i].refine_bin = tally->refine_bin;
        local[i].fine = dq_block_new(65536, sizeof *local[i].fine, &b->err);
    }
    return local;
}

static void free_tallies(dq_tally *local, int n)
{
    for (int i = 0; local && i < n; i++) dq_tally_free(&local[i]);
    dq_block_free(local);
}

static void join_tallies(dq_tally *tally, const dq_tally *local, int n)
{
    for (int i = 0; local && i < n; i++) dq_tally_merge(tally, &local[i]);
}

/* A tile of rows with one query head, `step` rows at a time. */
static void walk_tile(dq_backend *b, const dq_attend_args *args, const dq_kv_rows *tile, int head,
                      int64_t step, int32_t seq_base, dq_cpu_take_logits *take, void *arg)
{
    const dq_simd *simd = dq_cpu_of(b)->simd;
    const dq_head_order *map = args->attn->map;
    const dq_kv_list *list = dq_kv_list_of(args->kv, args->batch->seq[tile->seq], args->layer,
                                           map->group[map->key[head]]);
    float *scratch = dq_cpu_of(b)->block[omp_get_thread_num()];
    float *s = scratch + dq_cpu_score_floats(args, step, 1);
    const int window = args->attn->window;
    for (int64_t done = 0; done < tile->n && !dq_os_stop_signal(); done += step) {
        dq_kv_rows rows = {tile->seq, tile->first + done, tile->n - done, tile->pos + done};
        if (rows.n > step) rows.n = step;
        const dq_kv_list seen = dq_kv_seen(list, window, rows.pos[0]);
        const int64_t keys = dq_kv_visible(&seen, rows.pos[rows.n - 1]);
        const int64_t ld = dq_cpu_row_floats(keys);
        dq_cpu_scores(dq_cpu_of(b), &s, ld, args, &rows, &seen, &head, 1, keys, NULL, scratch);
        for (int64_t r = 0; r < rows.n; r++) {
            const int64_t first = dq_kv_hidden(&seen, window, rows.pos[r]);
            const int64_t n = dq_kv_visible(&seen, rows.pos[r]) - first;
            dq_place at = {seq_base + rows.seq, args->layer, head, rows.pos[r], 0};
            simd->scale(s + r * ld + first, n, map->scale);
            take(arg, omp_get_thread_num(), s + r * ld + first, n, &seen, first, at);
        }
    }
}

/* Those of all query heads and rows, by all threads, in any order. */
static void walk_logits(dq_backend *b, const dq_attend_args *args, int32_t seq_base,
                        dq_cpu_take_logits *take, void *arg)
{
    const int64_t n = list_tiles(NULL, args->batch), keys = dq_cpu_max_keys(args);
    const int64_t step = dq_cpu_block_rows(keys, 1); /* tiles that see less keep to it too */
    const int64_t floats = step * dq_cpu_row_floats(keys) + dq_cpu_score_floats(args, step, 1);
    const int n_q = args->attn->map->n_q;
    dq_kv_rows *tiles = dq_cpu_shared(b, (size_t)(n + 1) * sizeof *tiles);
    if (!tiles || !dq_cpu_reserve(b, (size_t)floats * sizeof(float))) return;
    list_tiles(tiles, args->batch);
#pragma omp parallel for schedule(dynamic, 1) num_threads(b->threads)
    for (int64_t i = 0; i < n * n_q; i++)
        walk_tile(b, args, &tiles[i / n_q], (int)(i % n_q), step, seq_base, take, arg);
    dq_os_check_stop(&b->err);
}

static void tally_row(void *arg, int thread, const float *s, int64_t n, const dq_kv_list *list,
                      int64_t first, dq_place at)
{
    dq_tally *local = arg;
    const int64_t stop = first + n;
    for (int64_t i = first; i < stop;) {
        int64_t end = i + 1;
        at.col = dq_kv_pos(list, i);
        if (dq_kv_pos(list, stop - 1) - at.col == stop - 1 - i) end = stop;
        while (end < stop && dq_kv_pos(list, end) - at.col == end - i) end++;
        dq_tally_add(&local[thread], s + i - first, end - i, at);
        i = end;
    }
}

void dq_cpu_attn_observe(dq_backend *b, dq_tally *tally, const dq_attend_args *args,
                         int32_t seq_base)
{
    if (b->err.code != DQ_OK) return;
    dq_tally *local = new_tallies(b, tally);
    if (b->err.code == DQ_OK) walk_logits(b, args, seq_base, tally_row, local);
    if (b->err.code == DQ_OK) join_tallies(tally, local, b->threads);
    free_tallies(local, b->threads);
}

static int seq_of_row(const dq_batch *batch, int64_t row)
{
    int i = 0;
    while (batch->cu_rows[i + 1] <= row) i++;
    return i;
}

void dq_cpu_observe(dq_backend *b, dq_tally *tally, dq_mat x, const dq_batch *batch, int layer,
                    int32_t seq_base)
{
    if (b->err.code != DQ_OK) return;
    dq_tally *local = new_tallies(b, tally);
    if (b->err.code == DQ_OK) {
#pragma omp parallel for schedule(dynamic, ACTIVATION_ROWS) num_threads(b->threads)
        for (int64_t row = 0; row < x.rows; row++)
            dq_tally_add(
                &local[omp_get_thread_num()], x.p + row * x.cols, x.cols,
                (dq_place){seq_base + seq_of_row(batch, row), layer, -1, batch->pos[row], 0});
        join_tallies(tally, local, b->threads);
    }
    free_tallies(local, b->threads);
}
