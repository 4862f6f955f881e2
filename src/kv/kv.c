/* Checks say what a value must be; which option to give is left to the remedy. What a row reads
 * follows from positions alone, by binary search in the ascending ones that are kept.
 * SPDX-License-Identifier: MIT */
#include "kv/kv.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

const char *const dq_num_name[DQ_NUMS + 1] = {"f32", "bf16", "int8", "f16"};
const char *const dq_kv_quant_name[DQ_KV_QUANTS + 1] = {"per-token", "per-channel", "dither",
                                                        "mixed", "auto"};
const char *const dq_kv_dense_name[DQ_KV_DENSE_TYPES + 1] = {"f32", "f16", "bf16", "auto"};

const dq_evict_spec dq_evict_none = {.keep = 1, .window = -1};
const dq_kv_spec dq_kv_plain = {
    .k_bits = 16,
    .v_bits = 16,
    .group = DQ_KV_GROUP,
    .sink = DQ_KV_SINK,
    .recent = DQ_KV_RECENT,
    .evict = {.keep = 1, .window = -1},
};

bool dq_math_same(dq_math a, dq_math b)
{
    return a.linear == b.linear && a.qk == b.qk && a.pv == b.pv && a.kv == b.kv;
}

const char *dq_kv_spec_widths(char text[DQ_KV_TEXT], const dq_kv_spec *s)
{
    if (s->widths[0])
        snprintf(text, DQ_KV_TEXT, "%s", s->widths);
    else
        snprintf(text, DQ_KV_TEXT, "%g:%g", dq_kv_shown_bits(s, false), dq_kv_shown_bits(s, true));
    return text;
}

/* Whether `auto` rotates keys (values) of so many bits, where head_dim is a power of two. */
static bool auto_rotates(dq_kv_quant code, int bits, bool values)
{
    if (code == DQ_KV_PER_TOKEN) return bits <= 4;
    if (values && code != DQ_KV_MIXED) return false; /* a scale for each channel does it */
    return bits <= 8;
}

/* " rotated" or " unrotated" where that differs from `auto`. */
static const char *rotation_text(const dq_kv_spec *s)
{
    if (s->rotate_k == auto_rotates(s->quant, s->k_bits, false) &&
        s->rotate_v == auto_rotates(s->quant, s->v_bits, true))
        return "";
    return s->rotate_k || s->rotate_v ? " rotated" : " unrotated";
}

const char *dq_kv_codes_text(char text[DQ_KV_TEXT], const dq_kv_spec *s)
{
    const bool say = dq_kv_has_codes(s) && s->quant != DQ_KV_PER_TOKEN;
    size_t n = strlen(dq_kv_spec_widths(text, s));
    if (say) n += (size_t)snprintf(text + n, DQ_KV_TEXT - n, " %s", dq_kv_quant_name[s->quant]);
    if (s->dense == DQ_KV_BF16 || (s->dense == DQ_KV_F32 && (dq_kv_has_codes(s) || s->widths[0])))
        n += (size_t)snprintf(text + n, DQ_KV_TEXT - n, " %s", dq_kv_dense_name[s->dense]);
    snprintf(text + n, DQ_KV_TEXT - n, "%s", rotation_text(s));
    return text;
}

double dq_kv_mean_bits(const dq_kv_spec *s, bool values)
{
    dq_kv_widths w;
    dq_err err = {0};
    if (!s->widths[0] || dq_kv_widths_parse(&w, s->widths, &err) != DQ_OK)
        return values ? s->v_bits : s->k_bits;
    return dq_kv_widths_mean(&w, values);
}

double dq_kv_shown_bits(const dq_kv_spec *s, bool values)
{
    const double bits = dq_kv_mean_bits(s, values);
    return bits == 16 && s->dense == DQ_KV_F32 ? 32 : bits;
}

bool dq_kv_spec_is_plain(const dq_kv_spec *s)
{
    return !dq_kv_has_codes(s) && s->dense == DQ_KV_F32 && !s->rotate_k && !s->rotate_v &&
           !s->evict.policy;
}

/* Sets of widths, a bit for each. */
enum { WIDE = 1 << 16 | 1 << 8 | 1 << 6 | 1 << 4, NARROW = 1 << 3 | 1 << 2, ODD = 1 << 5 };

static bool is_in(unsigned set, int bits)
{
    return bits > 0 && bits <= 16 && (set >> bits & 1);
}

bool dq_kv_token_widths(int k_bits, int v_bits)
{
    return is_in(WIDE, k_bits) && is_in(WIDE | NARROW, v_bits);
}

static dq_status check_width(const char *what, int bits, unsigned allowed, const char *widths,
                             dq_err *err)
{
    const bool as_page = is_in(WIDE | NARROW | ODD, bits);
    if (is_in(allowed, bits)) return DQ_OK;
    return dq_fail_with(err, DQ_USAGE,
                        (dq_remedy){.code = as_page ? DQ_REMEDY_KV_PAGE : DQ_REMEDY_NONE},
                        "%d bits for %s are not offered (%s: %s).", bits, what, what, widths);
}

dq_status dq_kv_check(const dq_kv_spec *spec, int head_dim, dq_err *err)
{
    const unsigned more = dq_kv_by_page(spec) ? NARROW | ODD : 0;
    if (spec->widths[0] && !dq_kv_by_page(spec))
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_KV_PAGE},
                            "widths that differ by layer or map need per-channel codes.");
    DQ_TRY(check_width("keys", spec->k_bits, WIDE | more,
                       "32, 16, 8, 6, 4; as per-channel codes 5, 3, 2 too", err));
    DQ_TRY(check_width("values", spec->v_bits, WIDE | NARROW | more,
                       "32, 16, 8, 6, 4, 3, 2; as per-channel codes 5 too", err));
    if ((unsigned)spec->quant >= DQ_KV_QUANTS)
        return dq_fail(err, DQ_BUG, "no KV code number %d", (int)spec->quant);
    if ((unsigned)spec->dense >= DQ_KV_DENSE_TYPES)
        return dq_fail(err, DQ_BUG, "no KV type number %d", (int)spec->dense);
    if (spec->group < 1 || spec->sink < 0 || spec->recent < 0)
        return dq_fail(err, DQ_USAGE,
                       "a KV cache needs a group of at least 1 channel and windows of at least 0 "
                       "tokens (found group %d, sink %d, recent %d).",
                       spec->group, spec->sink, spec->recent);
    if ((spec->rotate_k || spec->rotate_v) && (head_dim & (head_dim - 1)) != 0)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_KV_ROTATE},
                            "a rotation needs a head_dim that is a power of two, found %d",
                            head_dim);
    return DQ_OK;
}

dq_status dq_evict_check(const dq_kv_spec *spec, dq_err *err)
{
    const dq_evict_spec *e = &spec->evict;
    const int64_t least = (int64_t)spec->sink + spec->recent;
    if (e->policy && !e->policy->score)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_KV_OTHER_POLICY},
                            "asks for the eviction policy \"%s\", which this dq does not have",
                            e->policy->name);
    if (e->keep != 0 && e->tokens != 0)
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_KV_KEEP_OR_TOKENS},
                            "a share and a number of tokens to keep exclude each other.");
    if (e->tokens == 0 && !(e->keep >= DQ_KV_KEEP_LEAST && e->keep <= 1))
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_KV_OPTION},
                            "keep %g: expected a share from %g to 1.", e->keep, DQ_KV_KEEP_LEAST);
    if (e->tokens != 0 && e->tokens < least)
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_KV_SINK_RECENT},
                            "tokens %lld is less than the %d first and %d last tokens that are "
                            "always kept. Give at least %lld",
                            (long long)e->tokens, spec->sink, spec->recent, (long long)least);
    if (e->tokens < 0 || e->every < 0 || e->window < -1)
        return dq_fail(
            err, DQ_USAGE,
            "numbers of tokens must not be negative (tokens %lld, every %lld, window %lld).",
            (long long)e->tokens, (long long)e->every, (long long)e->window);
    if ((unsigned)e->budget >= DQ_KV_BUDGETS)
        return dq_fail(err, DQ_BUG, "no KV budget number %d", (int)e->budget);
    if (e->budget == DQ_KV_BUDGET_HEADS && !e->heads[0])
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_KV_HEADS},
                            "a budget by heads needs a list of the groups of KV heads");
    if (!e->policy && (e->tokens != 0 || e->keep < 1 || e->every != 0))
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_KV_POLICY},
                            "evicting tokens needs a policy.");
    return DQ_OK;
}

int64_t dq_evict_budget(const dq_kv_spec *spec, int64_t prefix, bool *raised)
{
    const dq_evict_spec *e = &spec->evict;
    const int64_t least = (int64_t)spec->sink + spec->recent;
    int64_t budget = e->tokens;
    /* 0.07 is inexact: 0.07 * 100 must be 7, not the next integer */
    if (budget == 0) budget = (int64_t)ceil(e->keep * (double)prefix - 1e-9);
    if (raised) *raised = budget < least && budget < prefix;
    if (budget < least) budget = least;
    return budget < prefix ? budget : prefix;
}

int64_t dq_evict_window(const dq_evict_spec *evict)
{
    return evict->window < 0 ? evict->policy->window : evict->window;
}

int32_t dq_kv_coded_end(const dq_kv_spec *spec, int32_t t)
{
    int64_t after = (int64_t)t + 1 - spec->recent;
    return after > 0 ? (int32_t)(after / DQ_PAGE_TOKENS * DQ_PAGE_TOKENS) : 0;
}

int64_t dq_kv_coded_until(const dq_kv_spec *spec, int32_t end)
{
    return (int64_t)end + DQ_PAGE_TOKENS + spec->recent - 1;
}

int dq_kv_ahead(const dq_kv_spec *spec)
{
    return dq_kv_by_page(spec) && spec->recent == 0 ? 0 : 1;
}

/* How many of n ascending positions are below `end`. */
static int64_t below(const int32_t *pos, int64_t n, int64_t end)
{
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (pos[middle] < end)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void dq_kv_reads(const dq_kv_spec *spec, int window, int32_t t, const int32_t *pos, int64_t n,
                 int64_t *reads, int64_t *coded)
{
    if (window) {
        const int32_t first = t < window ? 0 : t - window + 1;
        const int32_t from = first > spec->sink ? first : spec->sink;
        const int32_t end = dq_kv_has_codes(spec) ? dq_kv_coded_end(spec, t) : 0;
        *reads = (int64_t)t - first + 1;
        *coded = end > from ? end - from : 0;
        return;
    }
    *reads = below(pos, n, (int64_t)t + 1);
    *coded = 0;
    if (!dq_kv_has_codes(spec)) return;
    *coded = below(pos, n, dq_kv_coded_end(spec, t)) - below(pos, n, spec->sink);
    if (*coded < 0) *coded = 0;
}

int64_t dq_kv_window_cached(int window, int64_t n)
{
    const int64_t gone = window && n >= window ? n - window + 1 : 0;
    return n - gone / DQ_PAGE_TOKENS * DQ_PAGE_TOKENS;
}

bool dq_kv_has_codes(const dq_kv_spec *spec)
{
    return spec->k_bits < 16 || spec->v_bits < 16;
}

bool dq_kv_by_page(const dq_kv_spec *spec)
{
    return spec->quant != DQ_KV_PER_TOKEN && dq_kv_has_codes(spec);
}

bool dq_kv_by_channel(const dq_kv_spec *spec, bool values)
{
    return spec->quant != DQ_KV_PER_TOKEN && !(values && spec->quant == DQ_KV_MIXED);
}

bool dq_kv_dithers(const dq_kv_spec *spec)
{
    return spec->quant == DQ_KV_DITHER && spec->v_bits >= 4 && spec->v_bits < 16;
}

float dq_kv_dither(int32_t position)
{
    const double turns = position % DQ_PAGE_TOKENS * 0.6180339887498949 + 0.25;
    return (float)(turns - floor(turns) - 0.5);
}

static double head_bytes(const dq_kv_spec *s, double bits, bool values, int head_dim)
{
    int padded = (head_dim + 15) / 16 * 16;
    double scales = bits > 4 ? 1 : head_dim / s->group + (head_dim % s->group != 0);
    if (dq_kv_by_channel(s, values)) scales = 2.0 * head_dim / DQ_PAGE_TOKENS;
    const int runs = (head_dim - 1) / (2 * s->group) + 1;
    if (values && s->quant == DQ_KV_MIXED) scales = 2.0 * runs;
    return bits == 16 ? (double)dq_kv_dense_bytes(s) * head_dim
                      : padded * bits / 8.0 + 2.0 * scales;
}

double dq_kv_token_bytes(const dq_kv_spec *spec, int head_dim)
{
    return head_bytes(spec, dq_kv_mean_bits(spec, false), false, head_dim) +
           head_bytes(spec, dq_kv_mean_bits(spec, true), true, head_dim);
}

int dq_kv_dense_bytes(const dq_kv_spec *spec)
{
    return spec->dense == DQ_KV_F32 ? 4 : 2;
}

const char *const dq_granularity_name[DQ_GRANULARITIES] = {"per-tensor", "per-head", "per-row",
                                                           "per-tile"};
const dq_logit_spec dq_logit_plain = {.bits = 16, .granularity = DQ_GRANULARITY_TENSOR};

bool dq_logit_parse(dq_logit_spec *out, int64_t bits, const char *granularity)
{
    if (bits != 16 && !(bits >= 2 && bits <= 8)) return false;
    for (int g = 0; g < DQ_GRANULARITIES; g++) {
        if (strcmp(granularity, dq_granularity_name[g]) != 0) continue;
        *out = (dq_logit_spec){.bits = (int)bits, .granularity = (dq_granularity)g};
        return true;
    }
    return false;
}

/* A request becomes what runs, and comes back from JSON, field by field by the rows of kv.h. */

const char *const dq_rotate_name[DQ_ROTATES] = {"auto", "on", "off"};

const dq_kv_config dq_kv_config_plain = {.k_bits = 16,
                                         .v_bits = 16,
                                         .quant = DQ_KV_QUANT_AUTO,
                                         .group = DQ_KV_GROUP,
                                         .sink = DQ_KV_SINK,
                                         .recent = DQ_KV_RECENT,
                                         .evict = {.keep = 1, .window = -1, .seed = 1}};

void dq_kv_config_renew(dq_kv_config *c)
{
    const bool used = dq_kv_config_uses(c, DQ_KV_ANY_MAPS) & (DQ_KV_CODES | DQ_KV_EVICTS);
    if (!used && c->recent == 64) c->recent = DQ_KV_RECENT;
}

/* A list of equal widths becomes plain widths; an unreadable one stays. */
static dq_kv_config without_list(const dq_kv_config *c)
{
    dq_kv_config alike = *c;
    dq_err err = {0};
    dq_kv_config_fit(&alike, DQ_KV_ANY_LAYERS, &err);
    return alike;
}

dq_kv_quant dq_kv_config_quant(const dq_kv_config *asked, int n_maps)
{
    const dq_kv_config c = without_list(asked);
    const dq_evict_spec *x = &c.evict;
    const bool evicts = x->policy && (x->tokens || x->keep < 1);
    const bool offered = !c.widths[0] && dq_kv_token_widths(c.k_bits, c.v_bits);
    const bool coded = c.k_bits != 16 || c.v_bits != 16;
    if (c.quant != DQ_KV_QUANT_AUTO) return c.quant;
    if (coded && n_maps < 2) return DQ_KV_MIXED;
    return !coded || (evicts && offered) ? DQ_KV_PER_TOKEN : DQ_KV_PER_CHANNEL;
}

unsigned dq_kv_config_uses(const dq_kv_config *asked, int n_maps)
{
    const dq_kv_config alike = without_list(asked), *c = &alike;
    const dq_kv_policy *p = c->evict.policy;
    const dq_kv_quant code = dq_kv_config_quant(c, n_maps);
    unsigned uses = 0;
    if (c->k_bits < 16 || c->v_bits < 16) uses |= DQ_KV_CODES;
    if (code == DQ_KV_PER_TOKEN && (c->k_bits <= 4 || c->v_bits <= 4)) uses |= DQ_KV_NARROW;
    if (code == DQ_KV_MIXED && c->v_bits < 16) uses |= DQ_KV_NARROW;
    if (p) uses |= DQ_KV_EVICTS;
    if (p && p->needs & DQ_NEEDS_ATTENTION) uses |= DQ_KV_SUMS;
    if (p && p->draws) uses |= DQ_KV_DRAWS;
    if (p && p->needs & DQ_NEEDS_GATES) uses |= DQ_KV_BY_GATES;
    if (p && c->evict.budget == DQ_KV_BUDGET_HEADS) uses |= DQ_KV_BY_HEADS;
    return uses;
}

static bool rotates(dq_rotate how, bool usual, int head_dim)
{
    bool power = (head_dim & (head_dim - 1)) == 0;
    return how == DQ_ROTATE_ON || (how == DQ_ROTATE_AUTO && usual && power);
}

static dq_status put_widths(dq_kv_config *c, const dq_kv_widths *w, dq_err *err)
{
    c->k_bits = c->v_bits = 0;
    if (!dq_kv_widths_uniform(w, 0) || !dq_kv_widths_uniform(w, 1))
        return dq_kv_widths_text(c->widths, w, err);
    c->k_bits = dq_kv_widths_largest(w, 0);
    c->v_bits = dq_kv_widths_largest(w, 1);
    memset(c->widths, 0, sizeof c->widths);
    return DQ_OK;
}

/* A width of 32 means f32, uncoded, on either side. */
static dq_status take_f32(dq_kv_config *c, dq_err *err)
{
    int *const side[] = {&c->k_bits, &c->v_bits};
    const bool f32 = c->k_bits == 32 || c->v_bits == 32;
    if (f32 && (c->k_bits == 16 || c->v_bits == 16))
        return dq_fail(err, DQ_USAGE, "16 and 32 bits in one cache are not offered.");
    for (int i = 0; f32 && i < 2; i++) {
        if (*side[i] == 32) *side[i] = 16;
    }
    if (f32) c->dense = DQ_KV_F32;
    return DQ_OK;
}

dq_status dq_kv_config_set_widths(dq_kv_config *c, const char *text, dq_err *err)
{
    dq_kv_widths w;
    memset(c->widths, 0, sizeof c->widths);
    if (!strpbrk(text, "|+*")) {
        int end = 0;
        if (sscanf(text, "%9d%n", &c->k_bits, &end) == 1 && !text[end])
            c->v_bits = c->k_bits;
        else if (sscanf(text, "%9d:%9d%n", &c->k_bits, &c->v_bits, &end) != 2 || text[end])
            return dq_fail(err, DQ_USAGE, "expected a width, or two of them as K:V.");
        return take_f32(c, err);
    }
    DQ_TRY(dq_kv_widths_parse(&w, text, err));
    c->k_bits = c->v_bits = 0;
    return dq_kv_widths_text(c->widths, &w, err);
}

dq_status dq_kv_config_set_heads(dq_kv_config *c, const char *text, dq_err *err)
{
    dq_kv_heads r;
    DQ_TRY(dq_kv_heads_parse(&r, text, err));
    memset(c->evict.heads, 0, sizeof c->evict.heads);
    memcpy(c->evict.heads, text, strlen(text));
    return DQ_OK;
}

dq_status dq_kv_config_fit(dq_kv_config *c, int n_layers, dq_err *err)
{
    dq_kv_widths w;
    if (!c->widths[0]) return DQ_OK;
    DQ_TRY(dq_kv_widths_parse(&w, c->widths, err));
    const bool alike = dq_kv_widths_uniform(&w, 0) && dq_kv_widths_uniform(&w, 1);
    if (n_layers == DQ_KV_ANY_LAYERS) return alike ? put_widths(c, &w, err) : DQ_OK;
    DQ_TRY(dq_kv_widths_fit(&w, n_layers, err));
    return put_widths(c, &w, err);
}

static void set_bits(dq_kv_spec *s, const dq_kv_config *c)
{
    dq_kv_widths w;
    dq_err err = {0};
    s->k_bits = c->k_bits;
    s->v_bits = c->v_bits;
    if (!c->widths[0] || dq_kv_widths_parse(&w, c->widths, &err) != DQ_OK) return;
    s->k_bits = dq_kv_widths_largest(&w, 0);
    s->v_bits = dq_kv_widths_largest(&w, 1);
    memcpy(s->widths, c->widths, sizeof s->widths);
}

dq_status dq_kv_config_spec(dq_kv_spec *out, const dq_kv_config *asked, dq_num num, int head_dim,
                            int n_layers, int n_maps, dq_err *err)
{
    dq_kv_config fit = *asked;
    const dq_kv_config *c = &fit;
    const bool fits = dq_kv_config_fit(&fit, n_layers, err) == DQ_OK;
    const dq_kv_quant code = dq_kv_config_quant(c, n_maps);
    dq_kv_spec bits = {.k_bits = 0};
    set_bits(&bits, c);
    *out = (dq_kv_spec){
        .num = num,
        .k_bits = bits.k_bits,
        .v_bits = bits.v_bits,
        .group = c->group,
        .quant = code,
        .dense = c->dense == DQ_KV_DENSE_AUTO ? DQ_KV_F16 : c->dense,
        .rotate_k = rotates(c->rotate, auto_rotates(code, bits.k_bits, false), head_dim),
        .rotate_v = rotates(c->rotate, auto_rotates(code, bits.v_bits, true), head_dim),
        .sink = c->sink,
        .recent = c->recent,
        .evict = c->evict.policy ? c->evict : dq_evict_none};
    memcpy(out->widths, bits.widths, sizeof out->widths);
    if (code == DQ_KV_DITHER && dq_kv_has_codes(out) && !dq_kv_dithers(out))
        out->quant = DQ_KV_PER_CHANNEL;
    return fits ? dq_kv_check(out, head_dim, err) : err->code;
}

/* A list of heads needs the budget by heads, and that needs a list. */
static dq_status check_roles(const dq_evict_spec *x, dq_err *err)
{
    dq_kv_heads r;
    dq_err e = {0};
    if (x->budget != DQ_KV_BUDGET_HEADS && x->heads[0])
        return dq_fail(err, DQ_DAMAGED, "KV settings: heads say nothing with the budget \"%s\"",
                       dq_kv_budget_name[x->budget]);
    if (x->budget != DQ_KV_BUDGET_HEADS) return DQ_OK;
    if (!x->heads[0])
        return dq_fail(
            err, DQ_DAMAGED,
            "KV settings: the budget \"heads\" needs heads, groups of KV heads in order of need");
    if (dq_kv_heads_parse(&r, x->heads, &e) == DQ_OK) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "KV settings: heads: %s", e.text);
}

dq_status dq_kv_config_check(const dq_kv_config *c, dq_err *err)
{
    const dq_evict_spec *x = &c->evict;
    dq_kv_spec spec;
    dq_err e = {0};
    if (dq_kv_config_spec(&spec, c, DQ_NUM_F32, DQ_KV_ANY_DIM, DQ_KV_ANY_LAYERS, DQ_KV_ANY_MAPS,
                          &e) != DQ_OK)
        return dq_fail(err, DQ_DAMAGED, "KV settings: %s", e.text);
    if (c->widths[0] && (c->k_bits || c->v_bits))
        return dq_fail(err, DQ_DAMAGED,
                       "KV settings: widths \"%s\" and k_bits %d, v_bits %d (expected 0)",
                       c->widths, c->k_bits, c->v_bits);
    if (!x->policy) return DQ_OK;
    const bool share = x->keep >= DQ_KV_KEEP_LEAST && x->keep <= 1;
    if (!(share || x->keep == 0) || x->tokens < 0 || x->tokens > INT_MAX ||
        share == (x->tokens > 0))
        return dq_fail(err, DQ_DAMAGED,
                       "KV settings: expected a share (keep) from %g to 1 or a number of tokens, "
                       "the other one 0, found keep %g, tokens %lld",
                       DQ_KV_KEEP_LEAST, x->keep, (long long)x->tokens);
    if (x->tokens && x->tokens < (int64_t)c->sink + c->recent)
        return dq_fail(err, DQ_DAMAGED,
                       "KV settings: tokens %lld is less than sink %d and recent %d together",
                       (long long)x->tokens, c->sink, c->recent);
    DQ_TRY(check_roles(x, err));
    if (x->every < 0 || x->every > INT_MAX || x->window < -1 || x->window > INT_MAX ||
        x->seed > INT64_MAX)
        return dq_fail(err, DQ_DAMAGED,
                       "KV settings: every %lld, window %lld and seed %lld are not all possible",
                       (long long)x->every, (long long)x->window, (long long)x->seed);
    return DQ_OK;
}

/* Part of dq_evict_spec besides the policy; left out without eviction. */
static bool evicts(const dq_kv_field *f)
{
    return f->config > offsetof(dq_kv_config, evict.policy);
}

static bool is_list(const dq_kv_field *f)
{
    return f->type == DQ_KV_BY_LAYER || f->type == DQ_KV_BY_GROUP;
}

static bool is_wide(const dq_kv_field *f)
{
    return f->type == DQ_KV_LONG || f->type == DQ_KV_ROWS;
}

/* The value in a file that does not name it: per-token codes where something is coded, else the
 * default. */
static int64_t unnamed(const dq_kv_field *f, const dq_kv_config *c)
{
    const bool codes = dq_kv_config_uses(c, DQ_KV_ANY_MAPS) & DQ_KV_CODES;
    if (f->words == dq_kv_quant_name && codes) return DQ_KV_PER_TOKEN;
    return dq_kv_field_get(f, &dq_kv_config_plain).integer;
}

/* Sets a `later` field to what an older file means; after k_bits and v_bits. */
static void leave_out(const dq_kv_field *f, dq_kv_config *c)
{
    dq_err none = {0}; /* an integer, or the index of a word, always fits */
    if (!is_list(f)) dq_kv_field_set(f, c, (dq_kv_value){.integer = unnamed(f, c)}, NULL, &none);
}

static dq_status read_member(void *object, const dq_kv_field *f, dq_kv_value *v, dq_err *err)
{
    const bool may_lack = f->or_other || f->type == DQ_KV_WIDTH;
    const int64_t none = 0, least = f->type == DQ_KV_ROWS ? -1 : 0;
    const double nothing = 0;
    const char *const no_policy = NULL;
    switch (dq_kv_field_form(f)) {
    case DQ_KV_AS_INTEGER:
        return dq_json_int(&v->integer, object, f->name, least, is_wide(f) ? INT64_MAX : INT_MAX,
                           may_lack ? &none : NULL, err);
    case DQ_KV_AS_REAL:
        return dq_json_float(&v->real, object, f->name, may_lack ? &nothing : NULL, err);
    case DQ_KV_AS_TEXT: break;
    }
    return dq_json_text(&v->text, object, f->name, f->type == DQ_KV_POLICY ? &no_policy : NULL,
                        err);
}

static bool has_member(void *object, const char *name)
{
    return json_object_get(object, name);
}

dq_status dq_kv_config_take(dq_kv_config *out, const dq_kv_reader *r, dq_arena *a, dq_err *err)
{
    *out = dq_kv_config_plain;
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        const dq_kv_field *f = &dq_kv_fields[i];
        dq_kv_value v = {0};
        if (evicts(f) && !out->evict.policy) continue;
        if (f->later && !r->has(r->arg, f->name)) {
            leave_out(f, out);
            continue;
        }
        DQ_TRY(r->read(r->arg, f, &v, err));
        if (dq_kv_field_set(f, out, v, a, err) != DQ_OK) return dq_in(err, "%s", r->where);
    }
    return dq_kv_config_check(out, err) == DQ_OK ? DQ_OK : dq_in(err, "%s", r->where);
}

dq_status dq_kv_config_read(dq_kv_config *out, const json_t *o, dq_arena *a, dq_err *err)
{
    const dq_kv_reader r = {(void *)(uintptr_t)o, has_member, read_member, ""};
    return dq_kv_config_take(out, &r, a, err);
}

/* An absent key has its default; null counts only where another key decides. */
static const json_t *given(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

/* 32 bits are f32 whatever else is said. */
static dq_status agree_with_dense(dq_kv_dense said, const json_t *o, dq_err *err)
{
    const char *type = json_string_value(given(o, "dense_type"));
    if (said == DQ_KV_F32 && type && strcmp(type, dq_kv_dense_name[DQ_KV_F32]) != 0)
        return dq_fail(err, DQ_DAMAGED, "32 bits are f32, and key \"dense_type\" is \"%.20s\"",
                       type);
    return DQ_OK;
}

static dq_status file_widths(dq_kv_config *c, const char *text, const json_t *o, dq_err *err)
{
    c->dense = DQ_KV_DENSE_AUTO;
    DQ_TRY(dq_kv_config_set_widths(c, text, err));
    return agree_with_dense(c->dense, o, err);
}

static dq_status file_f32(dq_kv_config *c, const json_t *o, dq_err *err)
{
    dq_err wrong = {0};
    if (c->k_bits != 32 && c->v_bits != 32) return DQ_OK;
    DQ_TRY(agree_with_dense(DQ_KV_F32, o, err));
    if (take_f32(c, &wrong) == DQ_OK) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "keys \"k_bits\" and \"v_bits\": %s", wrong.text);
}

static dq_status file_field(dq_kv_config *c, const dq_kv_field *f, const json_t *o, dq_err *err)
{
    if (evicts(f) && !c->evict.policy)
        return dq_fail(err, DQ_DAMAGED, "key \"%s\" says nothing without \"policy\"", f->name);
    dq_err wrong = {0};
    dq_kv_value v = {0};
    DQ_TRY(read_member((void *)(uintptr_t)o, f, &v, err));
    if (dq_kv_field_form(f) != DQ_KV_AS_TEXT) return dq_kv_field_set(f, c, v, NULL, err);
    const char *text = v.text;
    if (f->type == DQ_KV_POLICY)
        c->evict.policy = dq_kv_policy_find(text, &wrong);
    else if (f->type == DQ_KV_BY_GROUP)
        dq_kv_config_set_heads(c, text, &wrong);
    else if (f->type != DQ_KV_BY_LAYER) {
        if (dq_kv_field_set(f, c, v, NULL, &wrong) == DQ_OK) return DQ_OK;
        char words[128] = "";
        for (int i = 0; i < f->n_words; i++) {
            const size_t n = strlen(words);
            const char *between = i == 0 ? "" : i < f->n_words - 1 ? ", " : " or ";
            snprintf(words + n, sizeof words - n, "%s\"%s\"", between, f->words[i]);
        }
        return dq_json_wrong(f->name, words, json_object_get(o, f->name), err);
    } else if (given(o, "k_bits") || given(o, "v_bits"))
        return dq_fail(err, DQ_DAMAGED, "keys \"%s\" and \"%s\" are two ways to say one thing",
                       f->name, given(o, "k_bits") ? "k_bits" : "v_bits");
    else
        file_widths(c, text, o, &wrong);
    if (wrong.code == DQ_OK) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "key \"%s\" is \"%.80s\": %s", f->name, text, wrong.text);
}

dq_status dq_kv_config_file(dq_kv_config *out, const json_t *o, dq_err *err)
{
    *out = dq_kv_config_plain;
    const char *key;
    json_t *v;
    if (!json_is_object(o)) return dq_fail(err, DQ_DAMAGED, "not an object");
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        const dq_kv_field *f = dq_kv_fields, *end = f + DQ_KV_FIELDS;
        while (f < end && strcmp(f->name, key) != 0) f++;
        if (f == end) return dq_fail(err, DQ_DAMAGED, "unknown key \"%s\"", key);
        const bool may_lack = f->or_other || f->type == DQ_KV_POLICY ||
                              (f->type == DQ_KV_WIDTH && given(o, "widths"));
        if (json_is_null(v) && !may_lack)
            return dq_json_wrong(key, "a value, or no such key", v, err);
    }
    for (int i = 0; i < DQ_KV_FIELDS; i++) { /* policy stands before what it decides about */
        const dq_kv_field *f = &dq_kv_fields[i];
        if (given(o, f->name)) DQ_TRY(file_field(out, f, o, err));
    }
    DQ_TRY(file_f32(out, o, err));
    for (const dq_kv_field *f = dq_kv_fields; f < dq_kv_fields + DQ_KV_FIELDS; f++) {
        if (f->later && !given(o, f->name)) leave_out(f, out);
    }
    if (out->evict.policy && !given(o, "keep") && !given(o, "tokens"))
        return dq_fail(err, DQ_DAMAGED, "key \"policy\" needs \"keep\" or \"tokens\" beside it");
    if (!given(o, "keep") && given(o, "tokens")) out->evict.keep = 0;
    if (out->evict.policy && !given(o, "budget")) out->evict.budget = DQ_KV_BUDGET_USUAL;
    return dq_kv_config_check(out, err);
}

/* A value is reached by its offset; its forms as number, text and JSON are here only. */

#define IN_BOTH(member)                                                                            \
    .config = offsetof(dq_kv_config, member), .spec = offsetof(dq_kv_spec, member)

const dq_kv_field dq_kv_fields[DQ_KV_FIELDS] = {
    {.name = "k_bits",
     .about = "Bits of a key's number, 16: not coded, in f16 or bf16; 32: in f32; where widths "
              "differ the mean, stored as null.",
     .type = DQ_KV_WIDTH,
     IN_BOTH(k_bits),
     .option_place = 1,
     .option = "kv-bits",
     .swept = true,
     .value = "K[:V]",
     .help =
         "widths of keys (16, 8, 6, 4) and values (3 and 2 too; as per-channel codes both, and 5); "
         "16: f16, or bf16 where the model's weights are; 32: f32, as computed (default: as a "
         "container says; else 16 where another KV option is given, and 32 where none is). "
         "Per-channel codes: by layer, and keys by map, \"3|5+3:3|6\": | between layers, + between "
         "the keys of the first and the second "
         "map; 4*6 is for six layers, 4* for those that are left, an entry alone for all",
     .column_place = 1,
     .column = {"kv_k_bits"}},
    {.name = "v_bits",
     .about = "Bits of a value's number, likewise.",
     .type = DQ_KV_WIDTH,
     IN_BOTH(v_bits),
     .column_place = 2,
     .column = {"kv_v_bits"}}, /* --kv-bits says both */
    {.name = "quant",
     .about = "What shares a scale; missing: what files without it mean.",
     .type = DQ_KV_WORD,
     IN_BOTH(quant),
     .applies = DQ_KV_CODES,
     .later = true,
     .words = dq_kv_quant_name,
     .n_words = DQ_KV_QUANTS + 1,
     .option_place = 13,
     .option = "kv-quant",
     .swept = true,
     .value = "KIND",
     .help =
         "what shares a scale: a token; a channel of a page of 64 tokens; that with values of 4 "
         "bits and more dithered; or mixed, a channel for keys and a token for values: {names} "
         "(default {default}: mixed on models of one map, where it loses least on a real one "
         "(results/real); on those of two per-channel, or per-token where tokens are evicted)",
     .column_place = 15,
     .column = {"kv_quant"}},
    {.name = "widths",
     .about = "Widths by layer, keys:values; null or missing: one width.",
     .type = DQ_KV_BY_LAYER,
     IN_BOTH(widths),
     .applies = DQ_KV_CODES,
     .later = true,
     .column_place = 16,
     .column = {"kv_widths"}}, /* --kv-bits says them */
    {.name = "dense_type",
     .about = "What numbers that are not codes are held in.",
     .type = DQ_KV_WORD,
     IN_BOTH(dense),
     .later = true,
     .words = dq_kv_dense_name,
     .n_words = DQ_KV_DENSE_TYPES + 1,
     .option_place = 14,
     .option = "kv-dense-type",
     .value = "TYPE",
     .help = "what keys and values that are not codes are held in: {names} (default auto: f16, or "
             "bf16 where the model's weights are); rounded when they come, and codes are made of "
             "them",
     .column_place = 17,
     .column = {"kv_dense_type"}},
    {.name = "group",
     .about = "Channels per scale of per-token codes at 4 bits and fewer.",
     .type = DQ_KV_INT,
     IN_BOTH(group),
     .applies = DQ_KV_NARROW,
     .option_place = 2,
     .option = "kv-group",
     .min = 1,
     .max = 65536,
     .value = "N",
     .help = "channels per scale of per-token codes at 4 bits and fewer; mixed values have a step "
             "and a low for twice as many (default {default})",
     .column_place = 10,
     .column = {"kv_group"}},
    {.name = "rotate",
     .about = "Whether a Hadamard rotation goes before coding.",
     .type = DQ_KV_ROTATE,
     .config = offsetof(dq_kv_config, rotate),
     .words = dq_rotate_name,
     .n_words = DQ_ROTATES,
     .option_place = 3,
     .option = "kv-rotate",
     .value = "WHEN",
     .help = "Hadamard rotation: auto (per-token codes of at most 4 bits, keys as per-channel "
             "codes, where "
             "head_dim is a power of two), on (both) or off (default {default})",
     .column_place = 11,
     .column = {"kv_rotate_k", "kv_rotate_v"}},
    {.name = "sink",
     .about = "First tokens that are never coded and never evicted.",
     .type = DQ_KV_INT,
     IN_BOTH(sink),
     .applies = DQ_KV_CODES | DQ_KV_EVICTS,
     .option_place = 9,
     .option = "kv-sink",
     .max = 1e9,
     .value = "N",
     .help = "first tokens that are never coded and never evicted (default {default})",
     .column_place = 13,
     .column = {"kv_sink"}},
    {.name = "recent",
     .about = "Last tokens that are not coded yet and not evicted.",
     .type = DQ_KV_INT,
     IN_BOTH(recent),
     .applies = DQ_KV_CODES | DQ_KV_EVICTS,
     .option_place = 10,
     .option = "kv-recent",
     .max = 1e9,
     .value = "N",
     .help = "last tokens that are not coded yet and not evicted (default {default})",
     .column_place = 14,
     .column = {"kv_recent"}},
    {.name = "policy",
     .about = "What decides which tokens are evicted; null: none are.",
     .type = DQ_KV_POLICY,
     IN_BOTH(evict.policy),
     .applies = DQ_KV_EVICTS,
     .option_place = 6,
     .option = "kv-policy",
     .swept = true,
     .value = "NAME",
     .help = "what decides which: {names} (default {default})",
     .column_place = 3,
     .column = {"kv_policy"}},
    {.name = "keep",
     .about = "Share of a context's tokens that stays; null: tokens says it.",
     .type = DQ_KV_SHARE,
     IN_BOTH(evict.keep),
     .applies = DQ_KV_EVICTS,
     .or_other = true,
     .option_place = 4,
     .option = "kv-keep",
     .swept = true,
     .value = "FRACTION",
     .help = "evict all but this share of a context's tokens, from 1e-6 to 1 (1: none)",
     .column_place = 4,
     .column = {"kv_keep"}},
    {.name = "tokens",
     .about = "Tokens of a context that stay; null: keep says it.",
     .type = DQ_KV_LONG,
     IN_BOTH(evict.tokens),
     .applies = DQ_KV_EVICTS,
     .or_other = true,
     .option_place = 5,
     .option = "kv-tokens",
     .swept = true,
     .min = 1,
     .max = INT32_MAX,
     .value = "N",
     .help = "evict all but N tokens",
     .column_place = 5,
     .column = {"kv_tokens"}},
    {.name = "budget",
     .about = "What layers and heads get of them; null or missing: nothing is evicted.",
     .type = DQ_KV_WORD,
     IN_BOTH(evict.budget),
     .applies = DQ_KV_EVICTS,
     .words = dq_kv_budget_name,
     .n_words = DQ_KV_BUDGETS,
     .option_place = 7,
     .option = "kv-budget",
     .swept = true,
     .value = "KIND",
     .help = "what layers and heads get: {names} (default global with kvzip and kvzap, and on "
             "models of one map with keydiff, else {default})",
     .column_place = 6,
     .column = {"kv_budget"}},
    {.name = "heads",
     .about = "Groups of KV heads in order of need; null or missing: none.",
     .type = DQ_KV_BY_GROUP,
     IN_BOTH(evict.heads),
     .applies = DQ_KV_BY_HEADS,
     .later = true,
     .option_place = 15,
     .option = "kv-heads",
     .value = "L.G,...",
     .help =
         "for a budget by heads: all groups of KV heads, layer.group, the one that needs the whole "
         "context most first; with a /, 1.0,1.1/0.0,0.1, those before it share what is kept",
     .column_place = 18,
     .column = {"kv_heads"}},
    {.name = "every",
     .about = "Evicts again after so many tokens after the context, 0: never; null or missing: "
              "nothing is evicted.",
     .type = DQ_KV_LONG,
     IN_BOTH(evict.every),
     .applies = DQ_KV_EVICTS,
     .option_place = 11,
     .option = "kv-every",
     .max = 1e9,
     .value = "N",
     .help = "evict again after every N tokens after the context (default {default}: never)",
     .column_place = 8,
     .column = {"kv_every"}},
    {.name = "window",
     .about = "Last rows whose attention counts, 0: all, -1: as the policy says; null or missing: "
              "nothing is evicted.",
     .type = DQ_KV_ROWS,
     IN_BOTH(evict.window),
     .applies = DQ_KV_SUMS,
     .option_place = 8,
     .option = "kv-window",
     .max = 1e9,
     .value = "N",
     .help = "last rows whose attention counts, 0 for all (default: as the policy says)",
     .column_place = 7,
     .column = {"kv_window"}},
    {.name = "seed", /* a command says in its help what else it draws */
     .about = "Of the policy random; null or missing: nothing is evicted.",
     .type = DQ_KV_LONG,
     IN_BOTH(evict.seed),
     .applies = DQ_KV_DRAWS,
     .option_place = 12,
     .option = "seed",
     .max = 1e15,
     .value = "N",
     .column_place = 9,
     .column = {"kv_seed"}},
};

int dq_kv_field_of_option(int place)
{
    int i = 0;
    while (i < DQ_KV_FIELDS - 1 && dq_kv_fields[i].option_place != place) i++;
    return i;
}

static const dq_kv_field *field_of_column(int place)
{
    const dq_kv_field *f = dq_kv_fields;
    while (f < dq_kv_fields + DQ_KV_FIELDS - 1 &&
           !(f->column_place == place || (f->column[1] && f->column_place + 1 == place)))
        f++;
    return f;
}

const char *dq_kv_field_title(int place)
{
    const dq_kv_field *f = field_of_column(place);
    return f->column[place - f->column_place];
}

bool dq_kv_field_stored(const dq_kv_field *f, const dq_kv_config *c)
{
    const dq_kv_value v = dq_kv_field_get(f, c);
    return is_list(f) ? v.text != NULL : !f->later || v.integer != unnamed(f, c);
}

dq_kv_form dq_kv_field_form(const dq_kv_field *f)
{
    switch (f->type) {
    case DQ_KV_SHARE: return DQ_KV_AS_REAL;
    case DQ_KV_WORD:
    case DQ_KV_ROTATE:
    case DQ_KV_BY_LAYER:
    case DQ_KV_BY_GROUP:
    case DQ_KV_POLICY: return DQ_KV_AS_TEXT;
    default: return DQ_KV_AS_INTEGER;
    }
}

static int64_t integer_at(const dq_kv_field *f, const void *at)
{
    int64_t wide;
    int narrow;
    if (is_wide(f)) {
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
    memcpy(&narrow, at, sizeof narrow); /* enums are as wide as int */
    return narrow;
}

static double real_at(const void *at)
{
    double v;
    memcpy(&v, at, sizeof v);
    return v;
}

static const dq_kv_policy *policy_at(const void *at)
{
    const dq_kv_policy *p;
    memcpy(&p, at, sizeof p);
    return p;
}

static const char *text_at(const dq_kv_field *f, const void *at)
{
    if (is_list(f)) return *(const char *)at ? at : NULL;
    if (f->type != DQ_KV_POLICY) return f->words[integer_at(f, at)];
    return policy_at(at) ? policy_at(at)->name : NULL;
}

static bool same_at(const dq_kv_field *f, const void *a, const void *b)
{
    if (f->type == DQ_KV_POLICY) return dq_kv_policy_same(policy_at(a), policy_at(b));
    if (is_list(f)) return strcmp(a, b) == 0;
    if (f->type == DQ_KV_SHARE) return real_at(a) == real_at(b);
    return integer_at(f, a) == integer_at(f, b);
}

/* Whether another setting has taken its place. */
static bool is_other(const dq_kv_field *f, const void *at)
{
    if (!f->or_other && f->type != DQ_KV_WIDTH) return false;
    return f->type == DQ_KV_SHARE ? real_at(at) == 0 : integer_at(f, at) == 0;
}

/* One setting; at NULL: it is described. */
static void put_at(dq_row_writer *w, const dq_kv_field *f, const void *at, unsigned when)
{
    dq_row row = {.name = f->name, .about = f->about, .type = DQ_ROW_INT, .when = when};
    dq_value v = {0};
    const bool there = at && !is_other(f, at);
    if (dq_kv_field_form(f) == DQ_KV_AS_TEXT) {
        row.type = DQ_ROW_TEXT;
        row.words = f->words;
        row.n_words = f->n_words;
        if (there) v.text = text_at(f, at);
    } else if (dq_kv_field_form(f) == DQ_KV_AS_REAL) {
        row.type = DQ_ROW_REAL;
        v.real = there ? real_at(at) : (double)NAN;
    } else {
        v.integer = there ? integer_at(f, at) : INT64_MIN;
        if (!there) row.when |= DQ_BELOW_0;
    }
    dq_row_put(w, &row, v);
}

static const void *in_config(const dq_kv_field *f, const dq_kv_config *c)
{
    return (const char *)c + f->config;
}

dq_kv_value dq_kv_field_get(const dq_kv_field *f, const dq_kv_config *c)
{
    const void *at = in_config(f, c);
    dq_kv_value v = {.text = dq_kv_field_form(f) == DQ_KV_AS_TEXT ? text_at(f, at) : NULL};
    if (f->type == DQ_KV_SHARE)
        v.real = real_at(at);
    else if (f->type != DQ_KV_POLICY && !is_list(f))
        v.integer = integer_at(f, at);
    return v;
}

dq_status dq_kv_field_set(const dq_kv_field *f, dq_kv_config *c, dq_kv_value v, dq_arena *a,
                          dq_err *err)
{
    char *at = (char *)c + f->config;
    const int narrow = (int)v.integer;
    const size_t cap = f->type == DQ_KV_BY_LAYER ? DQ_KV_LISTS : DQ_KV_HEADS_TEXT;
    if (f->type == DQ_KV_POLICY) {
        const dq_kv_policy *p = v.text ? dq_kv_policy_stored(v.text, a, err) : NULL;
        memcpy(at, &p, sizeof p);
        return p || !v.text ? DQ_OK : err->code;
    }
    if (is_list(f) && strlen(v.text) < cap) {
        memset(at, 0, cap);
        memcpy(at, v.text, strlen(v.text));
        return DQ_OK;
    }
    for (int i = 0; v.text && i < f->n_words; i++) {
        if (strcmp(v.text, f->words[i]) != 0) continue;
        memcpy(at, &i, sizeof i);
        return DQ_OK;
    }
    if (v.text)
        return dq_fail(err, DQ_DAMAGED, "KV settings: unknown %s \"%.80s\"", f->name, v.text);
    if (f->type == DQ_KV_SHARE)
        memcpy(at, &v.real, sizeof v.real);
    else if (is_wide(f))
        memcpy(at, &v.integer, sizeof v.integer);
    else
        memcpy(at, &narrow, sizeof narrow);
    return DQ_OK;
}

const char *dq_kv_config_differs(const dq_kv_config *a, const dq_kv_config *b)
{
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        const dq_kv_field *f = &dq_kv_fields[i];
        if (evicts(f) && !a->evict.policy) continue; /* then b has none either */
        if (!same_at(f, in_config(f, a), in_config(f, b))) return f->name;
    }
    return NULL;
}

bool dq_kv_config_same(const dq_kv_config *a, const dq_kv_config *b)
{
    return !dq_kv_config_differs(a, b);
}

/* lacks: each may be missing. */
static void config_rows(dq_row_writer *w, const dq_kv_config *c, bool lacks)
{
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        const dq_kv_field *f = &dq_kv_fields[i];
        const bool may_lack = lacks || f->later || evicts(f);
        const bool none = f->or_other || f->type == DQ_KV_WIDTH || f->type == DQ_KV_POLICY;
        const unsigned when = (may_lack ? DQ_SOMETIMES : 0) | (none ? DQ_NULL : 0) |
                              (f->type == DQ_KV_ROWS ? DQ_SIGNED : 0);
        if (c && !dq_kv_field_stored(f, c)) continue;
        if (!c || c->evict.policy || !evicts(f)) put_at(w, f, c ? in_config(f, c) : NULL, when);
    }
}

json_t *dq_kv_config_json(const dq_kv_config *c)
{
    json_t *o = json_object();
    dq_row_writer w = dq_row_json(o);
    config_rows(&w, c, false);
    return o;
}

void dq_kv_config_describe(dq_row_writer *w)
{
    config_rows(w, NULL, false);
}

void dq_kv_config_file_describe(dq_row_writer *w)
{
    config_rows(w, NULL, true);
}

static const void *in_spec(const dq_kv_field *f, const dq_kv_spec *s)
{
    return (const char *)s + f->spec;
}

/* Whether it is set and has something to act on. */
static bool says(const dq_kv_field *f, const dq_kv_spec *s)
{
    if (f->or_other) return !is_other(f, in_spec(f, s));
    return s->evict.policy || !evicts(f);
}

bool dq_kv_spec_same(const dq_kv_spec *a, const dq_kv_spec *b)
{
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        const dq_kv_field *f = &dq_kv_fields[i];
        if (f->type == DQ_KV_ROTATE || (evicts(f) && !a->evict.policy)) continue;
        if (!same_at(f, in_spec(f, a), in_spec(f, b))) return false;
    }
    return a->num == b->num && a->rotate_k == b->rotate_k && a->rotate_v == b->rotate_v;
}

const char *dq_kv_spec_column(double *number, const dq_kv_spec *s, int place)
{
    const dq_kv_field *f = field_of_column(place);
    *number = (double)NAN;
    if (f->type == DQ_KV_ROTATE) {
        *number = place == f->column_place ? s->rotate_k : s->rotate_v;
        return NULL;
    }
    if (dq_kv_field_form(f) == DQ_KV_AS_TEXT) {
        const char *text = says(f, s) ? text_at(f, in_spec(f, s)) : NULL;
        return text ? text : "";
    }
    if (!says(f, s)) return NULL;
    *number = f->type == DQ_KV_WIDTH  ? dq_kv_shown_bits(s, f->spec == offsetof(dq_kv_spec, v_bits))
              : f->type == DQ_KV_ROWS ? (double)dq_evict_window(&s->evict)
              : f->type == DQ_KV_SHARE ? real_at(in_spec(f, s))
                                       : (double)integer_at(f, in_spec(f, s));
    return NULL;
}

void dq_kv_spec_rows(dq_row_writer *w, const dq_kv_spec *s)
{
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        const dq_kv_field *f = &dq_kv_fields[i];
        const bool values = f->spec == offsetof(dq_kv_spec, v_bits);
        const double bits = s && f->type == DQ_KV_WIDTH ? dq_kv_shown_bits(s, values) : 0;
        const bool always = !evicts(f) && f->type != DQ_KV_POLICY && !is_list(f);
        const unsigned when = always ? 0 : DQ_NULL;
        if (f->type == DQ_KV_ROTATE) {
            DQ_OBJECT(w, f->name, f->about);
            DQ_PUT(w, "k", s->rotate_k, "Of keys.");
            DQ_PUT(w, "v", s->rotate_v, "Of values.");
            dq_row_end(w);
        } else if (f->type == DQ_KV_WIDTH && s && !s->widths[0]) {
            DQ_PUT(w, f->name, (int64_t)bits, f->about);
        } else if (f->type == DQ_KV_WIDTH) {
            DQ_PUT(w, f->name, bits, f->about);
        } else if (s && f->type == DQ_KV_ROWS && says(f, s)) {
            DQ_PUT(w, f->name, dq_evict_window(&s->evict), f->about);
        } else if (s && !says(f, s)) {
            DQ_PUT(w, f->name, (const char *)NULL, f->about);
        } else {
            put_at(w, f, s ? in_spec(f, s) : NULL, when);
        }
    }
}

json_t *dq_kv_spec_json(const dq_kv_spec *s)
{
    json_t *o = json_object();
    dq_row_writer w = dq_row_json(o);
    dq_kv_spec_rows(&w, s);
    return o;
}

void dq_kv_spec_describe(dq_row_writer *w)
{
    dq_kv_spec_rows(w, NULL);
}
