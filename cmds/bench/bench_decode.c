/* bench_decode: dq bench decode: attention of single tokens after a long context, for several KV caches, with nothing in the
 * processor's caches, and the whole token beside it. One cache per kind of numbers is filled with invented keys and values,
 * which cost no prefill. Then the caches take turns, a token each, and so does a plain read of memory, so that a machine that
 * slows down slows them alike; run -1 warms up.
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_bytes.h"
#include "cmds/bench/bench_limits.h"
#include "cmds/bench/bench_rates.h"
#include "cmds/bench/bench_report.h"
#include "cmds/bench/bench_run.h"
#include "cmds/cli/help.h"
#include "cmds/cli/kv_report.h"
#include "cmds/cli/progress.h"
#include "cmds/command.h"
#include "eval/score.h"
#include "settings/cache_options.h"

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
    {4, 4, DQ_NUM_INT8, DQ_KV_DITHER},      {4, 4, DQ_NUM_F32, DQ_KV_MIXED},
    {4, 4, DQ_NUM_INT8, DQ_KV_MIXED}};
enum {
    N_VARIANTS = sizeof variants / sizeof variants[0],
    MAX_SUBJECTS = N_VARIANTS * (DQ_KV_DENSE_TYPES + 1)
};

/* One cache under test. */
typedef struct subject {
    dq_runner *runner;
    int32_t seq, pos;
    double *token_s, *attend_s, *read_rate; /* [tokens]; the last in bytes per second */
    double kv_bytes;                        /* held: attention reads them once per token */
} subject;

typedef struct decode {
    dq_bench *o;
    const dq_model *m;
    dq_backend *b;
    dq_bench_list contexts;
    int64_t tokens, context; /* that are timed; before them, of the caches at work */
    float *k, *v; /* backend memory: CHUNK rows of keys and values, one row of the others */
    float *q, *y, *lambda;
    dq_bench_block block;
    double weight_bytes;
    int types[DQ_KV_DENSE_TYPES +
              1]; /* [n_types], each a dq_kv_dense: each variant has one subject of each */
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
    c.dense = (dq_kv_dense)x->types[i % x->n_types];
    return dq_kv_options_fit(out, &c, x->m, math_of(x, i), x->b, &x->o->logger, err);
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

static void add_result(const decode *x, int i, double plain, dq_bench_report *r, dq_err *err)
{
    const subject *s = &x->at[i];
    const dq_bench_timing token = dq_bench_timing_of(s->token_s, x->tokens);
    const dq_bench_timing attend = dq_bench_timing_of(s->attend_s, x->tokens);
    const double rate = s->kv_bytes / attend.median;
    const double read = dq_bench_timing_of(s->read_rate, x->tokens).median;
    char bits[DQ_KV_TEXT];
    dq_kv_codes_text(bits, dq_runner_kv_spec(s->runner));
    const dq_bench_figure all[] = {
        dq_bench_count("context", "context", x->context),
        dq_bench_text("kv_bits", "KV bits", bits),
        dq_bench_text("attention_math", "math", dq_num_name[variant_of(x, i)->num]),
        dq_bench_real("kv_bytes", "KV, MiB", s->kv_bytes, 1.0 / 1048576, 2),
        dq_bench_real("attention_seconds_median", "ms", attend.median, 1e3, 3),
        dq_bench_real("attention_seconds_min", "least", attend.min, 1e3, 3),
        dq_bench_real("attention_bytes_per_second", "GB/s", rate, 1e-9, 1),
        dq_bench_real("read_bytes_per_second", NULL, read, 1e-9, 1),
        dq_bench_real("share_of_read", "share of read", rate / read, 1, 2),
        dq_bench_real("speedup_over_16_bits", "times", plain / attend.median, 1, 2),
        dq_bench_real("weight_bytes", NULL, x->weight_bytes, 1, 0),
        dq_bench_real("token_seconds_median", "ms/token", token.median, 1e3, 2),
        dq_bench_real("tokens_per_second", NULL, 1 / token.median, 1, 1)};
    dq_bench_report_add(r, "decode", all, (int)(sizeof all / sizeof *all), err);
}

/* Caches of one context, from invented tokens to results. */
static dq_status run_context(decode *x, dq_bench_report *r, dq_err *err)
{
    if (run_all(x, err) == DQ_OK) {
        const double plain = dq_bench_timing_of(x->at[0].attend_s, x->tokens).median;
        for (int i = 0; i < x->n_subjects; i++) add_result(x, i, plain, r, err);
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

static dq_status run_contexts(decode *x, dq_bench_report *r, dq_err *err)
{
    for (int i = 0; i < x->n_subjects; i++) {
        dq_kv_spec spec;
        DQ_TRY(spec_of(&spec, x, i, err));
        dq_kv_report_note_routes(&x->o->logger, x->b, x->m, math_of(x, i), &spec);
    }
    json_object_set_new(r->settings, "decode", json_integer((json_int_t)x->tokens));
    dq_progress_begin(&x->progress, &x->o->logger, "timed",
                      (double)x->contexts.n * x->n_subjects * (double)(x->tokens + 2));
    dq_progress_set(&x->progress, 0, NULL);
    for (int i = 0; i < x->contexts.n && err->code == DQ_OK; i++) {
        x->context = x->contexts.at[i];
        run_context(x, r, err);
    }
    dq_progress_end(&x->progress);
    if (err->code != DQ_OK) return err->code;
    if (!x->o->json)
        printf(
            "%s: attention of one token on %s, medians of %lld tokens; times: against the first\n"
            "ms/token: the whole model, projections in f32\n\n",
            x->m->name, x->b->device, (long long)x->tokens);
    return dq_bench_report_print(r, err);
}

static dq_status check(const decode *x, dq_err *err)
{
    if (!x->b->ops->peak_read)
        return dq_fail(err, DQ_MISMATCH,
                       "dq bench decode takes shares of what the processor reads, not of %s. Use "
                       "--device cpu",
                       x->b->device);
    for (int i = 0; i < x->contexts.n; i++) {
        if (x->contexts.at[i] + x->tokens + 1 > x->m->max_positions)
            return dq_fail(err, DQ_MISMATCH,
                           "%s: has %d positions. Lower --context or --new-tokens", x->m->path,
                           x->m->max_positions);
    }
    return DQ_OK;
}

static dq_status run(decode *x, dq_err *err)
{
    const dq_head_order *map = &x->o->model->map;
    const int64_t d = map->head_dim,
                  sizes[] = {CHUNK * map->n_kv * d, CHUNK * map->n_kv * d, map->n_q * d,
                             map->n_out * map->n_slabs * d, map->n_out};
    float **const all[] = {&x->k, &x->v, &x->q, &x->y, &x->lambda};
    dq_bench_report r;
    x->m = x->o->model;
    x->b = x->o->backend;
    x->n_subjects = N_VARIANTS * x->n_types;
    x->weight_bytes = dq_bench_bytes_of(x->m, 1).total;
    DQ_TRY(check(x, err));
    DQ_TRY(dq_bench_report_begin(&r, x->o, err));
    dq_bench_block_new(&x->block, x->b, 0);
    if (!x->block.p) /* it also empties the caches */
        dq_fail(err, DQ_RESOURCE, "out of memory (%zu bytes for a plain read)", x->block.bytes);
    for (int i = 0; i < 5 && err->code == DQ_OK; i++)
        *all[i] = dq_bench_floats(x->b, sizes[i], err);
    if (err->code == DQ_OK) run_contexts(x, &r, err);
    for (int i = 0; i < 5; i++) x->b->ops->free(x->b, *all[i]);
    dq_bench_block_free(&x->block);
    dq_bench_report_end(&r);
    return err->code;
}

static const dq_usage usage = {
    .name = "bench decode",
    .synopsis = "MODEL [options]",
    .about = "Times attention of single tokens after a context, with nothing in the processor's "
             "caches, for several widths of the KV cache in turn. Shares are of what a plain read "
             "of memory reaches in between. One thread is timed by processor time, which other "
             "work on the machine disturbs less.",
    .examples = "  dq bench decode model --new-tokens 20 --context 2048,16384\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one MODEL"};

dq_status dq_cmd_bench_decode(int argc, char **argv, dq_err *err)
{
    dq_bench o = dq_bench_defaults;
    decode x = {.o = &o, .tokens = 20};
    const char *contexts = "1024";
    dq_words types = {.at = {DQ_KV_DENSE_AUTO}, .n = 1};
    const dq_opt opts[] = {
        dq_opt_int("new-tokens", "N", &x.tokens, 1, 100000, "tokens that are timed (default 20)"),
        dq_opt_text("context", "T[,T...]", &contexts, "invented tokens before them (default 1024)"),
        dq_opt_words("kv-dense-type", "LIST", &types, dq_kv_dense_name, DQ_KV_DENSE_TYPES + 1,
                     "what is not coded of the caches: {words}; several: each cache with each "
                     "(default auto: f16, or bf16 where the model's weights are)"),
        DQ_BENCH_RUN(o),
        {0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    DQ_TRY(dq_bench_list_read(&x.contexts, contexts, "context", 1 << 24, err));
    x.n_types = types.n;
    for (int i = 0; i < types.n; i++) x.types[i] = types.at[i];
    if (dq_bench_open(&o, usage.name, args.item[0], err) == DQ_OK) run(&x, err);
    dq_bench_close(&o);
    return err->code;
}
