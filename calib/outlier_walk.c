/* outlier_walk: see outlier_walk.h. Passes are walked in blocks, which ranks share; what they find adds up in any order. The
 * sequences are run through the model up to three times. The first walk fills the histograms, the second splits the bin of the
 * median of all layers together, and the third, where a layer's own median lies in another bin, that bin. So medians are exact
 * and memory does not grow with the text. A profile is of the first walk: what a layer puts out is looked at once the next one
 * has attended to it, while it is still there.
 * SPDX-License-Identifier: MIT */
#include "calib/outlier_walk.h"

#include "base/ranks.h"

#include <math.h>
#include <string.h>

/* One walk over all sequences. The arrays of a batch are views into ids, and into pos and seq, which
 * hold as many entries as the largest pass needs. */
typedef struct dq_outlier_walk {
    dq_runner *r;
    const dq_sequences *s;
    const dq_outlier_plan *plan;
    const dq_model *m;
    dq_outliers *o;
    int64_t *cu;
    int32_t *pos, *seq;
    int number;                           /* of the walk */
    double told;                          /* rows of it */
    int32_t seq_base;                     /* first sequence of the pass */
    int64_t start[DQ_OUTLIER_BLOCKS + 1]; /* first sequence of each block */
    int n_blocks;
    dq_head_measure *measure; /* [n_layers][n_out] of a pass; NULL: maps are not looked at */
    /* of a profile */
    uint8_t *class;        /* [rows] */
    double *mass;          /* [n_maps][n_groups * rows]; zero between layers */
    int64_t *offset;       /* [sequences of a pass * n_groups] */
    dq_columns *columns;   /* [n_layers], all of `mass` */
    dq_head_profile *seen; /* [n_layers][n_out] of a pass */
    dq_head_look *look;    /* [n_layers] */
    int32_t *copy, *last;  /* [rows] as dq_head_look has them; [vocab] a token's last position */
} walk;

static bool is_profile(const walk *w)
{
    return w->o->n_kinds > DQ_N_TABLE5 && w->number == 0;
}

static bool looks_at_maps(const walk *w)
{
    return w->o->measure_sum && w->number == 0;
}

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

static dq_status init_profile(walk *w, int64_t rows, int64_t seqs, dq_err *err)
{
    const dq_head_order *map = &w->m->map;
    const size_t keys = (size_t)rows * (size_t)map->n_groups;
    w->class = dq_block_new((size_t)rows, 1, err);
    w->mass = dq_block_new((size_t)map->n_maps * keys, sizeof *w->mass, err);
    w->offset = dq_block_new((size_t)(seqs * map->n_groups), sizeof *w->offset, err);
    w->columns = dq_block_new((size_t)w->o->n_layers, sizeof *w->columns, err);
    w->seen = dq_block_new((size_t)(w->o->n_layers * w->o->n_out), sizeof *w->seen, err);
    w->look = dq_block_new((size_t)w->o->n_layers, sizeof *w->look, err);
    w->copy = dq_block_new((size_t)rows, sizeof *w->copy, err);
    w->last = dq_block_new((size_t)w->m->vocab, sizeof *w->last, err);
    if (err->code != DQ_OK) return err->code;
    for (int i = 0; i < w->o->n_layers; i++)
        w->look[i] = (dq_head_look){w->seen + (int64_t)i * w->o->n_out, w->copy};
    for (int i = 0; i < w->o->n_layers; i++)
        w->columns[i] = (dq_columns){.offset = w->offset,
                                     .mass = {w->mass, map->n_maps > 1 ? w->mass + keys : NULL}};
    return DQ_OK;
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
    w->cu = dq_block_new((size_t)seqs + 1, sizeof *w->cu, err);
    w->seq = dq_block_new((size_t)seqs, sizeof *w->seq, err);
    w->pos = dq_block_new((size_t)rows, sizeof *w->pos, err);
    if (looks_at_maps(w))
        w->measure = dq_block_new((size_t)(w->o->n_layers * w->o->n_out), sizeof *w->measure, err);
    if (err->code != DQ_OK || !is_profile(w)) return err->code;
    return init_profile(w, rows, seqs, err);
}

/* ---- What is looked at ---- */

static void look_at(const walk *w, int kind, int layer, const dq_layer_steps *s, dq_mat x,
                    int64_t first)
{
    dq_outlier_kind *k = &w->o->kind[kind];
    const dq_profile to = {.all = &k->layer[layer],
                           .ordinary = &k->ordinary[layer],
                           .channels = &k->channels[layer],
                           .class = w->class,
                           .seq_base = w->seq_base};
    s->b->ops->profile_rows(s->b, &to, x, first, s->batch, layer);
}

/* Classes of the rows of a sequence, by the mass on them as keys, which is cleared. */
static void class_sequence(walk *w, const dq_batch *batch, int i, int layer)
{
    const dq_head_order *map = &w->m->map;
    const int64_t first = batch->cu_rows[i], n = batch->cu_rows[i + 1] - first;
    const double maps = (double)(map->n_out * map->n_maps);
    for (int64_t key = 0; key < n; key++) {
        double mass = 0;
        for (int g = 0; g < map->n_groups; g++) {
            for (int m = 0; m < map->n_maps; m++) {
                double *at = w->columns->mass[m] + w->offset[i * map->n_groups + g] + key;
                mass += *at;
                *at = 0;
            }
        }
        const bool sink = n - key >= DQ_OUTLIER_SINK_QUERIES &&
                          mass >= DQ_OUTLIER_SINK_SHARE * maps * (double)(n - key);
        uint8_t *class = &w->class[first + key];
        if (layer == 0) *class = key == 0 ? DQ_TOKEN_FIRST : DQ_TOKEN_ORDINARY;
        if (sink && key > 0) *class = DQ_TOKEN_SINK;
    }
}

static void count_tokens(const walk *w, int layer, int64_t rows)
{
    int64_t *n = w->o->tokens + (int64_t)layer * DQ_TOKEN_CLASSES;
    for (int64_t i = 0; i < rows; i++) n[w->class[i]]++;
}

static void profile_attention(walk *w, int layer, const dq_layer_steps *s,
                              const dq_attend_args *args)
{
    dq_outlier_kind *k = &w->o->kind[DQ_KIND_LOGITS];
    const int64_t heads = (int64_t)w->o->n_q * DQ_TOKEN_CLASSES;
    s->b->ops->sync(s->b); /* the columns are there then */
    if (s->b->err.code != DQ_OK) return;
    for (int i = 0; i < s->batch->n_seq; i++) class_sequence(w, s->batch, i, layer);
    count_tokens(w, layer, s->batch->n_rows);
    const dq_profile to = {.all = &k->layer[layer],
                           .ordinary = &k->ordinary[layer],
                           .head = w->o->head + layer * heads,
                           .class = w->class,
                           .seq_base = w->seq_base};
    s->b->ops->profile_logits(s->b, &to, args);
    look_at(w, DQ_KIND_QKV_IN, layer, s, s->h, 0);
    look_at(w, DQ_KIND_Q, layer, s, s->q, 0);
    look_at(w, DQ_KIND_K, layer, s, s->k, 0);
    look_at(w, DQ_KIND_V, layer, s, s->v, 0);
    look_at(w, DQ_KIND_O_IN, layer, s, s->y, 0);
    if (layer > 0) look_at(w, DQ_KIND_HIDDEN, layer - 1, s, s->x, 0);
}

static void attended(void *arg, int layer, const dq_layer_steps *s, const dq_attend_args *args)
{
    walk *w = arg;
    if (is_profile(w))
        profile_attention(w, layer, s, args);
    else
        s->b->ops->attn_observe(s->b, &w->o->kind[DQ_KIND_LOGITS].layer[layer], args, w->seq_base);
}

static void fed(void *arg, int layer, const dq_layer_steps *s, int64_t first, dq_mat in,
                dq_mat gate)
{
    const walk *w = arg;
    if (!is_profile(w)) return;
    look_at(w, DQ_KIND_GATE_UP_IN, layer, s, in, first);
    look_at(w, DQ_KIND_DOWN_IN, layer, s, gate, first);
}

static void passed(void *arg, int layer, const dq_layer_steps *s)
{
    const walk *w = arg;
    if (!is_profile(w))
        s->b->ops->observe(s->b, &w->o->kind[DQ_KIND_HIDDEN].layer[layer], s->x, s->batch, layer,
                           w->seq_base);
    else if (layer + 1 == w->o->n_layers)
        look_at(w, DQ_KIND_HIDDEN, layer, s, s->x, 0);
}

/* ---- Passes ---- */

/* Rows that a pass of the model has told of, beside those of the passes before. */
static void tell(void *arg, double rows)
{
    walk *w = arg;
    w->told += rows;
    dq_ranks_poll();
    if (w->plan->tick) w->plan->tick(w->plan->arg, w->number, (int64_t)w->told);
}

/* Where the mass on the keys of each sequence and group is added. */
static void place_columns(walk *w, int n_seq)
{
    const int n_groups = w->m->map.n_groups;
    for (int i = 0; i < n_seq; i++) {
        for (int g = 0; g < n_groups; g++)
            w->offset[i * n_groups + g] = w->cu[i] * n_groups + g * (w->cu[i + 1] - w->cu[i]);
    }
}

/* For each row the position after the last one, before its local keys, that has its token. */
static void find_copies(walk *w, const int32_t *ids, int n_seq)
{
    for (int i = 0; i < n_seq; i++) {
        const int64_t first = w->cu[i], n = w->cu[i + 1] - first;
        for (int64_t t = 0; t < n; t++) w->last[ids[first + t]] = -1;
        for (int64_t t = 0; t < n; t++) {
            const int64_t far = t - DQ_LOCAL_KEYS - 1; /* the token after it is no local key yet */
            if (far >= 0) w->last[ids[first + far]] = (int32_t)far;
            const int32_t last = w->last[ids[first + t]];
            w->copy[first + t] = last < 0 ? -1 : last + 1;
        }
    }
}

static void add_looks(walk *w)
{
    for (int i = 0; i < w->o->n_layers * w->o->n_out; i++) {
        dq_head_profile_sum_add(&w->o->look_sum[i], &w->seen[i]);
        w->seen[i] = (dq_head_profile){0};
    }
}

static void add_measures(walk *w)
{
    for (int i = 0; i < w->o->n_layers * w->o->n_out; i++) {
        dq_head_measure_sum_add(&w->o->measure_sum[i], &w->measure[i]);
        w->measure[i] = (dq_head_measure){0};
    }
}

static dq_status one_pass(walk *w, int64_t first, int64_t end, dq_err *err)
{
    const dq_ops *op = dq_runner_backend(w->r)->ops;
    dq_backend *b = dq_runner_backend(w->r);
    dq_kv *kv = dq_runner_kv(w->r);
    const int64_t *cu = w->s->cu;
    int n = (int)(end - first), open = 0;
    dq_mat hidden;

    for (; open < n; open++) {
        w->seq[open] = op->kv_seq_new(b, kv);
        if (w->seq[open] < 0) break;
    }
    for (int i = 0; i <= n; i++) w->cu[i] = cu[first + i] - cu[first];
    for (int i = 0; i < n; i++) {
        for (int64_t t = w->cu[i]; t < w->cu[i + 1]; t++) w->pos[t] = (int32_t)(t - w->cu[i]);
    }
    w->seq_base = (int32_t)first;
    if (is_profile(w)) place_columns(w, n);
    if (is_profile(w)) find_copies(w, w->s->ids + cu[first], n);
    const dq_batch batch = {.n_seq = n,
                            .n_rows = w->cu[n],
                            .cu_rows = w->cu,
                            .seq = w->seq,
                            .ids = w->s->ids + cu[first],
                            .pos = w->pos};
    const dq_watch watch = {.attended = attended,
                            .fed = fed,
                            .passed = passed,
                            .arg = w,
                            .measure = looks_at_maps(w) ? w->measure : NULL,
                            .look = is_profile(w) ? w->look : NULL};
    const dq_pass pass = {.logit = {.bits = 16, .granularity = DQ_GRANULARITY_TENSOR},
                          .math = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32},
                          .listener = {tell, w},
                          .watch = &watch,
                          .columns = is_profile(w) ? w->columns : NULL};
    if (open == n)
        dq_runner_pass(w->r, &batch, &pass, &hidden, err);
    else if (dq_backend_sync(b, err) == DQ_OK)
        dq_fail(err, DQ_RESOURCE, "out of memory for %d sequences in the KV cache", n);
    while (open > 0) op->kv_seq_free(b, kv, w->seq[--open]);
    if (err->code != DQ_OK) return err->code;
    DQ_TRY(dq_backend_sync(b, err));
    if (looks_at_maps(w)) add_measures(w);
    if (is_profile(w)) add_looks(w);
    return DQ_OK;
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

/* ---- Ranks ---- */

static dq_status run_block(void *arg, int64_t block, dq_err *err)
{
    DQ_TRY(run_passes(arg, block, err));
    return dq_ranks_number() == 0 ? DQ_OK : dq_ranks_tell((const char *)&block, sizeof block, err);
}

/* What run_block told. */
static dq_status take_block(void *arg, const char *text, size_t len, dq_err *err)
{
    walk *w = arg;
    int64_t block;
    (void)len;
    memcpy(&block, text, sizeof block);
    w->told += (double)(w->s->cu[w->start[block + 1]] - w->s->cu[w->start[block]]);
    return err->code;
}

static dq_status merge_layers(void *arg, const char *text, size_t len, dq_err *err)
{
    walk *w = arg;
    const char *at = text;
    for (int i = 0; i < w->o->n_layers; i++)
        DQ_TRY(dq_outliers_merge(w->o, i, &at, text + len, err));
    return DQ_OK;
}

/* What the others found, to rank 0. */
static dq_status collect_layers(walk *w, dq_err *err)
{
    dq_strbuf found = {0};
    for (int i = 0; dq_ranks_number() > 0 && i < w->o->n_layers && err->code == DQ_OK; i++)
        dq_outliers_put(w->o, i, &found, err);
    dq_ranks_collect(found.s, found.n, merge_layers, w, err);
    dq_block_free(found.s);
    return err->code;
}

static dq_status run_walk(walk *w, int number, dq_err *err)
{
    const dq_ranks_work work = {.n = w->n_blocks, .run = run_block, .take = take_block, .arg = w};
    w->number = number;
    w->told = 0;
    DQ_TRY(dq_ranks_run(&work, err));
    return collect_layers(w, err);
}

/* Walk 2: the bin of the pooled median is split in every layer and the pieces are added up. A tally
 * can split one bin at a time, so layers whose own median lies in another bin wait for walk 3. */
static dq_status aim_pooled(dq_outliers *o, dq_err *err)
{
    for (int k = 0; k < DQ_N_TABLE5; k++) {
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
    for (int k = 0; k < DQ_N_TABLE5; k++) {
        for (int i = 0; i < o->n_layers; i++) {
            if (o->kind[k].layer_median[i].bound > 0) return false;
        }
    }
    return true;
}

/* Walk 3: every layer splits the bin of its own median. */
static dq_status aim_layers(dq_outliers *o, dq_err *err)
{
    for (int k = 0; k < DQ_N_TABLE5; k++) {
        for (int i = 0; i < o->n_layers; i++)
            DQ_TRY(dq_tally_refine(&o->kind[k].layer[i], 0.5, err));
    }
    return DQ_OK;
}

static void read_layers(dq_outliers *o)
{
    for (int k = 0; k < DQ_N_TABLE5; k++) {
        for (int i = 0; i < o->n_layers; i++)
            o->kind[k].layer_median[i] = dq_outlier_median(&o->kind[k].layer[i]);
    }
}

/* The bins that rank 0, which has all counts, has chosen. */
static dq_status share_bins(dq_outliers *o, dq_err *err)
{
    for (int k = 0; k < DQ_N_TABLE5; k++) {
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
    dq_outlier_walk_end(w);
    if (w->plan->walks < 2) return DQ_OK;
    aim_pooled(o, err);
    DQ_TRY(share_bins(o, err));
    DQ_TRY(run_walk(w, 1, err));
    dq_outliers_pool(o);
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
    *w = (walk){.s = s, .plan = plan, .o = o, .m = m};
    DQ_TRY(check_sequences(m, s, err));
    return walk_init(w, err);
}

static void walk_release(walk *w)
{
    dq_block_free(w->cu);
    dq_block_free(w->seq);
    dq_block_free(w->pos);
    dq_block_free(w->measure);
    dq_block_free(w->class);
    dq_block_free(w->mass);
    dq_block_free(w->offset);
    dq_block_free(w->columns);
    dq_block_free(w->seen);
    dq_block_free(w->look);
    dq_block_free(w->copy);
    dq_block_free(w->last);
}

static dq_status check_backend(const dq_outliers *o, const dq_backend *b, dq_err *err)
{
    if (o->n_kinds == DQ_N_TABLE5 || b->ops->profile_rows) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "a profile by channels and classes of tokens is not there on %s", b->device);
}

dq_status dq_outlier_walk_collect(dq_outliers *o, dq_runner *r, const dq_sequences *s,
                                  const dq_outlier_plan *plan, dq_err *err)
{
    walk w;
    DQ_TRY(check_backend(o, dq_runner_backend(r), err));
    if (walk_begin(&w, o, dq_runner_model(r), s, plan, err) == DQ_OK) {
        w.r = r;
        run_walks(o, &w, err);
    }
    walk_release(&w);
    return err->code;
}

/* ---- Blocks ---- */

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

dq_status dq_outlier_walk_run(dq_outlier_walk *w, dq_runner *r, int block, dq_err *err)
{
    DQ_TRY(check_backend(w->o, dq_runner_backend(r), err));
    w->r = r;
    return run_passes(w, block, err);
}

static bool is_position(const walk *w, int32_t seq, int32_t row)
{
    return seq >= 0 && seq < w->s->n && row >= 0 && row < w->s->cu[seq + 1] - w->s->cu[seq];
}

static bool is_place(const walk *w, int kind, int layer, const dq_place *p)
{
    if (!is_position(w, p->seq, p->row) || p->layer != layer || p->col < 0) return false;
    if (kind != DQ_KIND_LOGITS) return true;
    return is_position(w, p->seq, p->col) && p->head >= 0 && p->head < w->o->n_q;
}

static bool check_tally(const walk *w, int kind, int layer, const dq_tally *t)
{
    for (int i = 0; i < t->n_top; i++) {
        if (!is_place(w, kind, layer, &t->place[i])) return false;
    }
    return true;
}

static bool check_channels(const walk *w, const dq_channels *c)
{
    for (int64_t i = 0; i < c->cols * DQ_TOKEN_CLASSES; i++) {
        if (c->of[i].max > 0 && !is_position(w, c->of[i].seq, c->of[i].row)) return false;
    }
    return true;
}

bool dq_outlier_walk_check(const dq_outlier_walk *w)
{
    const dq_outliers *o = w->o;
    const int heads = o->n_q * DQ_TOKEN_CLASSES;
    for (int k = 0; k < o->n_kinds; k++) {
        const dq_outlier_kind *x = &o->kind[k];
        for (int i = 0; i < o->n_layers; i++) {
            if (!check_tally(w, k, i, &x->layer[i])) return false;
            if (x->ordinary && !check_tally(w, k, i, &x->ordinary[i])) return false;
            if (x->channels && !check_channels(w, &x->channels[i])) return false;
        }
    }
    for (int i = 0; o->head && i < o->n_layers * heads; i++) {
        if (o->head[i].max > 0 && !is_place(w, DQ_KIND_LOGITS, i / heads, &o->head[i].at))
            return false;
    }
    return true;
}

void dq_outlier_walk_end(dq_outlier_walk *w)
{
    w->o->n_rows = w->s->cu[w->s->n];
    dq_outliers_pool(w->o);
}
