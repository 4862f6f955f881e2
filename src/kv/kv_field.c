/* kv_field: the table of settings, and what goes over its rows. A value is reached by its offset; what a type looks
 * like as a number, a text or JSON stands here once. See kv_field.h.
 * SPDX-License-Identifier: MIT */
#include "kv/kv_field.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define IN_BOTH(member)                                                                            \
    .config = offsetof(dq_kv_config, member), .spec = offsetof(dq_kv_spec, member)

const dq_kv_field dq_kv_fields[DQ_KV_FIELDS] = {
    {.name = "k_bits",
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
     .type = DQ_KV_WIDTH,
     IN_BOTH(v_bits),
     .column_place = 2,
     .column = {"kv_v_bits"}}, /* --kv-bits says both */
    {.name = "quant",
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
     .type = DQ_KV_BY_LAYER,
     IN_BOTH(widths),
     .applies = DQ_KV_CODES,
     .later = true,
     .column_place = 16,
     .column = {"kv_widths"}}, /* --kv-bits says them */
    {.name = "dense_type",
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

/* ---- Rows ---- */

int dq_kv_field_of_option(int place)
{
    int i = 0;
    while (i < DQ_KV_FIELDS - 1 && dq_kv_fields[i].option_place != place) i++;
    return i;
}

static bool has_column(const dq_kv_field *f, int place)
{
    return f->column_place == place || (f->column[1] && f->column_place + 1 == place);
}

static const dq_kv_field *field_of_column(int place)
{
    const dq_kv_field *f = dq_kv_fields;
    while (f < dq_kv_fields + DQ_KV_FIELDS - 1 && !has_column(f, place)) f++;
    return f;
}

const char *dq_kv_field_title(int place)
{
    const dq_kv_field *f = field_of_column(place);
    return f->column[place - f->column_place];
}

bool dq_kv_field_evicts(const dq_kv_field *f)
{
    return f->config > offsetof(dq_kv_config, evict.policy);
}

static bool is_list(const dq_kv_field *f)
{
    return f->type == DQ_KV_BY_LAYER || f->type == DQ_KV_BY_GROUP;
}

/* What c's field is in a file that does not name it: per-token codes where something is coded, else the default. */
static int64_t unnamed(const dq_kv_field *f, const dq_kv_config *c)
{
    const bool codes = dq_kv_config_uses(c, DQ_KV_ANY_MAPS) & DQ_KV_CODES;
    if (f->words == dq_kv_quant_name && codes) return DQ_KV_PER_TOKEN;
    return dq_kv_field_integer(f, &dq_kv_config_plain);
}

bool dq_kv_field_stored(const dq_kv_field *f, const dq_kv_config *c)
{
    if (is_list(f)) return dq_kv_field_text(f, c) != NULL;
    return !f->later || dq_kv_field_integer(f, c) != unnamed(f, c);
}

void dq_kv_field_leave_out(const dq_kv_field *f, dq_kv_config *c)
{
    if (!is_list(f)) dq_kv_field_set_integer(f, c, unnamed(f, c));
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

/* ---- Values ---- */

static bool is_wide(const dq_kv_field *f)
{
    return f->type == DQ_KV_LONG || f->type == DQ_KV_ROWS;
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

/* Another setting says what this one could. */
static bool is_other(const dq_kv_field *f, const void *at)
{
    if (!f->or_other && f->type != DQ_KV_WIDTH) return false;
    return f->type == DQ_KV_SHARE ? real_at(at) == 0 : integer_at(f, at) == 0;
}

static json_t *json_at(const dq_kv_field *f, const void *at)
{
    if (is_other(f, at)) return json_null();
    switch (dq_kv_field_form(f)) {
    case DQ_KV_AS_REAL: return json_real(real_at(at));
    case DQ_KV_AS_TEXT: return text_at(f, at) ? json_string(text_at(f, at)) : json_null();
    default: return json_integer(integer_at(f, at));
    }
}

/* ---- What is asked ---- */

static const void *in_config(const dq_kv_field *f, const dq_kv_config *c)
{
    return (const char *)c + f->config;
}

int64_t dq_kv_field_integer(const dq_kv_field *f, const dq_kv_config *c)
{
    return integer_at(f, in_config(f, c));
}

void dq_kv_field_set_integer(const dq_kv_field *f, dq_kv_config *c, int64_t v)
{
    const int narrow = (int)v;
    memcpy((char *)c + f->config, is_wide(f) ? (const void *)&v : &narrow,
           is_wide(f) ? sizeof v : sizeof narrow);
}

double dq_kv_field_real(const dq_kv_field *f, const dq_kv_config *c)
{
    return real_at(in_config(f, c));
}

void dq_kv_field_set_real(const dq_kv_field *f, dq_kv_config *c, double v)
{
    memcpy((char *)c + f->config, &v, sizeof v);
}

const char *dq_kv_field_text(const dq_kv_field *f, const dq_kv_config *c)
{
    return text_at(f, in_config(f, c));
}

dq_status dq_kv_field_set_text(const dq_kv_field *f, dq_kv_config *c, const char *text, dq_arena *a,
                               dq_err *err)
{
    if (f->type == DQ_KV_POLICY) {
        const dq_kv_policy *p = dq_kv_policy_stored(text, a, err);
        memcpy((char *)c + f->config, &p, sizeof p);
        return p ? DQ_OK : err->code;
    }
    const size_t cap = f->type == DQ_KV_BY_LAYER ? DQ_KV_LISTS : DQ_KV_HEADS_TEXT;
    if (is_list(f) && strlen(text) < cap) {
        memset((char *)c + f->config, 0, cap);
        memcpy((char *)c + f->config, text, strlen(text));
        return DQ_OK;
    }
    for (int i = 0; i < f->n_words; i++) {
        if (strcmp(text, f->words[i]) != 0) continue;
        dq_kv_field_set_integer(f, c, i);
        return DQ_OK;
    }
    return dq_fail(err, DQ_DAMAGED, "KV settings: unknown %s \"%.80s\"", f->name, text);
}

const char *dq_kv_config_differs(const dq_kv_config *a, const dq_kv_config *b)
{
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        const dq_kv_field *f = &dq_kv_fields[i];
        if (dq_kv_field_evicts(f) && !a->evict.policy) continue; /* then b has none either */
        if (!same_at(f, in_config(f, a), in_config(f, b))) return f->name;
    }
    return NULL;
}

bool dq_kv_config_same(const dq_kv_config *a, const dq_kv_config *b)
{
    return !dq_kv_config_differs(a, b);
}

json_t *dq_kv_config_json(const dq_kv_config *c)
{
    json_t *o = json_object();
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        const dq_kv_field *f = &dq_kv_fields[i];
        if (!dq_kv_field_stored(f, c)) continue;
        if (c->evict.policy || !dq_kv_field_evicts(f))
            json_object_set_new(o, f->name, json_at(f, in_config(f, c)));
    }
    return o;
}

/* ---- What runs ---- */

static const void *in_spec(const dq_kv_field *f, const dq_kv_spec *s)
{
    return (const char *)s + f->spec;
}

/* It is set to something, and there is something that it acts on. */
static bool says(const dq_kv_field *f, const dq_kv_spec *s)
{
    if (f->or_other) return !is_other(f, in_spec(f, s));
    return s->evict.policy || !dq_kv_field_evicts(f);
}

bool dq_kv_spec_same(const dq_kv_spec *a, const dq_kv_spec *b)
{
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        const dq_kv_field *f = &dq_kv_fields[i];
        if (f->type == DQ_KV_ROTATE || (dq_kv_field_evicts(f) && !a->evict.policy)) continue;
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

json_t *dq_kv_spec_json(const dq_kv_spec *s)
{
    json_t *o = json_object(), *rotate = json_object();
    json_object_set_new(rotate, "k", json_boolean(s->rotate_k));
    json_object_set_new(rotate, "v", json_boolean(s->rotate_v));
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        const dq_kv_field *f = &dq_kv_fields[i];
        const double bits = dq_kv_shown_bits(s, f->spec == offsetof(dq_kv_spec, v_bits));
        json_t *v = f->type == DQ_KV_ROTATE                  ? rotate
                    : !says(f, s)                            ? json_null()
                    : f->type == DQ_KV_WIDTH && s->widths[0] ? json_real(bits)
                    : f->type == DQ_KV_WIDTH                 ? json_integer((json_int_t)bits)
                    : f->type == DQ_KV_ROWS ? json_integer(dq_evict_window(&s->evict))
                                            : json_at(f, in_spec(f, s));
        json_object_set_new(o, f->name, v);
    }
    return o;
}
