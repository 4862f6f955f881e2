/* bench_decode: see bench_decode.h.
 * SPDX-License-Identifier: MIT */
#include "bench_decode.h"

#include "os.h"
#include "quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 256, COPY_BYTES = 1 << 27 };

typedef struct variant {
    int k_bits, v_bits;
    dq_num num; /* of attention; projections stay in f32 */
} variant;
static const variant variants[] = {{16, 16, DQ_NUM_F32},
                                   {8, 8, DQ_NUM_F32},
                                   {8, 8, DQ_NUM_INT8},
                                   {4, 4, DQ_NUM_F32},
                                   {4, 4, DQ_NUM_INT8}};
enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

/* One cache under test. */
typedef struct subject {
    dq_runner *runner;
    int32_t seq, pos;
    double *token_s, *attend_s; /* [tokens] */
    double kv_bytes;
} subject;

typedef struct decode {
    const dq_model *m;
    dq_backend *b;
    int64_t tokens, context;
    float *k, *v, *q, *y,
        *lambda; /* backend memory: CHUNK rows of keys and values, one of the others */
    double copy_rate, weight_bytes;
    subject at[N_VARIANTS];
} decode;

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *s, int64_t n)
{
    qsort(s, (size_t)n, sizeof *s, by_value);
    return n % 2 ? s[n / 2] : (s[n / 2 - 1] + s[n / 2]) / 2;
}

/* Bytes per second that a copy reads and writes on all threads; the best of five. */
static dq_status measure_copy(decode *x, dq_err *err)
{
    char *from = dq_block_new(COPY_BYTES, 1, err), *to = dq_block_new(COPY_BYTES, 1, err);
    const int n = x->b->threads;
    double best = INFINITY;
    for (int i = 0; err->code == DQ_OK && i < 6; i++) {
        memset(from, i, 64);
        const double start = dq_seconds();
#pragma omp parallel for num_threads(n) schedule(static)
        for (int t = 0; t < 64; t++)
            memcpy(to + t * (COPY_BYTES / 64), from + t * (COPY_BYTES / 64), COPY_BYTES / 64);
        const double s = dq_seconds() - start;
        if (i > 0 && s < best) best = s;
    }
    x->copy_rate = 2.0 * COPY_BYTES / best;
    dq_block_free(from);
    dq_block_free(to);
    return err->code;
}

static double type_bytes(dq_dtype t)
{
    return t == DQ_F32 ? 4 : 2;
}

static double bytes_of(const dq_weight *w)
{
    if (w->bits == 16) return (double)(w->rows * w->cols) * type_bytes(w->dtype);
    return (double)w->rows * (double)dq_row_bytes(w->cols, w->bits) +
           (double)(w->scale_rows * dq_groups(w->cols, w->group_size)) * type_bytes(w->scale_dtype);
}

/* What one token reads of the weights. */
static double weight_bytes(const dq_model *m)
{
    double sum = bytes_of(&m->head);
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) sum += bytes_of(all[k]);
    }
    return sum;
}

static float *floats(decode *x, int64_t n, dq_err *err)
{
    float *host = dq_block_new((size_t)n, sizeof *host, err);
    float *p = host ? x->b->ops->alloc(x->b, (size_t)n * sizeof *p) : NULL;
    uint32_t state = 7;
    for (int64_t i = 0; host && i < n; i++) {
        state = state * 1664525u + 1013904223u;
        host[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
    if (p) x->b->ops->put(x->b, p, host, (size_t)n * sizeof *p);
    dq_block_free(host);
    if (!p) dq_fail(err, DQ_RESOURCE, "out of memory");
    return p;
}

/* Invented keys and values at positions 0 .. context-1 of every layer. */
static void fill_context(decode *x, subject *s)
{
    const int64_t cols = (int64_t)x->m->map.n_kv * x->m->map.head_dim;
    int32_t ids[CHUNK] = {0}, pos[CHUNK];
    for (; s->pos < x->context; s->pos += CHUNK) {
        const int64_t left = x->context - s->pos, n = left < CHUNK ? left : CHUNK;
        const int64_t cu[2] = {0, n};
        for (int32_t i = 0; i < n; i++) pos[i] = s->pos + i;
        const dq_batch batch = {
            .n_seq = 1, .n_rows = n, .cu_rows = cu, .seq = &s->seq, .ids = ids, .pos = pos};
        for (int l = 0; l < x->m->n_layers; l++) {
            dq_kv *kv = dq_runner_kv(s->runner);
            x->b->ops->kv_append(x->b, kv, l, &batch, (dq_mat){x->k, n, cols},
                                 (dq_mat){x->v, n, cols});
            x->b->ops->kv_settle(x->b, kv, l, &batch);
        }
    }
    s->pos = (int32_t)x->context;
}

static dq_status open_subject(decode *x, int i, dq_err *err)
{
    const int d = x->m->map.head_dim;
    const bool rotate = variants[i].k_bits <= 4 && (d & (d - 1)) == 0; /* as --kv-rotate auto */
    dq_kv_spec spec = dq_kv_plain;
    subject *s = &x->at[i];
    spec.num = variants[i].num;
    spec.k_bits = variants[i].k_bits;
    spec.v_bits = variants[i].v_bits;
    spec.rotate_k = spec.rotate_v = rotate;
    s->token_s = dq_block_new((size_t)x->tokens, sizeof *s->token_s, err);
    s->attend_s = dq_block_new((size_t)x->tokens, sizeof *s->attend_s, err);
    if (err->code != DQ_OK) return err->code;
    const dq_math math = {DQ_NUM_F32, spec.num, spec.num, spec.num};
    DQ_TRY(dq_backend_can(x->b, x->m, math, &spec, err));
    DQ_TRY(dq_runner_new(&s->runner, x->m, x->b, &spec, err));
    s->seq = x->b->ops->kv_seq_new(x->b, dq_runner_kv(s->runner));
    fill_context(x, s);
    return dq_backend_sync(x->b, err);
}

/* The attention of all layers once more, alone. */
static double time_attention(const decode *x, const subject *s, const dq_batch *batch, dq_math math)
{
    const dq_headmap *map = &x->m->map;
    const int64_t width = (int64_t)map->n_out * map->n_slabs * map->head_dim;
    const double start = dq_seconds();
    for (int l = 0; l < x->m->n_layers; l++) {
        const dq_attend_args args = {.attn = &x->m->layer[l].attn,
                                     .batch = batch,
                                     .kv = dq_runner_kv(s->runner),
                                     .layer = l,
                                     .q = {x->q, 1, (int64_t)map->n_q * map->head_dim},
                                     .lambda = {x->lambda, 1, map->n_out},
                                     .logit = {.bits = 16},
                                     .math = math};
        x->b->ops->attend(x->b, (dq_mat){x->y, 1, width}, &args);
    }
    x->b->ops->sync(x->b);
    return dq_seconds() - start;
}

/* The next token of one cache; run -1 warms up. */
static dq_status step(decode *x, int i, int64_t run, dq_err *err)
{
    subject *s = &x->at[i];
    const dq_math math = {DQ_NUM_F32, variants[i].num, variants[i].num, variants[i].num};
    const int64_t cu[2] = {0, 1};
    int32_t id = (int32_t)((s->pos * 7919) % x->m->vocab), top1;
    const dq_batch batch = {
        .n_seq = 1, .n_rows = 1, .cu_rows = cu, .seq = &s->seq, .ids = &id, .pos = &s->pos};
    const dq_pass pass = {.logit = {.bits = 16}, .math = math};
    dq_mat hidden;
    const double start = dq_seconds();
    DQ_TRY(dq_runner_pass(s->runner, &batch, &pass, &hidden, err));
    x->b->ops->logprob(x->b, NULL, &top1, hidden, &x->m->head, &id, DQ_NUM_F32);
    DQ_TRY(dq_backend_sync(x->b, err));
    const double token = dq_seconds() - start, attend = time_attention(x, s, &batch, math);
    if (run >= 0) {
        s->token_s[run] = token;
        s->attend_s[run] = attend;
    }
    s->pos++;
    return dq_backend_sync(x->b, err);
}

static dq_status run_all(decode *x, dq_err *err)
{
    for (int i = 0; i < N_VARIANTS; i++) DQ_TRY(open_subject(x, i, err));
    for (int64_t run = -1; run < x->tokens; run++) {
        for (int i = 0; i < N_VARIANTS; i++) DQ_TRY(step(x, i, run, err));
    }
    for (int i = 0; i < N_VARIANTS; i++) {
        const dq_kv_bytes held = x->b->ops->kv_bytes(x->b, dq_runner_kv(x->at[i].runner));
        x->at[i].kv_bytes = (double)(held.codes + held.scales + held.unquantized);
    }
    return err->code;
}

static void put_result(const decode *x, int i, dq_table *table, json_t *results)
{
    const subject *s = &x->at[i];
    const double token = median(s->token_s, x->tokens), attend = median(s->attend_s, x->tokens);
    const double all = s->kv_bytes + x->weight_bytes;
    char bits[16];
    snprintf(bits, sizeof bits, "%d:%d", variants[i].k_bits, variants[i].v_bits);
    dq_table_cell(table, "%s", bits);
    dq_table_cell(table, "%s", dq_num_name[variants[i].num]);
    dq_table_cell(table, "%.2f", 1e3 * token);
    dq_table_cell(table, "%.1f", 1 / token);
    dq_table_cell(table, "%.1f", all / 1048576);
    dq_table_cell(table, "%.2f", all / token / x->copy_rate);
    dq_table_cell(table, "%.3f", 1e3 * attend);
    dq_table_cell(table, "%.2f", s->kv_bytes / 1048576);
    dq_table_cell(table, "%.2f", s->kv_bytes / attend / x->copy_rate);
    json_t *r = json_object();
    json_object_set_new(r, "model", json_string(x->m->name));
    json_object_set_new(r, "what", json_string("decode"));
    json_object_set_new(r, "context", json_integer((json_int_t)x->context));
    json_object_set_new(r, "kv_bits", json_string(bits));
    json_object_set_new(r, "attention_math", json_string(dq_num_name[variants[i].num]));
    json_object_set_new(r, "seconds_per_token_median", dq_real(token));
    json_object_set_new(r, "tokens_per_second", dq_real(1 / token));
    json_object_set_new(r, "bytes_per_token", dq_real(all));
    json_object_set_new(r, "attention_seconds_median", dq_real(attend));
    json_object_set_new(r, "kv_bytes", dq_real(s->kv_bytes));
    json_object_set_new(r, "copy_bytes_per_second", dq_real(x->copy_rate));
    json_object_set_new(r, "share_of_copy", dq_real(all / token / x->copy_rate));
    json_object_set_new(r, "attention_share_of_copy", dq_real(s->kv_bytes / attend / x->copy_rate));
    json_array_append_new(results, r);
}

static dq_status print_all(dq_talk *talk, const decode *x, bool json, dq_err *err)
{
    static const char *const titles[] = {"KV bits",       "attention", "ms/token",
                                         "tokens/s",      "MiB/token", "share of copy",
                                         "attention, ms", "KV, MiB",   "share of copy"};
    dq_table *table = NULL;
    DQ_TRY(dq_table_new(&table, titles, 9, err));
    json_t *doc = dq_document(talk, "dq-bench/1"), *settings = json_object_get(doc, "settings");
    json_array_append_new(json_object_get(doc, "inputs"), json_string(x->m->path));
    json_object_set_new(settings, "device", json_string(x->b->device));
    json_object_set_new(settings, "threads", json_integer(x->b->threads));
    json_object_set_new(settings, "decode", json_integer((json_int_t)x->tokens));
    json_object_set_new(settings, "context", json_integer((json_int_t)x->context));
    for (int i = 0; i < N_VARIANTS; i++) put_result(x, i, table, json_object_get(doc, "results"));
    if (json) {
        dq_document_print(json_incref(doc), err);
    } else {
        printf("%s: decoding at %lld tokens on %s, projections in f32; a copy moves %.1f GB/s\n\n",
               x->m->name, (long long)x->context, x->b->device, x->copy_rate * 1e-9);
        dq_table_print(table, err);
    }
    json_decref(doc);
    dq_table_free(table);
    return err->code;
}

dq_status dq_bench_decode(dq_talk *talk, const dq_model *m, dq_backend *b, int64_t tokens,
                          int64_t context, bool json, dq_err *err)
{
    const dq_headmap *map = &m->map;
    const int64_t d = map->head_dim;
    if (context + tokens + 1 > m->max_positions)
        return dq_fail(err, DQ_MISMATCH, "%s: has %d positions. Lower --context or --decode",
                       m->path, m->max_positions);
    decode x = {.m = m, .b = b, .tokens = tokens, .context = context};
    x.weight_bytes = weight_bytes(m);
    measure_copy(&x, err);
    if (err->code == DQ_OK) x.k = floats(&x, CHUNK * map->n_kv * d, err);
    if (err->code == DQ_OK) x.v = floats(&x, CHUNK * map->n_kv * d, err);
    if (err->code == DQ_OK) x.q = floats(&x, map->n_q * d, err);
    if (err->code == DQ_OK) x.y = floats(&x, map->n_out * map->n_slabs * d, err);
    if (err->code == DQ_OK) x.lambda = floats(&x, map->n_out, err);
    if (err->code == DQ_OK && run_all(&x, err) == DQ_OK) print_all(talk, &x, json, err);
    for (int i = 0; i < N_VARIANTS; i++) {
        dq_runner_free(x.at[i].runner);
        dq_block_free(x.at[i].token_s);
        dq_block_free(x.at[i].attend_s);
    }
    float *all[] = {x.k, x.v, x.q, x.y, x.lambda};
    for (int i = 0; i < 5; i++) b->ops->free(b, all[i]);
    return err->code;
}
