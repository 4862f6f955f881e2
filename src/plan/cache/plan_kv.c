/* plan_kv: see plan_kv.h. Opening: windows, units, and the caches of units alone. plan_kv_run.c has the search.
 * SPDX-License-Identifier: MIT */
#include "plan/cache/plan_kv.h"

#include <string.h>

/* Whether each KV head's keys are for the logits of one map, so that keys of a layer can have two widths. */
static int key_maps(const dq_head_order *map)
{
    if (map->n_maps < 2) return 1;
    for (int i = 0; i < map->n_kv; i++) {
        if (dq_head_order_key_map(map, i) < 0) return 1;
    }
    return 2;
}

/* ---- Mixes as caches ---- */

dq_status dq_plan_kv_config(dq_kv_config *out, const dq_plan_kv *p, const char *widths, dq_err *err)
{
    *out = p->set.kv;
    return dq_kv_config_set_widths(out, widths, err);
}

static dq_status config_of(dq_kv_config *out, const void *arg, const char *name, dq_err *err)
{
    return dq_plan_kv_config(out, arg, name, err);
}

/* As dq_plan_kv_space_text writes it for the model. */
static bool is_widths(const void *arg, const char *name)
{
    const dq_plan_kv *p = arg;
    dq_kv_widths w;
    char text[DQ_KV_LISTS];
    dq_err err = {0};
    return strlen(name) < DQ_KV_LISTS && dq_kv_widths_parse(&w, name, &err) == DQ_OK &&
           dq_kv_widths_fit(&w, p->set.in.model->n_layers, &err) == DQ_OK &&
           dq_kv_widths_text(text, &w, &err) == DQ_OK && strcmp(text, name) == 0;
}

static void add_depends(json_t *of, const void *arg)
{
    const dq_kv_config *kv = &((const dq_plan_kv *)arg)->set.kv;
    json_object_set_new(of, "quant", json_string(dq_kv_quant_name[kv->quant]));
    json_object_set_new(of, "dense_type", json_string(dq_kv_dense_name[kv->dense]));
    json_object_set_new(of, "recent", json_integer(kv->recent));
    json_object_set_new(of, "sink", json_integer(kv->sink));
}

/* ---- Settings ---- */

static dq_status check_settings(const dq_plan_kv *p, dq_err *err)
{
    const dq_plan_kv_settings *s = &p->set;
    const int least = s->bits[0], largest = s->bits[s->n_bits - 1];
    if (s->kv.quant == DQ_KV_PER_TOKEN)
        return dq_fail_with(
            err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_KV_OPTION},
            "quant per-token: its widths are the same for all layers and maps, so there "
            "is nothing to plan. Use mixed, per-channel or dither.");
    if (s->mean < least || s->mean > largest)
        return dq_fail_with(
            err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OPTION},
            "kv-bits %g: is out of reach of the widths (expected a mean of %d to %d).", s->mean,
            least, largest);
    return DQ_OK;
}

/* The last row that is scored must read something as codes. */
static dq_status check_codes(const dq_plan_kv *p, dq_err *err)
{
    const dq_plan_kv_settings *s = &p->set;
    dq_kv_config c;
    dq_kv_spec spec;
    DQ_TRY(dq_plan_kv_config(&c, p, "8:8", err));
    DQ_TRY(dq_model_kv_spec(&spec, &c, s->in.model, DQ_NUM_F32, err));
    if (dq_kv_coded_end(&spec, (int32_t)s->in.ctx - 2) > spec.sink) return DQ_OK;
    return dq_fail(
        err, DQ_MISMATCH,
        "windows of %lld tokens with the last %d and the first %d unquantized hold no page "
        "of codes. Use longer windows or fewer recent tokens",
        (long long)s->in.ctx, spec.recent, spec.sink);
}

/* ---- The text ---- */

static dq_status too_little(const dq_plan_kv *p, dq_err *err)
{
    return dq_fail_with(
        err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SMALLER_CTX},
        "%s: too little text: %lld windows of %lld tokens (expected at least %d, of "
        "which two fifths search and the others decide). Give more text",
        p->set.in.text, (long long)p->caches.win.n, (long long)p->set.in.ctx,
        DQ_PLAN_KV_LEAST_WINDOWS);
}

static dq_status split_text(dq_plan_kv *p, dq_err *err)
{
    const int64_t n = p->caches.win.n, begin = n / 5;
    int64_t search = 2 * n / 5;
    if (n < DQ_PLAN_KV_LEAST_WINDOWS) return too_little(p, err);
    p->coarse = dq_plan_kv_caches(p) * search * p->set.in.ctx > DQ_PLAN_KV_ALONE;
    if (p->coarse) {
        const int64_t fit = DQ_PLAN_KV_ALONE / (dq_plan_kv_caches(p) * p->set.in.ctx);
        if (search > fit) search = fit > 1 ? fit : 1;
    }
    return dq_plan_caches_split(&p->caches, begin, begin + search, err);
}

/* ---- Units ---- */

static dq_status list_units(dq_plan_kv *p, dq_err *err)
{
    const dq_plan_kv_settings *s = &p->set;
    p->space.n_bits = s->n_bits;
    memcpy(p->space.bits, s->bits, sizeof p->space.bits);
    DQ_TRY(dq_plan_kv_space_begin(&p->space, s->in.model->n_layers, s->together,
                                  key_maps(&s->in.model->map), err));
    const size_t n = (size_t)p->space.n_units, all = n * (size_t)s->n_bits;
    p->item = dq_alloc(p->arena, n, sizeof *p->item, err);
    p->unit = dq_alloc(p->arena, all, sizeof *p->unit, err);
    p->alone = dq_alloc(p->arena, all, sizeof *p->alone, err);
    for (int u = 0; err->code == DQ_OK && u < p->space.n_units; u++) {
        p->item[u].n = s->n_bits;
        for (int k = 0; k < s->n_bits; k++)
            p->item[u].cost[k] = s->bits[k] * dq_plan_kv_space_cost(&p->space, u);
    }
    return err->code;
}

bool dq_plan_kv_measures(const dq_plan_kv *p, int k)
{
    const int n = p->space.n_bits;
    return !p->coarse || n <= 3 || k % 2 == 0 || k == n - 1;
}

int64_t dq_plan_kv_caches(const dq_plan_kv *p)
{
    int64_t all = 0;
    for (int k = 0; k < p->space.n_bits; k++)
        all += dq_plan_kv_measures(p, k) ? p->space.n_units : 0;
    /* what has the width of the others is one cache for all units */
    const bool with_others = p->space.bits[p->space.n_bits - 1] == DQ_PLAN_KV_OTHERS;
    return with_others ? all - p->space.n_units + 1 : all;
}

dq_status dq_plan_kv_pace(double *seconds, dq_plan_kv *p, dq_err *err)
{
    const int cache = dq_plan_caches_find(&p->caches, "8:8", err);
    return cache < 0 ? err->code : dq_plan_caches_pace(seconds, &p->caches, cache, err);
}

int64_t dq_plan_kv_max_trials(const dq_plan_kv *p)
{
    double mixes = 1;
    for (int u = 0; u < p->space.n_units; u++) mixes *= p->space.n_bits;
    return mixes < (double)p->set.trials ? (int64_t)mixes : p->set.trials;
}

const char *dq_plan_kv_widths(const dq_plan_kv *p)
{
    return p->caches.list[p->trial[p->chosen].mix].name;
}

/* ---- The plan ---- */

static dq_status open_all(dq_plan_kv *p, dq_err *err)
{
    const dq_plan_caches_kind kind = {.key = "widths",
                                      .config = config_of,
                                      .is_name = is_widths,
                                      .depend = add_depends,
                                      .arg = p};
    DQ_TRY(check_settings(p, err));
    DQ_TRY(dq_plan_caches_fit(&p->set.in, err));
    DQ_TRY(list_units(p, err));
    DQ_TRY(check_codes(p, err));
    DQ_TRY(dq_plan_caches_cut(&p->caches, &p->set.in, &kind, p->arena, err));
    return split_text(p, err);
}

dq_status dq_plan_kv_open(dq_plan_kv **out, const dq_plan_kv_settings *s, dq_err *err)
{
    dq_arena *a = dq_arena_new();
    dq_plan_kv *p = *out = a ? dq_alloc(a, 1, sizeof *p, err) : NULL;
    if (!p) {
        dq_arena_free(a);
        return dq_fail(err, DQ_RESOURCE, "out of memory");
    }
    p->arena = a;
    p->set = *s;
    p->chosen = -1;
    if (open_all(p, err) == DQ_OK) return DQ_OK;
    dq_plan_kv_close(p);
    *out = NULL;
    return err->code;
}

void dq_plan_kv_close(dq_plan_kv *p)
{
    if (!p) return;
    dq_plan_caches_end(&p->caches);
    dq_arena_free(p->arena);
}

dq_status dq_plan_kv_failed(dq_plan_kv *p, dq_err *err)
{
    return dq_plan_journal_failed(&p->caches.journal, err);
}

void dq_plan_kv_done(dq_plan_kv *p)
{
    dq_plan_journal_end(&p->caches.journal, true);
}
