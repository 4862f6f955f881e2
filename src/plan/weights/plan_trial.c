/* plan_trial: see plan_trial.h. The container is made by the code that makes the user's, and read back as any model is, by
 * every rank (base/ranks.h); rank 0 removes it.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_trial.h"

#include "base/file.h"
#include "base/ranks.h"
#include "plan/weights/plan_state.h"

#include <stdio.h>
#include <string.h>

static dq_status means_of(dq_plan_trial *t, dq_err *err)
{
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) {
        dq_plan_numbers *n = &t->on[i];
        DQ_TRY(dq_plan_decide_mean(&n->kld, n->sums.kld, n->sums.ids, n->sums.n, err));
        DQ_TRY(dq_plan_decide_mean(&n->loss, n->sums.loss, n->sums.ids, n->sums.n, err));
        n->kld_skew = dq_plan_decide_skew(n->sums.kld, n->sums.ids, n->sums.n);
        n->loss_skew = dq_plan_decide_skew(n->sums.loss, n->sums.ids, n->sums.n);
    }
    return DQ_OK;
}

static dq_status measure(dq_plan_trial *t, dq_plan_trials *parts, const char *path, dq_err *err)
{
    dq_model *m = NULL;
    if (dq_model_open(&m, path, err) == DQ_OK && dq_model_check_weights(m, err) == DQ_OK) {
        const dq_plan_other other = {
            .m = m, .embed = &m->embed, .head = &m->head, .what = "measuring"};
        dq_container_weights_sha256(t->weights_sha256, m->container, err);
        for (int i = DQ_PLAN_SEARCH; err->code == DQ_OK && i < DQ_PLAN_TEXTS; i++)
            dq_plan_part_measure(&t->on[i].sums, &parts->part[i], &other, err);
    }
    dq_model_close(m);
    return err->code;
}

dq_calibrate_settings dq_plan_trial_calibrate(const dq_plan_weights *p, const char *out)
{
    return (dq_calibrate_settings){.rule = p->set.rule,
                                   .path = p->set.calib,
                                   .tokens = p->set.tokens,
                                   .ctx = p->text[DQ_PLAN_CALIB].ctx,
                                   .part = p->part[DQ_PLAN_CALIB],
                                   .backend = p->set.backend,
                                   .out = out};
}

/* resume: from what an interrupted run has left of the same trial. */
static dq_status quantize(dq_plan_weights *p, dq_plan_trial *t, const char *path, bool resume,
                          dq_err *err)
{
    dq_quantize_settings set = p->set.set;
    const dq_calibrate_settings how = dq_plan_trial_calibrate(p, path);
    dq_plan_work_share share = {&p->work, dq_plan_weights_quantize_flop(p), 0};
    const dq_quantize_progress progress = {dq_plan_work_step, &share};
    dq_calibrate *c = NULL;
    dq_quantizer *q = NULL;
    json_t *rules = dq_plan_weights_rules(p, t->choice);
    set.rules = rules;
    if (dq_calibrate_new(&c, &how, err) == DQ_OK) {
        set.method = dq_calibrate_method(c);
        if (dq_quantize_open(&q, p->set.model, &set, err) == DQ_OK &&
            dq_quantize_write(q, path, true, resume, &progress, err) == DQ_OK) {
            t->packed_bytes = dq_quantize_result(q)->packed_bytes;
            t->file_bytes = dq_quantize_result(q)->file_bytes;
        }
    }
    dq_quantize_close(q);
    dq_calibrate_free(c);
    json_decref(rules);
    return err->code;
}

/* What a container with such settings is expected to take: off by the same bytes for all with the same tensors. */
static dq_status estimate(int64_t *out, const dq_plan_weights *p, dq_quantize_settings *s,
                          const dq_calibrate *c, dq_err *err)
{
    dq_quantizer *q = NULL;
    s->method = dq_calibrate_method(c);
    if (dq_quantize_open(&q, p->set.model, s, err) == DQ_OK)
        *out = dq_quantize_result(q)->file_bytes;
    dq_quantize_close(q);
    return err->code;
}

dq_status dq_plan_trial_bytes(int64_t *out, dq_plan_weights *p, int64_t trial, dq_err *err)
{
    const dq_calibrate_settings how = dq_plan_trial_calibrate(p, NULL);
    const int64_t chosen = p->chosen;
    int64_t made = 0, told = 0;
    dq_calibrate *c = NULL;
    p->chosen = trial;
    json_t *rules = dq_plan_weights_rules(p, p->trial[trial].choice);
    json_t *plan = p->set.told ? p->set.told(p->set.arg, p) : NULL;
    p->chosen = chosen;
    dq_quantize_settings bare = p->set.set,
                         whole = dq_plan_weights_settings_of(p, trial, rules, plan);
    bare.rules = rules;
    if (dq_json_complete(err) == DQ_OK && dq_calibrate_new(&c, &how, err) == DQ_OK &&
        estimate(&made, p, &bare, c, err) == DQ_OK)
        estimate(&told, p, &whole, c, err);
    *out = p->trial[trial].file_bytes + told - made;
    dq_calibrate_free(c);
    json_decref(plan);
    json_decref(rules);
    return err->code;
}

/* The container and what an interrupted run leaves of it. */
enum { FILES = 3 };

static dq_status names_of(char *name[FILES], const dq_plan_weights *p, dq_err *err)
{
    static const char *const after[FILES] = {"", ".partial", ".journal"};
    for (int i = 0; err->code == DQ_OK && i < FILES; i++)
        name[i] = dq_textf(p->arena, err, "%s.trial.h5%s", p->set.out, after[i]);
    return err->code;
}

dq_status dq_plan_trial_guard(const dq_plan_weights *p, dq_err *err)
{
    char *name[FILES];
    if (dq_ranks_number() > 0) return err->code; /* rank 0 may have begun one */
    const char *journal = dq_textf(p->arena, err, "%s.journal", p->set.out);
    DQ_TRY(names_of(name, p, err));
    const bool ours = p->set.force || dq_file_exists(journal);
    for (int i = 0; i < FILES; i++) {
        if (!ours && dq_file_exists(name[i]))
            return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_FORCE},
                                "%s: exists, and is where a trial would be written.", name[i]);
    }
    return DQ_OK;
}

void dq_plan_trial_clear(const dq_plan_weights *p)
{
    char *name[FILES];
    dq_err ignored = {0};
    if (dq_ranks_number() > 0 || !p->state->begun || names_of(name, p, &ignored) != DQ_OK) return;
    for (int i = 0; i < FILES; i++) dq_file_remove(name[i], &ignored);
}

/* What was interrupted stays, for a run that resumes to go on from. */
static dq_status make(dq_plan_weights *p, dq_plan_trials *parts, dq_plan_trial *t, dq_err *err)
{
    char *name[FILES];
    bool again;
    DQ_TRY(names_of(name, p, err));
    const char *stage =
        dq_textf(p->arena, err, "trial of %.3f bits per weight",
                 dq_plan_weights_bits_per_weight(p, dq_plan_alloc_cost(&p->curve, t->choice)));
    if (!stage) return err->code;
    if (p->set.stage) p->set.stage(p->set.arg, stage);
    DQ_TRY(dq_plan_state_begin_trial(&again, p, t, err));
    again = again && dq_file_exists(name[2]);
    if (!again) dq_plan_trial_clear(p);
    if (quantize(p, t, name[0], again, err) == DQ_OK) measure(t, parts, name[0], err);
    if (!dq_plan_journal_resumable(err)) dq_plan_trial_clear(p);
    return err->code == DQ_OK ? dq_plan_state_put_trial(p, t, err) : err->code;
}

dq_status dq_plan_trial_of(int64_t *out, dq_plan_weights *p, dq_plan_trials *parts,
                           const int *choice, int64_t point, dq_err *err)
{
    const size_t bytes = (size_t)p->n_tensors * sizeof *choice;
    bool found;
    for (*out = 0; *out < p->n_trials; (*out)++) {
        dq_plan_trial *t = &p->trial[*out];
        if (memcmp(t->choice, choice, bytes) != 0) continue;
        if (point >= 0) t->point = point;
        return DQ_OK;
    }
    dq_plan_trial t = {.point = point, .uniform = dq_plan_weights_uniform_of(p, choice)};
    t.choice = dq_alloc(p->arena, (size_t)p->n_tensors, sizeof *t.choice, err);
    if (!t.choice) return err->code;
    memcpy(t.choice, choice, bytes);
    t.predicted = dq_plan_alloc_loss(&p->curve, choice);
    DQ_TRY(dq_plan_state_alloc(p, &t, err));
    DQ_TRY(dq_plan_state_get_trial(&found, p, &t, err));
    if (!found) DQ_TRY(make(p, parts, &t, err));
    t.bits_per_weight = dq_plan_weights_bits_per_weight(p, (double)t.packed_bytes);
    DQ_TRY(means_of(&t, err));
    p->trial[p->n_trials++] = t;
    return DQ_OK;
}
