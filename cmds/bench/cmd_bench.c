/* What benchmarks share, and documents of speed side by side.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/json.h"
#include "base/os.h"
#include "cmds/bench/inside.h"
#include "cmds/cli/cli.h"
#include "cmds/cli/kv_report.h"
#include "cmds/command.h"
#include "engine/runner.h"
#include "eval/score.h"
#include "record/record.h"
#include "settings/cache_options.h"
#include "settings/options.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Operations are counted from shapes. The rate of a bare product is the best of three after a
 * warm-up; a prompt's rate is compared with it. */

double dq_bench_row_flops(const dq_model *m)
{
    const dq_layer *l = &m->layer[0];
    const dq_weight *w[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    double sum = 0;
    for (size_t i = 0; i < sizeof w / sizeof w[0]; i++)
        sum += 2 * (double)w[i]->rows * (double)w[i]->cols;
    return m->n_layers * sum;
}

double dq_bench_pairs(int window, double n)
{
    const double full =
        window > 0 && window < n ? window : n; /* queries that see all before them */
    return full * (full + 1) / 2 + (n - full) * window;
}

double dq_bench_logits_flops(const dq_model *m)
{
    return 2 * (double)m->vocab * (double)m->dim;
}

dq_status dq_bench_product_rate(double *flops, dq_backend *b, const dq_model *m, dq_num num,
                                dq_err *err)
{
    const dq_ops *op = b->ops;
    const dq_weight *w = &m->layer[0].gate;
    dq_mat in = {.rows = DQ_BENCH_PRODUCT_ROWS, .cols = w->cols},
           out = {.rows = DQ_BENCH_PRODUCT_ROWS, .cols = w->rows};
    in.p = dq_bench_floats(b, in.rows * in.cols, err);
    out.p = op->alloc(b, (size_t)(out.rows * out.cols) * sizeof(float));
    double best = HUGE_VAL;
    if (err->code == DQ_OK && !out.p) dq_fail(err, DQ_RESOURCE, "out of memory");
    for (int i = 0; err->code == DQ_OK && i < 4; i++) {
        const double start = dq_backend_seconds(b);
        op->matmul(b, out, in, w, NULL, num);
        dq_backend_sync(b, err);
        const double s = dq_backend_seconds(b) - start;
        if (i > 0 && s < best) best = s;
    }
    op->free(b, in.p);
    op->free(b, out.p);
    *flops = 2.0 * DQ_BENCH_PRODUCT_ROWS * (double)w->rows * (double)w->cols / best;
    return err->code;
}

void dq_bench_ids(int32_t *ids, int64_t n, const dq_model *m, uint32_t seed)
{
    uint32_t state = seed;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        ids[i] = (int32_t)((state >> 8) % (uint32_t)m->vocab);
    }
}

dq_status dq_bench_prompt_new(dq_bench_prompt *p, const dq_model *m, int64_t n, dq_err *err)
{
    *p = (dq_bench_prompt){.n = n};
    p->ids = dq_block_new((size_t)n, sizeof *p->ids, err);
    p->pos = dq_block_new((size_t)n, sizeof *p->pos, err);
    if (err->code == DQ_OK) dq_bench_ids(p->ids, n, m, 1);
    for (int64_t i = 0; err->code == DQ_OK && i < n; i++) p->pos[i] = (int32_t)i;
    return err->code;
}

static void prompt_free(dq_bench_prompt *p)
{
    dq_block_free(p->ids);
    dq_block_free(p->pos);
    *p = (dq_bench_prompt){0};
}

dq_status dq_bench_prompt_run(double *seconds, const dq_bench *x, dq_logit_spec logit, dq_err *err)
{
    const dq_bench_prompt *p = &x->prompt;
    dq_backend *b = x->backend;
    dq_kv *kv = dq_runner_kv(x->runner);
    int32_t seq = b->ops->kv_seq_new(b, kv), top1;
    const int64_t cu[2] = {0, p->n};
    const dq_batch batch = {
        .n_seq = 1, .n_rows = p->n, .cu_rows = cu, .seq = &seq, .ids = p->ids, .pos = p->pos};
    const dq_pass pass = {.logit = logit, .math = x->math};
    dq_mat hidden;
    double logp;
    const double start = dq_backend_seconds(b);
    if (dq_runner_pass(x->runner, &batch, &pass, &hidden, err) == DQ_OK) {
        const dq_mat last = {
            .p = hidden.p + (hidden.rows - 1) * hidden.cols, .rows = 1, .cols = hidden.cols};
        b->ops->logprob(b, &logp, &top1, last, &x->model->head, p->ids, x->math.linear);
        dq_backend_sync(b, err);
    }
    *seconds = dq_backend_seconds(b) - start;
    if (err->code == DQ_OK) dq_score_check_logp(x->model, &logp, 1, err);
    b->ops->kv_seq_free(b, kv, seq);
    return err->code;
}

float *dq_bench_floats(dq_backend *b, int64_t n, dq_err *err)
{
    float *host = dq_block_new((size_t)n, sizeof *host, err);
    float *p = host ? b->ops->alloc(b, (size_t)n * sizeof *p) : NULL;
    uint32_t state = 7;
    for (int64_t i = 0; host && i < n; i++) {
        state = state * 1664525u + 1013904223u;
        host[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
    if (p) b->ops->put(b, p, host, (size_t)n * sizeof *p);
    dq_block_free(host);
    if (!p) dq_fail(err, DQ_RESOURCE, "out of memory");
    return p;
}

/* Operations are short and repeated until the clock has seen enough. */

double dq_bench_limits_ops(dq_backend *b, dq_num num, const dq_weight *w, const char **instruction)
{
    const double enough = 0.02;
    double ops = 0, seconds = 0;
    *instruction = NULL;
    if (!b->ops->peak_ops || b->ops->peak_ops(b, num, w, instruction) <= 0) return (double)NAN;
    const double start = dq_backend_seconds(b);
    while (seconds < enough) {
        ops += b->ops->peak_ops(b, num, w, instruction);
        seconds = dq_backend_seconds(b) - start;
    }
    return ops / seconds;
}

const char *dq_bench_peak(char name[DQ_BENCH_PEAK], dq_num num, const char *instruction)
{
    if (instruction)
        snprintf(name, DQ_BENCH_PEAK, "%s multiply-adds (%s)", dq_num_name[num], instruction);
    else
        snprintf(name, DQ_BENCH_PEAK, "not known");
    return name;
}

/* ---- The frame ---- */

const char *dq_bench_logit_name(char *out, dq_logit_spec s)
{
    snprintf(out, DQ_BENCH_LOGIT_NAME, dq_logit_rounds(s) ? "%d %s" : "%d", s.bits,
             dq_granularity_name[s.granularity]);
    return out;
}

dq_status dq_bench_open_runner(dq_bench *x, dq_err *err)
{
    DQ_TRY(dq_runner_new(&x->runner, x->model, x->backend, &x->kv, err));
    dq_kv_report_note_routes(&x->logger, x->backend, x->model, x->math, &x->kv);
    return DQ_OK;
}

dq_status dq_bench_check_positions(const dq_bench *x, int64_t more, dq_err *err)
{
    const int most = x->model->max_positions;
    for (int i = 0; i < x->length.n; i++) {
        if (x->length.at[i] + more > most)
            return dq_fail(err, DQ_MISMATCH,
                           "%s: has %d positions. Lower --context or --new-tokens", x->model->path,
                           most);
    }
    return DQ_OK;
}

double *dq_bench_sample(const dq_bench *x, int64_t thing, int column)
{
    /* What a run that warms up leaves is replaced by the first one. */
    return x->sample + (thing * x->kind->columns + column) * x->runs + (x->run > 0 ? x->run : 0);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

dq_bench_timing dq_bench_timing_of(const dq_bench *x, int64_t thing, int column)
{
    double *s = x->sample + (thing * x->kind->columns + column) * x->runs;
    const int64_t n = x->runs;
    qsort(s, (size_t)n, sizeof *s, by_value);
    return (dq_bench_timing){
        .median = n % 2 ? s[n / 2] : (s[n / 2 - 1] + s[n / 2]) / 2, .min = s[0], .max = s[n - 1]};
}

void dq_bench_rows_begin(dq_row_writer *w, const dq_bench *x, const char *what)
{
    DQ_PUT(w, "model", x->model->name, "Name of the model.");
    DQ_PUT(w, "what", what, "What was timed.", .words = &what, .n_words = 1);
}

void dq_bench_logit_rows(dq_row_writer *w, const dq_logit_spec *s)
{
    DQ_PUT(w, "logit_bits", s->bits, "Bits of attention logits, 16: not rounded.", .min = 2,
           .max = 16);
    DQ_PUT(w, "logit_granularity", dq_logit_rounds(*s) ? dq_granularity_name[s->granularity] : NULL,
           "What shares a scale; null: not rounded.", DQ_WORDS(dq_granularity_name),
           .when = DQ_NULL);
}

void dq_bench_timing_rows(dq_row_writer *w, const dq_bench *x, int64_t thing,
                          const dq_bench_column *c)
{
    const dq_bench_timing none = {0}, t = w->live ? dq_bench_timing_of(x, thing, c->at) : none;
    const struct {
        const char *name, *about, *title;
        double value;
    } of[] = {{"median", c->about, c->title, t.median},
              {"min", "The least of them.", c->min, t.min},
              {"max", "The most of them.", c->max, t.max}};
    for (int i = 0; i < 3; i++) {
        char name[80];
        snprintf(name, sizeof name, "%s_%s", c->prefix, of[i].name);
        DQ_PUT(w, name, of[i].value, of[i].about, .title = of[i].title, .digits = c->digits,
               .scale = c->scale, .when = DQ_NULL);
    }
}

/* x NULL: of all benchmarks. */
static void document_rows(dq_row_writer *w, const dq_bench *x)
{
    const dq_bench_kind *k = DQ_LIVE(w, x->kind);
    char peak[DQ_BENCH_PEAK];
    DQ_LIST(w, "inputs", "Path of the model; of items also of the task's file.");
    DQ_PUT(w, NULL, x->model->path, NULL);
    if (w->live && x->file) DQ_PUT(w, NULL, x->file, NULL);
    dq_row_end(w);
    DQ_OBJECT(w, "settings", "As they took effect.");
    DQ_PUT(w, "device", x->backend->device, "The device and its arithmetic units, in words.");
    DQ_PUT(w, "threads", x->backend->threads, "Threads of the CPU.", .min = 1);
    DQ_PUT(w, "clock", dq_backend_clock(x->backend), "What times are.",
           DQ_WORD("processor", "wall"));
    DQ_PUT(w, "runs", k->tokens ? 0 : x->runs, "Runs.", .min = 1, .when = DQ_OUT | DQ_AT_0);
    DQ_PUT(w, "math", k->tokens ? NULL : x->math_word.text, "The arithmetic.", DQ_NUM_WORDS,
           .when = DQ_OUT);
    if (DQ_WHEN(w, k->peaks))
        DQ_PUT(w, "peak",
               x->instruction ? dq_bench_peak(peak, x->math.linear, x->instruction) : NULL,
               "The instruction of the peak; null: not known.", .when = DQ_SOMETIMES | DQ_NULL);
    DQ_PUT(w, "kv_bits", k->codes ? x->kv.k_bits : 0, "Bits of keys.", .when = DQ_OUT | DQ_AT_0,
           .min = 2, .max = 16);
    if (DQ_WHEN(w, x->new_tokens))
        DQ_PUT(w, "read_bytes", x->block.p ? (int64_t)x->block.bytes : 0,
               "Bytes of the plain read beside it; null: none.",
               .when = DQ_SOMETIMES | DQ_NULL | DQ_AT_0);
    DQ_PUT(w, "generate", x->new_tokens, "Tokens of a run.", .when = DQ_OUT | DQ_AT_0, .min = 1);
    DQ_PUT(w, "decode", k->tokens ? x->runs : 0, "Tokens that are timed.", .when = DQ_OUT | DQ_AT_0,
           .min = 1);
    DQ_PUT(w, "keep", x->keep, "Share of the tokens that stays.", .when = DQ_OUT | DQ_AT_0);
    if (DQ_WHEN(w, x->file))
        DQ_PUT(w, "limit", x->limit, "Items at most; null: all.",
               .when = DQ_SOMETIMES | DQ_NULL | DQ_AT_0, .min = 1);
    dq_row_end(w);
}

static void describe(dq_row_writer *w)
{
    static const char *const commands[] = {"bench prefill",   "bench generate", "bench decode",
                                           "bench attention", "bench items",    "bench evict"};
    static dq_row_items *const of[] = {dq_bench_prefill_rows, dq_bench_generate_rows,
                                       dq_bench_decode_rows,  dq_bench_attention_rows,
                                       dq_bench_items_rows,   dq_bench_evict_rows};
    DQ_PUT(w, "command", "", "The command that printed it, without dq.", DQ_WORDS(commands));
    document_rows(w, NULL);
    DQ_LIST(w, "results", "What was timed.");
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) dq_row_item(w, of[i], NULL, 0);
    dq_row_end(w);
}

const dq_document dq_bench_document = {
    "dq-bench/1",
    "What dq bench generate, decode, prefill, attention, evict and items print with "
    "--json.",
    NULL, describe};

/* Reads the words, opens model and backend, and checks that they can do this. */
static dq_status open_inputs(dq_bench *x, const char *path, dq_err *err)
{
    int width[8], n_widths = 0;
    dq_words *of = &x->logit_granularity;
    if (of->text && !x->logit_bits)
        return dq_fail(err, DQ_USAGE,
                       "--logit-granularity has nothing to act on. Add --logit-bits N[,N...].");
    if (x->logit_bits)
        DQ_TRY(dq_options_bits(width, &n_widths, 8, x->logit_bits, "logit-bits", err));
    if (of->n == 0) of->at[of->n++] = DQ_GRANULARITY_TENSOR;
    x->logit[x->n_logits++] = dq_logit_plain;
    for (int i = 0; i < n_widths; i++) {
        for (int g = 0; width[i] < 16 && g < of->n; g++)
            x->logit[x->n_logits++] = (dq_logit_spec){width[i], (dq_granularity)of->at[g]};
    }
    DQ_TRY(dq_progress_listen(&x->logger, x->kind->usage.name, err));
    DQ_TRY(dq_model_open(&x->model, path, err));
    DQ_TRY(dq_backend_open(&x->backend, x->device, (int)x->threads, err));
    x->ops = x->backend->ops;
    x->math = dq_backend_math(x->backend, (dq_num)x->math_word.at);
    dq_kv_config kv = dq_kv_config_plain;
    kv.quant = DQ_KV_PER_TOKEN;
    if (x->math.kv == DQ_NUM_INT8) {
        kv.k_bits = kv.v_bits = 8;
        kv.dense = DQ_KV_DENSE_AUTO;
    }
    return dq_kv_options_fit(&x->kv, &kv, x->model, x->math, x->backend, err);
}

static dq_status run_length(dq_bench *x, dq_err *err)
{
    const dq_bench_kind *k = x->kind;
    const double cost = pow(x->at, k->power);
    if (k->prompts) DQ_TRY(dq_bench_prompt_new(&x->prompt, x->model, x->at, err));
    if (k->begin) DQ_TRY(k->begin(x->arg, err));
    for (x->run = -1; x->run < x->runs; x->run++) {
        const int64_t first = k->rotates && x->run > 0 ? x->run : 0;
        for (int i = 0; i < x->n; i++) {
            DQ_TRY(dq_os_check_stop(err));
            x->done = x->progress.done;
            DQ_TRY(k->step(x->arg, (int)((first + i) % x->n), err));
            if (x->run < 0 && k->extra == 0) continue;
            dq_progress_set(&x->progress, x->done + cost, NULL);
        }
        if (k->ended) DQ_TRY(k->ended(x->arg, err));
    }
    return err->code;
}

/* Columns of the table are those of the first result. */
static dq_status run(dq_bench *x, dq_err *err)
{
    const dq_bench_kind *k = x->kind;
    const int n = k->together || !k->option ? 1 : x->length.n;
    double work = 0;
    dq_table *table = NULL;
    json_t *doc = dq_document_new(&x->logger, dq_bench_document.name);
    x->sample =
        dq_alloc(x->a, (size_t)(x->n * k->columns) * (size_t)x->runs, sizeof *x->sample, err);
    for (int i = 0; i < n; i++) work += pow(x->length.at[i], k->power);
    dq_progress_begin(&x->progress, &x->logger, "timed",
                      work * x->n * (double)(x->runs + k->extra));
    dq_progress_set(&x->progress, 0, NULL);
    for (int l = 0; l < n && err->code == DQ_OK; l++) {
        x->at = x->length.at[l];
        run_length(x, err);
        for (int i = 0; err->code == DQ_OK && i < (x->n_shown ? x->n_shown : x->n); i++) {
            json_t *result = json_object();
            dq_row_writer w = dq_row_json(result);
            k->rows(&w, x->arg, i);
            json_array_append_new(json_object_get(doc, "results"), result);
            dq_table_add_rows(&table, k->rows, x->arg, i, err);
        }
        if (k->end) k->end(x->arg);
        if (k->prompts) prompt_free(&x->prompt);
    }
    dq_progress_end(&x->progress);
    if (err->code == DQ_OK && x->json) {
        dq_row_writer w = dq_row_json(doc);
        document_rows(&w, x);
        dq_stdout_print(json_incref(doc), err);
    } else if (err->code == DQ_OK) {
        k->heading(x->arg);
        dq_table_print(table, err);
    }
    json_decref(doc);
    dq_table_free(table);
    return err->code;
}

dq_status dq_bench_main(dq_bench *x, int argc, char **argv, const dq_opt *opts, dq_err *err)
{
    const dq_bench_kind *k = x->kind;
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &k->usage, err));
    if (args.help) return DQ_OK;
    if (k->option)
        DQ_TRY(dq_options_ints(x->length.at, &x->length.n, DQ_BENCH_LIST, x->lengths, k->option, 1,
                               k->longest, err));
    if (x->batches)
        DQ_TRY(dq_options_ints(x->batch.at, &x->batch.n, DQ_BENCH_LIST, x->batches, "batch", 1,
                               DQ_BENCH_BATCH, err));
    if (args.n > 1) x->file = args.item[1];
    x->a = dq_arena_new();
    if (!x->a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (open_inputs(x, args.item[0], err) == DQ_OK && k->open(x->arg, err) == DQ_OK) run(x, err);
    if (k->close) k->close(x->arg);
    prompt_free(&x->prompt);
    if (x->block.p) x->backend->ops->free(x->backend, x->block.p);
    dq_runner_free(x->runner);
    if (x->backend) x->backend->ops = x->ops;
    dq_backend_close(x->backend);
    dq_model_close(x->model);
    dq_logger_end(&x->logger);
    dq_arena_free(x->a);
    return err->code;
}

/* Dq bench compare: documents of dq bench and of tests/peers/bench.py side by side. One line for
 * every work: what a peer and dq reached, in tokens per second, and dq over peer. Documents of
 * peers (dq-peers/1) have both. What dq bench measured (dq-bench/1; prefill and generate) takes the
 * place of dq's figure, with a mark, on the lines of the same model, work, weights, arithmetic and
 * threads; it makes a line of its own where there is none.  Both kinds of documents name a work by
 * the same members, which become its line's words. When all is read, rates that dq bench gives join
 * the lines of the same words, whatever the order of the documents. */

typedef struct line {
    const char *work;           /* with dq's model and settings */
    const char *peer, *weights; /* program and its weights; "": none */
    const char *path;           /* of its document */
    double peer_rate, dq_rate;  /* tokens per second; NaN: not known */
    double ratio;               /* of rounds in turns; NaN: not told, or not of these rates */
    double low, high;           /* bounds of the ratio, 95 %; NaN: not told */
    bool joined;                /* dq_rate is of another document than peer_rate */
} line;

typedef struct comparison {
    line *at;
    int n;
    size_t cap;
    const char *path; /* that is read */
    dq_arena *a;
} comparison;

/* err: a missing member, or one of another type. */
static const char *word_of(const json_t *object, const char *key, dq_err *err)
{
    const char *s = json_string_value(json_object_get(object, key));
    if (s) return s;
    dq_fail(err, DQ_DAMAGED, "\"%s\" is missing or no text. Is the document cut or edited?", key);
    return "";
}

static double number_of(const json_t *object, const char *key, dq_err *err)
{
    const json_t *x = json_object_get(object, key);
    if (json_is_number(x)) return json_number_value(x);
    dq_fail(err, DQ_DAMAGED, "\"%s\" is missing or no number. Is the document cut or edited?", key);
    return (double)NAN;
}

/* What identifies a work: the words of a line, with members between them. */
static const struct {
    const char *what, *word[2], *member[2];
} works[] = {{"prefill", {"prefill"}, {"tokens"}},
             {"generate", {"decode after", ", batch"}, {"context", "batch"}}};
enum { N_WORKS = sizeof works / sizeof *works };

/* "llama-4.h5: prefill 512, W4 in groups of 32, int8, 1 thread" */
static const char *work_of(const json_t *result, const json_t *settings, dq_arena *a, dq_err *err)
{
    char where[120] = "";
    const char *text = "", *what = word_of(result, "what", err);
    int work = 0, used = 0;
    while (work < N_WORKS && strcmp(what, works[work].what) != 0) work++;
    if (err->code == DQ_OK && work == N_WORKS)
        dq_fail(err, DQ_MISMATCH,
                "holds \"%.60s\" (expected prefill or generate). Leave it out, as only these "
                "are compared",
                what);
    if (err->code != DQ_OK) return "";
    for (int k = 0; k < 2 && works[work].member[k]; k++)
        used += snprintf(where + used, sizeof where - (size_t)used, "%s %.0f", works[work].word[k],
                         fmin(number_of(result, works[work].member[k], err), 1e9));
    const double threads = number_of(settings, "threads", err);
    const char *all =
        dq_textf(a, err, "%s: %s, %s, %s, %.0f thread%s", word_of(result, "model", err), where,
                 word_of(result, "weights", err), word_of(settings, "math", err), threads,
                 threads == 1 ? "" : "s");
    if (all) dq_document_name_text(&text, all, a, err);
    return text;
}

static dq_status add_line(comparison *c, const line *l, dq_err *err)
{
    /* Two equal works would be ambiguous. */
    for (int i = 0; i < c->n; i++) {
        const line *have = &c->at[i];
        if (strcmp(have->work, l->work) == 0 && strcmp(have->peer, l->peer) == 0 &&
            strcmp(have->weights, l->weights) == 0)
            return dq_fail(err, DQ_MISMATCH,
                           "holds \"%s\"%s%s, which %.200s holds as well. Give one of them",
                           l->work, *l->peer ? " beside " : "", l->peer, have->path);
    }
    line *at = dq_grow(c->a, c->at, (size_t)c->n + 1, &c->cap, sizeof *at, err);
    if (!at) return err->code;
    c->at = at;
    c->at[c->n++] = *l;
    return DQ_OK;
}

static double told(const json_t *result, const char *key)
{
    const json_t *x = json_object_get(result, key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

/* Of a peer's document, whose results have their settings, or of dq's own. */
static dq_status take(comparison *c, const json_t *settings, const json_t *result, bool peers,
                      dq_err *err)
{
    const double none = (double)NAN;
    const line l = {
        .work = work_of(result, peers ? result : settings, c->a, err),
        .peer = peers ? word_of(result, "peer", err) : "",
        .weights = peers ? word_of(result, "peer_weights", err) : "",
        .path = c->path,
        .peer_rate = peers ? number_of(result, "peer_tokens_per_second", err) : none,
        .dq_rate = number_of(result, peers ? "dq_tokens_per_second" : "tokens_per_second", err),
        .ratio = peers ? told(result, "ratio") : none,
        .low = peers ? told(result, "ratio_low") : none,
        .high = peers ? told(result, "ratio_high") : none};
    return err->code == DQ_OK ? add_line(c, &l, err) : err->code;
}

static dq_status take_document(comparison *c, const json_t *doc, dq_err *err)
{
    const json_t *result, *schema = json_object_get(doc, "schema");
    const json_t *results = json_object_get(doc, "results");
    const char *name = json_is_string(schema) ? json_string_value(schema) : "";
    const bool peers = strcmp(name, "dq-peers/1") == 0;
    size_t i;
    if (!*name || !json_is_array(results))
        return dq_fail(err, DQ_DAMAGED,
                       "not a document of speed (expected an object with \"schema\" and "
                       "\"results\"). Give what dq bench prints with --json, or tests/peers wrote");
    if (!peers && strcmp(name, "dq-bench/1") != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "holds no speed (expected dq-bench/1 or dq-peers/1, found \"%.60s\")", name);
    json_array_foreach(results, i, result)
    {
        const json_t *bits = json_object_get(result, "logit_bits");
        if (bits && number_of(result, "logit_bits", err) < 16) continue; /* peers round no logits */
        if (err->code == DQ_OK) take(c, json_object_get(doc, "settings"), result, peers, err);
        if (err->code != DQ_OK) return dq_in(err, "results[%zu]: ", i);
    }
    return DQ_OK;
}

static const char *rate_text(char buf[32], double x, bool joined)
{
    snprintf(buf, 32, "%.*f%s", x < 100 ? 1 : 0, x, joined ? "*" : "");
    return isfinite(x) ? buf : NULL;
}

static void line_cells(dq_row_writer *w, const void *lines, int64_t i)
{
    const line *l = &((const line *)lines)[i];
    char peer[32], own[32], within[64];
    const double ratio = isfinite(l->ratio) ? l->ratio : l->dq_rate / l->peer_rate;
    snprintf(within, sizeof within, "%.2f-%.2f", l->low, l->high);
    DQ_CELL(w, l->work, "work");
    DQ_CELL(w, *l->peer ? l->peer : NULL, "peer");
    DQ_CELL(w, *l->weights ? l->weights : NULL, "its weights");
    DQ_CELL(w, rate_text(peer, l->peer_rate, false), "peer");
    DQ_CELL(w, rate_text(own, l->dq_rate, l->joined), "dq");
    DQ_CELL(w, l->peer_rate > 0 ? ratio : (double)NAN, "ratio", .digits = 2);
    DQ_CELL(w, isfinite(l->low) && isfinite(l->high) ? within : NULL, "95 %");
}

/* Texts of a document live as long as it does. */
static dq_status read_all(comparison *c, json_t **doc, const char *const *path, int n, dq_err *err)
{
    for (int i = 0; i < n; i++) {
        c->path = path[i];
        DQ_TRY(dq_document_read(&doc[i], path[i], err));
        if (take_document(c, doc[i], err) != DQ_OK) return dq_in(err, "%s: ", path[i]);
    }
    /* dq's own lines merge into those of the same work with a peer. */
    int count = 0;
    for (int k = 0; k < c->n; k++) {
        const line own = c->at[k];
        bool found = false;
        for (int i = 0; !*own.peer && i < c->n; i++) {
            line *l = &c->at[i];
            if (i == k || !*l->peer || strcmp(l->work, own.work) != 0) continue;
            l->dq_rate = own.dq_rate;
            l->ratio = l->low = l->high = (double)NAN;
            l->joined = found = true;
        }
        c->at[k].work = found ? NULL : own.work;
    }
    for (int k = 0; k < c->n; k++)
        if (c->at[k].work) c->at[count++] = c->at[k];
    c->n = count;
    bool any = false, within = false;
    for (int i = 0; i < c->n; i++) {
        any = any || c->at[i].joined;
        within = within || isfinite(c->at[i].low);
    }
    printf(
        "tokens per second; ratio: dq over the peer, the median of rounds where it is told%s%s\n\n",
        within ? "; 95 %: what holds that median" : "",
        any ? "; *: dq measured by itself, not in turns with the peer" : "");
    const line none = {.work = "", .peer = "", .weights = ""};
    dq_table *t = NULL;
    dq_table_begin(&t, line_cells, &none, 0, err);
    for (int i = 0; i < c->n && err->code == DQ_OK; i++)
        dq_table_add_rows(&t, line_cells, c->at, i, err);
    if (t) dq_table_keys(t, 1);
    return dq_table_finish(t, err);
}

static const dq_usage usage = {
    .name = "bench compare",
    .synopsis = "FILE.json...",
    .about = "Prints dq beside peers, a line for every work: documents that dq bench printed with "
             "--json, and those of tests/peers.",
    .examples = "  dq bench compare peers.json model4.json\n",
    .min_args = 1,
    .max_args = DQ_LIST_MAX,
    .args = "one FILE.json or more"};

dq_status dq_cmd_bench_compare(int argc, char **argv, dq_err *err)
{
    const dq_opt opts[] = {{0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    const int n = args.n;
    comparison c = {.a = dq_arena_new()};
    if (!c.a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    json_t **doc = dq_alloc(c.a, (size_t)n, sizeof(json_t *), err);
    if (doc) read_all(&c, doc, args.item, n, err);
    for (int i = 0; doc && i < n; i++) json_decref(doc[i]);
    dq_arena_free(c.a);
    return err->code;
}
