/* Dq bench prefill: one prompt of each length through the whole model, beside one dense product
 * and the peak of the processor. Run -1 warms up. The roundings of logits take turns. The dense
 * product is timed once, before all lengths; the peak after every run, so that both see the same
 * machine, and compared with as the median of these.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "cmds/bench/inside.h"
#include "cmds/cli/cli.h"
#include "cmds/cli/kv_report.h"
#include "cmds/command.h"
#include "eval/kinds.h"
#include "eval/score.h"
#include "settings/cache_options.h"

#include <math.h>
#include <stdio.h>

typedef struct prefill {
    dq_bench *o;
    dq_bench_list length;
    const char *instruction; /* of the peak; NULL: not known */
    double product_flops;    /* multiply-adds count as two, per second */
    bool clocked;            /* the parts of a pass are known */
    dq_progress progress;    /* in rows; told between runs */
    double peak;             /* flops per second, of the last length; NaN: not known */
    double *ops;             /* [runs] */
    int tokens;              /* of the last length */
    struct {
        double *seconds, *times, *attention, *products; /* [runs] */
    } of[DQ_BENCH_LOGITS];
} prefill;

static dq_status run_all(prefill *x, const dq_bench_prompt *prompt, int64_t run, dq_err *err)
{
    double first = 0;
    for (int i = 0; i < x->o->n_logits; i++) {
        double s;
        dq_bench_clocked_take();
        DQ_TRY(dq_bench_prompt_run(&s, x->o->runner, prompt, x->o->logit[i], x->o->math, err));
        const dq_bench_clocked parts = dq_bench_clocked_take();
        if (i == 0) first = s;
        if (run < 0) continue;
        x->of[i].seconds[run] = s;
        x->of[i].times[run] = s / first;
        x->of[i].attention[run] = x->clocked ? parts.attention / s : (double)NAN;
        x->of[i].products[run] = x->clocked ? parts.products / s : (double)NAN;
    }
    const double rate =
        dq_bench_limits_model(x->o->backend, x->o->math.linear, x->o->model, &x->instruction);
    if (run >= 0) x->ops[run] = rate;
    return err->code;
}

/* One rounding of the length at hand. */
void dq_bench_prefill_rows(dq_row_writer *w, const void *prefilled, int64_t i)
{
    static const dq_bench_column times_of = {
        .prefix = "times_first",
        .about = "Time over that of the unrounded pass, median over runs.",
        .title = "times",
        .digits = 3};
    static const dq_bench_column times_alone = {
        .prefix = "times_first",
        .about = "Time over that of the unrounded pass, median over runs.",
        .digits = 3};
    static const dq_bench_column seconds_of = {.prefix = "seconds",
                                               .about = "Seconds of a pass, median over runs.",
                                               .title = "median s",
                                               .min = "min s",
                                               .digits = 3};
    const prefill *x = prefilled;
    dq_bench_timing s = {0}, times = {0};
    double attention = 0, products = 0, flops = 0;
    const bool several = x && x->o->n_logits > 1, clocked = x && x->clocked;
    char weights[DQ_BENCH_WEIGHTS], logits[DQ_BENCH_LOGIT_NAME];
    if (x) {
        s = dq_bench_timing_of(x->of[i].seconds, x->o->runs);
        times = dq_bench_timing_of(x->of[i].times, x->o->runs);
        attention = dq_bench_timing_of(x->of[i].attention, x->o->runs).median;
        products = dq_bench_timing_of(x->of[i].products, x->o->runs).median;
        flops = dq_bench_prefill_flops(x->o->model, x->tokens) / s.median;
    }
    dq_bench_rows_begin(w, DQ_LIVE(w, x->o), "prefill");
    DQ_PUT(w, "tokens", x->tokens, "Tokens of the prompt.", .title = "tokens");
    DQ_PUT(w, "weights", dq_bench_weights(weights, x->o->model), "How weights are stored.");
    if (w->cell && several)
        DQ_PUT(w, NULL, dq_bench_logit_name(logits, x->o->logit[i]), NULL, .title = "logits");
    dq_bench_timing_rows(w, several ? &times_of : &times_alone, &times);
    dq_bench_timing_rows(w, &seconds_of, &s);
    DQ_PUT(w, "tokens_per_second", x->tokens / s.median, "Tokens per second.", .title = "tokens/s",
           .when = DQ_NULL);
    DQ_PUT(w, "flops_per_second", flops, "Multiply-adds (two each) per second.", .title = "GFLOP/s",
           .scale = 1e-9, .digits = 1, .when = DQ_NULL);
    DQ_PUT(w, "matmul_flops_per_second", x->product_flops, "The same of one dense product.",
           .when = DQ_NULL);
    DQ_PUT(w, "share_of_matmul", flops / x->product_flops, "Of that reached.",
           .title = "share of matmul", .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "peak_flops_per_second", x->peak, DQ_BENCH_ABOUT_PEAK, .when = DQ_NULL);
    DQ_PUT(w, "share_of_peak", flops / x->peak, "Of that reached.",
           .title = x && x->instruction ? "share of peak" : NULL, .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "share_of_products", products, "Share of the time in products; null: not clocked.",
           .title = clocked ? "products" : NULL, .digits = 3, .when = DQ_NULL);
    DQ_PUT(w, "share_of_attention", attention, "Share of the time in attention; null: not clocked.",
           .title = clocked ? "attention" : NULL, .digits = 3, .when = DQ_NULL);
    if (w->cell && clocked)
        DQ_PUT(w, NULL, 1 - products - attention, NULL, .title = "rest", .digits = 3);
    dq_bench_logit_rows(w, DQ_LIVE(w, &x->o->logit[i]));
    if (w->cell)
        DQ_PUT(w, NULL, (double)dq_os_peak_bytes(), NULL, .title = "memory, MiB",
               .scale = 1.0 / 1048576);
    DQ_PUT(w, "peak_bytes", dq_os_peak_bytes(), "Bytes that the process had at most.");
}

static dq_status measure(prefill *x, dq_bench_report *r, int length, dq_err *err)
{
    dq_bench_prompt prompt = {0};
    dq_bench_prompt_new(&prompt, x->o->model, length, err);
    for (int64_t i = -1; err->code == DQ_OK && i < x->o->runs; i++) {
        run_all(x, &prompt, i, err);
        dq_progress_set(&x->progress, x->progress.done + length, NULL);
    }
    if (err->code == DQ_OK)
        x->peak = x->instruction ? dq_bench_timing_of(x->ops, x->o->runs).median : (double)NAN;
    x->tokens = length;
    for (int i = 0; err->code == DQ_OK && i < x->o->n_logits; i++)
        dq_bench_report_add(r, dq_bench_prefill_rows, x, i, err);
    dq_bench_prompt_free(&prompt);
    return err->code;
}

static void print_heading(const prefill *x)
{
    const dq_weight *gate = &x->o->model->layer[0].gate;
    char peak[DQ_BENCH_PEAK];
    printf("%s: prefill in %s on %s; one dense product %dx%lldx%lld reaches %.1f GFLOP/s\n",
           x->o->model->name, x->o->math_word.text, x->o->backend->device, DQ_BENCH_PRODUCT_ROWS,
           (long long)gate->rows, (long long)gate->cols, x->product_flops * 1e-9);
    if (x->instruction)
        printf("peak: %s on registers alone, %.1f GFLOP/s\n",
               dq_bench_peak(peak, x->o->math.linear, x->instruction), x->peak * 1e-9);
    if (x->clocked) printf("products, attention, rest: shares of a pass\n");
    if (x->o->n_logits > 1) printf("times: against the pass with unrounded logits, run by run\n");
    putchar('\n');
}

static dq_status run_lengths(prefill *x, dq_bench_report *r, dq_err *err)
{
    double rows = 0;
    DQ_TRY(dq_bench_product_rate(&x->product_flops, x->o->backend, x->o->model, x->o->math.linear,
                                 err));
    x->clocked = dq_bench_clocked_begin(x->o->backend);
    for (int i = 0; i < x->length.n; i++) rows += x->length.at[i];
    dq_progress_begin(&x->progress, &x->o->logger, "timed", rows * (double)(x->o->runs + 1));
    dq_progress_set(&x->progress, 0, NULL);
    for (int i = 0; i < x->length.n && err->code == DQ_OK; i++) measure(x, r, x->length.at[i], err);
    dq_progress_end(&x->progress);
    dq_bench_clocked_end(x->o->backend);
    const dq_bench_settings set = {
        .runs = true, .peaks = true, .instruction = x->instruction, .num = x->o->math.linear};
    dq_bench_report_settings(r, &set);
    if (err->code == DQ_OK && !x->o->json) print_heading(x);
    return err->code == DQ_OK ? dq_bench_report_print(r, err) : err->code;
}

static dq_status run(prefill *x, dq_err *err)
{
    const size_t runs = (size_t)x->o->runs, n = (size_t)x->o->n_logits;
    dq_bench_report r;
    DQ_TRY(dq_bench_open_runner(x->o, err));
    const int most = x->o->model->max_positions;
    for (int i = 0; i < x->length.n; i++) {
        if (most > 0 && x->length.at[i] > most)
            dq_logger_warn(&x->o->logger,
                           "%s: --tokens %d is more than the %d positions that the model has; the "
                           "time is that of as many rows, but no text of this model is as long",
                           x->o->model->name, x->length.at[i], most);
    }
    double *times = dq_block_new((4 * n + 1) * runs, sizeof *times, err);
    if (times && dq_bench_report_begin(&r, x->o, err) == DQ_OK) {
        x->ops = times + 4 * n * runs;
        for (size_t i = 0; i < n; i++) {
            double *at = times + 4 * i * runs;
            x->of[i].seconds = at;
            x->of[i].times = at + runs;
            x->of[i].attention = at + 2 * runs;
            x->of[i].products = at + 3 * runs;
        }
        run_lengths(x, &r, err);
        dq_bench_report_end(&r);
    }
    dq_block_free(times);
    return err->code;
}

static const dq_usage usage = {
    .name = "bench prefill",
    .synopsis = "MODEL [options]",
    .about =
        "Times one prompt of each length through the whole model, up to the next token's "
        "log-probabilities. With --logit-bits, passes that round attention logits take turns with "
        "one that does not. Shares compare the rate with that of one dense matrix product of the "
        "same model, and with the peak: multiply-adds of the widest instruction in the arithmetic "
        "of --math, on registers alone, timed after every run. In f32, products with packed "
        "weights are sums of integers and may exceed the peak. One thread is timed by processor "
        "time, which other work on the machine disturbs less.",
    .examples = "  dq bench prefill calib/pair/diffllama --tokens 128,512\n"
                "  dq bench prefill model --tokens 2048 --logit-bits 8,4 --logit-granularity "
                "per-row,per-tile\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one MODEL"};

dq_status dq_cmd_bench_prefill(int argc, char **argv, dq_err *err)
{
    dq_bench o = dq_bench_defaults;
    prefill x = {.o = &o};
    const char *lengths = "128,512";
    const dq_opt opts[] = {
        dq_opt_text("tokens", "N[,N...]", &lengths, "prompt lengths (default 128,512)"),
        DQ_BENCH_LOGIT(o),
        DQ_BENCH_MATH(o),
        DQ_BENCH_RUNS(o),
        DQ_BENCH_RUN(o),
        {0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    DQ_TRY(dq_bench_list_read(&x.length, lengths, "tokens", 1 << 20, err));
    if (dq_bench_open(&o, usage.name, args.item[0], err) == DQ_OK) run(&x, err);
    dq_bench_close(&o);
    return err->code;
}

/* ---- Decode ----
 * Dq bench decode: attention of single tokens after a long context, for several KV caches, with
 * nothing in the processor's caches, and the whole token beside it. One cache per kind of numbers
 * is filled with invented keys and values, which cost no prefill. Then the caches take turns, a
 * token each, and so does a plain read of memory, so that a machine that slows down slows them
 * alike; run -1 warms up. */

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

static dq_status step(decode *x, int i, int64_t decode_run, dq_err *err)
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
    /* Attention of all layers for the position after the last token: earlier ones may not read what
     * is compacted. */
    const dq_head_order *map = &x->m->map;
    const int32_t pos = s->pos + 1;
    dq_batch next = batch;
    next.pos = &pos;
    const int64_t width = (int64_t)map->n_out * map->n_slabs * map->head_dim;
    const double again = dq_bench_now(x->b);
    for (int l = 0; l < x->m->n_layers; l++) {
        const dq_attend_args args = {.attn = &x->m->layer[l].attn,
                                     .batch = &next,
                                     .kv = dq_runner_kv(s->runner),
                                     .layer = l,
                                     .q = {x->q, 1, (int64_t)map->n_q * map->head_dim},
                                     .lambda = {x->lambda, 1, map->n_out},
                                     .logit = {.bits = 16},
                                     .math = math};
        x->b->ops->attend(x->b, (dq_mat){x->y, 1, width}, &args);
    }
    x->b->ops->sync(x->b);
    const double attend = dq_bench_now(x->b) - again;
    DQ_TRY(dq_score_check_logp(x->m, &logp, 1, err));
    if (decode_run >= 0) {
        s->token_s[decode_run] = token;
        s->attend_s[decode_run] = attend;
        s->read_rate[decode_run] = read;
    }
    s->pos++;
    return dq_backend_sync(x->b, err);
}

static dq_status decode_run_all(decode *x, dq_err *err)
{
    for (int i = 0; i < x->n_subjects; i++) {
        dq_kv_spec spec;
        subject *s = &x->at[i];
        DQ_TRY(spec_of(&spec, x, i, err));
        s->token_s = dq_block_new((size_t)x->tokens, sizeof *s->token_s, err);
        s->attend_s = dq_block_new((size_t)x->tokens, sizeof *s->attend_s, err);
        s->read_rate = dq_block_new((size_t)x->tokens, sizeof *s->read_rate, err);
        if (err->code != DQ_OK) return err->code;
        DQ_TRY(dq_runner_new(&s->runner, x->m, x->b, &spec, err));
        s->seq = x->b->ops->kv_seq_new(x->b, dq_runner_kv(s->runner));
        /* Random keys and values at positions 0 .. context-1 of every layer. */
        const int64_t cols = (int64_t)x->m->map.n_kv * x->m->map.head_dim;
        int32_t ids[CHUNK] = {0}, pos[CHUNK];
        for (; s->pos < x->context; s->pos += CHUNK) {
            const int64_t left = x->context - s->pos, n = left < CHUNK ? left : CHUNK;
            const int64_t cu[2] = {0, n};
            for (int32_t j = 0; j < n; j++) pos[j] = s->pos + j;
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
        DQ_TRY(dq_backend_sync(x->b, err));
        dq_progress_set(&x->progress, x->progress.done + 1, NULL);
    }
    for (int64_t decode_run = -1; decode_run < x->tokens; decode_run++) {
        for (int i = 0; i < x->n_subjects; i++) {
            DQ_TRY(step(x, i, decode_run, err));
            dq_progress_set(&x->progress, x->progress.done + 1, NULL);
        }
    }
    for (int i = 0; i < x->n_subjects; i++) {
        const dq_kv_bytes cached = x->b->ops->kv_bytes(x->b, dq_runner_kv(x->at[i].runner));
        x->at[i].kv_bytes = (double)(cached.codes + cached.scales + cached.unquantized);
    }
    return err->code;
}

void dq_bench_decode_rows(dq_row_writer *w, const void *decoded, int64_t j)
{
    const decode *x = decoded;
    const subject *s = x ? &x->at[j] : NULL;
    dq_bench_timing token = {0}, attend = {0};
    double read = 0, plain = 0, rate = 0;
    char bits[DQ_KV_TEXT];
    if (x) {
        plain = dq_bench_timing_of(x->at[0].attend_s, x->tokens).median;
        token = dq_bench_timing_of(s->token_s, x->tokens);
        attend = dq_bench_timing_of(s->attend_s, x->tokens);
        read = dq_bench_timing_of(s->read_rate, x->tokens).median;
        rate = s->kv_bytes / attend.median;
        dq_kv_codes_text(bits, dq_runner_kv_spec(s->runner));
    }
    dq_bench_rows_begin(w, DQ_LIVE(w, x->o), "decode");
    DQ_PUT(w, "context", x->context, "Tokens before.", .title = "context");
    DQ_PUT(w, "kv_bits", bits, "Widths of keys and values.", .title = "KV bits");
    DQ_PUT(w, "attention_math", dq_num_name[variant_of(x, (int)j)->num], "Arithmetic of attention.",
           DQ_WORDS(dq_num_name), .title = "math");
    DQ_PUT(w, "kv_bytes", s->kv_bytes, "Bytes of the KV cache.", .title = "KV, MiB",
           .scale = 1.0 / 1048576, .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "attention_seconds_median", attend.median,
           "Seconds of attention of one token, median.", .title = "ms", .scale = 1e3, .digits = 3,
           .when = DQ_NULL);
    DQ_PUT(w, "attention_seconds_min", attend.min, "The least of them.", .title = "least",
           .scale = 1e3, .digits = 3, .when = DQ_NULL);
    DQ_PUT(w, "attention_bytes_per_second", rate, "Bytes of the cache per second of it.",
           .title = "GB/s", .scale = 1e-9, .digits = 1, .when = DQ_NULL);
    DQ_PUT(w, "read_bytes_per_second", read, "Bytes per second of a plain read.", .when = DQ_NULL);
    DQ_PUT(w, "share_of_read", rate / read, "Of that reached.", .title = "share of read",
           .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "speedup_over_16_bits", plain / attend.median, "Times faster than the first line.",
           .title = "times", .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "weight_bytes", x->weight_bytes, "Bytes of weights that a token reads.",
           .when = DQ_NULL);
    DQ_PUT(w, "token_seconds_median", token.median, "Seconds of a token through the whole model.",
           .title = "ms/token", .scale = 1e3, .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "tokens_per_second", 1 / token.median, "Their inverse.", .when = DQ_NULL);
}

static dq_status run_contexts(decode *x, dq_bench_report *r, dq_err *err)
{
    for (int i = 0; i < x->n_subjects; i++) {
        dq_kv_spec spec;
        DQ_TRY(spec_of(&spec, x, i, err));
        dq_kv_report_note_routes(&x->o->logger, x->b, x->m, math_of(x, i), &spec);
    }
    const dq_bench_settings set = {.decode = x->tokens};
    dq_bench_report_settings(r, &set);
    dq_progress_begin(&x->progress, &x->o->logger, "timed",
                      (double)x->contexts.n * x->n_subjects * (double)(x->tokens + 2));
    dq_progress_set(&x->progress, 0, NULL);
    for (int i = 0; i < x->contexts.n && err->code == DQ_OK; i++) {
        x->context = x->contexts.at[i];
        if (decode_run_all(x, err) == DQ_OK) {
            for (int j = 0; j < x->n_subjects; j++)
                dq_bench_report_add(r, dq_bench_decode_rows, x, j, err);
        }
        for (int j = 0; j < x->n_subjects; j++) {
            subject *s = &x->at[j];
            dq_runner_free(s->runner);
            dq_block_free(s->token_s);
            dq_block_free(s->attend_s);
            dq_block_free(s->read_rate);
            *s = (subject){0};
        }
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

static dq_status decode_run(decode *x, dq_err *err)
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

static const dq_usage decode_usage = {
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
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &decode_usage, err));
    if (args.help) return DQ_OK;
    DQ_TRY(dq_bench_list_read(&x.contexts, contexts, "context", 1 << 24, err));
    x.n_types = types.n;
    for (int i = 0; i < types.n; i++) x.types[i] = types.at[i];
    if (dq_bench_open(&o, decode_usage.name, args.item[0], err) == DQ_OK) decode_run(&x, err);
    dq_bench_close(&o);
    return err->code;
}

/* ---- Generate ----
 * Dq bench generate: decoding with the whole model, as dq eval does it (eval/kinds.h), beside a
 * plain read of memory. A run is every context with every batch in turn, a plain read after each;
 * prompts are computed anew in every run and are not timed. dq_generate asks after every new token
 * whether a sequence shall end: the clock is read there, after the last sequence's first token,
 * which the prompt's pass gave, and after its last one. */

/* A plain read takes part of the time of its run: 30 ms after seconds would measure other load on
 * the machine. */
enum { READ_PART = 4, BATCH_MAX = 8 };

typedef struct generate_subject {
    int context, batch;
    double *seconds, *read; /* [runs] of all steps; bytes per second */
    double *peak;           /* [runs] flops per second */
    double *share, *ops;    /* [runs] of the read and of the peak after a run */
    double kv_bytes;        /* held, the mean of the first and the last step */
    dq_bench_bytes weights;
} generate_subject;

typedef struct generate {
    dq_bench *o;
    int64_t steps; /* timed passes of one row a sequence */
    dq_bench_list contexts, batches;
    const dq_model *m;
    dq_backend *b;
    dq_bench_block block;
    const char *instruction; /* of the peak; NULL: not known */
    int64_t peak_bytes;      /* of the process, before the block */
    int32_t *ids;            /* [batch][context], the largest of both */
    generate_subject *at;    /* [n] */
    int n;
    dq_progress progress; /* in runs; told between them */
} generate;

typedef struct watch {
    generate *x;
    int64_t last; /* sequence */
    double begin, end, kv_first, kv_last;
} watch;

static double kv_held(const generate *x)
{
    const dq_kv_bytes held = x->b->ops->kv_bytes(x->b, dq_runner_kv(x->o->runner));
    return (double)(held.codes + held.scales + held.unquantized);
}

/* All sequences stay open until the last step. */
static bool tick(void *arg, int64_t prompt, const int32_t *ids, int64_t n)
{
    watch *w = arg;
    (void)ids;
    if (prompt != w->last) return false;
    if (n == w->x->steps) w->kv_last = kv_held(w->x);
    if (n == w->x->steps + 1) w->end = dq_bench_now(w->x->b);
    if (n > 1) return false;
    w->kv_first = kv_held(w->x);
    w->begin = dq_bench_now(w->x->b);
    return false;
}

static dq_status run_once(generate *x, const generate_subject *s, watch *w, dq_err *err)
{
    dq_generate_prompt prompt[BATCH_MAX];
    const dq_pass pass = {.logit = {.bits = 16}, .math = x->o->math};
    dq_generate_state state;
    dq_scorer scorer = {0};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    for (int i = 0; i < s->batch; i++) {
        int32_t *ids = x->ids + (int64_t)i * s->context;
        dq_bench_ids(ids, s->context, x->m, (uint32_t)i + 1);
        prompt[i] = (dq_generate_prompt){.ids = ids, .n = s->context, .max_new = x->steps + 1};
    }
    *w = (watch){.x = x, .last = s->batch - 1};
    const dq_generate_spec spec = {.prompt = prompt,
                                   .n = s->batch,
                                   .stop = tick,
                                   .stop_arg = w,
                                   .max_rows = (int64_t)s->batch * s->context,
                                   .max_seqs = s->batch};
    if (dq_score_begin(&scorer, x->o->runner, &pass, &x->o->kv, err) == DQ_OK &&
        dq_generate_new(&state, &spec, x->m, a, err) == DQ_OK)
        dq_generate(&scorer, &spec, &state, err);
    dq_score_end(&scorer);
    dq_arena_free(a);
    return err->code;
}

static double step_flops(const generate *x, const generate_subject *s)
{
    return s->batch * (dq_bench_row_flops(x->m) + dq_bench_logits_flops(x->m));
}

static dq_status generate_run_all(generate *x, dq_err *err)
{
    for (int64_t generate_run = -1; generate_run < x->o->runs; generate_run++) {
        for (int i = 0; i < x->n; i++) {
            generate_subject *s = &x->at[i];
            watch w;
            DQ_TRY(run_once(x, s, &w, err));
            dq_progress_set(&x->progress, x->progress.done + 1, NULL);
            const double rate = dq_bench_block_read(&x->block, (w.end - w.begin) / READ_PART);
            const double ops =
                dq_bench_limits_model(x->b, x->o->math.linear, x->m, &x->instruction);
            if (generate_run < 0) continue;
            s->seconds[generate_run] = w.end - w.begin;
            s->read[generate_run] = rate;
            s->peak[generate_run] = ops;
            s->kv_bytes = (w.kv_first + w.kv_last) / 2;
            const double step = s->seconds[generate_run] / (double)x->steps;
            s->share[generate_run] =
                (s->weights.total + s->kv_bytes) / step / s->read[generate_run];
            s->ops[generate_run] = step_flops(x, s) / step / s->peak[generate_run];
        }
    }
    return err->code;
}

/* Shares are medians over runs: a slower machine slows a run and its limits alike. */
typedef struct figures {
    dq_bench_timing step; /* seconds */
    double bytes, rate, read;
    double peak;       /* flops per second; NaN: not known */
    double share, ops; /* of the read, of the peak; NaN: not known */
} figures;

static figures figures_of(const generate *x, const generate_subject *s)
{
    figures f = {.step = dq_bench_timing_of(s->seconds, x->o->runs),
                 .read = (double)NAN,
                 .peak = (double)NAN,
                 .share = (double)NAN,
                 .ops = (double)NAN};
    const double steps = (double)x->steps;
    f.step = (dq_bench_timing){f.step.median / steps, f.step.min / steps, f.step.max / steps};
    f.bytes = s->weights.total + s->kv_bytes;
    f.rate = f.bytes / f.step.median;
    if (x->instruction) f.peak = dq_bench_timing_of(s->peak, x->o->runs).median;
    if (x->instruction) f.ops = dq_bench_timing_of(s->ops, x->o->runs).median;
    if (!x->block.p) return f;
    f.read = dq_bench_timing_of(s->read, x->o->runs).median;
    f.share = dq_bench_timing_of(s->share, x->o->runs).median;
    return f;
}

/* Excludes the block. */
static int64_t peak_bytes(const generate *x)
{
    const int64_t now = dq_os_peak_bytes() - (int64_t)(x->block.p ? x->block.bytes : 0);
    return now > x->peak_bytes ? now : x->peak_bytes;
}

void dq_bench_generate_rows(dq_row_writer *w, const void *generated, int64_t i)
{
    static const dq_bench_column step_of = {.prefix = "step_seconds",
                                            .about = "Seconds of a step, median over runs.",
                                            .title = "ms/step",
                                            .digits = 3,
                                            .scale = 1e3};
    const generate *x = generated;
    const generate_subject *s = x ? &x->at[i] : NULL;
    const figures f = x ? figures_of(x, s) : (figures){.bytes = 0};
    const bool read = x && x->block.p, peak = x && x->instruction;
    char weights[DQ_BENCH_WEIGHTS];
    dq_bench_rows_begin(w, DQ_LIVE(w, x->o), "generate");
    DQ_PUT(w, "context", s->context, "Tokens before.", .title = "context");
    DQ_PUT(w, "batch", s->batch, "Sequences at once.", .title = "batch");
    DQ_PUT(w, "weights", dq_bench_weights(weights, x->m), "How weights are stored.");
    DQ_PUT(w, "bits_per_weight", 8 * s->weights.total / s->weights.weights,
           "Bits per weight of the matrices that a step reads.", .when = DQ_NULL);
    dq_bench_timing_rows(w, &step_of, &f.step);
    DQ_PUT(w, "tokens_per_second", s->batch / f.step.median,
           "Tokens per second, of the median step.", .title = "tokens/s", .digits = 1,
           .when = DQ_NULL);
    DQ_PUT(w, "tokens_per_second_min", s->batch / f.step.max, "Of the slowest.", .title = "least",
           .digits = 1, .when = DQ_NULL);
    DQ_PUT(w, "tokens_per_second_max", s->batch / f.step.min, "Of the fastest.", .title = "most",
           .digits = 1, .when = DQ_NULL);
    if (w->cell)
        DQ_PUT(w, NULL, s->weights.total, NULL, .title = "weights, MiB", .scale = 1.0 / 1048576,
               .digits = 2);
    DQ_PUT(w, "kv_bytes", s->kv_bytes, "Bytes of the KV cache that a step reads.",
           .title = "KV, MiB", .scale = 1.0 / 1048576, .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "bytes_per_second", f.rate, "Stored bytes that a step reads, per second.",
           .title = "GB/s", .scale = 1e-9, .digits = 1, .when = DQ_NULL);
    DQ_PUT(w, "read_bytes_per_second", f.read, "Bytes per second of a plain read; null: not known.",
           .when = DQ_NULL);
    DQ_PUT(w, "share_of_read", f.share, "Of that reached.", .title = read ? "share of read" : NULL,
           .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "flops_per_second", step_flops(x, s) / f.step.median,
           "Multiply-adds with weights (two each) per second.", .when = DQ_NULL);
    DQ_PUT(w, "peak_flops_per_second", f.peak, DQ_BENCH_ABOUT_PEAK, .when = DQ_NULL);
    DQ_PUT(w, "share_of_peak", f.ops, "Of that reached.", .title = peak ? "share of peak" : NULL,
           .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "peak_bytes", peak_bytes(x), "Bytes that the process had at most.");
    DQ_OBJECT(w, "weight_bytes", "Bytes of weights that a step reads.");
    DQ_PUT(w, "total", s->weights.total, "All.", .when = DQ_NULL);
    DQ_PUT(w, "codes", s->weights.codes, "Codes.", .when = DQ_NULL);
    DQ_PUT(w, "scales", s->weights.scales, "Scales.", .when = DQ_NULL);
    DQ_PUT(w, "zeros", s->weights.zeros, "Zero points.", .when = DQ_NULL);
    DQ_PUT(w, "dense", s->weights.dense, "Values.", .when = DQ_NULL);
    dq_row_end(w);
}

static dq_status report(const generate *x, dq_err *err)
{
    dq_bench_report r;
    DQ_TRY(dq_bench_report_begin(&r, x->o, err));
    const dq_bench_settings set = {.runs = true,
                                   .peaks = true,
                                   .instruction = x->instruction,
                                   .num = x->o->math.linear,
                                   .kv_bits = x->o->kv.k_bits,
                                   .read_bytes = x->block.p ? (int64_t)x->block.bytes : 0,
                                   .generate = x->steps};
    dq_bench_report_settings(&r, &set);
    for (int i = 0; i < x->n; i++) dq_bench_report_add(&r, dq_bench_generate_rows, x, i, err);
    if (!x->o->json) {
        char weights[DQ_BENCH_WEIGHTS], peak[DQ_BENCH_PEAK];
        printf("%s: decoding with %s in %s on %s, %lld tokens a run, medians of %lld run%s\n"
               "GB/s: stored bytes of the weights and KV that a step reads, over its time",
               x->m->name, dq_bench_weights(weights, x->m), x->o->math_word.text, x->b->device,
               (long long)x->steps, (long long)x->o->runs, x->o->runs == 1 ? "" : "s");
        if (x->block.p)
            printf("; a plain read of %zu MiB reaches %.1f", x->block.bytes >> 20,
                   figures_of(x, &x->at[0]).read * 1e-9);
        if (x->instruction)
            printf("\nshare of peak: multiply-adds with weights, over %s on registers alone",
                   dq_bench_peak(peak, x->o->math.linear, x->instruction));
        printf("\n\n");
    }
    dq_bench_report_print(&r, err);
    dq_bench_report_end(&r);
    return err->code;
}

static dq_status check_lengths(const generate *x, dq_err *err)
{
    const int most = x->m->max_positions;
    for (int i = 0; i < x->contexts.n; i++) {
        if (most > 0 && x->contexts.at[i] + x->steps > most)
            return dq_fail(err, DQ_MISMATCH,
                           "%s: has %d positions. Lower --context or --new-tokens", x->m->path,
                           most);
    }
    return DQ_OK;
}

static dq_status prepare(generate *x, dq_err *err)
{
    const size_t runs = (size_t)x->o->runs;
    const int n = x->contexts.n * x->batches.n;
    int context = 0, batch = 0;
    double weights = 0;
    x->at = dq_block_new((size_t)n, sizeof *x->at, err);
    for (int i = 0; x->at && i < n; i++) {
        generate_subject *s = &x->at[x->n++];
        s->context = x->contexts.at[i / x->batches.n];
        s->batch = x->batches.at[i % x->batches.n];
        s->weights = dq_bench_bytes_of(x->m, s->batch);
        s->seconds = dq_block_new(runs, sizeof *s->seconds, err);
        s->read = dq_block_new(runs, sizeof *s->read, err);
        s->share = dq_block_new(runs, sizeof *s->share, err);
        s->peak = dq_block_new(runs, sizeof *s->peak, err);
        s->ops = dq_block_new(runs, sizeof *s->ops, err);
        context = s->context > context ? s->context : context;
        batch = s->batch > batch ? s->batch : batch;
        weights = fmax(weights, s->weights.total);
    }
    if (err->code != DQ_OK) return err->code;
    x->ids = dq_block_new((size_t)batch * (size_t)context, sizeof *x->ids, err);
    x->peak_bytes = dq_os_peak_bytes();
    if (!x->ids) return err->code;
    dq_bench_block_new(&x->block, x->b, weights);
    if (x->block.bytes && !x->block.p)
        dq_logger_warn(&x->o->logger,
                       "out of memory (%zu bytes for a plain read): the share of read is missing",
                       x->block.bytes);
    return err->code;
}

static void generate_run(generate *x, dq_err *err)
{
    x->m = x->o->model;
    x->b = x->o->backend;
    if (dq_bench_open_runner(x->o, err) == DQ_OK && check_lengths(x, err) == DQ_OK &&
        prepare(x, err) == DQ_OK) {
        dq_progress_begin(&x->progress, &x->o->logger, "timed",
                          (double)x->n * (double)(x->o->runs + 1));
        dq_progress_set(&x->progress, 0, NULL);
        generate_run_all(x, err);
        dq_progress_end(&x->progress);
    }
    if (err->code == DQ_OK) report(x, err);
    for (int i = 0; i < x->n; i++) {
        double *const all[] = {x->at[i].seconds, x->at[i].read, x->at[i].share, x->at[i].peak,
                               x->at[i].ops};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) dq_block_free(all[k]);
    }
    dq_bench_block_free(&x->block);
    dq_block_free(x->ids);
    dq_block_free(x->at);
}

static const dq_usage generate_usage = {
    .name = "bench generate",
    .synopsis = "MODEL [options]",
    .about =
        "Times the whole model decoding tokens one by one, as dq eval does. Shares compare the "
        "stored bytes of the weights, scales and KV that a step reads, over its time, with a "
        "plain read of memory (a block of 128 MiB to 1 GiB, for a quarter of the time), and "
        "its multiply-adds with the peak, in turns. One thread is timed by processor time, "
        "which other work on the machine disturbs less.",
    .examples = "  dq bench generate model4.h5 --new-tokens 64 --batch 1,4 --math int8\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one MODEL"};

dq_status dq_cmd_bench_generate(int argc, char **argv, dq_err *err)
{
    dq_bench o = dq_bench_defaults;
    generate x = {.o = &o, .steps = 64};
    const char *contexts = "128", *batches = "1";
    const dq_opt opts[] = {
        dq_opt_int("new-tokens", "N", &x.steps, 1, 100000,
                   "tokens that every sequence decodes (default 64)"),
        dq_opt_text("context", "T[,T...]", &contexts, "tokens of the prompts (default 128)"),
        dq_opt_text("batch", "B[,B...]", &batches,
                    "sequences that are decoded together, 1 to 8 (default 1)"),
        DQ_BENCH_MATH(o),
        DQ_BENCH_RUNS(o),
        DQ_BENCH_RUN(o),
        {0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &generate_usage, err));
    if (args.help) return DQ_OK;
    DQ_TRY(dq_bench_list_read(&x.contexts, contexts, "context", 1 << 24, err));
    DQ_TRY(dq_bench_list_read(&x.batches, batches, "batch", BATCH_MAX, err));
    if (dq_bench_open(&o, generate_usage.name, args.item[0], err) == DQ_OK) generate_run(&x, err);
    dq_bench_close(&o);
    return err->code;
}
