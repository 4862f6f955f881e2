/* Turns a configuration and a source of tensors into a model. Declared in model.h.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "checkpoint/container.h"
#include "model/inside.h"

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
    const char *pattern = b->m->architecture->tensor[role], *hole = strstr(pattern, "%d");
    if (hole)
        snprintf(name, MAX_NAME, "%.*s%d%s", (int)(hole - pattern), pattern, layer, hole + 2);
    else
        snprintf(name, MAX_NAME, "%s", pattern);
    *w = (dq_weight){.bits = 16};
    return b->source->find(b->source->arg, name, w);
}

/* Wrappers prefix names, or drop "model.". */
static bool is_renamed(const char *name, const char *there)
{
    static const char prefix[] = "model.";
    const size_t n = strlen(name), k = strlen(there), p = sizeof prefix - 1;
    if (strncmp(name, prefix, p) == 0 && strcmp(there, name + p) == 0) return true;
    return k > n && there[k - n - 1] == '.' && strcmp(there + k - n, name) == 0;
}

static dq_status load_weight(builder *b, dq_role role, int layer, dq_weight *w, dq_err *err)
{
    char name[MAX_NAME];
    if (!find(b, role, layer, name, w)) {
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
            return dq_fail(
                err, DQ_MISMATCH,
                "tensor \"%s\" is missing, but \"%s\" is there, as another program names it. Give "
                "all tensors the names of transformers, as this one the first.",
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
    DQ_TRY(check_tensor(b, role, name, w, err));
    count_in(b, name, w);
    return DQ_OK;
}

/* Whether other biases of attention, or of the MLP, exist. */
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

static bool is_from_one(const builder *b, dq_role role)
{
    static const dq_role norms[] = {DQ_ROLE_NORM_OUT, DQ_ROLE_NORM_ATTN,     DQ_ROLE_NORM_FFN,
                                    DQ_ROLE_Q_NORM,   DQ_ROLE_NORM_ATTN_OUT, DQ_ROLE_NORM_FFN_OUT,
                                    DQ_ROLE_K_NORM};
    bool is = false;
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) is = is || norms[i] == role;
    return is && b->m->architecture->gain_from_one;
}

/* *out NULL: the architecture or configuration has none, or a missing bias counts as zero. */
static dq_status load_vector(builder *b, dq_role role, int layer, const float **out, dq_err *err)
{
    char name[MAX_NAME];
    dq_weight w;
    *out = NULL;
    if (!b->plan->wanted[role]) return DQ_OK;
    if (((role >= DQ_ROLE_Q_BIAS && role <= DQ_ROLE_O_BIAS) ||
         (role >= DQ_ROLE_GATE_BIAS && role <= DQ_ROLE_DOWN_BIAS)) &&
        !find(b, role, layer, name, &w) && has_other_bias(b, role)) {
        if (b->n_no_bias++ == 0) b->no_bias = dq_text(b->arena, name, strlen(name), err);
        return err->code;
    }
    DQ_TRY(load_weight(b, role, layer, &w, err));
    float *x = dq_alloc(b->arena, (size_t)w.rows, sizeof *x, err);
    if (!x) return err->code;
    dq_tensor_to_f32(x, w.data, w.dtype, w.rows);
    for (int64_t i = 0; is_from_one(b, role) && i < w.rows; i++) x[i] += 1.0f;
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

static bool same_values(const dq_weight *a, const dq_weight *b)
{
    enum { BLOCK = 512 };
    float x[BLOCK], y[BLOCK];
    int64_t n = a->rows * a->cols;
    if (dq_weight_is_coded(a) && dq_weight_is_coded(b)) {
        if (a->format != b->format || a->bits != b->bits || a->group_size != b->group_size ||
            a->scale_rows != b->scale_rows || a->scale_dtype != b->scale_dtype)
            return false;
        for (int i = 0; i < a->format->n_datasets; i++) {
            const dq_dataset p = dq_weight_dataset(a, i), q = dq_weight_dataset(b, i);
            if (memcmp(p.data, q.data, dq_dataset_bytes(&p)) != 0) return false;
        }
        return true;
    }
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

/* As in transformers 5, a stored head is used whatever the configuration says. */
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
    } vectors[] = {{DQ_ROLE_NORM_ATTN, &x->norm_attn},
                   {DQ_ROLE_NORM_FFN, &x->norm_ffn},
                   {DQ_ROLE_NORM_ATTN_OUT, &x->norm_attn_out},
                   {DQ_ROLE_NORM_FFN_OUT, &x->norm_ffn_out},
                   {DQ_ROLE_Q_BIAS, &x->q_bias},
                   {DQ_ROLE_K_BIAS, &x->k_bias},
                   {DQ_ROLE_V_BIAS, &x->v_bias},
                   {DQ_ROLE_O_BIAS, &x->o_bias},
                   {DQ_ROLE_GATE_BIAS, &x->gate_bias},
                   {DQ_ROLE_UP_BIAS, &x->up_bias},
                   {DQ_ROLE_DOWN_BIAS, &x->down_bias},
                   {DQ_ROLE_HEAD_GAIN, &x->attn.gain},
                   {DQ_ROLE_Q_NORM, &x->q_norm},
                   {DQ_ROLE_K_NORM, &x->k_norm}};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        DQ_TRY(load_weight(b, weights[i].role, l, weights[i].to, err));
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        DQ_TRY(load_vector(b, vectors[i].role, l, vectors[i].to, err));
    x->attn.map = &m->map;
    x->attn.window = b->plan->window ? b->plan->window[l] : 0;
    x->rope = b->plan->no_rope && b->plan->no_rope[l]         ? &m->no_rope
              : x->attn.window && m->architecture->local_rope ? &m->local_rope
                                                              : &m->rope;
    x->attn.head_norm = b->plan->head_norm;
    x->attn.norm_eps = b->plan->head_eps;
    const float *w, *bias;
    DQ_TRY(load_vector(b, DQ_ROLE_ACT_WEIGHT, l, &w, err));
    DQ_TRY(load_vector(b, DQ_ROLE_ACT_BIAS, l, &bias, err));
    for (int i = 0; w && i < 3; i++) x->act[i] = w[i];
    if (bias) x->act[3] = bias[0];
    const dq_lambda_kind kind = b->m->architecture->lambda;
    x->attn.lambda_kind = kind;
    x->attn.out_scale = 1.0f;
    if (kind == DQ_LAMBDA_LAYER) {
        /* lambda = exp(lq1 . lk1) - exp(lq2 . lk2) + lambda_init.
         * Source: arXiv 2410.05258 eq. 2. */
        int d = b->m->map.head_dim;
        const float *v[4];
        for (int i = 0; i < 4; i++)
            DQ_TRY(load_vector(b, (dq_role)(DQ_ROLE_LAMBDA_Q1 + i), l, &v[i], err));
        double init = b->plan->constant_lambda_init
                          ? b->plan->lambda_init
                          : 0.8 - 0.6 * exp(-0.3 * ((double)l - b->m->architecture->depth_shift));
        double lambda = exp(dot(v[0], v[1], d)) - exp(dot(v[2], v[3], d)) + init;
        x->lambda_init = (float)init;
        x->attn.lambda = (float)lambda;
        x->attn.out_scale = (float)(1.0 - init);
        if (!isfinite(x->attn.lambda))
            return dq_fail(err, DQ_DAMAGED,
                           "layer %d: the lambda vectors give a lambda that is not finite", l);
        return DQ_OK;
    }
    if (kind == DQ_LAMBDA_TOKEN)
        return load_weight(b, DQ_ROLE_LAMBDA_PROJ, l, &x->lambda_proj, err);
    return DQ_OK;
}

/* Whether the pattern matches with a layer number of this model. */
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

/* Tools write biases of zeros that the configuration does not know. */
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
            return dq_fail(
                err, DQ_MISMATCH,
                "tensor \"%s\" does not belong to a %s model of %d layers with this configuration",
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
                 "%lld biases that are all zero, the first %s, change nothing and are left out",
                 (long long)m->n_left_out, m->left_out[0]);
    return text ? dq_model_config_warn(m, b->arena, text, err) : err->code;
}

static const char *group_text(const dq_weight *w, dq_arena *a, dq_err *err)
{
    if (w->scale_rows == 1 && w->rows > 1) return "tensor";
    if (w->group_size == w->cols) return "row";
    return dq_textf(a, err, "%lld", (long long)w->group_size);
}

typedef struct packed_sum {
    double bytes, params;
} packed_sum;

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

static int64_t file_bytes(const dq_model *m)
{
    const dq_checkpoint *c = m->checkpoint;
    int64_t sum = 0;
    if (m->container) return m->container->info.file_bytes;
    for (int i = 0; i < c->n_files; i++) {
        sum += (int64_t)c->file[i].map.bytes;
    }
    return sum;
}

dq_model_size dq_model_size_of(const dq_model *m)
{
    return (dq_model_size){.params = m->n_params,
                           .weight_bytes = m->stored_bytes,
                           .file_bytes = file_bytes(m),
                           .bits_per_weight = dq_weight_bits_over(m->stored_bytes, m->n_params)};
}

bool dq_model_size_counts(const dq_model *m, const char *tensor)
{
    const char *head = m->architecture->tensor[DQ_ROLE_HEAD];
    if (dq_model_config_left_over(tensor)) return false;
    return !m->tied || strcmp(tensor, head) != 0 || strcmp(tensor, m->embed.name) == 0;
}

/* Opens a checkpoint folder or a container and keeps it open; "Build" assembles the model. */

/* The public part comes first, so that one pointer serves both. */
static void add_number(dq_sha256 *h, uint64_t x)
{
    dq_sha256_add(h, &x, sizeof x);
}

/* SHA-256 over the length and bytes of config.json, every weight file in name order (add_file), and
 * the middle 256 bytes of every tensor in name order. Numbers are 64-bit little-endian. It shows
 * any change of a name, shape or offset, and training of single tensors; reading all weights would
 * take minutes for a large model. Damage need not show: that is for `dq verify`. */
static dq_status fingerprint(char hex[65], const dq_checkpoint *c, dq_err *err)
{
    enum { SAMPLE = 256, OFTEN = 16 };
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    add_number(&h, c->config_bytes);
    dq_sha256_add(&h, c->config_text, c->config_bytes);
    for (int i = 0; i < c->n_files; i++) {
        enum { EDGE = 64 * 1024 };
        const char *name = c->file[i].name;
        const uint8_t *data = c->file[i].map.data;
        const size_t bytes = c->file[i].map.bytes;
        size_t start = c->file[i].header_bytes, rest = bytes - start;
        size_t edge = rest < EDGE ? rest : EDGE;
        add_number(&h, strlen(name));
        dq_sha256_add(&h, name, strlen(name));
        add_number(&h, bytes);
        dq_sha256_add(&h, data, start + edge);
        dq_sha256_add(&h, data + bytes - edge, edge);
    }
    for (int64_t i = 0; i < c->count; i++) {
        const dq_tensor *t = &c->tensor[i];
        size_t n = dq_checkpoint_stored_bytes(c, i), part = n < SAMPLE ? n : SAMPLE;
        const uint8_t *data = t->data;
        dq_sha256_add(&h, data + (n - part) / 2, part);
        if (i % OFTEN == 0) dq_checkpoint_release(c);
    }
    dq_checkpoint_release(c);
    return dq_sha256_end(&h, hex, err);
}

static dq_status build_from_checkpoint(dq_model *m, dq_pairing pairing, dq_err *err)
{
    const json_t *config = m->checkpoint->config;
    const dq_architecture
        *arch; /* before the weights: another copy of one that is not run would not help */
    if (dq_architecture_find(&arch, config, err) != DQ_OK) return dq_in(err, "config.json: ");
    DQ_TRY(dq_prequant_open(&m->prequant, m->checkpoint, err));
    m->source = m->prequant ? dq_prequant_source(m->prequant) : dq_checkpoint_source(m->checkpoint);
    DQ_TRY(dq_model_build(m, config, &m->source, pairing, m->arena, err));
    if (!m->prequant) return DQ_OK;
    const dq_prequant_info *info = &m->prequant->info;
    if (m->weight_bits != 16) m->scale_mode = info->method;
    for (int i = 0; i < info->n_warnings; i++)
        DQ_TRY(dq_model_config_warn(m, m->arena, info->warnings[i], err));
    return DQ_OK;
}

static dq_status open_checkpoint(dq_model *m, const char *path, dq_pairing pairing, dq_err *err)
{
    DQ_TRY(dq_checkpoint_open(&m->checkpoint, path, err));
    if (build_from_checkpoint(m, pairing, err) != DQ_OK) return dq_in(err, "%s: ", path);
    return fingerprint(m->fingerprint, m->checkpoint, err);
}

dq_status dq_model_new_gates(dq_kv_gates **out, const dq_model *m, dq_arena *a, dq_err *err)
{
    int *heads = dq_alloc(a, (size_t)m->map.n_groups, sizeof *heads, err);
    if (!heads) return err->code;
    for (int i = 0; i < m->map.n_kv; i++) heads[m->map.group[i]]++;
    return dq_kv_gates_new(out, m->n_layers, m->map.n_groups, m->map.head_dim, heads, a, err);
}

static dq_status take_gates(dq_model *m, const char *text, size_t len, const char *where,
                            dq_arena *a, dq_err *err)
{
    dq_kv_gates *gates, *own;
    DQ_TRY(dq_model_new_gates(&own, m, a, err));
    DQ_TRY(dq_kv_gates_parse(&gates, text, len, where, a, err));
    if (dq_kv_gates_fit(gates, own, err) != DQ_OK) return dq_in(err, "%s: ", where);
    if (*gates->model && strcmp(gates->model, m->fingerprint) != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: gates of another model (its fingerprint is %.12s..., that of %s "
                       "%.12s...). Fit gates to this one, or take \"model_fingerprint\" out of the "
                       "file to use them all the same.",
                       where, gates->model, m->name, m->fingerprint);
    m->gates = gates;
    return DQ_OK;
}

dq_status dq_model_take_gates(dq_model *m, const char *path, dq_err *err)
{
    char *text;
    size_t len;
    DQ_TRY(dq_file_read_text(&text, &len, path, DQ_MAX_DOCUMENT, m->arena, err));
    return take_gates(m, text, len, path, m->arena, err);
}

/* In a container, gates of another model count as damage. */
static dq_status take_stored_gates(dq_model *m, dq_err *err)
{
    size_t len;
    const char *text = dq_container_gates(m->container, &len);
    if (text && take_gates(m, text, len, DQ_PATH_GATES, m->arena, err) == DQ_MISMATCH)
        err->code = DQ_DAMAGED;
    return err->code;
}

static dq_status build_from_container(dq_model *m, dq_pairing pairing, dq_err *err)
{
    size_t len;
    json_t *config = NULL;
    const dq_container_info *info = &m->container->info;
    const char *text = dq_container_config(m->container, &len);
    dq_source source = dq_container_source(m->container);
    DQ_TRY(dq_json_parse_config(&config, text, len, "config.json", err));
    if (json_is_object(config))
        dq_model_build(m, config, &source, pairing, m->arena, err);
    else
        dq_fail(err, DQ_DAMAGED, "config.json: not a JSON object");
    json_decref(config);
    if (err->code != DQ_OK) return err->code;
    m->is_container = true;
    m->is_rounded = info->is_rounded;
    m->weight_group = info->weight_group;
    m->scale_mode = info->scale_mode;
    m->logit = info->logit;
    m->kv = info->kv;
    memcpy(m->fingerprint, info->fingerprint, sizeof m->fingerprint);
    DQ_TRY(take_stored_gates(m, err));
    dq_kv_spec spec;
    dq_err why = {0};
    if ((!m->kv.widths[0] && !m->kv.evict.heads[0]) ||
        dq_model_kv_spec(&spec, &m->kv, m, DQ_NUM_F32, &why) == DQ_OK)
        return DQ_OK;
    if (m->map.pairing != m->architecture->pairing)
        return dq_fail(err, DQ_MISMATCH,
                       "the settings of /kv_cache do not go with the head order %s: %s",
                       dq_head_order_pairing_name(m->map.pairing), why.text);
    return dq_fail(err, DQ_DAMAGED,
                   "the settings of /kv_cache are not of this model: %s. The container is damaged, "
                   "or written wrongly; quantize the model again.",
                   why.text);
}

dq_status dq_model_check_weights(const dq_model *m, dq_err *err)
{
    if (m->container) return dq_container_check_weights(m->container, err);
    if (!m->source.load || m->source.load(m->source.arg, err) == DQ_OK) return DQ_OK;
    return dq_in(err, "%s: ", m->path);
}

void dq_model_release(const dq_model *m)
{
    if (m->container) dq_os_map_release(m->container->map.data, m->container->map.bytes);
    if (m->checkpoint) dq_checkpoint_release(m->checkpoint);
}

static bool ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* A regular file: a container, or something that can be named. */
static dq_status open_file(dq_model *m, const char *path, dq_pairing pairing, dq_err *err)
{
    static const char packed[] = "a packed file is not read. Unpack it and name what was in it.";
    static const char old[] =
        "a file of llama.cpp from before GGUF is not read. Convert the model again.";
    static const char pickle[] =
        "a PyTorch file is not read. Use a folder with config.json and safetensors.";
    static const struct {
        size_t at, len;
        const char *magic, *what;
    } known[] = {
        {0, 4, "PK\3\4",
         "a packed file, as of PyTorch, is not read. Use a folder with config.json and "
         "safetensors."},
        {0, 2, "\x80\2", pickle},
        {0, 2, "\x80\4", pickle},
        {0, 2, "\x1f\x8b", packed},
        {0, 3, "BZh", packed},
        {0, 6,
         "\xfd"
         "7zXZ",
         packed},
        {0, 4, "\x28\xb5\x2f\xfd", packed},
        {0, 6, "7z\xbc\xaf\x27\x1c", packed},
        {257, 5, "ustar", packed},
        {0, 4, "lmgg", old},
        {0, 4, "fmgg", old},
        {0, 4, "tjgg", old},
        {0, 9, "<!DOCTYPE", "a page of the web, not the file. Fetch the file itself."},
        {0, 9, "<!doctype", "a page of the web, not the file. Fetch the file itself."},
    };
    static const uint8_t hdf5[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    uint8_t head[264] = {0};
    uint64_t first;
    dq_os_map map;
    DQ_TRY(dq_os_map_open(&map, path, err));
    const size_t bytes = map.bytes;
    if (bytes) memcpy(head, map.data, bytes < sizeof head ? bytes : sizeof head);
    memcpy(&first, head, sizeof first);
    dq_os_map_close(&map);
    if (memcmp(head, hdf5, sizeof hdf5) == 0 || ends_in(path, ".h5")) {
        DQ_TRY(dq_container_open(&m->container, path, err));
        DQ_TRY(dq_container_check_header(m->container, err));
        if (build_from_container(m, pairing, err) != DQ_OK) return dq_in(err, "%s: ", path);
        return DQ_OK;
    }
    if (dq_checkpoint_is_gguf(path)) return open_checkpoint(m, path, pairing, err);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (memcmp(head + known[i].at, known[i].magic, known[i].len) == 0)
            return dq_fail(err, DQ_MISMATCH, "%s: %s", path, known[i].what);
    }
    const bool is_safetensors = head[sizeof first] == '{' && first < bytes;
    if (is_safetensors || ends_in(path, ".safetensors") || ends_in(path, ".json"))
        return dq_fail(
            err, DQ_MISMATCH,
            "%s: one file is no model. Name the folder that holds config.json and the weights.",
            path);
    if (ends_in(path, ".onnx"))
        return dq_fail(err, DQ_MISMATCH,
                       "%s: a model in ONNX is not read. Use the checkpoint that it was made of.",
                       path);
    return dq_fail(
        err, DQ_DAMAGED,
        "%s: neither a folder with config.json, nor a GGUF file, nor a dq container (.h5)", path);
}

static dq_status name_model(dq_model *m, const char *path, dq_err *err)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    if (begin == end) begin = 0; /* "/" */
    m->path = dq_text(m->arena, path, strlen(path), err);
    m->name = dq_text(m->arena, path + begin, end - begin, err);
    return err->code;
}

/* Whether the name ends like a file that this program reads or writes. */
static bool file_name(const char *path)
{
    static const char *const ends[] = {".h5", ".partial", ".json", ".safetensors", ".gguf"};
    const size_t n = strlen(path);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t k = strlen(ends[i]);
        if (n > k && strcmp(path + n - k, ends[i]) == 0) return true;
    }
    return false;
}

/* "kajuma/DiffLlama-1B": a name on the Hugging Face hub. */
static bool hub_name(const char *path)
{
    static const char of_names[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    size_t owner = strspn(path, of_names), name = 0;
    if (owner == 0 || path[0] == '.' || path[owner] != '/') return false;
    name = strspn(path + owner + 1, of_names);
    return name > 0 && path[owner + 1] != '.' && path[owner + 1 + name] == 0 && !file_name(path);
}

/* Whether a word looks like one more value of an option: "8", "8:4", "per-row". */
static bool value_of_list(const char *word)
{
    for (int i = 0; i < DQ_GRANULARITIES; i++) {
        if (strcmp(word, dq_granularity_name[i]) == 0) return true;
    }
    for (int i = 0; i < DQ_NUMS; i++) {
        if (strcmp(word, dq_num_name[i]) == 0) return true;
    }
    return word[0] && word[strspn(word, "0123456789.,:")] == 0;
}

static dq_status refuse_missing(const char *path, dq_err *err)
{
    if (!*path) return dq_fail(err, DQ_FILE, "the path of a model is empty");
    if (value_of_list(path))
        return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_VALUE_OF_LIST},
                            "%s: no such file or folder", path);
    if (hub_name(path))
        return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_DOWNLOAD, .word = path},
                            "%s: no such file or folder", path);
    return dq_fail(err, DQ_FILE, "%s: no such file or folder", path);
}

dq_status dq_model_open(dq_model **out, const char *path, dq_err *err)
{
    return dq_model_open_as(out, path, DQ_PAIR_COUNT, err);
}

dq_status dq_model_open_as(dq_model **out, const char *path, dq_pairing pairing, dq_err *err)
{
    dq_arena *arena;
    dq_model *m = dq_arena_object(&arena, sizeof *m, err);
    *out = NULL;
    if (!m) return err->code;
    m->arena = arena;
    if (name_model(m, path, err) == DQ_OK) {
        if (!dq_file_exists(path))
            refuse_missing(path, err);
        else if (dq_file_is_dir(path))
            open_checkpoint(m, path, pairing, err);
        else
            open_file(m, path, pairing, err);
    }
    if (err->code == DQ_OK)
        *out = m;
    else
        dq_model_close(m);
    return err->code;
}

void dq_model_close(dq_model *m)
{
    if (!m) return;
    dq_prequant_close(m->prequant);
    dq_checkpoint_close(m->checkpoint);
    dq_container_close(m->container);
    dq_arena_free(m->arena);
}

dq_status dq_model_file(const dq_model *m, const char *name, const char **text, size_t *len,
                        dq_err *err)
{
    *text = NULL;
    *len = 0;
    if (m->container) return dq_container_file(m->container, name, text, len, err);
    if (strcmp(name, "config.json") == 0) {
        *text = m->checkpoint->config_text;
        *len = m->checkpoint->config_bytes;
        return DQ_OK;
    }
    if (m->checkpoint->about) {
        dq_checkpoint_tokenizer_text(m->checkpoint, name, text, len, err);
        return err->code == DQ_OK ? DQ_OK : dq_in(err, "%s: ", m->path);
    }
    char *path = dq_textf(m->arena, err, "%s/%s", m->path, name), *data = NULL;
    if (!path) return err->code;
    if (!dq_file_exists(path)) return DQ_OK;
    const size_t max = strcmp(name, "tokenizer.json") == 0 ? DQ_MAX_TOKENIZER : DQ_MAX_CONFIG;
    DQ_TRY(dq_file_read_small(&data, len, path, max, m->arena, err));
    *text = data;
    return DQ_OK;
}

/* DQ_MISMATCH: widths by map where keys do not belong to one map. */
static dq_status check_maps(const dq_kv_spec *s, const dq_head_order *map, dq_err *err)
{
    const dq_remedy one = {.code = DQ_REMEDY_KV_MAPS};
    dq_kv_widths w;
    if (!s->widths[0]) return DQ_OK;
    DQ_TRY(dq_kv_widths_parse(&w, s->widths, err));
    if (!dq_kv_widths_by_map(&w)) return DQ_OK;
    if (map->n_maps == 1)
        return dq_fail_with(err, DQ_MISMATCH, one,
                            "the widths of keys are for two maps, and the model has one");
    for (int i = 0; i < map->n_kv; i++) {
        if (dq_head_order_key_map(map, i) < 0)
            return dq_fail_with(
                err, DQ_MISMATCH, one,
                "the widths of keys differ by map, and both maps of the model read the same keys");
    }
    return DQ_OK;
}

dq_kv_dense dq_model_kv_dense(const dq_model *m, dq_kv_dense dense)
{
    if (dense != DQ_KV_DENSE_AUTO) return dense;
    return m->is_bf16 ? DQ_KV_BF16 : DQ_KV_F16;
}

int dq_model_full_layers(const dq_model *m)
{
    int n = 0;
    for (int l = 0; l < m->n_layers; l++) n += m->layer[l].attn.window == 0;
    return n;
}

int dq_model_window(const dq_model *m)
{
    int window = 0;
    for (int l = 0; l < m->n_layers; l++) {
        if (m->layer[l].attn.window > window) window = m->layer[l].attn.window;
    }
    return window;
}

dq_status dq_model_heads_fit(const dq_model *m, const dq_kv_heads *r, dq_err *err)
{
    for (int i = 0; i < r->n; i++) {
        const int layer = r->at[i].layer;
        if (layer < m->n_layers && m->layer[layer].attn.window)
            return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_KV_HEADS},
                                "the heads name group %d.%d, whose layer has a window of its own",
                                layer, r->at[i].group);
    }
    return dq_kv_heads_fit(r, m->n_layers, m->map.n_groups, dq_model_full_layers(m), err);
}

dq_status dq_model_kv_spec(dq_kv_spec *out, const dq_kv_config *c, const dq_model *m, dq_num num,
                           dq_err *err)
{
    DQ_TRY(dq_kv_config_spec(out, c, num, m->map.head_dim, m->n_layers, m->map.n_maps, err));
    out->dense = dq_model_kv_dense(m, c->dense);
    out->evict.budget = dq_kv_budget_for(out->evict.budget, out->evict.policy, m->map.n_maps);
    DQ_TRY(check_maps(out, &m->map, err));
    /* A policy of the second map alone would keep the first tokens of a model without one. */
    const dq_kv_policy *p = out->evict.policy;
    const dq_head_order *map = &m->map;
    if (p && dq_model_full_layers(m) == 0)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: all layers have windows of their own, so that no policy acts on its "
                       "cache",
                       m->path);
    if (p && p->needs & DQ_NEEDS_GATES && !m->gates)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_KV_GATES},
                            "the policy \"%s\" needs gates, and the model has none", p->name);
    if (p && p->needs == DQ_NEEDS_MASS2 && !(map->n_maps > 1))
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_KV_ONE_MAP},
                            "the policy \"%s\" goes by the second map, and the model has one",
                            p->name);
    if (!out->evict.heads[0]) return DQ_OK;
    dq_kv_heads heads;
    DQ_TRY(dq_kv_heads_parse(&heads, out->evict.heads, err));
    return dq_model_heads_fit(m, &heads, err);
}

/* The longest window stands for all. */
static dq_kv_shape kv_shape_of(const dq_model *m)
{
    return (dq_kv_shape){.n_layers = m->n_layers,
                         .n_groups = m->map.n_groups,
                         .n_kv = m->map.n_kv,
                         .head_dim = m->map.head_dim,
                         .n_windows = m->n_layers - dq_model_full_layers(m),
                         .window = dq_model_window(m)};
}

/* Tries row `row` of sizes. True: c has it. Else *least is lowered to the fewest bytes of such a
 * cache. */
static bool try_size(dq_kv_config *c, dq_kv_sized *out, const dq_kv_size_row *row,
                     const dq_model *m, int64_t *least, dq_err *err)
{
    const dq_kv_size *want = &out->of;
    const dq_kv_shape shape = kv_shape_of(m);
    const double whole = (double)dq_kv_size_whole(&shape, want->context);
    dq_kv_config x = *c;
    int64_t kept = want->context, bytes;
    x.k_bits = x.v_bits = row->bits;
    memset(x.widths, 0, sizeof x.widths);
    if (row->recent >= 0 && !want->recent) x.recent = row->recent;
    x.evict.tokens = 0;
    for (int cut = 0; cut < 2; cut++) {
        dq_kv_spec spec;
        x.evict.keep = cut ? 0.5 : 1; /* which may change the codes */
        if (dq_model_kv_spec(&spec, &x, m, DQ_NUM_F32, err) != DQ_OK) return false;
        if (spec.evict.budget == DQ_KV_BUDGET_HEADS) {
            dq_fail(err, DQ_USAGE, "how many bytes a budget by heads takes is not foretold.");
            return false;
        }
        if (cut) kept = dq_kv_size_tokens(&spec, &shape, want->context, want->size * whole, &bytes);
        if (kept) bytes = dq_kv_size_bytes(&spec, &shape, want->context, kept);
        if (bytes < *least) *least = bytes;
        out->share = (double)bytes / whole;
        if (kept && out->share <= want->size) {
            out->row =
                (dq_kv_size_row){want->size, row->bits, x.recent != c->recent ? x.recent : -1};
            out->keep = x.evict.keep = dq_kv_size_share(kept, want->context);
            *c = x;
            return true;
        }
    }
    return false;
}

dq_status dq_model_kv_size(dq_kv_config *c, dq_kv_sized *out, const dq_kv_size *size,
                           const dq_model *m, dq_err *err)
{
    const dq_kv_shape shape = kv_shape_of(m);
    const int64_t whole = dq_kv_size_whole(&shape, size->context);
    int64_t least = INT64_MAX;
    *out = (dq_kv_sized){.of = *size};
    for (int i = dq_kv_size_first(size->size); i < DQ_KV_SIZE_ROWS; i++) {
        if (try_size(c, out, &dq_kv_size_rows[i], m, &least, err)) return DQ_OK;
        DQ_TRY(err->code);
    }
    if (least >= whole)
        return dq_fail(err, DQ_USAGE,
                       "with these settings nothing holds %lld tokens of this model in fewer bytes "
                       "than 16 bits do. Name a longer context.",
                       (long long)size->context);
    return dq_fail(err, DQ_USAGE,
                   "a cache of %lld tokens of this model takes %.4f of the bytes of 16 bits at "
                   "least. Give that or more.",
                   (long long)size->context, ceil(1e4 * (double)least / (double)whole) / 1e4);
}

/* Every file of a command, partial files and journals too, is a row; rows are compared with each
 * other and with all inputs (dq_file_same), and new names in an input's folder with the names that
 * checkpoints have. */

static bool ends(const char *name, const char *with)
{
    size_t n = strlen(name), k = strlen(with);
    return n >= k && strcmp(name + n - k, with) == 0;
}

static bool of_checkpoint(const char *name)
{
    static const char *const whole[] = {"config.json",
                                        "generation_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt"};
    static const char *const first[] = {"tokenizer", "chat_template"};
    static const char *const last[] = {".safetensors", ".index.json"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        if (strcmp(name, whole[i]) == 0) return true;
    }
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        if (strncmp(name, first[i], strlen(first[i])) == 0) return true;
    }
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) {
        if (ends(name, last[i])) return true;
    }
    return false;
}

static dq_status refuse(const char *out, const char *model, dq_err *err)
{
    return dq_fail(err, DQ_USAGE,
                   "%s: the output would overwrite a file of the input %s. Choose another name.",
                   out, model);
}

static const char *folder_of(const char *path, dq_arena *a, dq_err *err)
{
    const char *slash = strrchr(path, '/');
    return slash ? dq_text(a, path, (size_t)(slash - path) + 1, err) : ".";
}

static dq_status check_new(const char *out, const char *model, dq_arena *a, dq_err *err)
{
    const char *slash = strrchr(out, '/'), *dir = folder_of(out, a, err);
    if (!dir) return err->code;
    if (of_checkpoint(slash ? slash + 1 : out) && dq_file_same(dir, model))
        return refuse(out, model, err);
    return DQ_OK;
}

typedef struct written {
    const char *path;
    const dq_output *of;
} written;

typedef struct written_list {
    written *item;
    size_t n, capacity;
    dq_arena *arena;
} written_list;

static void add(written_list *l, const dq_output *of, const char *path, const char *ending,
                dq_err *err)
{
    const char *name = path ? dq_textf(l->arena, err, "%s%s", path, ending) : NULL;
    written *item =
        name ? dq_grow(l->arena, l->item, l->n + 1, &l->capacity, sizeof *item, err) : NULL;
    if (!item) return;
    l->item = item;
    l->item[l->n++] = (written){name, of};
}

/* An input's own folder entries, like the folder, are never replaced. */
static dq_status protect(const written *w, const char *input, dq_arena *a, dq_err *err)
{
    const bool folder = w->of->form == DQ_OUTPUT_FOLDER;
    if (strcmp(input, "-") == 0) input = "/dev/fd/0";
    if (dq_file_same(w->path, input) && (folder || !dq_file_is_dir(w->path)))
        return dq_fail(
            err, DQ_USAGE,
            "%s: input and output are the same file (the input is %s). Choose another name.",
            w->path, input);
    if (folder) {
        const char *real = dq_file_resolved(input, a, err);
        const char *here = real ? folder_of(real, a, err) : NULL;
        const char *named = folder_of(input, a, err);
        if (!here || !named) return err->code;
        if (dq_file_same(w->path, here) || dq_file_same(w->path, named))
            return dq_fail(
                err, DQ_USAGE,
                "%s: holds the input %s, which the output would remove. Choose another name.",
                w->path, input);
        return DQ_OK;
    }
    if (!dq_file_is_dir(input)) return DQ_OK;
    const char *out = w->path;
    if (!dq_file_exists(w->path)) return check_new(w->path, input, a, err);
    const char **name;
    size_t n;
    DQ_TRY(dq_file_dir_names(&name, &n, input, a, err));
    for (size_t i = 0; i < n; i++) {
        const char *file = dq_textf(a, err, "%s/%s", input, name[i]);
        if (!file) return err->code;
        if (of_checkpoint(name[i]) && dq_file_same(file, out)) return refuse(out, input, err);
    }
    DQ_TRY(dq_checkpoint_index_files(&name, &n, input, a, err)); /* in folders below, too */
    for (size_t i = 0; i < n; i++) {
        if (dq_file_same(name[i], out)) return refuse(out, input, err);
    }
    return DQ_OK;
}

static dq_status check_names(written_list *l, const dq_output *out, int n, const char *const *input,
                             int n_inputs, dq_err *err)
{
    for (int i = 0; i < n && err->code == DQ_OK; i++) {
        const dq_output *o = &out[i];
        if (!o->path) continue;
        const char *real = dq_file_resolved(o->path, l->arena, err);
        add(l, o, o->path, "", err);
        add(l, o, o->path, ".partial", err);
        if (real && strcmp(real, o->path) != 0) add(l, o, real, ".partial", err);
        for (int k = 0; o->beside && o->beside[k]; k++) add(l, o, o->path, o->beside[k], err);
    }
    DQ_TRY(err->code);
    static const char printed[] = "/dev/fd/1";
    const bool to_file = dq_file_is_regular(printed);
    for (size_t i = 0; i < l->n; i++) {
        const written *w = &l->item[i];
        for (size_t k = 0; k < i; k++) {
            const written *v = &l->item[k];
            if (v->of == w->of || !dq_file_same(v->path, w->path)) continue;
            return dq_fail(err, DQ_USAGE,
                           "%s: %s and %s write this file (%s). Give each a name of its own.",
                           w->path, v->of->label, w->of->label, v->path);
        }
        if (to_file && dq_file_same(w->path, printed))
            return dq_fail(err, DQ_USAGE,
                           "%s: %s and standard output write this file. Choose another name.",
                           w->path, w->of->label);
    }
    for (size_t i = 0; i < l->n; i++) {
        for (int k = 0; k < n_inputs; k++) {
            if (input[k]) DQ_TRY(protect(&l->item[i], input[k], l->arena, err));
        }
    }
    return DQ_OK;
}

dq_status dq_output_guard_names(const dq_output *out, int n, const char *const *input, int n_inputs,
                                dq_err *err)
{
    written_list l = {.arena = dq_arena_new()};
    if (!l.arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
    check_names(&l, out, n, input, n_inputs, err);
    dq_arena_free(l.arena);
    return err->code;
}

static dq_status check_name(const dq_output *o, dq_err *err)
{
    if (!o->path[0] || strcmp(o->path, "-") == 0)
        return dq_fail(err, DQ_USAGE, "%s: expected the name of a %s, found \"%s\".", o->label,
                       o->form == DQ_OUTPUT_FOLDER ? "folder" : "file", o->path);
    return DQ_OK;
}

dq_status dq_output_guard_check(const dq_output *out, int n, const char *const *input, int n_inputs,
                                bool force, dq_err *err)
{
    for (int i = 0; i < n; i++) {
        if (out[i].path) DQ_TRY(check_name(&out[i], err));
    }
    DQ_TRY(dq_output_guard_names(out, n, input, n_inputs, err));
    for (int i = 0; i < n; i++) {
        const dq_output *o = &out[i];
        if (!o->path || o->form >= DQ_OUTPUT_FOLDER) continue;
        /* A name with another form's ending is taken for a mistake; other names are allowed. */
        static const struct {
            const char *end;
            int form; /* -1: nothing that dq writes */
        } known[] = {
            {".h5", DQ_OUTPUT_HDF5},
            {".hdf5", DQ_OUTPUT_HDF5},
            {".json", DQ_OUTPUT_JSON},
            {".jsonl", DQ_OUTPUT_LINES},
            {".csv", DQ_OUTPUT_CSV},
            {".html", DQ_OUTPUT_HTML},
            {".htm", DQ_OUTPUT_HTML},
            {".gguf", DQ_OUTPUT_GGUF},
            {".safetensors", -1},
            {".bin", -1},
            {".pt", -1},
            {".pth", -1},
            {".onnx", -1},
            {".npz", -1},
            {".npy", -1},
        };
        static const char *const what[] = {
            [DQ_OUTPUT_HDF5] = "HDF5, name.h5",           [DQ_OUTPUT_JSON] = "JSON, name.json",
            [DQ_OUTPUT_LINES] = "JSON lines, name.jsonl", [DQ_OUTPUT_CSV] = "CSV, name.csv",
            [DQ_OUTPUT_HTML] = "HTML, name.html",         [DQ_OUTPUT_GGUF] = "GGUF, name.gguf",
        };
        for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
            bool lines =
                o->form == DQ_OUTPUT_LINES && known[k].form == DQ_OUTPUT_JSON; /* also usual */
            if (!ends(o->path, known[k].end) || known[k].form == (int)o->form || lines) continue;
            return dq_fail(err, DQ_USAGE,
                           "%s: %s writes no such file (expected %s, found a name in %s). Choose "
                           "another name.",
                           o->path, o->label, what[o->form], known[k].end);
        }
        DQ_TRY(dq_file_check(o->path, err));
        if (!force && dq_file_exists(o->path))
            return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_FORCE}, "%s: exists.",
                                o->path);
    }
    return DQ_OK;
}
