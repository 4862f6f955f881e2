/* Sums are compared, not means: both are over the same rows, but for those that have nothing to
 * copy.
 * SPDX-License-Identifier: MIT */
#include "calib/outliers.h"

#include "base/os.h"
#include "engine/observe.h"
#include "engine/runner.h"
#include "stat/stat.h"
#include "tensor/tensor.h"
#include "work/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double copies_from = 0.1, half = 0.5;

const char *const dq_head_kind_name[DQ_HEAD_KINDS] = {"retrieval", "sink", "local", "mixed"};

dq_head_kind dq_head_kind_of(const dq_head_measure *m, const dq_head_profile *p)
{
    if (m->rows == 0 || m->variation <= 0) return DQ_HEAD_MIXED;
    const double mean = m->variation / (double)m->rows;
    if (p->copies > 0 && p->sum[DQ_HEAD_COPY_D] >= copies_from * mean * (double)p->copies)
        return DQ_HEAD_RETRIEVAL;
    if (p->sum[DQ_HEAD_FIRST_D] >= half * m->variation) return DQ_HEAD_SINK;
    if (p->sum[DQ_HEAD_LOCAL_D] >= half * m->variation) return DQ_HEAD_LOCAL;
    return DQ_HEAD_MIXED;
}

/* Every candidate is compared with the smallest found so far: the list is short, and no table is
 * sorted. */

static const double stands_from = 0.1; /* of the largest */

static bool element_spans_layers(int kind)
{
    return kind == DQ_KIND_HIDDEN || kind == DQ_KIND_QKV_IN || kind == DQ_KIND_GATE_UP_IN;
}

static const dq_channel *channel(const dq_outliers *o, int kind, int layer, dq_token_class class,
                                 int64_t col)
{
    const dq_channels *c = &o->kind[kind].channels[layer];
    return &c->of[class * c->cols + col];
}

static const dq_moments *head(const dq_outliers *o, int layer, int64_t q, dq_token_class class)
{
    return &o->head[(layer * o->n_q + q) * DQ_TOKEN_CLASSES + class];
}

static void insert(dq_element *out, int *n, int room, const dq_element *e)
{
    /* of equal ones the first found stays before */
    int k = *n;
    while (k > 0 && e->max > out[k - 1].max) k--;
    const int i = e->max > 0 ? k : room;
    if (i >= room) return;
    if (*n < room) ++*n;
    memmove(&out[i + 1], &out[i], (size_t)(*n - 1 - i) * sizeof *out);
    out[i] = *e;
}

static void complete(dq_element *e, const dq_outliers *o)
{
    const int layer = e->at.layer;
    e->first = e->last = layer;
    e->ratio = (double)e->max / dq_outlier_median(&o->kind[e->kind].ordinary[layer]).value;
    if (e->kind == DQ_KIND_LOGITS) {
        e->rms = dq_moments_rms(head(o, layer, e->col, e->class));
        e->before = (double)NAN;
        return;
    }
    e->rms = dq_channels_rms(&o->kind[e->kind].channels[layer], e->class, e->col);
    if (element_spans_layers(e->kind)) {
        int standing = 0;
        e->first = e->last = e->at.layer;
        for (int l = 0; l < o->n_layers; l++) {
            const double size = (double)channel(o, e->kind, l, e->class, e->col)->max;
            if (size < stands_from * (double)e->max) continue;
            if (standing++ == 0) e->first = l;
            e->last = l;
        }
        e->n_gaps = e->last - e->first + 1 - standing;
    }
    e->before = element_spans_layers(e->kind) && e->first > 0
                    ? (double)channel(o, e->kind, e->first - 1, e->class, e->col)->max
                    : (double)NAN;
}

int dq_elements_find(dq_element *out, int max, const dq_outliers *o, int kind, dq_token_class class)
{
    int n = 0;
    if (kind == DQ_KIND_LOGITS) {
        for (int l = 0; l < o->n_layers; l++) {
            for (int q = 0; q < o->n_q; q++) {
                const dq_moments *m = head(o, l, q, class);
                const dq_element e = {
                    .kind = DQ_KIND_LOGITS, .class = class, .col = q, .max = m->max, .at = m->at};
                insert(out, &n, max, &e);
            }
        }
    } else {
        const int64_t cols = o->kind[kind].channels[0].cols;
        for (int64_t c = 0; c < cols; c++) {
            dq_element e = {.kind = kind, .class = class, .col = c};
            for (int l = 0; l < o->n_layers; l++) {
                const dq_channel *x = channel(o, kind, l, class, c);
                if (x->max > e.max) {
                    e.max = x->max;
                    e.at = (dq_place){x->seq, l, -1, x->row, (int32_t)c};
                }
                if (element_spans_layers(kind)) continue;
                insert(out, &n, max, &e);
                e.max = 0;
            }
            insert(out, &n, max, &e);
        }
    }
    for (int i = 0; i < n; i++) complete(&out[i], o);
    return n;
}

/* Rows are dequantized in blocks into a tally and a table of columns, which are reused, so that
 * memory is that of the widest matrix. */

enum { ROWS = 64, ROLES = 8 };
static const char *const roles[ROLES] = {"q", "k", "v", "o", "gate", "up", "down", "lambda"};

static int ascending(const void *a, const void *b)
{
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

static dq_status find_column(dq_weight_outlier *to, const dq_channels *c, dq_err *err)
{
    double *rms = dq_block_new((size_t)c->cols, sizeof *rms, err);
    double largest = -1;
    if (!rms) return err->code;
    for (int64_t i = 0; i < c->cols; i++) {
        rms[i] = dq_channels_rms(c, DQ_TOKEN_ORDINARY, i);
        if (rms[i] <= largest) continue;
        largest = rms[i];
        to->largest_col = i;
    }
    qsort(rms, (size_t)c->cols, sizeof *rms, ascending);
    const double median = rms[(c->cols - 1) / 2];
    to->col_ratio = median > 0 ? largest / median : 0;
    dq_block_free(rms);
    return DQ_OK;
}

static dq_status add(dq_weight_outliers *o, const dq_weight *w, const char *role, int layer,
                     dq_tally *t, dq_err *err)
{
    if (w->rows == 0) return DQ_OK;
    dq_weight_outlier *to = &o->of[o->n];
    *to = (dq_weight_outlier){
        .name = w->name, .role = role, .layer = layer, .rows = w->rows, .cols = w->cols};
    dq_channels c;
    float *x = dq_block_raw((size_t)(ROWS * w->cols), sizeof *x, err);
    dq_channels_init(&c, w->cols, err);
    dq_tally_clear(t);
    for (int64_t row = 0; row < w->rows && err->code == DQ_OK; row += ROWS) {
        const int64_t end = row + ROWS < w->rows ? row + ROWS : w->rows;
        if (dq_os_check_stop(err) != DQ_OK) break;
        dq_weight_dequantize_rows(x, w, row, end);
        for (int64_t r = row; r < end; r++)
            dq_tally_add(t, x + (r - row) * w->cols, w->cols,
                         (dq_place){-1, to->layer, -1, (int32_t)r, 0});
        dq_channels_add(&c, DQ_TOKEN_ORDINARY, x, end - row, 0, w->cols, 0, (int32_t)row);
        c.rows[DQ_TOKEN_ORDINARY] += end - row;
    }
    if (err->code == DQ_OK) {
        to->n_bad = t->n_bad;
        to->max = t->n_top ? t->top[0] : 0;
        to->row = t->n_top ? t->place[0].row : -1;
        to->col = t->n_top ? t->place[0].col : -1;
        to->median = dq_tally_quantile(t, 0.5, NULL);
        to->p99_9 = dq_tally_quantile(t, 0.999, NULL);
        to->rms = dq_outlier_rms(t);
        to->kurtosis0 = dq_outlier_kurtosis0(t);
        find_column(to, &c, err);
    }
    dq_channels_free(&c);
    dq_block_free(x);
    if (err->code != DQ_OK) return err->code;
    o->n++;
    return DQ_OK;
}

dq_status dq_weight_outliers_collect(dq_weight_outliers *o, const dq_model *m, dq_err *err)
{
    dq_tally t = {0};
    *o = (dq_weight_outliers){0};
    DQ_TRY(dq_model_check_weights(m, err));
    o->of = dq_block_new((size_t)(m->n_layers * ROLES + 2), sizeof *o->of, err);
    if (!o->of) return err->code;
    if (dq_tally_init(&t, err) == DQ_OK) add(o, &m->embed, "embed", -1, &t, err);
    for (int l = 0; l < m->n_layers && err->code == DQ_OK; l++) {
        const dq_layer *x = &m->layer[l];
        const dq_weight *const all[ROLES] = {&x->q,    &x->k,  &x->v,    &x->o,
                                             &x->gate, &x->up, &x->down, &x->lambda_proj};
        for (int i = 0; i < ROLES && err->code == DQ_OK; i++) add(o, all[i], roles[i], l, &t, err);
    }
    if (err->code == DQ_OK && !m->tied) add(o, &m->head, "head", -1, &t, err);
    dq_tally_free(&t);
    return err->code;
}

void dq_weight_outliers_free(dq_weight_outliers *o)
{
    dq_block_free(o->of);
    *o = (dq_weight_outliers){0};
}

/* Layers are filled separately; pooled numbers are merged at the end. Refined tallies merge only
 * the counts of their bins. */

const char *const dq_outlier_name[DQ_N_KINDS] = {
    "attention_logits", "hidden_states", "queries",       "keys",      "values",
    "qkv_input",        "o_input",       "gate_up_input", "down_input"};

const char *const dq_outlier_detail_name[DQ_DETAILS] = {"table5", "maps", "all"};

static dq_status init_tallies(dq_tally *pooled, dq_tally **layer, const dq_outliers *o, dq_err *err)
{
    *layer = dq_alloc(o->a, (size_t)o->n_layers, sizeof **layer, err);
    if (!*layer) return err->code;
    DQ_TRY(dq_tally_init(pooled, err));
    for (int i = 0; i < o->n_layers; i++) DQ_TRY(dq_tally_init(&(*layer)[i], err));
    return DQ_OK;
}

dq_status dq_outliers_init(dq_outliers *o, const dq_model *m, dq_outlier_detail detail, dq_err *err)
{
    const bool profile = detail == DQ_DETAIL_ALL;
    const size_t layers = (size_t)m->n_layers, outs = layers * (size_t)m->map.n_out;
    const dq_head_order *map = &m->map;
    const int64_t d = map->head_dim, y = (int64_t)map->n_out * map->n_slabs * d;
    const int64_t cols[DQ_N_KINDS] = {0,      m->dim, map->n_q * d, map->n_kv * d, map->n_kv * d,
                                      m->dim, y,      m->dim,       m->ffn};
    *o = (dq_outliers){.a = dq_arena_new(),
                       .n_layers = m->n_layers,
                       .n_out = m->map.n_out,
                       .n_q = m->map.n_q,
                       .n_kinds = profile ? DQ_N_KINDS : DQ_N_TABLE5};
    if (!o->a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    for (int k = 0; k < o->n_kinds; k++) {
        dq_outlier_kind *x = &o->kind[k];
        DQ_TRY(init_tallies(&x->pooled, &x->layer, o, err));
        x->layer_median = dq_alloc(o->a, layers, sizeof *x->layer_median, err);
        if (profile) DQ_TRY(init_tallies(&x->pooled_ordinary, &x->ordinary, o, err));
        if (profile && k != DQ_KIND_LOGITS)
            x->channels = dq_alloc(o->a, layers, sizeof *x->channels, err);
        for (int i = 0; x->channels && i < m->n_layers; i++)
            DQ_TRY(dq_channels_init(&x->channels[i], cols[k], err));
    }
    if (detail == DQ_DETAIL_TABLE5) return err->code;
    o->measure_sum = dq_alloc(o->a, outs, sizeof *o->measure_sum, err);
    o->measure = dq_alloc(o->a, outs, sizeof *o->measure, err);
    if (!profile) return err->code;
    o->head = dq_alloc(o->a, layers * (size_t)o->n_q * DQ_TOKEN_CLASSES, sizeof *o->head, err);
    o->tokens = dq_alloc(o->a, layers * DQ_TOKEN_CLASSES, sizeof *o->tokens, err);
    o->look_sum = dq_alloc(o->a, outs, sizeof *o->look_sum, err);
    o->look = dq_alloc(o->a, outs, sizeof *o->look, err);
    return err->code;
}

void dq_outliers_free(dq_outliers *o)
{
    for (int k = 0; k < DQ_N_KINDS; k++) {
        dq_outlier_kind *x = &o->kind[k];
        for (int i = 0; i < o->n_layers; i++) {
            if (x->layer) dq_tally_free(&x->layer[i]);
            if (x->ordinary) dq_tally_free(&x->ordinary[i]);
            if (x->channels) dq_channels_free(&x->channels[i]);
        }
        dq_tally_free(&x->pooled);
        dq_tally_free(&x->pooled_ordinary);
    }
    dq_arena_free(o->a);
    memset(o, 0, sizeof *o);
}

static size_t moments_of(const dq_outliers *o)
{
    return (size_t)o->n_q * DQ_TOKEN_CLASSES;
}

dq_status dq_outliers_put(const dq_outliers *o, int layer, dq_strbuf *to, dq_err *err)
{
    const bool refines = o->kind[0].layer[layer].fine;
    const bool profile = o->n_kinds > DQ_N_TABLE5 && !refines;
    for (int k = 0; k < (profile ? o->n_kinds : DQ_N_TABLE5); k++) {
        const dq_outlier_kind *x = &o->kind[k];
        DQ_TRY(dq_tally_put(&x->layer[layer], to, err));
        if (profile) DQ_TRY(dq_tally_put(&x->ordinary[layer], to, err));
        if (profile && x->channels) DQ_TRY(dq_channels_put(&x->channels[layer], to, err));
    }
    const struct {
        const void *of; /* [n_layers] of so many bytes */
        size_t bytes;
    } all[] = {{refines ? NULL : o->measure_sum, (size_t)o->n_out * sizeof *o->measure_sum},
               {profile ? o->head : NULL, moments_of(o) * sizeof *o->head},
               {profile ? o->tokens : NULL, DQ_TOKEN_CLASSES * sizeof *o->tokens},
               {profile ? o->look_sum : NULL, (size_t)o->n_out * sizeof *o->look_sum}};
    for (int i = 0; i < 4; i++) {
        const char *of = all[i].of;
        if (of) DQ_TRY(dq_strbuf_add(to, of + (size_t)layer * all[i].bytes, all[i].bytes, err));
    }
    return DQ_OK;
}

static bool merge_heads(dq_outliers *o, int layer, const char **at, const char *end)
{
    for (size_t i = 0; i < moments_of(o); i++) {
        dq_moments m;
        if (!dq_strbuf_take(&m, sizeof m, at, end) || !dq_fixed_is_count(m.n) || !isfinite(m.max))
            return false;
        dq_moments_merge(&o->head[(size_t)layer * moments_of(o) + i], &m);
    }
    for (int i = 0; i < DQ_TOKEN_CLASSES; i++) {
        int64_t n;
        if (!dq_strbuf_take(&n, sizeof n, at, end) || !dq_fixed_is_count(n)) return false;
        o->tokens[layer * DQ_TOKEN_CLASSES + i] += n;
    }
    for (int i = 0; i < o->n_out; i++) {
        dq_head_profile_sum s;
        if (!dq_strbuf_take(&s, sizeof s, at, end)) return false;
        if (!dq_head_profile_sum_merge(&o->look_sum[layer * o->n_out + i], &s)) return false;
    }
    return true;
}

dq_status dq_outliers_merge(dq_outliers *o, int layer, const char **at, const char *end,
                            dq_err *err)
{
    const bool refines = o->kind[0].layer[layer].fine;
    const bool profile = o->n_kinds > DQ_N_TABLE5 && !refines;
    for (int k = 0; k < (profile ? o->n_kinds : DQ_N_TABLE5); k++) {
        const dq_outlier_kind *x = &o->kind[k];
        DQ_TRY(dq_tally_merge_bytes(&x->layer[layer], at, end, err));
        if (profile) DQ_TRY(dq_tally_merge_bytes(&x->ordinary[layer], at, end, err));
        if (profile && x->channels)
            DQ_TRY(dq_channels_merge_bytes(&x->channels[layer], at, end, err));
    }
    for (int i = 0; o->measure_sum && !refines && i < o->n_out; i++) {
        dq_head_measure_sum s;
        if (!dq_strbuf_take(&s, sizeof s, at, end) ||
            !dq_head_measure_sum_merge(&o->measure_sum[layer * o->n_out + i], &s))
            return dq_fail(err, DQ_DAMAGED, "measures of heads are cut off, or none");
    }
    if (!profile || merge_heads(o, layer, at, end)) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "moments of heads are cut off, or none");
}

dq_median dq_outlier_median(const dq_tally *t)
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

/* Pools tallies, medians and measures of layers, after each pass over the data; after the first
 * only what was refined. */
static void outliers_pool(dq_outliers *o)
{
    const bool refined = o->kind[0].pooled.fine;
    for (int k = 0; k < (refined ? DQ_N_TABLE5 : o->n_kinds); k++) {
        dq_outlier_kind *x = &o->kind[k];
        for (int i = 0; i < o->n_layers; i++) {
            dq_tally_merge(&x->pooled, &x->layer[i]);
            if (x->ordinary && !refined) dq_tally_merge(&x->pooled_ordinary, &x->ordinary[i]);
            x->layer_median[i] = dq_outlier_median(&x->layer[i]);
        }
        x->pooled_median = dq_outlier_median(&x->pooled);
    }
    for (int i = 0; o->measure && i < o->n_layers * o->n_out; i++)
        o->measure[i] = dq_head_measure_sum_value(&o->measure_sum[i]);
    for (int i = 0; o->look && i < o->n_layers * o->n_out; i++)
        o->look[i] = dq_head_profile_sum_value(&o->look_sum[i]);
}

double dq_outlier_top(const dq_tally *t, int k)
{
    return k >= 1 && k <= t->n_top ? (double)t->top[k - 1] : (double)NAN;
}

double dq_outlier_rms(const dq_tally *t)
{
    return t->n ? sqrt(dq_fixed_value(&t->sum2) / (double)t->n) : (double)NAN;
}

double dq_outlier_kurtosis0(const dq_tally *t)
{
    const double sum2 = dq_fixed_value(&t->sum2);
    return sum2 > 0 ? (double)t->n * dq_fixed_value(&t->sum4) / (sum2 * sum2) : (double)NAN;
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

dq_moments dq_outlier_head(const dq_outliers *o, int layer, int head, unsigned classes)
{
    dq_moments all = {0};
    for (int c = 0; c < DQ_TOKEN_CLASSES; c++) {
        if (classes >> c & 1u)
            dq_moments_merge(&all,
                             &o->head[((int64_t)layer * o->n_q + head) * DQ_TOKEN_CLASSES + c]);
    }
    return all;
}

/* Passes are walked in blocks, which ranks share; what they find adds up in any order. The
 * sequences are run through the model up to three times. The first walk fills the histograms, the
 * second splits the bin of the median of all layers together, and the third, where a layer's own
 * median lies in another bin, that bin. So medians are exact and memory does not grow with the
 * text. A profile is of the first walk: what a layer puts out is looked at once the next one has
 * attended to it, while it is still there. */

/* Arrays of a batch are views into ids, and into pos and seq, which fit the largest pass. */
typedef struct dq_outlier_walk {
    dq_arena *a; /* of all arrays */
    dq_runner *r;
    const dq_sequences *s;
    const dq_outlier_walk_how *how;
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
    uint8_t *class;           /* [rows] */
    double *mass;             /* [n_maps][n_groups * rows]; zero between layers */
    int64_t *offset;          /* [sequences of a pass * n_groups] */
    dq_columns *columns;      /* [n_layers], all of `mass` */
    dq_head_profile *seen;    /* [n_layers][n_out] of a pass */
    dq_head_look *look;       /* [n_layers] */
    int32_t *copy, *last;     /* [rows] as dq_head_look has them; [vocab] a token's last position */
} walk;

static bool is_profile(const walk *w)
{
    return w->o->n_kinds > DQ_N_TABLE5 && w->number == 0;
}

static bool looks_at_maps(const walk *w)
{
    return w->o->measure_sum && w->number == 0;
}

/* The pass begins with sequence `first`. */
static int64_t pass_end(const dq_sequences *s, int64_t first, int64_t max_rows)
{
    int64_t end = first + 1;
    while (end < s->n && s->cu[end + 1] - s->cu[first] <= max_rows) end++;
    return end;
}

static void outlier_walk_look_at(const walk *w, int kind, int layer, const dq_layer_steps *s,
                                 dq_mat x, int64_t first)
{
    dq_outlier_kind *k = &w->o->kind[kind];
    const dq_profile to = {.all = &k->layer[layer],
                           .ordinary = &k->ordinary[layer],
                           .channels = &k->channels[layer],
                           .class = w->class,
                           .seq_base = w->seq_base};
    s->b->ops->profile_rows(s->b, &to, x, first, s->batch, layer);
}

/* Classes follow from the mass on rows as keys, which is cleared. */
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

static void attended(void *arg, int layer, const dq_layer_steps *s, const dq_attend_args *args)
{
    walk *w = arg;
    if (is_profile(w)) {
        dq_outlier_kind *k = &w->o->kind[DQ_KIND_LOGITS];
        const int64_t heads = (int64_t)w->o->n_q * DQ_TOKEN_CLASSES;
        s->b->ops->sync(s->b); /* the columns are there then */
        if (s->b->err.code == DQ_OK) {
            for (int i = 0; i < s->batch->n_seq; i++) class_sequence(w, s->batch, i, layer);
            int64_t *n = w->o->tokens + (int64_t)layer * DQ_TOKEN_CLASSES;
            for (int64_t i = 0; i < s->batch->n_rows; i++) n[w->class[i]]++;
            const dq_profile to = {.all = &k->layer[layer],
                                   .ordinary = &k->ordinary[layer],
                                   .head = w->o->head + layer * heads,
                                   .class = w->class,
                                   .seq_base = w->seq_base};
            s->b->ops->profile_logits(s->b, &to, args);
            outlier_walk_look_at(w, DQ_KIND_QKV_IN, layer, s, s->h, 0);
            outlier_walk_look_at(w, DQ_KIND_Q, layer, s, s->q, 0);
            outlier_walk_look_at(w, DQ_KIND_K, layer, s, s->k, 0);
            outlier_walk_look_at(w, DQ_KIND_V, layer, s, s->v, 0);
            outlier_walk_look_at(w, DQ_KIND_O_IN, layer, s, s->y, 0);
            if (layer > 0) outlier_walk_look_at(w, DQ_KIND_HIDDEN, layer - 1, s, s->x, 0);
        }
    } else
        s->b->ops->attn_observe(s->b, &w->o->kind[DQ_KIND_LOGITS].layer[layer], args, w->seq_base);
}

static void fed(void *arg, int layer, const dq_layer_steps *s, int64_t first, dq_mat in,
                dq_mat gate)
{
    const walk *w = arg;
    if (!is_profile(w)) return;
    outlier_walk_look_at(w, DQ_KIND_GATE_UP_IN, layer, s, in, first);
    outlier_walk_look_at(w, DQ_KIND_DOWN_IN, layer, s, gate, first);
}

static void passed(void *arg, int layer, const dq_layer_steps *s)
{
    const walk *w = arg;
    if (!is_profile(w))
        s->b->ops->observe(s->b, &w->o->kind[DQ_KIND_HIDDEN].layer[layer], s->x, s->batch, layer,
                           w->seq_base);
    else if (layer + 1 == w->o->n_layers)
        outlier_walk_look_at(w, DQ_KIND_HIDDEN, layer, s, s->x, 0);
}

/* Rows are counted beyond those of earlier passes. */
static void tell(void *arg, double rows)
{
    walk *w = arg;
    w->told += rows;
    dq_ranks_poll();
    if (w->how->tick) w->how->tick(w->how->arg, w->number, (int64_t)w->told);
}

/* For each row, the position after the last occurrence of its token before the local keys. */
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
    if (is_profile(w)) {
        /* Assigns space for the mass on keys, by sequence and group. */
        const int n_groups = w->m->map.n_groups;
        for (int i = 0; i < n; i++) {
            for (int g = 0; g < n_groups; g++)
                w->offset[i * n_groups + g] = w->cu[i] * n_groups + g * (w->cu[i + 1] - w->cu[i]);
        }
    }
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
    if (looks_at_maps(w)) {
        for (int i = 0; i < w->o->n_layers * w->o->n_out; i++) {
            dq_head_measure_sum_add(&w->o->measure_sum[i], &w->measure[i]);
            w->measure[i] = (dq_head_measure){0};
        }
    }
    if (is_profile(w)) {
        for (int i = 0; i < w->o->n_layers * w->o->n_out; i++) {
            dq_head_profile_sum_add(&w->o->look_sum[i], &w->seen[i]);
            w->seen[i] = (dq_head_profile){0};
        }
    }
    return DQ_OK;
}

static dq_status run_passes(walk *w, int64_t block, dq_err *err)
{
    for (int64_t first = w->start[block], end; first < w->start[block + 1]; first = end) {
        end = pass_end(w->s, first, w->how->max_rows);
        const double told = w->told;
        DQ_TRY(one_pass(w, first, end, err));
        w->told = fmax(w->told, told + (double)(w->s->cu[end] - w->s->cu[first]));
    }
    return DQ_OK;
}

static dq_status run_block(void *arg, int64_t block, dq_err *err)
{
    DQ_TRY(run_passes(arg, block, err));
    return dq_ranks_number() == 0 ? DQ_OK : dq_ranks_tell((const char *)&block, sizeof block, err);
}

/* Tells rank 0 what this one has found in its blocks: -1 - layer, and the layer's numbers. */
static dq_status tell_layers(void *arg, dq_err *err)
{
    const walk *w = arg;
    for (int i = 0; i < w->o->n_layers && err->code == DQ_OK; i++) {
        const int64_t layer = -1 - i;
        dq_strbuf found = {0};
        if (dq_strbuf_add(&found, (const char *)&layer, sizeof layer, err) == DQ_OK &&
            dq_outliers_put(w->o, i, &found, err) == DQ_OK)
            dq_ranks_tell(found.s, found.n, err);
        dq_block_free(found.s);
    }
    return err->code;
}

static dq_status take_told(void *arg, const char *text, size_t len, dq_err *err)
{
    walk *w = arg;
    int64_t block;
    const char *at = text + sizeof block;
    memcpy(&block, text, sizeof block);
    if (block < 0) return dq_outliers_merge(w->o, (int)(-1 - block), &at, text + len, err);
    w->told += (double)(w->s->cu[w->start[block + 1]] - w->s->cu[w->start[block]]);
    return DQ_OK;
}

static dq_status run_walk(walk *w, int number, dq_err *err)
{
    const dq_ranks_work work = {
        .n = w->n_blocks, .run = run_block, .last = tell_layers, .take = take_told, .arg = w};
    w->number = number;
    w->told = 0;
    return dq_ranks_run(&work, err);
}

/* Every layer splits the bin of its own median (walk 3), or all that of the pooled one, and adds up
 * (walk 2): a tally can split one bin at a time, so layers with medians elsewhere wait. Rank 0 has
 * the counts, and tells the others. */
static dq_status aim(dq_outliers *o, bool pooled, dq_err *err)
{
    for (int k = 0; k < DQ_N_TABLE5; k++) {
        dq_outlier_kind *x = &o->kind[k];
        if (pooled) dq_tally_refine(&x->pooled, 0.5, err);
        DQ_TRY(dq_ranks_share(&x->pooled.refine_bin, sizeof x->pooled.refine_bin, err));
        for (int i = 0; i < o->n_layers; i++) {
            int *bin = &x->layer[i].refine_bin;
            dq_tally_refine(&x->layer[i], 0.5, err);
            if (pooled) *bin = x->pooled.refine_bin;
            DQ_TRY(dq_ranks_share(bin, sizeof *bin, err));
        }
    }
    return DQ_OK;
}

static bool layers_are_exact(const dq_outliers *o)
{
    for (int i = 0; i < DQ_N_TABLE5 * o->n_layers; i++) {
        if (o->kind[i / o->n_layers].layer_median[i % o->n_layers].bound > 0) return false;
    }
    return true;
}

static dq_status run_walks(dq_outliers *o, walk *w, dq_err *err)
{
    bool exact;
    DQ_TRY(run_walk(w, 0, err));
    dq_outlier_walk_end(w);
    if (w->how->walks < 2) return DQ_OK;
    DQ_TRY(aim(o, true, err));
    DQ_TRY(run_walk(w, 1, err));
    outliers_pool(o);
    exact = layers_are_exact(o);
    DQ_TRY(dq_ranks_share(&exact, sizeof exact, err));
    if (w->how->walks < 3 || exact) return DQ_OK;
    DQ_TRY(aim(o, false, err));
    DQ_TRY(run_walk(w, 2, err));
    for (int k = 0; k < DQ_N_TABLE5; k++) {
        for (int i = 0; i < o->n_layers; i++)
            o->kind[k].layer_median[i] = dq_outlier_median(&o->kind[k].layer[i]);
    }
    return DQ_OK;
}

static dq_status walk_begin(walk *w, dq_outliers *o, const dq_model *m, const dq_sequences *s,
                            const dq_outlier_walk_how *how, dq_err *err)
{
    *w = (walk){.s = s, .how = how, .o = o, .m = m};
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
    int64_t rows = 0, seqs = 0, passes = 0, number = 0;
    for (int64_t first = 0, end; first < w->s->n; first = end, passes++) {
        end = pass_end(w->s, first, w->how->max_rows);
        int64_t n = w->s->cu[end] - w->s->cu[first];
        if (n > rows) rows = n;
        if (end - first > seqs) seqs = end - first;
    }
    const int64_t n_blocks = passes < DQ_OUTLIER_BLOCKS ? passes : DQ_OUTLIER_BLOCKS;
    for (int64_t first = 0; first < w->s->n; number++) {
        if (number == w->n_blocks * passes / n_blocks) w->start[w->n_blocks++] = first;
        first = pass_end(w->s, first, w->how->max_rows);
    }
    w->start[w->n_blocks] = w->s->n;
    w->a = dq_arena_new();
    if (!w->a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    const dq_head_order *map = &m->map;
    const size_t layers = (size_t)o->n_layers, outs = layers * (size_t)o->n_out,
                 keys = (size_t)rows * (size_t)map->n_groups;
    w->cu = dq_alloc(w->a, (size_t)seqs + 1, sizeof *w->cu, err);
    w->seq = dq_alloc(w->a, (size_t)seqs, sizeof *w->seq, err);
    w->pos = dq_alloc(w->a, (size_t)rows, sizeof *w->pos, err);
    if (looks_at_maps(w)) w->measure = dq_alloc(w->a, outs, sizeof *w->measure, err);
    if (err->code != DQ_OK || !is_profile(w)) return err->code;
    w->class = dq_alloc(w->a, (size_t)rows, 1, err);
    w->mass = dq_alloc(w->a, (size_t)map->n_maps * keys, sizeof *w->mass, err);
    w->offset = dq_alloc(w->a, (size_t)(seqs * map->n_groups), sizeof *w->offset, err);
    w->columns = dq_alloc(w->a, layers, sizeof *w->columns, err);
    w->seen = dq_alloc(w->a, outs, sizeof *w->seen, err);
    w->look = dq_alloc(w->a, layers, sizeof *w->look, err);
    w->copy = dq_alloc(w->a, (size_t)rows, sizeof *w->copy, err);
    w->last = dq_alloc(w->a, (size_t)m->vocab, sizeof *w->last, err);
    if (err->code != DQ_OK) return err->code;
    for (int i = 0; i < o->n_layers; i++) {
        w->look[i] = (dq_head_look){w->seen + (int64_t)i * o->n_out, w->copy};
        w->columns[i] = (dq_columns){.offset = w->offset,
                                     .mass = {w->mass, map->n_maps > 1 ? w->mass + keys : NULL}};
    }
    return DQ_OK;
}

static dq_status check_backend(const dq_outliers *o, const dq_backend *b, dq_err *err)
{
    if (o->n_kinds == DQ_N_TABLE5 || b->ops->profile_rows) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "a profile by channels and classes of tokens is not there on %s", b->device);
}

dq_status dq_outlier_walk_collect(dq_outliers *o, dq_runner *r, const dq_sequences *s,
                                  const dq_outlier_walk_how *how, dq_err *err)
{
    walk w;
    DQ_TRY(check_backend(o, dq_runner_backend(r), err));
    if (walk_begin(&w, o, dq_runner_model(r), s, how, err) == DQ_OK) {
        w.r = r;
        run_walks(o, &w, err);
    }
    dq_arena_free(w.a);
    return err->code;
}

dq_status dq_outlier_walk_new(dq_outlier_walk **w, dq_outliers *o, const dq_model *m,
                              const dq_sequences *s, const dq_outlier_walk_how *how, dq_err *err)
{
    *w = dq_block_new(1, sizeof **w, err);
    if (!*w || walk_begin(*w, o, m, s, how, err) == DQ_OK) return err->code;
    dq_outlier_walk_free(*w);
    *w = NULL;
    return err->code;
}

void dq_outlier_walk_free(dq_outlier_walk *w)
{
    if (w) dq_arena_free(w->a);
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

bool dq_outlier_walk_check(const dq_outlier_walk *w)
{
    const dq_outliers *o = w->o;
    const int heads = o->n_q * DQ_TOKEN_CLASSES;
    for (int k = 0; k < o->n_kinds; k++) {
        const dq_outlier_kind *x = &o->kind[k];
        for (int i = 0; i < o->n_layers; i++) {
            if (!check_tally(w, k, i, &x->layer[i])) return false;
            if (x->ordinary && !check_tally(w, k, i, &x->ordinary[i])) return false;
            const dq_channels *c = x->channels ? &x->channels[i] : NULL;
            for (int64_t j = 0; c && j < c->cols * DQ_TOKEN_CLASSES; j++) {
                if (c->of[j].max > 0 && !is_position(w, c->of[j].seq, c->of[j].row)) return false;
            }
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
    outliers_pool(w->o);
}
