/* bench_policies: see bench_policies.h. A run is one prefill that nobody watches and one for every policy, each followed by
 * its eviction; what a policy takes is what its turn took longer, over the unwatched prefill of the same run. Run -1 warms
 * up.
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_policies.h"

#include "cmds/bench/bench_rates.h"
#include "cmds/cli/document.h"
#include "cmds/cli/kv_report.h"
#include "cmds/cli/options.h"
#include "cmds/cli/progress.h"
#include "cmds/cli/table.h"
#include "engine/evict.h"

#include <math.h>
#include <stdio.h>

static const double keep = 0.25;

typedef struct policies {
    const dq_bench_policies_options *o;
    dq_logger *logger;
    dq_runner *r;
    dq_backend *b;
    dq_progress progress;              /* in rows; told between runs */
    double *prefill, *over, *evicting; /* [runs], [n_policies][runs] twice */
} policies;

/* Of one policy after one length; the two last over the prefill. */
typedef struct outcome {
    int n;
    const dq_kv_policy *policy;
    dq_bench_timing prefill, over;
    double evicting;
} outcome;

dq_status dq_bench_policies_read(dq_bench_policies_options *o, const char *names, dq_err *err)
{
    const char *word[DQ_BENCH_POLICIES_MAX + 1];
    int found[DQ_BENCH_POLICIES_MAX + 1], n = 0;
    for (int i = 0; i < dq_kv_n_policies; i++) word[i] = dq_kv_policies[i].name;
    word[dq_kv_n_policies] = "all";
    DQ_TRY(dq_options_words(found, &n, names, "kv-policy", word, dq_kv_n_policies + 1, err));
    o->n_policies = 0;
    for (int i = 0; i < dq_kv_n_policies; i++) {
        bool asked = false;
        for (int k = 0; k < n; k++)
            asked = asked || found[k] == i ||
                    (found[k] == dq_kv_n_policies && !dq_kv_policies[i].baseline);
        if (asked) o->policy[o->n_policies++] = &dq_kv_policies[i];
    }
    return DQ_OK;
}

/* One context, watched and cut by e, or by nobody. *evicting: the part of *seconds after the pass. */
static dq_status run_one(policies *x, const dq_bench_prompt *p, dq_evictor *e, double *seconds,
                         double *evicting, dq_evict_report *report, dq_err *err)
{
    dq_kv *kv = dq_runner_kv(x->r);
    int32_t seq = x->b->ops->kv_seq_new(x->b, kv);
    const int32_t prefix = (int32_t)p->n;
    const int64_t cu[2] = {0, p->n};
    const dq_batch batch = {
        .n_seq = 1, .n_rows = p->n, .cu_rows = cu, .seq = &seq, .ids = p->ids, .pos = p->pos};
    dq_pass pass = {.logit = dq_logit_plain, .math = x->o->math};
    dq_mat hidden;
    const double start = dq_bench_now(x->b);
    if (e) dq_evictor_watch(e, &batch, &pass.columns, err);
    if (err->code == DQ_OK) dq_runner_pass(x->r, &batch, &pass, &hidden, err);
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
    dq_kv_spec spec = *x->o->kv;
    dq_evict_report report = dq_evict_report_none;
    dq_kv_cached told = {0};
    dq_evictor *e = NULL;
    char what[400];
    spec.evict.policy = x->o->policy[i];
    spec.evict.keep = keep;
    if (dq_evictor_new(&e, x->r, &spec, &pass, err) == DQ_OK)
        run_one(x, p, e, seconds, evicting, &report, err);
    dq_evictor_free(e);
    dq_kv_cached_report(&told, &report, 1);
    snprintf(what, sizeof what, "%s, %d tokens", dq_runner_model(x->r)->name, (int)p->n);
    if (err->code == DQ_OK) dq_kv_report_warn_policy(x->logger, what, &spec, &told);
    return err->code;
}

/* A round of all policies and of the prefill that nobody watches: what is first changes from round to round. */
static dq_status run_all(policies *x, const dq_bench_prompt *p, int64_t run, dq_err *err)
{
    const int n = x->o->n_policies, first = run < 0 ? 0 : (int)(run % (n + 1));
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

/* Outcomes out[n_policies] of one length. */
static dq_status measure(policies *x, outcome *out, int length, dq_err *err)
{
    const int64_t runs = x->o->runs;
    dq_bench_prompt prompt = {0};
    dq_bench_prompt_new(&prompt, dq_runner_model(x->r), length, err);
    for (int64_t i = -1; err->code == DQ_OK && i < runs; i++) {
        run_all(x, &prompt, i, err);
        dq_progress_set(&x->progress, x->progress.done + length, NULL);
    }
    for (int i = 0; err->code == DQ_OK && i < x->o->n_policies; i++)
        out[i] = (outcome){.n = length,
                           .policy = x->o->policy[i],
                           .prefill = dq_bench_timing_of(x->prefill, runs),
                           .over = dq_bench_timing_of(x->over + i * runs, runs),
                           .evicting = dq_bench_timing_of(x->evicting + i * runs, runs).median};
    dq_bench_prompt_free(&prompt);
    return err->code;
}

static json_t *result_json(const policies *x, const outcome *t)
{
    json_t *r = json_object();
    json_object_set_new(r, "model", dq_document_name(dq_runner_model(x->r)->name));
    json_object_set_new(r, "what", json_string("policies"));
    json_object_set_new(r, "tokens", json_integer(t->n));
    json_object_set_new(r, "policy", json_string(t->policy->name));
    json_object_set_new(r, "prefill_seconds_median", dq_document_real(t->prefill.median));
    json_object_set_new(r, "over_prefill_median", dq_document_real(t->over.median));
    json_object_set_new(r, "over_prefill_min", dq_document_real(t->over.min));
    json_object_set_new(r, "over_prefill_max", dq_document_real(t->over.max));
    json_object_set_new(r, "evicting_over_prefill_median", dq_document_real(t->evicting));
    return r;
}

static json_t *document_of(const policies *x)
{
    json_t *doc = dq_bench_document(x->logger, dq_runner_model(x->r), x->b);
    json_t *s = json_object_get(doc, "settings");
    json_object_set_new(s, "runs", json_integer((json_int_t)x->o->runs));
    json_object_set_new(s, "math", json_string(x->o->math_word));
    json_object_set_new(s, "keep", dq_document_real(keep));
    return doc;
}

static dq_status print_table(const policies *x, const outcome *all, dq_err *err)
{
    static const char *const titles[] = {"tokens", "policy", "prefill s", "more",
                                         "least",  "most",   "evicting"};
    dq_table *table = NULL;
    DQ_TRY(dq_table_new(&table, titles, sizeof titles / sizeof *titles, err));
    for (int i = 0; i < x->o->n_lengths * x->o->n_policies; i++) {
        const outcome *t = &all[i];
        dq_table_cell(table, "%d", t->n);
        dq_table_cell(table, "%s", t->policy->name);
        dq_table_cell(table, "%.3f", t->prefill.median);
        dq_table_cell(table, "%.3f", t->over.median);
        dq_table_cell(table, "%.3f", t->over.min);
        dq_table_cell(table, "%.3f", t->over.max);
        dq_table_cell(table, "%.3f", t->evicting);
    }
    printf("%s: evicting all but %g of a context, in %s on %s\n"
           "more: what watching the prefill and evicting after it took, over a prefill that nobody "
           "watches, in turns: median, least, most; evicting: of that, after the prefill\n\n",
           dq_runner_model(x->r)->name, keep, x->o->math_word, x->b->device);
    dq_table_print(table, err);
    dq_table_free(table);
    return err->code;
}

static dq_status run_lengths(policies *x, outcome *all, dq_err *err)
{
    double rows = 0;
    for (int i = 0; i < x->o->n_lengths; i++) rows += x->o->length[i];
    dq_progress_begin(&x->progress, x->logger, "timed", rows * (double)(x->o->runs + 1));
    dq_progress_set(&x->progress, 0, NULL);
    for (int i = 0; i < x->o->n_lengths && err->code == DQ_OK; i++)
        measure(x, all + i * x->o->n_policies, x->o->length[i], err);
    dq_progress_end(&x->progress);
    if (err->code != DQ_OK) return err->code;
    if (!x->o->json) return print_table(x, all, err);
    json_t *doc = document_of(x);
    for (int i = 0; i < x->o->n_lengths * x->o->n_policies; i++)
        json_array_append_new(json_object_get(doc, "results"), result_json(x, &all[i]));
    return dq_document_print(doc, err);
}

/* The share is that of every context: tokens that always stay do not raise it. */
static dq_status check_lengths(const dq_bench_policies_options *o, dq_err *err)
{
    const int least = o->kv->sink + o->kv->recent;
    for (int i = 0; i < o->n_lengths; i++) {
        if (o->length[i] * keep < least)
            return dq_fail(err, DQ_USAGE,
                           "--tokens %d: %g of them are fewer than the %d first and last ones that "
                           "always stay. Give %.0f or more",
                           o->length[i], keep, least, ceil(least / keep));
    }
    return DQ_OK;
}

dq_status dq_bench_policies(dq_logger *logger, dq_runner *r, const dq_bench_policies_options *o,
                            dq_err *err)
{
    DQ_TRY(check_lengths(o, err));
    policies x = {.o = o, .logger = logger, .r = r, .b = dq_runner_backend(r)};
    const size_t runs = (size_t)o->runs, n = (size_t)o->n_policies;
    outcome *all = dq_block_new((size_t)o->n_lengths * n, sizeof *all, err);
    double *times = all ? dq_block_new((2 * n + 1) * runs, sizeof *times, err) : NULL;
    if (times) {
        x.prefill = times;
        x.over = times + runs;
        x.evicting = x.over + n * runs;
        run_lengths(&x, all, err);
    }
    dq_block_free(times);
    dq_block_free(all);
    return err->code;
}
