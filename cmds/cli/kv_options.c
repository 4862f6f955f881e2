/* kv_options: see kv_options.h.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/kv_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Policies that read anything of attention, so that a window of rows means something. */
enum {
    ATTENTION_SUMS =
        DQ_NEEDS_MASS1 | DQ_NEEDS_MASS2 | DQ_NEEDS_LAMBDA_MASS | DQ_NEEDS_DIFF | DQ_NEEDS_LOO
};

void dq_kv_options_begin(dq_kv_options *o)
{
    memset(o, 0, sizeof *o);
    o->group = o->window = o->sink = o->recent = o->every = o->seed = -1;
}

/* One part of a list, cut off by a comma. */
static dq_status next_part(char *part, size_t cap, const char **text, const char *option,
                           dq_err *err)
{
    size_t n = strcspn(*text, ",");
    if (n == 0 || n >= cap)
        return dq_fail(err, DQ_USAGE, "--%s: an empty or overlong part at \"%.80s\".", option,
                       *text);
    memcpy(part, *text, n);
    part[n] = 0;
    *text += n;
    return DQ_OK;
}

typedef dq_status take_part(dq_kv_options *o, const char *part, int i, dq_err *err);

static dq_status each_part(dq_kv_options *o, const char *text, const char *option, int *n,
                           bool sweep, take_part *take, dq_err *err)
{
    char part[64];
    if (!text) return DQ_OK;
    for (const char *p = text;; p++) {
        if (*n == DQ_KV_LIST)
            return dq_fail(err, DQ_USAGE, "--%s: more than %d parts.", option, DQ_KV_LIST);
        if (*n == 1 && !sweep)
            return dq_fail(err, DQ_USAGE, "--%s: one value only; dq eval sweeps over lists.",
                           option);
        DQ_TRY(next_part(part, sizeof part, &p, option, err));
        if (take(o, part, *n, err) != DQ_OK) return dq_in(err, "--%s %s: ", option, part);
        ++*n;
        if (!*p) return DQ_OK;
    }
}

static dq_status take_bits(dq_kv_options *o, const char *part, int i, dq_err *err)
{
    enum { ANY_POWER_OF_TWO = 64 };
    int k, v, end = 0;
    if (sscanf(part, "%9d%n", &k, &end) == 1 && !part[end])
        v = k;
    else if (sscanf(part, "%9d:%9d%n", &k, &v, &end) != 2 || part[end])
        return dq_fail(err, DQ_USAGE, "expected a width, or two of them as K:V.");
    dq_kv_spec spec = dq_kv_plain;
    spec.k_bits = o->k_bits[i] = k;
    spec.v_bits = o->v_bits[i] = v;
    for (int j = 0; j < i; j++) {
        if (o->k_bits[j] == k && o->v_bits[j] == v) return dq_fail(err, DQ_USAGE, "stands twice.");
    }
    return dq_kv_check(&spec, ANY_POWER_OF_TWO, err);
}

static dq_status take_share(dq_kv_options *o, const char *part, int i, dq_err *err)
{
    char *end;
    double x = strtod(part, &end);
    if (end == part || *end || !(x > 0) || x > 1)
        return dq_fail(err, DQ_USAGE,
                       "expected a fraction above 0 and up to 1 (0.25 keeps a quarter). For a "
                       "number of tokens use --kv-tokens.");
    for (int j = 0; j < i; j++) {
        if (o->share[j] == x) return dq_fail(err, DQ_USAGE, "stands twice.");
    }
    o->share[i] = x;
    return DQ_OK;
}

static dq_status take_count(dq_kv_options *o, const char *part, int i, dq_err *err)
{
    char *end;
    errno = 0;
    long long x = strtoll(part, &end, 10);
    if (end == part || *end || errno || x < 1 || x > INT32_MAX)
        return dq_fail(err, DQ_USAGE,
                       "expected a whole number of tokens from 1 to %d. For a share use --kv-keep.",
                       INT32_MAX);
    for (int j = 0; j < i; j++) {
        if (o->count[j] == x) return dq_fail(err, DQ_USAGE, "stands twice.");
    }
    o->count[i] = x;
    return DQ_OK;
}

static dq_status take_policy(dq_kv_options *o, const char *part, int i, dq_err *err)
{
    o->policies[i] = dq_policy_find(part, err);
    for (int j = 0; o->policies[i] && j < i; j++) {
        if (o->policies[j] == o->policies[i]) return dq_fail(err, DQ_USAGE, "stands twice.");
    }
    return err->code;
}

dq_status dq_kv_options_read(dq_kv_options *o, bool sweep, dq_err *err)
{
    if (o->keep && o->tokens)
        return dq_fail(
            err, DQ_USAGE,
            "--kv-keep and --kv-tokens are two ways to say one thing. Give one of them.");
    DQ_TRY(each_part(o, o->bits, "kv-bits", &o->n_bits, sweep, take_bits, err));
    DQ_TRY(each_part(o, o->keep, "kv-keep", &o->n_budgets, sweep, take_share, err));
    DQ_TRY(each_part(o, o->tokens, "kv-tokens", &o->n_budgets, sweep, take_count, err));
    DQ_TRY(each_part(o, o->policy, "kv-policy", &o->n_policies, sweep, take_policy, err));
    if (o->rotate) {
        o->rotate_index = dq_parse_word(o->rotate, "kv-rotate", dq_rotate_name, 3, err);
        if (o->rotate_index < 0) return err->code;
    }
    if (o->budget) {
        o->budget_index = dq_parse_word(o->budget, "kv-budget", dq_kv_budget_name, 3, err);
        if (o->budget_index < 0) return err->code;
    }
    return DQ_OK;
}

/* The settings without what is swept. */
static dq_kv_settings overridden(const dq_kv_options *o, const dq_kv_settings *stored)
{
    dq_kv_settings s = *stored;
    if (o->group >= 0) s.group = (int)o->group;
    if (o->sink >= 0) s.sink = (int)o->sink;
    if (o->recent >= 0) s.recent = (int)o->recent;
    if (o->rotate) s.rotate = (dq_rotate)o->rotate_index;
    if (o->window >= 0) s.window = o->window;
    if (o->every >= 0) s.every = o->every;
    if (o->seed >= 0) s.seed = (uint64_t)o->seed;
    if (o->budget) s.budget = (dq_kv_budget)o->budget_index;
    return s;
}

static const dq_policy *policy_named(const char *name)
{
    for (int i = 0; i < dq_n_policies; i++) {
        if (strcmp(dq_policies[i].name, name) == 0) return &dq_policies[i];
    }
    return NULL;
}

/* Remembers what the settings make use of. Nothing of an eviction stays where there is none. */
static dq_kv_settings noted(dq_kv_options *o, dq_kv_settings s)
{
    o->coded = o->coded || s.k_bits < 16 || s.v_bits < 16;
    o->narrow = o->narrow || s.k_bits <= 4 || s.v_bits <= 4;
    if (!s.policy) {
        const dq_kv_settings plain = dq_kv_settings_plain;
        s.keep = plain.keep;
        s.tokens = plain.tokens;
        s.every = plain.every;
        s.window = plain.window;
        s.budget = plain.budget;
        s.seed = plain.seed;
        return s;
    }
    const dq_policy *p = policy_named(s.policy);
    o->evicts = true;
    o->sums = o->sums || (p && (p->needs & ATTENTION_SUMS));
    o->random = o->random || strcmp(s.policy, "random") == 0;
    return s;
}

dq_status dq_kv_options_list(dq_kv_settings **out, int *n, dq_kv_options *o,
                             const dq_kv_settings *stored, dq_err *err)
{
    const dq_kv_settings base = overridden(o, stored);
    bool evicts = o->n_budgets || stored->policy;
    int n_bits = o->n_bits ? o->n_bits : 1, n_budgets = o->n_budgets ? o->n_budgets : 1;
    int n_policies = evicts && o->n_policies ? o->n_policies : 1;
    dq_kv_settings *list =
        dq_block_new((size_t)(n_bits * n_budgets * n_policies), sizeof *list, err);
    *out = list;
    *n = 0;
    for (int b = 0; list && b < n_bits; b++) {
        for (int p = 0; p < n_policies; p++) {
            for (int k = 0; k < n_budgets; k++) {
                dq_kv_settings s = base;
                if (o->n_bits) {
                    s.k_bits = o->k_bits[b];
                    s.v_bits = o->v_bits[b];
                }
                if (o->n_budgets) {
                    s.keep = o->share[k];
                    s.tokens = o->count[k];
                }
                if (evicts && o->n_policies) s.policy = o->policies[p]->name;
                if (evicts && !s.policy) s.policy = DQ_KV_POLICY;
                list[(*n)++] = noted(o, s);
            }
        }
    }
    return err->code;
}

dq_status dq_kv_options_check(const dq_kv_options *o, dq_err *err)
{
    const struct {
        const char *name;
        bool given, used;
        const char *remedy;
    } all[] = {
        {"kv-policy", o->policy, o->evicts, "nothing is forgotten. Add --kv-keep or --kv-tokens"},
        {"kv-budget", o->budget, o->evicts, "nothing is forgotten. Add --kv-keep or --kv-tokens"},
        {"kv-every", o->every >= 0, o->evicts,
         "nothing is forgotten. Add --kv-keep or --kv-tokens"},
        {"kv-window", o->window >= 0, o->sums,
         "no policy that reads attention is at work. Add --kv-keep or --kv-tokens, with "
         "--kv-policy h2o, snapkv, diff or loo"},
        {"seed", o->seed >= 0, o->random || o->draws,
         "nothing is drawn at random. Add --kv-policy random with --kv-keep"},
        {"kv-group", o->group >= 0, o->narrow,
         "it is for widths of at most 4 bits. Add --kv-bits 4"},
        {"kv-sink", o->sink >= 0, o->coded || o->evicts,
         "the cache is neither coded nor cut. Add --kv-bits or --kv-keep"},
        {"kv-recent", o->recent >= 0, o->coded || o->evicts,
         "the cache is neither coded nor cut. Add --kv-bits or --kv-keep"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].given && !all[i].used)
            return dq_fail(err, DQ_USAGE, "--%s has nothing to act on: %s.", all[i].name,
                           all[i].remedy);
    }
    return DQ_OK;
}

dq_status dq_kv_setting_of(dq_kv_setting *out, const dq_kv_settings *s, const dq_model *m,
                           dq_num num, dq_err *err)
{
    *out = dq_kv_setting_plain;
    if (dq_kv_settings_spec(&out->spec, s, num, m->map.head_dim, err) != DQ_OK)
        return err->code == DQ_MISMATCH ? dq_in(err, "%s: ", m->path) : err->code;
    if (!s->policy) return DQ_OK;
    const dq_policy *policy = policy_named(s->policy);
    if (!policy)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: asks for the eviction policy \"%s\", which this dq does not have. "
                       "Update dq, or give --kv-policy",
                       m->path, s->policy);
    out->evict = (dq_evict_spec){.policy = policy,
                                 .keep = s->tokens ? 0 : s->keep,
                                 .tokens = s->tokens,
                                 .every = s->every,
                                 .window = s->window,
                                 .budget = s->budget,
                                 .seed = s->seed};
    return dq_evict_check(&out->evict, &out->spec, err);
}
