/* fuzz_config: any bytes as config.json, against a source that has every tensor a small model could
 * ask for. Whatever is accepted must have consistent sizes.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/checkpoint.h"
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LARGEST = 1 << 16 }; /* elements of the largest tensor there is */
static const float values[LARGEST];

/* The sizes that a configuration states, read without any check. */
typedef struct sizes {
    int64_t dim, ffn, vocab, q, kv, head_dim;
    int64_t out, lambdas,
        head; /* columns of o_proj, output heads of V2, width of one output head */
} sizes;

static int64_t number(const json_t *config, const char *key, int64_t otherwise)
{
    const json_t *v = json_object_get(config, key);
    int64_t x = json_is_integer(v) ? (int64_t)json_integer_value(v) : otherwise;
    return x > 0 && x <= LARGEST ? x : otherwise;
}

static sizes read_sizes(const json_t *config)
{
    const char *variant = json_string_value(json_object_get(config, "diff_variant"));
    const int64_t heads = number(config, "num_attention_heads", 1);
    const int64_t noise = number(config, "num_noise_heads", 0);
    sizes s = {.dim = number(config, "hidden_size", 1),
               .ffn = number(config, "intermediate_size", 1),
               .vocab = number(config, "vocab_size", 1)};
    s.head_dim = number(config, "head_dim", s.dim / heads);
    s.q = heads * s.head_dim;
    s.kv = number(config, "num_key_value_heads", heads) * s.head_dim;
    s.lambdas = heads / 2;
    s.out = s.q;
    s.head = 2 * s.head_dim;
    if (noise) s.out = 2 * (heads - noise) * s.head_dim;
    if (variant && strcmp(variant, "v2") == 0) s.out = s.lambdas * s.head_dim;
    if (variant && strcmp(variant, "plain") == 0) s.head = s.head_dim;
    return s;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static bool find(void *arg, const char *name, dq_weight *w)
{
    const sizes *s = arg;
    const struct {
        const char *end;
        int64_t rows, cols;
    } shapes[] = {
        {"embed_tokens.weight", s->vocab, s->dim},
        {"lm_head.weight", s->vocab, s->dim},
        {"q_norm.weight", s->head_dim, 1},
        {"k_norm.weight", s->head_dim, 1},
        {"norm.weight", s->dim, 1},
        {"q_proj.weight", s->q, s->dim},
        {"k_proj.weight", s->kv, s->dim},
        {"v_proj.weight", s->kv, s->dim},
        {"o_proj.weight", s->dim, s->out},
        {"out_proj.weight", s->dim, s->out},
        {"subln.weight", s->head, 1},
        {"lambda_proj.weight", s->lambdas, s->dim},
        {"act_fn.weight", 3, 1},
        {"act_fn.bias", 1, 1},
        {"gate_proj.weight", s->ffn, s->dim},
        {"up_proj.weight", s->ffn, s->dim},
        {"down_proj.weight", s->dim, s->ffn},
        {"q_proj.bias", s->q, 1},
        {"k_proj.bias", s->kv, 1},
        {"v_proj.bias", s->kv, 1},
        {"o_proj.bias", s->dim, 1},
        {"gate_proj.bias", s->ffn, 1},
        {"up_proj.bias", s->ffn, 1},
        {"down_proj.bias", s->dim, 1},
        {"lambda_q1", s->head_dim, 1},
        {"lambda_k1", s->head_dim, 1},
        {"lambda_q2", s->head_dim, 1},
        {"lambda_k2", s->head_dim, 1},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (!ends_with(name, shapes[i].end) || shapes[i].rows * shapes[i].cols > LARGEST) continue;
        *w = (dq_weight){.name = shapes[i].end,
                         .rows = shapes[i].rows,
                         .cols = shapes[i].cols,
                         .bits = 16,
                         .dtype = DQ_F32,
                         .data = values};
        return true;
    }
    return false;
}

static const char *name_at(void *arg, int64_t i)
{
    (void)arg;
    (void)i;
    return "model.norm.weight";
}

static float sum_of(const float *x, int64_t n)
{
    float sum = 0.0f;
    for (int64_t i = 0; x && i < n; i++) sum += x[i];
    return sum;
}

static void check_map(const dq_head_order *map)
{
    for (int o = 0; o < map->n_out; o++) {
        for (int j = 0; j < map->n_maps; j++) {
            int q = map->head[o].q[j];
            if (q < 0 || q >= map->n_q || map->key[q] < 0 || map->key[q] >= map->n_kv) abort();
        }
        for (int j = 0; j < map->n_slabs; j++) {
            int v = map->head[o].v[j];
            if (v < 0 || v >= map->n_kv) abort();
        }
    }
    for (int i = 0; i < map->n_kv; i++) {
        if (map->group[i] < 0 || map->group[i] >= map->n_groups) abort();
    }
}

/* What an accepted configuration promises of one layer. */
static float check_layer(const dq_model *m, const dq_layer *l)
{
    const dq_attn *a = &l->attn;
    const dq_weight *p = &l->lambda_proj;
    const bool token = a->lambda_kind == DQ_LAMBDA_TOKEN;
    if (a->map != &m->map || (a->lambda_kind != DQ_LAMBDA_NONE) != (m->map.n_maps == 2)) abort();
    if (token != (p->data != NULL) || (token && (p->rows != m->map.n_out || p->cols != m->dim)))
        abort();
    if (a->head_norm && !(a->norm_eps > 0)) abort();
    if (a->gain && !a->head_norm) abort();
    if (a->window < 0 || !l->rope || l->rope->dim != m->map.head_dim) abort();
    if (l->o.cols != (int64_t)m->map.n_out * m->map.n_slabs * m->map.head_dim) abort();
    return a->lambda + a->out_scale + l->lambda_init + sum_of(l->act, 4) +
           sum_of(a->gain, m->map.n_slabs * m->map.head_dim) + sum_of(l->norm_attn, m->dim) +
           sum_of(l->norm_ffn, m->dim) + sum_of(l->norm_attn_out, m->dim) +
           sum_of(l->norm_ffn_out, m->dim) + sum_of(l->q_norm, m->map.head_dim) +
           sum_of(l->rope->inv_freq, l->rope->dim / 2) + sum_of(p->data, p->rows * p->cols);
}

/* Reads what an accepted configuration promises. */
static void check(const dq_model *m)
{
    float sum = sum_of(m->norm_out, m->dim) + sum_of(m->rope.inv_freq, m->rope.dim / 2);
    check_map(&m->map);
    for (int l = 0; l < m->n_layers; l++) sum += check_layer(m, &m->layer[l]);
    for (int i = 0; i < m->n_warnings; i++) {
        if (m->warnings[i][0] == 0) abort();
    }
    if (!isfinite(sum) || m->n_layers < 1 || m->vocab < 1 || m->rope.max_positions < 0) abort();
    if (!(m->rope.amplitude > 0) || !isfinite(m->rope.amplitude)) abort();
}

/* Builds the model with the head order of its family, or with another one. */
static bool build(const json_t *config, sizes *s, dq_pairing pairing)
{
    dq_err err = {0};
    dq_model m = {0};
    dq_source source = {s, find, 1, name_at, NULL, NULL};
    dq_arena *a = dq_arena_new();
    if (!a) return false;
    const bool good = dq_model_build(&m, config, &source, pairing, a, &err) == DQ_OK;
    if (good)
        check(&m);
    else if (err.text[0] == 0)
        abort(); /* every refusal explains itself */
    dq_arena_free(a);
    return good;
}

/* What a quantization_config says, or why it is not read. */
static void check_prequant(const json_t *config)
{
    dq_err err = {0};
    dq_prequant_config c = {.format = NULL};
    dq_arena *a = dq_arena_new();
    const json_t *v = json_object_get(config, "quantization_config");
    if (a && v) {
        const bool good = dq_prequant_config_read(&c, v, a, &err) == DQ_OK;
        if (good != (err.text[0] == 0)) abort();
        if (good && (!c.format || !c.about || c.n_schemes < 1)) abort();
        for (int i = 0; i < c.n_schemes; i++) {
            const dq_prequant_scheme *s = &c.scheme[i];
            if (s->bits < 2 || s->bits > 8 ||
                (s->group < 1 && s->group != DQ_GROUP_ROW && s->group != DQ_GROUP_TENSOR))
                abort();
        }
    }
    dq_arena_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dq_err err = {0};
    json_t *config = NULL;
    if (dq_json_parse(&config, (const char *)data, size, "config.json", &err) == DQ_OK &&
        json_is_object(config)) {
        check_prequant(config);
        sizes s = read_sizes(config);
        const bool few = number(config, "num_hidden_layers", 1) <= 64; /* many take seconds */
        const bool good = build(config, &s, DQ_PAIR_COUNT);
        for (int p = 0; good && few && p < DQ_PAIR_COUNT; p++) build(config, &s, (dq_pairing)p);
    }
    json_decref(config);
    return 0;
}
