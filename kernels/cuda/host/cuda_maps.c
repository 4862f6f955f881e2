/* cuda_maps: columns and measures of attend, from kernels to the host's arrays.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/cuda_attention.h"

#include <string.h>

enum { N_COLUMNS = 4 };

_Static_assert((int)DQ_MAP_THRESHOLDS == (int)DQ_N_THRESHOLDS, "thresholds");

static int requested_columns(double *host[N_COLUMNS], const dq_columns *c)
{
    double *const all[N_COLUMNS] = {c->mass[0], c->mass[1], c->lambda_mass, c->diff};
    int n = 0;
    for (int i = 0; i < N_COLUMNS; i++) n += (host[i] = all[i]) != NULL;
    return n;
}

/* Values of all lists with rows: at[n_lists + 1]. */
static void place_lists(int64_t *at, const dq_attend_args *args)
{
    const dq_batch *batch = args->batch;
    const int n_groups = args->attn->map->n_groups;
    at[0] = 0;
    for (int l = 0; l < batch->n_seq * n_groups; l++) {
        const int i = l / n_groups;
        const bool rows = batch->cu_rows[i + 1] > batch->cu_rows[i];
        at[l + 1] = at[l];
        if (rows)
            at[l + 1] += dq_kv_list_of(args->kv, batch->seq[i], args->layer, l % n_groups)->count;
    }
}

/* ------------------------------------------------------------------------------------------- begin */

static bool begin_columns(dq_backend *b, dq_cuda_observers *l)
{
    const dq_attend_args *args = l->args;
    const int n_lists = args->batch->n_seq * args->attn->map->n_groups;
    double *host[N_COLUMNS];
    const int requested = requested_columns(host, args->columns);
    if (requested == 0) return true;
    int64_t *at = dq_block_new((size_t)n_lists + 1, sizeof *at, &b->err);
    if (!at) return false;
    place_lists(at, args);
    const size_t bytes = (size_t)requested * (size_t)at[n_lists] * sizeof(double);
    double *p = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_C, bytes);
    double **const to[N_COLUMNS] = {&l->sums.mass[0], &l->sums.mass[1], &l->sums.lambda_mass,
                                    &l->sums.diff};
    for (int i = 0, done = 0; p && i < N_COLUMNS; i++) {
        if (host[i]) *to[i] = p + done++ * at[n_lists];
    }
    l->sums.at = p ? dq_cuda_upload(b, at, ((size_t)n_lists + 1) * sizeof *at) : NULL;
    dq_block_free(at);
    return l->sums.at && dq_cuda_ok(b, cudaMemsetAsync(p, 0, bytes, dq_cuda_stream(b)), "memset");
}

static size_t measure_bytes(const dq_attend_args *args)
{
    return (size_t)args->batch->n_seq * (size_t)args->attn->map->n_out * DQ_MAP_FIELDS *
           sizeof(double);
}

bool dq_cuda_observers_begin(dq_backend *b, dq_cuda_observers *l, const dq_cuda_units *u,
                             const dq_attend_args *args)
{
    memset(l, 0, sizeof *l);
    l->args = args;
    if (args->columns && !begin_columns(b, l)) return false;
    if (args->spans && !dq_cuda_spans_begin(b, l)) return false;
    if (args->measure) {
        l->after = (size_t)u->max_factors * DQ_MAP_FIELDS * sizeof(double);
        l->measure = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_BATCH, measure_bytes(args));
        if (!l->measure) return false;
        return dq_cuda_ok(b, cudaMemsetAsync(l->measure, 0, measure_bytes(args), dq_cuda_stream(b)),
                          "memset");
    }
    return true;
}

/* ------------------------------------------------------------------------------------------ launch */

/* Lists of a launch as runs of its units. Returns how many; *most: keys of the longest. */
static int find_runs(dq_map_run *runs, int *max, const dq_attention_unit *unit, int n)
{
    int n_runs = 0;
    *max = 0;
    for (int i = 0; i < n; i++) {
        const dq_attention_unit *w = &unit[i];
        if (i == 0 || w->seq != w[-1].seq || w->group != w[-1].group)
            runs[n_runs++] = (dq_map_run){i, 0, 0};
        dq_map_run *run = &runs[n_runs - 1];
        run->n++;
        if (w->keys > run->keys) run->keys = w->keys;
        if (w->keys > *max) *max = w->keys;
    }
    return n_runs;
}

/* A grid's second axis ends at 65535. */
enum { RUNS = 65535 };

static bool sum_up(dq_backend *b, const dq_cuda_observers *l, const dq_attention_units *u,
                   const dq_map_run *runs, int n, int max)
{
    const cudaStream_t s = dq_cuda_stream(b);
    dq_map_limits limits;
    memcpy(limits.below, dq_head_measure_thresholds, sizeof limits.below);
    bool ok = true;
    for (int i = 0; ok && l->sums.at && i < n; i += RUNS)
        ok = dq_cuda_ok(b, dq_maps_sum(*u, l->sums, runs + i, n - i < RUNS ? n - i : RUNS, max, s),
                        "attend (columns)");
    if (ok && l->measure)
        ok = dq_cuda_ok(b, dq_maps_measure(*u, limits, l->measure, l->scratch, runs, n, s),
                        "attend (measure)");
    return ok;
}

bool dq_cuda_observers_run(dq_backend *b, const dq_cuda_observers *l, const dq_attention_units *u,
                           const dq_attention_unit *unit)
{
    int max;
    if (!l->sums.at && !l->measure) return true;
    dq_map_run *runs = dq_block_new((size_t)u->n, sizeof *runs, &b->err);
    if (!runs) return false;
    const int n = find_runs(runs, &max, unit, u->n);
    const dq_map_run *at = dq_cuda_upload(b, runs, (size_t)n * sizeof *runs);
    dq_block_free(runs);
    return at && sum_up(b, l, u, at, n, max);
}

/* --------------------------------------------------------------------------------------------- end */

/* Where sums belong, kept until the next sync. */
typedef struct column_note {
    double *host[N_COLUMNS];
    int n_lists;
    int64_t list[]; /* at[n_lists + 1], offset[n_lists] */
} column_note;

static void take_columns(void *arg, const void *data, size_t bytes)
{
    const column_note *note = arg;
    const int64_t *at = note->list, *offset = at + note->n_lists + 1;
    const double *from = data;
    (void)bytes;
    for (int c = 0; c < N_COLUMNS; c++) {
        if (!note->host[c]) continue;
        for (int l = 0; l < note->n_lists; l++) {
            for (int64_t k = at[l]; k < at[l + 1]; k++)
                note->host[c][offset[l] + k - at[l]] += from[k];
        }
        from += at[note->n_lists];
    }
}

static void end_columns(dq_backend *b, const dq_cuda_observers *l)
{
    const dq_columns *c = l->args->columns;
    const size_t n_lists = (size_t)(l->args->batch->n_seq * l->args->attn->map->n_groups);
    column_note *note = dq_cuda_note(b, sizeof *note + (2 * n_lists + 1) * sizeof note->list[0]);
    if (!note) return;
    const int requested = requested_columns(note->host, c);
    note->n_lists = (int)n_lists;
    place_lists(note->list, l->args);
    memcpy(note->list + n_lists + 1, c->offset, n_lists * sizeof *c->offset);
    double *const first[] = {l->sums.mass[0], l->sums.mass[1], l->sums.lambda_mass, l->sums.diff};
    int i = 0;
    while (!first[i]) i++;
    dq_cuda_download(b, first[i], (size_t)requested * (size_t)note->list[n_lists] * sizeof(double),
                     take_columns, note);
}

typedef struct measure_note {
    dq_head_measure *into;
    int n_out;
} measure_note;

static void take_measures(void *arg, const void *data, size_t bytes)
{
    const measure_note *note = arg;
    const double *f = data;
    const size_t n = bytes / (DQ_MAP_FIELDS * sizeof(double));
    for (size_t i = 0; i < n; i++, f += DQ_MAP_FIELDS) {
        const double *count = f + 6;
        dq_head_measure m = {.entropy = {f[0], f[1]},
                             .sink_mass = {f[2], f[3]},
                             .variation = f[4],
                             .negative = f[5]};
        for (int k = 0; k < DQ_N_THRESHOLDS; k++) {
            m.near_zero[k] = (int64_t)count[k];
            m.skippable[k] = (int64_t)count[DQ_N_THRESHOLDS + k];
        }
        count += 2 * DQ_N_THRESHOLDS;
        m.rows = (int64_t)count[0];
        m.keys = (int64_t)count[1];
        m.pages = (int64_t)count[2];
        dq_head_measure_merge(&note->into[(int)i % note->n_out], &m);
    }
}

void dq_cuda_observers_end(dq_backend *b, const dq_cuda_observers *l)
{
    if (b->err.code != DQ_OK) return;
    if (l->sums.at) end_columns(b, l);
    if (l->spans.mass) dq_cuda_spans_end(b, l);
    if (!l->measure) return;
    measure_note *note = dq_cuda_note(b, sizeof *note);
    if (!note) return;
    *note = (measure_note){l->args->measure, l->args->attn->map->n_out};
    dq_cuda_download(b, l->measure, measure_bytes(l->args), take_measures, note);
}
