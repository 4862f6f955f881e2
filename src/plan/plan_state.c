/* plan_state: see plan_state.h. Lines are JSON: {"key", "of"}, then {"tensor", "option", ...}, {"begun"}, {"trial", ...} and
 * {"look", ...} as they come. Reals have 17 digits, so that they come back to the last bit.
 * SPDX-License-Identifier: MIT */
#include "plan/plan_state.h"

#include "base/file.h"
#include "base/os.h"
#include "base/sha256.h"
#include "plan/plan_trial.h"
#include "quantize/quantize_recipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- The key ---- */

static dq_status settings_key(json_t *o, const dq_plan *p, dq_err *err)
{
    const dq_plan_settings *s = &p->set;
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

dq_status dq_plan_state_key(char hex[65], json_t **out, const dq_plan *p,
                            const dq_quantize_needs *codes, dq_err *err)
{
    json_t *o = *out = json_object();
    char *text = NULL;
    json_object_set(o, "calib", codes->calib);
    json_object_set_new(o, "lapack", json_string(codes->lapack));
    json_object_set_new(o, "version", json_string(p->set.set.dq_version));
    json_object_set_new(o, "compiler", json_string(__VERSION__));
    json_object_set_new(o, "cpu", json_integer(dq_os_cpu_features(NULL)));
    json_object_set_new(o, "model", json_string(p->model->fingerprint));
    for (int i = 0; i < DQ_PLAN_TEXTS; i++) {
        const dq_calib_text *t = &p->text[i];
        json_object_set_new(o, dq_plan_text_name[i],
                            json_pack("[s, I, I, I, i]", t->sha256, (json_int_t)t->n_ids,
                                      (json_int_t)t->n_seq, (json_int_t)t->ctx, (int)p->part[i]));
    }
    settings_key(o, p, err);
    if (err->code == DQ_OK && dq_json_complete(err) == DQ_OK &&
        dq_json_dump(&text, o, JSON_SORT_KEYS, err) == DQ_OK)
        dq_sha256_of(hex, text, strlen(text), err);
    free(text);
    return err->code;
}

/* That of this run, and what it is made of, a new reference. */
static dq_status key_of(char hex[65], json_t **out, const dq_plan *p, dq_err *err)
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

static bool is_new(const json_t *was, const char *key, const json_t *now)
{
    const json_t *old = json_object_get(was, key);
    return !old || !json_equal(old, now);
}

/* The first member that differs, with both values where these are short. */
static const char *difference(dq_plan *p, const json_t *was, const json_t *now, dq_err *err)
{
    enum { SHORT = 60 };
    const char *key, *says = NULL;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)was, key, v)
    {
        if (!json_object_get(now, key)) return dq_textf(p->arena, err, "%s", key);
    }
    json_object_foreach((json_t *)(uintptr_t)now, key, v)
    {
        const json_t *old = json_object_get(was, key);
        if (!is_new(was, key, v)) continue;
        if (json_is_object(v) && json_is_object(old)) return difference(p, old, v, err);
        char *from = old ? json_dumps(old, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        char *to = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        if (from && to && strlen(from) <= SHORT && strlen(to) <= SHORT)
            says = dq_textf(p->arena, err, "%s: begun with %s, this run has %s", key, from, to);
        else
            says = dq_textf(p->arena, err, "%s", key);
        free(from);
        free(to);
        return says;
    }
    return NULL;
}

/* line: the first of a journal; of: what this run's key is made of. */
static dq_status other_key(dq_plan *p, const json_t *line, const json_t *of, dq_err *err)
{
    const json_t *was = json_object_get(line, "of");
    const char *what = was ? difference(p, was, of, err) : NULL;
    if (err->code != DQ_OK) return err->code;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_REPEAT_OR_FORCE},
                        "%s: was begun with another model, text or settings%s%.200s.",
                        p->state->path, what ? "; what differs first is " : "", what ? what : "");
}

/* The first line. */
static json_t *key_line(const char *key, const json_t *of)
{
    json_t *line = json_pack("{s: s}", "key", key);
    json_object_set(line, "of", (json_t *)(uintptr_t)of);
    return line;
}

/* ---- Lines ---- */

/* Takes the value. */
static dq_status put_line(dq_plan *p, json_t *line, dq_err *err)
{
    char *text = NULL;
    if (dq_json_complete(err) == DQ_OK && dq_json_dump(&text, line, JSON_COMPACT, err) == DQ_OK)
        dq_journal_add(p->state->journal, text, strlen(text), err);
    free(text);
    json_decref(line);
    return err->code;
}

dq_status dq_plan_state_put_probe(dq_plan *p, int64_t tensor, int option, dq_err *err)
{
    const dq_mean *m = &p->tensor[tensor].kld[option];
    json_t *line = json_object();
    json_object_set_new(line, "tensor", json_integer(tensor));
    json_object_set_new(line, "option", json_integer(option));
    json_object_set_new(line, "kld", json_real(m->value));
    json_object_set_new(line, "stderr", isfinite(m->std_err) ? json_real(m->std_err) : json_null());
    json_object_set_new(line, "clusters", json_integer(m->clusters));
    return put_line(p, line, err);
}

static json_t *list_of(const double *x, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_real(x[i]));
    return list;
}

/* "0213...": the options of a trial. */
static char *choice_text(dq_plan *p, const int *choice, dq_err *err)
{
    char *text = dq_alloc(p->arena, (size_t)p->n_tensors + 1, 1, err);
    for (int64_t i = 0; text && i < p->n_tensors; i++) text[i] = (char)('0' + choice[i]);
    return text;
}

dq_status dq_plan_state_put_trial(dq_plan *p, const dq_plan_trial *t, dq_err *err)
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
    return put_line(p, line, err);
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

dq_status dq_plan_state_get_trial(bool *found, dq_plan *p, dq_plan_trial *t, dq_err *err)
{
    const char *choice = choice_text(p, t->choice, err);
    if (!choice) return err->code;
    const json_t *line = json_object_get(p->state->kept, choice);
    *found = line != NULL;
    if (!line) return DQ_OK;
    if (take_trial(t, line, err) != DQ_OK) return dq_in(err, "%s: ", p->state->path);
    p->n_resumed++;
    return DQ_OK;
}

dq_status dq_plan_state_look(int *number, dq_plan *p, const dq_plan_trial *t, dq_err *err)
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
                       p->state->path, DQ_PLAN_LAST_LOOK);
    }
    json_array_append(all, line);
    return put_line(p, line, err);
}

dq_status dq_plan_state_begin_trial(bool *again, dq_plan *p, const dq_plan_trial *t, dq_err *err)
{
    char *choice = choice_text(p, t->choice, err);
    if (!choice) return err->code;
    *again = p->state->begun && strcmp(p->state->begun, choice) == 0;
    p->state->begun = choice;
    return *again ? DQ_OK : put_line(p, json_pack("{s: s}", "begun", choice), err);
}

static dq_status take_look(dq_plan *p, json_t *line, dq_err *err)
{
    const json_t *value = json_object_get(line, "value");
    if (json_object_size(line) != 3 || !json_is_string(json_object_get(line, "goal")) ||
        !json_is_real(value))
        return dq_fail(err, DQ_DAMAGED, "%s: a look without its budget", p->state->path);
    json_array_append(p->state->look, line);
    return DQ_OK;
}

static dq_status take_probe(dq_plan *p, const json_t *line, dq_err *err)
{
    const double none = (double)NAN;
    int64_t tensor, option;
    dq_mean m;
    DQ_TRY(dq_json_int(&tensor, line, "tensor", 0, p->n_tensors - 1, NULL, err));
    DQ_TRY(dq_json_int(&option, line, "option", 0, p->tensor[tensor].n - 1, NULL, err));
    DQ_TRY(dq_json_float(&m.value, line, "kld", NULL, err));
    DQ_TRY(dq_json_float(&m.std_err, line, "stderr", &none, err));
    DQ_TRY(dq_json_int(&m.clusters, line, "clusters", 0, INT64_MAX, NULL, err));
    p->tensor[tensor].kld[option] = m;
    p->tensor[tensor].known[option] = true;
    p->n_resumed++;
    return DQ_OK;
}

static dq_status take_lines(dq_plan *p, const dq_journal_lines *found, const char *key,
                            const json_t *of, dq_err *err)
{
    for (int64_t i = 0; err->code == DQ_OK && i < found->n; i++) {
        json_t *line = NULL;
        const char *trial = NULL, *was = NULL;
        DQ_TRY(dq_json_parse(&line, found->text[i], strlen(found->text[i]), p->state->path, err));
        trial = json_string_value(json_object_get(line, "trial"));
        was = json_string_value(json_object_get(line, "key"));
        if (i == 0 && (!was || strcmp(was, key) != 0))
            other_key(p, line, of, err);
        else if (trial)
            json_object_set(p->state->kept, trial, line);
        else if (json_object_get(line, "look"))
            take_look(p, line, err);
        else if ((was = json_string_value(json_object_get(line, "begun"))))
            p->state->begun = dq_text(p->arena, was, strlen(was), err);
        else if (i > 0)
            take_probe(p, line, err);
        json_decref(line);
    }
    return err->code;
}

static dq_status go_on(dq_plan *p, const char *key, const json_t *of, dq_err *err)
{
    dq_plan_state *s = p->state;
    dq_journal_lines found;
    DQ_TRY(dq_journal_resume(&s->journal, s->path, DQ_JOURNAL_CUT, &found, p->arena, err));
    if (found.n > 0) return take_lines(p, &found, key, of, err);
    return put_line(p, key_line(key, of), err);
}

static dq_status open_with(dq_plan *p, const char *key, const json_t *of, dq_err *err)
{
    dq_plan_state *s = p->state;
    if (p->set.resume && dq_file_exists(s->path)) return go_on(p, key, of, err);
    if (dq_file_exists(s->path) && !p->set.force)
        return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_RESUME_OR_FORCE},
                            "%s: an interrupted run left it.", s->path);
    DQ_TRY(dq_journal_new(&s->journal, s->path, err));
    s->ours = true;
    return put_line(p, key_line(key, of), err);
}

static dq_status open_journal(dq_plan *p, dq_err *err)
{
    char key[65];
    json_t *of = NULL;
    if (key_of(key, &of, p, err) == DQ_OK) open_with(p, key, of, err);
    json_decref(of);
    return err->code;
}

dq_status dq_plan_state_begin(dq_plan *p, dq_err *err)
{
    dq_plan_state *s = p->state = dq_alloc(p->arena, 1, sizeof *s, err);
    if (!s) return err->code;
    s->kept = json_object();
    s->look = json_array();
    s->path = dq_textf(p->arena, err, "%s.journal", p->set.out);
    if (!s->path) return err->code;
    DQ_TRY(open_journal(p, err));
    s->ours = true;
    return DQ_OK;
}

bool dq_plan_state_resumable(const dq_err *err)
{
    return err->code == DQ_STOPPED || err->code == DQ_FILE || err->code == DQ_RESOURCE;
}

/* The same of a part of the run, whose words give way. */
static void take_back(dq_err *err)
{
    dq_remedy_at *last = err->n_remedies > 0 ? &err->remedy[err->n_remedies - 1] : NULL;
    if (!last || last->code != DQ_REMEDY_RESUMABLE) return;
    err->text[last->begin] = 0;
    err->n_remedies--;
}

dq_status dq_plan_failed(dq_plan *p, dq_err *err)
{
    enum { MAX_TEXT = 600 }; /* so that there is space for what follows */
    const dq_plan_state *s = p->state;
    if (!s || !s->ours) return err->code;
    if (err->code == DQ_STOPPED) {
        *err = (dq_err){0};
        return dq_fail_with(err, DQ_STOPPED, (dq_remedy){.code = DQ_REMEDY_RESUME},
                            "interrupted; %s is kept.", s->path);
    }
    if (!dq_plan_state_resumable(err) || dq_journal_count(s->journal) <= 1) {
        if (!p->set.resume && err->code != DQ_MISMATCH) dq_plan_state_end(p, true);
        return err->code;
    }
    take_back(err);
    err->text[MAX_TEXT] = 0;
    return dq_fail_more(err, (dq_remedy){.code = DQ_REMEDY_RESUMABLE}, ". %.200s is kept", s->path);
}

void dq_plan_state_end(dq_plan *p, bool done)
{
    if (!p->state) return;
    dq_journal_close(p->state->journal, done);
    json_decref(p->state->kept);
    json_decref(p->state->look);
    p->state = NULL;
}

dq_status dq_plan_state_alloc(dq_plan *p, dq_plan_trial *t, dq_err *err)
{
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) {
        dq_plan_sums *s = &t->on[i].sums;
        const dq_calib_text *text = &p->text[i];
        int64_t *ids = dq_alloc(p->arena, (size_t)text->n_seq, sizeof *ids, err);
        s->kld = dq_alloc(p->arena, (size_t)text->n_seq, sizeof *s->kld, err);
        s->loss = dq_alloc(p->arena, (size_t)text->n_seq, sizeof *s->loss, err);
        if (err->code != DQ_OK) return err->code;
        for (int64_t k = 0; k < text->n_seq; k++) {
            if (k == 0 || text->unit[k] != text->unit[k - 1]) s->n++;
            const int64_t n = text->cu[k + 1] - text->cu[k];
            ids[s->n - 1] += n - dq_plan_part_first(n);
        }
        s->ids = ids;
    }
    return DQ_OK;
}
