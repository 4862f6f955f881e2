/* model_build: turns a configuration and a source of tensors into a model. Declared in model.h.
 * SPDX-License-Identifier: MIT */
#include "model/model_config.h"
#include "tensor/weight_format.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 256, MAX_WARNINGS = 8 };

typedef struct builder {
    dq_model *m;
    const dq_model_config *plan;
    const dq_source *source;
    dq_arena *arena;
    int64_t n_no_bias;   /* biases that are not there, where others are */
    const char *no_bias; /* the first */
} builder;

/* ---- Tensors ---- */

/* The name of a role's tensor; layer is ignored where the name has no place for it. */
static void role_name(char name[MAX_NAME], const builder *b, dq_role role, int layer)
{
    const char *pattern = b->m->architecture->tensor[role], *hole = strstr(pattern, "%d");
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

static void count_in(builder *b, const char *name, const dq_weight *w)
{
    const dq_source *s = b->source;
    b->m->n_params += w->rows * w->cols;
    b->m->weight_bytes += (int64_t)dq_weight_bytes(w);
    b->m->stored_bytes +=
        s->stored_bytes ? s->stored_bytes(s->arg, name) : (int64_t)dq_weight_bytes(w);
}

static dq_status check_tensor(const builder *b, dq_role role, const char *name, const dq_weight *w,
                              dq_err *err)
{
    char want[64], found[64];
    bool vector = b->plan->cols[role] == 1;
    if (w->rows != b->plan->rows[role] || w->cols != b->plan->cols[role]) {
        shape_text(want, sizeof want, b->plan->rows[role], b->plan->cols[role]);
        shape_text(found, sizeof found, w->rows, w->cols);
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": wrong shape (expected %s, found %s)", name,
                       want, found);
    }
    if (dq_weight_is_coded(w))
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

/* A name that is the wanted one with something before it, or without "model.": wrappers write such. */
static bool is_renamed(const char *name, const char *there)
{
    static const char prefix[] = "model.";
    const size_t n = strlen(name), k = strlen(there), p = sizeof prefix - 1;
    if (strncmp(name, prefix, p) == 0 && strcmp(there, name + p) == 0) return true;
    return k > n && there[k - n - 1] == '.' && strcmp(there + k - n, name) == 0;
}

/* A part of a model that ends in something else, told by a name that the source has. */
static dq_status refuse_missing(const builder *b, const char *name, dq_err *err)
{
    static const struct {
        const char *part, *about;
    } others[] = {{"lora_A", "an adapter, to be merged into its model"},
                  {"score.", "a classifier or reward model"},
                  {"classifier.", "a classifier"},
                  {"v_head.", "a model with a head of values"},
                  {"reward_head", "a reward model"}};
    const char *like = NULL, *head = b->m->tied ? name : NULL, *about = NULL, *sign = NULL;
    for (int64_t i = 0; i < b->source->count && !about; i++) {
        const char *there = b->source->name_at(b->source->arg, i);
        if (is_renamed(name, there)) like = there;
        if (strstr(there, b->m->architecture->tensor[DQ_ROLE_HEAD])) head = there;
        for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
            if (strstr(there, others[k].part)) about = others[k].about, sign = there;
        }
    }
    if (like && head && !about)
        return dq_fail(err, DQ_MISMATCH,
                       "tensor \"%s\" is missing, but \"%s\" is there, as another program names "
                       "it. Give all tensors the names of transformers, as this one the first.",
                       name, like);
    if (like && !about) {
        about = "a model without an output head, as encoders and embeddings have it";
        sign = like;
    }
    if (!about) return dq_fail(err, DQ_DAMAGED, "tensor \"%s\" is missing", name);
    return dq_fail(err, DQ_MISMATCH,
                   "tensor \"%s\" is missing, but \"%s\" is there: this is %s, not a language "
                   "model. Use one that has an output head.",
                   name, sign, about);
}

static dq_status load_weight(builder *b, dq_role role, int layer, dq_weight *w, dq_err *err)
{
    char name[MAX_NAME];
    if (!find(b, role, layer, name, w)) return refuse_missing(b, name, err);
    DQ_TRY(check_tensor(b, role, name, w, err));
    count_in(b, name, w);
    return DQ_OK;
}

static bool is_bias(dq_role role)
{
    return (role >= DQ_ROLE_Q_BIAS && role <= DQ_ROLE_O_BIAS) ||
           (role >= DQ_ROLE_GATE_BIAS && role <= DQ_ROLE_DOWN_BIAS);
}

/* Whether another bias of attention, or of the MLP, is there. */
static bool has_other_bias(const builder *b, dq_role role)
{
    const bool attention = role <= DQ_ROLE_O_BIAS;
    char name[MAX_NAME];
    dq_weight w;
    for (int l = 0; l < b->m->n_layers; l++) {
        for (int r = attention ? DQ_ROLE_Q_BIAS : DQ_ROLE_GATE_BIAS;
             r <= (attention ? DQ_ROLE_O_BIAS : DQ_ROLE_DOWN_BIAS); r++) {
            if (find(b, (dq_role)r, l, name, &w)) return true;
        }
    }
    return false;
}

/* A vector as f32 in the arena. NULL in *out when the architecture or the configuration has none, and for a bias that is not
 * there where others are: transformers takes it for zero. */
static dq_status load_vector(builder *b, dq_role role, int layer, const float **out, dq_err *err)
{
    char name[MAX_NAME];
    dq_weight w;
    *out = NULL;
    if (!b->plan->wanted[role]) return DQ_OK;
    if (is_bias(role) && !find(b, role, layer, name, &w) && has_other_bias(b, role)) {
        if (b->n_no_bias++ == 0) b->no_bias = dq_text(b->arena, name, strlen(name), err);
        return err->code;
    }
    DQ_TRY(load_weight(b, role, layer, &w, err));
    float *x = dq_alloc(b->arena, (size_t)w.rows, sizeof *x, err);
    if (!x) return err->code;
    dq_tensor_to_f32(x, w.data, w.dtype, w.rows);
    for (int64_t i = 0; i < w.rows; i++) {
        if (!isfinite(x[i]))
            return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": value %lld is not finite", w.name,
                           (long long)i);
    }
    if (role == DQ_ROLE_NORM_OUT && dq_weight_is_coded(&b->m->embed))
        b->m->is_bf16 = w.dtype == DQ_BF16;
    *out = x;
    return DQ_OK;
}

/* Of two coded weights of one shape whose values can be read: the same codes, and scales that say the same. */
static bool same_parts(const dq_weight *a, const dq_weight *b)
{
    if (a->format != b->format || a->bits != b->bits || a->group_size != b->group_size ||
        a->scale_rows != b->scale_rows || a->scale_dtype != b->scale_dtype)
        return false;
    for (int i = 0; i < a->format->n_parts; i++) {
        const dq_part p = dq_weight_part(a, i), q = dq_weight_part(b, i);
        if (memcmp(p.data, q.data, dq_weight_part_bytes(&p)) != 0) return false;
    }
    return true;
}

static bool same_values(const dq_weight *a, const dq_weight *b)
{
    enum { BLOCK = 512 };
    float x[BLOCK], y[BLOCK];
    int64_t n = a->rows * a->cols;
    if (dq_weight_is_coded(a) && dq_weight_is_coded(b)) return same_parts(a, b);
    if (dq_weight_is_coded(a) || dq_weight_is_coded(b)) return false;
    if (a->dtype == b->dtype && memcmp(a->data, b->data, dq_weight_bytes(a)) == 0) return true;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t part = n - i < BLOCK ? n - i : BLOCK;
        const char *p = a->data, *q = b->data;
        dq_tensor_to_f32(x, p + (size_t)i * dq_dtypes[a->dtype].bytes, a->dtype, part);
        dq_tensor_to_f32(y, q + (size_t)i * dq_dtypes[b->dtype].bytes, b->dtype, part);
        for (int64_t j = 0; j < part; j++) {
            if (x[j] < y[j] || x[j] > y[j] || isnan(x[j]) != isnan(y[j])) return false;
        }
    }
    return true;
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
        if (dq_weight_is_coded(&head) && dq_weight_is_coded(&m->embed) && b->source->load)
            DQ_TRY(b->source->load(b->source->arg, err));
        if (same_values(&m->embed, &head)) return DQ_OK;
        m->head = head;
        m->tied = false;
        count_in(b, name, &head);
        return dq_model_config_warn(
            m, b->arena,
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
static dq_status load_layer_lambda(builder *b, int l, dq_layer *layer, dq_err *err)
{
    int d = b->m->map.head_dim;
    const float *v[4];
    for (int i = 0; i < 4; i++)
        DQ_TRY(load_vector(b, (dq_role)(DQ_ROLE_LAMBDA_Q1 + i), l, &v[i], err));
    double init = b->plan->constant_lambda_init
                      ? b->plan->lambda_init
                      : 0.8 - 0.6 * exp(-0.3 * ((double)l - b->m->architecture->depth_shift));
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

static dq_status load_lambda(builder *b, int l, dq_layer *layer, dq_err *err)
{
    const dq_lambda_kind kind = b->m->architecture->lambda;
    layer->attn.lambda_kind = kind;
    layer->attn.out_scale = 1.0f;
    if (kind == DQ_LAMBDA_LAYER) return load_layer_lambda(b, l, layer, err);
    if (kind == DQ_LAMBDA_TOKEN)
        return load_weight(b, DQ_ROLE_LAMBDA_PROJ, l, &layer->lambda_proj, err);
    return DQ_OK;
}

static dq_status load_act(builder *b, int l, dq_layer *layer, dq_err *err)
{
    const float *w, *bias;
    DQ_TRY(load_vector(b, DQ_ROLE_ACT_WEIGHT, l, &w, err));
    DQ_TRY(load_vector(b, DQ_ROLE_ACT_BIAS, l, &bias, err));
    for (int i = 0; w && i < 3; i++) layer->act[i] = w[i];
    if (bias) layer->act[3] = bias[0];
    return DQ_OK;
}

static dq_status load_layer(builder *b, int l, dq_err *err)
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
                   {DQ_ROLE_DOWN_BIAS, &x->down_bias}, {DQ_ROLE_HEAD_GAIN, &x->attn.gain}};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        DQ_TRY(load_weight(b, weights[i].role, l, weights[i].to, err));
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        DQ_TRY(load_vector(b, vectors[i].role, l, vectors[i].to, err));
    x->attn.map = &m->map;
    x->attn.head_norm = b->plan->head_norm;
    x->attn.norm_eps = b->plan->head_eps;
    DQ_TRY(load_act(b, l, x, err));
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
    if (dq_model_config_left_over(name)) return true;
    for (int r = 0; r < DQ_ROLE_COUNT; r++) {
        if (b->plan->wanted[r] && matches(b->m->architecture->tensor[r], name, b->m->n_layers))
            return true;
    }
    return false;
}

/* A bias that the configuration has no place for, of a weight that belongs to the model, all zero: tools write such for every
 * product. */
static bool is_zero_bias(const builder *b, const char *name)
{
    static const char bias[] = ".bias";
    char weight[MAX_NAME];
    dq_weight w = {.bits = 16};
    const size_t n = strlen(name), k = sizeof bias - 1;
    if (n < k || n + 3 > MAX_NAME || strcmp(name + n - k, bias) != 0) return false;
    snprintf(weight, sizeof weight, "%.*s.weight", (int)(n - k), name);
    if (!is_expected(b, weight) || !b->source->find(b->source->arg, name, &w)) return false;
    if (dq_weight_is_coded(&w) || w.cols != 1 || w.dtype > DQ_F64) return false;
    for (int64_t i = 0; i < w.rows; i++) {
        float x;
        dq_tensor_to_f32(&x, (const char *)w.data + (size_t)i * dq_dtypes[w.dtype].bytes, w.dtype,
                         1);
        if (!(x <= 0 && x >= 0)) return false;
    }
    return true;
}

static dq_status check_all_used(builder *b, dq_err *err)
{
    dq_model *m = b->m;
    size_t capacity = 0;
    for (int64_t i = 0; i < b->source->count; i++) {
        const char *name = b->source->name_at(b->source->arg, i);
        if (is_expected(b, name)) continue;
        if (!is_zero_bias(b, name))
            return dq_fail(err, DQ_MISMATCH,
                           "tensor \"%s\" does not belong to a %s model of %d layers with this "
                           "configuration",
                           name, m->architecture->name, m->n_layers);
        const char **list =
            dq_grow(b->arena, m->left_out, (size_t)m->n_left_out + 1, &capacity, sizeof *list, err);
        if (!list) return err->code;
        m->left_out = list;
        m->left_out[m->n_left_out++] = name;
    }
    if (m->n_left_out == 0) return DQ_OK;
    const char *text =
        dq_textf(b->arena, err,
                 "%lld biases that are all zero, the first %s, change nothing and are "
                 "left out",
                 (long long)m->n_left_out, m->left_out[0]);
    return text ? dq_model_config_warn(m, b->arena, text, err) : err->code;
}

/* ---- Summary ---- */

/* How one packed weight groups its columns. */
static const char *group_text(const dq_weight *w, dq_arena *a, dq_err *err)
{
    if (w->scale_rows == 1 && w->rows > 1) return "tensor";
    if (w->group_size == w->cols) return "row";
    return dq_textf(a, err, "%lld", (long long)w->group_size);
}

typedef struct packed_sum {
    double bytes, params;
} packed_sum;

/* Adds a packed matrix to what the model says of all of them. */
static dq_status add_packed(dq_model *m, packed_sum *s, const dq_weight *w, dq_arena *a,
                            dq_err *err)
{
    if (!dq_weight_is_coded(w)) return DQ_OK;
    const char *group = group_text(w, a, err);
    if (!group) return err->code;
    s->bytes += (double)dq_weight_bytes(w);
    s->params += (double)w->rows * (double)w->cols;
    if (m->weight_group[0] == 0)
        m->weight_group = group;
    else if (strcmp(m->weight_group, group) != 0)
        m->weight_group = "mixed";
    return DQ_OK;
}

static dq_status sum_up(dq_model *m, dq_arena *a, dq_err *err)
{
    packed_sum s = {0, 0};
    m->weight_bits = 16;
    m->weight_group = "";
    m->scale_mode = "";
    for (int l = 0; l < m->n_layers; l++) {
        const dq_layer *x = &m->layer[l];
        const dq_weight *all[] = {&x->q, &x->k, &x->v, &x->o, &x->gate, &x->up, &x->down};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            const int bits = dq_weight_is_coded(all[i]) ? all[i]->bits : 16;
            DQ_TRY(add_packed(m, &s, all[i], a, err));
            if (bits != 16)
                m->weight_bits = m->weight_bits == 16 || m->weight_bits == bits ? bits : 0;
        }
    }
    if (!dq_weight_is_coded(&m->embed)) m->is_bf16 = m->embed.dtype == DQ_BF16;
    m->embed_bits = dq_weight_is_coded(&m->embed) ? m->embed.bits : 16;
    m->head_bits = dq_weight_is_coded(&m->head) ? m->head.bits : 16;
    DQ_TRY(add_packed(m, &s, &m->embed, a, err));
    if (m->head.data != m->embed.data) DQ_TRY(add_packed(m, &s, &m->head, a, err));
    m->packed_bits = s.params > 0 ? 8 * s.bytes / s.params : 0;
    return DQ_OK;
}

dq_status dq_model_config_warn(dq_model *m, dq_arena *a, const char *text, dq_err *err)
{
    if (m->n_warnings == MAX_WARNINGS) return DQ_OK;
    if (!m->warnings) m->warnings = dq_alloc(a, MAX_WARNINGS, sizeof *m->warnings, err);
    if (!m->warnings) return err->code;
    m->warnings[m->n_warnings++] = text;
    return DQ_OK;
}

dq_status dq_model_build(dq_model *m, const json_t *config, const dq_source *source,
                         dq_pairing pairing, dq_arena *a, dq_err *err)
{
    dq_model_config plan = {0};
    builder b = {.m = m, .plan = &plan, .source = source, .arena = a};
    if (dq_model_config_read(&plan, m, config, pairing, a, err) != DQ_OK)
        return dq_in(err, "config.json: ");
    m->layer = dq_alloc(a, (size_t)m->n_layers, sizeof *m->layer, err);
    if (!m->layer) return err->code;
    DQ_TRY(load_ends(&b, err));
    DQ_TRY(load_vector(&b, DQ_ROLE_NORM_OUT, 0, &m->norm_out, err));
    for (int l = 0; l < m->n_layers; l++) DQ_TRY(load_layer(&b, l, err));
    if (b.n_no_bias) {
        const char *text =
            dq_textf(a, err, "biases are not there and count as zero: %lld, the first %s",
                     (long long)b.n_no_bias, b.no_bias);
        if (!text) return err->code;
        DQ_TRY(dq_model_config_warn(m, a, text, err));
    }
    DQ_TRY(check_all_used(&b, err));
    m->logit = dq_logit_plain;
    m->kv = dq_kv_config_plain;
    return sum_up(m, a, err);
}
