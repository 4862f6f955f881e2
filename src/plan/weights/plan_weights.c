/* plan_weights: see plan_weights.h. Opening: budget, texts, and what each tensor costs at each width, which plans of quantization say without
 * reading weights. plan_run.c has the rest.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_weights.h"

#include "base/text.h"
#include "calibrate/calibrate_work.h"
#include "plan/weights/plan_state.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const dq_plan_goal_name[DQ_PLAN_GOALS] = {"kld", "ppl", "bpw", "size"};
const char *const dq_plan_text_name[DQ_PLAN_TEXTS] = {"calibration", "search", "unseen"};

/* ---- Budgets ---- */

static dq_status bad_budget(const char *text, dq_err *err)
{
    return dq_fail_with(
        err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OPTION},
        "budget: expected kld=NATS (above 0), ppl=RATIO (above 1), bpw=BITS or size=BYTES "
        "(in B, kB, MB, GB, KiB, MiB or GiB: 1.5GiB, 700MB); found \"%s\".",
        text);
}

/* What a number of bytes is multiplied by; 0: no unit. */
static double unit_of(const char *text)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},     {"B", 1},    {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824},
                 {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(units[i].name, text) == 0) return units[i].bytes;
    }
    return 0;
}

dq_status dq_plan_weights_budget_parse(dq_plan_budget *out, const char *text, dq_err *err)
{
    const char *split = strchr(text, '=');
    int goal = 0;
    char *end;
    if (!split) return bad_budget(text, err);
    while (goal < DQ_PLAN_GOALS &&
           (strncmp(text, dq_plan_goal_name[goal], (size_t)(split - text)) != 0 ||
            dq_plan_goal_name[goal][split - text]))
        goal++;
    const double value = dq_real_parse(split + 1, &end);
    const double unit = goal == DQ_PLAN_SIZE ? unit_of(end) : *end ? 0 : 1;
    *out = (dq_plan_budget){(dq_plan_goal)goal, value * unit};
    if (goal == DQ_PLAN_GOALS || end == split + 1 || !isfinite(out->value) ||
        !(out->value > (goal == DQ_PLAN_PPL ? 1 : 0)))
        return bad_budget(text, err);
    return DQ_OK;
}

/* ---- Tensors ---- */

/* Plans of quantization, one for each width. */
typedef struct offers {
    dq_quantizer *q[DQ_PLAN_WIDTHS];
    int n;
} offers;

static void close_offers(offers *o)
{
    while (o->n > 0) dq_quantize_close(o->q[--o->n]);
}

dq_quantize_settings dq_plan_weights_uniform(const dq_plan_weights *p, int bits)
{
    dq_quantize_settings s = p->set.set;
    s.bits = bits;
    s.method_name = p->set.rule->name;
    if (p->set.ends) s.embed_bits = bits;
    if (p->set.ends) s.head_bits = p->model->tied ? 0 : bits;
    return s;
}

static dq_status open_offers(offers *o, const dq_plan_weights *p, dq_err *err)
{
    for (o->n = 0; o->n < p->set.n_bits; o->n++) {
        const dq_quantize_settings s = dq_plan_weights_uniform(p, p->set.bits[o->n]);
        DQ_TRY(dq_quantize_open(&o->q[o->n], p->set.model, &s, err));
    }
    return DQ_OK;
}

/* Which weight of the model a tensor is. */
static bool find_slot(dq_plan_tensor *t, const dq_model *m)
{
    const bool embed = strcmp(m->embed.name, t->name) == 0;
    t->layer = 0;
    t->slot = embed ? DQ_PLAN_EMBED : DQ_PLAN_HEAD;
    if (embed || (m->head.name && strcmp(m->head.name, t->name) == 0)) return true;
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (int s = 0; s <= DQ_PLAN_DOWN_PROJ; s++) {
            if (all[s]->rows == 0 || strcmp(all[s]->name, t->name) != 0) continue;
            t->layer = i;
            t->slot = (dq_plan_slot)s;
            return true;
        }
    }
    return false;
}

static dq_status take_tensor(dq_plan_weights *p, const offers *o, int64_t row, dq_err *err)
{
    dq_plan_tensor *t = &p->tensor[p->n_tensors++];
    for (int i = 0; i < o->n; i++) {
        const dq_quantize_row r = dq_quantize_row_at(o->q[i], row);
        if (i == 0) t->name = dq_text(p->arena, r.name, strlen(r.name), err);
        if (!t->name) return err->code;
        t->rows = r.rows;
        t->cols = r.cols;
        if (t->n > 0 && t->bits[t->n - 1] == r.bits) continue; /* a width of its own */
        t->bits[t->n] = r.bits;
        t->bytes[t->n++] = r.bytes;
    }
    t->spec = (dq_quant_spec){
        .group = p->set.set.group, .mode = p->set.set.mode, .scale_dtype = p->set.set.scale_dtype};
    p->packed_params += t->rows * t->cols;
    if (!find_slot(t, p->model))
        return dq_fail(err, DQ_MISMATCH,
                       "%s: %s is no matrix of a layer of its own, so its share in what is lost "
                       "cannot be measured",
                       p->set.model, t->name);
    return DQ_OK;
}

static dq_status list_tensors(dq_plan_weights *p, dq_err *err)
{
    offers o;
    if (open_offers(&o, p, err) == DQ_OK) {
        const dq_quantize_info *i = dq_quantize_result(o.q[0]);
        const dq_quantize_settings *set = dq_quantize_effective(o.q[0]);
        p->set.set.group = set->group; /* the same at every width */
        if (!p->set.ends) p->set.set.embed_bits = set->embed_bits;
        if (!p->set.ends) p->set.set.head_bits = set->head_bits;
        p->other_bytes = i->file_bytes - i->packed_bytes;
        p->source_bytes = i->source_bytes;
        p->tensor = dq_alloc(p->arena, (size_t)i->n_packed, sizeof *p->tensor, err);
        for (int64_t r = 0; err->code == DQ_OK && r < i->n_tensors; r++) {
            if (dq_quantize_row_at(o.q[0], r).packed) take_tensor(p, &o, r, err);
        }
        if (err->code == DQ_OK && p->n_tensors == 0)
            dq_fail(err, DQ_MISMATCH, "%s: no tensor is to be packed, so there is nothing to plan",
                    p->set.model);
    }
    close_offers(&o);
    return err->code;
}

static dq_status list_items(dq_plan_weights *p, dq_err *err)
{
    p->item = dq_alloc(p->arena, (size_t)p->n_tensors, sizeof *p->item, err);
    if (!p->item) return err->code;
    for (int64_t i = 0; i < p->n_tensors; i++) {
        p->item[i].n = p->tensor[i].n;
        for (int k = 0; k < p->tensor[i].n; k++) p->item[i].cost[k] = (double)p->tensor[i].bytes[k];
    }
    return DQ_OK;
}

double dq_plan_weights_bits_per_weight(const dq_plan_weights *p, double packed_bytes)
{
    return dq_weight_bits_over((int64_t)packed_bytes, p->packed_params);
}

/* ---- Budgets of size ---- */

double dq_plan_weights_recipe_bytes(const dq_plan_weights *p)
{
    enum { FRAME = 3072, TRIALS = 6, TENSOR = 128, NUMBER = 128, POINT = 96, POINTS = 101 };
    double n = FRAME + TRIALS * DQ_PLAN_TRIAL_BYTES;
    int64_t points = 1;
    for (int64_t i = 0; i < p->n_tensors; i++) {
        n += TENSOR + 2 * (double)strlen(p->tensor[i].name) + NUMBER * p->tensor[i].n;
        points += p->tensor[i].n - 1;
    }
    return n + POINT * (double)(points < POINTS ? points : POINTS);
}

double dq_plan_weights_packed_budget(const dq_plan_weights *p)
{
    const dq_plan_budget b = p->set.budget;
    if (b.goal == DQ_PLAN_BPW) return b.value * (double)p->packed_params / 8;
    return b.value - (double)p->other_bytes - dq_plan_weights_recipe_bytes(p);
}

static dq_status check_budget(const dq_plan_weights *p, dq_err *err)
{
    const dq_plan_budget b = p->set.budget;
    double least = 0;
    for (int64_t i = 0; i < p->n_tensors; i++) least += p->item[i].cost[0];
    if (b.goal < DQ_PLAN_BPW || least <= dq_plan_weights_packed_budget(p)) return DQ_OK;
    if (b.goal == DQ_PLAN_BPW)
        return dq_fail_with(
            err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OPTION},
            "budget: %g bit%s per weight is less than the least that these widths give, "
            "%.3f.",
            b.value, b.value == 1 ? "" : "s", dq_plan_weights_bits_per_weight(p, least));
    return dq_fail_with(
        err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OPTION},
        "budget: %.0f bytes are less than the least that these widths give, about %.0f.", b.value,
        least + (double)p->other_bytes + dq_plan_weights_recipe_bytes(p));
}

/* ---- Texts ---- */

static dq_status too_little(const dq_plan_weights *p, dq_plan_text which, dq_err *err)
{
    const dq_calib_text *t = &p->text[which];
    const char *path = which == DQ_PLAN_UNSEEN && p->set.unseen ? p->set.unseen : p->set.calib;
    if (t->cut) /* the file has more */
        return dq_fail(err, DQ_MISMATCH,
                       "%s: too little text: an error needs 2 sequences, and %lld of at most %lld "
                       "tokens%s came to the %s part, which asks for %lld tokens. Ask for more.",
                       path, (long long)p->clusters[which], (long long)t->ctx,
                       t->n_copies ? ", copies counted once," : "", dq_plan_text_name[which],
                       (long long)t->requested);
    return dq_fail(
        err, DQ_MISMATCH,
        "%s: too little text: an error needs 2 documents, or sequences of a single "
        "text, and %lld of the %lld in the file, with at most %lld tokens each%s, came to "
        "the %s part, which asks for %lld tokens. Give at least 8 of them, or ask for more "
        "tokens.",
        path, (long long)p->clusters[which], (long long)t->n_units, (long long)t->ctx,
        t->n_copies ? " and copies counted once" : "", dq_plan_text_name[which],
        (long long)t->requested);
}

/* What a part has of those before it; nothing can be shown on text that is all of it. */
static dq_status count_seen(dq_plan_weights *p, dq_err *err)
{
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) {
        for (int k = 0; k < i; k++) {
            int64_t n;
            DQ_TRY(dq_calib_text_shared(&n, &p->text[i], &p->text[k], err));
            if (n > p->n_seen[i]) p->n_seen[i] = n;
        }
    }
    const dq_calib_text *t = &p->text[DQ_PLAN_UNSEEN];
    if (p->n_seen[DQ_PLAN_UNSEEN] < t->n_seq) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "%s: each of the %lld sequences of the unseen part is a copy of one that is "
                   "calibrated or searched with, so nothing is unseen. Give text that does not "
                   "repeat itself, or another unseen text.",
                   p->set.unseen ? p->set.unseen : p->set.calib, (long long)t->n_seq);
}

static dq_status read_texts(dq_plan_weights *p, dq_err *err)
{
    const dq_plan_weights_settings *s = &p->set;
    const unsigned quarter[] = {1 | 4, s->unseen ? 2 | 8 : 2, s->unseen ? DQ_CALIB_TEXT_ALL : 8};
    for (int i = 0; i < DQ_PLAN_TEXTS; i++) {
        const char *path = i == DQ_PLAN_UNSEEN && s->unseen ? s->unseen : s->calib;
        dq_calib_text *t = &p->text[i];
        const int64_t ctx = i > 0 ? p->text[0].ctx : s->ctx;
        const int64_t limit = s->search_tokens ? s->search_tokens : DQ_PLAN_SEQUENCES * ctx;
        p->part[i] = quarter[i];
        dq_calib_text_read(t, path, p->model, i > 0 ? limit : s->tokens, ctx, quarter[i], p->arena,
                           err);
        if (err->code == DQ_DAMAGED &&
            t->n_units > 0) { /* a text, with too few units for this part */
            *err = (dq_err){0};
            return too_little(p, (dq_plan_text)i, err);
        }
        DQ_TRY(err->code);
        p->clusters[i] = t->n_ids < 2 ? 0 : t->n_clusters; /* one id is not scored */
        if (i > 0 && p->clusters[i] < 2) return too_little(p, (dq_plan_text)i, err);
    }
    if (s->unseen && strcmp(p->text[DQ_PLAN_UNSEEN].sha256, p->text[DQ_PLAN_CALIB].sha256) == 0)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: is the text that is calibrated with, so it is not unseen", s->unseen);
    return count_seen(p, err);
}

/* At least two clusters, as an error needs. */
static void take_first(dq_plan_weights *p)
{
    const dq_calib_text *all = &p->text[DQ_PLAN_SEARCH];
    dq_calib_text *t = &p->probe_text;
    *t = *all;
    t->n_seq = t->n_clusters = 0;
    while (t->n_seq < all->n_seq &&
           (all->cu[t->n_seq] < DQ_PLAN_PROBE_TOKENS || t->n_clusters < 2)) {
        const int64_t next = all->cluster[t->n_seq++] + 1;
        if (next > t->n_clusters) t->n_clusters = next;
    }
    t->n_ids = all->cu[t->n_seq];
}

/* ---- The plan ---- */

static dq_status open_all(dq_plan_weights *p, dq_err *err)
{
    DQ_TRY(dq_model_open(&p->model, p->set.model, err));
    if (p->model->is_container)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: is a container; a plan is made for the checkpoint that it came from",
                       p->set.model);
    if (p->set.tokens == 0) p->set.tokens = DQ_CALIB_TEXT_TOKENS;
    DQ_TRY(list_tensors(p, err));
    DQ_TRY(list_items(p, err));
    DQ_TRY(check_budget(p, err));
    DQ_TRY(read_texts(p, err));
    take_first(p);
    return dq_model_check_weights(p->model, err);
}

dq_status dq_plan_weights_open(dq_plan_weights **out, const dq_plan_weights_settings *s,
                               dq_err *err)
{
    dq_arena *a = dq_arena_new();
    dq_plan_weights *p = *out = a ? dq_alloc(a, 1, sizeof *p, err) : NULL;
    if (!p) {
        dq_arena_free(a);
        return dq_fail(err, DQ_RESOURCE, "out of memory");
    }
    p->arena = a;
    p->set = *s;
    p->chosen = p->mix = -1;
    p->work = (dq_plan_work){.step = s->step, .arg = s->arg};
    if (open_all(p, err) == DQ_OK) return DQ_OK;
    dq_plan_weights_close(p);
    *out = NULL;
    return err->code;
}

void dq_plan_weights_close(dq_plan_weights *p)
{
    if (!p) return;
    dq_plan_state_end(p, false);
    dq_model_close(p->model);
    dq_arena_free(p->arena);
}

void dq_plan_weights_done(dq_plan_weights *p)
{
    dq_plan_state_end(p, true);
}

double dq_plan_weights_flop(const dq_plan_weights *p)
{
    const dq_plan_probe probe = {
        .m = p->model, .rule = p->set.rule, .tensor = p->tensor, .n = p->n_tensors};
    double ids = (double)p->probe_text.n_ids;
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) ids += (double)p->text[i].n_ids;
    return dq_plan_probe_flop(&probe, p->text[DQ_PLAN_CALIB].n_ids, p->probe_text.n_ids) +
           dq_plan_part_source_flop(p->model, ids);
}

double dq_plan_weights_quantize_flop(const dq_plan_weights *p)
{
    double n = dq_calibrate_work_all(p->model, p->set.rule, &p->text[DQ_PLAN_CALIB]);
    const double ids = (double)p->text[DQ_PLAN_CALIB].n_ids;
    if (p->model->tied && (p->set.ends || p->set.set.embed_bits != 16))
        n += dq_calibrate_work_embedding(p->model, p->set.rule, ids);
    return n;
}

double dq_plan_weights_trial_flop(const dq_plan_weights *p)
{
    double n = dq_plan_weights_quantize_flop(p);
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++)
        n += dq_plan_part_flop(p->model, 0, (double)p->text[i].n_ids);
    return n;
}

json_t *dq_plan_weights_rules(const dq_plan_weights *p, const int *choice)
{
    json_t *rules = json_array();
    for (int64_t i = 0; i < p->n_tensors; i++) {
        json_t *rule = json_object();
        json_object_set_new(rule, "name", json_string(p->tensor[i].name));
        json_object_set_new(rule, "bits", json_integer(p->tensor[i].bits[choice[i]]));
        json_array_append_new(rules, rule);
    }
    return rules;
}

int dq_plan_weights_uniform_of(const dq_plan_weights *p, const int *choice)
{
    for (int w = 0; w < p->set.n_bits; w++) {
        const int bits = p->set.bits[w];
        int64_t i = 0;
        for (; i < p->n_tensors; i++) {
            const dq_plan_tensor *t = &p->tensor[i];
            int k = 0;
            while (k < t->n && t->bits[k] != bits) k++;
            if (choice[i] != (k < t->n ? k : 0)) break;
        }
        if (i == p->n_tensors) return bits;
    }
    return 0;
}

double dq_plan_weights_choices(const dq_plan_weights *p)
{
    double n = 1;
    for (int64_t i = 0; i < p->n_tensors; i++) n *= p->tensor[i].n;
    return n;
}

/* The width that most tensors have. */
static int common_width(const dq_plan_weights *p, const int *choice)
{
    int64_t of_bits[9] = {0};
    int best = 2;
    for (int64_t i = 0; i < p->n_tensors; i++) of_bits[p->tensor[i].bits[choice[i]]]++;
    for (int b = 2; b <= 8; b++) best = of_bits[b] > of_bits[best] ? b : best;
    return best;
}

dq_quantize_settings dq_plan_weights_settings_of(const dq_plan_weights *p, int64_t trial,
                                                 const json_t *rules, const json_t *plan)
{
    dq_quantize_settings s = p->set.set;
    s.bits = common_width(p, p->trial[trial].choice);
    s.method_name = p->set.rule->name;
    s.rules = rules;
    s.plan = plan;
    return s;
}
