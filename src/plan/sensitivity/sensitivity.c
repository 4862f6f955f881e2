/* sensitivity: see sensitivity.h. The source's stream is taken through the model once. At each layer every unit of it is changed in a copy
 * of the layer alone: run once for the local forecast, and through all later layers for the KLD.
 * SPDX-License-Identifier: MIT */
#include "plan/sensitivity/sensitivity.h"

#include "base/os.h"
#include "base/ranks.h"
#include "calibrate/calibrate_work.h"
#include "plan/plan_decide.h"
#include "plan/weights/plan_round.h"

#include <math.h>
#include <string.h>

const char *const dq_sensitivity_name[DQ_SENSITIVITY_KINDS] = {"layers", "heads",  "maps",
                                                               "keys",   "values", "weights"};

/* ---- Units ---- */

static bool wants(const dq_sensitivity *s, dq_sensitivity_kind kind)
{
    return s->set.kinds >> kind & 1;
}

static const dq_weight *weight_of(const dq_model *m, const dq_sensitivity_unit *u)
{
    if (u->slot == DQ_PLAN_EMBED) return &m->embed;
    if (u->slot == DQ_PLAN_HEAD) return &m->head;
    return dq_plan_probe_weight(&m->layer[u->layer], u->slot);
}

static void add(dq_sensitivity *s, dq_sensitivity_unit unit)
{
    if (!s->unit) { /* they are counted first */
        s->n++;
        return;
    }
    unit.local = unit.logit_error = (double)NAN;
    if (unit.kind == DQ_SENSITIVITY_WEIGHTS) unit.name = weight_of(s->m, &unit)->name;
    s->unit[s->n++] = unit;
}

/* Whether an earlier output head has the same second map. */
static bool is_shared(const dq_head_order *map, int out)
{
    for (int i = 0; i < out; i++) {
        if (map->head[i].q[1] == map->head[out].q[1]) return true;
    }
    return false;
}

static void list_layer(dq_sensitivity *s, int l)
{
    const dq_head_order *map = &s->m->map;
    const dq_sensitivity_unit none = {.layer = l, .head = -1, .map = -1};
    dq_sensitivity_unit u = none;
    static const dq_sensitivity_kind whole[] = {DQ_SENSITIVITY_LAYERS, DQ_SENSITIVITY_KEYS,
                                                DQ_SENSITIVITY_VALUES};
    for (int i = 0; i < 3; i++) {
        u.kind = whole[i];
        if (wants(s, u.kind)) add(s, u);
    }
    for (u.head = 0; u.head < map->n_out; u.head++) {
        u.kind = DQ_SENSITIVITY_HEADS;
        u.map = -1;
        if (wants(s, u.kind)) add(s, u);
        u.kind = DQ_SENSITIVITY_MAPS;
        for (u.map = 0; u.map < 2 && map->n_maps == 2 && wants(s, u.kind); u.map++) {
            if (u.map == 0 || !is_shared(map, u.head)) add(s, u);
        }
    }
    u = none;
    u.kind = DQ_SENSITIVITY_WEIGHTS;
    for (int slot = DQ_PLAN_Q; slot <= DQ_PLAN_DOWN_PROJ && wants(s, u.kind); slot++) {
        u.slot = (dq_plan_slot)slot;
        if (weight_of(s->m, &u)->rows > 0) add(s, u);
    }
}

static void list(dq_sensitivity *s)
{
    dq_sensitivity_unit end = {
        .kind = DQ_SENSITIVITY_WEIGHTS, .layer = -1, .head = -1, .map = -1, .slot = DQ_PLAN_EMBED};
    s->n = 0;
    if (wants(s, end.kind)) add(s, end);
    for (int l = 0; l < s->m->n_layers; l++) list_layer(s, l);
    end.slot = DQ_PLAN_HEAD;
    if (wants(s, end.kind) && !s->m->tied) add(s, end);
}

/* The cache with keys alone, or values alone, as codes. */
static dq_status cache_of(dq_kv_spec *out, const dq_sensitivity *s, dq_sensitivity_kind kind,
                          dq_err *err)
{
    dq_kv_config c = s->set.kv;
    c.k_bits = kind == DQ_SENSITIVITY_KEYS ? s->set.bits : 16;
    c.v_bits = kind == DQ_SENSITIVITY_VALUES ? s->set.bits : 16;
    return dq_model_kv_spec(out, &c, s->m, DQ_NUM_F32, err);
}

dq_status dq_sensitivity_new(dq_sensitivity *s, const dq_model *m, const dq_calib_text *text,
                             const dq_sensitivity_settings *set, dq_arena *a, dq_err *err)
{
    *s = (dq_sensitivity){.set = *set, .m = m, .text = text, .arena = a, .work = s->work};
    for (int k = DQ_SENSITIVITY_KEYS; k <= DQ_SENSITIVITY_VALUES; k++) {
        dq_kv_spec spec;
        if (wants(s, (dq_sensitivity_kind)k))
            DQ_TRY(cache_of(&spec, s, (dq_sensitivity_kind)k, err));
    }
    list(s);
    s->unit = dq_alloc(a, (size_t)s->n + 1, sizeof *s->unit, err);
    if (!s->unit) return err->code;
    list(s);
    for (int64_t i = 0; i < s->n; i++) {
        s->unit[i].sums = dq_alloc(a, (size_t)text->n_clusters, sizeof(double), err);
        if (!s->unit[i].sums) return err->code;
    }
    s->scored_of = dq_plan_part_scored(text, a, err);
    if (!s->scored_of) return err->code;
    for (int64_t i = 0; i < text->n_clusters; i++) s->scored += s->scored_of[i];
    return dq_forecast_new(&s->forecast, m, text->n_clusters, a, err);
}

/* ---- The journal ---- */

static json_t *line_of(const dq_sensitivity *s, const dq_sensitivity_unit *u)
{
    json_t *line = json_object();
    json_object_set_new(line, "model", json_integer(s->set.number));
    json_object_set_new(line, "unit", json_integer(u - s->unit));
    json_object_set_new(line, "kld", dq_plan_journal_reals(u->sums, s->text->n_clusters));
    if (isfinite(u->local)) json_object_set_new(line, "local", json_real(u->local));
    return line;
}

static dq_status conclude(const dq_sensitivity *s, dq_sensitivity_unit *u, dq_err *err)
{
    const int64_t n = s->text->n_clusters, *scored = s->scored_of;
    DQ_TRY(dq_plan_decide_mean(&u->kld, u->sums, scored, n, err));
    u->interval = dq_plan_decide_kld(u->kld, dq_plan_decide_skew(u->sums, scored, n), 0.05);
    u->known = true;
    return DQ_OK;
}

dq_status dq_sensitivity_take(void *arg, json_t *line, dq_err *err)
{
    dq_sensitivity *s = arg;
    const json_int_t at = json_integer_value(json_object_get(line, "unit"));
    const json_t *local = json_object_get(line, "local");
    int64_t found;
    if (!json_is_integer(json_object_get(line, "unit")) || at < 0 || at >= s->n)
        return dq_fail(err, DQ_DAMAGED, "has a unit that is none of 0 to %lld",
                       (long long)s->n - 1);
    dq_sensitivity_unit *u = &s->unit[at];
    DQ_TRY(dq_plan_journal_take_reals(u->sums, s->text->n_clusters, &found, line, "kld", err));
    if (found != s->text->n_clusters)
        return dq_fail(err, DQ_DAMAGED, "kld has %lld numbers (expected %lld)", (long long)found,
                       (long long)s->text->n_clusters);
    if (local && !(json_is_real(local) && json_real_value(local) >= 0))
        return dq_fail(err, DQ_DAMAGED, "\"local\" holds what is no error");
    if (local) u->local = json_real_value(local);
    s->n_known += !u->known;
    return conclude(s, u, err);
}

/* ---- One unit ---- */

/* What a change consists of, while it is measured. */
typedef struct change {
    dq_plan_change of;
    dq_layer layer;
    dq_kv_spec kv;
    dq_logit_spec logit;
    dq_coded coded;
    bool *rounds;
} change;

static dq_status round_weight(change *c, const dq_sensitivity *s, const dq_weight *w, dq_err *err)
{
    const bool ends = w == &s->m->embed || w == &s->m->head;
    dq_quant_spec spec = {.bits = s->set.bits, .group = s->set.group, .scale_dtype = DQ_F16};
    dq_gptq_loss loss = {0};
    float *values;
    spec.mode = dq_quantize_mode(DQ_SEARCH, spec.bits, !ends);
    if (dq_plan_round_values(&values, w, err) == DQ_OK) {
        spec.scale_dtype = dq_plan_round_scale(values, w->rows, w->cols, &spec);
        dq_plan_round_nearest(&c->coded, &loss, values, w->rows, w->cols, &spec, err);
        c->coded.weight.name = w->name;
    }
    dq_block_free(values);
    return err->code;
}

static dq_status make_change(change *c, const dq_sensitivity *s, const dq_sensitivity_unit *u,
                             dq_err *err)
{
    const dq_head_order *map = &s->m->map;
    if (u->kind == DQ_SENSITIVITY_WEIGHTS) {
        DQ_TRY(round_weight(c, s, weight_of(s->m, u), err));
        if (u->layer < 0) return DQ_OK;
        c->layer = s->m->layer[u->layer];
        *dq_plan_probe_weight(&c->layer, u->slot) = c->coded.weight;
        c->of.layer = &c->layer;
        return DQ_OK;
    }
    if (u->kind == DQ_SENSITIVITY_KEYS || u->kind == DQ_SENSITIVITY_VALUES) {
        c->of.kv = &c->kv;
        return cache_of(&c->kv, s, u->kind, err);
    }
    c->logit = (dq_logit_spec){s->set.bits, s->set.granularity};
    c->of.logit = &c->logit;
    if (u->head < 0) return DQ_OK;
    c->rounds = dq_block_new((size_t)map->n_q, sizeof *c->rounds, err);
    if (!c->rounds) return err->code;
    for (int k = 0; k < map->n_maps; k++)
        c->rounds[map->head[u->head].q[k]] = u->map < 0 || u->map == k;
    c->of.rounds = c->rounds;
    return DQ_OK;
}

static const char *const what_name[DQ_SENSITIVITY_KINDS] = {
    "logits of layers", "logits of heads", "logits of maps", "keys", "values", "weights"};

static int first_layer(const dq_model *m, const dq_sensitivity_unit *u)
{
    if (u->layer >= 0) return u->layer;
    return u->slot == DQ_PLAN_HEAD ? m->n_layers : 0;
}

static dq_status measure(dq_sensitivity *s, dq_plan_part *part, dq_sensitivity_unit *u,
                         const change *c, dq_err *err)
{
    const dq_model *m = s->m;
    dq_plan_other other = {.m = m,
                           .from = first_layer(m, u),
                           .change = &c->of,
                           .head = &m->head,
                           .what = what_name[u->kind]};
    dq_plan_sums sums = {.kld = u->sums};
    if (u->kind == DQ_SENSITIVITY_WEIGHTS && u->slot == DQ_PLAN_EMBED) {
        other.embed = &c->coded.weight;
        if (m->tied) other.head = &c->coded.weight;
    }
    if (u->kind == DQ_SENSITIVITY_WEIGHTS && u->slot == DQ_PLAN_HEAD) other.head = &c->coded.weight;
    if (u->layer >= 0 || other.embed) DQ_TRY(dq_plan_part_local(&u->local, part, &other, err));
    DQ_TRY(dq_plan_part_measure(&sums, part, &other, err));
    DQ_TRY(conclude(s, u, err));
    return s->set.journal && dq_ranks_number() == 0
               ? dq_plan_journal_put(s->set.journal, line_of(s, u), err)
               : DQ_OK;
}

static dq_status run_unit(dq_sensitivity *s, dq_plan_part *part, dq_sensitivity_unit *u,
                          dq_err *err)
{
    change c = {.coded.bytes = NULL};
    if (make_change(&c, s, u, err) == DQ_OK) measure(s, part, u, &c, err);
    dq_coded_free(&c.coded);
    dq_block_free(c.rounds);
    return err->code;
}

/* ---- Layers ---- */

/* Where heads are shown to the forecast. */
typedef struct seen {
    dq_sensitivity *s;
    const dq_plan_part *part;
    int layer;
    dq_err *err;
} seen;

static void see_heads(void *arg, const dq_layer_steps *steps)
{
    const seen *x = arg;
    const dq_plan_part *p = x->part;
    const dq_calib_chunk *k = p->pass.chunk;
    while (&k->batch != steps->batch) k++;
    if (dq_backend_sync(p->pass.b, x->err) != DQ_OK) return;
    dq_forecast_add(&x->s->forecast, x->layer, steps, p->text->cluster + k->first_seq, x->err);
}

/* Those of a layer, or of none: before the first layer the embedding, after the last one the head. */
static dq_status run_units(dq_sensitivity *s, dq_plan_part *part, int layer, bool head, dq_err *err)
{
    for (int64_t i = 0; i < s->n; i++) {
        dq_sensitivity_unit *u = &s->unit[i];
        if (u->known || u->layer != layer) continue;
        if (layer < 0 && (u->slot == DQ_PLAN_HEAD) != head) continue;
        DQ_TRY(dq_os_check_stop(err));
        DQ_TRY(run_unit(s, part, u, err));
    }
    return DQ_OK;
}

static dq_status run_layers(dq_sensitivity *s, dq_plan_part *part, dq_err *err)
{
    DQ_TRY(dq_plan_part_next(part, -1, NULL, err));
    DQ_TRY(run_units(s, part, -1, false, err));
    for (int l = 0; l < s->m->n_layers; l++) {
        seen x = {s, part, l, err};
        const dq_plan_inputs inputs = {.see_heads = see_heads, .arg = &x};
        DQ_TRY(dq_plan_part_next(part, l, &inputs, err));
        DQ_TRY(run_units(s, part, l, false, err));
        DQ_TRY(dq_plan_part_move(part, err));
    }
    return run_units(s, part, -1, true, err);
}

double dq_sensitivity_flop(const dq_sensitivity *s)
{
    const double ids = (double)s->text->n_ids;
    double flop = dq_plan_part_source_flop(s->m, ids);
    for (int l = 0; l < s->m->n_layers; l++) flop += ids * dq_calibrate_work_layer(&s->m->layer[l]);
    for (int64_t i = 0; i < s->n; i++) {
        const dq_sensitivity_unit *u = &s->unit[i];
        if (u->known) continue;
        flop += dq_plan_part_kld_flop(s->m, first_layer(s->m, u), ids);
        if (u->layer >= 0) flop += ids * dq_calibrate_work_layer(&s->m->layer[u->layer]);
    }
    return flop;
}

/* The predicted error of a unit's logits: of all that it rounds together. */
static double logit_error(const dq_sensitivity *s, const dq_sensitivity_unit *u)
{
    const dq_head_order *map = &s->m->map;
    dq_forecast_logits of[2] = {{0}};
    if (u->kind > DQ_SENSITIVITY_MAPS) return (double)NAN;
    const dq_forecast_logits *layer = s->forecast.logits + (int64_t)u->layer * map->n_q;
    if (u->head < 0)
        return dq_forecast_predicted_all(layer, map->n_q, s->set.bits, s->set.granularity);
    for (int k = 0; k < map->n_maps; k++) {
        if (u->map < 0 || u->map == k) of[k] = layer[map->head[u->head].q[k]];
    }
    return dq_forecast_predicted_all(of, 2, s->set.bits, s->set.granularity);
}

dq_status dq_sensitivity_run(dq_sensitivity *s, dq_err *err)
{
    dq_plan_part part;
    dq_plan_work_expect(&s->work, dq_sensitivity_flop(s));
    if (dq_plan_part_new(&part, s->text, s->m, s->set.backend, s->set.beside, true, &s->work,
                         err) == DQ_OK)
        run_layers(s, &part, err);
    for (int64_t i = 0; i < s->n; i++) s->unit[i].logit_error = logit_error(s, &s->unit[i]);
    dq_plan_part_end(&part);
    return err->code;
}
