/* outliers: see outliers.h. The sequences are run through the model up to three times. The first walk fills the
 * histograms, the second splits the bin of the median of all layers together, and the third, where a layer's own
 * median lies in another bin, that bin. So medians are exact and memory does not grow with the text.
 * SPDX-License-Identifier: MIT */
#include "calib/outliers.h"

#include <math.h>
#include <string.h>

const char *const dq_outlier_name[DQ_N_KINDS] = {"attention_logits", "hidden_states"};

dq_status dq_outliers_init(dq_outliers *o, int n_layers, int n_out, dq_err *err)
{
    memset(o, 0, sizeof *o);
    for (int k = 0; k < DQ_N_KINDS; k++) {
        dq_outlier_kind *x = &o->kind[k];
        x->layer = dq_block_new((size_t)n_layers, sizeof *x->layer, err);
        x->layer_median = dq_block_new((size_t)n_layers, sizeof *x->layer_median, err);
        if (!x->layer || !x->layer_median) return err->code;
    }
    o->measure = dq_block_new((size_t)n_layers * (size_t)n_out, sizeof *o->measure, err);
    if (!o->measure) return err->code;
    o->n_layers = n_layers;
    o->n_out = n_out;
    for (int k = 0; k < DQ_N_KINDS; k++) {
        DQ_TRY(dq_tally_init(&o->kind[k].pooled, err));
        for (int i = 0; i < n_layers; i++) DQ_TRY(dq_tally_init(&o->kind[k].layer[i], err));
    }
    return DQ_OK;
}

void dq_outliers_free(dq_outliers *o)
{
    for (int k = 0; k < DQ_N_KINDS; k++) {
        dq_outlier_kind *x = &o->kind[k];
        for (int i = 0; i < o->n_layers; i++) dq_tally_free(&x->layer[i]);
        if (o->n_layers) dq_tally_free(&x->pooled);
        dq_block_free(x->layer);
        dq_block_free(x->layer_median);
    }
    dq_block_free(o->measure);
    memset(o, 0, sizeof *o);
}

/* One walk over all sequences. The arrays of a batch are views into ids, and into pos and seq, which
 * hold as many entries as the largest pass needs. */
typedef struct walk {
    dq_runner *r;
    const dq_sequences *s;
    const dq_outlier_plan *plan;
    dq_watch watch;
    int64_t *cu;
    int32_t *pos, *seq;
    int number;  /* of the walk */
    double told; /* rows of it */
} walk;

static dq_status check_sequences(const dq_model *m, const dq_sequences *s, dq_err *err)
{
    for (int64_t i = 0; i < s->n; i++) {
        int64_t len = s->cu[i + 1] - s->cu[i];
        if (len > m->max_positions)
            return dq_fail(err, DQ_MISMATCH,
                           "%s: sequence %lld has %lld ids, the model has %d positions", m->path,
                           (long long)i, (long long)len, m->max_positions);
    }
    for (int64_t i = 0; i < s->cu[s->n]; i++) {
        if (s->ids[i] < 0 || s->ids[i] >= m->vocab)
            return dq_fail(err, DQ_MISMATCH, "%s: id %d is outside the vocabulary of %d tokens",
                           m->path, (int)s->ids[i], m->vocab);
    }
    return DQ_OK;
}

/* First sequence after the pass that begins with `first`. */
static int64_t pass_end(const dq_sequences *s, int64_t first, int64_t max_rows)
{
    int64_t end = first + 1;
    while (end < s->n && s->cu[end + 1] - s->cu[first] <= max_rows) end++;
    return end;
}

static dq_status walk_init(walk *w, dq_err *err)
{
    int64_t rows = 0, seqs = 0;
    for (int64_t first = 0, end; first < w->s->n; first = end) {
        end = pass_end(w->s, first, w->plan->max_rows);
        int64_t n = w->s->cu[end] - w->s->cu[first];
        if (n > rows) rows = n;
        if (end - first > seqs) seqs = end - first;
    }
    w->cu = dq_block_new((size_t)seqs + 1, sizeof *w->cu, err);
    w->seq = dq_block_new((size_t)seqs, sizeof *w->seq, err);
    w->pos = dq_block_new((size_t)rows, sizeof *w->pos, err);
    return err->code;
}

/* Rows that a pass of the model has told of, beside those of the passes before. */
static void tell(void *arg, double rows)
{
    walk *w = arg;
    w->told += rows;
    w->plan->tick(w->plan->arg, w->number, (int64_t)w->told);
}

static dq_status one_pass(walk *w, int64_t first, int64_t end, dq_err *err)
{
    const dq_ops *op = dq_runner_backend(w->r)->ops;
    dq_backend *b = dq_runner_backend(w->r);
    dq_kv *kv = dq_runner_kv(w->r);
    const int64_t *cu = w->s->cu;
    int n = (int)(end - first), held = 0;
    dq_mat hidden;

    for (; held < n; held++) {
        w->seq[held] = op->kv_seq_new(b, kv);
        if (w->seq[held] < 0) break;
    }
    for (int i = 0; i <= n; i++) w->cu[i] = cu[first + i] - cu[first];
    for (int i = 0; i < n; i++) {
        for (int64_t t = w->cu[i]; t < w->cu[i + 1]; t++) w->pos[t] = (int32_t)(t - w->cu[i]);
    }
    w->watch.seq_base = (int32_t)first;
    const dq_batch batch = {.n_seq = n,
                            .n_rows = w->cu[n],
                            .cu_rows = w->cu,
                            .seq = w->seq,
                            .ids = w->s->ids + cu[first],
                            .pos = w->pos};
    const dq_pass pass = {.logit = {.bits = 16, .granularity = DQ_GRANULARITY_TENSOR},
                          .math = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32},
                          .listener = {w->plan->tick ? tell : NULL, w},
                          .watch = &w->watch};
    if (held == n)
        dq_runner_pass(w->r, &batch, &pass, &hidden, err);
    else if (dq_backend_sync(b, err) == DQ_OK)
        dq_fail(err, DQ_RESOURCE, "out of memory for %d sequences in the KV cache", n);
    while (held > 0) op->kv_seq_free(b, kv, w->seq[--held]);
    if (err->code != DQ_OK) return err->code;
    return dq_backend_sync(b, err);
}

static dq_status run_walk(walk *w, int number, dq_err *err)
{
    for (int64_t first = 0, end; first < w->s->n; first = end) {
        end = pass_end(w->s, first, w->plan->max_rows);
        w->number = number;
        w->told = (double)w->s->cu[first];
        DQ_TRY(one_pass(w, first, end, err));
        if (w->plan->tick) w->plan->tick(w->plan->arg, number, w->s->cu[end]);
    }
    return DQ_OK;
}

/* Half of the histogram bin is how far the middle can be from the value. */
static dq_median median_of(const dq_tally *t)
{
    bool exact;
    dq_median m = {.value = dq_tally_quantile(t, 0.5, &exact)};
    if (exact || t->n == 0) return m;
    float at = (float)m.value, low, high;
    uint32_t bits;
    memcpy(&bits, &at, sizeof bits);
    uint32_t first = bits & 0xffff0000u, last = bits | 0xffffu;
    memcpy(&low, &first, sizeof low);
    memcpy(&high, &last, sizeof high);
    m.bound = fmax(m.value - (double)low, (double)high - m.value);
    return m;
}

/* After walk 1 the pooled tallies take everything; after walk 2 a merge adds only what was split. */
static void pool(dq_outliers *o)
{
    for (int k = 0; k < DQ_N_KINDS; k++) {
        dq_outlier_kind *x = &o->kind[k];
        for (int i = 0; i < o->n_layers; i++) {
            dq_tally_merge(&x->pooled, &x->layer[i]);
            x->layer_median[i] = median_of(&x->layer[i]);
        }
        x->pooled_median = median_of(&x->pooled);
    }
}

/* Walk 2: the bin of the pooled median is split in every layer and the pieces are added up. A tally
 * can split one bin at a time, so layers whose own median lies in another bin wait for walk 3. */
static dq_status aim_pooled(dq_outliers *o, dq_err *err)
{
    for (int k = 0; k < DQ_N_KINDS; k++) {
        dq_outlier_kind *x = &o->kind[k];
        DQ_TRY(dq_tally_refine(&x->pooled, 0.5, err));
        for (int i = 0; i < o->n_layers; i++) {
            DQ_TRY(dq_tally_refine(&x->layer[i], 0.5, err));
            x->layer[i].refine_bin = x->pooled.refine_bin;
        }
    }
    return DQ_OK;
}

static bool layers_are_exact(const dq_outliers *o)
{
    for (int k = 0; k < DQ_N_KINDS; k++) {
        for (int i = 0; i < o->n_layers; i++) {
            if (o->kind[k].layer_median[i].bound > 0) return false;
        }
    }
    return true;
}

/* Walk 3: every layer splits the bin of its own median. */
static dq_status aim_layers(dq_outliers *o, dq_err *err)
{
    for (int k = 0; k < DQ_N_KINDS; k++) {
        for (int i = 0; i < o->n_layers; i++)
            DQ_TRY(dq_tally_refine(&o->kind[k].layer[i], 0.5, err));
    }
    return DQ_OK;
}

static void read_layers(dq_outliers *o)
{
    for (int k = 0; k < DQ_N_KINDS; k++) {
        for (int i = 0; i < o->n_layers; i++)
            o->kind[k].layer_median[i] = median_of(&o->kind[k].layer[i]);
    }
}

static dq_status run_walks(dq_outliers *o, walk *w, dq_err *err)
{
    w->watch.measure = o->measure;
    DQ_TRY(run_walk(w, 0, err));
    w->watch.measure = NULL;
    o->n_rows = w->s->cu[w->s->n];
    pool(o);
    if (w->plan->walks < 2) return DQ_OK;
    DQ_TRY(aim_pooled(o, err));
    DQ_TRY(run_walk(w, 1, err));
    pool(o);
    if (w->plan->walks < 3 || layers_are_exact(o)) return DQ_OK;
    DQ_TRY(aim_layers(o, err));
    DQ_TRY(run_walk(w, 2, err));
    read_layers(o);
    return DQ_OK;
}

dq_status dq_outliers_collect(dq_outliers *o, dq_runner *r, const dq_sequences *s,
                              const dq_outlier_plan *plan, dq_err *err)
{
    walk w = {.r = r, .s = s, .plan = plan};
    w.watch.logits = o->kind[DQ_KIND_LOGITS].layer;
    w.watch.hidden = o->kind[DQ_KIND_HIDDEN].layer;
    DQ_TRY(check_sequences(dq_runner_model(r), s, err));
    if (walk_init(&w, err) == DQ_OK) run_walks(o, &w, err);
    dq_block_free(w.cu);
    dq_block_free(w.seq);
    dq_block_free(w.pos);
    return err->code;
}

double dq_outlier_top(const dq_tally *t, int k)
{
    return k >= 1 && k <= t->n_top ? (double)t->top[k - 1] : (double)NAN;
}

double dq_outlier_rms(const dq_tally *t)
{
    return t->n ? sqrt(t->sum2 / (double)t->n) : (double)NAN;
}

double dq_outlier_kurtosis0(const dq_tally *t)
{
    return t->sum2 > 0 ? (double)t->n * t->sum4 / (t->sum2 * t->sum2) : (double)NAN;
}

int dq_outlier_map(const dq_head_order *map, int head)
{
    if (map->n_maps < 2) return 0;
    for (int i = 0; i < map->n_out; i++) {
        if (map->head[i].q[0] == head) return 1;
        if (map->head[i].q[1] == head) return 2;
    }
    return 0;
}
