/* plan_run: dq_plan_run of plan.h: sensitivities, then whole models in the order that plan_search.h gives, then looks at the
 * unseen text, then uniform widths beside what was chosen.
 * SPDX-License-Identifier: MIT */
#include "plan/plan_search.h"
#include "plan/plan_state.h"
#include "plan/plan_trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One run. */
typedef struct job {
    dq_plan *p;
    dq_plan_trials parts;
    int *choice; /* [n_tensors] scratch */
} job;

static void stage(const dq_plan *p, const char *name)
{
    if (p->set.stage) p->set.stage(p->set.arg, name);
}

/* ---- Sensitivities ---- */

static dq_status found(void *arg, int64_t tensor, int option, dq_err *err)
{
    return dq_plan_state_put_probe(((job *)arg)->p, tensor, option, err);
}

static void step(void *arg, double done, double total, const char *what)
{
    const dq_plan *p = ((job *)arg)->p;
    if (p->set.step) p->set.step(p->set.arg, done, total, what);
}

static dq_status probe(job *j, dq_err *err)
{
    dq_plan *p = j->p;
    dq_plan_probe probe = {.m = p->model,
                           .rule = p->set.rule,
                           .b = p->set.backend,
                           .beside = p->set.out,
                           .calib = &p->text[DQ_PLAN_CALIB],
                           .search = &j->parts.part[DQ_PLAN_SEARCH],
                           .tensor = p->tensor,
                           .n = p->n_tensors,
                           .found = found,
                           .step = step,
                           .arg = j};
    stage(p, "sensitivities");
    DQ_TRY(dq_plan_probe_run(&probe, err));
    for (int64_t i = 0; i < p->n_tensors; i++) {
        for (int k = 0; k < p->tensor[i].n; k++) p->item[i].loss[k] = p->tensor[i].kld[k].value;
    }
    return dq_plan_alloc_curve(&p->curve, p->item, p->n_tensors, p->arena, err);
}

/* ---- What the budget is about ---- */

static bool is_quality(const dq_plan *p)
{
    return p->set.budget.goal == DQ_PLAN_KLD || p->set.budget.goal == DQ_PLAN_PPL;
}

static double limit_of(const dq_plan *p)
{
    return p->set.budget.goal == DQ_PLAN_PPL ? log(p->set.budget.value) : p->set.budget.value;
}

/* share: what lies outside. */
static dq_interval interval_of(const dq_plan *p, const dq_plan_numbers *n, double share)
{
    const dq_mean m = p->set.budget.goal == DQ_PLAN_PPL ? n->loss : n->kld;
    return dq_interval_t_outside(m.value, m.std_err, m.clusters, share);
}

static double upper_of(const dq_plan *p, int64_t trial)
{
    return interval_of(p, &p->trial[trial].on[DQ_PLAN_SEARCH], 0.05).high;
}

static dq_status try_point(int64_t *trial, job *j, int64_t point, dq_err *err)
{
    dq_plan_alloc_at(j->choice, &j->p->curve, point);
    return dq_plan_trial_of(trial, j->p, &j->parts, j->choice, point, 0, err);
}

static dq_status measure_point(void *arg, int64_t point, double *upper, dq_err *err)
{
    job *j = arg;
    int64_t trial;
    DQ_TRY(try_point(&trial, j, point, err));
    *upper = upper_of(j->p, trial);
    return DQ_OK;
}

/* ---- Uniform widths ---- */

/* All tensors at a width, where they may have it. */
static void uniform_choice(const job *j, int bits)
{
    const dq_plan *p = j->p;
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
    const dq_plan *p = j->p;
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
    return dq_plan_trial_of(trial, j->p, &j->parts, j->choice, -1, bits, err);
}

/* ---- Budgets of quality ---- */

/* Whether the unseen text agrees; counts. */
static bool look(dq_plan *p, int64_t trial)
{
    dq_plan_trial *t = &p->trial[trial];
    if (t->look == 0) {
        t->look = ++p->n_look;
        t->interval = interval_of(p, &t->on[DQ_PLAN_UNSEEN], 0.05 / ldexp(1, p->n_look - 1));
        t->meets = is_quality(p) ? t->interval.high <= limit_of(p) : p->met;
    }
    return t->meets;
}

/* A uniform width that is no larger than the point and keeps the budget on the search text as well, tried where its
 * prediction is not beyond twice the budget. *trial stays otherwise. */
static dq_status prefer_uniform(int64_t *trial, job *j, int64_t point, dq_err *err)
{
    const dq_plan *p = j->p;
    const int bits = uniform_near(j, p->curve.cost[point], true);
    int64_t other;
    uniform_choice(j, bits);
    if (bits == 0 || dq_plan_alloc_loss(&p->curve, j->choice) > 2 * limit_of(p)) return DQ_OK;
    DQ_TRY(try_uniform(&other, j, bits, err));
    if (upper_of(p, other) <= limit_of(p)) *trial = other;
    return DQ_OK;
}

/* Of what was looked at, the one whose upper end is least. */
static int64_t nearest(const dq_plan *p)
{
    int64_t best = -1;
    for (int64_t i = 0; i < p->n_trials; i++) {
        const dq_plan_trial *t = &p->trial[i];
        if (t->look && (best < 0 || t->interval.high < p->trial[best].interval.high)) best = i;
    }
    return best;
}

static dq_status choose_by_quality(job *j, dq_err *err)
{
    dq_plan *p = j->p;
    const dq_plan_search search = {&p->curve, limit_of(p), p->set.trials, measure_point, j};
    int64_t point, trial;
    DQ_TRY(dq_plan_search_run(&point, &search, err));
    const bool kept = point >= 0;
    if (!kept) point = p->curve.n - 1;
    DQ_TRY(try_point(&trial, j, point, err));
    if (kept) DQ_TRY(prefer_uniform(&trial, j, point, err));
    p->met = look(p, trial);
    while (!p->met && p->n_look < DQ_PLAN_MAX_LOOK) {
        /* behind a uniform width comes the point that the search gave */
        if (p->trial[trial].point >= 0) point = dq_plan_search_next(&p->curve, point);
        if (point < 0) break;
        DQ_TRY(try_point(&trial, j, point, err));
        p->met = look(p, trial);
    }
    p->chosen = p->met ? trial : nearest(p);
    return DQ_OK;
}

/* ---- Budgets of size ---- */

/* Bytes by which the container of a trial, with a recipe that tells of the plan, is beyond a budget of size. */
static double excess_of(const dq_plan *p, const dq_plan_trial *t)
{
    if (p->set.budget.goal == DQ_PLAN_BPW) return (double)t->packed_bytes - p->capacity;
    return (double)t->file_bytes + dq_plan_recipe_bytes(p) - p->set.budget.value;
}

/* What a file has beside tensors is known once one is written: where that is more than was thought, there is less room. */
static dq_status choose_by_size(job *j, dq_err *err)
{
    enum { TRIES = 4 };
    dq_plan *p = j->p;
    p->capacity = dq_plan_packed_budget(p);
    for (int i = 0; i < TRIES && !p->met; i++) {
        const int64_t point = dq_plan_alloc_by_cost(&p->curve, p->capacity);
        if (point < 0) break;
        dq_plan_alloc_at(j->choice, &p->curve, point);
        dq_plan_alloc_fill(j->choice, &p->curve, point, p->capacity);
        DQ_TRY(dq_plan_trial_of(&p->chosen, p, &j->parts, j->choice, -1, 0, err));
        const double excess = excess_of(p, &p->trial[p->chosen]);
        p->met = excess <= 0;
        if (!p->met) p->capacity -= excess;
    }
    return p->chosen < 0 ? dq_fail(err, DQ_BUG, "no allocation within the budget") : DQ_OK;
}

/* ---- Beside uniform widths ---- */

static dq_status compare(dq_plan *p, dq_plan_rival *r, dq_err *err)
{
    const dq_plan_sums *own = &p->trial[p->chosen].on[DQ_PLAN_UNSEEN].sums;
    const dq_plan_sums *its = &p->trial[r->trial].on[DQ_PLAN_UNSEEN].sums;
    double *x = dq_block_new((size_t)own->n, sizeof *x, err);
    for (int64_t i = 0; x && i < own->n; i++) x[i] = own->kld[i] - its->kld[i];
    if (x) dq_plan_part_mean(&r->difference, x, own->ids, own->n, err);
    r->interval = dq_mean_interval(r->difference);
    dq_block_free(x);
    return err->code;
}

static dq_status add_rival(job *j, int bits, dq_err *err)
{
    dq_plan *p = j->p;
    dq_plan_rival *r = &p->rival[p->n_rivals];
    if (bits == 0 || p->n_rivals == 2) return DQ_OK;
    DQ_TRY(try_uniform(&r->trial, j, bits, err));
    if (r->trial == p->chosen || (p->n_rivals == 1 && r->trial == p->rival[0].trial)) return DQ_OK;
    p->n_rivals++;
    return compare(p, r, err);
}

/* The nearest uniform widths on both sides. One that a budget of size has room for goes before a mix that is worse. */
static dq_status beside_uniform(job *j, dq_err *err)
{
    dq_plan *p = j->p;
    const double cost = dq_plan_alloc_cost(&p->curve, p->trial[p->chosen].choice);
    const double room = is_quality(p) ? cost : p->capacity;
    DQ_TRY(add_rival(j, uniform_near(j, room, true), err));
    DQ_TRY(add_rival(j, uniform_near(j, cost, false), err));
    if (is_quality(p)) return DQ_OK;
    for (int i = 0; i < p->n_rivals && !p->fell_back; i++) {
        const dq_plan_rival *r = &p->rival[i];
        if ((double)p->trial[r->trial].packed_bytes > room || !(r->interval.low > 0)) continue;
        p->chosen = r->trial;
        p->fell_back = true;
    }
    return DQ_OK;
}

static dq_status run_job(job *j, dq_err *err)
{
    dq_plan *p = j->p;
    j->choice = dq_alloc(p->arena, (size_t)p->n_tensors, sizeof *j->choice, err);
    if (!j->choice) return err->code;
    DQ_TRY(dq_plan_state_begin(p, err));
    stage(p, "the model before rounding");
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++)
        DQ_TRY(dq_plan_part_new(&j->parts.part[i], &p->text[i], p->model, p->set.backend,
                                p->set.out, err));
    DQ_TRY(probe(j, err));
    DQ_TRY(is_quality(p) ? choose_by_quality(j, err) : choose_by_size(j, err));
    DQ_TRY(beside_uniform(j, err));
    if (!is_quality(p)) look(p, p->chosen);
    return DQ_OK;
}

dq_status dq_plan_run(dq_plan *p, dq_err *err)
{
    job j = {.p = p};
    for (int i = 0; i < DQ_PLAN_TEXTS; i++) j.parts.part[i].act.file.fd = -1;
    run_job(&j, err);
    for (int i = 0; i < DQ_PLAN_TEXTS; i++) dq_plan_part_end(&j.parts.part[i]);
    if (err->code != DQ_STOPPED || !p->state) return err->code;
    *err = (dq_err){0};
    return dq_fail_with(err, DQ_STOPPED, (dq_remedy){.code = DQ_REMEDY_RESUME},
                        "interrupted; %s is kept.", p->state->path);
}
