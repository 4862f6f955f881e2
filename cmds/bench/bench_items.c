/* bench_items: see bench_items.h. Every group of items is scored and then compared, at once, with two things on
 * the same machine: a prompt of the same kind of work, and the bare products that its floating-point operations
 * would take. A run is all groups; run -1 warms up with the first one alone.
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_items.h"

#include "base/file.h"
#include "base/os.h"
#include "cmds/bench/bench_rates.h"
#include "cmds/cli/document.h"
#include "cmds/cli/input.h"
#include "cmds/cli/progress.h"
#include "cmds/cli/table.h"
#include "tasks/tasks.h"

#include <stdio.h>

enum { LONGEST = 4096 };

/* What a run takes, a value per run. */
typedef enum column {
    TOKENIZE, /* seconds */
    SCORE,
    FLOOR, /* the products of the computed rows and of the scored ids' logits, at the rate found beside them */
    COMPUTED_RATE, /* per second */
    NAIVE_RATE,
    PREFILL_RATE,
    PRODUCT_RATE, /* of FLOOR, in multiply-adds as two */
    OF_PREFILL,
    OF_FLOOR,
    N_COLUMNS
} column;

typedef struct items_bench {
    const dq_bench_items_options *o;
    dq_logger *logger;
    dq_runner *r;
    dq_tokenizer *tok;
    dq_items items;
    dq_bench_prompt prompt;
    dq_progress progress;
    double *value[N_COLUMNS]; /* [runs] */
    int64_t naive, computed, scored, n_truncated, n_groups;
} items_bench;

/* The items as ids, and where their scores go. */
typedef struct encoded {
    dq_arena *a;
    dq_requests q;
    double *logp;
    int32_t *top1;
    double seconds;
} encoded;

static dq_status encode(items_bench *x, encoded *e, dq_err *err)
{
    const dq_model *m = dq_runner_model(x->r);
    const dq_backend *b = dq_runner_backend(x->r);
    *e = (encoded){.a = dq_arena_new()};
    if (!e->a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    const double start = dq_bench_now(b);
    if (dq_items_encode(&e->q, &x->items, x->tok, DQ_BOS_AUTO, m->max_positions, m->vocab, e->a,
                        err) != DQ_OK)
        return dq_in(err, "%s: ", x->o->path);
    e->seconds = dq_bench_now(b) - start;
    e->logp = dq_alloc(e->a, (size_t)e->q.n_values, sizeof *e->logp, err);
    e->top1 = dq_alloc(e->a, (size_t)e->q.n_values, sizeof *e->top1, err);
    return err->code;
}

/* Sums over the groups of one run. */
typedef struct sums {
    double score, prefill, floor, flops;
    int64_t groups;
} sums;

/* One group, then what it is compared with. */
static dq_status run_group(items_bench *x, encoded *e, dq_scorer *scorer, int64_t begin,
                           int64_t end, sums *s, dq_err *err)
{
    const dq_model *m = dq_runner_model(x->r);
    dq_backend *b = dq_runner_backend(x->r);
    const int64_t before = scorer->work.computed;
    double prefill, rate;
    const double start = dq_bench_now(b);
    DQ_TRY(dq_score_items(scorer, &e->q, begin, end, (dq_scores){e->logp, e->top1}, err));
    s->score += dq_bench_now(b) - start;
    /* the second of two: the first finds the caches full of what was scored */
    for (int i = 0; i < 2; i++)
        DQ_TRY(dq_bench_prompt_run(&prefill, x->r, &x->prompt, dq_logit_plain, x->o->math, err));
    DQ_TRY(dq_bench_product_rate(&rate, b, m, x->o->math.linear, err));
    const int64_t scored = dq_items_values(&e->q, end) - dq_items_values(&e->q, begin);
    const double flops = dq_bench_row_flops(m) * (double)(scorer->work.computed - before) +
                         dq_bench_logits_flops(m) * (double)scored;
    s->prefill += prefill;
    s->flops += flops;
    s->floor += flops / rate;
    s->groups++;
    return DQ_OK;
}

static void keep(items_bench *x, const encoded *e, const sums *s, const dq_score_work *work,
                 int64_t run)
{
    const double tokens = (double)x->prompt.n * (double)s->groups;
    const double computed = (double)work->computed / s->score, prefill = tokens / s->prefill;
    const double all[N_COLUMNS] = {[TOKENIZE] = e->seconds,
                                   [SCORE] = s->score,
                                   [FLOOR] = s->floor,
                                   [COMPUTED_RATE] = computed,
                                   [NAIVE_RATE] = (double)work->tokens / s->score,
                                   [PREFILL_RATE] = prefill,
                                   [PRODUCT_RATE] = s->flops / s->floor,
                                   [OF_PREFILL] = computed / prefill,
                                   [OF_FLOOR] = s->floor / s->score};
    for (int i = 0; i < N_COLUMNS; i++) x->value[i][run] = all[i];
    x->naive = work->tokens;
    x->computed = work->computed;
    x->scored = e->q.n_values;
    x->n_truncated = e->q.n_truncated;
    x->n_groups = s->groups;
}

/* Run -1 warms up with the first group. */
static dq_status run_once(items_bench *x, int64_t run, dq_err *err)
{
    encoded e = {0};
    sums s = {0};
    const dq_pass pass = {.logit = {.bits = 16}, .math = x->o->math};
    dq_scorer scorer;
    if (dq_score_begin(&scorer, x->r, &pass, x->o->kv, err) == DQ_OK) encode(x, &e, err);
    for (int64_t begin = 0, end; err->code == DQ_OK && begin < e.q.n_items; begin = end) {
        end = dq_score_group(&e.q, begin, dq_score_rows(x->r, true), true);
        if (run_group(x, &e, &scorer, begin, end, &s, err) != DQ_OK || run < 0) break;
        dq_progress_set(&x->progress,
                        ((double)run + (double)end / (double)e.q.n_items) / (double)x->o->runs,
                        x->o->task);
    }
    if (err->code == DQ_OK && run >= 0) keep(x, &e, &s, &scorer.work, run);
    dq_score_end(&scorer);
    dq_arena_free(e.a);
    return err->code;
}

/* Columns of the table and members of a result, in this order. */
static const struct {
    const char *title, *member;
    int digits;
} shown[N_COLUMNS] = {[TOKENIZE] = {"tokenizing s", "tokenizing_seconds", 4},
                      [SCORE] = {"scoring s", "seconds", 4},
                      [FLOOR] = {"floor s", "floor_seconds", 4},
                      [COMPUTED_RATE] = {"computed/s", "computed_tokens_per_second", 0},
                      [NAIVE_RATE] = {"naive/s", "naive_tokens_per_second", 0},
                      [PREFILL_RATE] = {"prefill/s", "prefill_tokens_per_second", 0},
                      [PRODUCT_RATE] = {NULL, "matmul_flops_per_second", 0},
                      [OF_PREFILL] = {"of prefill", "share_of_prefill", 2},
                      [OF_FLOOR] = {"of floor", "share_of_floor", 2}};

static json_t *result_json(const items_bench *x, const dq_bench_timing *t)
{
    json_t *r = json_object();
    char key[64];
    json_object_set_new(r, "model", dq_document_name(dq_runner_model(x->r)->name));
    json_object_set_new(r, "what", json_string("items"));
    json_object_set_new(r, "task", json_string(x->o->task));
    json_object_set_new(r, "items", json_integer((json_int_t)x->items.n));
    json_object_set_new(r, "truncated", json_integer((json_int_t)x->n_truncated));
    json_object_set_new(r, "groups", json_integer((json_int_t)x->n_groups));
    json_object_set_new(r, "naive_tokens", json_integer((json_int_t)x->naive));
    json_object_set_new(r, "computed_tokens", json_integer((json_int_t)x->computed));
    json_object_set_new(r, "scored_tokens", json_integer((json_int_t)x->scored));
    json_object_set_new(r, "prefill_tokens", json_integer((json_int_t)x->prompt.n));
    for (int i = 0; i < N_COLUMNS; i++) {
        const double v[] = {t[i].median, t[i].min, t[i].max};
        static const char *const of[] = {"median", "min", "max"};
        for (int k = 0; k < 3; k++) {
            snprintf(key, sizeof key, "%s_%s", shown[i].member, of[k]);
            json_object_set_new(r, key, dq_document_real(v[k]));
        }
    }
    json_object_set_new(r, "peak_bytes", json_integer((json_int_t)dq_os_peak_bytes()));
    return r;
}

static dq_status print_json(const items_bench *x, const dq_bench_timing *t, dq_err *err)
{
    const dq_backend *b = dq_runner_backend(x->r);
    const dq_model *m = dq_runner_model(x->r);
    json_t *doc = dq_bench_document(x->logger, m, b), *s = json_object_get(doc, "settings");
    json_array_append_new(json_object_get(doc, "inputs"), dq_document_name(x->o->path));
    json_object_set_new(s, "runs", json_integer((json_int_t)x->o->runs));
    json_object_set_new(s, "math", json_string(x->o->math_word));
    json_object_set_new(s, "kv_bits", json_integer(x->o->kv->k_bits));
    json_object_set_new(s, "limit",
                        x->o->limit ? json_integer((json_int_t)x->o->limit) : json_null());
    json_array_append_new(json_object_get(doc, "results"), result_json(x, t));
    return dq_document_print(doc, err);
}

static dq_status print_table(const items_bench *x, const dq_bench_timing *t, dq_err *err)
{
    const char *titles[N_COLUMNS + 3] = {"items", "naive tokens", "computed tokens"};
    int n = 3;
    dq_table *table = NULL;
    for (int i = 0; i < N_COLUMNS; i++) {
        if (shown[i].title) titles[n++] = shown[i].title;
    }
    DQ_TRY(dq_table_new(&table, titles, n, err));
    dq_table_cell(table, "%lld", (long long)x->items.n);
    dq_table_cell(table, "%lld", (long long)x->naive);
    dq_table_cell(table, "%lld", (long long)x->computed);
    for (int i = 0; i < N_COLUMNS; i++) {
        if (shown[i].title) dq_table_cell(table, "%.*f", shown[i].digits, t[i].median);
    }
    printf(
        "%s: items of %s in %s on %s, medians of %lld run%s\n"
        "prefill: one prompt of %lld tokens after every group of items; floor: the matrix products "
        "of the "
        "computed rows and of %lld rows of logits at %.1f GFLOP/s\n\n",
        dq_runner_model(x->r)->name, x->o->task, x->o->math_word, dq_runner_backend(x->r)->device,
        (long long)x->o->runs, x->o->runs == 1 ? "" : "s", (long long)x->prompt.n,
        (long long)x->scored, t[PRODUCT_RATE].median * 1e-9);
    dq_table_print(table, err);
    dq_table_free(table);
    return err->code;
}

static dq_status run_all(items_bench *x, dq_err *err)
{
    dq_bench_timing t[N_COLUMNS];
    for (int i = 0; i < N_COLUMNS; i++) {
        x->value[i] = dq_block_new((size_t)x->o->runs, sizeof *x->value[i], err);
        if (!x->value[i]) return err->code;
    }
    dq_progress_begin(&x->progress, x->logger, "timed", 1);
    for (int64_t run = -1; run < x->o->runs && err->code == DQ_OK; run++) run_once(x, run, err);
    dq_progress_end(&x->progress);
    if (err->code != DQ_OK) return err->code;
    for (int i = 0; i < N_COLUMNS; i++) t[i] = dq_bench_timing_of(x->value[i], x->o->runs);
    if (x->n_truncated)
        dq_logger_warn(x->logger, "%s: %lld of %lld items lost the beginning of their context",
                       x->o->path, (long long)x->n_truncated, (long long)x->items.n);
    return x->o->json ? print_json(x, t, err) : print_table(x, t, err);
}

dq_status dq_bench_items(dq_logger *logger, dq_runner *r, const dq_bench_items_options *o,
                         dq_err *err)
{
    const dq_model *m = dq_runner_model(r);
    items_bench x = {.o = o, .logger = logger, .r = r};
    char *text;
    size_t len;
    const dq_task *task = dq_task_find(o->task, err);
    dq_arena *a = task ? dq_arena_new() : NULL;
    if (!task) return err->code;
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_file_read(&text, &len, o->path, a, err) == DQ_OK &&
        dq_task_load(&x.items, task, o->path, text, len, o->limit, a, err) == DQ_OK &&
        dq_input_tokenizer(&x.tok, m, true, err) == DQ_OK &&
        dq_bench_prompt_new(&x.prompt, m, m->max_positions < LONGEST ? m->max_positions : LONGEST,
                            err) == DQ_OK)
        run_all(&x, err);
    for (int i = 0; i < N_COLUMNS; i++) dq_block_free(x.value[i]);
    dq_bench_prompt_free(&x.prompt);
    dq_tokenizer_free(x.tok);
    dq_arena_free(a);
    return err->code;
}
