/* bench_decode: see bench_decode.h. One cache per kind of numbers is filled with invented keys and values, which
 * cost no prefill. Then the caches take turns, a token each, so that a machine that slows down slows them alike;
 * run -1 warms up.
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_decode.h"

#include "cmds/bench/bench_bytes.h"
#include "cmds/bench/bench_limits.h"
#include "cmds/bench/bench_rates.h"
#include "cmds/cli/document.h"
#include "cmds/cli/kv_report.h"
#include "cmds/cli/progress.h"
#include "cmds/cli/table.h"
#include "eval/score.h"

#include <stdio.h>

enum { CHUNK = 256 };

typedef struct variant {
    int k_bits, v_bits;
    dq_num num; /* of attention; projections stay in f32 */
    dq_kv_quant quant;
} variant;
static const variant variants[] = {
    {16, 16, DQ_NUM_F32, DQ_KV_PER_TOKEN},  {8, 8, DQ_NUM_F32, DQ_KV_PER_TOKEN},
    {8, 8, DQ_NUM_INT8, DQ_KV_PER_TOKEN},   {8, 8, DQ_NUM_INT8, DQ_KV_PER_CHANNEL},
    {4, 4, DQ_NUM_F32, DQ_KV_PER_TOKEN},    {4, 4, DQ_NUM_INT8, DQ_KV_PER_TOKEN},
    {4, 4, DQ_NUM_INT8, DQ_KV_PER_CHANNEL}, {4, 4, DQ_NUM_F32, DQ_KV_DITHER},
    {4, 4, DQ_NUM_INT8, DQ_KV_DITHER}};
enum {
    N_VARIANTS = sizeof variants / sizeof variants[0],
    MAX_SUBJECTS = N_VARIANTS * DQ_KV_DENSE_TYPES
};

/* One cache under test. */
typedef struct subject {
    dq_runner *runner;
    int32_t seq, pos;
    double *token_s, *attend_s, *read_rate; /* [tokens]; the last in bytes per second */
    double kv_bytes;                        /* held: attention reads them once per token */
} subject;

typedef struct decode {
    const dq_model *m;
    dq_backend *b;
    int64_t tokens, context;
    float *k, *v; /* backend memory: CHUNK rows of keys and values, one row of the others */
    float *q, *y, *lambda;
    dq_bench_block block;
    double weight_bytes;
    const dq_kv_dense *types; /* [n_types]: each variant has one subject of each */
    int n_types, n_subjects;
    dq_progress progress; /* in tokens, and contexts as one each; told between them */
    subject at[MAX_SUBJECTS];
} decode;

static const variant *variant_of(const decode *x, int i)
{
    return &variants[i / x->n_types];
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
            x->b->ops->kv_compact(x->b, kv, l, &batch);
        }
    }
    s->pos = (int32_t)x->context;
}

static dq_math math_of(const decode *x, int i)
{
    const dq_num num = variant_of(x, i)->num;
    return (dq_math){DQ_NUM_F32, num, num, num};
}

static dq_status spec_of(dq_kv_spec *out, const decode *x, int i, dq_err *err)
{
    dq_kv_config c = dq_kv_config_plain;
    c.k_bits = variant_of(x, i)->k_bits;
    c.v_bits = variant_of(x, i)->v_bits;
    c.quant = variant_of(x, i)->quant;
    c.dense = x->types[i % x->n_types];
    return dq_kv_options_spec(out, &c, x->m, variant_of(x, i)->num, err);
}

static dq_status open_subject(decode *x, int i, dq_err *err)
{
    dq_kv_spec spec;
    subject *s = &x->at[i];
    DQ_TRY(spec_of(&spec, x, i, err));
    s->token_s = dq_block_new((size_t)x->tokens, sizeof *s->token_s, err);
    s->attend_s = dq_block_new((size_t)x->tokens, sizeof *s->attend_s, err);
    s->read_rate = dq_block_new((size_t)x->tokens, sizeof *s->read_rate, err);
    if (err->code != DQ_OK) return err->code;
    DQ_TRY(dq_backend_can(x->b, x->m, math_of(x, i), &spec, err));
    DQ_TRY(dq_runner_new(&s->runner, x->m, x->b, &spec, err));
    s->seq = x->b->ops->kv_seq_new(x->b, dq_runner_kv(s->runner));
    fill_context(x, s);
    return dq_backend_sync(x->b, err);
}

/* Attention of all layers alone, for the position after the last token: only that one, and later ones,
 * may read what has been compacted. */
static double time_attention(const decode *x, const subject *s, const dq_batch *last, dq_math math)
{
    const dq_head_order *map = &x->m->map;
    const int32_t pos = s->pos + 1;
    dq_batch batch = *last;
    batch.pos = &pos;
    const int64_t width = (int64_t)map->n_out * map->n_slabs * map->head_dim;
    const double start = dq_bench_now(x->b);
    for (int l = 0; l < x->m->n_layers; l++) {
        const dq_attend_args args = {.attn = &x->m->layer[l].attn,
                                     .batch = &batch,
                                     .kv = dq_runner_kv(s->runner),
                                     .layer = l,
                                     .q = {x->q, 1, (int64_t)map->n_q * map->head_dim},
                                     .lambda = {x->lambda, 1, map->n_out},
                                     .logit = {.bits = 16},
                                     .math = math};
        x->b->ops->attend(x->b, (dq_mat){x->y, 1, width}, &args);
    }
    x->b->ops->sync(x->b);
    return dq_bench_now(x->b) - start;
}

/* The next token of one cache; run -1 warms up. */
static dq_status step(decode *x, int i, int64_t run, dq_err *err)
{
    subject *s = &x->at[i];
    const dq_math math = math_of(x, i);
    const int64_t cu[2] = {0, 1};
    int32_t id = (int32_t)((s->pos * 7919) % x->m->vocab), top1;
    const dq_batch batch = {
        .n_seq = 1, .n_rows = 1, .cu_rows = cu, .seq = &s->seq, .ids = &id, .pos = &s->pos};
    const dq_pass pass = {.logit = {.bits = 16}, .math = math};
    dq_mat hidden;
    double logp;
    const double start = dq_bench_now(x->b);
    DQ_TRY(dq_runner_pass(s->runner, &batch, &pass, &hidden, err));
    x->b->ops->logprob(x->b, &logp, &top1, hidden, &x->m->head, &id, DQ_NUM_F32);
    DQ_TRY(dq_backend_sync(x->b, err));
    const double token = dq_bench_now(x->b) - start, read = dq_bench_block_read(&x->block, 0);
    const double attend = time_attention(x, s, &batch, math);
    DQ_TRY(dq_score_check_logp(x->m, &logp, 1, err));
    if (run >= 0) {
        s->token_s[run] = token;
        s->attend_s[run] = attend;
        s->read_rate[run] = read;
    }
    s->pos++;
    return dq_backend_sync(x->b, err);
}

static dq_status run_all(decode *x, dq_err *err)
{
    for (int i = 0; i < x->n_subjects; i++) {
        DQ_TRY(open_subject(x, i, err));
        dq_progress_set(&x->progress, x->progress.done + 1, NULL);
    }
    for (int64_t run = -1; run < x->tokens; run++) {
        for (int i = 0; i < x->n_subjects; i++) {
            DQ_TRY(step(x, i, run, err));
            dq_progress_set(&x->progress, x->progress.done + 1, NULL);
        }
    }
    for (int i = 0; i < x->n_subjects; i++) {
        const dq_kv_bytes cached = x->b->ops->kv_bytes(x->b, dq_runner_kv(x->at[i].runner));
        x->at[i].kv_bytes = (double)(cached.codes + cached.scales + cached.unquantized);
    }
    return err->code;
}

static void put_result(const decode *x, int i, double plain, dq_table *table, json_t *results)
{
    const subject *s = &x->at[i];
    const dq_bench_timing token = dq_bench_timing_of(s->token_s, x->tokens);
    const dq_bench_timing attend = dq_bench_timing_of(s->attend_s, x->tokens);
    const double rate = s->kv_bytes / attend.median;
    const double read = dq_bench_timing_of(s->read_rate, x->tokens).median;
    char bits[DQ_KV_TEXT];
    dq_kv_codes_text(bits, dq_runner_kv_spec(s->runner));
    dq_table_cell(table, "%lld", (long long)x->context);
    dq_table_cell(table, "%s", bits);
    dq_table_cell(table, "%s", dq_num_name[variant_of(x, i)->num]);
    dq_table_cell(table, "%.2f", s->kv_bytes / 1048576);
    dq_table_cell(table, "%.3f", 1e3 * attend.median);
    dq_table_cell(table, "%.3f", 1e3 * attend.min);
    dq_table_cell(table, "%.1f", rate * 1e-9);
    dq_table_cell(table, "%.2f", rate / read);
    dq_table_cell(table, "%.2f", plain / attend.median);
    dq_table_cell(table, "%.2f", 1e3 * token.median);
    json_t *r = json_object();
    json_object_set_new(r, "model", dq_document_name(x->m->name));
    json_object_set_new(r, "what", json_string("decode"));
    json_object_set_new(r, "context", json_integer((json_int_t)x->context));
    json_object_set_new(r, "kv_bits", json_string(bits));
    json_object_set_new(r, "attention_math", json_string(dq_num_name[variant_of(x, i)->num]));
    json_object_set_new(r, "kv_bytes", dq_document_real(s->kv_bytes));
    json_object_set_new(r, "attention_seconds_median", dq_document_real(attend.median));
    json_object_set_new(r, "attention_seconds_min", dq_document_real(attend.min));
    json_object_set_new(r, "attention_bytes_per_second", dq_document_real(rate));
    json_object_set_new(r, "read_bytes_per_second", dq_document_real(read));
    json_object_set_new(r, "share_of_read", dq_document_real(rate / read));
    json_object_set_new(r, "speedup_over_16_bits", dq_document_real(plain / attend.median));
    json_object_set_new(r, "weight_bytes", dq_document_real(x->weight_bytes));
    json_object_set_new(r, "token_seconds_median", dq_document_real(token.median));
    json_object_set_new(r, "tokens_per_second", dq_document_real(1 / token.median));
    json_array_append_new(results, r);
}

/* Caches of one context, from invented tokens to rows of the table. */
static dq_status run_context(decode *x, dq_table *table, json_t *results, dq_err *err)
{
    if (run_all(x, err) == DQ_OK) {
        const double plain = dq_bench_timing_of(x->at[0].attend_s, x->tokens).median;
        for (int i = 0; i < x->n_subjects; i++) put_result(x, i, plain, table, results);
    }
    for (int i = 0; i < x->n_subjects; i++) {
        subject *s = &x->at[i];
        dq_runner_free(s->runner);
        dq_block_free(s->token_s);
        dq_block_free(s->attend_s);
        dq_block_free(s->read_rate);
        *s = (subject){0};
    }
    return err->code;
}

static dq_status run_contexts(decode *x, dq_logger *logger, const int *context, int n, bool json,
                              dq_err *err)
{
    static const char *const titles[] = {"context", "KV bits", "math", "KV, MiB",
                                         "ms",      "least",   "GB/s", "share of read",
                                         "times",   "ms/token"};
    dq_table *table = NULL;
    DQ_TRY(dq_table_new(&table, titles, 10, err));
    for (int i = 0; i < x->n_subjects; i++) {
        dq_kv_spec spec;
        if (spec_of(&spec, x, i, err) != DQ_OK) break;
        dq_kv_report_note_routes(logger, x->b, x->m, math_of(x, i), &spec);
    }
    json_t *doc = dq_bench_document(logger, x->m, x->b);
    json_object_set_new(json_object_get(doc, "settings"), "decode",
                        json_integer((json_int_t)x->tokens));
    dq_progress_begin(&x->progress, logger, "timed",
                      (double)n * x->n_subjects * (double)(x->tokens + 2));
    dq_progress_set(&x->progress, 0, NULL);
    for (int i = 0; i < n && err->code == DQ_OK; i++) {
        x->context = context[i];
        run_context(x, table, json_object_get(doc, "results"), err);
    }
    dq_progress_end(&x->progress);
    if (err->code == DQ_OK && json) {
        dq_document_print(json_incref(doc), err);
    } else if (err->code == DQ_OK) {
        printf(
            "%s: attention of one token on %s, medians of %lld tokens; times: against the first\n"
            "ms/token: the whole model, projections in f32\n\n",
            x->m->name, x->b->device, (long long)x->tokens);
        dq_table_print(table, err);
    }
    json_decref(doc);
    dq_table_free(table);
    return err->code;
}

dq_status dq_bench_decode(dq_logger *logger, const dq_model *m, dq_backend *b, int64_t tokens,
                          const int *context, int n, const dq_kv_dense *types, int n_types,
                          bool json, dq_err *err)
{
    const dq_head_order *map = &m->map;
    const int64_t d = map->head_dim;
    if (!b->ops->peak_read)
        return dq_fail(err, DQ_MISMATCH,
                       "--decode takes shares of what the processor reads, not of %s. Use --device "
                       "cpu",
                       b->device);
    for (int i = 0; i < n; i++) {
        if (context[i] + tokens + 1 > m->max_positions)
            return dq_fail(err, DQ_MISMATCH, "%s: has %d positions. Lower --context or --decode",
                           m->path, m->max_positions);
    }
    decode x = {.m = m,
                .b = b,
                .tokens = tokens,
                .types = types,
                .n_types = n_types,
                .n_subjects = N_VARIANTS * n_types,
                .weight_bytes = dq_bench_bytes_of(m, 1).total};
    dq_bench_block_new(&x.block, b, 0);
    if (!x.block.p) /* it also empties the caches */
        dq_fail(err, DQ_RESOURCE, "out of memory (%zu bytes for a plain read)", x.block.bytes);
    if (err->code == DQ_OK) x.k = dq_bench_floats(b, CHUNK * map->n_kv * d, err);
    if (err->code == DQ_OK) x.v = dq_bench_floats(b, CHUNK * map->n_kv * d, err);
    if (err->code == DQ_OK) x.q = dq_bench_floats(b, map->n_q * d, err);
    if (err->code == DQ_OK) x.y = dq_bench_floats(b, map->n_out * map->n_slabs * d, err);
    if (err->code == DQ_OK) x.lambda = dq_bench_floats(b, map->n_out, err);
    if (err->code == DQ_OK) run_contexts(&x, logger, context, n, json, err);
    float *all[] = {x.k, x.v, x.q, x.y, x.lambda};
    for (int i = 0; i < 5; i++) b->ops->free(b, all[i]);
    dq_bench_block_free(&x.block);
    return err->code;
}
