/* bench_evict: dq bench evict: what it takes to choose the tokens of a context that a policy keeps, beside reading the context. A
 * run is one prefill that nobody watches and one for every policy, each followed by its eviction of all but a quarter; what a
 * policy takes is what its turn took longer, over the unwatched prefill of the same run. Run -1 warms up.
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_rates.h"
#include "cmds/bench/bench_report.h"
#include "cmds/bench/bench_run.h"
#include "cmds/cli/help.h"
#include "cmds/cli/kv_report.h"
#include "cmds/cli/progress.h"
#include "cmds/command.h"
#include "engine/runner.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>

static const double keep = 0.25;
enum { POLICIES = 32 };

typedef struct policies {
    dq_bench *o;
    dq_bench_list length;
    const dq_kv_policy *policy[POLICIES]; /* [n_policies] */
    int n_policies;
    dq_backend *b;
    dq_progress progress;              /* in rows; told between runs */
    double *prefill, *over, *evicting; /* [runs], [n_policies][runs] twice */
} policies;

/* The words of --kv-policy: policies, and `all`, which is every one that is no baseline. */
static const char *const *policy_words(const char *word[POLICIES + 1])
{
    for (int i = 0; i < dq_kv_n_policies; i++) word[i] = dq_kv_policies[i].name;
    word[dq_kv_n_policies] = "all";
    return word;
}

/* Those of a list of names; of none, all. */
static void take_policies(policies *x, const dq_words *names)
{
    for (int i = 0; i < dq_kv_n_policies; i++) {
        const bool in_all = !dq_kv_policies[i].baseline;
        bool asked = names->n == 0 && in_all;
        for (int k = 0; k < names->n; k++)
            asked = asked || names->at[k] == i || (names->at[k] == dq_kv_n_policies && in_all);
        if (asked) x->policy[x->n_policies++] = &dq_kv_policies[i];
    }
}

/* One context, watched and cut by e, or by nobody. *evicting: the part of *seconds after the pass. */
static dq_status run_one(policies *x, const dq_bench_prompt *p, dq_evictor *e, double *seconds,
                         double *evicting, dq_evict_report *report, dq_err *err)
{
    dq_kv *kv = dq_runner_kv(x->o->runner);
    int32_t seq = x->b->ops->kv_seq_new(x->b, kv);
    const int32_t prefix = (int32_t)p->n;
    const int64_t cu[2] = {0, p->n};
    const dq_batch batch = {
        .n_seq = 1, .n_rows = p->n, .cu_rows = cu, .seq = &seq, .ids = p->ids, .pos = p->pos};
    dq_pass pass = {.logit = dq_logit_plain, .math = x->o->math};
    dq_mat hidden;
    const double start = dq_bench_now(x->b);
    if (e) dq_evictor_watch(e, &batch, &pass.columns, err);
    if (err->code == DQ_OK) dq_runner_pass(x->o->runner, &batch, &pass, &hidden, err);
    const double read = dq_bench_now(x->b);
    if (e && err->code == DQ_OK) dq_evictor_run(e, &batch, &prefix, report, err);
    *seconds = dq_bench_now(x->b) - start;
    *evicting = *seconds - (read - start);
    if (e) dq_evictor_forget(e, seq);
    x->b->ops->kv_seq_free(x->b, kv, seq);
    return err->code;
}

static dq_status run_policy(policies *x, const dq_bench_prompt *p, int i, double *seconds,
                            double *evicting, dq_err *err)
{
    const dq_pass pass = {.logit = dq_logit_plain, .math = x->o->math};
    dq_kv_spec spec = x->o->kv;
    dq_evict_report report = dq_evict_report_none;
    dq_kv_cached told = {0};
    dq_evictor *e = NULL;
    char what[400];
    spec.evict.policy = x->policy[i];
    spec.evict.keep = keep;
    if (dq_evictor_new(&e, x->o->runner, &spec, &pass, err) == DQ_OK)
        run_one(x, p, e, seconds, evicting, &report, err);
    dq_evictor_free(e);
    dq_kv_cached_report(&told, &report, 1);
    snprintf(what, sizeof what, "%s, %d tokens", x->o->model->name, (int)p->n);
    if (err->code == DQ_OK) dq_kv_report_warn_policy(&x->o->logger, what, &spec, &told);
    return err->code;
}

/* A round of all policies and of the prefill that nobody watches: what is first changes from round to round. */
static dq_status run_all(policies *x, const dq_bench_prompt *p, int64_t run, dq_err *err)
{
    const int n = x->n_policies, first = run < 0 ? 0 : (int)(run % (n + 1));
    const int64_t at = run < 0 ? 0 : run, runs = x->o->runs;
    dq_evict_report none = dq_evict_report_none;
    double unused;
    for (int k = 0; k <= n; k++) {
        const int i = (first + k) % (n + 1);
        if (i == n)
            DQ_TRY(run_one(x, p, NULL, &x->prefill[at], &unused, &none, err));
        else
            DQ_TRY(run_policy(x, p, i, &x->over[i * runs + at], &x->evicting[i * runs + at], err));
    }
    for (int i = 0; i < n; i++) {
        x->over[i * runs + at] = x->over[i * runs + at] / x->prefill[at] - 1;
        x->evicting[i * runs + at] /= x->prefill[at];
    }
    return err->code;
}

static void add_result(policies *x, int n, int i, dq_bench_report *r, dq_err *err)
{
    const int64_t runs = x->o->runs;
    const dq_bench_timing prefill = dq_bench_timing_of(x->prefill, runs);
    const dq_bench_timing over = dq_bench_timing_of(x->over + i * runs, runs);
    const double evicting = dq_bench_timing_of(x->evicting + i * runs, runs).median;
    const dq_bench_figure f[] = {
        dq_bench_count("tokens", "tokens", n),
        dq_bench_text("policy", "policy", x->policy[i]->name),
        dq_bench_real("prefill_seconds_median", "prefill s", prefill.median, 1, 3),
        dq_bench_real("over_prefill_median", "more", over.median, 1, 3),
        dq_bench_real("over_prefill_min", "least", over.min, 1, 3),
        dq_bench_real("over_prefill_max", "most", over.max, 1, 3),
        dq_bench_real("evicting_over_prefill_median", "evicting", evicting, 1, 3)};
    dq_bench_report_add(r, "evict", f, (int)(sizeof f / sizeof *f), err);
}

static dq_status measure(policies *x, int length, dq_bench_report *r, dq_err *err)
{
    dq_bench_prompt prompt = {0};
    dq_bench_prompt_new(&prompt, x->o->model, length, err);
    for (int64_t i = -1; err->code == DQ_OK && i < x->o->runs; i++) {
        run_all(x, &prompt, i, err);
        dq_progress_set(&x->progress, x->progress.done + length, NULL);
    }
    for (int i = 0; err->code == DQ_OK && i < x->n_policies; i++) add_result(x, length, i, r, err);
    dq_bench_prompt_free(&prompt);
    return err->code;
}

static dq_status run_lengths(policies *x, dq_bench_report *r, dq_err *err)
{
    double rows = 0;
    for (int i = 0; i < x->length.n; i++) rows += x->length.at[i];
    dq_bench_report_runs(r);
    json_object_set_new(r->settings, "keep", dq_document_real(keep));
    dq_progress_begin(&x->progress, &x->o->logger, "timed", rows * (double)(x->o->runs + 1));
    dq_progress_set(&x->progress, 0, NULL);
    for (int i = 0; i < x->length.n && err->code == DQ_OK; i++) measure(x, x->length.at[i], r, err);
    dq_progress_end(&x->progress);
    if (err->code != DQ_OK) return err->code;
    if (!x->o->json)
        printf("%s: evicting all but %g of a context, in %s on %s\n"
               "more: what watching the prefill and evicting after it took, over a prefill that "
               "nobody watches, in turns: median, least, most; evicting: of that, after the "
               "prefill\n\n",
               x->o->model->name, keep, x->o->math_word.text, x->b->device);
    return dq_bench_report_print(r, err);
}

/* The share is that of every context: tokens that always stay do not raise it. */
static dq_status check_lengths(const policies *x, dq_err *err)
{
    const int least = x->o->kv.sink + x->o->kv.recent;
    for (int i = 0; i < x->length.n; i++) {
        if (x->length.at[i] * keep < least)
            return dq_fail(err, DQ_USAGE,
                           "--tokens %d: %g of them are fewer than the %d first and last ones that "
                           "always stay. Give %.0f or more",
                           x->length.at[i], keep, least, ceil(least / keep));
    }
    return DQ_OK;
}

/* Gates of zero, where the model has none and a policy needs them: what weights say takes no time. */
static dq_status lend_gates(policies *x, dq_arena *a, dq_err *err)
{
    dq_kv_gates *gates;
    bool needed = false;
    for (int i = 0; i < x->n_policies; i++) needed = needed || x->policy[i]->needs & DQ_NEEDS_GATES;
    if (!needed || x->o->model->gates) return DQ_OK;
    DQ_TRY(dq_model_new_gates(&gates, x->o->model, a, err));
    x->o->model->gates = gates;
    return DQ_OK;
}

static dq_status run(policies *x, dq_arena *a, dq_err *err)
{
    const size_t runs = (size_t)x->o->runs, n = (size_t)x->n_policies;
    dq_bench_report r;
    x->b = x->o->backend;
    DQ_TRY(check_lengths(x, err));
    DQ_TRY(lend_gates(x, a, err));
    DQ_TRY(dq_bench_open_runner(x->o, err));
    double *times = dq_block_new((2 * n + 1) * runs, sizeof *times, err);
    if (times && dq_bench_report_begin(&r, x->o, err) == DQ_OK) {
        x->prefill = times;
        x->over = times + runs;
        x->evicting = x->over + n * runs;
        run_lengths(x, &r, err);
        dq_bench_report_end(&r);
    }
    dq_block_free(times);
    return err->code;
}

static const dq_usage usage = {
    .name = "bench evict",
    .synopsis = "MODEL [options]",
    .about = "Times the choice of the quarter of a prompt that stays in the cache, by each policy, "
             "over the prefill. kvzap has gates of zero if the model has none: the values of gates "
             "do not change the time.",
    .examples = "  dq bench evict model --kv-policy all --tokens 1024,4096\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one MODEL"};

dq_status dq_cmd_bench_evict(int argc, char **argv, dq_err *err)
{
    dq_bench o = dq_bench_defaults;
    policies x = {.o = &o};
    const char *lengths = "512", *word[POLICIES + 1];
    dq_words names = {.n = 0};
    const dq_opt opts[] = {
        dq_opt_words("kv-policy", "LIST", &names, policy_words(word), dq_kv_n_policies + 1,
                     "policies, or all, as for dq eval (default all)"),
        dq_opt_text("tokens", "N[,N...]", &lengths, "prompt lengths, 272 or more (default 512)"),
        DQ_BENCH_MATH(o),
        DQ_BENCH_RUNS(o),
        DQ_BENCH_RUN(o),
        {0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    take_policies(&x, &names);
    DQ_TRY(dq_bench_list_read(&x.length, lengths, "tokens", 1 << 20, err));
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_bench_open(&o, usage.name, args.item[0], err) == DQ_OK) run(&x, a, err);
    dq_bench_close(&o);
    dq_arena_free(a);
    return err->code;
}
