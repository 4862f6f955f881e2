/* cpu_profile: magnitudes by classes of tokens, by heads and by channels. Keys that are not ordinary are few: a row of logits is
 * cut at them into runs. Threads have tallies of their own; a table of channels is shared by columns, so it takes no copies.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/attention/cpu_attention.h"

#include <omp.h>

enum { ROWS = 32, COLS = 64 };

/* What the threads of a call fill. */
typedef struct parts {
    const dq_profile *to;
    const dq_batch *batch;
    int n;                      /* threads */
    dq_tally *ordinary, *other; /* [n] */
    dq_moments *head;           /* [n][n_q][DQ_TOKEN_CLASSES], of logits */
    int64_t n_head;             /* of a thread */
    int64_t *cu;                /* [n_seq + 1] where a sequence begins in `special` */
    int32_t *special;           /* positions of keys that are not ordinary, rising */
} parts;

static void parts_end(parts *p)
{
    dq_cpu_tallies_free(p->ordinary, p->n);
    dq_cpu_tallies_free(p->other, p->n);
    dq_block_free(p->head);
    dq_block_free(p->cu);
    dq_block_free(p->special);
}

static bool parts_begin(dq_backend *b, parts *p, const dq_profile *to, const dq_batch *batch)
{
    *p = (parts){.to = to, .batch = batch, .n = b->threads};
    p->ordinary = dq_cpu_tallies_new(b, to->ordinary);
    p->other = dq_cpu_tallies_new(b, to->all);
    return b->err.code == DQ_OK;
}

static void parts_join(const parts *p)
{
    const dq_profile *to = p->to;
    dq_cpu_tallies_join(to->all, p->ordinary, p->n);
    dq_cpu_tallies_join(to->all, p->other, p->n);
    dq_cpu_tallies_join(to->ordinary, p->ordinary, p->n);
    for (int64_t i = 0; i < p->n_head * p->n; i++)
        dq_moments_merge(&to->head[i % p->n_head], &p->head[i]);
}

/* ---- Logits ---- */

static bool list_special(dq_backend *b, parts *p)
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
                        dq_place at)
{
    const parts *p = arg;
    const int seq = at.seq - p->to->seq_base;
    const uint8_t *class = p->to->class + p->batch->cu_rows[seq];
    dq_moments *m = p->head + thread * p->n_head + (int64_t)at.head * DQ_TOKEN_CLASSES;
    int64_t from = 0;
    (void)list;
    for (int64_t i = p->cu[seq]; i <= p->cu[seq + 1]; i++) {
        const int64_t key = i < p->cu[seq + 1] && p->special[i] < n ? p->special[i] : n;
        at.col = (int32_t)from;
        if (key > from)
            dq_tally_add_with(&p->ordinary[thread], &m[DQ_TOKEN_ORDINARY], s + from, key - from,
                              at);
        if (key == n) return;
        at.col = (int32_t)key;
        dq_tally_add_with(&p->other[thread], &m[class[key]], s + key, 1, at);
        from = key + 1;
    }
}

void dq_cpu_profile_logits(dq_backend *b, const dq_profile *to, const dq_attend_args *args)
{
    parts p;
    if (b->err.code != DQ_OK) return;
    if (parts_begin(b, &p, to, args->batch) && list_special(b, &p)) {
        p.n_head = (int64_t)args->attn->map->n_q * DQ_TOKEN_CLASSES;
        p.head = dq_block_new((size_t)(p.n_head * p.n), sizeof *p.head, &b->err);
        if (p.head) dq_cpu_walk_logits(b, args, to->seq_base, take_logits, &p);
        if (b->err.code == DQ_OK) parts_join(&p);
    }
    parts_end(&p);
}

/* ---- Activations ---- */

/* Rows after `row` of its sequence and class, up to `end`. */
static int64_t run_end(const parts *p, int64_t row, int64_t end, int64_t seq_end)
{
    const uint8_t *class = p->to->class;
    int64_t next = row + 1;
    while (next < end && next < seq_end && class[next] == class[row]) next++;
    return next;
}

/* Columns col .. end - 1 of rows first .. first + n - 1 of the batch. */
static void add_columns(const parts *p, dq_mat x, int64_t first, int64_t col, int64_t end)
{
    const dq_batch *batch = p->batch;
    const int64_t last = first + x.rows;
    for (int64_t row = first, next; row < last; row = next) {
        const int seq = dq_cpu_seq_of_row(batch, row);
        next = run_end(p, row, last, batch->cu_rows[seq + 1]);
        dq_channels_add(p->to->channels, p->to->class[row], x.p + (row - first) * x.cols,
                        next - row, col, end, p->to->seq_base + seq, batch->pos[row]);
    }
}

static void count_rows(const parts *p, int64_t first, int64_t n)
{
    for (int64_t row = first; row < first + n; row++) p->to->channels->rows[p->to->class[row]]++;
}

void dq_cpu_profile_rows(dq_backend *b, const dq_profile *to, dq_mat x, int64_t first,
                         const dq_batch *batch, int layer)
{
    parts p;
    if (b->err.code != DQ_OK) return;
    if (parts_begin(b, &p, to, batch)) {
#pragma omp parallel num_threads(b->threads)
        {
            const int thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, ROWS)
            for (int64_t r = 0; r < x.rows; r++) {
                const int64_t row = first + r;
                const dq_place at = {to->seq_base + dq_cpu_seq_of_row(batch, row), layer, -1,
                                     batch->pos[row], 0};
                dq_tally_add(to->class[row] == DQ_TOKEN_ORDINARY ? &p.ordinary[thread]
                                                                 : &p.other[thread],
                             x.p + r * x.cols, x.cols, at);
            }
#pragma omp for schedule(dynamic, 1)
            for (int64_t col = 0; col < x.cols; col += COLS)
                add_columns(&p, x, first, col, col + COLS < x.cols ? col + COLS : x.cols);
        }
        count_rows(&p, first, x.rows);
        parts_join(&p);
    }
    parts_end(&p);
}
