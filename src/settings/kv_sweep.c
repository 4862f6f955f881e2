/* kv_sweep: see kv_sweep.h. A combination is a place in every list, counted as one number; a model's stored settings are the
 * base that given options override. Repeated combinations are found by comparing caches beside each other.
 * SPDX-License-Identifier: MIT */
#include "settings/kv_sweep.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

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

/* `c` with the place in the list of codes; as it is where none is given. */
static void set_code(const dq_kv_options *o, dq_kv_config *c, int place)
{
    if (o->n_codes) c->quant = (dq_kv_quant)o->codes[place];
}

/* The same of the list of widths, of which 32 says what is not coded, and the others leave that to --kv-dense-type. */
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

/* ---- Checks ---- */

dq_status dq_kv_sweep_check_widths(const dq_kv_options *o, dq_kv_config c, dq_err *err)
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

dq_status dq_kv_sweep_check_codes(const dq_kv_options *o, dq_err *err)
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

dq_status dq_kv_sweep_check_dense(const dq_kv_options *o, dq_err *err)
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

/* ---- Configs ---- */

/* What is not coded: as --kv-dense-type says; else as a container does, if it says anything of caches and no widths are given;
 * else 16 bits as soon as a KV option is given. Without one it stays f32, the reference. */
static dq_kv_dense dense_of(const dq_kv_options *o, const dq_kv_config *stored)
{
    const bool says = !dq_kv_config_same(stored, &dq_kv_config_plain);
    if (dense_given(o) >= 0) return (dq_kv_dense)dense_given(o);
    if (says && !o->n_bits && !o->size_text) return stored->dense;
    return dq_kv_options_given(o) ? DQ_KV_DENSE_AUTO : stored->dense;
}

/* The settings without what is swept. */
static dq_kv_config overridden(const dq_kv_options *o, const dq_kv_config *stored)
{
    dq_kv_config c = *stored;
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        if (o->given[i].number >= 0)
            dq_kv_field_set_integer(&dq_kv_fields[i], &c, o->given[i].number);
        if (o->given[i].text && dq_kv_fields[i].type == DQ_KV_BY_GROUP)
            snprintf(c.evict.heads, sizeof c.evict.heads, "%s", o->given[i].text);
    }
    c.dense = dense_of(o, stored);
    return c;
}

/* Nothing of an eviction stays where there is none, and no heads beside another budget. */
static void drop_unused(dq_kv_config *c)
{
    if (!c->evict.policy) c->evict = dq_kv_config_plain.evict;
    if (c->evict.budget != DQ_KV_BUDGET_HEADS) memset(c->evict.heads, 0, sizeof c->evict.heads);
}

/* How many of each list that is swept, and places in them. */
typedef struct combination {
    int bits, code, policy, kind, budget;
} combination;

/* Lists that nobody gave count one; where nothing evicts, so do those of policies and budgets. */
static combination sizes_of(const dq_kv_options *o, bool evicts)
{
    return (combination){at_least_one(o->n_bits), at_least_one(o->n_codes),
                         evicts ? at_least_one(o->n_policies) : 1,
                         evicts ? at_least_one(o->n_kinds) : 1, at_least_one(o->n_budgets)};
}

/* Places of combination i; budgets change first, widths last. */
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

/* What is combined: settings without what is swept, for a model. */
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

/* `base` with one combination of what is swept. Of several codes auto is the one that it stands for, and a cache without
 * codes has the name that auto gives it. */
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
    LISTED, /* it is one */
    REPEATED, /* what keeps everything, by another policy or budget of `all`; 16 bits by another code */
    UNDITHERED, /* per-channel codes of values that dithering leaves alone, where both codes are in the list */
    LACKING, /* of several codes, one that has no such widths */
    UNGATED  /* of all policies, one that the model has no gates for */
} omission;

/* Of a cache beside one before it that differs in the place in the list of codes alone. */
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

/* Why the codes cannot be: widths that they lack have one reason, whichever they are. */
static const char *lacking(const dq_kv_spec *s, const dq_err *lacks)
{
    const bool one_width = !s->widths[0];
    if (one_width && s->quant == DQ_KV_PER_TOKEN && !dq_kv_token_widths(s->k_bits, s->v_bits))
        return "per-token codes have 16, 8, 6 or 4 bits, those of values 3 and 2 too";
    return lacks->text;
}

/* Of two codes that are one, page is what results call it. */
static void say_omission(const dq_kv_options *o, const dq_kv_config *c, omission why)
{
    char widths[DQ_KV_TEXT], what[DQ_KV_TEXT + 32];
    dq_kv_spec spec;
    dq_err lacks = {0};
    if (o->logger && why == UNGATED)
        dq_logger_left_out(o->logger, "the policy kvzap",
                           "the model has no gates. Make them by dq plan gates, for --kv-gates");
    if (!o->logger || (why != UNDITHERED && why != LACKING)) return;
    check_exists(&spec, c, &lacks);
    snprintf(what, sizeof what, "%s as %s codes", dq_kv_spec_widths(widths, &spec),
             dq_kv_quant_name[why == LACKING ? spec.quant : DQ_KV_DITHER]);
    dq_logger_left_out(
        o->logger, what,
        why == LACKING
            ? lacking(&spec, &lacks)
            : "the same as per-channel codes, as only values of 4 to 8 bits are dithered");
}

/* ---- Sizes ---- */

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

/* c becomes what the i-th size comes to, which is remembered. */
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
    const combination of = sizes_of(o, s.evicts);
    const int all = of.bits * of.code * of.policy * of.kind * of.budget;
    dq_kv_config *list = dq_block_new((size_t)all, sizeof *list, err);
    *out = list;
    *n = 0;
    for (int i = 0; list && i < all; i++) {
        const combination at = places_of(of, i);
        dq_kv_config c = combined(&s, at);
        const omission why = omission_of(&s, at);
        say_omission(o, &c, why);
        if (why != LISTED) continue;
        if (o->size_text && m && set_size(o, &c, at.budget, m, err) != DQ_OK) break;
        o->uses |= dq_kv_config_uses(&c, maps_of(&s));
        drop_unused(&c);
        list[(*n)++] = c;
    }
    return err->code;
}
