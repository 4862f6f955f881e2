/* bench_items: dq bench items: throughput of scoring short items in the groups of dq eval, tokenizing apart. Every group of
 * items is scored and then compared, at once, with two things on the same machine: a prompt of the same kind of work, and the
 * bare products that its floating-point operations would take. A run is all groups; run -1 warms up with the first one alone.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "cmds/bench/bench_rates.h"
#include "cmds/bench/bench_report.h"
#include "cmds/bench/bench_run.h"
#include "cmds/cli/help.h"
#include "cmds/cli/progress.h"
#include "cmds/command.h"
#include "eval/score.h"
#include "record/record.h"
#include "settings/inputs.h"
#include "tasks/tasks.h"

#include <stdio.h>

enum { LONGEST = 4096 };

/* What a run takes, a value per run. */
typedef enum column {
    TOKENIZE, /* seconds */
    SCORE,
    FLOOR, /* the products of the computed rows and of the scored tokens' logits, at the rate found beside them */
    COMPUTED_RATE, /* per second */
    NAIVE_RATE,
    PREFILL_RATE,
    PRODUCT_RATE, /* of FLOOR, in multiply-adds as two */
    OF_PREFILL,
    OF_FLOOR,
    N_COLUMNS
} column;

typedef struct items_bench {
    dq_bench *o;
    const char *path, *task; /* the file and its form, as dq eval names it */
    int64_t limit;           /* 0: all items */
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
    const dq_model *m = x->o->model;
    const dq_backend *b = x->o->backend;
    *e = (encoded){.a = dq_arena_new()};
    if (!e->a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    const double start = dq_bench_now(b);
    if (dq_items_encode(&e->q, &x->items, x->tok, DQ_BOS_AUTO, m->max_positions, m->vocab, e->a,
                        err) != DQ_OK)
        return dq_in(err, "%s: ", x->path);
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
    const dq_model *m = x->o->model;
    dq_backend *b = x->o->backend;
    const int64_t before = scorer->work.computed;
    double prefill, rate;
    const double start = dq_bench_now(b);
    DQ_TRY(dq_score_items(scorer, &e->q, begin, end, (dq_scores){e->logp, e->top1}, err));
    s->score += dq_bench_now(b) - start;
    /* the second of two: the first finds the caches full of what was scored */
    for (int i = 0; i < 2; i++)
        DQ_TRY(dq_bench_prompt_run(&prefill, x->o->runner, &x->prompt, dq_logit_plain, x->o->math,
                                   err));
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
    if (dq_score_begin(&scorer, x->o->runner, &pass, &x->o->kv, err) == DQ_OK) encode(x, &e, err);
    for (int64_t begin = 0, end; err->code == DQ_OK && begin < e.q.n_items; begin = end) {
        end = dq_score_group(&e.q, begin, dq_score_rows(x->o->runner, true), true);
        if (run_group(x, &e, &scorer, begin, end, &s, err) != DQ_OK || run < 0) break;
        dq_progress_set(&x->progress,
                        ((double)run + (double)end / (double)e.q.n_items) / (double)x->o->runs,
                        x->task);
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

enum { FIGURES = 10 + 3 * N_COLUMNS };

static dq_status report(const items_bench *x, const dq_bench_timing *t, dq_err *err)
{
    char member[N_COLUMNS][3][64];
    dq_bench_report r;
    dq_bench_figure f[FIGURES] = {dq_bench_text("task", NULL, x->task),
                                  dq_bench_count("items", "items", x->items.n),
                                  dq_bench_count("truncated", NULL, x->n_truncated),
                                  dq_bench_count("groups", NULL, x->n_groups),
                                  dq_bench_count("naive_tokens", "naive tokens", x->naive),
                                  dq_bench_count("computed_tokens", "computed tokens", x->computed),
                                  dq_bench_count("scored_tokens", NULL, x->scored),
                                  dq_bench_count("prefill_tokens", NULL, x->prompt.n),
                                  dq_bench_count("peak_bytes", NULL, dq_os_peak_bytes())};
    int n = 9;
    for (int i = 0; i < N_COLUMNS; i++) {
        const double v[] = {t[i].median, t[i].min, t[i].max};
        static const char *const of[] = {"median", "min", "max"};
        for (int k = 0; k < 3; k++) {
            snprintf(member[i][k], sizeof member[i][k], "%s_%s", shown[i].member, of[k]);
            f[n++] =
                dq_bench_real(member[i][k], k ? NULL : shown[i].title, v[k], 1, shown[i].digits);
        }
    }
    DQ_TRY(dq_bench_report_begin(&r, x->o, err));
    json_array_append_new(json_object_get(r.doc, "inputs"), dq_document_name(x->path));
    dq_bench_report_runs(&r);
    json_object_set_new(r.settings, "kv_bits", json_integer(x->o->kv.k_bits));
    json_object_set_new(r.settings, "limit",
                        x->limit ? json_integer((json_int_t)x->limit) : json_null());
    dq_bench_report_add(&r, "items", f, n, err);
    if (!x->o->json)
        printf("%s: items of %s in %s on %s, medians of %lld run%s\n"
               "prefill: one prompt of %lld tokens after every group of items; floor: the matrix "
               "products of the computed rows and of %lld rows of logits at %.1f GFLOP/s\n\n",
               x->o->model->name, x->task, x->o->math_word.text, x->o->backend->device,
               (long long)x->o->runs, x->o->runs == 1 ? "" : "s", (long long)x->prompt.n,
               (long long)x->scored, t[PRODUCT_RATE].median * 1e-9);
    dq_bench_report_print(&r, err);
    dq_bench_report_end(&r);
    return err->code;
}

static dq_status run_all(items_bench *x, dq_err *err)
{
    dq_bench_timing t[N_COLUMNS];
    for (int i = 0; i < N_COLUMNS; i++) {
        x->value[i] = dq_block_new((size_t)x->o->runs, sizeof *x->value[i], err);
        if (!x->value[i]) return err->code;
    }
    dq_progress_begin(&x->progress, &x->o->logger, "timed", 1);
    for (int64_t run = -1; run < x->o->runs && err->code == DQ_OK; run++) run_once(x, run, err);
    dq_progress_end(&x->progress);
    if (err->code != DQ_OK) return err->code;
    for (int i = 0; i < N_COLUMNS; i++) t[i] = dq_bench_timing_of(x->value[i], x->o->runs);
    if (x->n_truncated)
        dq_logger_warn(&x->o->logger, "%s: %lld of %lld items lost the beginning of their context",
                       x->path, (long long)x->n_truncated, (long long)x->items.n);
    return report(x, t, err);
}

static dq_status run(items_bench *x, dq_err *err)
{
    const dq_model *m = x->o->model;
    char *text;
    size_t len;
    const dq_task *task = dq_task_find(x->task, err);
    dq_arena *a = task ? dq_arena_new() : NULL;
    if (!task) return err->code;
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_bench_open_runner(x->o, err) == DQ_OK &&
        dq_file_read_text(&text, &len, x->path, 0, a, err) == DQ_OK &&
        dq_task_load(&x->items, task, x->path, text, len, x->limit, a, err) == DQ_OK &&
        dq_input_tokenizer(&x->tok, m, true, err) == DQ_OK &&
        dq_bench_prompt_new(&x->prompt, m, m->max_positions < LONGEST ? m->max_positions : LONGEST,
                            err) == DQ_OK)
        run_all(x, err);
    for (int i = 0; i < N_COLUMNS; i++) dq_block_free(x->value[i]);
    dq_bench_prompt_free(&x->prompt);
    dq_tokenizer_free(x->tok);
    dq_arena_free(a);
    return err->code;
}

static const dq_usage usage = {
    .name = "bench items",
    .synopsis = "MODEL FILE [options]",
    .about = "Times the scoring of the short items of FILE, without tokenizing. After every group "
             "of items come one long prefill and one dense product, so that shares compare times "
             "of one machine.",
    .examples = "  dq bench items model hellaswag_val.jsonl --task hellaswag --limit 1000\n",
    .min_args = 2,
    .max_args = 2,
    .args = "MODEL and FILE"};

/* For completion. */
enum { MAX_TASKS = 32 };
static int task_names(const char *names[MAX_TASKS])
{
    int n = 0;
    for (; n < dq_tasks_n && n < MAX_TASKS; n++) names[n] = dq_tasks[n].name;
    return n;
}

dq_status dq_cmd_bench_items(int argc, char **argv, dq_err *err)
{
    dq_bench o = dq_bench_defaults;
    items_bench x = {.o = &o, .task = "mc"};
    const char *names[MAX_TASKS];
    const dq_opt opts[] = {dq_opt_offer(names, task_names(names),
                                        dq_opt_text("task", "NAME", &x.task,
                                                    "form of FILE, as for dq eval (default mc)")),
                           dq_opt_int("limit", "N", &x.limit, 1, 1e9, "the first N items only"),
                           DQ_BENCH_MATH(o),
                           DQ_BENCH_RUNS(o),
                           DQ_BENCH_RUN(o),
                           {0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    x.path = args.item[1];
    if (dq_bench_open(&o, usage.name, args.item[0], err) == DQ_OK) run(&x, err);
    dq_bench_close(&o);
    return err->code;
}
