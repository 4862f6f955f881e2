/* Benchmarks of the whole model, and what they know of its weights and of the machine's limits.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "cmds/bench/inside.h"
#include "cmds/cli/cli.h"
#include "cmds/cli/kv_report.h"
#include "cmds/command.h"
#include "eval/score.h"
#include "settings/cache_options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Weights are asked for their datasets, so that a format counts itself. */
typedef struct stored_bytes {
    double codes, scales;
    double zeros; /* zero points and indices of groups */
    double dense; /* without codes */
    double total;
    double weights; /* numbers in those that products read */
} stored_bytes;

/* Adds `share` of the datasets of w. */
static void add_weight(stored_bytes *to, const dq_weight *w, double share)
{
    if (w->rows == 0) return;
    const dq_weight_format *f = dq_weight_format_of(w);
    for (int i = 0; i < f->n_datasets; i++) {
        const dq_dataset dataset = dq_weight_dataset(w, i);
        const double bytes = share * (double)dq_dataset_bytes(&dataset);
        const char *encoding = f->dataset[i].encoding;
        if (!f->is_coded)
            to->dense += bytes;
        else if (f->dataset[i].is_codes)
            to->codes += bytes;
        else if (strcmp(encoding, "zero") == 0)
            to->zeros += bytes;
        else
            to->scales += bytes;
    }
}

static void add_product(stored_bytes *to, const dq_weight *w, const float *bias)
{
    add_weight(to, w, 1);
    to->weights += (double)w->rows * (double)w->cols;
    if (bias) to->dense += (double)w->rows * sizeof *bias;
}

/* Stored bytes; a device's own layout may take a little more. Counts every weight that products
 * read once, gains and biases, and looked-up rows of the embedding; a head that shares its memory
 * counts whole. */
static stored_bytes stored_bytes_of(const dq_model *m, int rows)
{
    stored_bytes sum = {0};
    const double gain = (double)m->dim * sizeof *m->norm_out;
    add_weight(&sum, &m->embed, (double)rows / (double)m->embed.rows);
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *const w[] = {&l->q,    &l->k,  &l->v,    &l->o,
                                      &l->gate, &l->up, &l->down, &l->lambda_proj};
        const float *const bias[] = {l->q_bias,    l->k_bias,  l->v_bias,    l->o_bias,
                                     l->gate_bias, l->up_bias, l->down_bias, NULL};
        for (size_t k = 0; k < sizeof w / sizeof *w; k++) add_product(&sum, w[k], bias[k]);
        sum.dense += (l->norm_attn_out ? 4 : 2) * gain;
    }
    sum.dense += gain;
    add_product(&sum, &m->head, NULL);
    sum.total = sum.codes + sum.scales + sum.zeros + sum.dense;
    return sum;
}

/* "F32", "W4 in groups of 32", "W8, one group a row", "W4 in groups of 32, zero points". */
enum { WEIGHTS = 96 };
static const char *weights_text(char buf[WEIGHTS], const dq_model *m)
{
    static const char *const one[] = {"row", "tensor"};
    const char *group = m->weight_group;
    if (m->weight_bits == 16) return dq_dtypes[m->layer[0].gate.dtype].name;
    int n = m->weight_bits ? snprintf(buf, WEIGHTS, "W%d", m->weight_bits)
                           : snprintf(buf, WEIGHTS, "W of several widths");
    if (strcmp(group, one[0]) == 0 || strcmp(group, one[1]) == 0)
        n += snprintf(buf + n, WEIGHTS - (size_t)n, ", one group a %s", group);
    else
        n += snprintf(buf + n, WEIGHTS - (size_t)n, " in groups of %s",
                      strcmp(group, "mixed") == 0 ? "several sizes" : group);
    if (m->layer[0].gate.zero) snprintf(buf + n, WEIGHTS - (size_t)n, ", zero points");
    return buf;
}

/* A copy of the backend's table with clocks around operations replaces it until the benchmark ends.
 * An operation knows only its backend, so the copy's data are a variable of this file. */
typedef struct clock_sum {
    double attention; /* seconds: attend, and the first sweep of attn_absmax */
    double products;  /* matmul and logprob */
} clock_sum;

static struct {
    const dq_ops *of;
    dq_ops copy;
    clock_sum sum;
} clock_table;

static void matmul(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w, const float *bias,
                   dq_num num)
{
    const double start = dq_backend_seconds(b);
    clock_table.of->matmul(b, dst, src, w, bias, num);
    clock_table.sum.products += dq_backend_seconds(b) - start;
}

static void logprob(dq_backend *b, double *logp, int32_t *top1, dq_mat hidden,
                    const dq_weight *head, const int32_t *target, dq_num num)
{
    const double start = dq_backend_seconds(b);
    clock_table.of->logprob(b, logp, top1, hidden, head, target, num);
    clock_table.sum.products += dq_backend_seconds(b) - start;
}

static void attn_absmax(dq_backend *b, float *absmax, const dq_attend_args *args)
{
    const double start = dq_backend_seconds(b);
    clock_table.of->attn_absmax(b, absmax, args);
    clock_table.sum.attention += dq_backend_seconds(b) - start;
}

static void attend(dq_backend *b, dq_mat dst, const dq_attend_args *args)
{
    const double start = dq_backend_seconds(b);
    clock_table.of->attend(b, dst, args);
    clock_table.sum.attention += dq_backend_seconds(b) - start;
}

/* False, without a change: operations are asynchronous. */
static bool clocked_begin(dq_backend *b)
{
    if (strcmp(b->ops->name, "cpu") != 0) return false;
    clock_table.of = b->ops;
    clock_table.copy = *b->ops;
    clock_table.copy.matmul = matmul;
    clock_table.copy.logprob = logprob;
    clock_table.copy.attn_absmax = attn_absmax;
    clock_table.copy.attend = attend;
    clock_table.sum = (clock_sum){0};
    b->ops = &clock_table.copy;
    return true;
}

/* What has accumulated since the last call. */
static clock_sum clocked_take(void)
{
    const clock_sum sum = clock_table.sum;
    clock_table.sum = (clock_sum){0};
    return sum;
}

/* The highest peak of a model's products, whose kernels differ by stored form. */
static double model_peak(dq_backend *b, dq_num num, const dq_model *m, const char **instruction)
{
    enum { KERNELS = 8 };
    const char *seen[KERNELS];
    int n = 0;
    double most = (double)NAN;
    *instruction = NULL;
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            const char *kernel = b->ops->matmul_kernel(b, all[k], num), *name;
            int at = 0;
            while (at < n && seen[at] != kernel) at++;
            if (!kernel || at < n || n == KERNELS) continue;
            seen[n++] = kernel;
            const double ops = dq_bench_limits_ops(b, num, all[k], &name);
            if (!name || ops <= most) continue; /* NaN is exceeded by everything */
            most = ops;
            *instruction = name;
        }
    }
    return most;
}

/* n tokens, with visible query-key pairs of every map and value products of every output head. */
static double prefill_flops(const dq_model *m, double n)
{
    const dq_head_order *a = &m->map;
    const double attention = 2.0 * a->head_dim * (a->n_q + (double)a->n_out * a->n_slabs);
    double pairs = 0;
    for (int l = 0; l < m->n_layers; l++) pairs += dq_bench_pairs(m->layer[l].attn.window, n);
    return dq_bench_row_flops(m) * n + attention * pairs + dq_bench_logits_flops(m);
}

/* ---- Prefill ----
 * Dq bench prefill: one prompt of each length through the whole model, beside one dense product
 * and the peak of the processor. The dense product is timed once, before all lengths; the peak
 * after every run, so that both see the same machine, and compared with as the median of these. */

enum { SECONDS, TIMES, ATTENTION, PRODUCTS, PEAK, PREFILL_COLUMNS }; /* PEAK: of thing 0 */

typedef struct prefill {
    dq_bench o;
    double product_flops; /* multiply-adds count as two, per second */
    bool clocked;         /* the parts of a pass are known */
} prefill;

static dq_status prefill_open(void *arg, dq_err *err)
{
    prefill *x = arg;
    dq_bench *o = &x->o;
    DQ_TRY(dq_bench_open_runner(o, err));
    for (int i = 0; i < o->length.n; i++) {
        if (o->length.at[i] > o->model->max_positions)
            dq_logger_warn(&o->logger,
                           "%s: --tokens %d is more than the %d positions that the model has; the "
                           "time is that of as many rows, but no text of this model is as long",
                           o->model->name, o->length.at[i], o->model->max_positions);
    }
    o->n = o->n_logits;
    DQ_TRY(dq_bench_product_rate(&x->product_flops, o->backend, o->model, o->math.linear, err));
    x->clocked = clocked_begin(o->backend);
    return DQ_OK;
}

static dq_status prefill_step(void *arg, int i, dq_err *err)
{
    prefill *x = arg;
    const dq_bench *o = &x->o;
    double *seconds = dq_bench_sample(o, i, SECONDS);
    clocked_take();
    DQ_TRY(dq_bench_prompt_run(seconds, o, o->logit[i], err));
    const clock_sum parts = clocked_take();
    *dq_bench_sample(o, i, TIMES) = *seconds / *dq_bench_sample(o, 0, SECONDS);
    *dq_bench_sample(o, i, ATTENTION) = x->clocked ? parts.attention / *seconds : (double)NAN;
    *dq_bench_sample(o, i, PRODUCTS) = x->clocked ? parts.products / *seconds : (double)NAN;
    return DQ_OK;
}

static dq_status prefill_ended(void *arg, dq_err *err)
{
    prefill *x = arg;
    *dq_bench_sample(&x->o, 0, PEAK) =
        model_peak(x->o.backend, x->o.math.linear, x->o.model, &x->o.instruction);
    return err->code;
}

/* One rounding of the length at hand. */
void dq_bench_prefill_rows(dq_row_writer *w, const void *prefilled, int64_t i)
{
    const prefill *x = prefilled;
    const dq_bench *o = x ? &x->o : NULL;
    double s = 0, peak = 0, attention = 0, products = 0, flops = 0;
    const bool several = o && o->n_logits > 1, clocked = x && x->clocked;
    char weights[WEIGHTS], logits[DQ_BENCH_LOGIT_NAME];
    if (x) {
        s = dq_bench_timing_of(o, i, SECONDS).median;
        peak = dq_bench_timing_of(o, 0, PEAK).median;
        attention = dq_bench_timing_of(o, i, ATTENTION).median;
        products = dq_bench_timing_of(o, i, PRODUCTS).median;
        flops = prefill_flops(o->model, o->at) / s;
    }
    dq_bench_rows_begin(w, o, "prefill");
    DQ_PUT(w, "tokens", o->at, "Tokens of the prompt.", .title = "tokens");
    DQ_PUT(w, "weights", weights_text(weights, o->model), "How weights are stored.");
    if (several) DQ_CELL(w, dq_bench_logit_name(logits, o->logit[i]), "logits");
    DQ_BENCH_TIMING(w, o, i, TIMES, "times_first",
                    "Time over that of the unrounded pass, median over runs.",
                    .title = several ? "times" : NULL, .digits = 3);
    DQ_BENCH_TIMING(w, o, i, SECONDS, "seconds", "Seconds of a pass, median over runs.",
                    .title = "median s", .min = "min s", .digits = 3);
    DQ_PUT(w, "tokens_per_second", o->at / s, "Tokens per second.", .title = "tokens/s",
           .when = DQ_NULL);
    DQ_PUT(w, "flops_per_second", flops, "Multiply-adds (two each) per second.", .title = "GFLOP/s",
           .scale = 1e-9, .digits = 1, .when = DQ_NULL);
    DQ_PUT(w, "matmul_flops_per_second", x->product_flops, "The same of one dense product.",
           .when = DQ_NULL);
    DQ_PUT(w, "share_of_matmul", flops / x->product_flops, "Of that reached.",
           .title = "share of matmul", .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "peak_flops_per_second", peak, DQ_BENCH_ABOUT_PEAK, .when = DQ_NULL);
    DQ_PUT(w, "share_of_peak", flops / peak, "Of that reached.",
           .title = o && o->instruction ? "share of peak" : NULL, .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "share_of_products", products, "Share of the time in products; null: not clocked.",
           .title = clocked ? "products" : NULL, .digits = 3, .when = DQ_NULL);
    DQ_PUT(w, "share_of_attention", attention, "Share of the time in attention; null: not clocked.",
           .title = clocked ? "attention" : NULL, .digits = 3, .when = DQ_NULL);
    if (clocked) DQ_CELL(w, 1 - products - attention, "rest", .digits = 3);
    dq_bench_logit_rows(w, DQ_LIVE(w, &o->logit[i]));
    DQ_CELL(w, (double)dq_os_peak_bytes(), "memory, MiB", .scale = 1.0 / 1048576);
    DQ_PUT(w, "peak_bytes", dq_os_peak_bytes(), "Bytes that the process had at most.");
}

static void prefill_heading(const void *arg)
{
    const prefill *x = arg;
    const dq_bench *o = &x->o;
    const dq_weight *gate = &o->model->layer[0].gate;
    char peak[DQ_BENCH_PEAK];
    printf("%s: prefill in %s on %s; one dense product %dx%lldx%lld reaches %.1f GFLOP/s\n",
           o->model->name, o->math_word.text, o->backend->device, DQ_BENCH_PRODUCT_ROWS,
           (long long)gate->rows, (long long)gate->cols, x->product_flops * 1e-9);
    if (o->instruction)
        printf("peak: %s on registers alone, %.1f GFLOP/s\n",
               dq_bench_peak(peak, o->math.linear, o->instruction),
               dq_bench_timing_of(o, 0, PEAK).median * 1e-9);
    if (x->clocked) printf("products, attention, rest: shares of a pass\n");
    if (o->n_logits > 1) printf("times: against the pass with unrounded logits, run by run\n");
    putchar('\n');
}

static const dq_bench_kind prefill_kind = {
    .usage = {.name = "bench prefill",
              .synopsis = "MODEL [options]",
              .about =
                  "Times one prompt of each length through the whole model, up to the next token's "
                  "log-probabilities. With --logit-bits, passes that round attention logits take "
                  "turns with one that does not. Shares compare the rate with that of one dense "
                  "matrix product of the same model, and with the peak: multiply-adds of the "
                  "widest instruction in the arithmetic of --math, on registers alone, timed after "
                  "every run. In f32, products with packed weights are sums of integers and may "
                  "exceed the peak. One thread is timed by processor time, which other work on the "
                  "machine disturbs less.",
              .examples = "  dq bench prefill calib/pair/diffllama --tokens 128,512\n"
                          "  dq bench prefill model --tokens 2048 --logit-bits 8,4 "
                          "--logit-granularity per-row,per-tile\n"},
    .option = "tokens",
    .longest = 1 << 20,
    .columns = PREFILL_COLUMNS,
    .extra = 1,
    .power = 1,
    .peaks = true,
    .open = prefill_open,
    .prompts = true,
    .step = prefill_step,
    .ended = prefill_ended,
    .rows = dq_bench_prefill_rows,
    .heading = prefill_heading};

dq_status dq_cmd_bench_prefill(int argc, char **argv, dq_err *err)
{
    prefill x = {.o = DQ_BENCH(prefill_kind, &x)};
    x.o.lengths = "128,512";
    const dq_opt opts[] = {
        dq_opt_text("tokens", "N[,N...]", &x.o.lengths, "prompt lengths (default 128,512)"),
        DQ_BENCH_LOGIT(x.o),
        DQ_BENCH_HOW(x.o),
        {0}};
    return dq_bench_main(&x.o, argc, argv, opts, err);
}

/* `weights` bytes, but at least four times the last-level cache and 128 MiB, at most 1 GiB in all.
 * b must have no error. */
static void block_new(dq_bench_block *block, dq_backend *b, double weights)
{
    const double least = 1 << 27, most = 1 << 30, cache = 4 * (double)dq_os_cache_bytes();
    *block = (dq_bench_block){.b = b};
    if (!b->ops->peak_read) return;
    block->bytes = (size_t)fmin(fmax(weights, fmax(cache, least)), most) / 4096 * 4096;
    block->p = b->ops->alloc(b, block->bytes);
    dq_err none = {0};
    if (block->p)
        memset(block->p, 1, block->bytes); /* memory that was never written is one page of zeros */
    else
        dq_backend_sync(b, &none); /* the measurement goes on without it */
}

/* Bytes per second of reading it on all threads for `seconds`; NaN without one. Evicts everything
 * else from the caches. */
static double block_read(const dq_bench_block *block, double seconds)
{
    if (!block->p) return (double)NAN;
    const double start = dq_backend_seconds(block->b);
    double bytes = 0, spent;
    do {
        block->b->ops->peak_read(block->b, block->p, block->bytes);
        bytes += (double)block->bytes;
        spent = dq_backend_seconds(block->b) - start;
    } while (spent < seconds);
    return bytes / spent;
}

/* ---- Decode ----
 * Dq bench decode: attention of single tokens after a long context, for several KV caches, with
 * nothing in the processor's caches, and the whole token beside it. One cache per kind of numbers
 * is filled with invented keys and values, which cost no prefill. Then the caches take turns, a
 * token each, and so does a plain read of memory. */

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

enum { TOKEN, ATTEND, READ, DECODE_COLUMNS }; /* READ: bytes per second */

typedef struct decode {
    dq_bench o;
    dq_words types; /* each a dq_kv_dense: each variant has one cache of each */
    struct {
        dq_runner *runner;
        int32_t seq, pos;
    } at[MAX_SUBJECTS]; /* of the context at hand */
    float *k, *v;       /* backend memory: CHUNK rows of keys and values, one row of the others */
    float *q, *y, *lambda;
    double weight_bytes;
} decode;

static const variant *variant_of(const decode *x, int i)
{
    return &variants[i / x->types.n];
}

static dq_math math_of(const decode *x, int i)
{
    dq_math math = dq_backend_math(x->o.backend, variant_of(x, i)->num);
    math.linear = DQ_NUM_F32;
    return math;
}

static dq_status spec_of(dq_kv_spec *out, decode *x, int i, dq_err *err)
{
    dq_kv_config c = dq_kv_config_plain;
    c.k_bits = variant_of(x, i)->k_bits;
    c.v_bits = variant_of(x, i)->v_bits;
    c.quant = variant_of(x, i)->quant;
    c.dense = (dq_kv_dense)x->types.at[i % x->types.n];
    return dq_kv_options_fit(out, &c, x->o.model, math_of(x, i), x->o.backend, err);
}

static dq_status decode_open(void *arg, dq_err *err)
{
    decode *x = arg;
    dq_bench *o = &x->o;
    dq_backend *b = o->backend;
    const dq_head_order *map = &o->model->map;
    const int64_t d = map->head_dim,
                  sizes[] = {CHUNK * map->n_kv * d, CHUNK * map->n_kv * d, map->n_q * d,
                             map->n_out * map->n_slabs * d, map->n_out};
    float **const all[] = {&x->k, &x->v, &x->q, &x->y, &x->lambda};
    o->n = N_VARIANTS * x->types.n;
    x->weight_bytes = stored_bytes_of(o->model, 1).total;
    if (!b->ops->peak_read)
        return dq_fail(err, DQ_MISMATCH,
                       "dq bench decode takes shares of what the processor reads, not of %s. Use "
                       "--device cpu",
                       b->device);
    DQ_TRY(dq_bench_check_positions(o, o->runs + 1, err));
    block_new(&o->block, b, 0);
    if (!o->block.p) /* it also empties the caches */
        return dq_fail(err, DQ_RESOURCE, "out of memory (%zu bytes for a plain read)",
                       o->block.bytes);
    for (int i = 0; i < 5 && err->code == DQ_OK; i++) *all[i] = dq_bench_floats(b, sizes[i], err);
    for (int i = 0; i < o->n && err->code == DQ_OK; i++) {
        dq_kv_spec spec;
        if (spec_of(&spec, x, i, err) == DQ_OK)
            dq_kv_report_note_routes(&o->logger, b, o->model, math_of(x, i), &spec);
    }
    return err->code;
}

static void decode_close(void *arg)
{
    const decode *x = arg;
    float *const all[] = {x->k, x->v, x->q, x->y, x->lambda};
    for (int i = 0; x->o.backend && i < 5; i++) x->o.backend->ops->free(x->o.backend, all[i]);
}

/* Random keys and values at positions 0 .. context-1 of every layer of every cache. */
static dq_status decode_begin(void *arg, dq_err *err)
{
    decode *x = arg;
    const dq_bench *o = &x->o;
    const dq_model *m = o->model;
    dq_backend *b = o->backend;
    const int64_t cols = (int64_t)m->map.n_kv * m->map.head_dim;
    for (int i = 0; i < o->n; i++) {
        dq_kv_spec spec;
        int32_t ids[CHUNK] = {0}, pos[CHUNK];
        DQ_TRY(spec_of(&spec, x, i, err));
        DQ_TRY(dq_runner_new(&x->at[i].runner, m, b, &spec, err));
        dq_kv *kv = dq_runner_kv(x->at[i].runner);
        x->at[i].seq = b->ops->kv_seq_new(b, kv);
        x->at[i].pos = o->at;
        for (int32_t first = 0; first < o->at; first += CHUNK) {
            const int64_t left = o->at - first, n = left < CHUNK ? left : CHUNK, cu[2] = {0, n};
            for (int32_t j = 0; j < n; j++) pos[j] = first + j;
            const dq_batch batch = {.n_seq = 1,
                                    .n_rows = n,
                                    .cu_rows = cu,
                                    .seq = &x->at[i].seq,
                                    .ids = ids,
                                    .pos = pos};
            for (int l = 0; l < m->n_layers; l++) {
                b->ops->kv_append(b, kv, l, &batch, (dq_mat){x->k, n, cols},
                                  (dq_mat){x->v, n, cols}, DQ_NUM_F32);
                b->ops->kv_compact(b, kv, l, &batch, m->layer[l].attn.window);
            }
        }
        DQ_TRY(dq_backend_sync(b, err));
        dq_progress_set(&x->o.progress, o->progress.done + 1, NULL);
    }
    return err->code;
}

static void decode_end(void *arg)
{
    decode *x = arg;
    for (int i = 0; i < x->o.n; i++) {
        dq_runner_free(x->at[i].runner);
        x->at[i].runner = NULL;
    }
}

static dq_status decode_step(void *arg, int i, dq_err *err)
{
    decode *x = arg;
    const dq_bench *o = &x->o;
    const dq_model *m = o->model;
    dq_backend *b = o->backend;
    dq_runner *r = x->at[i].runner;
    const dq_math math = math_of(x, i);
    const int64_t cu[2] = {0, 1};
    int32_t pos = x->at[i].pos, id = (int32_t)((pos * 7919) % m->vocab), top1;
    const dq_batch batch = {
        .n_seq = 1, .n_rows = 1, .cu_rows = cu, .seq = &x->at[i].seq, .ids = &id, .pos = &pos};
    const dq_pass pass = {.logit = {.bits = 16}, .math = math};
    dq_mat hidden;
    double logp;
    const double start = dq_backend_seconds(b);
    DQ_TRY(dq_runner_pass(r, &batch, &pass, &hidden, err));
    b->ops->logprob(b, &logp, &top1, hidden, &m->head, &id, DQ_NUM_F32);
    DQ_TRY(dq_backend_sync(b, err));
    *dq_bench_sample(o, i, TOKEN) = dq_backend_seconds(b) - start;
    *dq_bench_sample(o, i, READ) = block_read(&o->block, 0);
    /* Attention of all layers for the position after the last token: earlier ones may not read what
     * is compacted. */
    const dq_head_order *map = &m->map;
    const int64_t width = (int64_t)map->n_out * map->n_slabs * map->head_dim;
    pos = ++x->at[i].pos;
    const double again = dq_backend_seconds(b);
    for (int l = 0; l < m->n_layers; l++) {
        const dq_attend_args args = {.attn = &m->layer[l].attn,
                                     .batch = &batch,
                                     .kv = dq_runner_kv(r),
                                     .layer = l,
                                     .q = {x->q, 1, (int64_t)map->n_q * map->head_dim},
                                     .lambda = {x->lambda, 1, map->n_out},
                                     .logit = {.bits = 16},
                                     .math = math};
        b->ops->attend(b, (dq_mat){x->y, 1, width}, &args);
    }
    b->ops->sync(b);
    *dq_bench_sample(o, i, ATTEND) = dq_backend_seconds(b) - again;
    DQ_TRY(dq_score_check_logp(m, &logp, 1, err));
    return dq_backend_sync(b, err);
}

/* Bytes that a runner's cache holds, which attention reads once per token. */
static double held(const dq_bench *o, dq_runner *r)
{
    const dq_kv_bytes bytes = o->backend->ops->kv_bytes(o->backend, dq_runner_kv(r));
    return (double)(bytes.codes + bytes.scales + bytes.unquantized);
}

void dq_bench_decode_rows(dq_row_writer *w, const void *decoded, int64_t i)
{
    const decode *x = decoded;
    const dq_bench *o = x ? &x->o : NULL;
    double bytes = 0, token = 0, read = 0, plain = 0, rate = 0;
    dq_bench_timing attend = {0};
    char bits[DQ_KV_TEXT];
    if (x) {
        plain = dq_bench_timing_of(o, 0, ATTEND).median;
        token = dq_bench_timing_of(o, i, TOKEN).median;
        attend = dq_bench_timing_of(o, i, ATTEND);
        read = dq_bench_timing_of(o, i, READ).median;
        bytes = held(o, x->at[i].runner);
        rate = bytes / attend.median;
        dq_kv_codes_text(bits, dq_runner_kv_spec(x->at[i].runner));
    }
    dq_bench_rows_begin(w, o, "decode");
    DQ_PUT(w, "context", o->at, "Tokens before.", .title = "context");
    DQ_PUT(w, "kv_bits", bits, "Widths of keys and values.", .title = "KV bits");
    DQ_PUT(w, "attention_math", dq_num_name[variant_of(x, (int)i)->num], "Arithmetic of attention.",
           DQ_NUM_WORDS, .title = "math");
    DQ_PUT(w, "kv_bytes", bytes, "Bytes of the KV cache.", .title = "KV, MiB",
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
    DQ_PUT(w, "token_seconds_median", token, "Seconds of a token through the whole model.",
           .title = "ms/token", .scale = 1e3, .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "tokens_per_second", 1 / token, "Their inverse.", .when = DQ_NULL);
}

static void decode_heading(const void *arg)
{
    const decode *x = arg;
    printf("%s: attention of one token on %s, medians of %lld tokens; times: against the first\n"
           "ms/token: the whole model, projections in f32\n\n",
           x->o.model->name, x->o.backend->device, (long long)x->o.runs);
}

static const dq_bench_kind decode_kind = {
    .usage = {.name = "bench decode",
              .synopsis = "MODEL [options]",
              .about = "Times attention of single tokens after a context, with nothing in the "
                       "processor's caches, for several widths of the KV cache in turn. Shares are "
                       "of what a plain read of memory reaches in between. One thread is timed by "
                       "processor time, which other work on the machine disturbs less.",
              .examples = "  dq bench decode model --new-tokens 20 --context 2048,16384\n"},
    .option = "context",
    .longest = 1 << 24,
    .columns = DECODE_COLUMNS,
    .extra = 2,
    .tokens = true,
    .open = decode_open,
    .close = decode_close,
    .begin = decode_begin,
    .end = decode_end,
    .step = decode_step,
    .rows = dq_bench_decode_rows,
    .heading = decode_heading};

dq_status dq_cmd_bench_decode(int argc, char **argv, dq_err *err)
{
    decode x = {.o = DQ_BENCH(decode_kind, &x), .types = {.at = {DQ_KV_DENSE_AUTO}, .n = 1}};
    x.o.lengths = "1024";
    x.o.runs = 20;
    const dq_opt opts[] = {
        dq_opt_int("new-tokens", "N", &x.o.runs, 1, 100000, "tokens that are timed (default 20)"),
        dq_opt_text("context", "T[,T...]", &x.o.lengths,
                    "invented tokens before them (default 1024)"),
        dq_opt_words("kv-dense-type", "LIST", &x.types, dq_kv_dense_name, DQ_KV_DENSE_TYPES + 1,
                     "what is not coded of the caches: {words}; several: each cache with each "
                     "(default auto: f16, or bf16 where the model's weights are)"),
        DQ_BENCH_RUN(x.o),
        {0}};
    return dq_bench_main(&x.o, argc, argv, opts, err);
}

/* ---- Generate ----
 * Dq bench generate: decoding with the whole model, by the passes of dq eval (eval/kinds.h), beside
 * a plain read of memory. Every context with every batch takes its turn, a plain read after each;
 * prompts are computed anew in every run and are not timed. dq_generate asks after every new token
 * whether a sequence shall end: what the scorer has counted is read there, after the last
 * sequence's first token, which the prompt's pass gave, and after its last one. */

/* A plain read takes part of the time of its run: 30 ms after seconds would measure other load on
 * the machine. */
enum { READ_PART = 4 };
/* A step's seconds; bytes and flops per second of its limits; shares of these. */
enum { STEP, READ_RATE, OPS_PEAK, OF_READ, OF_PEAK, GENERATE_COLUMNS };

typedef struct subject {
    int context, batch;
    double kv_bytes;  /* held, the mean of the first and the last step */
    int64_t computed; /* rows of all steps, as dq eval counts them */
    stored_bytes weights;
} subject;

typedef struct generate {
    dq_bench o;         /* new_tokens: timed passes of one row a sequence */
    int64_t peak_bytes; /* of the process, before the block */
    int32_t *ids;       /* [batch][context], the largest of both */
    subject at[DQ_BENCH_LIST * DQ_BENCH_LIST];
} generate;

static dq_status generate_open(void *arg, dq_err *err)
{
    generate *x = arg;
    dq_bench *o = &x->o;
    int context = 0, batch = 0;
    double weights = 0;
    DQ_TRY(dq_bench_open_runner(o, err));
    DQ_TRY(dq_bench_check_positions(o, o->new_tokens, err));
    for (int i = 0; i < o->length.n * o->batch.n; i++) {
        subject *s = &x->at[o->n++];
        s->context = o->length.at[i / o->batch.n];
        s->batch = o->batch.at[i % o->batch.n];
        s->weights = stored_bytes_of(o->model, s->batch);
        context = s->context > context ? s->context : context;
        batch = s->batch > batch ? s->batch : batch;
        weights = fmax(weights, s->weights.total);
    }
    x->ids = dq_alloc(o->a, (size_t)batch * (size_t)context, sizeof *x->ids, err);
    x->peak_bytes = dq_os_peak_bytes();
    if (!x->ids) return err->code;
    block_new(&o->block, o->backend, weights);
    if (o->block.bytes && !o->block.p)
        dq_logger_warn(&o->logger,
                       "out of memory (%zu bytes for a plain read): the share of read is missing",
                       o->block.bytes);
    return err->code;
}

typedef struct watch {
    const generate *x;
    dq_scorer scorer;
    int64_t last; /* sequence */
    dq_score_work first, end;
    double kv_first, kv_last;
} watch;

/* All sequences stay open until the last step. */
static bool tick(void *arg, int64_t prompt, const int32_t *ids, int64_t n)
{
    watch *w = arg;
    const dq_bench *o = &w->x->o;
    (void)ids;
    if (prompt != w->last) return false;
    if (n == 1) w->first = w->scorer.work;
    if (n == 1) w->kv_first = held(o, o->runner);
    if (n == o->new_tokens) w->kv_last = held(o, o->runner);
    if (n == o->new_tokens + 1) w->end = w->scorer.work;
    return false;
}

static dq_status decode_once(watch *w, const subject *s, dq_err *err)
{
    const generate *x = w->x;
    const dq_bench *o = &x->o;
    dq_generate_prompt prompt[DQ_BENCH_BATCH];
    const dq_pass pass = {.logit = {.bits = 16}, .math = o->math};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    for (int i = 0; i < s->batch; i++) {
        int32_t *ids = x->ids + (int64_t)i * s->context;
        dq_bench_ids(ids, s->context, o->model, (uint32_t)i + 1);
        prompt[i] = (dq_generate_prompt){.ids = ids, .n = s->context, .max_new = o->new_tokens + 1};
    }
    const dq_generate_spec spec = {.prompt = prompt,
                                   .n = s->batch,
                                   .stop = tick,
                                   .stop_arg = w,
                                   .max_rows = (int64_t)s->batch * s->context,
                                   .max_seqs = s->batch};
    if (dq_score_begin(&w->scorer, o->runner, &pass, &o->kv, err) == DQ_OK)
        dq_generate(&w->scorer, &spec, a, err);
    dq_score_end(&w->scorer);
    dq_arena_free(a);
    return err->code;
}

static double step_flops(const generate *x, const subject *s)
{
    return s->batch * (dq_bench_row_flops(x->o.model) + dq_bench_logits_flops(x->o.model));
}

/* Shares are of each run: a slower machine slows a run and its limits alike. */
static dq_status generate_step(void *arg, int i, dq_err *err)
{
    generate *x = arg;
    dq_bench *o = &x->o;
    subject *s = &x->at[i];
    watch w = {.x = x, .last = s->batch - 1};
    DQ_TRY(decode_once(&w, s, err));
    const double seconds = w.end.seconds - w.first.seconds, step = seconds / (double)o->new_tokens;
    const double read = block_read(&o->block, seconds / READ_PART);
    const double peak = model_peak(o->backend, o->math.linear, o->model, &o->instruction);
    s->kv_bytes = (w.kv_first + w.kv_last) / 2;
    s->computed = w.end.computed - w.first.computed;
    *dq_bench_sample(o, i, STEP) = step;
    *dq_bench_sample(o, i, READ_RATE) = read;
    *dq_bench_sample(o, i, OPS_PEAK) = peak;
    *dq_bench_sample(o, i, OF_READ) = (s->weights.total + s->kv_bytes) / step / read;
    *dq_bench_sample(o, i, OF_PEAK) = step_flops(x, s) / step / peak;
    return DQ_OK;
}

void dq_bench_generate_rows(dq_row_writer *w, const void *generated, int64_t i)
{
    const generate *x = generated;
    const dq_bench *o = x ? &x->o : NULL;
    const subject *s = x ? &x->at[i] : NULL;
    const bool read = x && o->block.p, peak = x && o->instruction;
    dq_bench_timing step = {0};
    double limit[GENERATE_COLUMNS] = {0};
    char weights[WEIGHTS];
    if (x) step = dq_bench_timing_of(o, i, STEP);
    for (int c = READ_RATE; x && c < GENERATE_COLUMNS; c++)
        limit[c] = dq_bench_timing_of(o, i, c).median;
    dq_bench_rows_begin(w, o, "generate");
    DQ_PUT(w, "context", s->context, "Tokens before.", .title = "context");
    DQ_PUT(w, "batch", s->batch, "Sequences at once.", .title = "batch");
    DQ_PUT(w, "computed_tokens", s->computed, "Tokens of a run that were computed and timed.");
    DQ_PUT(w, "weights", weights_text(weights, o->model), "How weights are stored.");
    DQ_PUT(w, "bits_per_weight", 8 * s->weights.total / s->weights.weights,
           "Bits per weight of the matrices that a step reads.", .when = DQ_NULL);
    DQ_BENCH_TIMING(w, o, i, STEP, "step_seconds", "Seconds of a step, median over runs.",
                    .title = "ms/step", .digits = 3, .scale = 1e3);
    DQ_PUT(w, "tokens_per_second", s->batch / step.median, "Tokens per second, of the median step.",
           .title = "tokens/s", .digits = 1, .when = DQ_NULL);
    DQ_PUT(w, "tokens_per_second_min", s->batch / step.max, "Of the slowest.", .title = "least",
           .digits = 1, .when = DQ_NULL);
    DQ_PUT(w, "tokens_per_second_max", s->batch / step.min, "Of the fastest.", .title = "most",
           .digits = 1, .when = DQ_NULL);
    DQ_CELL(w, s->weights.total, "weights, MiB", .scale = 1.0 / 1048576, .digits = 2);
    DQ_PUT(w, "kv_bytes", s->kv_bytes, "Bytes of the KV cache that a step reads.",
           .title = "KV, MiB", .scale = 1.0 / 1048576, .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "bytes_per_second", (s->weights.total + s->kv_bytes) / step.median,
           "Stored bytes that a step reads, per second.", .title = "GB/s", .scale = 1e-9,
           .digits = 1, .when = DQ_NULL);
    DQ_PUT(w, "read_bytes_per_second", limit[READ_RATE],
           "Bytes per second of a plain read; null: not known.", .when = DQ_NULL);
    DQ_PUT(w, "share_of_read", limit[OF_READ], "Of that reached.",
           .title = read ? "share of read" : NULL, .digits = 2, .when = DQ_NULL);
    DQ_PUT(w, "flops_per_second", step_flops(x, s) / step.median,
           "Multiply-adds with weights (two each) per second.", .when = DQ_NULL);
    DQ_PUT(w, "peak_flops_per_second", limit[OPS_PEAK], DQ_BENCH_ABOUT_PEAK, .when = DQ_NULL);
    DQ_PUT(w, "share_of_peak", limit[OF_PEAK], "Of that reached.",
           .title = peak ? "share of peak" : NULL, .digits = 2, .when = DQ_NULL);
    /* Without the block of the plain read. */
    const int64_t now = dq_os_peak_bytes() - (int64_t)(read ? o->block.bytes : 0);
    DQ_PUT(w, "peak_bytes", now > x->peak_bytes ? now : x->peak_bytes,
           "Bytes that the process had at most.");
    DQ_OBJECT(w, "weight_bytes", "Bytes of weights that a step reads.");
    DQ_PUT(w, "total", s->weights.total, "All.", .when = DQ_NULL);
    DQ_PUT(w, "codes", s->weights.codes, "Codes.", .when = DQ_NULL);
    DQ_PUT(w, "scales", s->weights.scales, "Scales.", .when = DQ_NULL);
    DQ_PUT(w, "zeros", s->weights.zeros, "Zero points.", .when = DQ_NULL);
    DQ_PUT(w, "dense", s->weights.dense, "Values.", .when = DQ_NULL);
    dq_row_end(w);
}

static void generate_heading(const void *arg)
{
    const generate *x = arg;
    const dq_bench *o = &x->o;
    char weights[WEIGHTS], peak[DQ_BENCH_PEAK];
    printf("%s: decoding with %s in %s on %s, %lld tokens a run, medians of %lld run%s\n"
           "GB/s: stored bytes of the weights and KV that a step reads, over its time",
           o->model->name, weights_text(weights, o->model), o->math_word.text, o->backend->device,
           (long long)o->new_tokens, (long long)o->runs, o->runs == 1 ? "" : "s");
    if (o->block.p)
        printf("; a plain read of %zu MiB reaches %.1f", o->block.bytes >> 20,
               dq_bench_timing_of(o, 0, READ_RATE).median * 1e-9);
    if (o->instruction)
        printf("\nshare of peak: multiply-adds with weights, over %s on registers alone",
               dq_bench_peak(peak, o->math.linear, o->instruction));
    printf("\n\n");
}

static const dq_bench_kind generate_kind = {
    .usage = {.name = "bench generate",
              .synopsis = "MODEL [options]",
              .about = "Times the whole model decoding tokens one by one, as dq eval does. Shares "
                       "compare the stored bytes of the weights, scales and KV that a step reads, "
                       "over its time, with a plain read of memory (a block of 128 MiB to 1 GiB, "
                       "for a quarter of the time), and its multiply-adds with the peak, in turns. "
                       "One thread is timed by processor time, which other work on the machine "
                       "disturbs less.",
              .examples =
                  "  dq bench generate model4.h5 --new-tokens 64 --batch 1,4 --math int8\n"},
    .option = "context",
    .longest = 1 << 24,
    .columns = GENERATE_COLUMNS,
    .extra = 1,
    .together = true,
    .codes = true,
    .peaks = true,
    .open = generate_open,
    .step = generate_step,
    .rows = dq_bench_generate_rows,
    .heading = generate_heading};

dq_status dq_cmd_bench_generate(int argc, char **argv, dq_err *err)
{
    generate x = {.o = DQ_BENCH(generate_kind, &x)};
    x.o.new_tokens = 64;
    x.o.lengths = "128";
    x.o.batches = "1";
    const dq_opt opts[] = {
        dq_opt_int("new-tokens", "N", &x.o.new_tokens, 1, 100000,
                   "tokens that every sequence decodes (default 64)"),
        dq_opt_text("context", "T[,T...]", &x.o.lengths, "tokens of the prompts (default 128)"),
        dq_opt_text("batch", "B[,B...]", &x.o.batches,
                    "sequences that are decoded together, 1 to 8 (default 1)"),
        DQ_BENCH_HOW(x.o),
        {0}};
    return dq_bench_main(&x.o, argc, argv, opts, err);
}
