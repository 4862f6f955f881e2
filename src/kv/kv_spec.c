/* kv_spec: see kv_spec.h. Checks say what a value must be; which option to give is left to the remedy. What a row
 * reads follows from positions alone, by binary search in the ascending ones that are kept.
 * SPDX-License-Identifier: MIT */
#include "kv/kv_spec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const dq_num_name[DQ_NUMS] = {"f32", "bf16", "int8"};
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

bool dq_kv_auto_rotates(dq_kv_quant code, int bits, bool values)
{
    if (code == DQ_KV_PER_TOKEN) return bits <= 4;
    if (values && code != DQ_KV_MIXED) return false; /* a scale for each channel does it */
    return bits <= 8;
}

/* " rotated" or " unrotated" where `auto` would rotate otherwise. */
static const char *rotation_text(const dq_kv_spec *s)
{
    if (s->rotate_k == dq_kv_auto_rotates(s->quant, s->k_bits, false) &&
        s->rotate_v == dq_kv_auto_rotates(s->quant, s->v_bits, true))
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
        return dq_fail_with(
            err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_KV_SINK_RECENT},
            "tokens %lld is less than the %d first and %d last tokens that are always kept. "
            "Give at least %lld",
            (long long)e->tokens, spec->sink, spec->recent, (long long)least);
    if (e->tokens < 0 || e->every < 0 || e->window < -1)
        return dq_fail(err, DQ_USAGE,
                       "numbers of tokens must not be negative (tokens %lld, every "
                       "%lld, window %lld).",
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
    /* 0.07 is not exact: 0.07 * 100 must be 7, not the next integer */
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

void dq_kv_reads(const dq_kv_spec *spec, int32_t t, const int32_t *pos, int64_t n, int64_t *reads,
                 int64_t *coded)
{
    *reads = below(pos, n, (int64_t)t + 1);
    *coded = 0;
    if (!dq_kv_has_codes(spec)) return;
    *coded = below(pos, n, dq_kv_coded_end(spec, t)) - below(pos, n, spec->sink);
    if (*coded < 0) *coded = 0;
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
