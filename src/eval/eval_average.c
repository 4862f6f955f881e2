/* eval_average: see eval_average.h. Rows go together that differ in their source alone. Squares are summed for the error
 * and for each end of the interval apart.
 * SPDX-License-Identifier: MIT */
#include "eval/eval_average.h"

#include "kv/kv.h"

#include <math.h>

static bool goes_with(const dq_eval_row *a, const dq_eval_row *b)
{
    return b->shown && b->model == a->model && dq_logit_same(a->logit, b->logit) &&
           dq_math_same(a->math, b->math) && dq_kv_spec_same(&a->kv, &b->kv);
}

int dq_eval_average_rows(int *rows, const dq_eval *e, int row)
{
    const dq_eval_row *first = &e->row[row];
    const dq_eval_kind *kind = dq_eval_source_of(e, first)->kind;
    int n = 0;
    if (!first->shown || !kind->averaged) return 0;
    for (int s = 0; s < e->n_sources; s++) {
        int found = -1;
        if (e->source[s].kind != kind) continue;
        for (int i = 0; i < e->n_rows && found < 0; i++) {
            if (dq_eval_source_of(e, &e->row[i]) == &e->source[s] && goes_with(first, &e->row[i]))
                found = i;
        }
        if (found < 0 || (n == 0 && found != row)) return 0;
        rows[n++] = found;
    }
    return n > 1 ? n : 0;
}

dq_eval_average dq_eval_average_of(const dq_mean *task, const dq_interval *interval, int n)
{
    dq_eval_average o = {.interval = dq_interval_none};
    double errors = 0, below = 0, above = 0;
    for (int i = 0; i < n; i++) {
        const double down = task[i].value - interval[i].low, up = interval[i].high - task[i].value;
        o.mean.value += task[i].value / n;
        o.mean.clusters += task[i].clusters;
        errors += task[i].std_err * task[i].std_err;
        below += down * down;
        above += up * up;
    }
    o.mean.std_err = sqrt(errors) / n;
    if (isnan(below) || isnan(above)) return o;
    o.interval.low = o.mean.value - sqrt(below) / n;
    o.interval.high = o.mean.value + sqrt(above) / n;
    return o;
}
