/* large_model: checkpoints with the shapes, names and configuration of published models and invented weights,
 * for measuring time and memory at real scale without a download.
 *   generate DIR PRESET [--dtype bf16|f16|f32] [--layers N] [--plan]
 * One random block of values is repeated through every matrix, so memory does not depend on the model.
 * Files above 5 GB are cut into shards the way published ones are, layers across the cut included.
 * Nothing is synced. --plan prints the numbers and writes nothing.
 * SPDX-License-Identifier: MIT */
#include "tensor/tensor.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BLOCK_VALUES = 1 << 22, MAX_TENSORS = 1024, MAX_SHARDS = 64, NAME = 96 };
static const int64_t shard_bytes = 5000000000;

typedef enum family { LLAMA, DIFFLLAMA, MOTIF } family;

typedef struct preset {
    const char *name, *of, *dtype; /* dtype: as published */
    family family;
    int64_t vocab, hidden, ffn;
    int layers, heads, kv_heads, head_dim, noise_heads; /* noise_heads > 0: grouped attention */
    int64_t context;
    double theta, eps;
    bool tied;
    int64_t params; /* of the whole model, as published or derived from its index */
} preset;

static const preset presets[] = {
    {"diffllama-1b", "kajuma/DiffLlama-1B", "bf16", DIFFLLAMA, 102400, 2048, 8192, 16, 32, 8, 64, 0,
     8192, 10000, 1e-5, false, 1392580608},
    {"llama-1b", "meta-llama/Llama-3.2-1B", "bf16", LLAMA, 128256, 2048, 8192, 16, 32, 8, 64, 0,
     131072, 500000, 1e-5, true, 1235814400},
    {"motif-2.6b", "Motif-Technologies/Motif-2.6B", "f32", MOTIF, 219520, 2048, 8192, 32, 16, 16,
     128, 0, 16384, 500000, 1e-6, true, 2597218432},
    {"motif-2-12.7b", "Motif-Technologies/Motif-2-12.7B-Base", "f32", MOTIF, 219520, 4096, 16384,
     40, 40, 16, 128, 8, 16384, 1000000, 1e-6, false, 12703860896},
};
enum { N_PRESETS = sizeof presets / sizeof presets[0] };

/* What the values of a tensor look like. */
typedef enum look { WEIGHT, GAIN, LAMBDA, THIRD, ZERO } look;

typedef struct tensor {
    char name[NAME];
    int64_t rows, cols; /* cols 0: a vector */
    look look;
    int shard;
} tensor;

typedef struct plan {
    preset of;
    dq_dtype dtype;
    tensor tensor[MAX_TENSORS];
    int n_tensors, n_shards;
    int64_t params, bytes, largest; /* largest file */
    char file[MAX_SHARDS][64];
    int64_t data[MAX_SHARDS]; /* bytes of tensors */
} plan;

static void die(const char *what, const char *about)
{
    fprintf(stderr, "generate: %s: %s\n", about, what);
    exit(2);
}

/* ---- Shapes ---- */

static int64_t values_of(const tensor *t)
{
    return t->rows * (t->cols ? t->cols : 1);
}

static void add(plan *p, look kind, int64_t rows, int64_t cols, int layer, const char *name)
{
    if (p->n_tensors == MAX_TENSORS) die("too many tensors", name);
    tensor *t = &p->tensor[p->n_tensors++];
    if (layer >= 0)
        snprintf(t->name, sizeof t->name, "model.layers.%d.%s", layer, name);
    else
        snprintf(t->name, sizeof t->name, "%s", name);
    t->rows = rows;
    t->cols = cols;
    t->look = kind;
}

static void add_layer(plan *p, int l)
{
    static const char *const lambdas[] = {"self_attn.lambda_q1", "self_attn.lambda_k1",
                                          "self_attn.lambda_q2", "self_attn.lambda_k2"};
    const preset *m = &p->of;
    int64_t h = m->hidden, d = m->head_dim;
    int64_t out = m->noise_heads ? 2 * (m->heads - m->noise_heads) * d : m->heads * d;
    add(p, GAIN, h, 0, l, "input_layernorm.weight");
    if (m->family == MOTIF) {
        add(p, ZERO, 1, 0, l, "mlp.act_fn.bias");
        add(p, THIRD, 3, 0, l, "mlp.act_fn.weight");
    }
    add(p, WEIGHT, h, m->ffn, l, "mlp.down_proj.weight");
    add(p, WEIGHT, m->ffn, h, l, "mlp.gate_proj.weight");
    add(p, WEIGHT, m->ffn, h, l, "mlp.up_proj.weight");
    add(p, GAIN, h, 0, l, "post_attention_layernorm.weight");
    add(p, WEIGHT, m->kv_heads * d, h, l, "self_attn.k_proj.weight");
    for (int i = 0; m->family != LLAMA && i < 4; i++) add(p, LAMBDA, d, 0, l, lambdas[i]);
    add(p, WEIGHT, h, out, l, "self_attn.o_proj.weight");
    add(p, WEIGHT, m->heads * d, h, l, "self_attn.q_proj.weight");
    if (m->family == MOTIF) add(p, GAIN, 2 * d, 0, l, "self_attn.subln.weight");
    add(p, WEIGHT, m->kv_heads * d, h, l, "self_attn.v_proj.weight");
}

static void cut(plan *p)
{
    size_t item = dq_dtypes[p->dtype].bytes;
    int s = 0;
    for (int i = 0; i < p->n_tensors; i++) {
        tensor *t = &p->tensor[i];
        int64_t n = values_of(t), bytes = n * (int64_t)item;
        if (p->data[s] > 0 && p->data[s] + bytes > shard_bytes) s++;
        if (s == MAX_SHARDS) die("too many shards", p->of.name);
        t->shard = s;
        p->data[s] += bytes;
        p->params += n;
        p->bytes += bytes;
    }
    p->n_shards = s + 1;
    for (int i = 0; i <= s; i++) {
        snprintf(p->file[i], sizeof p->file[i], "model-%05d-of-%05d.safetensors", i + 1, s + 1);
        if (p->data[i] > p->largest) p->largest = p->data[i];
    }
    if (s == 0) snprintf(p->file[0], sizeof p->file[0], "model.safetensors");
}

static void make_plan(plan *p)
{
    const preset *m = &p->of;
    add(p, WEIGHT, m->vocab, m->hidden, -1, "model.embed_tokens.weight");
    for (int l = 0; l < m->layers; l++) add_layer(p, l);
    add(p, GAIN, m->hidden, 0, -1, "model.norm.weight");
    if (!m->tied) add(p, WEIGHT, m->vocab, m->hidden, -1, "lm_head.weight");
    cut(p);
}

/* ---- Values ---- */

static uint64_t state = 88172645463325252u;
static double uniform(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return ((double)(state >> 11) + 0.5) / 9007199254740992.0;
}

static double gauss(void)
{
    double u = uniform(), v = uniform();
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static float value_of(look kind)
{
    switch (kind) {
    case GAIN: return (float)(1 + 0.1 * gauss());
    case LAMBDA: return (float)(0.1 * gauss());
    case THIRD: return (float)(1.0 / 3 + 0.01 * gauss());
    case ZERO: return 0.0f;
    default: break;
    }
    double x = 0.02 * gauss(); /* one in ten thousand stands out, as in trained weights */
    return (float)(uniform() < 1e-4 ? 15 * x : x);
}

static void *make_block(dq_dtype dtype, look kind, int64_t n)
{
    size_t item = dq_dtypes[dtype].bytes;
    uint8_t *block = malloc((size_t)n * item);
    if (!block) die("out of memory", "block of values");
    for (int64_t i = 0; i < n; i++) {
        float x = value_of(kind);
        uint16_t h = dtype == DQ_F16 ? dq_f16_from_f32(x) : dq_bf16_from_f32(x);
        if (dtype == DQ_F32)
            memcpy(block + (size_t)i * item, &x, item);
        else
            memcpy(block + (size_t)i * item, &h, item);
    }
    return block;
}

/* ---- Files ---- */

static FILE *create(const char *dir, const char *name)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        die("path too long", dir);
    FILE *f = fopen(path, "wb");
    if (!f) die(strerror(errno), path);
    return f;
}

static void put(FILE *f, const void *p, size_t bytes, const char *name)
{
    if (fwrite(p, 1, bytes, f) != bytes) die(strerror(errno), name);
}

static void finish(FILE *f, const char *name)
{
    if (fclose(f) != 0) die(strerror(errno), name);
}

static void put_json(const char *dir, const char *name, json_t *doc)
{
    FILE *f = create(dir, name);
    if (json_dumpf(doc, f, JSON_INDENT(2)) != 0) die("cannot write", name);
    finish(f, name);
    json_decref(doc);
}

static void put_header(FILE *f, const plan *p, int shard)
{
    json_t *head = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    int64_t at = 0;
    for (int i = 0; i < p->n_tensors; i++) {
        const tensor *t = &p->tensor[i];
        if (t->shard != shard) continue;
        int64_t end = at + values_of(t) * (int64_t)dq_dtypes[p->dtype].bytes;
        json_t *shape = t->cols ? json_pack("[I,I]", (json_int_t)t->rows, (json_int_t)t->cols)
                                : json_pack("[I]", (json_int_t)t->rows);
        json_object_set_new(head, t->name,
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype", dq_dtypes[p->dtype].name,
                                      "shape", shape, "data_offsets", (json_int_t)at,
                                      (json_int_t)end));
        at = end;
    }
    char *text = json_dumps(head, JSON_COMPACT);
    if (!text) die("out of memory", "header");
    size_t len = strlen(text), padded = (len + 7) / 8 * 8;
    uint8_t size[8];
    for (int i = 0; i < 8; i++) size[i] = (uint8_t)((uint64_t)padded >> (8 * i));
    put(f, size, sizeof size, p->file[shard]);
    put(f, text, len, p->file[shard]);
    put(f, "        ", padded - len, p->file[shard]);
    free(text);
    json_decref(head);
}

/* `block` goes on where the last tensor left it: neighbours then do not hold the same values. */
static void put_tensor(FILE *f, const plan *p, const tensor *t, const uint8_t *block)
{
    static int64_t cursor;
    size_t item = dq_dtypes[p->dtype].bytes;
    if (t->look != WEIGHT) {
        void *small = make_block(p->dtype, t->look, values_of(t));
        put(f, small, (size_t)values_of(t) * item, t->name);
        free(small);
        return;
    }
    for (int64_t left = values_of(t); left > 0;) {
        int64_t n = BLOCK_VALUES - cursor < left ? BLOCK_VALUES - cursor : left;
        put(f, block + (size_t)cursor * item, (size_t)n * item, t->name);
        cursor = (cursor + n) % BLOCK_VALUES;
        left -= n;
    }
    cursor = (cursor + 4099) % BLOCK_VALUES;
}

static void put_weights(const char *dir, const plan *p)
{
    uint8_t *block = make_block(p->dtype, WEIGHT, BLOCK_VALUES);
    json_t *map = json_object();
    for (int s = 0; s < p->n_shards; s++) {
        FILE *f = create(dir, p->file[s]);
        put_header(f, p, s);
        for (int i = 0; i < p->n_tensors; i++) {
            if (p->tensor[i].shard != s) continue;
            put_tensor(f, p, &p->tensor[i], block);
            json_object_set_new(map, p->tensor[i].name, json_string(p->file[s]));
        }
        finish(f, p->file[s]);
    }
    free(block);
    if (p->n_shards > 1)
        put_json(dir, "model.safetensors.index.json",
                 json_pack("{s:{s:I,s:I}, s:o}", "metadata", "total_parameters",
                           (json_int_t)p->params, "total_size", (json_int_t)p->bytes, "weight_map",
                           map));
    else
        json_decref(map);
}

static void put_motif_keys(json_t *c, const preset *m)
{
    json_object_set_new(c, "hidden_act", json_string("poly_norm"));
    json_object_set_new(c, "attn_rms_norm_eps", json_real(1e-5));
    json_object_set_new(c, "use_bias", json_false());
    json_object_set_new(c, "use_sliding_window", json_false());
    if (!m->noise_heads) return;
    json_object_set_new(c, "num_noise_heads", json_integer(m->noise_heads));
    json_object_set_new(c, "k_ratio", json_integer(1));
}

static void put_config(const char *dir, const plan *p)
{
    static const char *const arch[] = {"LlamaForCausalLM", "DiffLlamaForCausalLM",
                                       "MotifForCausalLM"};
    static const char *const type[] = {"llama", "diffllama", "motif"};
    const preset *m = &p->of;
    const char *dtype = p->dtype == DQ_F32   ? "float32"
                        : p->dtype == DQ_F16 ? "float16"
                                             : "bfloat16";
    json_t *c = json_pack(
        "{s:[s], s:s, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:I, s:f, s:f, s:n, s:b, s:s}",
        "architectures", arch[m->family], "model_type", type[m->family], "vocab_size",
        (json_int_t)m->vocab, "hidden_size", (json_int_t)m->hidden, "intermediate_size",
        (json_int_t)m->ffn, "num_hidden_layers", m->layers, "num_attention_heads", m->heads,
        "num_key_value_heads", m->kv_heads, "head_dim", m->head_dim, "max_position_embeddings",
        (json_int_t)m->context, "rms_norm_eps", m->eps, "rope_theta", m->theta, "rope_scaling",
        "tie_word_embeddings", (int)m->tied, "torch_dtype", dtype);
    if (!c) die("out of memory", "config.json");
    if (m->family == MOTIF) {
        put_motif_keys(c, m);
    } else {
        json_object_set_new(c, "hidden_act", json_string("silu"));
        json_object_set_new(c, "attention_bias", json_false());
        json_object_set_new(c, "mlp_bias", json_false());
    }
    if (m->family == LLAMA) /* rope as Llama 3.2 has it */
        json_object_set_new(c, "rope_scaling",
                            json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor",
                                      32.0, "low_freq_factor", 1.0, "high_freq_factor", 4.0,
                                      "original_max_position_embeddings", 8192));
    put_json(dir, "config.json", c);
}

/* ---- Command line ---- */

static const preset *find_preset(const char *name)
{
    for (int i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) return &presets[i];
    }
    die("unknown preset", name);
    return NULL;
}

static dq_dtype parse_dtype(const char *text)
{
    if (strcmp(text, "bf16") == 0) return DQ_BF16;
    if (strcmp(text, "f16") == 0) return DQ_F16;
    if (strcmp(text, "f32") == 0) return DQ_F32;
    die("expected bf16, f16 or f32", text);
    return DQ_F32;
}

int main(int argc, char **argv)
{
    static plan p;
    bool dry = false;
    if (argc < 3) {
        fprintf(stderr,
                "usage: generate DIR PRESET [--dtype bf16|f16|f32] [--layers N] [--plan]\n");
        for (int i = 0; i < N_PRESETS; i++)
            fprintf(stderr, "  %-14s %s\n", presets[i].name, presets[i].of);
        return 2;
    }
    p.of = *find_preset(argv[2]);
    int whole = p.of.layers;
    p.dtype = parse_dtype(p.of.dtype);
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--plan") == 0)
            dry = true;
        else if (strcmp(argv[i], "--dtype") == 0 && i + 1 < argc)
            p.dtype = parse_dtype(argv[++i]);
        else if (strcmp(argv[i], "--layers") == 0 && i + 1 < argc)
            p.of.layers = (int)strtol(argv[++i], NULL, 10);
        else
            die("unknown argument, or its value is missing", argv[i]);
    }
    if (p.of.layers < 1 || p.of.layers > 48) die("expected 1 to 48", "--layers");
    make_plan(&p);
    printf("parameters %lld\nbytes %lld\nlargest %lld\nfiles %d\ntensors %d\n", (long long)p.params,
           (long long)p.bytes, (long long)p.largest, p.n_shards, p.n_tensors);
    if (p.of.layers == whole && p.params != p.of.params)
        die("the total of parameters is not the published one", p.of.name);
    if (dry) return 0;
    if (mkdir(argv[1], 0777) != 0 && errno != EEXIST) die(strerror(errno), argv[1]);
    put_config(argv[1], &p);
    put_weights(argv[1], &p);
    return 0;
}
