/* Numbers that grow by a factor are rounded to nearest, ties to even, and stand once.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "plan/inside.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dq_status dq_plan_heads_order_text(char text[DQ_KV_HEADS_TEXT], const dq_kv_heads_group *order,
                                   int n, int sharing, dq_err *err)
{
    size_t len = 0;
    for (int i = 0; i < n && len < DQ_KV_HEADS_TEXT; i++) {
        const char *before = i == 0 ? "" : i == sharing ? "/" : ",";
        len += (size_t)snprintf(text + len, DQ_KV_HEADS_TEXT - len, "%s%d.%d", before,
                                order[i].layer, order[i].group);
    }
    if (sharing == n && len < DQ_KV_HEADS_TEXT)
        len += (size_t)snprintf(text + len, DQ_KV_HEADS_TEXT - len, "/");
    if (n <= DQ_KV_HEADS_MAX && len < DQ_KV_HEADS_TEXT) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "%d groups of KV heads are more than a text of heads holds (%d groups, %d "
                   "characters). Use another budget",
                   n, DQ_KV_HEADS_MAX, DQ_KV_HEADS_TEXT - 1);
}

int64_t dq_plan_heads_order_whole(int64_t context, int64_t safe, int n)
{
    return safe + (n - 1) * (context - safe) / n;
}

int dq_plan_heads_order_least(int64_t context, int64_t safe, int64_t kept, int n)
{
    const int64_t whole = n * (kept - safe) / (context - safe);
    return whole < 1 ? 1 : whole < n ? (int)whole : n;
}

int dq_plan_heads_order_numbers(int *out, int least, int n, int tries)
{
    int found = 0;
    for (int i = 0; i < tries; i++) {
        const double grown = least * pow((double)n / least, (double)i / (tries - 1));
        const int x = n - least < tries ? least + i : (int)rint(grown);
        if (x > n) break;
        if (found == 0 || x > out[found - 1]) out[found++] = x;
    }
    return found;
}

void dq_plan_heads_order_sort(int *order, const double *missed, int n)
{
    for (int i = 0; i < n; i++) {
        int k = i;
        for (; k > 0 && missed[order[k - 1]] < missed[i]; k--) order[k] = order[k - 1];
        order[k] = i;
    }
}

/* A cache's name is what it keeps and by which heads, "keep 0.125 heads 1.0/0.0" or "tokens 390
 * heads 0.0/1.0"; without heads every group keeps the same. */

enum { NAME = DQ_KV_HEADS_TEXT + 64 };

/* heads "": none; tokens 0: use the share. */
static void name_of(char name[NAME], double keep, int64_t tokens, const char *heads)
{
    char how[48];
    snprintf(how, sizeof how, "keep %.15g", keep);
    if (strtod(how + 5, NULL) != keep) snprintf(how, sizeof how, "keep %.17g", keep);
    if (tokens) snprintf(how, sizeof how, "tokens %lld", (long long)tokens);
    snprintf(name, NAME, "%s%s%s", how, *heads ? " heads " : "", heads);
}

/* False: not such a name. */
static bool read_name(double *keep, int64_t *tokens, const char **heads, const char *name)
{
    const bool by_share = strncmp(name, "keep ", 5) == 0;
    char *end;
    *keep = 0;
    *tokens = 0;
    if (!by_share && strncmp(name, "tokens ", 7) != 0) return false;
    const double x = dq_real_parse(name + (by_share ? 5 : 7), &end);
    if (by_share && !(x > 0 && x < 1)) return false;
    if (!by_share && !(x >= 1 && x <= INT32_MAX)) return false;
    if (by_share)
        *keep = x;
    else
        *tokens = (int64_t)x;
    if (*end && strncmp(end, " heads ", 7) != 0) return false;
    *heads = *end ? end + 7 : end;
    return true;
}

static dq_status config_of(dq_kv_config *out, const void *arg, const char *name, dq_err *err)
{
    const dq_plan_heads *p = arg;
    const char *heads;
    *out = p->set.kv;
    if (!read_name(&out->evict.keep, &out->evict.tokens, &heads, name))
        return dq_fail(err, DQ_BUG, "no cache is named %.80s", name);
    if (!*heads) return DQ_OK;
    out->evict.budget = DQ_KV_BUDGET_HEADS;
    return dq_kv_config_set_heads(out, heads, err);
}

static bool is_name(const void *arg, const char *name)
{
    const dq_plan_heads *p = arg;
    char same[NAME];
    double keep;
    int64_t tokens;
    const char *heads;
    dq_kv_heads r;
    dq_err err = {0};
    if (strlen(name) >= NAME || !read_name(&keep, &tokens, &heads, name)) return false;
    if (strlen(heads) >= DQ_KV_HEADS_TEXT) return false;
    if (*heads && (dq_kv_heads_parse(&r, heads, &err) != DQ_OK ||
                   dq_model_heads_fit(p->set.in.model, &r, &err) != DQ_OK))
        return false;
    name_of(same, keep, tokens, heads);
    return strcmp(same, name) == 0;
}

static void add_depends(dq_row_writer *w, const void *arg)
{
    const dq_plan_heads *p = arg;
    DQ_PUT(w, "policy", p->set.kv.evict.policy->name, NULL);
    DQ_PUT(w, "dense_type", dq_kv_dense_name[p->set.kv.dense], NULL);
    DQ_PUT(w, "recent", p->set.kv.recent, NULL);
    DQ_PUT(w, "sink", p->set.kv.sink, NULL);
    if (p->set.kv.evict.policy->needs & DQ_NEEDS_GATES)
        DQ_PUT(w, "gates", p->set.in.model->gates->sha256, NULL);
}

/* A share must leave something beyond the protected tokens, and less than all. */
static dq_status check_share(dq_plan_heads *p, dq_err *err)
{
    const dq_plan_heads_settings *s = &p->set;
    const int64_t safe = (int64_t)s->kv.sink + s->kv.recent;
    dq_kv_spec spec = dq_kv_plain;
    spec.sink = s->kv.sink;
    spec.recent = s->kv.recent;
    spec.evict = s->kv.evict;
    spec.evict.keep = s->keep;
    p->context = s->in.ctx / 2;
    p->whole = dq_plan_heads_order_whole(p->context, safe, p->n_groups);
    const int64_t kept = dq_evict_budget(&spec, p->context, NULL);
    if (kept > safe && kept < p->context) {
        p->least = dq_plan_heads_order_least(p->context, safe, kept, p->n_groups);
        return DQ_OK;
    }
    return dq_fail(
        err, DQ_MISMATCH,
        "a share of %g leaves %lld tokens of contexts of %lld tokens (half a window), of "
        "which the first %d and the last %d always stay: there is nothing to share. Use "
        "longer windows, fewer recent tokens or another share",
        s->keep, (long long)kept, (long long)p->context, s->kv.sink, s->kv.recent);
}

static dq_status check_questions(dq_plan_heads *p, dq_err *err)
{
    const dq_plan_heads_settings *s = &p->set;
    const int64_t safe = (int64_t)s->kv.sink + s->kv.recent, shortest = p->caches.shortest;
    if (!s->in.questions) return DQ_OK;
    /* the id after a context is predicted by its last row, which still sees all of it */
    if (p->caches.n_single == p->caches.n_choices)
        return dq_fail(
            err, DQ_MISMATCH,
            "%s: all choices of these questions are a single token, which is predicted before "
            "anything is evicted, so that no cache changes the answers. Move the last words of "
            "each context, which are the question, into its choices",
            s->in.questions_path);
    p->question_whole = dq_plan_heads_order_whole(shortest, safe, p->n_groups);
    if (p->question_whole > safe) return DQ_OK;
    return dq_fail(
        err, DQ_MISMATCH,
        "%s: the shortest context of these questions has %lld tokens, of which the first "
        "%d and the last %d always stay: too few are left to cut one group of %d. Use "
        "longer contexts or fewer recent tokens",
        s->in.questions_path, (long long)shortest, s->kv.sink, s->kv.recent, p->n_groups);
}

static dq_status open_all(dq_plan_heads *p, dq_err *err)
{
    const dq_plan_caches_kind kind = {
        .key = "cache", .config = config_of, .is_name = is_name, .depend = add_depends, .arg = p};
    DQ_TRY(dq_plan_caches_fit(&p->set.in, err));
    const dq_model *m = p->set.in.model;
    const int n = p->n_groups = dq_model_full_layers(m) * m->map.n_groups;
    if (n < 2)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: has %s group of KV heads%s, so that there is nothing to share. Let the "
                       "cache keep as much of each context without heads",
                       m->path, n ? "one" : "no",
                       n < m->n_layers * m->map.n_groups ? " without a window" : "");
    p->group = dq_alloc(p->arena, (size_t)n, sizeof *p->group, err);
    p->alone = dq_alloc(p->arena, (size_t)n, sizeof *p->alone, err);
    p->question_alone = dq_alloc(p->arena, (size_t)n, sizeof *p->question_alone, err);
    p->missed = dq_alloc(p->arena, (size_t)n, sizeof *p->missed, err);
    p->lack = dq_alloc(p->arena, (size_t)n, sizeof *p->lack, err);
    p->order = dq_alloc(p->arena, (size_t)n, sizeof *p->order, err);
    p->trial = dq_alloc(p->arena, (size_t)p->set.tries, sizeof *p->trial, err);
    for (int i = 0, k = 0; err->code == DQ_OK && i < n; k++) {
        const int layer = k / m->map.n_groups;
        if (m->layer[layer].attn.window) continue;
        p->group[i] = (dq_kv_heads_group){(int16_t)layer, (int16_t)(k % m->map.n_groups)};
        p->order[i] = i;
        i++;
    }
    DQ_TRY(err->code);
    if (dq_plan_heads_order_text(p->text, p->group, n, n, err) != DQ_OK)
        return dq_in(err, "%s: ", m->path);
    DQ_TRY(check_share(p, err));
    DQ_TRY(dq_plan_caches_cut(&p->caches, &p->set.in, &kind, p->arena, err));
    /* Model and device must support the plan's caches before anything runs. */
    const char *const heads[] = {"", p->text};
    for (int i = 0; i < 2; i++) {
        char name[NAME];
        dq_kv_spec spec;
        name_of(name, p->set.keep, 0, heads[i]);
        if (dq_plan_caches_spec(&spec, &p->caches, name, err) != DQ_OK)
            return dq_in(err, "%s: ", p->set.in.model->path);
    }
    DQ_TRY(check_questions(p, err));
    const dq_plan_heads_settings *s = &p->set;
    const long long windows = p->caches.win.n, find = s->find;
    if (windows < find + DQ_PLAN_HEADS_LEAST_UNSEEN)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SMALLER_CTX},
                            "%s: too little text: %lld windows of %lld tokens (expected at least "
                            "%lld, of which the first %lld find heads and the others decide). "
                            "Give more text",
                            s->in.text, windows, (long long)s->in.ctx,
                            find + DQ_PLAN_HEADS_LEAST_UNSEEN, find);
    return dq_plan_caches_split(&p->caches, 0, find, err);
}

dq_status dq_plan_heads_open(dq_plan_heads **out, const dq_plan_heads_settings *s, dq_err *err)
{
    dq_arena *a;
    dq_plan_heads *p = *out = dq_arena_object(&a, sizeof *p, err);
    if (!p) return err->code;
    p->arena = a;
    p->set = *s;
    p->chosen = -1;
    if (open_all(p, err) == DQ_OK) return DQ_OK;
    dq_plan_heads_close(p);
    *out = NULL;
    return err->code;
}

void dq_plan_heads_close(dq_plan_heads *p)
{
    if (!p) return;
    dq_plan_caches_end(&p->caches);
    dq_arena_free(p->arena);
}

int dq_plan_heads_numbers(const dq_plan_heads *p)
{
    const int n = p->n_groups - p->least + 1;
    return n < p->set.tries ? n : p->set.tries;
}

dq_status dq_plan_heads_pace(double *seconds, dq_plan_heads *p, dq_err *err)
{
    char name[NAME];
    name_of(name, p->set.keep, 0, "");
    const int cache = dq_plan_caches_find(&p->caches, name, err);
    return cache < 0 ? err->code : dq_plan_caches_pace(seconds, &p->caches, cache, err);
}

double dq_plan_heads_lost(const dq_plan_heads_trial *t)
{
    return t->kld + t->lack;
}

/* The first `sharing` of order[n_groups] share. */
static int cache_of(dq_plan_heads *p, const dq_kv_heads_group *order, int sharing, int64_t tokens,
                    dq_err *err)
{
    char name[NAME], text[DQ_KV_HEADS_TEXT];
    if (dq_plan_heads_order_text(text, order, p->n_groups, sharing, err) != DQ_OK) return -1;
    name_of(name, p->set.keep, tokens, text);
    return dq_plan_caches_find(&p->caches, name, err);
}

static dq_status list_alone(int *alone, dq_plan_heads *p, dq_kv_heads_group *order, int64_t tokens,
                            dq_err *err)
{
    for (int g = 0; g < p->n_groups; g++) {
        int n = 0;
        for (int i = 0; i < p->n_groups; i++) {
            if (i != g) order[n++] = p->group[i];
        }
        order[n] = p->group[g];
        alone[g] = cache_of(p, order, n, tokens, err);
        if (alone[g] < 0) return err->code;
    }
    return DQ_OK;
}

/* Announces windows and questions to run for n caches and `more` later ones. */
static void expect(dq_plan_heads *p, const int *cache, const int *asked, int n, int more)
{
    const dq_plan_caches *c = &p->caches;
    int64_t left = more, left_asked = more;
    for (int i = 0; i < n; i++) {
        left += c->end > 0 && !c->list[cache[i]].known[c->end - 1];
        left_asked += c->n_questions > 0 && !c->list[asked[i]].answered[c->n_questions - 1];
    }
    dq_plan_caches_expect(&p->caches, left, DQ_PLAN_HEADS_UNSEEN);
    dq_plan_caches_ask_expect(&p->caches, left_asked);
}

static dq_status measure(dq_plan_heads *p, const int *cache, const int *asked, int n,
                         const char *what, dq_err *err)
{
    DQ_TRY(dq_plan_caches_run(&p->caches, cache, n, DQ_PLAN_CACHES_SEARCH, what, err));
    return dq_plan_caches_ask_run(&p->caches, asked, n, what, err);
}

/* 0 without searched windows, or without questions. */
static dq_status numbers_of(dq_plan_numbers *x, dq_mean *lack, const dq_plan_heads *p, int cache,
                            int asked, dq_err *err)
{
    *x = (dq_plan_numbers){0};
    *lack = (dq_mean){0};
    if (p->caches.n_questions) DQ_TRY(dq_plan_caches_ask_mean(lack, &p->caches, asked, err));
    if (!p->set.find) return DQ_OK;
    return dq_plan_caches_numbers_of(x, &p->caches, cache, DQ_PLAN_CACHES_SEARCH, err);
}

static dq_status run_all(dq_plan_heads *p, dq_err *err)
{
    dq_kv_heads_group *order = dq_alloc(p->arena, (size_t)p->n_groups, sizeof *order, err);
    if (!order) return err->code;
    DQ_TRY(dq_plan_caches_begin(&p->caches, err));
    const int n = p->n_groups;
    double *missed = dq_alloc(p->arena, (size_t)n, sizeof *missed, err);
    if (!missed) return err->code;
    dq_plan_caches_stage(&p->caches, "groups alone");
    DQ_TRY(list_alone(p->alone, p, order, p->whole, err));
    if (p->caches.n_questions)
        DQ_TRY(list_alone(p->question_alone, p, order, p->question_whole, err));
    expect(p, p->alone, p->question_alone, n, dq_plan_heads_numbers(p));
    DQ_TRY(measure(p, p->alone, p->question_alone, n, "alone", err));
    for (int g = 0; g < n; g++) {
        DQ_TRY(numbers_of(&p->missed[g], &p->lack[g], p, p->alone[g], p->question_alone[g], err));
        missed[g] = p->missed[g].kld.of.value + p->lack[g].value;
    }
    dq_plan_heads_order_sort(p->order, missed, n);
    int *number = dq_alloc(p->arena, (size_t)p->set.tries, sizeof *number, err);
    int *cache = dq_alloc(p->arena, (size_t)p->set.tries, sizeof *cache, err);
    DQ_TRY(err->code);
    dq_plan_caches_stage(&p->caches, "numbers that share");
    for (int i = 0; i < p->n_groups; i++) order[i] = p->group[p->order[i]];
    const int count = dq_plan_heads_order_numbers(number, p->least, p->n_groups, p->set.tries);
    for (int i = 0; i < count; i++) {
        if ((cache[i] = cache_of(p, order, number[i], 0, err)) < 0) return err->code;
    }
    expect(p, cache, cache, count, 0);
    DQ_TRY(measure(p, cache, cache, count, "share", err));
    for (int i = 0; i < count; i++) {
        dq_plan_numbers x;
        dq_mean lack;
        dq_plan_heads_trial *t = &p->trial[p->n_trials++];
        DQ_TRY(numbers_of(&x, &lack, p, cache[i], cache[i], err));
        *t = (dq_plan_heads_trial){number[i], cache[i], x.kld.of.value, lack.value};
        if (i == 0 || dq_plan_heads_lost(t) < dq_plan_heads_lost(&p->trial[p->chosen]))
            p->chosen = i;
    }
    p->all_share = p->trial[p->chosen].sharing == p->n_groups;
    DQ_TRY(dq_plan_heads_order_text(p->text, order, p->n_groups, p->trial[p->chosen].sharing, err));
    enum { VERDICTS = 2 }; /* KLD and perplexity */
    const dq_plan_caches_windows which = DQ_PLAN_CACHES_UNSEEN;
    dq_plan_caches *c = &p->caches;
    char name[NAME];
    int compared[DQ_PLAN_HEADS_UNSEEN] = {p->trial[p->chosen].cache};
    name_of(name, p->set.keep, 0, "");
    dq_plan_caches_stage(c, "unseen windows");
    const int n_compared = p->all_share ? 1 : 2;
    if (n_compared > 1 && (compared[1] = dq_plan_caches_find(c, name, err)) < 0) return err->code;
    dq_plan_caches_expect(c, 0, n_compared);
    DQ_TRY(dq_plan_caches_run(c, compared, n_compared, which, "heads and uniform", err));
    DQ_TRY(dq_plan_caches_found_of(&p->found, c, compared[0], -1, 0.05, err));
    if (p->all_share) return DQ_OK;
    DQ_TRY(dq_plan_caches_numbers_of(&p->uniform.its, c, compared[1], which, err));
    return dq_plan_caches_found_of(&p->uniform.less, c, compared[0], compared[1], 0.05 / VERDICTS,
                                   err);
}

dq_status dq_plan_heads_run(dq_plan_heads *p, dq_err *err)
{
    return run_all(p, err) == DQ_OK ? DQ_OK : dq_work_failed(&p->caches.work, err);
}
