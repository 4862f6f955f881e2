/* long: what only size shows: attention of 1, 8 and 64 rows over 5 000 to 65 536 keys in every arithmetic, passes of
 * more than 32 767 rows, each against the CPU. gpu_long [--device NAME] [--small] [--only rows|f32|int8|bf16]: operations
 * of rows and products, or attention in one arithmetic; one JSON document on stdout.
 * Exit 0: all within their tolerances; 1: something is not; otherwise the status of what failed.
 *
 * Tolerances are those of tests/simt: attention in f32 2e-6 of the largest output, in int8 and bf16 2e-3 of f32 on the
 * CPU, or 1e-1 where logits are rounded (a number between two of a grid goes to either).
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "engine/backend.h"
#include "tensor/tensor.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CPU, DEVICE, CHUNK = 2048, N_Q = 8, N_KV = 4, MANY = 40000 };

typedef struct bench {
    dq_backend *b[2];
    dq_arena *arena;
    json_t *results;
    int wrong;
    const char *only; /* NULL: everything */
} bench;

/* ----------------------------------------------------------------------------------------- data */
/* Nearly normal, the same for one seed. */
static float *values(int64_t n, uint64_t seed, float scale, dq_err *err)
{
    float *x = dq_block_new((size_t)n, sizeof *x, err);
    for (int64_t i = 0; x && i < n; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            sum += (float)(int32_t)(seed >> 32) / 2147483648.0f;
        }
        x[i] = scale * sum;
    }
    return x;
}

static dq_mat put(dq_backend *b, const float *x, int64_t rows, int64_t cols)
{
    const size_t bytes = (size_t)(rows * cols) * sizeof *x;
    const dq_mat m = {b->ops->alloc(b, bytes), rows, cols};
    if (m.p && x) b->ops->put(b, m.p, x, bytes);
    return m;
}

static json_t *row(bench *x, const char *what, const char *math, double worst, double limit)
{
    const bool good = worst <= limit; /* false for NaN */
    json_t *r =
        json_pack("{s:s, s:s, s:o, s:f, s:b}", "what", what, "math", math, "worst_relative",
                  isfinite(worst) ? json_real(worst) : json_null(), "limit", limit, "within", good);
    json_array_append_new(x->results, r);
    if (!good) {
        x->wrong++;
        fprintf(stderr, "gpu_long: %s in %s: off by %g of the largest value (limit %g)\n", what,
                math, worst, limit);
    }
    return r;
}

/* The largest difference of two matrices, as a share of the largest value; takes both. */
static double worst_of(bench *x, dq_mat cpu, dq_mat device, dq_err *err)
{
    const size_t n = (size_t)(cpu.rows * cpu.cols);
    float *y[2] = {dq_block_new(n, sizeof **y, err), dq_block_new(n, sizeof **y, err)};
    const dq_mat m[2] = {cpu, device};
    double max = 0, worst = 0;
    for (int k = CPU; k <= DEVICE; k++) {
        if (y[k]) x->b[k]->ops->get(x->b[k], y[k], m[k].p, n * sizeof **y);
        if (err->code == DQ_OK) dq_backend_sync(x->b[k], err);
        x->b[k]->ops->free(x->b[k], m[k].p);
    }
    for (size_t i = 0; err->code == DQ_OK && i < n; i++) {
        const double d = fabs((double)y[CPU][i] - (double)y[DEVICE][i]);
        max = fmax(max, fabs((double)y[CPU][i]));
        if (d > worst || d != d) worst = d;
        if (worst != worst) break;
    }
    for (int k = CPU; k <= DEVICE; k++) dq_block_free(y[k]);
    return worst == 0 ? 0 : worst / max;
}

/* ------------------------------------------------------------------------------------ attention */
typedef struct scene {
    const char *what;
    dq_num num;
    int k_bits, v_bits;
    int64_t keys; /* of a sequence, its rows included */
    int64_t rows; /* of a sequence in the pass that is compared */
    int n_seq, dim;
    dq_pairing pairing;
    dq_logit_spec logit;
} scene;

typedef struct stage {
    bench *x;
    const scene *s;
    dq_head_order map;
    dq_attn attn;
    dq_kv_spec spec;
    dq_kv *kv[2];
    int64_t *cu;
    int32_t *seq, *pos, *ids;
    dq_mat out[2];
    float *absmax[2];
} stage;

static const char *num_name(const scene *s)
{
    return dq_num_name[s->num];
}

/* Rows first..first+n-1 of every sequence, appended on both sides; attended if `attend`. */
static void pass(stage *g, int64_t first, int64_t n, bool attend, dq_err *err)
{
    const int64_t rows = n * g->s->n_seq, kv_cols = (int64_t)g->map.n_kv * g->map.head_dim,
                  q_cols = (int64_t)g->map.n_q * g->map.head_dim;
    const uint64_t seed = (uint64_t)first * 3 + 1;
    float *k = values(rows * kv_cols, seed, 1.0f, err),
          *v = values(rows * kv_cols, seed + 1, 0.5f, err);
    float *q = attend ? values(rows * q_cols, seed + 2, 1.5f, err) : NULL;
    for (int i = 0; i < g->s->n_seq; i++) {
        g->cu[i + 1] = (i + 1) * n;
        for (int64_t j = 0; j < n; j++) g->pos[i * n + j] = (int32_t)(first + j);
    }
    const dq_batch batch = {g->s->n_seq, rows, g->cu, g->seq, g->ids, g->pos};
    for (int side = CPU; side <= DEVICE && err->code == DQ_OK; side++) {
        dq_backend *b = g->x->b[side];
        const dq_num num = side == CPU ? DQ_NUM_F32 : g->s->num;
        dq_mat mk = put(b, k, rows, kv_cols), mv = put(b, v, rows, kv_cols), mq = {0};
        b->ops->kv_append(b, g->kv[side], 0, &batch, mk, mv, num);
        if (attend) {
            mq = put(b, q, rows, q_cols);
            dq_attend_args a = {.attn = &g->attn,
                                .batch = &batch,
                                .kv = g->kv[side],
                                .q = mq,
                                .logit = g->s->logit,
                                .math = {DQ_NUM_F32, num, num, num}};
            if (dq_logit_needs_absmax(g->s->logit)) {
                b->ops->attn_absmax(b, g->absmax[side], &a);
                if (g->s->logit.granularity == DQ_GRANULARITY_TENSOR)
                    b->ops->absmax_join(b, g->absmax[side], g->s->n_seq, g->map.n_q);
                a.absmax = g->absmax[side];
            }
            b->ops->attend(b, g->out[side], &a);
        }
        b->ops->kv_compact(b, g->kv[side], 0, &batch, 0);
        float *all[] = {mk.p, mv.p, mq.p};
        for (int i = 0; i < 3; i++) b->ops->free(b, all[i]);
        dq_backend_sync(b, err);
    }
    dq_block_free(k);
    dq_block_free(v);
    dq_block_free(q);
}

static dq_status open_stage(stage *g, bench *x, const scene *s, dq_err *err)
{
    const int64_t chunk = s->keys - s->rows < CHUNK ? s->keys : CHUNK;
    const size_t max = (size_t)(s->n_seq * (chunk > s->rows ? chunk : s->rows));
    *g = (stage){.x = x, .s = s, .spec = dq_kv_plain};
    g->spec.num = s->num;
    g->spec.k_bits = s->k_bits;
    g->spec.v_bits = s->v_bits;
    DQ_TRY(dq_head_order_build(&g->map, s->pairing, N_Q, N_KV, s->dim, 0, x->arena, err));
    g->attn = (dq_attn){.map = &g->map,
                        .lambda_kind = g->map.n_maps == 2 ? DQ_LAMBDA_LAYER : DQ_LAMBDA_NONE,
                        .lambda = 0.4f,
                        .out_scale = 1.0f};
    g->cu = dq_block_new((size_t)s->n_seq + 1, sizeof *g->cu, err);
    g->seq = dq_block_new((size_t)s->n_seq, sizeof *g->seq, err);
    g->pos = dq_block_new(max, sizeof *g->pos, err);
    g->ids = dq_block_new(max, sizeof *g->ids, err);
    for (int side = CPU; side <= DEVICE && err->code == DQ_OK; side++) {
        dq_backend *b = x->b[side];
        g->kv[side] = b->ops->kv_new(b, &g->map, 1, &g->spec);
        for (int i = 0; i < s->n_seq && g->kv[side]; i++)
            g->seq[i] = b->ops->kv_seq_new(b, g->kv[side]); /* the same on both sides */
        g->out[side] =
            put(b, NULL, s->n_seq * s->rows, (int64_t)g->map.n_out * g->map.n_slabs * s->dim);
        g->absmax[side] = put(b, NULL, s->n_seq, g->map.n_q).p;
        dq_backend_sync(b, err);
    }
    return err->code;
}

static void close_stage(stage *g)
{
    for (int side = CPU; side <= DEVICE; side++) {
        dq_backend *b = g->x->b[side];
        b->ops->free(b, g->absmax[side]);
        if (g->kv[side]) b->ops->kv_free(b, g->kv[side]);
    }
    dq_block_free(g->cu);
    dq_block_free(g->seq);
    dq_block_free(g->pos);
    dq_block_free(g->ids);
}

static double limit_of(const scene *s)
{
    return s->num == DQ_NUM_F32 ? 2e-6 : s->logit.bits == 16 ? 2e-3 : 1e-1;
}

static void compare_attention(bench *x, const scene *s, dq_err *err)
{
    stage g;
    char bits[16];
    const double start = dq_os_seconds();
    if (open_stage(&g, x, s, err) == DQ_OK) {
        for (int64_t at = 0; at < s->keys - s->rows && err->code == DQ_OK; at += CHUNK) {
            const int64_t left = s->keys - s->rows - at;
            pass(&g, at, left < CHUNK ? left : CHUNK, false, err);
        }
        if (err->code == DQ_OK) pass(&g, s->keys - s->rows, s->rows, true, err);
        const double worst = worst_of(x, g.out[CPU], g.out[DEVICE], err);
        if (err->code == DQ_OK) {
            json_t *r = row(x, s->what, num_name(s), worst, limit_of(s));
            snprintf(bits, sizeof bits, "%d:%d", s->k_bits, s->v_bits);
            json_object_set_new(r, "kv_bits", json_string(bits));
            json_object_set_new(r, "keys", json_integer((json_int_t)s->keys));
            json_object_set_new(r, "rows", json_integer((json_int_t)s->rows));
            json_object_set_new(r, "sequences", json_integer(s->n_seq));
            json_object_set_new(r, "logit_bits", json_integer(s->logit.bits));
            json_object_set_new(r, "seconds", json_real(dq_os_seconds() - start));
        }
    }
    close_stage(&g);
}

static const dq_num nums[] = {DQ_NUM_F32, DQ_NUM_INT8, DQ_NUM_INT8, DQ_NUM_BF16};
static const int widths[] = {16, 8, 4, 16};
enum { N_NUMS = sizeof nums / sizeof *nums };

static bool cannot(const bench *x, dq_num num) /* bf16 is no arithmetic of the CPU */
{
    return num == DQ_NUM_BF16 && strcmp(x->b[DEVICE]->ops->name, "cpu") == 0;
}

static bool requested(const bench *x, const char *what)
{
    return !x->only || strcmp(x->only, what) == 0;
}

static void long_contexts(bench *x, bool small, dq_err *err)
{
    static const int64_t keys[] = {5000, 20000, 65536}, rows[] = {1, 8, 64};
    for (int i = 0; i < (small ? 1 : 3); i++)
        for (int k = 0; k < 3; k++)
            for (int n = 0; n < N_NUMS && err->code == DQ_OK; n++) {
                scene s = {.what = "long context",
                           .num = nums[n],
                           .k_bits = widths[n],
                           .v_bits = widths[n],
                           /* decode_join looks up 128 pages at once, in two halves by turns */
                           .keys = !small                             ? keys[i]
                                   : nums[n] == DQ_NUM_INT8 && k == 0 ? 64 * 257 + 5
                                                                      : 700,
                           .rows = rows[k],
                           .n_seq = 1,
                           .dim = small ? 16 : 64,
                           .pairing = k == 1 ? DQ_PAIR_HALVES : DQ_PAIR_ADJACENT,
                           .logit = {.bits = 16}};
                if (cannot(x, nums[n]) || !requested(x, dq_num_name[nums[n]]) || (small && k == 2))
                    continue;
                compare_attention(x, &s, err);
                s.logit = (dq_logit_spec){
                    .bits = 6, .granularity = i % 2 ? DQ_GRANULARITY_TENSOR : DQ_GRANULARITY_ROW};
                s.what = i % 2 ? "long context, logits rounded by tensor"
                               : "long context, logits rounded by row";
                if (nums[n] != DQ_NUM_BF16 && err->code == DQ_OK) compare_attention(x, &s, err);
            }
}

/* One long sequence, and many short ones. */
static void many_rows(bench *x, bool small, dq_err *err)
{
    for (int n = 0; n < N_NUMS && err->code == DQ_OK; n++) {
        scene s = {.what = "rows of one sequence",
                   .num = nums[n],
                   .k_bits = widths[n],
                   .v_bits = widths[n],
                   .keys = small ? 300 : MANY,
                   .rows = small ? 300 : MANY,
                   .n_seq = 1,
                   .dim = 16,
                   .pairing = DQ_PAIR_ADJACENT,
                   .logit = {.bits = 16}};
        if (cannot(x, nums[n]) || !requested(x, dq_num_name[nums[n]])) continue;
        compare_attention(x, &s, err);
        s.what = "rows of many sequences";
        s.keys = s.rows = 33;
        s.n_seq = small ? 9 : MANY / 32;
        if (err->code == DQ_OK) compare_attention(x, &s, err);
    }
}

/* ------------------------------------------------------------------------------- operations of rows */
typedef void operation(dq_backend *b, dq_mat x, dq_mat y, const int32_t *pos);

static const dq_rope *rope_of(void)
{
    static float inv_freq[32];
    static const dq_rope rope = {
        .order = DQ_ROPE_HALVES, .dim = 64, .inv_freq = inv_freq, .amplitude = 1.0f};
    for (int i = 0; i < 32; i++) inv_freq[i] = (float)pow(10000.0, -i / 32.0);
    return &rope;
}

static void rms_norm(dq_backend *b, dq_mat x, dq_mat y, const int32_t *pos)
{
    static float gain[64];
    (void)y, (void)pos;
    for (int i = 0; i < 64; i++) gain[i] = 1.0f + (float)i / 64;
    b->ops->rms_norm(b, x, x, gain, 1e-5f);
}

static void rope(dq_backend *b, dq_mat x, dq_mat y, const int32_t *pos)
{
    b->ops->rope_table(b, y, pos, rope_of());
    b->ops->rope(b, x, y, DQ_ROPE_HALVES);
}

static void hadamard(dq_backend *b, dq_mat x, dq_mat y, const int32_t *pos)
{
    (void)y, (void)pos;
    b->ops->hadamard(b, x, 64);
}

static void silu(dq_backend *b, dq_mat x, dq_mat y, const int32_t *pos)
{
    static const float param[4] = {0};
    (void)pos;
    b->ops->ffn_act(b, x, y, DQ_ACT_SILU, param);
}

static void polynorm(dq_backend *b, dq_mat x, dq_mat y, const int32_t *pos)
{
    static const float param[4] = {0.3f, -0.5f, 0.8f, 0.1f};
    (void)pos;
    b->ops->ffn_act(b, x, y, DQ_ACT_POLYNORM, param);
}

static void sigmoid(dq_backend *b, dq_mat x, dq_mat y, const int32_t *pos)
{
    (void)y, (void)pos;
    b->ops->sigmoid(b, x);
}

static void add(dq_backend *b, dq_mat x, dq_mat y, const int32_t *pos)
{
    (void)pos;
    b->ops->add(b, x, y);
}

static void gather(dq_backend *b, dq_mat x, dq_mat y, const int32_t *pos)
{
    int64_t *index = malloc((size_t)x.rows * sizeof *index);
    (void)pos;
    for (int64_t i = 0; index && i < x.rows; i++) index[i] = x.rows - 1 - i;
    if (index) b->ops->gather(b, x, y, index);
    free(index);
}

static const struct {
    const char *name;
    operation *run;
    double limit;
} operations[] = {{"rms_norm", rms_norm, 1e-6}, {"rope", rope, 1e-6}, {"hadamard", hadamard, 0},
                  {"silu", silu, 1e-6},         {"add", add, 0},      {"polynorm", polynorm, 2e-6},
                  {"sigmoid", sigmoid, 1e-6},   {"gather", gather, 0}};

static void compare_rows(bench *x, int64_t rows, dq_err *err)
{
    float *from = values(rows * 64, 5, 1.0f, err), *other = values(rows * 64, 6, 1.0f, err);
    int32_t *pos = dq_block_new((size_t)rows, sizeof *pos, err);
    for (int64_t i = 0; pos && i < rows; i++) pos[i] = (int32_t)i;
    for (size_t i = 0; i < sizeof operations / sizeof *operations && err->code == DQ_OK; i++) {
        dq_mat m[2];
        for (int side = CPU; side <= DEVICE; side++) {
            m[side] = put(x->b[side], from, rows, 64);
            const dq_mat y = put(x->b[side], other, rows, 64);
            operations[i].run(x->b[side], m[side], y, pos);
            x->b[side]->ops->free(x->b[side], y.p);
        }
        const double worst = worst_of(x, m[CPU], m[DEVICE], err);
        if (err->code == DQ_OK)
            json_object_set_new(row(x, operations[i].name, "f32", worst, operations[i].limit),
                                "rows", json_integer((json_int_t)rows));
    }
    dq_block_free(from);
    dq_block_free(other);
    dq_block_free(pos);
}

/* W[96][128] in 4 bits, groups of 32, or dense. */
static void compare_products(bench *x, int64_t rows, dq_err *err)
{
    enum { OUT = 96, COLS = 128, GROUP = 32, BITS = 4 };
    static const struct {
        bool packed;
        dq_num num;
        double limit;
    } cases[] = {{false, DQ_NUM_F32, 2e-6},
                 {false, DQ_NUM_BF16, 2e-2},
                 {true, DQ_NUM_INT8, 0},
                 {true, DQ_NUM_F32, 2e-6}};
    float *from = values(rows * COLS, 7, 1.0f, err), *dense = values(OUT * COLS, 8, 0.1f, err);
    uint8_t packed[OUT * COLS * BITS / 8];
    float scale[OUT * COLS / GROUP];
    for (int i = 0; i < OUT * COLS * BITS / 8; i++)
        packed[i] = (uint8_t)((uint32_t)i * 2654435761u >> 24 | 0x11);
    for (int i = 0; i < OUT * COLS / GROUP; i++) scale[i] = 0.01f + 1e-4f * (float)(i % 7);
    for (size_t i = 0; i < sizeof cases / sizeof *cases && err->code == DQ_OK; i++) {
        const dq_weight w = {.name = "long",
                             .rows = OUT,
                             .cols = COLS,
                             .format = cases[i].packed ? &dq_format_int : NULL,
                             .bits = cases[i].packed ? BITS : 16,
                             .dtype = DQ_F32,
                             .data = cases[i].packed ? (const void *)packed : dense,
                             .group_size = GROUP,
                             .scale_rows = OUT,
                             .scale_dtype = DQ_F32,
                             .scale = scale};
        dq_mat m[2];
        if (cannot(x, cases[i].num)) continue;
        for (int side = CPU; side <= DEVICE; side++) {
            dq_backend *b = x->b[side];
            const dq_mat src = put(b, from, rows, COLS);
            const dq_num num =
                side == CPU && cases[i].num == DQ_NUM_BF16 ? DQ_NUM_F32 : cases[i].num;
            m[side] = put(b, NULL, rows, OUT);
            const bool there = !b->ops->weight_acquire || b->ops->weight_acquire(b, &w);
            b->ops->matmul(b, m[side], src, &w, NULL, num);
            if (there && b->ops->weight_release) b->ops->weight_release(b, &w);
            b->ops->free(b, src.p);
        }
        const double worst = worst_of(x, m[CPU], m[DEVICE], err);
        if (err->code == DQ_OK)
            json_object_set_new(row(x, cases[i].packed ? "packed product" : "product",
                                    dq_num_name[cases[i].num], worst, cases[i].limit),
                                "rows", json_integer((json_int_t)rows));
    }
    dq_block_free(from);
    dq_block_free(dense);
}

/* ----------------------------------------------------------------------------------------- main */
int main(int argc, char **argv)
{
    const char *device = getenv("DQ_TEST_DEVICE");
    bench x = {.results = json_array()};
    dq_err err = {0};
    bool small = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0) {
            small = true;
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            device = argv[++i];
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            x.only = argv[++i];
        } else {
            fprintf(stderr,
                    "usage: gpu_long [--device NAME] [--small] [--only rows|f32|int8|bf16]\n");
            return 2;
        }
    }
    x.arena = dq_arena_new();
    if (!x.arena) dq_fail(&err, DQ_RESOURCE, "out of memory");
    if (err.code == DQ_OK) dq_backend_open(&x.b[CPU], "cpu", 0, &err);
    if (err.code == DQ_OK) dq_backend_open(&x.b[DEVICE], device ? device : "cuda", 0, &err);
    const int64_t rows = small ? 70 : MANY;
    if (err.code == DQ_OK && requested(&x, "rows")) compare_rows(&x, rows, &err);
    if (err.code == DQ_OK && requested(&x, "rows")) compare_products(&x, rows, &err);
    if (err.code == DQ_OK) long_contexts(&x, small, &err);
    if (err.code == DQ_OK) many_rows(&x, small, &err);
    if (err.code == DQ_OK && json_array_size(x.results) == 0 && !cannot(&x, DQ_NUM_BF16))
        dq_fail(&err, DQ_USAGE, "--only %s names nothing", x.only);
    if (x.b[DEVICE]) { /* what was compared before something failed, too */
        json_t *doc = json_pack("{s:s, s:s, s:i, s:s?, s:O}", "schema", "dq-gpu-long/1", "device",
                                x.b[DEVICE]->device, "wrong", x.wrong, "error",
                                err.code == DQ_OK ? NULL : err.text, "results", x.results);
        json_dumpf(doc, stdout, JSON_INDENT(1));
        printf("\n");
        json_decref(doc);
    }
    if (err.code != DQ_OK) fprintf(stderr, "gpu_long: %s\n", err.text);
    for (int k = CPU; k <= DEVICE; k++) dq_backend_close(x.b[k]);
    dq_arena_free(x.arena);
    json_decref(x.results);
    return err.code != DQ_OK ? (int)err.code : x.wrong ? 1 : 0;
}
