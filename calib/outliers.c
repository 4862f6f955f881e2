/* outliers: see outliers.h. Passes are walked in blocks, which ranks share: counts add up in any order, sums of each block are
 * kept by themselves and added in the order of blocks. The sequences are run through the model up to three times. The first walk fills the
 * histograms, the second splits the bin of the median of all layers together, and the third, where a layer's own
 * median lies in another bin, that bin. So medians are exact and memory does not grow with the text.
 * SPDX-License-Identifier: MIT */
#include "calib/outliers.h"

#include "base/ranks.h"
#include "engine/head_measure_text.h"
#include "stat/tally_text.h"

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
typedef struct dq_outlier_walk {
    dq_runner *r;
    const dq_sequences *s;
    const dq_outlier_plan *plan;
    dq_watch watch;
    int64_t *cu;
    int32_t *pos, *seq;
    int number;  /* of the walk */
    double told; /* rows of it */
    dq_outliers *o;
    int64_t start[DQ_OUTLIER_BLOCKS + 1]; /* first sequence of each block */
    int n_blocks;
    char *part[DQ_OUTLIER_BLOCKS]; /* sums of each block, on rank 0; NULL: not there yet */
    size_t part_bytes;
    dq_tally one; /* what is being taken; hist NULL: none yet */
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
    int64_t rows = 0, seqs = 0, passes = 0, number = 0;
    for (int64_t first = 0, end; first < w->s->n; first = end, passes++) {
        end = pass_end(w->s, first, w->plan->max_rows);
        int64_t n = w->s->cu[end] - w->s->cu[first];
        if (n > rows) rows = n;
        if (end - first > seqs) seqs = end - first;
    }
    const int64_t n_blocks = passes < DQ_OUTLIER_BLOCKS ? passes : DQ_OUTLIER_BLOCKS;
    for (int64_t first = 0; first < w->s->n; number++) {
        if (number == w->n_blocks * passes / n_blocks) w->start[w->n_blocks++] = first;
        first = pass_end(w->s, first, w->plan->max_rows);
    }
    w->start[w->n_blocks] = w->s->n;
    const size_t layers = (size_t)w->o->n_layers;
    w->part_bytes = DQ_N_KINDS * layers * sizeof(dq_tally_sums) +
                    layers * (size_t)w->o->n_out * sizeof(dq_head_measure);
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
    dq_ranks_poll();
    if (w->plan->tick) w->plan->tick(w->plan->arg, w->number, (int64_t)w->told);
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
                          .listener = {tell, w},
                          .watch = &w->watch};
    if (held == n)
        dq_runner_pass(w->r, &batch, &pass, &hidden, err);
    else if (dq_backend_sync(b, err) == DQ_OK)
        dq_fail(err, DQ_RESOURCE, "out of memory for %d sequences in the KV cache", n);
    while (held > 0) op->kv_seq_free(b, kv, w->seq[--held]);
    if (err->code != DQ_OK) return err->code;
    return dq_backend_sync(b, err);
}

/* ---- Blocks ---- */

/* The sums of the block that was walked, which leave the tallies; bytes of part_bytes. */
static char *take_sums(walk *w, dq_err *err)
{
    const size_t heads = (size_t)w->o->n_layers * (size_t)w->o->n_out * sizeof *w->o->measure;
    char *part = dq_block_new(w->part_bytes, 1, err), *at = part;
    if (!part) return NULL;
    for (int k = 0; k < DQ_N_KINDS; k++) {
        for (int i = 0; i < w->o->n_layers; i++, at += sizeof(dq_tally_sums)) {
            const dq_tally_sums s = dq_tally_take_sums(&w->o->kind[k].layer[i]);
            memcpy(at, &s, sizeof s);
        }
    }
    memcpy(at, w->o->measure, heads);
    memset(w->o->measure, 0, heads);
    return part;
}

/* All sums, block by block. */
static void add_sums(walk *w)
{
    for (int b = 0; b < w->n_blocks; b++) {
        const char *at = w->part[b];
        for (int k = 0; k < DQ_N_KINDS; k++) {
            for (int i = 0; i < w->o->n_layers; i++, at += sizeof(dq_tally_sums)) {
                dq_tally_sums s;
                memcpy(&s, at, sizeof s);
                dq_tally_add_sums(&w->o->kind[k].layer[i], &s);
            }
        }
        for (int i = 0; i < w->o->n_layers * w->o->n_out; i++, at += sizeof(dq_head_measure)) {
            dq_head_measure m;
            memcpy(&m, at, sizeof m);
            dq_head_measure_merge(&w->o->measure[i], &m);
        }
    }
}

/* Tells rank 0 that a block is done, with its sums where there are some. */
static dq_status tell_block(int64_t block, const char *part, size_t bytes, dq_err *err)
{
    dq_strbuf text = {0};
    if (dq_strbuf_add(&text, (const char *)&block, sizeof block, err) == DQ_OK &&
        (!part || dq_strbuf_add(&text, part, bytes, err) == DQ_OK))
        dq_ranks_tell(text.s, text.n, err);
    dq_block_free(text.s);
    return err->code;
}

static dq_status run_passes(walk *w, int64_t block, dq_err *err)
{
    for (int64_t first = w->start[block], end; first < w->start[block + 1]; first = end) {
        end = pass_end(w->s, first, w->plan->max_rows);
        const double told = w->told;
        DQ_TRY(one_pass(w, first, end, err));
        w->told = fmax(w->told, told + (double)(w->s->cu[end] - w->s->cu[first]));
    }
    return DQ_OK;
}

static dq_status run_block(void *arg, int64_t block, dq_err *err)
{
    walk *w = arg;
    char *part = NULL;
    DQ_TRY(run_passes(w, block, err));
    if (w->number == 0) {
        part = take_sums(w, err);
        if (!part) return err->code;
    }
    if (dq_ranks_number() == 0) {
        if (part) w->part[block] = part;
        return DQ_OK;
    }
    tell_block(block, part, w->part_bytes, err);
    dq_block_free(part);
    return err->code;
}

/* What tell_block told. */
static dq_status take_block(void *arg, const char *text, size_t len, dq_err *err)
{
    walk *w = arg;
    int64_t block;
    memcpy(&block, text, sizeof block);
    w->told += (double)(w->s->cu[w->start[block + 1]] - w->s->cu[w->start[block]]);
    if (len == sizeof block) return DQ_OK;
    w->part[block] = dq_block_new(w->part_bytes, 1, err);
    if (w->part[block]) memcpy(w->part[block], text + sizeof block, w->part_bytes);
    return err->code;
}

/* Counts of all layers, to rank 0. */
static dq_status merge_counts(void *arg, const char *text, size_t len, dq_err *err)
{
    walk *w = arg;
    const char *end = text + len;
    for (int k = 0; k < DQ_N_KINDS; k++) {
        for (int i = 0; i < w->o->n_layers; i++)
            DQ_TRY(dq_tally_merge_bytes(&w->o->kind[k].layer[i], &text, end, err));
    }
    return DQ_OK;
}

static dq_status collect_counts(walk *w, dq_err *err)
{
    dq_strbuf counts = {0};
    for (int k = 0; k < DQ_N_KINDS && dq_ranks_number() > 0; k++) {
        for (int i = 0; i < w->o->n_layers && err->code == DQ_OK; i++)
            dq_tally_put(&w->o->kind[k].layer[i], &counts, err);
    }
    dq_ranks_collect(counts.s, counts.n, merge_counts, w, err);
    dq_block_free(counts.s);
    return err->code;
}

static dq_status run_walk(walk *w, int number, dq_err *err)
{
    const dq_ranks_work work = {.n = w->n_blocks, .run = run_block, .take = take_block, .arg = w};
    w->number = number;
    w->told = 0;
    DQ_TRY(dq_ranks_run(&work, err));
    DQ_TRY(collect_counts(w, err));
    if (number == 0 && dq_ranks_number() == 0) add_sums(w);
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

/* The bins that rank 0, which has all counts, has chosen. */
static dq_status share_bins(dq_outliers *o, dq_err *err)
{
    for (int k = 0; k < DQ_N_KINDS; k++) {
        int *pooled = &o->kind[k].pooled.refine_bin;
        DQ_TRY(dq_ranks_share(pooled, sizeof *pooled, err));
        for (int i = 0; i < o->n_layers; i++) {
            int *bin = &o->kind[k].layer[i].refine_bin;
            DQ_TRY(dq_ranks_share(bin, sizeof *bin, err));
        }
    }
    return DQ_OK;
}

static dq_status run_walks(dq_outliers *o, walk *w, dq_err *err)
{
    bool exact;
    DQ_TRY(run_walk(w, 0, err));
    w->watch.measure = NULL;
    o->n_rows = w->s->cu[w->s->n];
    pool(o);
    if (w->plan->walks < 2) return DQ_OK;
    aim_pooled(o, err);
    DQ_TRY(share_bins(o, err));
    DQ_TRY(run_walk(w, 1, err));
    pool(o);
    exact = layers_are_exact(o);
    DQ_TRY(dq_ranks_share(&exact, sizeof exact, err));
    if (w->plan->walks < 3 || exact) return DQ_OK;
    aim_layers(o, err);
    DQ_TRY(share_bins(o, err));
    DQ_TRY(run_walk(w, 2, err));
    read_layers(o);
    return DQ_OK;
}

static dq_status walk_begin(walk *w, dq_outliers *o, const dq_model *m, const dq_sequences *s,
                            const dq_outlier_plan *plan, dq_err *err)
{
    *w = (walk){.s = s, .plan = plan, .o = o};
    w->watch.logits = o->kind[DQ_KIND_LOGITS].layer;
    w->watch.hidden = o->kind[DQ_KIND_HIDDEN].layer;
    w->watch.measure = o->measure;
    DQ_TRY(check_sequences(m, s, err));
    return walk_init(w, err);
}

static void walk_release(walk *w)
{
    dq_block_free(w->cu);
    dq_block_free(w->seq);
    dq_block_free(w->pos);
    for (int i = 0; i < w->n_blocks; i++) dq_block_free(w->part[i]);
    if (w->one.hist) dq_tally_free(&w->one);
}

dq_status dq_outliers_collect(dq_outliers *o, dq_runner *r, const dq_sequences *s,
                              const dq_outlier_plan *plan, dq_err *err)
{
    walk w;
    if (walk_begin(&w, o, dq_runner_model(r), s, plan, err) == DQ_OK) {
        w.r = r;
        run_walks(o, &w, err);
    }
    walk_release(&w);
    return err->code;
}

/* ---- Blocks as text ---- */

dq_status dq_outlier_walk_new(dq_outlier_walk **w, dq_outliers *o, const dq_model *m,
                              const dq_sequences *s, const dq_outlier_plan *plan, dq_err *err)
{
    *w = dq_block_new(1, sizeof **w, err);
    if (!*w || walk_begin(*w, o, m, s, plan, err) == DQ_OK) return err->code;
    dq_outlier_walk_free(*w);
    *w = NULL;
    return err->code;
}

void dq_outlier_walk_free(dq_outlier_walk *w)
{
    if (w) walk_release(w);
    dq_block_free(w);
}

int dq_outlier_walk_blocks(const dq_outlier_walk *w)
{
    return w->n_blocks;
}

int64_t dq_outlier_walk_rows(const dq_outlier_walk *w, int block)
{
    return w->s->cu[w->start[block + 1]] - w->s->cu[w->start[block]];
}

dq_status dq_outlier_walk_run(dq_outlier_walk *w, dq_runner *r, int block, FILE *f, dq_err *err)
{
    dq_outliers *o = w->o;
    w->r = r;
    DQ_TRY(run_passes(w, block, err));
    for (int k = 0; k < DQ_N_KINDS; k++) {
        fprintf(f, ", \"%s\": [", dq_outlier_name[k]);
        for (int i = 0; i < o->n_layers; i++) {
            if (i) fputs(", ", f);
            dq_tally_text_put(f, &o->kind[k].layer[i]);
            dq_tally_clear(&o->kind[k].layer[i]);
        }
        fputc(']', f);
    }
    fputs(", \"maps\": [", f);
    for (int i = 0; i < o->n_layers * o->n_out; i++) {
        if (i) fputs(", ", f);
        dq_head_measure_text_put(f, &o->measure[i]);
        o->measure[i] = (dq_head_measure){0};
    }
    fputc(']', f);
    return DQ_OK;
}

/* Whether the largest values stand in the block's sequences, whose ids are looked up by them. */
static bool are_within(const walk *w, int block, int kind, int layer, const dq_tally *t)
{
    for (int i = 0; i < t->n_top; i++) {
        const dq_place *p = &t->place[i];
        if (p->seq < w->start[block] || p->seq >= w->start[block + 1]) return false;
        const int64_t len = w->s->cu[p->seq + 1] - w->s->cu[p->seq];
        if (p->layer != layer || p->row < 0 || p->row >= len || p->col < 0) return false;
        if (kind == DQ_KIND_LOGITS && (p->col >= len || p->head < 0)) return false;
    }
    return true;
}

static dq_status take_members(walk *w, int block, char *at, const json_t *members, dq_err *err)
{
    const dq_outliers *o = w->o;
    for (int k = 0; k < DQ_N_KINDS; k++) {
        const json_t *list = json_object_get(members, dq_outlier_name[k]);
        for (int i = 0; i < o->n_layers; i++, at += sizeof(dq_tally_sums)) {
            dq_tally_clear(&w->one);
            DQ_TRY(dq_tally_text_get(&w->one, json_array_get(list, (size_t)i), err));
            if (!are_within(w, block, k, i, &w->one))
                return dq_fail(err, DQ_DAMAGED, "\"top\": a place outside the sequences");
            const dq_tally_sums s = dq_tally_take_sums(&w->one);
            memcpy(at, &s, sizeof s);
            dq_tally_merge(&o->kind[k].layer[i], &w->one);
        }
    }
    for (int i = 0; i < o->n_layers * o->n_out; i++, at += sizeof(dq_head_measure)) {
        dq_head_measure m;
        DQ_TRY(dq_head_measure_text_get(
            &m, json_array_get(json_object_get(members, "maps"), (size_t)i), err));
        memcpy(at, &m, sizeof m);
    }
    return DQ_OK;
}

dq_status dq_outlier_walk_take(dq_outlier_walk *w, int block, const json_t *members, dq_err *err)
{
    if (block < 0 || block >= w->n_blocks || w->part[block])
        return dq_fail(err, DQ_DAMAGED, "block %d is %s", block,
                       block < 0 || block >= w->n_blocks ? "none of these" : "there twice");
    if (!w->one.hist) DQ_TRY(dq_tally_init(&w->one, err));
    w->part[block] = dq_block_new(w->part_bytes, 1, err);
    return w->part[block] ? take_members(w, block, w->part[block], members, err) : err->code;
}

dq_status dq_outlier_walk_end(dq_outlier_walk *w, dq_err *err)
{
    for (int i = 0; i < w->n_blocks; i++) {
        if (!w->part[i]) return dq_fail(err, DQ_MISMATCH, "a part of the work lacks");
    }
    add_sums(w);
    w->o->n_rows = w->s->cu[w->s->n];
    pool(w->o);
    return DQ_OK;
}

/* ---- What follows ---- */

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
