/* plan_run: dq_plan_weights_run of plan_weights.h: sensitivities, then whole models in the order that plan_search.h gives, then looks at the
 * unseen text, then uniform widths beside what was chosen.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_memory.h"
#include "plan/weights/plan_search.h"
#include "plan/weights/plan_state.h"
#include "plan/weights/plan_trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One run. */
typedef struct job {
    dq_plan_weights *p;
    dq_plan_trials parts;
    int *choice; /* [n_tensors] scratch */
    int models;  /* still expected, of which `after` come after the present step */
    int after;
} job;

static void stage(const dq_plan_weights *p, const char *name)
{
    if (p->set.stage) p->set.stage(p->set.arg, name);
}

/* From here on so many whole models are expected, `after` of them after what comes next. */
static void expect(job *j, int models, int after)
{
    j->models = models;
    j->after = after;
    dq_plan_work_expect(&j->p->work, models * dq_plan_weights_trial_flop(j->p));
}

static dq_status try_choice(int64_t *trial, job *j, int64_t point, dq_err *err)
{
    DQ_TRY(dq_plan_trial_of(trial, j->p, &j->parts, j->choice, point, err));
    expect(j, j->models - 1 > j->after ? j->models - 1 : j->after, j->after);
    return DQ_OK;
}

/* ---- Sensitivities ---- */

static dq_status found(void *arg, int64_t tensor, dq_err *err)
{
    return dq_plan_state_put_probe(((job *)arg)->p, tensor, err);
}

static dq_status probe_all(job *j, dq_plan_part *search, dq_err *err)
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
    DQ_TRY(dq_plan_part_new(search, &p->probe_text, p->model, p->set.backend, p->set.out, false,
                            &p->work, err));
    return dq_plan_probe_run(&probe, err);
}

static dq_status probe(job *j, dq_err *err)
{
    dq_plan_weights *p = j->p;
    dq_plan_part search = {.act.file.fd = -1};
    stage(p, "sensitivities");
    probe_all(j, &search, err);
    dq_plan_part_end(&search);
    DQ_TRY(err->code);
    for (int64_t i = 0; i < p->n_tensors; i++) {
        for (int k = 0; k < p->tensor[i].n; k++)
            p->item[i].loss[k] = dq_plan_probe_kld(&p->tensor[i], k).value;
    }
    return dq_plan_alloc_curve(&p->curve, p->item, p->n_tensors, p->arena, err);
}

/* ---- What the budget is about ---- */

static bool is_quality(const dq_plan_weights *p)
{
    return p->set.budget.goal == DQ_PLAN_KLD || p->set.budget.goal == DQ_PLAN_PPL;
}

enum { RIVALS = 2 }; /* uniform widths beside the plan */

/* Whole models, on an average: half of the search, a uniform width, and two beside it. */
int dq_plan_weights_models(const dq_plan_weights *p)
{
    return (is_quality(p) ? (p->set.trials + 1) / 2 : 1) + 1 + RIVALS;
}

static double limit_of(const dq_plan_weights *p)
{
    return p->set.budget.goal == DQ_PLAN_PPL ? log(p->set.budget.value) : p->set.budget.value;
}

/* What the budget is about; *skew of what its error is over. */
static dq_mean mean_of(const dq_plan_weights *p, const dq_plan_numbers *n, double *skew)
{
    const bool loss = p->set.budget.goal == DQ_PLAN_PPL;
    *skew = loss ? n->loss_skew : n->kld_skew;
    return loss ? n->loss : n->kld;
}

static dq_interval on_search(const dq_plan_weights *p, int64_t trial)
{
    double skew;
    const dq_mean m = mean_of(p, &p->trial[trial].on[DQ_PLAN_SEARCH], &skew);
    return dq_plan_decide_interval(m, skew, dq_plan_decide_outside(1));
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

/* ---- Uniform widths ---- */

/* All tensors at a width, where they may have it. */
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

/* ---- Budgets of quality ---- */

/* Width of a uniform model that is no larger than the point and keeps the budget on the search text as well, tried where its
 * prediction is not beyond twice the budget; 0: none. */
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

/* Of what was looked at for this budget, the one whose upper end is least. */
static int64_t nearest(const dq_plan_weights *p)
{
    int64_t best = -1;
    for (int64_t i = 0; i < p->n_trials; i++) {
        const dq_plan_trial *t = &p->trial[i];
        if (t->look && (best < 0 || t->interval.high < p->trial[best].interval.high)) best = i;
    }
    return best;
}

/* Shows a trial's numbers of the unseen text to the budget of quality. */
static dq_status look(dq_plan_decider *l, dq_plan_weights *p, int64_t trial, dq_err *err)
{
    dq_plan_trial *t = &p->trial[trial];
    double skew;
    const dq_mean m = mean_of(p, &t->on[DQ_PLAN_UNSEEN], &skew);
    if (t->look == 0) {
        DQ_TRY(dq_plan_state_look(&t->look, p, t, err));
        p->n_look++;
    }
    t->interval = dq_plan_decide_look(l, m, skew, t->look);
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
    if (!p->met) p->chosen = nearest(p);
    return DQ_OK;
}

/* ---- Budgets of size ---- */

/* Bytes by which a trial is beyond a budget of bits, or its container beyond one of size, with a recipe that tells of the plan
 * and of two more trials. */
static dq_status excess_of(double *out, dq_plan_weights *p, int64_t trial, dq_err *err)
{
    int64_t bytes;
    if (p->set.budget.goal == DQ_PLAN_BPW) {
        *out = (double)p->trial[trial].packed_bytes - dq_plan_weights_packed_budget(p);
        return DQ_OK;
    }
    DQ_TRY(dq_plan_trial_bytes(&bytes, p, trial, err));
    *out = (double)bytes + RIVALS * DQ_PLAN_TRIAL_BYTES - p->set.budget.value;
    return DQ_OK;
}

/* The mix that fills the room. What a file has beside tensors, and scales that f16 does not hold, are known once one is
 * written: where that is more than was thought, there is less room. */
static dq_status fill_room(job *j, dq_err *err)
{
    dq_plan_weights *p = j->p;
    p->capacity = dq_plan_weights_packed_budget(p);
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
    return p->chosen < 0 ? dq_fail(err, DQ_BUG, "no allocation within the budget") : DQ_OK;
}

static dq_status offer_of(dq_plan_offer *out, dq_plan_weights *p, int64_t trial, dq_err *err)
{
    out->kld = p->trial[trial].on[DQ_PLAN_SEARCH].kld.value;
    return excess_of(&out->excess, p, trial, err);
}

/* The mix, or the widest uniform width that there is room for; the unseen text then tells what that lost. */
static dq_status choose_by_size(job *j, dq_err *err)
{
    dq_plan_weights *p = j->p;
    int64_t uniform;
    expect(j, dq_plan_weights_models(p), 1 + RIVALS);
    DQ_TRY(fill_room(j, err));
    const int bits = uniform_near(j, dq_plan_weights_packed_budget(p), true);
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
    DQ_TRY(dq_plan_state_look(&t->look, p, t, err));
    t->interval = dq_plan_decide_kld(t->on[DQ_PLAN_UNSEEN].kld, t->on[DQ_PLAN_UNSEEN].kld_skew,
                                     dq_plan_decide_outside(t->look));
    p->n_look = 1;
    return DQ_OK;
}

/* ---- Beside uniform widths ---- */

static dq_status compare(dq_plan_weights *p, dq_plan_baseline *r, dq_err *err)
{
    const dq_plan_sums *own = &p->trial[p->chosen].on[DQ_PLAN_UNSEEN].sums;
    const dq_plan_sums *its = &p->trial[r->trial].on[DQ_PLAN_UNSEEN].sums;
    double *x = dq_block_new((size_t)own->n, sizeof *x, err);
    for (int64_t i = 0; x && i < own->n; i++) x[i] = own->kld[i] - its->kld[i];
    if (x) dq_plan_decide_mean(&r->difference, x, own->ids, own->n, err);
    if (x) r->skew = dq_plan_decide_skew(x, own->ids, own->n);
    dq_block_free(x);
    return err->code;
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
    return compare(p, r, err);
}

/* The nearest uniform widths on both sides. */
static dq_status beside_uniform(job *j, dq_err *err)
{
    dq_plan_weights *p = j->p;
    const dq_plan_trial *t = &p->trial[p->chosen];
    const double cost = dq_plan_alloc_cost(&p->curve, t->choice);
    const double outside = dq_plan_decide_outside_of(t->look, 2);
    expect(j, RIVALS, 0);
    DQ_TRY(add_baseline(j, uniform_near(j, cost - !!t->uniform, true), err));
    DQ_TRY(add_baseline(j, uniform_near(j, cost + !!t->uniform, false), err));
    for (int i = 0; i < p->n_baselines; i++) {
        dq_plan_baseline *r = &p->baseline[i];
        r->interval = dq_plan_decide_interval(r->difference, r->skew, outside);
    }
    return DQ_OK;
}

/* The size of the file, now that all is known that its recipe tells; it decides about a budget of size. The figure of "met"
 * takes a byte more in a recipe that says false. */
static dq_status weigh(dq_plan_weights *p, dq_err *err)
{
    dq_plan_trial *t = &p->trial[p->chosen];
    const dq_plan_budget b = p->set.budget;
    double used = (double)t->packed_bytes, room = dq_plan_weights_packed_budget(p);
    if (!is_quality(p)) p->met = t->meets = false;
    DQ_TRY(dq_plan_trial_bytes(&p->container_bytes, p, p->chosen, err));
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
    return dq_plan_trial_bytes(&p->container_bytes, p, p->chosen, err);
}

/* The source on both texts, sensitivities, and whole models. */
static void expect_all(const job *j)
{
    dq_plan_weights *p = j->p;
    const double models = dq_plan_weights_models(p) * dq_plan_weights_trial_flop(p);
    dq_plan_work_expect(&p->work, dq_plan_weights_flop(p) + models);
}

static dq_status run_job(job *j, dq_err *err)
{
    dq_plan_weights *p = j->p;
    j->choice = dq_alloc(p->arena, (size_t)p->n_tensors, sizeof *j->choice, err);
    if (!j->choice) return err->code;
    DQ_TRY(dq_plan_memory_check(p, err));
    DQ_TRY(dq_plan_trial_guard(p, err));
    DQ_TRY(dq_plan_state_begin(p, err));
    stage(p, "the model before rounding");
    expect_all(j);
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++)
        DQ_TRY(dq_plan_part_new(&j->parts.part[i], &p->text[i], p->model, p->set.backend,
                                p->set.out, false, &p->work, err));
    DQ_TRY(probe(j, err));
    DQ_TRY(is_quality(p) ? choose_by_quality(j, err) : choose_by_size(j, err));
    p->n_earlier = (int)json_array_size(p->state->look) - p->n_look;
    DQ_TRY(beside_uniform(j, err));
    DQ_TRY(weigh(p, err));
    dq_plan_trial_clear(p);
    return DQ_OK;
}

dq_status dq_plan_weights_run(dq_plan_weights *p, dq_err *err)
{
    job j = {.p = p};
    for (int i = 0; i < DQ_PLAN_TEXTS; i++) j.parts.part[i].act.file.fd = -1;
    run_job(&j, err);
    for (int i = 0; i < DQ_PLAN_TEXTS; i++) dq_plan_part_end(&j.parts.part[i]);
    return err->code == DQ_OK ? DQ_OK : dq_plan_weights_failed(p, err);
}
