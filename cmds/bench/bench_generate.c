/* bench_generate: see bench_generate.h. dq_generate asks after every new id whether a sequence shall end: the clock is read
 * there, after the last sequence's first id, which the prompt's pass gave, and after its last one.
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_generate.h"

#include "base/os.h"
#include "cmds/bench/bench_bytes.h"
#include "cmds/bench/bench_limits.h"
#include "cmds/bench/bench_rates.h"
#include "cmds/cli/document.h"
#include "cmds/cli/progress.h"
#include "cmds/cli/table.h"
#include "eval/generate.h"

#include <math.h>
#include <stdio.h>

/* A plain read takes a part of the time of the run that it is compared with: one of 30 ms after seconds would say more of what
 * else goes on in the machine. */
enum { READ_PART = 4 };

/* One context and batch. */
typedef struct subject {
    int context, batch;
    double *seconds, *read; /* [runs] of all steps; bytes per second */
    double *ceiling;        /* [runs] flops per second */
    double *share, *ops;    /* [runs] of the read and of the ceiling after a run */
    double kv_bytes;        /* held, the mean of the first and the last step */
    dq_bench_bytes weights;
} subject;

typedef struct generate {
    const dq_bench_generate_options *o;
    dq_logger *logger;
    dq_runner *r;
    const dq_model *m;
    dq_backend *b;
    dq_bench_block block;
    const char *instruction; /* of the ceiling; NULL: not known */
    int64_t peak_bytes;      /* of the process, before the block */
    int32_t *ids;            /* [batch][context], the largest of both */
    subject *at;             /* [n] */
    int n;
    dq_progress progress; /* in runs; told between them */
} generate;

/* What is seen of a run. */
typedef struct watch {
    generate *x;
    int64_t last; /* sequence */
    double begin, end, kv_first, kv_last;
} watch;

static double kv_held(const generate *x)
{
    const dq_kv_bytes held = x->b->ops->kv_bytes(x->b, dq_runner_kv(x->r));
    return (double)(held.codes + held.scales + held.unquantized);
}

/* All sequences are open until the last step has been answered. */
static bool tick(void *arg, int64_t prompt, const int32_t *ids, int64_t n)
{
    watch *w = arg;
    (void)ids;
    if (prompt != w->last) return false;
    if (n == w->x->o->steps) w->kv_last = kv_held(w->x);
    if (n == w->x->o->steps + 1) w->end = dq_bench_now(w->x->b);
    if (n > 1) return false;
    w->kv_first = kv_held(w->x);
    w->begin = dq_bench_now(w->x->b);
    return false;
}

static dq_status run_once(generate *x, const subject *s, watch *w, dq_err *err)
{
    dq_generate_prompt prompt[DQ_BENCH_BATCH_MAX];
    const dq_pass pass = {.logit = {.bits = 16}, .math = x->o->math};
    dq_generate_state state;
    dq_scorer scorer = {0};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    for (int i = 0; i < s->batch; i++) {
        int32_t *ids = x->ids + (int64_t)i * s->context;
        dq_bench_ids(ids, s->context, x->m, (uint32_t)i + 1);
        prompt[i] = (dq_generate_prompt){.ids = ids, .n = s->context, .max_new = x->o->steps + 1};
    }
    *w = (watch){.x = x, .last = s->batch - 1};
    const dq_generate_spec spec = {.prompt = prompt,
                                   .n = s->batch,
                                   .stop = tick,
                                   .stop_arg = w,
                                   .max_rows = (int64_t)s->batch * s->context,
                                   .max_seqs = s->batch};
    if (dq_score_begin(&scorer, x->r, &pass, x->o->kv, err) == DQ_OK &&
        dq_generate_new(&state, &spec, x->m, a, err) == DQ_OK)
        dq_generate(&scorer, &spec, &state, err);
    dq_score_end(&scorer);
    dq_arena_free(a);
    return err->code;
}

/* Of multiply-adds with weights in one step. */
static double step_flops(const generate *x, const subject *s)
{
    return s->batch * (dq_bench_row_flops(x->m) + dq_bench_logits_flops(x->m));
}

static void add_shares(const generate *x, subject *s, int64_t run)
{
    const double step = s->seconds[run] / (double)x->o->steps;
    s->share[run] = (s->weights.total + s->kv_bytes) / step / s->read[run];
    s->ops[run] = step_flops(x, s) / step / s->ceiling[run];
}

/* Run -1 warms up. */
static dq_status run_all(generate *x, dq_err *err)
{
    for (int64_t run = -1; run < x->o->runs; run++) {
        for (int i = 0; i < x->n; i++) {
            subject *s = &x->at[i];
            watch w;
            DQ_TRY(run_once(x, s, &w, err));
            dq_progress_set(&x->progress, x->progress.done + 1, NULL);
            const double rate = dq_bench_block_read(&x->block, (w.end - w.begin) / READ_PART);
            const double ops =
                dq_bench_limits_model(x->b, x->o->math.linear, x->m, &x->instruction);
            if (run < 0) continue;
            s->seconds[run] = w.end - w.begin;
            s->read[run] = rate;
            s->ceiling[run] = ops;
            s->kv_bytes = (w.kv_first + w.kv_last) / 2;
            add_shares(x, s, run);
        }
    }
    return err->code;
}

/* ---- What is told ---- */

/* Shares are medians of the runs' own: a machine that slows down slows a run and its limits alike. */
typedef struct figures {
    dq_bench_timing step; /* seconds */
    double bytes, rate, read;
    double ceiling;    /* flops per second; NaN: not known */
    double share, ops; /* of the read, of the ceiling; NaN: not known */
} figures;

static figures figures_of(const generate *x, const subject *s)
{
    figures f = {.step = dq_bench_timing_of(s->seconds, x->o->runs),
                 .read = (double)NAN,
                 .ceiling = (double)NAN,
                 .share = (double)NAN,
                 .ops = (double)NAN};
    const double steps = (double)x->o->steps;
    f.step = (dq_bench_timing){f.step.median / steps, f.step.min / steps, f.step.max / steps};
    f.bytes = s->weights.total + s->kv_bytes;
    f.rate = f.bytes / f.step.median;
    if (x->instruction) f.ceiling = dq_bench_timing_of(s->ceiling, x->o->runs).median;
    if (x->instruction) f.ops = dq_bench_timing_of(s->ops, x->o->runs).median;
    if (!x->block.p) return f;
    f.read = dq_bench_timing_of(s->read, x->o->runs).median;
    f.share = dq_bench_timing_of(s->share, x->o->runs).median;
    return f;
}

/* Of the process, but for the block. */
static int64_t peak_bytes(const generate *x)
{
    const int64_t now = dq_os_peak_bytes() - (int64_t)(x->block.p ? x->block.bytes : 0);
    return now > x->peak_bytes ? now : x->peak_bytes;
}

static json_t *result_json(const generate *x, const subject *s)
{
    const figures f = figures_of(x, s);
    char weights[DQ_BENCH_WEIGHTS];
    json_t *r = json_object();
    json_object_set_new(r, "model", dq_document_name(x->m->name));
    json_object_set_new(r, "what", json_string("generate"));
    json_object_set_new(r, "context", json_integer(s->context));
    json_object_set_new(r, "batch", json_integer(s->batch));
    json_object_set_new(r, "weights", json_string(dq_bench_weights(weights, x->m)));
    json_object_set_new(r, "bits_per_weight",
                        dq_document_real(8 * s->weights.total / s->weights.weights));
    json_object_set_new(r, "step_seconds_median", dq_document_real(f.step.median));
    json_object_set_new(r, "step_seconds_min", dq_document_real(f.step.min));
    json_object_set_new(r, "step_seconds_max", dq_document_real(f.step.max));
    json_object_set_new(r, "tokens_per_second", dq_document_real(s->batch / f.step.median));
    json_object_set_new(r, "tokens_per_second_min", dq_document_real(s->batch / f.step.max));
    json_object_set_new(r, "tokens_per_second_max", dq_document_real(s->batch / f.step.min));
    json_object_set_new(r, "weight_bytes", dq_bench_bytes_json(&s->weights));
    json_object_set_new(r, "kv_bytes", dq_document_real(s->kv_bytes));
    json_object_set_new(r, "bytes_per_second", dq_document_real(f.rate));
    json_object_set_new(r, "read_bytes_per_second", dq_document_real(f.read));
    json_object_set_new(r, "share_of_read", dq_document_real(f.share));
    json_object_set_new(r, "flops_per_second", dq_document_real(step_flops(x, s) / f.step.median));
    json_object_set_new(r, "ceiling_flops_per_second", dq_document_real(f.ceiling));
    json_object_set_new(r, "share_of_ceiling", dq_document_real(f.ops));
    json_object_set_new(r, "peak_bytes", json_integer((json_int_t)peak_bytes(x)));
    return r;
}

static dq_status print_json(const generate *x, dq_err *err)
{
    json_t *doc = dq_bench_document(x->logger, x->m, x->b), *s = json_object_get(doc, "settings");
    json_object_set_new(s, "runs", json_integer((json_int_t)x->o->runs));
    json_object_set_new(s, "math", json_string(x->o->math_word));
    dq_bench_ceiling_json(s, x->o->math.linear, x->instruction);
    json_object_set_new(s, "kv_bits", json_integer(x->o->kv->k_bits));
    json_object_set_new(s, "read_bytes",
                        x->block.p ? json_integer((json_int_t)x->block.bytes) : json_null());
    json_object_set_new(s, "generate", json_integer((json_int_t)x->o->steps));
    for (int i = 0; i < x->n; i++)
        json_array_append_new(json_object_get(doc, "results"), result_json(x, &x->at[i]));
    return dq_document_print(doc, err);
}

static dq_status print_table(const generate *x, dq_err *err)
{
    const char *titles[11] = {"context", "batch",        "ms/step", "tokens/s", "least",
                              "most",    "weights, MiB", "KV, MiB", "GB/s"};
    int n = 9;
    if (x->block.p) titles[n++] = "share of read";
    if (x->instruction) titles[n++] = "share of ceiling";
    char weights[DQ_BENCH_WEIGHTS], ceiling[DQ_BENCH_CEILING];
    dq_table *table = NULL;
    DQ_TRY(dq_table_new(&table, titles, n, err));
    for (int i = 0; i < x->n; i++) {
        const subject *s = &x->at[i];
        const figures f = figures_of(x, s);
        dq_table_cell(table, "%d", s->context);
        dq_table_cell(table, "%d", s->batch);
        dq_table_cell(table, "%.3f", 1e3 * f.step.median);
        dq_table_cell(table, "%.1f", s->batch / f.step.median);
        dq_table_cell(table, "%.1f", s->batch / f.step.max);
        dq_table_cell(table, "%.1f", s->batch / f.step.min);
        dq_table_cell(table, "%.2f", s->weights.total / 1048576);
        dq_table_cell(table, "%.2f", s->kv_bytes / 1048576);
        dq_table_cell(table, "%.1f", f.rate * 1e-9);
        if (x->block.p) dq_table_cell(table, "%.2f", f.share);
        if (x->instruction) dq_table_cell(table, "%.2f", f.ops);
    }
    printf("%s: decoding with %s in %s on %s, %lld tokens a run, medians of %lld run%s\n"
           "GB/s: stored bytes of the weights and KV that a step reads, over its time",
           x->m->name, dq_bench_weights(weights, x->m), x->o->math_word, x->b->device,
           (long long)x->o->steps, (long long)x->o->runs, x->o->runs == 1 ? "" : "s");
    if (x->block.p)
        printf("; a plain read of %zu MiB reaches %.1f", x->block.bytes >> 20,
               figures_of(x, &x->at[0]).read * 1e-9);
    if (x->instruction)
        printf("\nshare of ceiling: multiply-adds with weights, over %s on registers alone",
               dq_bench_ceiling(ceiling, x->o->math.linear, x->instruction));
    printf("\n\n");
    dq_table_print(table, err);
    dq_table_free(table);
    return err->code;
}

/* ---- From options to subjects ---- */

static dq_status check_lengths(const dq_model *m, const dq_bench_generate_options *o, dq_err *err)
{
    for (int i = 0; i < o->n_contexts; i++) {
        if (m->max_positions > 0 && o->context[i] + o->steps > m->max_positions)
            return dq_fail(err, DQ_MISMATCH, "%s: has %d positions. Lower --context or --generate",
                           m->path, m->max_positions);
    }
    return DQ_OK;
}

static dq_status prepare(generate *x, dq_err *err)
{
    const dq_bench_generate_options *o = x->o;
    int context = 0, batch = 0;
    double weights = 0;
    x->at = dq_block_new((size_t)(o->n_contexts * o->n_batches), sizeof *x->at, err);
    for (int i = 0; x->at && i < o->n_contexts * o->n_batches; i++) {
        subject *s = &x->at[x->n++];
        s->context = o->context[i / o->n_batches];
        s->batch = o->batch[i % o->n_batches];
        s->weights = dq_bench_bytes_of(x->m, s->batch);
        s->seconds = dq_block_new((size_t)o->runs, sizeof *s->seconds, err);
        s->read = dq_block_new((size_t)o->runs, sizeof *s->read, err);
        s->share = dq_block_new((size_t)o->runs, sizeof *s->share, err);
        s->ceiling = dq_block_new((size_t)o->runs, sizeof *s->ceiling, err);
        s->ops = dq_block_new((size_t)o->runs, sizeof *s->ops, err);
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
        dq_logger_warn(x->logger,
                       "out of memory (%zu bytes for a plain read): the share of read is missing",
                       x->block.bytes);
    return err->code;
}

dq_status dq_bench_generate(dq_logger *logger, dq_runner *r, const dq_bench_generate_options *o,
                            dq_err *err)
{
    generate x = {
        .o = o, .logger = logger, .r = r, .m = dq_runner_model(r), .b = dq_runner_backend(r)};
    DQ_TRY(check_lengths(x.m, o, err));
    if (prepare(&x, err) == DQ_OK) {
        dq_progress_begin(&x.progress, logger, "timed", (double)x.n * (double)(o->runs + 1));
        dq_progress_set(&x.progress, 0, NULL);
        run_all(&x, err);
        dq_progress_end(&x.progress);
    }
    if (err->code == DQ_OK) o->json ? print_json(&x, err) : print_table(&x, err);
    for (int i = 0; i < x.n; i++) {
        dq_block_free(x.at[i].seconds);
        dq_block_free(x.at[i].read);
        dq_block_free(x.at[i].share);
        dq_block_free(x.at[i].ceiling);
        dq_block_free(x.at[i].ops);
    }
    dq_bench_block_free(&x.block);
    dq_block_free(x.ids);
    dq_block_free(x.at);
    return err->code;
}
