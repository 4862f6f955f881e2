/* kv_options: see kv_options.h. Rows are made from the table of fields; lists are cut at commas, each part checked by its
 * type. What an option needs is compared with what the configs of all models use.
 * SPDX-License-Identifier: MIT */
#include "settings/kv_options.h"

#include "base/text.h"
#include "settings/kv_sweep.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dq_kv_field *option_at(int place)
{
    return &dq_kv_fields[dq_kv_field_of_option(place)];
}

/* ---- Rows for --help and for reading argv ---- */

static void offer_policies(dq_kv_options *o, dq_opt *row)
{
    int n = 0;
    for (; n < dq_kv_n_policies && n < DQ_KV_LIST; n++) o->policy_name[n] = dq_kv_policies[n].name;
    o->policy_name[n++] = DQ_KV_ALL;
    *row = dq_opt_offer(o->policy_name, n, *row);
}

void dq_kv_options_begin(dq_kv_options *o, const char *seed_of)
{
    memset(o, 0, sizeof *o);
    o->seed = -1;
    for (int i = 0; i < DQ_KV_FIELDS; i++) o->given[i].number = -1;
    o->row[0] = dq_opt_topic(
        "kv", "KV cache (in dq eval, bits, quant, keep or tokens, policy and budget take lists):");
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
                                 .help = f->help ? o->help[place - 1] : seed_of,
                                 .words = f->words,
                                 .n_words = f->n_words};
        if (f->help) dq_kv_help_fill(o->help[place - 1], f);
        if (f->type == DQ_KV_POLICY) offer_policies(o, &o->row[place]);
    }
    o->row[1 + DQ_KV_OPTIONS] = dq_opt_text(
        "kv-gates", "FILE", &o->gates,
        "gates, what the policy kvzap goes by, as dq plan gates has fitted them to the model; "
        "containers that dq quantize makes with them hold them");
    o->row[2 + DQ_KV_OPTIONS] = dq_opt_text(
        "kv-size", "F[@N]", &o->size_text,
        "what holds at most this share of the bytes that all tokens take in 16 bits (1/8) where a "
        "context of N tokens ends: widths and --kv-keep, which are printed. Without N: half of the "
        "window of a text, and the prefix of dq logits");
}

static bool is_given(const dq_kv_options *o, const dq_kv_field *f)
{
    return o->given[f - dq_kv_fields].text || o->given[f - dq_kv_fields].number >= 0;
}

const char *dq_kv_options_given(const dq_kv_options *o)
{
    for (int place = 1; place <= DQ_KV_OPTIONS; place++) {
        const bool other = o->draws && option_at(place)->applies == DQ_KV_DRAWS;
        if (is_given(o, option_at(place)) && !other) return option_at(place)->option;
    }
    return o->size_text ? "kv-size" : o->gates ? "kv-gates" : NULL;
}

/* ---- Words ---- */

static dq_status empty_part(const char *option, const char *list, dq_err *err)
{
    return dq_fail(err, DQ_USAGE, "--%s: an empty part in \"%.80s\".", option, list);
}

/* One part of a list, cut off by a comma. */
static dq_status next_part(char *part, size_t cap, const char **text, const char *list,
                           const char *option, dq_err *err)
{
    size_t n = strcspn(*text, ",");
    if (n == 0) return empty_part(option, list, err);
    if (n >= cap)
        return dq_fail(err, DQ_USAGE, "--%s: an overlong part at \"%.80s\".", option, *text);
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
        DQ_TRY(next_part(part, sizeof part, &p, text, option, err));
        if (take(o, part, *n, err) != DQ_OK) return dq_in(err, "--%s %s: ", option, part);
        ++*n;
        if (!*p) return DQ_OK;
    }
}

/* Widths that one code of those asked for has. */
static dq_status take_bits(dq_kv_options *o, const char *part, int i, dq_err *err)
{
    dq_kv_config c = dq_kv_config_plain;
    c.dense = DQ_KV_DENSE_AUTO;
    DQ_TRY(dq_kv_config_set_widths(&c, part, err));
    o->bits[i].k_bits = c.k_bits;
    o->bits[i].v_bits = c.v_bits;
    o->bits[i].dense = c.dense;
    memcpy(o->bits[i].widths, c.widths, sizeof c.widths);
    for (int j = 0; j < i; j++) {
        if (memcmp(&o->bits[j], &o->bits[i], sizeof o->bits[i]) == 0)
            return dq_fail(err, DQ_USAGE, "stands twice.");
    }
    return dq_kv_sweep_check_widths(o, c, err);
}

static dq_status take_share(dq_kv_options *o, const char *part, int i, dq_err *err)
{
    char *end;
    double x = dq_real_parse(part, &end);
    if (end == part || *end || !(x >= DQ_KV_KEEP_LEAST) || x > 1)
        return dq_fail(err, DQ_USAGE,
                       "expected a fraction from %g to 1 (0.25 keeps a quarter). For a "
                       "number of tokens use --kv-tokens.",
                       DQ_KV_KEEP_LEAST);
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

/* Which stand where budgets do; what they keep is found when a model is known. */
static dq_status take_size(dq_kv_options *o, const char *part, int i, dq_err *err)
{
    DQ_TRY(dq_kv_size_parse(&o->size[i].size, &o->size[i].context, part, err));
    for (int j = 0; j < i; j++) {
        if (o->size[j].size == o->size[i].size && o->size[j].context == o->size[i].context)
            return dq_fail(err, DQ_USAGE, "stands twice.");
    }
    o->share[i] = 0.5;
    return DQ_OK;
}

static dq_status take_policy(dq_kv_options *o, const char *part, int i, dq_err *err)
{
    dq_err unknown = {0};
    o->policies[i] = dq_kv_policy_find(part, &unknown);
    if (!o->policies[i])
        return dq_fail(err, DQ_USAGE, "%s, or " DQ_KV_ALL " in dq eval", unknown.text);
    for (int j = 0; o->policies[i] && j < i; j++) {
        if (o->policies[j] == o->policies[i])
            return dq_fail(err, DQ_USAGE, "stands twice%s.",
                           o->all ? ", as " DQ_KV_ALL " has it" : "");
    }
    return err->code;
}

/* Names of policies with `all` replaced by those that it stands for, the ones that are no baselines, in text[cap]. */
static dq_status expand_policies(dq_kv_options *o, char *text, size_t cap, const char *given,
                                 dq_err *err)
{
    size_t n = 0;
    for (const char *p = given; n < cap;) {
        const size_t len = strcspn(p, ",");
        const bool all = len == strlen(DQ_KV_ALL) && strncmp(p, DQ_KV_ALL, len) == 0;
        if (len == 0) return empty_part("kv-policy", given, err);
        if (all && o->all)
            return dq_fail(err, DQ_USAGE, "--kv-policy: " DQ_KV_ALL " stands twice.");
        o->all = o->all || all;
        if (!all) n += (size_t)snprintf(text + n, cap - n, "%.*s", (int)len, p);
        const char *comma = "";
        for (int i = 0; all && n < cap && i < dq_kv_n_policies; i++) {
            if (dq_kv_policies[i].baseline) continue;
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

/* Codes or budgets. */
static dq_status read_words(dq_kv_options *o, const dq_kv_field *f, const char *text, bool sweep,
                            dq_err *err)
{
    const bool codes = f->words == dq_kv_quant_name;
    int *list = codes ? o->codes : o->kinds, *n = codes ? &o->n_codes : &o->n_kinds;
    DQ_TRY(dq_options_words(list, n, text, f->option, f->words, f->n_words, err));
    return *n == 1 || sweep ? DQ_OK : one_value(f->option, err);
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
    case DQ_KV_WORD: return read_words(o, f, text, sweep, err);
    default: return dq_fail(err, DQ_BUG, "--%s: cannot be swept", f->option);
    }
}

/* With --kv-policy all: what policies are compared over where nobody says. */
static void sweep_rest(dq_kv_options *o)
{
    static const double share[] = {1, 0.5, 0.25, 0.125};
    static const int bits[] = {16, 8, 4};
    const bool no_budgets = o->n_budgets == 0, no_bits = o->n_bits == 0 && !o->size_text;
    for (size_t i = 0; no_budgets && i < sizeof share / sizeof *share; i++)
        o->share[o->n_budgets++] = share[i];
    for (size_t i = 0; no_bits && i < sizeof bits / sizeof *bits; i++, o->n_bits++) {
        o->bits[i].k_bits = o->bits[i].v_bits = bits[i];
        o->bits[i].dense = DQ_KV_DENSE_AUTO;
    }
}

/* Two ways to say one thing. */
static dq_status check_others(const dq_kv_options *o, dq_err *err)
{
    const dq_kv_field *first = NULL;
    for (int place = 1; o->size_text && place <= DQ_KV_OPTIONS; place++) {
        const dq_kv_field *f = option_at(place);
        if ((f->or_other || f->type == DQ_KV_WIDTH) && is_given(o, f))
            return dq_fail(err, DQ_USAGE, "--kv-size says what --%s would. Leave one of them out.",
                           f->option);
    }
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

/* An option of one value that comes as a text. */
static dq_status read_one(dq_kv_options *o, int i, dq_err *err)
{
    const dq_kv_field *f = &dq_kv_fields[i];
    dq_kv_config c = dq_kv_config_plain;
    if (f->type == DQ_KV_BY_GROUP)
        return dq_kv_config_set_heads(&c, o->given[i].text, err) == DQ_OK
                   ? DQ_OK
                   : dq_in(err, "--%s: ", f->option);
    o->given[i].number = dq_options_word(o->given[i].text, f->option, f->words, f->n_words, err);
    return o->given[i].number < 0 ? err->code : DQ_OK;
}

dq_status dq_kv_options_read(dq_kv_options *o, bool sweep, dq_err *err)
{
    DQ_TRY(check_others(o, err));
    for (int widths = 0; widths < 2; widths++) { /* after the codes that they depend on */
        for (int place = 1; place <= DQ_KV_OPTIONS; place++) {
            const int i = dq_kv_field_of_option(place);
            const dq_kv_field *f = &dq_kv_fields[i];
            if (f->applies == DQ_KV_DRAWS) o->seed = o->given[i].number;
            if (!o->given[i].text || (f->type == DQ_KV_WIDTH) != widths) continue;
            DQ_TRY(f->swept ? read_list(o, f, o->given[i].text, sweep, err) : read_one(o, i, err));
        }
    }
    DQ_TRY(each_part(o, o->size_text, "kv-size", &o->n_budgets, sweep, take_size, err));
    DQ_TRY(dq_kv_sweep_check_dense(o, err));
    if (o->all) sweep_rest(o); /* of the given type, whichever it is */
    return dq_kv_sweep_check_codes(o, err);
}

/* ---- Checks ---- */

/* What to add, by what an option needs something of. */
static const char *remedy(const dq_kv_options *o, unsigned applies)
{
    if (applies & DQ_KV_CODES)
        return applies & DQ_KV_EVICTS
                   ? "the cache is neither coded nor cut. Add --kv-bits or --kv-keep"
                   : "nothing is coded. Add --kv-bits";
    if (applies & DQ_KV_NARROW)
        return o->size_text
                   ? "it is for per-token codes of at most 4 bits, and mixed ones. Add --kv-quant "
                     "mixed, or name a smaller --kv-size"
                   : "it is for per-token codes of at most 4 bits, and mixed ones. Add --kv-bits "
                     "4, with --kv-quant per-token or mixed";
    if (applies & DQ_KV_EVICTS) return "nothing is evicted. Add --kv-keep or --kv-tokens";
    if (applies & DQ_KV_SUMS)
        return "no policy that reads attention is at work. Add --kv-keep or --kv-tokens, with "
               "--kv-policy h2o, snapkv or diff";
    if (applies & DQ_KV_BY_HEADS)
        return "no budget goes by heads. Add --kv-budget heads with --kv-keep or --kv-tokens";
    return "nothing is drawn at random. Add --kv-policy random with --kv-keep";
}

dq_status dq_kv_options_check(const dq_kv_options *o, dq_err *err)
{
    const unsigned uses = o->uses | (o->draws ? DQ_KV_DRAWS : 0);
    for (int place = 1; place <= DQ_KV_OPTIONS; place++) {
        const dq_kv_field *f = option_at(place);
        if (is_given(o, f) && f->applies && !(f->applies & uses))
            return dq_fail(err, DQ_USAGE, "--%s has nothing to act on: %s.", f->option,
                           remedy(o, f->applies));
    }
    if (o->gates && !(uses & DQ_KV_BY_GATES))
        return dq_fail(err, DQ_USAGE,
                       "--kv-gates has nothing to act on: no cache evicts by kvzap. Add "
                       "--kv-policy kvzap and --kv-keep.");
    return DQ_OK;
}

dq_status dq_kv_options_gates(const dq_kv_options *o, dq_model *m, dq_err *err)
{
    return o->gates ? dq_model_take_gates(m, o->gates, err) : DQ_OK;
}

/* Whether it is the container's own number of tokens that is too small. */
static bool stores_few_tokens(const dq_kv_config *c, const dq_model *m)
{
    return m->is_container && c->evict.tokens && c->evict.tokens == m->kv.evict.tokens &&
           c->evict.tokens < c->sink + c->recent;
}

/* Whether the widths are the container's own. */
static bool stores_widths(const dq_kv_config *c, const dq_model *m)
{
    return m->is_container && c->k_bits == m->kv.k_bits && c->v_bits == m->kv.v_bits &&
           strcmp(c->widths, m->kv.widths) == 0;
}

dq_status dq_kv_options_spec(dq_kv_spec *out, const dq_kv_config *c, const dq_model *m, dq_num num,
                             dq_err *err)
{
    bool stored;
    if (dq_model_kv_spec(out, c, m, num, err) == DQ_OK) {
        dq_evict_check(out, err);
        stored = stores_few_tokens(c, m);
    } else {
        stored = stores_widths(c, m);
        if (err->code == DQ_USAGE && !stored) return dq_in(err, "--kv-bits: ");
    }
    return err->code == DQ_MISMATCH || (err->code == DQ_USAGE && stored)
               ? dq_in(err, "%s: ", m->path)
               : err->code;
}

dq_status dq_kv_options_fit(dq_kv_spec *out, const dq_kv_config *c, const dq_model *m, dq_math math,
                            const dq_backend *b, dq_logger *logger, dq_err *err)
{
    dq_err lacks = {0};
    DQ_TRY(dq_kv_options_spec(out, c, m, math.kv, err));
    if (c->dense != DQ_KV_DENSE_AUTO || dq_backend_can(b, m, math, out, &lacks) == DQ_OK ||
        !(lacks.n_remedies && lacks.remedy[0].code == DQ_REMEDY_KV_DENSE))
        return dq_backend_can(b, m, math, out, err);
    if (logger) dq_logger_warn(logger, "%s, so they stay f32 here: twice the bytes", lacks.text);
    out->dense = DQ_KV_F32;
    return dq_backend_can(b, m, math, out, err);
}
