/* model_build: turns a configuration and a source of tensors into a model. Declared in model.h.
 * SPDX-License-Identifier: MIT */
#include "model.h"
#include "quant.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 256, MAX_WARNINGS = 4 };

typedef struct builder {
    dq_model *m;
    const dq_source *source;
    dq_arena *arena;
    bool wanted[DQ_ROLE_COUNT]; /* tensors of this role must exist */
    int64_t rows[DQ_ROLE_COUNT], cols[DQ_ROLE_COUNT];
    const char **warning; /* [MAX_WARNINGS] */
} builder;

/* ---- Configuration ---- */

static dq_status read_int(int *out, const json_t *config, const char *key, int max,
                          const int *fallback, dq_err *err)
{
    int64_t other = fallback ? *fallback : 0, x = 1;
    DQ_TRY(dq_json_int(&x, config, key, 1, max, fallback ? &other : NULL, err));
    *out = (int)x;
    return DQ_OK;
}

/* Limits are far above any published model; they keep products of sizes inside 64 bits. */
static dq_status read_sizes(dq_model *m, const json_t *config, dq_err *err)
{
    static const int positions = 2048;
    DQ_TRY(read_int(&m->dim, config, "hidden_size", 1 << 20, NULL, err));
    DQ_TRY(read_int(&m->ffn, config, "intermediate_size", 1 << 24, NULL, err));
    DQ_TRY(read_int(&m->n_layers, config, "num_hidden_layers", 10000, NULL, err));
    DQ_TRY(read_int(&m->vocab, config, "vocab_size", 1 << 24, NULL, err));
    return read_int(&m->max_positions, config, "max_position_embeddings", 1 << 30, &positions, err);
}

static dq_status read_heads(dq_model *m, const json_t *config, dq_arena *a, dq_err *err)
{
    enum { MAX_HEADS = 16384 };
    int n_q, n_kv, head_dim;
    DQ_TRY(read_int(&n_q, config, "num_attention_heads", MAX_HEADS, NULL, err));
    DQ_TRY(read_int(&n_kv, config, "num_key_value_heads", MAX_HEADS, &n_q, err));
    head_dim = m->dim / n_q;
    const json_t *stated = json_object_get(config, "head_dim");
    if (stated && !json_is_null(stated))
        DQ_TRY(read_int(&head_dim, config, "head_dim", 1 << 16, NULL, err));
    else if (m->dim % n_q)
        return dq_fail(
            err, DQ_DAMAGED,
            "hidden_size %d is not a multiple of num_attention_heads %d, and there is no "
            "head_dim",
            m->dim, n_q);
    return dq_headmap_build(&m->map, m->layout->pairing, n_q, n_kv, head_dim, 0, a, err);
}

static dq_status read_eps(float *out, const json_t *config, const char *key, double fallback,
                          dq_err *err)
{
    double eps = fallback;
    DQ_TRY(dq_json_float(&eps, config, key, &fallback, err));
    if (!(eps > 0.0 && eps <= 1.0))
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected more than 0 and at most 1, found %g",
                       key, eps);
    *out = (float)eps;
    return DQ_OK;
}

static dq_status check_act(const dq_model *m, const json_t *config, dq_err *err)
{
    static const char *const silu = "silu"; /* transformers also calls it swish */
    const char *act = NULL;
    DQ_TRY(dq_json_text(&act, config, "hidden_act", &silu, err));
    if (strcmp(act, silu) != 0 && strcmp(act, "swish") != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"hidden_act\": \"%s\" is not supported for %s "
                       "(expected \"silu\")",
                       act, m->layout->family);
    return DQ_OK;
}

static void want_roles(builder *b, bool attention_bias, bool mlp_bias)
{
    static const dq_role attention[] = {DQ_ROLE_Q_BIAS, DQ_ROLE_K_BIAS, DQ_ROLE_V_BIAS,
                                        DQ_ROLE_O_BIAS};
    static const dq_role mlp[] = {DQ_ROLE_GATE_BIAS, DQ_ROLE_UP_BIAS, DQ_ROLE_DOWN_BIAS};
    for (int r = 0; r < DQ_ROLE_COUNT; r++) b->wanted[r] = b->m->layout->name[r] != NULL;
    for (size_t i = 0; i < sizeof attention / sizeof *attention; i++)
        b->wanted[attention[i]] &= attention_bias;
    for (size_t i = 0; i < sizeof mlp / sizeof *mlp; i++)
        b->wanted[mlp[i]] &= mlp_bias && b->m->layout->mlp_bias;
}

static void set_shape(builder *b, dq_role role, int64_t rows, int64_t cols)
{
    b->rows[role] = rows;
    b->cols[role] = cols;
}

static void set_shapes(builder *b)
{
    const dq_model *m = b->m;
    int64_t dim = m->dim, ffn = m->ffn, d = m->map.head_dim;
    int64_t q = m->map.n_q * d, kv = m->map.n_kv * d, out = (int64_t)m->map.n_out * m->map.n_slabs;
    for (int r = 0; r < DQ_ROLE_COUNT; r++) set_shape(b, (dq_role)r, dim, 1);
    set_shape(b, DQ_ROLE_EMBED, m->vocab, dim);
    set_shape(b, DQ_ROLE_HEAD, m->vocab, dim);
    set_shape(b, DQ_ROLE_Q, q, dim);
    set_shape(b, DQ_ROLE_K, kv, dim);
    set_shape(b, DQ_ROLE_V, kv, dim);
    set_shape(b, DQ_ROLE_O, dim, out * d);
    set_shape(b, DQ_ROLE_Q_BIAS, q, 1);
    set_shape(b, DQ_ROLE_K_BIAS, kv, 1);
    set_shape(b, DQ_ROLE_V_BIAS, kv, 1);
    for (int r = DQ_ROLE_LAMBDA_Q1; r <= DQ_ROLE_LAMBDA_K2; r++) set_shape(b, (dq_role)r, d, 1);
    set_shape(b, DQ_ROLE_GATE, ffn, dim);
    set_shape(b, DQ_ROLE_UP, ffn, dim);
    set_shape(b, DQ_ROLE_DOWN, dim, ffn);
    set_shape(b, DQ_ROLE_GATE_BIAS, ffn, 1);
    set_shape(b, DQ_ROLE_UP_BIAS, ffn, 1);
}

static dq_status read_config(builder *b, const json_t *config, dq_err *err)
{
    static const bool no = false;
    bool attention_bias = false, mlp_bias = false;
    dq_model *m = b->m;
    DQ_TRY(dq_layout_find(&m->layout, config, err));
    DQ_TRY(read_sizes(m, config, err));
    DQ_TRY(read_heads(m, config, b->arena, err));
    DQ_TRY(read_eps(&m->norm_eps, config, "rms_norm_eps", m->layout->default_norm_eps, err));
    DQ_TRY(check_act(m, config, err));
    DQ_TRY(dq_json_bool(&m->tied, config, "tie_word_embeddings", &no, err));
    DQ_TRY(dq_json_bool(&attention_bias, config, "attention_bias", &no, err));
    if (m->layout->mlp_bias) DQ_TRY(dq_json_bool(&mlp_bias, config, "mlp_bias", &no, err));
    float *inv_freq = dq_alloc(b->arena, (size_t)m->map.head_dim / 2 + 1, sizeof *inv_freq, err);
    if (!inv_freq) return err->code;
    m->rope = (dq_rope){m->layout->rope, m->map.head_dim, inv_freq};
    DQ_TRY(dq_rope_frequencies(inv_freq, config, m->map.head_dim, m->max_positions, err));
    want_roles(b, attention_bias, mlp_bias);
    set_shapes(b);
    return DQ_OK;
}

/* ---- Tensors ---- */

/* The name of a role's tensor; layer is ignored where the name has no place for it. */
static void role_name(char name[MAX_NAME], const builder *b, dq_role role, int layer)
{
    const char *pattern = b->m->layout->name[role], *hole = strstr(pattern, "%d");
    if (hole)
        snprintf(name, MAX_NAME, "%.*s%d%s", (int)(hole - pattern), pattern, layer, hole + 2);
    else
        snprintf(name, MAX_NAME, "%s", pattern);
}

static void shape_text(char *out, size_t cap, int64_t rows, int64_t cols)
{
    if (cols < 0)
        snprintf(out, cap, "%lld dimensions", (long long)-cols);
    else if (cols == 1)
        snprintf(out, cap, "[%lld]", (long long)rows);
    else
        snprintf(out, cap, "[%lld, %lld]", (long long)rows, (long long)cols);
}

static int64_t stored_bytes(const dq_weight *w)
{
    if (w->bits == 16) return w->rows * w->cols * (int64_t)dq_dtypes[w->dtype].bytes;
    int64_t scales = w->scale_rows * dq_groups(w->cols, w->group_size);
    return w->rows * (int64_t)dq_row_bytes(w->cols, w->bits) +
           scales * (int64_t)dq_dtypes[w->scale_dtype].bytes;
}

static void count_in(builder *b, const dq_weight *w)
{
    b->m->n_params += w->rows * w->cols;
    b->m->weight_bytes += stored_bytes(w);
}

static dq_status check_tensor(const builder *b, dq_role role, const char *name, const dq_weight *w,
                              dq_err *err)
{
    char want[64], found[64];
    bool vector = b->cols[role] == 1;
    if (w->rows != b->rows[role] || w->cols != b->cols[role]) {
        shape_text(want, sizeof want, b->rows[role], b->cols[role]);
        shape_text(found, sizeof found, w->rows, w->cols);
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": wrong shape (expected %s, found %s)", name,
                       want, found);
    }
    if (w->bits != 16)
        return vector ? dq_fail(err, DQ_DAMAGED, "tensor \"%s\": a vector cannot be packed", name)
                      : DQ_OK;
    if (w->dtype == DQ_F32 || w->dtype == DQ_F16 || w->dtype == DQ_BF16) return DQ_OK;
    if (vector && w->dtype == DQ_F64) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "tensor \"%s\": dtype %s is not supported (supported: F32, F16, BF16)", name,
                   dq_dtypes[w->dtype].name);
}

static bool find(const builder *b, dq_role role, int layer, char name[MAX_NAME], dq_weight *w)
{
    role_name(name, b, role, layer);
    *w = (dq_weight){.bits = 16};
    return b->source->find(b->source->arg, name, w);
}

static dq_status load_weight(builder *b, dq_role role, int layer, dq_weight *w, dq_err *err)
{
    char name[MAX_NAME];
    if (!find(b, role, layer, name, w))
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\" is missing", name);
    DQ_TRY(check_tensor(b, role, name, w, err));
    count_in(b, w);
    return DQ_OK;
}

/* A vector as f32 in the arena. NULL in *out when the layout or the configuration has none. */
static dq_status load_vector(builder *b, dq_role role, int layer, const float **out, dq_err *err)
{
    dq_weight w;
    *out = NULL;
    if (!b->wanted[role]) return DQ_OK;
    DQ_TRY(load_weight(b, role, layer, &w, err));
    float *x = dq_alloc(b->arena, (size_t)w.rows, sizeof *x, err);
    if (!x) return err->code;
    dq_to_f32(x, w.data, w.dtype, w.rows);
    for (int64_t i = 0; i < w.rows; i++) {
        if (!isfinite(x[i]))
            return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": value %lld is not finite", w.name,
                           (long long)i);
    }
    *out = x;
    return DQ_OK;
}

static bool same_values(const dq_weight *a, const dq_weight *b)
{
    enum { BLOCK = 512 };
    float x[BLOCK], y[BLOCK];
    int64_t n = a->rows * a->cols;
    if (a->bits != 16 || b->bits != 16) return false;
    if (a->dtype == b->dtype && memcmp(a->data, b->data, (size_t)stored_bytes(a)) == 0) return true;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t part = n - i < BLOCK ? n - i : BLOCK;
        const char *p = a->data, *q = b->data;
        dq_to_f32(x, p + (size_t)i * dq_dtypes[a->dtype].bytes, a->dtype, part);
        dq_to_f32(y, q + (size_t)i * dq_dtypes[b->dtype].bytes, b->dtype, part);
        for (int64_t j = 0; j < part; j++) {
            if (x[j] < y[j] || x[j] > y[j] || isnan(x[j]) != isnan(y[j])) return false;
        }
    }
    return true;
}

static dq_status warn(builder *b, const char *text, dq_err *err)
{
    if (!b->warning) b->warning = dq_alloc(b->arena, MAX_WARNINGS, sizeof *b->warning, err);
    if (!b->warning) return err->code;
    if (b->m->n_warnings < MAX_WARNINGS) b->warning[b->m->n_warnings++] = text;
    b->m->warnings = b->warning;
    return DQ_OK;
}

/* Embedding and output head. What is stored decides over what the configuration says, as in
 * transformers 5: a head of its own is used even if the two are said to be tied. */
static dq_status load_ends(builder *b, dq_err *err)
{
    char name[MAX_NAME];
    dq_model *m = b->m;
    dq_weight embed, head;
    bool has_embed = find(b, DQ_ROLE_EMBED, 0, name, &embed);
    bool has_head = find(b, DQ_ROLE_HEAD, 0, name, &head);
    if (!m->tied || (!has_embed && !has_head)) {
        DQ_TRY(load_weight(b, DQ_ROLE_EMBED, 0, &m->embed, err));
        return load_weight(b, DQ_ROLE_HEAD, 0, &m->head, err);
    }
    if (has_embed) DQ_TRY(load_weight(b, DQ_ROLE_EMBED, 0, &m->embed, err));
    if (!has_head) {
        m->head = m->embed;
    } else if (!has_embed) {
        DQ_TRY(load_weight(b, DQ_ROLE_HEAD, 0, &m->head, err));
        m->embed = m->head;
    } else {
        DQ_TRY(check_tensor(b, DQ_ROLE_HEAD, name, &head, err));
        m->head = m->embed;
        if (same_values(&m->embed, &head)) return DQ_OK;
        m->head = head;
        m->tied = false;
        count_in(b, &head);
        return warn(b,
                    "tie_word_embeddings is true, but lm_head.weight differs from the embedding: "
                    "the stored lm_head.weight is used",
                    err);
    }
    return DQ_OK;
}

static double dot(const float *x, const float *y, int n)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)y[i];
    return sum;
}

/* lambda = exp(lq1 . lk1) - exp(lq2 . lk2) + lambda_init. Source: arXiv 2410.05258 eq. 2. */
static dq_status load_lambda(builder *b, int l, dq_layer *layer, dq_err *err)
{
    const dq_layout *layout = b->m->layout;
    int d = b->m->map.head_dim;
    const float *v[4];
    layer->attn.lambda_kind = layout->lambda;
    layer->attn.out_scale = 1.0f;
    if (layout->lambda != DQ_LAMBDA_LAYER) return DQ_OK;
    for (int i = 0; i < 4; i++)
        DQ_TRY(load_vector(b, (dq_role)(DQ_ROLE_LAMBDA_Q1 + i), l, &v[i], err));
    double init = 0.8 - 0.6 * exp(-0.3 * ((double)l - layout->depth_shift));
    double lambda = exp(dot(v[0], v[1], d)) - exp(dot(v[2], v[3], d)) + init;
    layer->lambda_init = (float)init;
    layer->attn.lambda = (float)lambda;
    layer->attn.out_scale = (float)(1.0 - init);
    if (!isfinite(layer->attn.lambda))
        return dq_fail(err, DQ_DAMAGED,
                       "layer %d: the lambda vectors give a lambda that is not "
                       "finite",
                       l);
    return DQ_OK;
}

static dq_status load_layer(builder *b, int l, float head_eps, dq_err *err)
{
    dq_model *m = b->m;
    dq_layer *x = &m->layer[l];
    const struct {
        dq_role role;
        dq_weight *to;
    } weights[] = {{DQ_ROLE_Q, &x->q},      {DQ_ROLE_K, &x->k},       {DQ_ROLE_V, &x->v},
                   {DQ_ROLE_O, &x->o},      {DQ_ROLE_GATE, &x->gate}, {DQ_ROLE_UP, &x->up},
                   {DQ_ROLE_DOWN, &x->down}};
    const struct {
        dq_role role;
        const float **to;
    } vectors[] = {{DQ_ROLE_NORM_ATTN, &x->norm_attn}, {DQ_ROLE_NORM_FFN, &x->norm_ffn},
                   {DQ_ROLE_Q_BIAS, &x->q_bias},       {DQ_ROLE_K_BIAS, &x->k_bias},
                   {DQ_ROLE_V_BIAS, &x->v_bias},       {DQ_ROLE_O_BIAS, &x->o_bias},
                   {DQ_ROLE_GATE_BIAS, &x->gate_bias}, {DQ_ROLE_UP_BIAS, &x->up_bias},
                   {DQ_ROLE_DOWN_BIAS, &x->down_bias}};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        DQ_TRY(load_weight(b, weights[i].role, l, weights[i].to, err));
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        DQ_TRY(load_vector(b, vectors[i].role, l, vectors[i].to, err));
    x->attn.map = &m->map;
    x->attn.head_norm = m->layout->head_norm;
    x->attn.norm_eps = head_eps;
    return load_lambda(b, l, x, err);
}

/* ---- Names that nothing asked for ---- */

/* Whether `name` is the pattern with a layer number of this model in its hole. */
static bool matches(const char *pattern, const char *name, int n_layers)
{
    const char *hole = strstr(pattern, "%d");
    long layer = 0;
    if (!hole) return strcmp(pattern, name) == 0;
    size_t before = (size_t)(hole - pattern);
    if (strncmp(pattern, name, before) != 0) return false;
    name += before;
    if (*name == '0' && name[1] != '.') return false;
    if (*name < '0' || *name > '9') return false;
    for (; *name >= '0' && *name <= '9' && layer < n_layers; name++)
        layer = layer * 10 + (*name - '0');
    return layer < n_layers && strcmp(name, hole + 2) == 0;
}

static bool is_expected(const builder *b, const char *name)
{
    if (strstr(name, "rotary_emb.inv_freq")) return true; /* left over from old versions */
    for (int r = 0; r < DQ_ROLE_COUNT; r++) {
        if (b->wanted[r] && matches(b->m->layout->name[r], name, b->m->n_layers)) return true;
    }
    return false;
}

static dq_status check_all_used(const builder *b, dq_err *err)
{
    for (int64_t i = 0; i < b->source->count; i++) {
        const char *name = b->source->name_at(b->source->arg, i);
        if (!is_expected(b, name))
            return dq_fail(err, DQ_MISMATCH,
                           "tensor \"%s\" does not belong to a %s model of %d layers with this "
                           "configuration",
                           name, b->m->layout->family, b->m->n_layers);
    }
    return DQ_OK;
}

/* ---- Summary ---- */

/* How one packed weight groups its columns. */
static const char *group_text(const dq_weight *w, dq_arena *a, dq_err *err)
{
    if (w->scale_rows == 1 && w->rows > 1) return "tensor";
    if (w->group_size == w->cols) return "row";
    return dq_textf(a, err, "%lld", (long long)w->group_size);
}

static dq_status sum_up(dq_model *m, dq_arena *a, dq_err *err)
{
    m->weight_bits = 16;
    m->weight_group = "";
    m->scale_mode = "";
    for (int l = 0; l < m->n_layers; l++) {
        const dq_layer *x = &m->layer[l];
        const dq_weight *all[] = {&x->q, &x->k, &x->v, &x->o, &x->gate, &x->up, &x->down};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            if (all[i]->bits == 16) continue;
            const char *group = group_text(all[i], a, err);
            if (!group) return err->code;
            if (m->weight_group[0] == 0) { /* the first packed weight */
                m->weight_bits = all[i]->bits;
                m->weight_group = group;
                continue;
            }
            if (m->weight_bits != all[i]->bits) m->weight_bits = 0;
            if (strcmp(m->weight_group, group) != 0) m->weight_group = "mixed";
        }
    }
    return DQ_OK;
}

dq_status dq_model_build(dq_model *m, const json_t *config, const dq_source *source, dq_arena *a,
                         dq_err *err)
{
    builder b = {.m = m, .source = source, .arena = a};
    float head_eps = 0.0f;
    if (read_config(&b, config, err) != DQ_OK) return dq_in(err, "config.json: ");
    const dq_layout *layout = m->layout;
    if (layout->head_norm &&
        read_eps(&head_eps, config, layout->head_eps_key, layout->default_norm_eps, err) != DQ_OK)
        return dq_in(err, "config.json: ");
    m->layer = dq_alloc(a, (size_t)m->n_layers, sizeof *m->layer, err);
    if (!m->layer) return err->code;
    DQ_TRY(load_ends(&b, err));
    DQ_TRY(load_vector(&b, DQ_ROLE_NORM_OUT, 0, &m->norm_out, err));
    for (int l = 0; l < m->n_layers; l++) DQ_TRY(load_layer(&b, l, head_eps, err));
    DQ_TRY(check_all_used(&b, err));
    m->logit_bits = 16;
    m->logit_grain = "tensor";
    return sum_up(m, a, err);
}
