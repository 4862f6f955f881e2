/* plan_pace: see plan_pace.h. A probe of few tensors, with the arithmetic that all probes are counted by.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_pace.h"

#include "base/os.h"
#include "base/ranks.h"

static dq_status ignore(void *arg, int64_t tensor, dq_err *err)
{
    (void)arg;
    (void)tensor;
    return err->code;
}

/* The first sequences: one, or a chunk for each of several ranks. */
static dq_calib_text first_of(const dq_calib_text *t)
{
    const int64_t others = DQ_CALIB_PASS_ROWS * ((int64_t)dq_ranks_count() - 1);
    dq_calib_text some = *t;
    some.n_seq = some.n_clusters = 0;
    while (some.n_seq < t->n_seq && (some.n_seq == 0 || t->cu[some.n_seq] <= others)) {
        const int64_t next = t->cluster[some.n_seq++] + 1;
        if (next > some.n_clusters) some.n_clusters = next;
    }
    some.n_ids = t->cu[some.n_seq];
    return some;
}

/* The last layer's tensors, or the ends where no layer has any, each with the option that is measured. */
static int64_t take_last(dq_plan_tensor *out, const dq_plan_weights *p)
{
    int64_t n = 0;
    int last = -1;
    for (int64_t i = 0; i < p->n_tensors; i++) {
        const dq_plan_tensor *t = &p->tensor[i];
        if (t->slot < DQ_PLAN_EMBED && t->layer > last) last = t->layer;
    }
    for (int64_t i = 0; i < p->n_tensors; i++) {
        const dq_plan_tensor *t = &p->tensor[i];
        if (last >= 0 && (t->layer != last || t->slot >= DQ_PLAN_EMBED)) continue;
        out[n] = *t;
        out[n].n = 1;
        out[n].known = false;
        out[n++].bits[0] = t->bits[dq_plan_probe_measured(t)];
    }
    return n;
}

dq_status dq_plan_pace(double *seconds, const dq_plan_weights *p, const char *beside, dq_err *err)
{
    const dq_calib_text text = first_of(&p->text[DQ_PLAN_CALIB]);
    dq_plan_work work = {.step = NULL};
    dq_plan_part part = {.act.file.fd = -1};
    dq_plan_probe probe = {.m = p->model,
                           .rule = p->set.rule,
                           .b = p->set.backend,
                           .beside = beside,
                           .calib = &text,
                           .search = &part,
                           .found = ignore,
                           .work = &work};
    probe.tensor = dq_alloc(p->arena, (size_t)p->n_tensors, sizeof *probe.tensor, err);
    if (!probe.tensor) return err->code;
    probe.n = take_last(probe.tensor, p);
    const double flop = dq_plan_probe_flop(&probe, text.n_ids, text.n_ids) +
                        dq_plan_part_source_flop(p->model, (double)text.n_ids);
    const double before = dq_os_seconds();
    if (dq_plan_part_new(&part, &text, p->model, p->set.backend, beside, false, &work, err) ==
        DQ_OK)
        dq_plan_probe_run(&probe, err);
    *seconds = (dq_os_seconds() - before) / flop;
    dq_plan_part_end(&part);
    return err->code;
}
