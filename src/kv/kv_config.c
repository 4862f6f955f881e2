/* kv_config: what is asked becomes what runs, and comes back from JSON; field by field by the rows of
 * kv_field.h. See kv_config.h.
 * SPDX-License-Identifier: MIT */
#include "kv/kv_config.h"

#include "kv/kv_field.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

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

/* Widths by layer that are all alike are what they are without a list; others that cannot be read stay. */
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

/* Widths alike everywhere are k_bits and v_bits. */
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

/* 32 bits are not coded, in f32, whichever side has them. */
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

/* The largest widths where there are several. */
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
        .rotate_k = rotates(c->rotate, dq_kv_auto_rotates(code, bits.k_bits, false), head_dim),
        .rotate_v = rotates(c->rotate, dq_kv_auto_rotates(code, bits.v_bits, true), head_dim),
        .sink = c->sink,
        .recent = c->recent,
        .evict = c->evict.policy ? c->evict : dq_evict_none};
    memcpy(out->widths, bits.widths, sizeof out->widths);
    if (code == DQ_KV_DITHER && dq_kv_has_codes(out) && !dq_kv_dithers(out))
        out->quant = DQ_KV_PER_CHANNEL;
    return fits ? dq_kv_check(out, head_dim, err) : err->code;
}

/* A list stands beside the budget that goes by it, and nowhere else. */
static dq_status check_roles(const dq_evict_spec *x, dq_err *err)
{
    dq_kv_heads r;
    dq_err e = {0};
    if (x->budget != DQ_KV_BUDGET_HEADS && x->heads[0])
        return dq_fail(err, DQ_DAMAGED, "KV settings: heads say nothing with the budget \"%s\"",
                       dq_kv_budget_name[x->budget]);
    if (x->budget != DQ_KV_BUDGET_HEADS) return DQ_OK;
    if (!x->heads[0])
        return dq_fail(err, DQ_DAMAGED,
                       "KV settings: the budget \"heads\" needs heads, groups of KV heads in "
                       "order of need");
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

static dq_status read_integer(dq_kv_config *c, const dq_kv_field *f, const json_t *o, dq_err *err)
{
    const int64_t none = 0, least = f->type == DQ_KV_ROWS ? -1 : 0;
    const bool wide = f->type == DQ_KV_LONG || f->type == DQ_KV_ROWS;
    const bool may_lack = f->or_other || f->type == DQ_KV_WIDTH;
    int64_t v;
    DQ_TRY(dq_json_int(&v, o, f->name, least, wide ? INT64_MAX : INT_MAX, may_lack ? &none : NULL,
                       err));
    dq_kv_field_set_integer(f, c, v);
    return DQ_OK;
}

static dq_status read_real(dq_kv_config *c, const dq_kv_field *f, const json_t *o, dq_err *err)
{
    const double none = 0;
    double v;
    DQ_TRY(dq_json_float(&v, o, f->name, f->or_other ? &none : NULL, err));
    dq_kv_field_set_real(f, c, v);
    return DQ_OK;
}

static dq_status read_text(dq_kv_config *c, const dq_kv_field *f, const json_t *o, dq_arena *a,
                           dq_err *err)
{
    const char *text, *none = NULL;
    DQ_TRY(dq_json_text(&text, o, f->name, f->type == DQ_KV_POLICY ? &none : NULL, err));
    return text ? dq_kv_field_set_text(f, c, text, a, err) : DQ_OK;
}

dq_status dq_kv_config_read(dq_kv_config *out, const json_t *o, dq_arena *a, dq_err *err)
{
    *out = dq_kv_config_plain;
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        const dq_kv_field *f = &dq_kv_fields[i];
        if (dq_kv_field_evicts(f) && !out->evict.policy) continue;
        if (f->later && !json_object_get(o, f->name)) {
            dq_kv_field_leave_out(f, out);
            continue;
        }
        switch (dq_kv_field_form(f)) {
        case DQ_KV_AS_INTEGER: DQ_TRY(read_integer(out, f, o, err)); break;
        case DQ_KV_AS_REAL: DQ_TRY(read_real(out, f, o, err)); break;
        case DQ_KV_AS_TEXT: DQ_TRY(read_text(out, f, o, a, err)); break;
        }
    }
    return dq_kv_config_check(out, err);
}

/* ---- Files ---- */

/* An absent one has its default; null is no value, but of what another key says. */
static const json_t *given(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

static dq_status check_keys(const json_t *o, dq_err *err)
{
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
    return DQ_OK;
}

static dq_status wrong_word(const dq_kv_field *f, const json_t *o, dq_err *err)
{
    char words[128] = "";
    for (int i = 0; i < f->n_words; i++) {
        const size_t n = strlen(words);
        const char *between = i == 0 ? "" : i < f->n_words - 1 ? ", " : " or ";
        snprintf(words + n, sizeof words - n, "%s\"%s\"", between, f->words[i]);
    }
    return dq_json_wrong(f->name, words, json_object_get(o, f->name), err);
}

/* 32 bits are f32, whatever else is said. */
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

/* k_bits and v_bits of 32. */
static dq_status file_f32(dq_kv_config *c, const json_t *o, dq_err *err)
{
    dq_err wrong = {0};
    if (c->k_bits != 32 && c->v_bits != 32) return DQ_OK;
    DQ_TRY(agree_with_dense(DQ_KV_F32, o, err));
    if (take_f32(c, &wrong) == DQ_OK) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "keys \"k_bits\" and \"v_bits\": %s", wrong.text);
}

static dq_status file_text(dq_kv_config *c, const dq_kv_field *f, const json_t *o, dq_err *err)
{
    dq_err wrong = {0};
    const char *text;
    DQ_TRY(dq_json_text(&text, o, f->name, NULL, err));
    if (f->type == DQ_KV_POLICY)
        c->evict.policy = dq_kv_policy_find(text, &wrong);
    else if (f->type == DQ_KV_BY_GROUP)
        dq_kv_config_set_heads(c, text, &wrong);
    else if (f->type != DQ_KV_BY_LAYER)
        return dq_kv_field_set_text(f, c, text, NULL, &wrong) == DQ_OK ? DQ_OK
                                                                       : wrong_word(f, o, err);
    else if (given(o, "k_bits") || given(o, "v_bits"))
        return dq_fail(err, DQ_DAMAGED, "keys \"%s\" and \"%s\" are two ways to say one thing",
                       f->name, given(o, "k_bits") ? "k_bits" : "v_bits");
    else
        file_widths(c, text, o, &wrong);
    if (wrong.code == DQ_OK) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "key \"%s\" is \"%.80s\": %s", f->name, text, wrong.text);
}

static dq_status file_field(dq_kv_config *c, const dq_kv_field *f, const json_t *o, dq_err *err)
{
    if (dq_kv_field_evicts(f) && !c->evict.policy)
        return dq_fail(err, DQ_DAMAGED, "key \"%s\" says nothing without \"policy\"", f->name);
    switch (dq_kv_field_form(f)) {
    case DQ_KV_AS_INTEGER: return read_integer(c, f, o, err);
    case DQ_KV_AS_REAL: return read_real(c, f, o, err);
    case DQ_KV_AS_TEXT: break;
    }
    return file_text(c, f, o, err);
}

dq_status dq_kv_config_file(dq_kv_config *out, const json_t *o, dq_err *err)
{
    *out = dq_kv_config_plain;
    DQ_TRY(check_keys(o, err));
    for (int i = 0; i < DQ_KV_FIELDS; i++) { /* policy stands before what it decides about */
        const dq_kv_field *f = &dq_kv_fields[i];
        if (given(o, f->name)) DQ_TRY(file_field(out, f, o, err));
    }
    DQ_TRY(file_f32(out, o, err));
    for (const dq_kv_field *f = dq_kv_fields; f < dq_kv_fields + DQ_KV_FIELDS; f++) {
        if (f->later && !given(o, f->name)) dq_kv_field_leave_out(f, out);
    }
    if (out->evict.policy && !given(o, "keep") && !given(o, "tokens"))
        return dq_fail(err, DQ_DAMAGED, "key \"policy\" needs \"keep\" or \"tokens\" beside it");
    if (!given(o, "keep") && given(o, "tokens")) out->evict.keep = 0;
    if (out->evict.policy && !given(o, "budget")) out->evict.budget = DQ_KV_BUDGET_USUAL;
    return dq_kv_config_check(out, err);
}
