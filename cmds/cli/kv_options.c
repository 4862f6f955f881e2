/* kv_options: see kv_options.h. Rows of --help are made from the table of fields; lists are cut at commas, each part
 * checked by its type. A model's stored settings are the base that given options override, and lists multiply.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/kv_options.h"

#include "base/real.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALL "all" /* of --kv-policy */

static const dq_kv_field *option_at(int place)
{
    return &dq_kv_fields[dq_kv_field_of_option(place)];
}

/* ---- Rows for --help and for reading argv ---- */

static void append(char help[DQ_KV_HELP], const char *text, size_t len)
{
    const size_t n = strlen(help);
    snprintf(help + n, DQ_KV_HELP - n, "%.*s", (int)len, text);
}

static const char all_help[] =
    "; " ALL ", in dq eval: each of those in front, and where they are not given --kv-keep "
    "1,0.5,0.25,0.125 and --kv-bits 16,8,4";

/* "a, b or c"; policies: "a, b; to compare them with: c, d". */
static void append_names(char help[DQ_KV_HELP], const dq_kv_field *f)
{
    const bool policies = f->type == DQ_KV_POLICY;
    const int n = policies ? dq_kv_n_policies : f->n_words;
    for (int i = 0; i < n; i++) {
        const char *name = policies ? dq_kv_policies[i].name : f->words[i];
        const bool turn =
            policies && dq_kv_policies[i].yardstick && i && !dq_kv_policies[i - 1].yardstick;
        const char *before = i == 0                    ? ""
                             : turn                    ? "; to compare them with: "
                             : !policies && i == n - 1 ? " or "
                                                       : ", ";
        append(help, before, strlen(before));
        append(help, name, strlen(name));
    }
    if (policies) append(help, all_help, strlen(all_help));
}

static void append_default(char help[DQ_KV_HELP], const dq_kv_field *f)
{
    char number[32];
    const char *text = number;
    if (f->type == DQ_KV_POLICY)
        text = DQ_POLICY_USUAL ", which loses less than h2o on models of one map and of two";
    else if (dq_kv_field_form(f) == DQ_KV_AS_TEXT)
        text = dq_kv_field_text(f, &dq_kv_config_plain);
    else
        snprintf(number, sizeof number, "%lld",
                 (long long)dq_kv_field_integer(f, &dq_kv_config_plain));
    append(help, text, strlen(text));
}

/* The field's help with {default} and {names} filled in. */
static void fill_help(char help[DQ_KV_HELP], const dq_kv_field *f)
{
    const char *p = f->help;
    for (help[0] = 0; *p;) {
        const size_t n = strcspn(p, "{");
        append(help, p, n);
        p += n;
        if (!*p) break;
        if (strncmp(p, "{names}", 7) == 0)
            append_names(help, f);
        else
            append_default(help, f);
        p += strcspn(p, "}") + 1;
    }
}

void dq_kv_options_begin(dq_kv_options *o, const char *seed_of)
{
    memset(o, 0, sizeof *o);
    o->seed = -1;
    for (int i = 0; i < DQ_KV_FIELDS; i++) o->given[i].number = -1;
    o->row[0] = (dq_opt){
        .help = "KV cache (in dq eval, bits, keep or tokens, policy and budget take lists):"};
    for (int place = 1; place <= DQ_KV_OPTIONS; place++) {
        const int i = dq_kv_field_of_option(place);
        const dq_kv_field *f = &dq_kv_fields[i];
        const bool number = !f->swept && dq_kv_field_form(f) == DQ_KV_AS_INTEGER;
        o->row[place] = (dq_opt){.name = f->option,
                                 .kind = number ? DQ_OPT_INT : DQ_OPT_TEXT,
                                 .to = number ? (void *)&o->given[i].number : &o->given[i].text,
                                 .min = f->min,
                                 .max = f->max,
                                 .value = f->value,
                                 .help = f->help ? o->help[place - 1] : seed_of};
        if (f->help) fill_help(o->help[place - 1], f);
    }
}

static bool is_given(const dq_kv_options *o, const dq_kv_field *f)
{
    return o->given[f - dq_kv_fields].text || o->given[f - dq_kv_fields].number >= 0;
}

const char *dq_kv_options_given(const dq_kv_options *o)
{
    for (int place = 1; place <= DQ_KV_OPTIONS; place++) {
        if (is_given(o, option_at(place))) return option_at(place)->option;
    }
    return NULL;
}

/* ---- Words ---- */

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

static dq_status one_value(const char *option, dq_err *err)
{
    return dq_fail(err, DQ_USAGE, "--%s: one value only; dq eval sweeps over lists.", option);
}

typedef dq_status take_part(dq_kv_options *o, const char *part, int i, dq_err *err);

static dq_status each_part(dq_kv_options *o, const char *text, const char *option, int *n,
                           bool sweep, take_part *take, dq_err *err)
{
    char part[DQ_KV_LISTS];
    if (!text) return DQ_OK;
    for (const char *p = text;; p++) {
        if (*n == DQ_KV_LIST)
            return dq_fail(err, DQ_USAGE, "--%s: more than %d parts.", option, DQ_KV_LIST);
        if (*n == 1 && !sweep) return one_value(option, err);
        DQ_TRY(next_part(part, sizeof part, &p, option, err));
        if (take(o, part, *n, err) != DQ_OK) return dq_in(err, "--%s %s: ", option, part);
        ++*n;
        if (!*p) return DQ_OK;
    }
}

static dq_status take_bits(dq_kv_options *o, const char *part, int i, dq_err *err)
{
    dq_kv_config c = dq_kv_config_plain;
    dq_kv_spec spec;
    c.code = (dq_kv_code)o->code;
    DQ_TRY(dq_kv_config_set_widths(&c, part, err));
    o->bits[i].k_bits = c.k_bits;
    o->bits[i].v_bits = c.v_bits;
    memcpy(o->bits[i].widths, c.widths, sizeof c.widths);
    for (int j = 0; j < i; j++) {
        if (memcmp(&o->bits[j], &o->bits[i], sizeof o->bits[i]) == 0)
            return dq_fail(err, DQ_USAGE, "stands twice.");
    }
    return dq_kv_config_spec(&spec, &c, DQ_NUM_F32, DQ_KV_ANY_DIM, DQ_KV_ANY_LAYERS, err);
}

static dq_status take_share(dq_kv_options *o, const char *part, int i, dq_err *err)
{
    char *end;
    double x = dq_real_parse(part, &end);
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
    o->policies[i] = dq_kv_policy_find(part, err);
    for (int j = 0; o->policies[i] && j < i; j++) {
        if (o->policies[j] == o->policies[i]) return dq_fail(err, DQ_USAGE, "stands twice.");
    }
    return err->code;
}

/* Names of policies with `all` replaced by those that it stands for, the ones that are no yardsticks, in text[cap]. */
static dq_status expand_policies(dq_kv_options *o, char *text, size_t cap, const char *given,
                                 dq_err *err)
{
    size_t n = 0;
    for (const char *p = given; n < cap;) {
        const size_t len = strcspn(p, ",");
        const bool all = len == strlen(ALL) && strncmp(p, ALL, len) == 0;
        o->all = o->all || all;
        if (!all) n += (size_t)snprintf(text + n, cap - n, "%.*s", (int)len, p);
        const char *comma = "";
        for (int i = 0; all && n < cap && i < dq_kv_n_policies; i++) {
            if (dq_kv_policies[i].yardstick) continue;
            n += (size_t)snprintf(text + n, cap - n, "%s%s", comma, dq_kv_policies[i].name);
            comma = ",";
        }
        p += len;
        if (!*p) break;
        if (n < cap) text[n++] = *p;
        p++;
        if (n < cap) text[n] = 0;
    }
    if (n >= cap) return dq_fail(err, DQ_USAGE, "--kv-policy: \"%.80s\" is too long.", given);
    return DQ_OK;
}

static dq_status read_kinds(dq_kv_options *o, const dq_kv_field *f, const char *text, bool sweep,
                            dq_err *err)
{
    DQ_TRY(dq_options_words(o->kinds, &o->n_kinds, text, f->option, f->words, f->n_words, err));
    return o->n_kinds == 1 || sweep ? DQ_OK : one_value(f->option, err);
}

/* A swept option; each type has one way to be swept. */
static dq_status read_list(dq_kv_options *o, const dq_kv_field *f, const char *text, bool sweep,
                           dq_err *err)
{
    switch (f->type) {
    case DQ_KV_WIDTH: return each_part(o, text, f->option, &o->n_bits, sweep, take_bits, err);
    case DQ_KV_SHARE: return each_part(o, text, f->option, &o->n_budgets, sweep, take_share, err);
    case DQ_KV_LONG: return each_part(o, text, f->option, &o->n_budgets, sweep, take_count, err);
    case DQ_KV_POLICY: {
        char names[512];
        DQ_TRY(expand_policies(o, names, sizeof names, text, err));
        return each_part(o, names, f->option, &o->n_policies, sweep, take_policy, err);
    }
    case DQ_KV_WORD: return read_kinds(o, f, text, sweep, err);
    default: return dq_fail(err, DQ_BUG, "--%s: cannot be swept", f->option);
    }
}

/* With --kv-policy all: what policies are compared over where nobody says. */
static void sweep_rest(dq_kv_options *o)
{
    static const double share[] = {1, 0.5, 0.25, 0.125};
    static const int bits[] = {16, 8, 4};
    const bool no_budgets = o->n_budgets == 0, no_bits = o->n_bits == 0;
    for (size_t i = 0; no_budgets && i < sizeof share / sizeof *share; i++)
        o->share[o->n_budgets++] = share[i];
    for (size_t i = 0; no_bits && i < sizeof bits / sizeof *bits; i++, o->n_bits++)
        o->bits[i].k_bits = o->bits[i].v_bits = bits[i];
}

/* Two ways to say one thing. */
static dq_status check_others(const dq_kv_options *o, dq_err *err)
{
    const dq_kv_field *first = NULL;
    for (int place = 1; place <= DQ_KV_OPTIONS; place++) {
        const dq_kv_field *f = option_at(place);
        if (!f->or_other || !is_given(o, f)) continue;
        if (first)
            return dq_fail(err, DQ_USAGE,
                           "--%s and --%s are two ways to say one thing. Give one of them.",
                           first->option, f->option);
        first = f;
    }
    return DQ_OK;
}

dq_status dq_kv_options_read(dq_kv_options *o, bool sweep, dq_err *err)
{
    dq_kv_config c = dq_kv_config_plain;
    DQ_TRY(check_others(o, err));
    o->code = DQ_CODE_AUTO;
    for (int place = 1; place <= DQ_KV_OPTIONS; place++) {
        const int i = dq_kv_field_of_option(place);
        const dq_kv_field *f = &dq_kv_fields[i];
        if (f->applies == DQ_KV_DRAWS) o->seed = o->given[i].number;
        if (!o->given[i].text || f->swept) continue;
        if (f->type == DQ_KV_BY_GROUP) {
            if (dq_kv_config_set_roles(&c, o->given[i].text, err) != DQ_OK)
                return dq_in(err, "--%s: ", f->option);
            continue;
        }
        o->given[i].number =
            dq_options_word(o->given[i].text, f->option, f->words, f->n_words, err);
        if (o->given[i].number < 0) return err->code;
        if (f->words == dq_kv_code_name) o->code = (int)o->given[i].number;
    }
    for (int place = 1; place <= DQ_KV_OPTIONS; place++) { /* widths depend on the code */
        const int i = dq_kv_field_of_option(place);
        if (o->given[i].text && dq_kv_fields[i].swept)
            DQ_TRY(read_list(o, &dq_kv_fields[i], o->given[i].text, sweep, err));
    }
    if (o->all) sweep_rest(o);
    return DQ_OK;
}

/* ---- Configs ---- */

/* The settings without what is swept. */
static dq_kv_config overridden(const dq_kv_options *o, const dq_kv_config *stored)
{
    dq_kv_config c = *stored;
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        if (o->given[i].number >= 0)
            dq_kv_field_set_integer(&dq_kv_fields[i], &c, o->given[i].number);
        if (o->given[i].text && dq_kv_fields[i].type == DQ_KV_BY_GROUP)
            snprintf(c.evict.roles, sizeof c.evict.roles, "%s", o->given[i].text);
    }
    return c;
}

/* Remembers what the settings make use of. Nothing of an eviction stays where there is none, and no
 * roles beside another budget. */
static dq_kv_config noted(dq_kv_options *o, dq_kv_config c)
{
    o->uses |= dq_kv_config_uses(&c);
    if (!c.evict.policy) c.evict = dq_kv_config_plain.evict;
    if (c.evict.budget != DQ_KV_BUDGET_ROLES) memset(c.evict.roles, 0, sizeof c.evict.roles);
    return c;
}

/* Places in the lists of what is swept. */
typedef struct combination {
    int bits, policy, kind, budget;
} combination;

/* `base` with one combination of what is swept. */
static dq_kv_config combined(dq_kv_options *o, dq_kv_config c, combination at, bool evicts,
                             dq_err *err)
{
    if (o->n_bits) {
        c.k_bits = o->bits[at.bits].k_bits;
        c.v_bits = o->bits[at.bits].v_bits;
        memcpy(c.widths, o->bits[at.bits].widths, sizeof c.widths);
    }
    if (o->n_budgets) {
        c.evict.keep = o->share[at.budget];
        c.evict.tokens = o->count[at.budget];
    }
    if (evicts && o->n_policies) c.evict.policy = o->policies[at.policy];
    if (evicts && o->n_kinds) c.evict.budget = (dq_kv_budget)o->kinds[at.kind];
    if (evicts && !c.evict.policy) c.evict.policy = dq_kv_policy_find(DQ_POLICY_USUAL, err);
    return noted(o, c);
}

dq_status dq_kv_options_list(dq_kv_config **out, int *n, dq_kv_options *o,
                             const dq_kv_config *stored, dq_err *err)
{
    const dq_kv_config base = overridden(o, stored);
    const bool evicts = o->n_budgets || stored->evict.policy;
    const int n_bits = o->n_bits ? o->n_bits : 1, n_budgets = o->n_budgets ? o->n_budgets : 1;
    const int n_policies = evicts && o->n_policies ? o->n_policies : 1;
    const int n_kinds = evicts && o->n_kinds ? o->n_kinds : 1;
    const int ways = n_policies * n_kinds;
    dq_kv_config *list =
        dq_block_new((size_t)n_bits * (size_t)ways * (size_t)n_budgets, sizeof *list, err);
    *out = list;
    *n = 0;
    for (int w = 0; list && w < n_bits; w++) {
        for (int way = 0; way < ways; way++) {
            for (int k = 0; k < n_budgets; k++) {
                const combination at = {w, way / n_kinds, way % n_kinds, k};
                /* what keeps everything is the same by every policy and budget */
                if (o->all && o->n_budgets && o->share[k] == 1 && way > 0) continue;
                list[(*n)++] = combined(o, base, at, evicts, err);
            }
        }
    }
    return err->code;
}

/* What to add, by what an option needs something of. */
static const char *remedy(unsigned applies)
{
    if (applies & DQ_KV_CODES)
        return applies & DQ_KV_EVICTS
                   ? "the cache is neither coded nor cut. Add --kv-bits or --kv-keep"
                   : "nothing is coded. Add --kv-bits";
    if (applies & DQ_KV_NARROW)
        return "it is for token codes of at most 4 bits. Add --kv-bits 4, with --kv-code token";
    if (applies & DQ_KV_EVICTS) return "nothing is forgotten. Add --kv-keep or --kv-tokens";
    if (applies & DQ_KV_SUMS)
        return "no policy that reads attention is at work. Add --kv-keep or --kv-tokens, with "
               "--kv-policy h2o, snapkv, diff or loo";
    if (applies & DQ_KV_BY_ROLES)
        return "no budget goes by roles. Add --kv-budget roles with --kv-keep or --kv-tokens";
    return "nothing is drawn at random. Add --kv-policy random with --kv-keep";
}

dq_status dq_kv_options_check(const dq_kv_options *o, dq_err *err)
{
    const unsigned uses = o->uses | (o->draws ? DQ_KV_DRAWS : 0);
    for (int place = 1; place <= DQ_KV_OPTIONS; place++) {
        const dq_kv_field *f = option_at(place);
        if (is_given(o, f) && f->applies && !(f->applies & uses))
            return dq_fail(err, DQ_USAGE, "--%s has nothing to act on: %s.", f->option,
                           remedy(f->applies));
    }
    return DQ_OK;
}

dq_status dq_kv_options_spec(dq_kv_spec *out, const dq_kv_config *c, const dq_model *m, dq_num num,
                             dq_err *err)
{
    if (dq_model_kv_spec(out, c, m, num, err) == DQ_OK)
        dq_evict_check(out, err);
    else if (err->code == DQ_USAGE)
        return dq_in(err, "--kv-bits: ");
    return err->code == DQ_MISMATCH ? dq_in(err, "%s: ", m->path) : err->code;
}
