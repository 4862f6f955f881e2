/* Lines are JSON: {"key", "of"}, then {"tensor", ...}, {"begun"}, {"trial", ...} and {"look", ...}
 * as they come, in a ledger (work/work.h) of which all ranks take what an earlier run has found.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "base/text.h"
#include "calibrate/calibrate.h"
#include "plan/inside.h"
#include "quantize/quantize.h"
#include "tensor/tensor.h"
#include "work/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DQ_PLAN_PROBE_TOKENS = 4096 }; /* of the search text: what a tensor alone is measured on */
enum { DQ_PLAN_TRIAL_BYTES = 1024 };  /* of a recipe, for what it tells of a trial, at most */

typedef struct dq_plan_references {
    dq_plan_reference of[DQ_PLAN_TEXTS]; /* search and unseen */
} dq_plan_references;

static const char *const dq_plan_goal_name[DQ_PLAN_GOALS]; /* "kld", ... */

dq_status dq_plan_state_of(json_t **out, const dq_plan_weights *p, const dq_quantize_needs *codes,
                           dq_err *err)
{
    char arithmetic[DQ_OS_ARITHMETIC];
    json_t *o = *out = json_object();
    dq_os_arithmetic(arithmetic);
    dq_row_writer w = dq_row_json(o);
    DQ_PUT(&w, "calib", json_incref(codes->calib), NULL);
    DQ_PUT(&w, "version", p->set.set.dq_version, NULL);
    DQ_PUT(&w, "arithmetic", arithmetic, NULL);
    DQ_PUT(&w, "model", p->model->fingerprint, NULL);
    for (int i = 0; i < DQ_PLAN_TEXTS; i++) {
        const dq_calib_text *t = &p->text[i];
        DQ_PUT(&w, dq_plan_text_name[i],
               json_pack("[s, I, I, I, i]", t->sha256, (json_int_t)t->n_ids, (json_int_t)t->n_seq,
                         (json_int_t)t->ctx, (int)p->quarters[i]),
               NULL);
    }
    const dq_plan_weights_settings *s = &p->set;
    json_t *recipe = NULL;
    DQ_LIST(&w, "bits", NULL);
    for (int i = 0; i < s->n_bits; i++) DQ_PUT(&w, NULL, s->bits[i], NULL);
    dq_row_end(&w);
    DQ_PUT(&w, "ends", s->ends, NULL);
    DQ_PUT(&w, "method", s->rule->name, NULL);
    DQ_PUT(&w, "tokens", s->tokens, NULL);
    DQ_TRY(dq_quantize_recipe_of(&recipe, &s->set, err));
    DQ_PUT(&w, "recipe", recipe, NULL);
    return DQ_OK;
}

static dq_status depends_on(json_t **out, const dq_plan_weights *p, dq_err *err)
{
    const dq_calibrate_settings how = dq_plan_trial_calibrate(p, NULL);
    dq_quantize_needs codes = {0};
    dq_calibrate *c = NULL;
    DQ_TRY(dq_calibrate_new(&c, &how, err));
    const dq_quantize_method *m = &c->method;
    if (m->begin(m->arg, p->model, &codes, err) == DQ_OK) dq_plan_state_of(out, p, &codes, err);
    json_decref(codes.calib);
    dq_calibrate_free(c);
    return err->code;
}

/* "0213...": the options of a trial. */
static char *choice_text(dq_plan_weights *p, const int *choice, dq_err *err)
{
    char *text = dq_alloc(p->arena, (size_t)p->n_tensors + 1, 1, err);
    for (int64_t i = 0; text && i < p->n_tensors; i++) text[i] = (char)('0' + choice[i]);
    return text;
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
        DQ_TRY(dq_work_take_reals(t->sums[i].kld, t->sums[i].n, o, "kld", err));
        DQ_TRY(dq_work_take_reals(t->sums[i].loss, t->sums[i].n, o, "loss", err));
    }
    return DQ_OK;
}

static dq_status get_trial(bool *found, dq_plan_weights *p, dq_plan_trial *t, dq_err *err)
{
    const char *choice = choice_text(p, t->choice, err);
    if (!choice) return err->code;
    const json_t *line = json_object_get(p->state->kept, choice);
    *found = line != NULL;
    if (!line) return DQ_OK;
    if (take_trial(t, line, err) != DQ_OK) return dq_in(err, "%s: ", p->state->work.how.path);
    p->n_resumed++;
    return DQ_OK;
}

/* Writes down a look at a trial before its result is used; *number counts looks over the whole
 * journal, from 1. DQ_MISMATCH after DQ_PLAN_LAST_LOOK. */
static dq_status state_look(int *number, dq_plan_weights *p, const dq_plan_trial *t, dq_err *err)
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
                       p->state->work.how.path, DQ_PLAN_LAST_LOOK);
    }
    json_array_append(all, line);
    return dq_work_put(&p->state->work, line, err);
}

/* Writes down that a trial begins; *again: an earlier run was interrupted in it, and its files are
 * there. */
static dq_status begin_trial(bool *again, dq_plan_weights *p, const dq_plan_trial *t, dq_err *err)
{
    char *choice = choice_text(p, t->choice, err);
    if (!choice) return err->code;
    *again = p->state->begun && strcmp(p->state->begun, choice) == 0;
    p->state->begun = choice;
    return *again ? DQ_OK : dq_work_put(&p->state->work, json_pack("{s: s}", "begun", choice), err);
}

static dq_status take_line(void *arg, const json_t *line, bool told, dq_err *err)
{
    dq_plan_weights *p = arg;
    (void)told;
    const char *trial = json_string_value(json_object_get(line, "trial"));
    const char *begun = json_string_value(json_object_get(line, "begun"));
    if (trial) return json_object_set(p->state->kept, trial, (json_t *)(uintptr_t)line), DQ_OK;
    if (json_object_get(line, "look")) {
        const json_t *value = json_object_get(line, "value");
        if (json_object_size(line) != 3 || !json_is_string(json_object_get(line, "goal")) ||
            !json_is_real(value))
            return dq_fail(err, DQ_DAMAGED, "a look without its budget");
        json_array_append(p->state->look, (json_t *)(uintptr_t)line);
        return DQ_OK;
    }
    if (!begun) {
        const double none = (double)NAN;
        int64_t tensor;
        dq_mean m;
        DQ_TRY(dq_json_int(&tensor, line, "tensor", 0, p->n_tensors - 1, NULL, err));
        dq_plan_tensor *t = &p->tensor[tensor];
        DQ_TRY(dq_work_take_reals(t->loss, t->n, line, "loss", err));
        DQ_TRY(dq_json_float(&m.value, line, "kld", NULL, err));
        DQ_TRY(dq_json_float(&m.std_err, line, "stderr", &none, err));
        DQ_TRY(dq_json_int(&m.clusters, line, "clusters", 0, INT64_MAX, NULL, err));
        t->kld = m;
        t->measured = dq_plan_probe_measured(t);
        t->known = true;
        p->n_resumed++;
        return DQ_OK;
    }
    p->state->begun = dq_text(p->arena, begun, strlen(begun), err);
    return err->code;
}

dq_status dq_plan_weights_failed(dq_plan_weights *p, dq_err *err)
{
    return p->state ? dq_work_failed(&p->state->work, err) : err->code;
}

static void state_end(dq_plan_weights *p, bool done)
{
    if (!p->state) return;
    dq_work_close(&p->state->work, done);
    json_decref(p->state->kept);
    json_decref(p->state->look);
    p->state = NULL;
}

/* `low` is the dearest point that misses the budget, `high` the cheapest that keeps it. */

static int64_t middle_of(const dq_plan_curve *c, int64_t low, int64_t high)
{
    const double from = c->cost[low < 0 ? 0 : low], to = c->cost[high < c->n ? high : c->n - 1];
    return dq_plan_alloc_by_cost(c, (from + to) / 2);
}

/* While no measured point misses: at least 1 % cheaper, so that one soon does. The middle of the
 * rest would be far away. */
static int64_t below(const dq_plan_curve *c, int64_t high, int64_t next)
{
    const int64_t k = dq_plan_alloc_by_cost(c, 0.99 * c->cost[high]);
    return next < k ? next : k;
}

static bool is_close(const dq_plan_curve *c, int64_t low, int64_t high)
{
    if (high - low <= 1) return true;
    return low >= 0 && high < c->n && c->cost[high] - c->cost[low] <= 0.002 * c->cost[high];
}

dq_status dq_plan_search_run(int64_t *point, const dq_plan_search *s, dq_err *err)
{
    const dq_plan_curve *c = s->curve;
    int64_t low = -1, high = c->n, next = dq_plan_alloc_by_loss(c, s->budget);
    for (int i = 0; i < s->max && !is_close(c, low, high); i++) {
        double upper;
        if (i == s->max - 1 && high == c->n) next = c->n - 1;
        const int64_t k = next <= low ? low + 1 : next >= high ? high - 1 : next;
        DQ_TRY(s->measure(s->arg, k, &upper, err));
        if (upper <= s->budget)
            high = k;
        else
            low = k;
        const double factor = c->loss[k] > 0 ? upper / c->loss[k] : 0;
        next = factor > 0 ? dq_plan_alloc_by_loss(c, s->budget / factor) : middle_of(c, low, high);
        if (low < 0)
            next = below(c, high, next);
        else if (i % 3 == 2)
            next = middle_of(c, low, high);
    }
    *point = high < c->n ? high : -1;
    return DQ_OK;
}

int64_t dq_plan_search_next(const dq_plan_curve *c, int64_t point)
{
    if (point + 1 >= c->n) return -1;
    const int64_t k = dq_plan_alloc_by_loss(c, 0.9 * c->loss[point]);
    return k < c->n ? (k > point ? k : point + 1) : c->n - 1;
}

/* The container is made by the code behind `dq quantize` and opened like any model, by every rank;
 * rank 0 removes it. */

static dq_status measure(dq_plan_trial *t, dq_plan_references *ref, const char *path, dq_err *err)
{
    dq_model *m = NULL;
    if (dq_model_open(&m, path, err) == DQ_OK && dq_model_check_weights(m, err) == DQ_OK) {
        const dq_plan_other other = {
            .m = m, .embed = &m->embed, .head = &m->head, .what = "measuring"};
        dq_container_weights_sha256(t->weights_sha256, m->container, err);
        for (int i = DQ_PLAN_SEARCH; err->code == DQ_OK && i < DQ_PLAN_TEXTS; i++)
            dq_plan_reference_measure(&t->sums[i], &ref->of[i], &other, err);
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
                                   .quarters = p->quarters[DQ_PLAN_CALIB],
                                   .backend = p->set.backend,
                                   .out = out};
}

/* The estimate is off by the same bytes for all with the same tensors. */
static dq_status estimate(int64_t *out, const dq_plan_weights *p, dq_quantize_settings *s,
                          const dq_calibrate *c, dq_err *err)
{
    dq_quantizer *q = NULL;
    s->method = &c->method;
    if (dq_quantize_open(&q, p->set.model, s, err) == DQ_OK) *out = q->info.file_bytes;
    dq_quantize_close(q);
    return err->code;
}

/* Bytes of the final file for this trial, from its container's size and both plans: exact as the
 * plan stands. */
static dq_status trial_bytes(int64_t *out, dq_plan_weights *p, int64_t trial, dq_err *err)
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

/* the container and what an interrupted run leaves of it */
enum { FILES = 3 };

static dq_status names_of(char *name[FILES], const dq_plan_weights *p, dq_err *err)
{
    static const char *const after[FILES] = {"", ".partial", ".journal"};
    for (int i = 0; err->code == DQ_OK && i < FILES; i++)
        name[i] = dq_textf(p->arena, err, "%s.trial.h5%s", p->set.out, after[i]);
    return err->code;
}

/* DQ_USAGE: a trial's file would replace an input; DQ_FILE: it exists, without force or a journal
 * to resume. */
static dq_status guard_files(const dq_plan_weights *p, dq_err *err)
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

/* Removes the files of trials, of earlier runs too. */
static void trial_clear(const dq_plan_weights *p)
{
    char *name[FILES];
    dq_err ignored = {0};
    if (dq_ranks_number() > 0 || !p->state->begun || names_of(name, p, &ignored) != DQ_OK) return;
    for (int i = 0; i < FILES; i++) dq_file_remove(name[i], &ignored);
}

static double quantize_flop(const dq_plan_weights *p)
{
    double n = dq_calibrate_work_all(p->model, p->set.rule, &p->text[DQ_PLAN_CALIB]);
    const double ids = (double)p->text[DQ_PLAN_CALIB].n_ids;
    if (p->model->tied && (p->set.ends || p->set.set.embed_bits != 16))
        n += dq_calibrate_work_embedding(p->model, p->set.rule, ids);
    return n;
}

/* Interrupted work stays for a run that resumes. */
static dq_status make(dq_plan_weights *p, dq_plan_references *ref, dq_plan_trial *t, dq_err *err)
{
    char *name[FILES];
    bool again = false;
    DQ_TRY(names_of(name, p, err));
    const char *stage =
        dq_textf(p->arena, err, "trial of %.3f bits per weight",
                 dq_plan_weights_bits_per_weight(p, dq_plan_alloc_cost(&p->curve, t->choice)));
    if (!stage) return err->code;
    if (p->set.stage) p->set.stage(p->set.arg, stage);
    DQ_TRY(begin_trial(&again, p, t, err));
    again = again && dq_file_exists(name[2]);
    if (!again) trial_clear(p);
    dq_quantize_settings set = p->set.set;
    const dq_calibrate_settings how = dq_plan_trial_calibrate(p, name[0]);
    dq_plan_work_share share = {&p->work, quantize_flop(p), 0};
    const dq_quantize_progress progress = {dq_plan_work_step, &share};
    dq_calibrate *c = NULL;
    dq_quantizer *q = NULL;
    json_t *rules = dq_plan_weights_rules(p, t->choice);
    set.rules = rules;
    if (dq_calibrate_new(&c, &how, err) == DQ_OK) {
        set.method = &c->method;
        if (dq_quantize_open(&q, p->set.model, &set, err) == DQ_OK &&
            dq_quantize_write(q, name[0], true, again, &progress, err) == DQ_OK) {
            t->packed_bytes = q->info.packed_bytes;
            t->file_bytes = q->info.file_bytes;
        }
    }
    dq_quantize_close(q);
    dq_calibrate_free(c);
    json_decref(rules);
    if (err->code == DQ_OK) measure(t, ref, name[0], err);
    if (!dq_work_resumable(err)) trial_clear(p);
    if (err->code != DQ_OK) return err->code;
    const char *choice = choice_text(p, t->choice, err);
    if (!choice) return err->code;
    json_t *line = json_object();
    dq_row_writer w = dq_row_json(line);
    DQ_PUT(&w, "trial", choice, NULL);
    DQ_PUT(&w, "packed_bytes", t->packed_bytes, NULL);
    DQ_PUT(&w, "file_bytes", t->file_bytes, NULL);
    DQ_PUT(&w, "weights_sha256", t->weights_sha256, NULL);
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) {
        const dq_plan_sums *s = &t->sums[i];
        DQ_OBJECT(&w, dq_plan_text_name[i], NULL);
        DQ_PUT(&w, "kld", dq_work_reals(s->kld, s->n), NULL);
        DQ_PUT(&w, "loss", dq_work_reals(s->loss, s->n), NULL);
        dq_row_end(&w);
    }
    return dq_work_put(&p->state->work, line, err);
}

/* By all ranks. Finds or makes the trial of a choice, which is copied; *out: its index. point: on
 * the curve, -1: none. The unseen text is measured but not looked at. */
static dq_status trial_of(int64_t *out, dq_plan_weights *p, dq_plan_references *ref,
                          const int *choice, int64_t point, dq_err *err)
{
    const size_t bytes = (size_t)p->n_tensors * sizeof *choice;
    bool found = false;
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
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) {
        dq_plan_sums *s = &t.sums[i];
        const dq_calib_text *text = &p->text[i];
        s->kld = dq_alloc(p->arena, (size_t)text->n_seq, sizeof *s->kld, err);
        s->loss = dq_alloc(p->arena, (size_t)text->n_seq, sizeof *s->loss, err);
        s->ids = dq_plan_reference_scored(text, p->arena, err);
        s->n = text->n_clusters;
        if (err->code != DQ_OK) return err->code;
    }
    DQ_TRY(get_trial(&found, p, &t, err));
    if (!found) DQ_TRY(make(p, ref, &t, err));
    t.bits_per_weight = dq_plan_weights_bits_per_weight(p, (double)t.packed_bytes);
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++)
        DQ_TRY(dq_plan_numbers_of(&t.on[i], &t.sums[i], err));
    p->trial[p->n_trials++] = t;
    return DQ_OK;
}

/* Plans of quantization say what each tensor costs at each width without reading weights. */

static const char *const dq_plan_goal_name[DQ_PLAN_GOALS] = {"kld", "ppl", "bpw", "size"};
const char *const dq_plan_text_name[DQ_PLAN_TEXTS] = {"calibration", "search", "unseen"};

static dq_status bad_budget(const char *text, dq_err *err)
{
    return dq_fail_with(
        err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OPTION},
        "budget: expected kld=NATS (above 0), ppl=RATIO (above 1), bpw=BITS or size=BYTES "
        "(in B, kB, MB, GB, KiB, MiB or GiB: 1.5GiB, 700MB); found \"%s\".",
        text);
}

/* The factor of a unit; 0: unknown. */
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
    *out = (dq_plan_budget){(dq_plan_goal)goal, value * unit, text};
    if (goal == DQ_PLAN_GOALS || end == split + 1 || !isfinite(out->value) ||
        !(out->value > (goal == DQ_PLAN_PPL ? 1 : 0)))
        return bad_budget(text, err);
    return DQ_OK;
}

typedef struct offers {
    dq_quantizer *q[DQ_PLAN_WIDTHS];
    int n;
} offers;

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

double dq_plan_weights_bits_per_weight(const dq_plan_weights *p, double packed_bytes)
{
    return dq_weight_bits_over((int64_t)packed_bytes, p->packed_params);
}

/* First guess of the bytes that the plan's part of the recipe takes. */
static double recipe_bytes(const dq_plan_weights *p)
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

/* Bytes that a budget of size leaves for packed tensors. */
static double packed_budget(const dq_plan_weights *p)
{
    const dq_plan_budget b = p->set.budget;
    if (b.goal == DQ_PLAN_BPW) return b.value * (double)p->packed_params / 8;
    return b.value - (double)p->other_bytes - recipe_bytes(p);
}

static dq_status check_budget(const dq_plan_weights *p, dq_err *err)
{
    const dq_plan_budget b = p->set.budget;
    double least = 0;
    for (int64_t i = 0; i < p->n_tensors; i++) least += p->item[i].cost[0];
    if (b.goal < DQ_PLAN_BPW || least <= packed_budget(p)) return DQ_OK;
    if (b.goal == DQ_PLAN_BPW)
        return dq_fail_with(
            err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OPTION},
            "budget: %g bit%s per weight is less than the least that these widths give, "
            "%.3f.",
            b.value, b.value == 1 ? "" : "s", dq_plan_weights_bits_per_weight(p, least));
    return dq_fail_with(
        err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OPTION},
        "budget: %.0f bytes are less than the least that these widths give, about %.0f.", b.value,
        least + (double)p->other_bytes + recipe_bytes(p));
}

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

static dq_status read_texts(dq_plan_weights *p, dq_err *err)
{
    const dq_plan_weights_settings *s = &p->set;
    const unsigned quarter[] = {1 | 4, s->unseen ? 2 | 8 : 2, s->unseen ? DQ_CALIB_TEXT_ALL : 8};
    for (int i = 0; i < DQ_PLAN_TEXTS; i++) {
        const char *path = i == DQ_PLAN_UNSEEN && s->unseen ? s->unseen : s->calib;
        dq_calib_text *t = &p->text[i];
        const int64_t ctx = i > 0 ? p->text[0].ctx : s->ctx;
        const int64_t limit = s->search_tokens ? s->search_tokens : DQ_PLAN_SEQUENCES * ctx;
        p->quarters[i] = quarter[i];
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
    /* Overlap with earlier parts; text that is all overlap proves nothing. */
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

static dq_status open_all(dq_plan_weights *p, dq_err *err)
{
    DQ_TRY(dq_model_open(&p->model, p->set.model, err));
    if (p->model->is_container)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: is a container; a plan is made for the checkpoint that it came from",
                       p->set.model);
    if (p->set.tokens == 0) p->set.tokens = DQ_CALIB_TEXT_TOKENS;
    offers o;
    if (open_offers(&o, p, err) == DQ_OK) {
        const dq_quantize_info *i = &o.q[0]->info;
        const dq_quantize_settings *set = &o.q[0]->set;
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
    while (o.n > 0) dq_quantize_close(o.q[--o.n]);
    if (err->code != DQ_OK) return err->code;
    p->item = dq_alloc(p->arena, (size_t)p->n_tensors, sizeof *p->item, err);
    if (!p->item) return err->code;
    for (int64_t t = 0; t < p->n_tensors; t++) {
        p->item[t].n = p->tensor[t].n;
        for (int k = 0; k < p->tensor[t].n; k++) p->item[t].cost[k] = (double)p->tensor[t].bytes[k];
    }
    DQ_TRY(check_budget(p, err));
    DQ_TRY(read_texts(p, err));
    /* An error needs two clusters. */
    const dq_calib_text *all = &p->text[DQ_PLAN_SEARCH];
    dq_calib_text *few = &p->probe_text;
    *few = *all;
    few->n_seq = few->n_clusters = 0;
    while (few->n_seq < all->n_seq &&
           (all->cu[few->n_seq] < DQ_PLAN_PROBE_TOKENS || few->n_clusters < 2)) {
        const int64_t next = all->cluster[few->n_seq++] + 1;
        if (next > few->n_clusters) few->n_clusters = next;
    }
    few->n_ids = all->cu[few->n_seq];
    return dq_model_check_weights(p->model, err);
}

dq_status dq_plan_weights_open(dq_plan_weights **out, const dq_plan_weights_settings *s,
                               dq_err *err)
{
    dq_arena *a;
    dq_plan_weights *p = *out = dq_arena_object(&a, sizeof *p, err);
    if (!p) return err->code;
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
    state_end(p, false);
    dq_model_close(p->model);
    dq_arena_free(p->arena);
}

void dq_plan_weights_done(dq_plan_weights *p)
{
    state_end(p, true);
}

double dq_plan_weights_flop(const dq_plan_weights *p)
{
    const dq_plan_probe probe = {
        .m = p->model, .rule = p->set.rule, .tensor = p->tensor, .n = p->n_tensors};
    double ids = (double)p->probe_text.n_ids;
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) ids += (double)p->text[i].n_ids;
    return dq_plan_probe_flop(&probe, p->text[DQ_PLAN_CALIB].n_ids, p->probe_text.n_ids) +
           dq_plan_reference_source_flop(p->model, ids);
}

double dq_plan_weights_trial_flop(const dq_plan_weights *p)
{
    double n = quantize_flop(p);
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++)
        n += dq_plan_reference_flop(p->model, 0, (double)p->text[i].n_ids);
    return n;
}

json_t *dq_plan_weights_rules(const dq_plan_weights *p, const int *choice)
{
    json_t *rules = json_array();
    for (int64_t i = 0; i < p->n_tensors; i++)
        json_array_append_new(rules, json_pack("{s:s, s:i}", "name", p->tensor[i].name, "bits",
                                               p->tensor[i].bits[choice[i]]));
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

dq_quantize_settings dq_plan_weights_settings_of(const dq_plan_weights *p, int64_t trial,
                                                 const json_t *rules, const json_t *plan)
{
    dq_quantize_settings s = p->set.set;
    /* The width that most tensors have. */
    int64_t of_bits[9] = {0};
    int best = 2;
    for (int64_t i = 0; i < p->n_tensors; i++)
        of_bits[p->tensor[i].bits[p->trial[trial].choice[i]]]++;
    for (int b = 2; b <= 8; b++) best = of_bits[b] > of_bits[best] ? b : best;
    s.bits = best;
    s.method_name = p->set.rule->name;
    s.rules = rules;
    s.plan = plan;
    return s;
}

/* Sensitivities, then whole models in the order of the search, looks at the unseen text, and
 * uniform widths for comparison. */

typedef struct job {
    dq_plan_weights *p;
    dq_plan_references ref;
    int *choice; /* [n_tensors] scratch */
    int models;  /* still expected, of which `after` come after the present step */
    int after;
} job;

static void stage(const dq_plan_weights *p, const char *name)
{
    if (p->set.stage) p->set.stage(p->set.arg, name);
}

/* Announces so many whole models, `after` of them after the next step, for progress. */
static void expect(job *j, int models, int after)
{
    j->models = models;
    j->after = after;
    dq_plan_work_expect(&j->p->work, models * dq_plan_weights_trial_flop(j->p));
}

static dq_status try_choice(int64_t *trial, job *j, int64_t point, dq_err *err)
{
    DQ_TRY(trial_of(trial, j->p, &j->ref, j->choice, point, err));
    expect(j, j->models - 1 > j->after ? j->models - 1 : j->after, j->after);
    return DQ_OK;
}

static dq_status found(void *arg, int64_t tensor, dq_err *err)
{
    dq_plan_weights *p = ((job *)arg)->p;
    const dq_plan_tensor *t = &p->tensor[tensor];
    const dq_mean *m = &t->kld;
    json_t *line = json_object();
    dq_row_writer w = dq_row_json(line);
    DQ_PUT(&w, "tensor", tensor, NULL);
    DQ_PUT(&w, "loss", dq_work_reals(t->loss, t->n), NULL);
    DQ_PUT(&w, "kld", m->value, NULL);
    DQ_PUT(&w, "stderr", m->std_err, NULL, .when = DQ_NULL);
    DQ_PUT(&w, "clusters", m->clusters, NULL);
    return dq_work_put(&p->state->work, line, err);
}

static dq_status probe_all(job *j, dq_plan_reference *search, dq_err *err)
{
    dq_plan_weights *p = j->p;
    dq_plan_probe probe = {.m = p->model,
                           .rule = p->set.rule,
                           .b = p->set.backend,
                           .beside = p->set.out,
                           .calib = &p->text[DQ_PLAN_CALIB],
                           .search = search,
                           .tensor = p->tensor,
                           .n = p->n_tensors,
                           .found = found,
                           .arg = j,
                           .work = &p->work};
    DQ_TRY(dq_plan_reference_new(search, &p->probe_text, p->model, p->set.backend, p->set.out,
                                 false, &p->work, err));
    return dq_plan_probe_run(&probe, err);
}

static dq_status probe(job *j, dq_err *err)
{
    dq_plan_weights *p = j->p;
    dq_plan_reference search = {.act.file.fd = -1};
    stage(p, "sensitivities");
    probe_all(j, &search, err);
    dq_plan_reference_end(&search);
    DQ_TRY(err->code);
    for (int64_t i = 0; i < p->n_tensors; i++) {
        for (int k = 0; k < p->tensor[i].n; k++)
            p->item[i].loss[k] = dq_plan_probe_kld(&p->tensor[i], k).value;
    }
    return dq_plan_alloc_curve(&p->curve, p->item, p->n_tensors, p->arena, err);
}

static bool is_quality(const dq_plan_weights *p)
{
    return p->set.budget.goal == DQ_PLAN_KLD || p->set.budget.goal == DQ_PLAN_PPL;
}

enum { RIVALS = 2 }; /* uniform widths beside the plan */

/* The usual number: half of the search, a uniform width, and two for comparison. */
int dq_plan_weights_models(const dq_plan_weights *p)
{
    return (is_quality(p) ? (p->set.trials + 1) / 2 : 1) + 1 + RIVALS;
}

static double limit_of(const dq_plan_weights *p)
{
    return p->set.budget.goal == DQ_PLAN_PPL ? log(p->set.budget.value) : p->set.budget.value;
}

/* The quantity under the budget. */
static dq_plan_mean mean_of(const dq_plan_weights *p, const dq_plan_numbers *n)
{
    return p->set.budget.goal == DQ_PLAN_PPL ? n->loss : n->kld;
}

static dq_interval on_search(const dq_plan_weights *p, int64_t trial)
{
    const dq_plan_mean m = mean_of(p, &p->trial[trial].on[DQ_PLAN_SEARCH]);
    return dq_plan_interval(m, dq_plan_decide_outside(1));
}

static dq_status try_point(int64_t *trial, job *j, int64_t point, dq_err *err)
{
    dq_plan_alloc_at(j->choice, &j->p->curve, point);
    return try_choice(trial, j, point, err);
}

static dq_status measure_point(void *arg, int64_t point, double *upper, dq_err *err)
{
    job *j = arg;
    int64_t trial;
    DQ_TRY(try_point(&trial, j, point, err));
    *upper = on_search(j->p, trial).high;
    return DQ_OK;
}

static void uniform_choice(const job *j, int bits)
{
    const dq_plan_weights *p = j->p;
    for (int64_t i = 0; i < p->n_tensors; i++) {
        j->choice[i] = 0;
        for (int k = 0; k < p->tensor[i].n; k++) {
            if (p->tensor[i].bits[k] == bits) j->choice[i] = k;
        }
    }
}

/* The widest that costs at most `cost`, or the narrowest that costs at least that; 0: none. */
static int uniform_near(const job *j, double cost, bool below)
{
    const dq_plan_weights *p = j->p;
    int best = 0;
    for (int i = 0; i < p->set.n_bits; i++) {
        uniform_choice(j, p->set.bits[i]);
        const double c = dq_plan_alloc_cost(&p->curve, j->choice);
        if (below ? c <= cost : c >= cost && best == 0) best = p->set.bits[i];
    }
    return best;
}

static dq_status try_uniform(int64_t *trial, job *j, int bits, dq_err *err)
{
    uniform_choice(j, bits);
    return try_choice(trial, j, -1, err);
}

/* A uniform width no larger than the point that keeps the budget on the search text, tried unless
 * its prediction exceeds twice the budget; 0: none. */
static dq_status find_uniform(int *bits, job *j, int64_t point, dq_err *err)
{
    const dq_plan_weights *p = j->p;
    int64_t other;
    *bits = uniform_near(j, p->curve.cost[point], true);
    uniform_choice(j, *bits);
    if (*bits == 0 || dq_plan_alloc_loss(&p->curve, j->choice) > 2 * limit_of(p)) {
        *bits = 0;
        return DQ_OK;
    }
    DQ_TRY(try_uniform(&other, j, *bits, err));
    if (!dq_plan_decide_keeps(on_search(p, other), limit_of(p))) *bits = 0;
    return DQ_OK;
}

/* Compares a trial's unseen numbers with the budget of quality. */
static dq_status look(dq_plan_decider *l, dq_plan_weights *p, int64_t trial, dq_err *err)
{
    dq_plan_trial *t = &p->trial[trial];
    if (t->look == 0) {
        DQ_TRY(state_look(&t->look, p, t, err));
        p->n_look++;
    }
    t->interval = dq_plan_decide_look(l, mean_of(p, &t->on[DQ_PLAN_UNSEEN]), t->look);
    if (p->set.budget.goal == DQ_PLAN_KLD && t->interval.low < 0) t->interval.low = 0;
    p->met = t->meets = l->met;
    p->chosen = trial;
    return DQ_OK;
}

static dq_status choose_by_quality(job *j, dq_err *err)
{
    dq_plan_weights *p = j->p;
    const dq_plan_search search = {&p->curve, limit_of(p), p->set.trials, measure_point, j};
    dq_plan_decider l = {.curve = &p->curve, .max = DQ_PLAN_MAX_LOOK, .limit = limit_of(p)};
    dq_plan_turn turn;
    int64_t trial;
    int bits = 0;
    expect(j, dq_plan_weights_models(p), 1 + RIVALS);
    DQ_TRY(dq_plan_search_run(&l.point, &search, err));
    expect(j, 1 + RIVALS, RIVALS);
    if (l.point >= 0) DQ_TRY(find_uniform(&bits, j, l.point, err));
    l.uniform = bits > 0;
    while ((turn = dq_plan_decide_turn(&l)) != DQ_PLAN_TURN_END) {
        if (turn == DQ_PLAN_TURN_UNIFORM)
            DQ_TRY(try_uniform(&trial, j, bits, err));
        else
            DQ_TRY(try_point(&trial, j, l.point, err));
        DQ_TRY(look(&l, p, trial, err));
    }
    if (!p->met) {
        /* Of this budget's looks, the one with the least upper end. */
        int64_t best = -1;
        for (int64_t i = 0; i < p->n_trials; i++) {
            const dq_plan_trial *t = &p->trial[i];
            if (t->look && (best < 0 || t->interval.high < p->trial[best].interval.high)) best = i;
        }
        p->chosen = best;
    }
    return DQ_OK;
}

/* Bytes by which a trial exceeds a budget of bits, or its container one of size, assuming a recipe
 * with the plan and two more trials. */
static dq_status excess_of(double *out, dq_plan_weights *p, int64_t trial, dq_err *err)
{
    int64_t bytes;
    if (p->set.budget.goal == DQ_PLAN_BPW) {
        *out = (double)p->trial[trial].packed_bytes - packed_budget(p);
        return DQ_OK;
    }
    DQ_TRY(trial_bytes(&bytes, p, trial, err));
    *out = (double)bytes + RIVALS * DQ_PLAN_TRIAL_BYTES - p->set.budget.value;
    return DQ_OK;
}

static dq_status offer_of(dq_plan_offer *out, dq_plan_weights *p, int64_t trial, dq_err *err)
{
    out->kld = p->trial[trial].on[DQ_PLAN_SEARCH].kld.of.value;
    return excess_of(&out->excess, p, trial, err);
}

/* The mix or the widest uniform width that fits; the unseen text then tells the loss. */
static dq_status choose_by_size(job *j, dq_err *err)
{
    dq_plan_weights *p = j->p;
    int64_t uniform;
    expect(j, dq_plan_weights_models(p), 1 + RIVALS);
    /* The overhead of a file, and scales that f16 cannot hold, are known once one is written; if
     * larger than assumed, there is less room for packed tensors. */
    p->capacity = packed_budget(p);
    for (int i = 0; i < DQ_PLAN_SIZE_TRIES && !p->met; i++) {
        const int64_t point = dq_plan_alloc_by_cost(&p->curve, p->capacity);
        if (point < 0) break;
        dq_plan_alloc_at(j->choice, &p->curve, point);
        dq_plan_alloc_fill(j->choice, &p->curve, point, p->capacity);
        DQ_TRY(try_choice(&p->chosen, j, -1, err));
        double excess;
        DQ_TRY(excess_of(&excess, p, p->chosen, err));
        p->met = excess <= 0;
        if (!p->met) p->capacity -= excess;
    }
    if (p->chosen < 0) return dq_fail(err, DQ_BUG, "no allocation within the budget");
    const int bits = uniform_near(j, packed_budget(p), true);
    if (bits) {
        DQ_TRY(try_uniform(&uniform, j, bits, err));
        dq_plan_offer mix, its;
        DQ_TRY(offer_of(&mix, p, p->chosen, err));
        DQ_TRY(offer_of(&its, p, uniform, err));
        if (uniform != p->chosen && dq_plan_decide_uniform(mix, its)) {
            p->mix = p->chosen;
            p->chosen = uniform;
        }
    }
    dq_plan_trial *t = &p->trial[p->chosen];
    DQ_TRY(state_look(&t->look, p, t, err));
    t->interval = dq_plan_interval_kld(t->on[DQ_PLAN_UNSEEN].kld, dq_plan_decide_outside(t->look));
    p->n_look = 1;
    return DQ_OK;
}

static dq_status add_baseline(job *j, int bits, dq_err *err)
{
    dq_plan_weights *p = j->p;
    dq_plan_baseline *r = &p->baseline[p->n_baselines];
    if (bits == 0 || p->n_baselines == 2) return DQ_OK;
    DQ_TRY(try_uniform(&r->trial, j, bits, err));
    if (r->trial == p->chosen || (p->n_baselines == 1 && r->trial == p->baseline[0].trial))
        return DQ_OK;
    p->n_baselines++;
    const dq_plan_sums *own = &p->trial[p->chosen].sums[DQ_PLAN_UNSEEN];
    const dq_plan_sums *its = &p->trial[r->trial].sums[DQ_PLAN_UNSEEN];
    double *x = dq_block_new((size_t)own->n, 2 * sizeof *x, err);
    const dq_plan_sums less = {own->n, own->ids, x, x + own->n};
    for (int64_t i = 0; x && i < own->n; i++) {
        less.kld[i] = own->kld[i] - its->kld[i];
        less.loss[i] = own->loss[i] - its->loss[i];
    }
    const double outside = dq_plan_decide_outside_of(p->trial[p->chosen].look, 2);
    if (x) dq_plan_found_of(&r->less, &less, true, outside, err);
    dq_block_free(x);
    return err->code;
}

/* The exact size, now that the recipe is complete, decides a budget of size. "false" takes a byte
 * more than "true". */
static dq_status weigh(dq_plan_weights *p, dq_err *err)
{
    dq_plan_trial *t = &p->trial[p->chosen];
    const dq_plan_budget b = p->set.budget;
    double used = (double)t->packed_bytes, room = packed_budget(p);
    if (!is_quality(p)) p->met = t->meets = false;
    DQ_TRY(trial_bytes(&p->container_bytes, p, p->chosen, err));
    if (is_quality(p)) return DQ_OK;
    if (b.goal == DQ_PLAN_SIZE) {
        used = (double)p->container_bytes;
        room = b.value;
    }
    p->met = t->meets = used <= room;
    for (int i = 0; i < p->n_baselines; i++) {
        const dq_plan_trial *r = &p->trial[p->baseline[i].trial];
        const int64_t more = b.goal == DQ_PLAN_SIZE ? r->file_bytes - t->file_bytes
                                                    : r->packed_bytes - t->packed_bytes;
        p->baseline[i].beyond = used + (double)more > room;
    }
    return trial_bytes(&p->container_bytes, p, p->chosen, err);
}

static dq_status run_job(job *j, dq_err *err)
{
    dq_plan_weights *p = j->p;
    j->choice = dq_alloc(p->arena, (size_t)p->n_tensors, sizeof *j->choice, err);
    if (!j->choice) return err->code;
    DQ_TRY(dq_plan_memory_check(p, err));
    DQ_TRY(guard_files(p, err));
    json_t *of = NULL;
    dq_plan_state *s = p->state = dq_alloc(p->arena, 1, sizeof *s, err);
    if (!s) return err->code;
    s->kept = json_object();
    s->look = json_array();
    depends_on(&of, p, err);
    const char *text = p->set.calib, *unseen = p->set.unseen ? p->set.unseen : text;
    const dq_work_how how = {.path = dq_textf(p->arena, err, "%s.journal", p->set.out),
                             .schema = "dq-plan-weights/1",
                             .of = of,
                             .source = {{"model", p->set.model},
                                        {"calib", text},
                                        {dq_plan_text_name[0], text},
                                        {dq_plan_text_name[1], text},
                                        {dq_plan_text_name[2], unseen}},
                             .resume = p->set.resume,
                             .force = p->set.force,
                             .beside = true,
                             .shared = true,
                             .take = take_line,
                             .arg = p};
    dq_work_open(&s->work, &how, err);
    json_decref(of);
    if (err->code != DQ_OK) return err->code;
    stage(p, "the model before rounding");
    const double models = dq_plan_weights_models(p) * dq_plan_weights_trial_flop(p);
    dq_plan_work_expect(&p->work, dq_plan_weights_flop(p) + models);
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++)
        DQ_TRY(dq_plan_reference_new(&j->ref.of[i], &p->text[i], p->model, p->set.backend,
                                     p->set.out, false, &p->work, err));
    DQ_TRY(probe(j, err));
    DQ_TRY(is_quality(p) ? choose_by_quality(j, err) : choose_by_size(j, err));
    p->n_earlier = (int)json_array_size(p->state->look) - p->n_look;
    /* The nearest uniform widths on both sides. */
    const dq_plan_trial *t = &p->trial[p->chosen];
    const double cost = dq_plan_alloc_cost(&p->curve, t->choice);
    expect(j, RIVALS, 0);
    DQ_TRY(add_baseline(j, uniform_near(j, cost - !!t->uniform, true), err));
    DQ_TRY(add_baseline(j, uniform_near(j, cost + !!t->uniform, false), err));
    DQ_TRY(weigh(p, err));
    trial_clear(p);
    return DQ_OK;
}

dq_status dq_plan_weights_run(dq_plan_weights *p, dq_err *err)
{
    job j = {.p = p};
    for (int i = 0; i < DQ_PLAN_TEXTS; i++) j.ref.of[i].act.file.fd = -1;
    run_job(&j, err);
    for (int i = 0; i < DQ_PLAN_TEXTS; i++) dq_plan_reference_end(&j.ref.of[i]);
    return err->code == DQ_OK ? DQ_OK : dq_plan_weights_failed(p, err);
}
