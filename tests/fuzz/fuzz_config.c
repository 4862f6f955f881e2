/* fuzz_config: any bytes as config.json, against a source that has every tensor a small model could
 * ask for. Whatever is accepted must have consistent sizes.
 * SPDX-License-Identifier: MIT */
#include "model.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LARGEST = 1 << 16 }; /* elements of the largest tensor there is */
static const float values[LARGEST];

/* The sizes that a configuration states, read without any check. */
typedef struct sizes {
    int64_t dim, ffn, vocab, q, kv, head_dim;
} sizes;

static int64_t number(const json_t *config, const char *key, int64_t otherwise)
{
    const json_t *v = json_object_get(config, key);
    int64_t x = json_is_integer(v) ? (int64_t)json_integer_value(v) : otherwise;
    return x > 0 && x <= LARGEST ? x : otherwise;
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
        {"norm.weight", s->dim, 1},
        {"q_proj.weight", s->q, s->dim},
        {"k_proj.weight", s->kv, s->dim},
        {"v_proj.weight", s->kv, s->dim},
        {"o_proj.weight", s->dim, s->q},
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

/* Reads what an accepted configuration promises. */
static void check(const dq_model *m)
{
    const dq_headmap *map = &m->map;
    float sum = 0.0f;
    for (int i = 0; i < m->rope.dim / 2; i++) sum += m->rope.inv_freq[i];
    for (int i = 0; i < m->dim; i++) sum += m->norm_out[i];
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
    if (sum != sum || m->n_layers < 1 || m->vocab < 1) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dq_err err = {0};
    json_t *config = NULL;
    dq_arena *a = dq_arena_new();
    if (!a) return 0;
    if (dq_json_parse(&config, (const char *)data, size, "config.json", &err) == DQ_OK &&
        json_is_object(config)) {
        dq_model m = {0};
        sizes s = {.dim = number(config, "hidden_size", 1),
                   .ffn = number(config, "intermediate_size", 1),
                   .vocab = number(config, "vocab_size", 1)};
        int64_t heads = number(config, "num_attention_heads", 1);
        s.head_dim = number(config, "head_dim", s.dim / heads);
        s.q = heads * s.head_dim;
        s.kv = number(config, "num_key_value_heads", heads) * s.head_dim;
        dq_source source = {&s, find, 1, name_at};
        if (dq_model_build(&m, config, &source, NULL, a, &err) == DQ_OK)
            check(&m);
        else if (err.text[0] == 0)
            abort(); /* every refusal explains itself */
    }
    json_decref(config);
    dq_arena_free(a);
    return 0;
}
