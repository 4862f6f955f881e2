/* The field's text is copied up to each {, and what stands for the word in braces is appended.
 * SPDX-License-Identifier: MIT */
#include "settings/cache_options.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DQ_KV_ALL "all" /* of --kv-policy: the policies that are no baselines */

static dq_status kv_sweep_check_widths(const dq_kv_options *o, dq_kv_config c, dq_err *err);
static dq_status kv_sweep_check_codes(const dq_kv_options *o, dq_err *err);
static dq_status kv_sweep_check_dense(const dq_kv_options *o, dq_err *err);

static void append(char help[DQ_KV_HELP], const char *text, size_t len)
{
    const size_t n = strlen(help);
    snprintf(help + n, DQ_KV_HELP - n, "%.*s", (int)len, text);
}

static const char all_help[] =
    "; " DQ_KV_ALL ", in dq eval: each of those in front, and where they are not given --kv-keep "
    "1,0.5,0.25,0.125 and --kv-bits 16,8,4";

static const char codes_help[] =
    "; in dq eval, per-token,per-channel,mixed compares them at every width that they have";

/* Fills {default} and {names} into a field's help, cut off at DQ_KV_HELP with its NUL. */
static void kv_help_fill(char help[DQ_KV_HELP], const dq_kv_field *f)
{
    const char *p = f->help;
    for (help[0] = 0; *p;) {
        const size_t n = strcspn(p, "{");
        append(help, p, n);
        p += n;
        if (!*p) break;
        if (strncmp(p, "{names}", 7) == 0) {
            /* "a, b or c"; for policies: "a, b; to compare them with: c, d". */
            const bool policies = f->type == DQ_KV_POLICY;
            const int count = policies ? dq_kv_n_policies : f->n_words;
            for (int i = 0; i < count; i++) {
                const char *name = policies ? dq_kv_policies[i].name : f->words[i];
                const bool turn =
                    policies && dq_kv_policies[i].baseline && i && !dq_kv_policies[i - 1].baseline;
                const char *before = i == 0                        ? ""
                                     : turn                        ? "; to compare them with: "
                                     : !policies && i == count - 1 ? " or "
                                                                   : ", ";
                append(help, before, strlen(before));
                append(help, name, strlen(name));
            }
            if (policies) append(help, all_help, strlen(all_help));
            if (f->words == dq_kv_quant_name) append(help, codes_help, strlen(codes_help));
        } else {
            char number[32];
            const char *text = number;
            if (f->type == DQ_KV_POLICY)
                text = "kvzap where there are gates, else " DQ_POLICY_USUAL;
            else if (dq_kv_field_form(f) == DQ_KV_AS_TEXT)
                text = dq_kv_field_get(f, &dq_kv_config_plain).text;
            else
                snprintf(number, sizeof number, "%lld",
                         (long long)dq_kv_field_get(f, &dq_kv_config_plain).integer);
            append(help, text, strlen(text));
        }
        p += strcspn(p, "}") + 1;
    }
}

/* Rows come from the table of fields; lists are cut at commas, and each part is checked by its
 * type. What an option needs is compared with what the configs of all models use. */

static const dq_kv_field *option_at(int place)
{
    return &dq_kv_fields[dq_kv_field_of_option(place)];
}

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
        if (f->help) kv_help_fill(o->help[place - 1], f);
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

/* Without dashes; NULL: none is given. */
static const char *kv_options_given(const dq_kv_options *o)
{
    for (int place = 1; place <= DQ_KV_OPTIONS; place++) {
        const bool other = o->draws && option_at(place)->applies == DQ_KV_DRAWS;
        if (is_given(o, option_at(place)) && !other) return option_at(place)->option;
    }
    return o->size_text ? "kv-size" : o->gates ? "kv-gates" : NULL;
}

static dq_status empty_part(const char *option, const char *list, dq_err *err)
{
    return dq_fail(err, DQ_USAGE, "--%s: an empty part in \"%.80s\".", option, list);
}

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

/* Fills list[*n] of items of `size` bytes, each of which is there once. */
static dq_status each_part(dq_kv_options *o, const char *text, const char *option, const void *list,
                           size_t size, int *n, bool sweep, take_part *take, dq_err *err)
{
    const char *item = list;
    char part[DQ_KV_LISTS];
    if (!text) return DQ_OK;
    for (const char *p = text;; p++) {
        if (*n == DQ_KV_LIST)
            return dq_fail(err, DQ_USAGE, "--%s: more than %d parts.", option, DQ_KV_LIST);
        if (*n == 1 && !sweep) return one_value(option, err);
        DQ_TRY(next_part(part, sizeof part, &p, text, option, err));
        take(o, part, *n, err);
        for (int j = 0; err->code == DQ_OK && j < *n; j++) {
            if (memcmp(item + (size_t)j * size, item + (size_t)*n * size, size) == 0)
                dq_fail(err, DQ_USAGE, "stands twice%s.",
                        list == o->policies && o->all ? ", as " DQ_KV_ALL " has it" : "");
        }
        if (err->code != DQ_OK) return dq_in(err, "--%s %s: ", option, part);
        ++*n;
        if (!*p) return DQ_OK;
    }
}

/* At least one of the given codes must have the widths. */
static dq_status take_bits(dq_kv_options *o, const char *part, int i, dq_err *err)
{
    dq_kv_config c = dq_kv_config_plain;
    c.dense = DQ_KV_DENSE_AUTO;
    DQ_TRY(dq_kv_config_set_widths(&c, part, err));
    o->bits[i].k_bits = c.k_bits;
    o->bits[i].v_bits = c.v_bits;
    o->bits[i].dense = c.dense;
    memcpy(o->bits[i].widths, c.widths, sizeof c.widths);
    return kv_sweep_check_widths(o, c, err);
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
    o->count[i] = x;
    return DQ_OK;
}

/* Sizes take the place of budgets; what they keep is known with the model. */
static dq_status take_size(dq_kv_options *o, const char *part, int i, dq_err *err)
{
    DQ_TRY(dq_kv_size_parse(&o->size[i].size, &o->size[i].context, part, err));
    o->share[i] = 0.5;
    return DQ_OK;
}

static dq_status take_policy(dq_kv_options *o, const char *part, int i, dq_err *err)
{
    dq_err unknown = {0};
    o->policies[i] = dq_kv_policy_find(part, &unknown);
    if (!o->policies[i])
        return dq_fail(err, DQ_USAGE, "%s, or " DQ_KV_ALL " in dq eval", unknown.text);
    return DQ_OK;
}

/* Replaces `all` in a list of policies by those that are no baselines, in text[cap]. */
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

static dq_status read_words(dq_kv_options *o, const dq_kv_field *f, const char *text, bool sweep,
                            dq_err *err)
{
    const bool codes = f->words == dq_kv_quant_name;
    int *list = codes ? o->codes : o->kinds, *n = codes ? &o->n_codes : &o->n_kinds;
    DQ_TRY(dq_options_words(list, n, text, f->option, f->words, f->n_words, err));
    return *n == 1 || sweep ? DQ_OK : one_value(f->option, err);
}

/* Each type has one way to be swept. */
static dq_status read_list(dq_kv_options *o, const dq_kv_field *f, const char *text, bool sweep,
                           dq_err *err)
{
    switch (f->type) {
    case DQ_KV_WIDTH:
        return each_part(o, text, f->option, o->bits, sizeof *o->bits, &o->n_bits, sweep, take_bits,
                         err);
    case DQ_KV_SHARE:
        return each_part(o, text, f->option, o->share, sizeof *o->share, &o->n_budgets, sweep,
                         take_share, err);
    case DQ_KV_LONG:
        return each_part(o, text, f->option, o->count, sizeof *o->count, &o->n_budgets, sweep,
                         take_count, err);
    case DQ_KV_POLICY: {
        char names[512];
        DQ_TRY(expand_policies(o, names, sizeof names, text, err));
        return each_part(o, names, f->option, o->policies, sizeof *o->policies, &o->n_policies,
                         sweep, take_policy, err);
    }
    case DQ_KV_WORD: return read_words(o, f, text, sweep, err);
    default: return dq_fail(err, DQ_BUG, "--%s: cannot be swept", f->option);
    }
}

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
    for (int widths = 0; widths < 2; widths++) { /* after the codes that they depend on */
        for (int place = 1; place <= DQ_KV_OPTIONS; place++) {
            const int i = dq_kv_field_of_option(place);
            const dq_kv_field *f = &dq_kv_fields[i];
            if (f->applies == DQ_KV_DRAWS) o->seed = o->given[i].number;
            if (!o->given[i].text || (f->type == DQ_KV_WIDTH) != widths) continue;
            DQ_TRY(f->swept ? read_list(o, f, o->given[i].text, sweep, err) : read_one(o, i, err));
        }
    }
    DQ_TRY(each_part(o, o->size_text, "kv-size", o->size, sizeof *o->size, &o->n_budgets, sweep,
                     take_size, err));
    DQ_TRY(kv_sweep_check_dense(o, err));
    if (o->all) {
        /* Default budgets of --kv-policy all. */
        static const double share[] = {1, 0.5, 0.25, 0.125};
        static const int bits[] = {16, 8, 4};
        const bool no_budgets = o->n_budgets == 0, no_bits = o->n_bits == 0 && !o->size_text;
        for (size_t i = 0; no_budgets && i < sizeof share / sizeof *share; i++)
            o->share[o->n_budgets++] = share[i];
        for (size_t i = 0; no_bits && i < sizeof bits / sizeof *bits; i++, o->n_bits++) {
            o->bits[i].k_bits = o->bits[i].v_bits = bits[i];
            o->bits[i].dense = DQ_KV_DENSE_AUTO; /* of the given type, whichever it is */
        }
    }
    return kv_sweep_check_codes(o, err);
}

/* What to add, by what an option needs. */
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

dq_status dq_kv_options_spec(dq_kv_spec *out, const dq_kv_config *c, const dq_model *m, dq_num num,
                             dq_err *err)
{
    bool stored;
    if (dq_model_kv_spec(out, c, m, num, err) == DQ_OK) {
        dq_evict_check(out, err);
        stored = m->is_container && c->evict.tokens && c->evict.tokens == m->kv.evict.tokens &&
                 c->evict.tokens < c->sink + c->recent;
    } else {
        stored = m->is_container && c->k_bits == m->kv.k_bits && c->v_bits == m->kv.v_bits &&
                 strcmp(c->widths, m->kv.widths) == 0;
        if (err->code == DQ_USAGE && !stored) return dq_in(err, "--kv-bits: ");
    }
    return err->code == DQ_MISMATCH || (err->code == DQ_USAGE && stored)
               ? dq_in(err, "%s: ", m->path)
               : err->code;
}

dq_status dq_kv_options_fit(dq_kv_spec *out, const dq_kv_config *c, const dq_model *m, dq_math math,
                            const dq_backend *b, dq_err *err)
{
    DQ_TRY(dq_kv_options_spec(out, c, m, math.kv, err));
    return dq_backend_can(b, m, math, out, err);
}

/* A combination is a place in every list, counted as one number; given options override a model's
 * stored settings. Repeated combinations are found by comparing caches. */

static int at_least_one(int n)
{
    return n ? n : 1;
}

static int64_t dense_given(const dq_kv_options *o)
{
    int i = 0;
    while (dq_kv_fields[i].words != dq_kv_dense_name) i++;
    return o->given[i].number;
}

static void set_code(const dq_kv_options *o, dq_kv_config *c, int place)
{
    if (o->n_codes) c->quant = (dq_kv_quant)o->codes[place];
}

/* 32 also says what is not coded; other widths leave that to --kv-dense-type. */
static void set_bits(const dq_kv_options *o, dq_kv_config *c, int place)
{
    if (!o->n_bits) return;
    c->k_bits = o->bits[place].k_bits;
    c->v_bits = o->bits[place].v_bits;
    if (o->bits[place].dense == DQ_KV_F32) c->dense = DQ_KV_F32;
    memcpy(c->widths, o->bits[place].widths, sizeof c->widths);
}

/* Whether some model takes it; *spec is filled in any case. */
static dq_status check_exists(dq_kv_spec *spec, const dq_kv_config *c, dq_err *err)
{
    return dq_kv_config_spec(spec, c, DQ_NUM_F32, DQ_KV_ANY_DIM, DQ_KV_ANY_LAYERS, DQ_KV_ANY_MAPS,
                             err);
}

/* While options are read, codes before widths: whether some model takes the widths of c with a
 * given code, or its own without any; else what dq_kv_config_spec says of the first code. */
static dq_status kv_sweep_check_widths(const dq_kv_options *o, dq_kv_config c, dq_err *err)
{
    dq_kv_spec spec;
    dq_err first = {0};
    for (int k = 0; k < at_least_one(o->n_codes); k++) {
        dq_err lacks = {0};
        set_code(o, &c, k);
        if (check_exists(&spec, &c, &lacks) == DQ_OK) return DQ_OK;
        if (k == 0) first = lacks;
    }
    *err = first;
    return err->code;
}

/* DQ_USAGE: one of several codes has none of the given widths. */
static dq_status kv_sweep_check_codes(const dq_kv_options *o, dq_err *err)
{
    for (int k = 0; k < o->n_codes; k++) {
        dq_err first = {0};
        bool has = false;
        for (int i = 0; i < o->n_bits; i++) {
            dq_kv_config c = dq_kv_config_plain;
            dq_kv_spec spec;
            dq_err lacks = {0};
            set_bits(o, &c, i);
            set_code(o, &c, k);
            if (check_exists(&spec, &c, &lacks) == DQ_OK)
                has = has || dq_kv_config_uses(&c, DQ_KV_ANY_MAPS) & DQ_KV_CODES;
            else if (first.code == DQ_OK)
                first = lacks;
        }
        if (!has && first.code != DQ_OK)
            return dq_fail(err, DQ_USAGE, "--kv-quant %s: no width of --kv-bits has such codes: %s",
                           dq_kv_quant_name[o->codes[k]], first.text);
    }
    return DQ_OK;
}

/* DQ_USAGE: a width contradicts the type of what is not coded. */
static dq_status kv_sweep_check_dense(const dq_kv_options *o, dq_err *err)
{
    const int64_t type = dense_given(o);
    const bool two_bytes = type == DQ_KV_F16 || type == DQ_KV_BF16;
    for (int i = 0; i < o->n_bits; i++) {
        dq_kv_config c = dq_kv_config_plain;
        dq_kv_spec spec;
        dq_err ignored = {0};
        const bool f32 = o->bits[i].dense == DQ_KV_F32;
        set_bits(o, &c, i);
        check_exists(&spec, &c, &ignored);
        if (f32 && two_bytes)
            return dq_fail(
                err, DQ_USAGE,
                "--kv-bits 32 is f32, and --kv-dense-type says %s. Leave one of them out.",
                dq_kv_dense_name[type]);
        if (!f32 && type == DQ_KV_F32 && (spec.k_bits == 16 || spec.v_bits == 16))
            return dq_fail(
                err, DQ_USAGE,
                "--kv-bits 16 has two bytes an element, and --kv-dense-type f32 four. Use "
                "--kv-bits 32, or leave --kv-dense-type out.");
    }
    return DQ_OK;
}

/* What is not coded: as --kv-dense-type says; else as in the container, if it has cache settings
 * and no widths are given; else 16 bits with any KV option; else f32, the reference. */
static dq_kv_dense dense_of(const dq_kv_options *o, const dq_kv_config *stored)
{
    const bool says = !dq_kv_config_same(stored, &dq_kv_config_plain);
    if (dense_given(o) >= 0) return (dq_kv_dense)dense_given(o);
    if (says && !o->n_bits && !o->size_text) return stored->dense;
    return kv_options_given(o) ? DQ_KV_DENSE_AUTO : stored->dense;
}

static dq_kv_config overridden(const dq_kv_options *o, const dq_kv_config *stored)
{
    dq_kv_config c = *stored;
    dq_err none = {0}; /* options are checked already */
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        if (o->given[i].number >= 0)
            dq_kv_field_set(&dq_kv_fields[i], &c, (dq_kv_value){.integer = o->given[i].number},
                            NULL, &none);
        if (o->given[i].text && dq_kv_fields[i].type == DQ_KV_BY_GROUP)
            snprintf(c.evict.heads, sizeof c.evict.heads, "%s", o->given[i].text);
    }
    c.dense = dense_of(o, stored);
    return c;
}

/* The length of each swept list, or places in them. */
typedef struct combination {
    int bits, code, policy, kind, budget;
} combination;

/* Budgets change first, widths last. */
static combination places_of(combination n, int i)
{
    combination at;
    at.budget = i % n.budget;
    i /= n.budget;
    at.kind = i % n.kind;
    i /= n.kind;
    at.policy = i % n.policy;
    i /= n.policy;
    at.code = i % n.code;
    at.bits = i / n.code;
    return at;
}

/* Settings without what is swept, for a model. */
typedef struct sweep {
    const dq_kv_options *o;
    const dq_model *m; /* NULL: not known yet */
    dq_kv_config base;
    bool evicts;
} sweep;

static int maps_of(const sweep *s)
{
    return s->m ? s->m->map.n_maps : DQ_KV_ANY_MAPS;
}

static bool has_gates(const sweep *s)
{
    return s->o->gates || (s->m && s->m->gates);
}

/* `base` with one combination. Among several codes auto becomes the one it stands for; a cache
 * without codes has the name that auto gives it. */
static dq_kv_config combined(const sweep *s, combination at)
{
    const dq_kv_options *o = s->o;
    const bool evicts = s->evicts;
    dq_kv_config c = s->base;
    set_bits(o, &c, at.bits);
    set_code(o, &c, at.code);
    if (o->n_budgets) {
        c.evict.keep = o->share[at.budget];
        c.evict.tokens = o->count[at.budget];
    }
    if (o->size_text) { /* until the model is known */
        c.k_bits = c.v_bits = dq_kv_size_rows[dq_kv_size_first(o->size[at.budget].size)].bits;
        memset(c.widths, 0, sizeof c.widths);
    }
    if (evicts && o->n_policies) c.evict.policy = o->policies[at.policy];
    if (evicts && o->n_kinds) c.evict.budget = (dq_kv_budget)o->kinds[at.kind];
    const bool chosen = evicts && !c.evict.policy;
    if (chosen) c.evict.policy = dq_kv_policy_usual(has_gates(s));
    if (evicts && (chosen || o->n_policies) && !o->n_kinds) c.evict.budget = DQ_KV_BUDGET_USUAL;
    if (o->n_codes > 1) {
        if (!(dq_kv_config_uses(&c, maps_of(s)) & DQ_KV_CODES)) c.quant = DQ_KV_QUANT_AUTO;
        c.quant = dq_kv_config_quant(&c, maps_of(s));
    }
    return c;
}

/* Why a combination is no cache of its own. */
typedef enum omission {
    LISTED,     /* it is one */
    REPEATED,   /* keeps everything under another policy or budget, or 16 bits by another code */
    UNDITHERED, /* per-channel codes that equal dithered ones in the list */
    LACKING,    /* of several codes, one that has no such widths */
    UNGATED     /* of all policies, one that the model has no gates for */
} omission;

/* Compares a cache with an earlier one that differs only in its place in the list of codes. */
static omission beside(const dq_kv_config *c, const dq_kv_config *before)
{
    dq_kv_spec a, b;
    dq_err lacks = {0};
    if (c->quant == before->quant) return REPEATED;
    if (check_exists(&a, c, &lacks) != DQ_OK || check_exists(&b, before, &lacks) != DQ_OK)
        return LISTED;
    return dq_kv_spec_same(&a, &b) ? UNDITHERED : LISTED;
}

static omission omission_of(const sweep *s, combination at)
{
    const dq_kv_options *o = s->o;
    const dq_kv_config c = combined(s, at);
    combination before = at;
    dq_kv_spec spec;
    dq_err lacks = {0};
    if (o->all && o->n_budgets && o->share[at.budget] == 1 && (at.policy || at.kind))
        return REPEATED;
    if (o->all && c.evict.policy && c.evict.policy->needs & DQ_NEEDS_GATES && !has_gates(s))
        return UNGATED;
    for (before.code = 0; before.code < at.code; before.code++) {
        const dq_kv_config b = combined(s, before);
        const omission it = beside(&c, &b);
        if (it != LISTED) return it;
    }
    return o->n_codes > 1 && check_exists(&spec, &c, &lacks) != DQ_OK ? LACKING : LISTED;
}

/* All widths that codes lack count as one reason. */
static const char *lacking(const dq_kv_spec *s, const dq_err *lacks)
{
    const bool one_width = !s->widths[0];
    if (one_width && s->quant == DQ_KV_PER_TOKEN && !dq_kv_token_widths(s->k_bits, s->v_bits))
        return "per-token codes have 16, 8, 6 or 4 bits, those of values 3 and 2 too";
    return lacks->text;
}

static bool same_size(const dq_kv_sized *a, const dq_kv_sized *b)
{
    return a->of.size == b->of.size && a->of.context == b->of.context &&
           a->row.bits == b->row.bits && a->row.recent == b->row.recent && a->keep == b->keep &&
           a->share == b->share;
}

dq_kv_size dq_kv_sweep_size(const dq_kv_options *o, int i)
{
    dq_kv_size size = o->size[i];
    for (int k = 0; k < DQ_KV_FIELDS; k++) {
        const bool recent = dq_kv_fields[k].config == offsetof(dq_kv_config, recent);
        size.recent = size.recent || (recent && o->given[k].number >= 0);
    }
    if (size.context == 0) size.context = o->context;
    return size;
}

/* Sets c to what the i-th size comes to, and remembers it. */
static dq_status set_size(dq_kv_options *o, dq_kv_config *c, int i, const dq_model *m, dq_err *err)
{
    const dq_kv_size size = dq_kv_sweep_size(o, i);
    dq_kv_sized found;
    if (size.context == 0)
        return dq_fail(err, DQ_USAGE,
                       "--kv-size %g: for contexts of how many tokens? Say it: --kv-size %g@2048.",
                       size.size, size.size);
    if (dq_model_kv_size(c, &found, &size, m, err) != DQ_OK)
        return dq_in(err, "--kv-size %g: ", size.size);
    for (int k = 0; k < o->n_sized; k++) {
        if (same_size(&o->sized[k], &found)) return DQ_OK;
    }
    const int most = (int)(sizeof o->sized / sizeof *o->sized);
    if (o->n_sized == most)
        return dq_fail(err, DQ_USAGE,
                       "--kv-size comes to more than %d caches with these codes and policies. Name "
                       "fewer.",
                       most);
    o->sized[o->n_sized++] = found;
    return DQ_OK;
}

const char *dq_kv_sweep_sized(char text[DQ_KV_SIZED], const dq_kv_sized *s)
{
    size_t n = (size_t)snprintf(text, DQ_KV_SIZED, "%g of %lld tokens: --kv-bits %d", s->of.size,
                                (long long)s->of.context, s->row.bits);
    if (s->keep < 1) n += (size_t)snprintf(text + n, DQ_KV_SIZED - n, " --kv-keep %.10g", s->keep);
    if (s->row.recent >= 0)
        n += (size_t)snprintf(text + n, DQ_KV_SIZED - n, " --kv-recent %d", s->row.recent);
    snprintf(text + n, DQ_KV_SIZED - n, ", at most %.4f of 16 bits", s->share);
    return text;
}

dq_status dq_kv_sweep_list(dq_kv_config **out, int *n, dq_kv_options *o, const dq_kv_config *stored,
                           const dq_model *m, dq_err *err)
{
    const sweep s = {o, m, overridden(o, stored), o->n_budgets || stored->evict.policy};
    const combination of =
        (combination){at_least_one(o->n_bits), at_least_one(o->n_codes),
                      s.evicts ? at_least_one(o->n_policies) : 1,
                      s.evicts ? at_least_one(o->n_kinds) : 1, at_least_one(o->n_budgets)};
    const int all = of.bits * of.code * of.policy * of.kind * of.budget;
    dq_kv_config *list = dq_block_new((size_t)all, sizeof *list, err);
    *out = list;
    *n = 0;
    for (int i = 0; list && i < all; i++) {
        const combination at = places_of(of, i);
        dq_kv_config c = combined(&s, at);
        const omission why = omission_of(&s, at);
        /* Of two codes that are one, page is what results call it. */
        char widths[DQ_KV_TEXT], what[DQ_KV_TEXT + 32];
        dq_kv_spec spec;
        dq_err lacks = {0};
        if (o->logger && why == UNGATED)
            dq_logger_left_out(
                o->logger, "the policy kvzap",
                "the model has no gates. Make them by dq plan gates, for --kv-gates");
        if (o->logger && !(why != UNDITHERED && why != LACKING)) {
            check_exists(&spec, &c, &lacks);
            snprintf(what, sizeof what, "%s as %s codes", dq_kv_spec_widths(widths, &spec),
                     dq_kv_quant_name[why == LACKING ? spec.quant : DQ_KV_DITHER]);
            dq_logger_left_out(
                o->logger, what,
                why == LACKING
                    ? lacking(&spec, &lacks)
                    : "the same as per-channel codes, as only values of 4 to 8 bits are dithered");
        }
        if (why != LISTED) continue;
        if (o->size_text && m && set_size(o, &c, at.budget, m, err) != DQ_OK) break;
        o->uses |= dq_kv_config_uses(&c, maps_of(&s));
        /* Nothing of an eviction stays where there is none, and no heads beside another budget. */
        if (!c.evict.policy) c.evict = dq_kv_config_plain.evict;
        if (c.evict.budget != DQ_KV_BUDGET_HEADS) memset(c.evict.heads, 0, sizeof c.evict.heads);
        list[(*n)++] = c;
    }
    return err->code;
}

/* Words are checked at once; what a container says is known when the model is open, so widths and
 * policies are resolved then. */

void dq_pass_options_begin(dq_pass_options *o, const char *seed_of)
{
    *o = (dq_pass_options){0};
    dq_kv_options_begin(&o->kv, seed_of);
}

dq_status dq_pass_options_of(dq_pass *pass, dq_kv_spec *kv, dq_pass_options *o, dq_model *m,
                             const dq_backend *b, dq_err *err)
{
    dq_kv_config *list;
    int n;
    const int64_t bits = o->logit_bits ? o->logit_bits : m->logit.bits;
    pass->logit.bits = (int)bits;
    pass->logit.granularity =
        o->granularity.text ? (dq_granularity)o->granularity.at : m->logit.granularity;
    pass->math = dq_backend_math(b, (dq_num)o->math.at);
    if (o->kv.gates) DQ_TRY(dq_model_take_gates(m, o->kv.gates, err));
    if (dq_kv_sweep_list(&list, &n, &o->kv, &m->kv, m, err) == DQ_OK &&
        dq_kv_options_fit(kv, &list[0], m, pass->math, b, err) == DQ_OK)
        dq_kv_options_check(&o->kv, err);
    if (err->code == DQ_OK) pass->math = dq_backend_math_of(b, pass->math, kv, m->map.head_dim);
    for (int i = 0; err->code == DQ_OK && o->kv.logger && i < o->kv.n_sized; i++) {
        char text[DQ_KV_SIZED];
        dq_logger_say(o->kv.logger, "KV size %s", dq_kv_sweep_sized(text, &o->kv.sized[i]));
    }
    dq_block_free(list);
    return err->code;
}
