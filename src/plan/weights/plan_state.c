/* plan_state: see plan_state.h. Lines are JSON: {"key", "of"}, then {"tensor", ...}, {"begun"}, {"trial", ...} and
 * {"look", ...} as they come. Reals have 17 digits, so that they come back to the last bit. The
 * journal is that of rank 0 (base/ranks.h); what it finds there all take.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_state.h"

#include "base/os.h"
#include "base/ranks.h"
#include "plan/weights/plan_trial.h"
#include "quantize/quantize.h"

#include <math.h>
#include <string.h>

/* ---- The key ---- */

static dq_status settings_key(json_t *o, const dq_plan_weights *p, dq_err *err)
{
    const dq_plan_weights_settings *s = &p->set;
    json_t *recipe = NULL, *bits = json_array();
    for (int i = 0; i < s->n_bits; i++) json_array_append_new(bits, json_integer(s->bits[i]));
    json_object_set_new(o, "bits", bits);
    json_object_set_new(o, "ends", json_boolean(s->ends));
    json_object_set_new(o, "method", json_string(s->rule->name));
    json_object_set_new(o, "tokens", json_integer(s->tokens));
    DQ_TRY(dq_quantize_recipe_of(&recipe, &s->set, err));
    json_object_set_new(o, "recipe", recipe);
    return DQ_OK;
}

dq_status dq_plan_state_key(char hex[65], json_t **out, const dq_plan_weights *p,
                            const dq_quantize_needs *codes, dq_err *err)
{
    char arithmetic[DQ_OS_ARITHMETIC];
    json_t *o = *out = json_object();
    dq_os_arithmetic(arithmetic);
    json_object_set(o, "calib", codes->calib);
    json_object_set_new(o, "version", json_string(p->set.set.dq_version));
    json_object_set_new(o, "arithmetic", json_string(arithmetic));
    json_object_set_new(o, "model", json_string(p->model->fingerprint));
    for (int i = 0; i < DQ_PLAN_TEXTS; i++) {
        const dq_calib_text *t = &p->text[i];
        json_object_set_new(o, dq_plan_text_name[i],
                            json_pack("[s, I, I, I, i]", t->sha256, (json_int_t)t->n_ids,
                                      (json_int_t)t->n_seq, (json_int_t)t->ctx, (int)p->part[i]));
    }
    DQ_TRY(settings_key(o, p, err));
    return dq_plan_journal_key(hex, o, err);
}

/* That of this run, and what it is made of, a new reference. */
static dq_status key_of(char hex[65], json_t **out, const dq_plan_weights *p, dq_err *err)
{
    const dq_calibrate_settings how = dq_plan_trial_calibrate(p, NULL);
    dq_quantize_needs codes = {0};
    dq_calibrate *c = NULL;
    DQ_TRY(dq_calibrate_new(&c, &how, err));
    const dq_quantize_method *m = dq_calibrate_method(c);
    if (m->begin(m->arg, p->model, &codes, err) == DQ_OK)
        dq_plan_state_key(hex, out, p, &codes, err);
    json_decref(codes.calib);
    dq_calibrate_free(c);
    return err->code;
}

/* ---- Lines ---- */

/* Takes the value. */
static dq_status put(dq_plan_weights *p, json_t *line, dq_err *err)
{
    if (dq_ranks_number() == 0) return dq_plan_journal_put(&p->state->journal, line, err);
    json_decref(line);
    return err->code;
}

static json_t *list_of(const double *x, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_real(x[i]));
    return list;
}

dq_status dq_plan_state_put_probe(dq_plan_weights *p, int64_t tensor, dq_err *err)
{
    const dq_plan_tensor *t = &p->tensor[tensor];
    const dq_mean *m = &t->kld;
    json_t *line = json_object();
    json_object_set_new(line, "tensor", json_integer(tensor));
    json_object_set_new(line, "loss", list_of(t->loss, t->n));
    json_object_set_new(line, "kld", json_real(m->value));
    json_object_set_new(line, "stderr", isfinite(m->std_err) ? json_real(m->std_err) : json_null());
    json_object_set_new(line, "clusters", json_integer(m->clusters));
    return put(p, line, err);
}

/* "0213...": the options of a trial. */
static char *choice_text(dq_plan_weights *p, const int *choice, dq_err *err)
{
    char *text = dq_alloc(p->arena, (size_t)p->n_tensors + 1, 1, err);
    for (int64_t i = 0; text && i < p->n_tensors; i++) text[i] = (char)('0' + choice[i]);
    return text;
}

dq_status dq_plan_state_put_trial(dq_plan_weights *p, const dq_plan_trial *t, dq_err *err)
{
    const char *choice = choice_text(p, t->choice, err);
    if (!choice) return err->code;
    json_t *line = json_object();
    json_object_set_new(line, "trial", json_string(choice));
    json_object_set_new(line, "packed_bytes", json_integer(t->packed_bytes));
    json_object_set_new(line, "file_bytes", json_integer(t->file_bytes));
    json_object_set_new(line, "weights_sha256", json_string(t->weights_sha256));
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) {
        const dq_plan_sums *s = &t->on[i].sums;
        json_t *o = json_object();
        json_object_set_new(o, "kld", list_of(s->kld, s->n));
        json_object_set_new(o, "loss", list_of(s->loss, s->n));
        json_object_set_new(line, dq_plan_text_name[i], o);
    }
    return put(p, line, err);
}

static dq_status take_list(double *x, int64_t n, const json_t *o, const char *key, dq_err *err)
{
    const json_t *list = json_object_get(o, key);
    if ((int64_t)json_array_size(list) != n)
        return dq_fail(err, DQ_DAMAGED, "%zu numbers of \"%s\" (expected %lld)",
                       json_array_size(list), key, (long long)n);
    for (int64_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        if (!json_is_number(one))
            return dq_fail(err, DQ_DAMAGED, "\"%s\" holds what is no number", key);
        x[i] = json_number_value(one);
    }
    return DQ_OK;
}

static dq_status take_trial(dq_plan_trial *t, const json_t *line, dq_err *err)
{
    const char *sha;
    DQ_TRY(dq_json_int(&t->packed_bytes, line, "packed_bytes", 0, INT64_MAX, NULL, err));
    DQ_TRY(dq_json_int(&t->file_bytes, line, "file_bytes", 0, INT64_MAX, NULL, err));
    DQ_TRY(dq_json_text(&sha, line, "weights_sha256", NULL, err));
    if (strlen(sha) != 64) return dq_fail(err, DQ_DAMAGED, "\"%s\" is no SHA-256", sha);
    memcpy(t->weights_sha256, sha, 65);
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) {
        const json_t *o = json_object_get(line, dq_plan_text_name[i]);
        DQ_TRY(take_list(t->on[i].sums.kld, t->on[i].sums.n, o, "kld", err));
        DQ_TRY(take_list(t->on[i].sums.loss, t->on[i].sums.n, o, "loss", err));
    }
    return DQ_OK;
}

dq_status dq_plan_state_get_trial(bool *found, dq_plan_weights *p, dq_plan_trial *t, dq_err *err)
{
    const char *choice = choice_text(p, t->choice, err);
    if (!choice) return err->code;
    const json_t *line = json_object_get(p->state->kept, choice);
    *found = line != NULL;
    if (!line) return DQ_OK;
    if (take_trial(t, line, err) != DQ_OK) return dq_in(err, "%s: ", p->state->journal.path);
    p->n_resumed++;
    return DQ_OK;
}

dq_status dq_plan_state_look(int *number, dq_plan_weights *p, const dq_plan_trial *t, dq_err *err)
{
    json_t *all = p->state->look;
    const char *choice = choice_text(p, t->choice, err);
    if (!choice) return err->code;
    json_t *line = json_pack("{s: s, s: s, s: f}", "look", choice, "goal",
                             dq_plan_goal_name[p->set.budget.goal], "value", p->set.budget.value);
    size_t i = 0;
    while (i < json_array_size(all) && !json_equal(json_array_get(all, i), line)) i++;
    *number = (int)i + 1;
    if (i < json_array_size(all)) {
        json_decref(line);
        return DQ_OK;
    }
    if (*number > DQ_PLAN_LAST_LOOK) {
        json_decref(line);
        return dq_fail(err, DQ_MISMATCH,
                       "%s: the unseen text has been looked at %d times, for this budget and "
                       "others, and decides nothing more. Plan with another one",
                       p->state->journal.path, DQ_PLAN_LAST_LOOK);
    }
    json_array_append(all, line);
    return put(p, line, err);
}

dq_status dq_plan_state_begin_trial(bool *again, dq_plan_weights *p, const dq_plan_trial *t,
                                    dq_err *err)
{
    char *choice = choice_text(p, t->choice, err);
    if (!choice) return err->code;
    *again = p->state->begun && strcmp(p->state->begun, choice) == 0;
    p->state->begun = choice;
    return *again ? DQ_OK : put(p, json_pack("{s: s}", "begun", choice), err);
}

static dq_status take_look(dq_plan_weights *p, json_t *line, dq_err *err)
{
    const json_t *value = json_object_get(line, "value");
    if (json_object_size(line) != 3 || !json_is_string(json_object_get(line, "goal")) ||
        !json_is_real(value))
        return dq_fail(err, DQ_DAMAGED, "%s: a look without its budget", p->state->journal.path);
    json_array_append(p->state->look, line);
    return DQ_OK;
}

static dq_status take_probe(dq_plan_weights *p, const json_t *line, dq_err *err)
{
    const double none = (double)NAN;
    int64_t tensor;
    dq_mean m;
    DQ_TRY(dq_json_int(&tensor, line, "tensor", 0, p->n_tensors - 1, NULL, err));
    dq_plan_tensor *t = &p->tensor[tensor];
    DQ_TRY(take_list(t->loss, t->n, line, "loss", err));
    DQ_TRY(dq_json_float(&m.value, line, "kld", NULL, err));
    DQ_TRY(dq_json_float(&m.std_err, line, "stderr", &none, err));
    DQ_TRY(dq_json_int(&m.clusters, line, "clusters", 0, INT64_MAX, NULL, err));
    t->kld = m;
    t->measured = dq_plan_probe_measured(t);
    t->known = true;
    p->n_resumed++;
    return DQ_OK;
}

static dq_status take_line(void *arg, json_t *line, dq_err *err)
{
    dq_plan_weights *p = arg;
    const char *trial = json_string_value(json_object_get(line, "trial"));
    const char *begun = json_string_value(json_object_get(line, "begun"));
    if (trial) return json_object_set(p->state->kept, trial, line), DQ_OK;
    if (json_object_get(line, "look")) return take_look(p, line, err);
    if (!begun) return take_probe(p, line, err);
    p->state->begun = dq_text(p->arena, begun, strlen(begun), err);
    return err->code;
}

dq_status dq_plan_state_begin(dq_plan_weights *p, dq_err *err)
{
    char key[65] = "";
    json_t *of = NULL;
    dq_plan_state *s = p->state = dq_alloc(p->arena, 1, sizeof *s, err);
    if (!s) return err->code;
    s->kept = json_object();
    s->look = json_array();
    key_of(key, &of, p, err);
    if (dq_ranks_agree("set of model, texts, settings or processor", key, err) == DQ_OK) {
        const dq_plan_journal_how how = {
            .out = p->set.out,
            .key = key,
            .of = of,
            .file = {{"model", p->set.model},
                     {"calib", p->set.calib},
                     {dq_plan_text_name[0], p->set.calib},
                     {dq_plan_text_name[1], p->set.calib},
                     {dq_plan_text_name[2], p->set.unseen ? p->set.unseen : p->set.calib}},
            .resume = p->set.resume,
            .force = p->set.force,
            .take = take_line,
            .arg = p};
        dq_plan_journal_open(&s->journal, &how, p->arena, err);
    }
    json_decref(of);
    return err->code;
}

dq_status dq_plan_weights_failed(dq_plan_weights *p, dq_err *err)
{
    return p->state ? dq_plan_journal_failed(&p->state->journal, err) : err->code;
}

void dq_plan_state_end(dq_plan_weights *p, bool done)
{
    if (!p->state) return;
    dq_plan_journal_end(&p->state->journal, done);
    json_decref(p->state->kept);
    json_decref(p->state->look);
    p->state = NULL;
}

dq_status dq_plan_state_alloc(dq_plan_weights *p, dq_plan_trial *t, dq_err *err)
{
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) {
        dq_plan_sums *s = &t->on[i].sums;
        const dq_calib_text *text = &p->text[i];
        s->kld = dq_alloc(p->arena, (size_t)text->n_seq, sizeof *s->kld, err);
        s->loss = dq_alloc(p->arena, (size_t)text->n_seq, sizeof *s->loss, err);
        s->ids = dq_plan_part_scored(text, p->arena, err);
        s->n = text->n_clusters;
        if (err->code != DQ_OK) return err->code;
    }
    return DQ_OK;
}
