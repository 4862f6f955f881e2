/* plan_memory: see plan_memory.h. The passes of the two texts that are measured live all the time; beside them a calibrated
 * run, in the sensitivities with the Hessians of all four kinds of inputs and a head's values, or the embedding as values
 * and codes; and the logits that are compared.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_memory.h"

#include "base/os.h"
#include "calibrate/calibrate_memory.h"
#include "calibrate/hessian.h"
#include "plan/weights/plan_trial.h"

/* Log-probabilities of a text and, while it is measured, numbers of its rows and of a chunk's. */
static int64_t numbers_bytes(const dq_calib_text *t, int64_t rows)
{
    return (2 * rows + 3 * t->n_ids) * (int64_t)sizeof(double);
}

static int64_t parts_bytes(const dq_plan_weights *p)
{
    int64_t n = 0;
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) {
        const int64_t rows = dq_calib_pass_rows(&p->text[i]);
        n += dq_calib_pass_bytes(p->model, rows) + numbers_bytes(&p->text[i], rows);
    }
    const int64_t rows = dq_calib_pass_rows(&p->probe_text);
    return n + dq_calib_pass_bytes(p->model, rows) + numbers_bytes(&p->probe_text, rows);
}

/* Of four Hessians but for the largest, which a calibrated run has. */
static int64_t hessians_bytes(const dq_model *m, int64_t rows)
{
    int64_t n = -dq_hessian_bytes(dq_calib_pass_widest(m), rows);
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++)
        n += dq_hessian_bytes(dq_plan_pass_width(m, (dq_plan_product)i), rows);
    return n;
}

/* Values of an end, codes, and both packed: the embedding's, when nothing else is there yet, or a head's. */
static int64_t end_bytes(const dq_plan_weights *p, dq_plan_slot slot)
{
    for (int64_t i = 0; i < p->n_tensors; i++) {
        const dq_plan_tensor *t = &p->tensor[i];
        if (t->slot == slot)
            return t->rows * t->cols * (int64_t)(sizeof(float) + 1) + 2 * t->bytes[t->n - 1];
    }
    return 0;
}

/* Of whichever text is measured with more rows. */
static int64_t logits_bytes(const dq_plan_weights *p)
{
    const dq_backend *b = p->set.backend;
    int64_t rows = 0;
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) {
        const int64_t n = dq_calib_pass_rows(&p->text[i]);
        rows = n > rows ? n : rows;
    }
    return b->ops->logit_bytes ? b->ops->logit_bytes(rows, p->model->vocab) : 0;
}

dq_status dq_plan_memory(int64_t *out, const dq_plan_weights *p, dq_err *err)
{
    dq_quantize_settings set = dq_plan_weights_uniform(p, p->set.bits[p->set.n_bits - 1]);
    const dq_calibrate_settings how = dq_plan_trial_calibrate(p, NULL);
    dq_calibrate *c = NULL;
    dq_quantizer *q = NULL;
    if (dq_calibrate_new(&c, &how, err) == DQ_OK) {
        set.method = dq_calibrate_method(c);
        if (dq_quantize_open(&q, p->set.model, &set, err) == DQ_OK) {
            const bool tied = p->model->tied;
            const int64_t run =
                dq_calibrate_memory(c, q) +
                hessians_bytes(p->model, dq_calib_pass_rows(&p->text[DQ_PLAN_CALIB])) +
                end_bytes(p, tied ? DQ_PLAN_EMBED : DQ_PLAN_HEAD);
            const int64_t embed = tied ? 0 : end_bytes(p, DQ_PLAN_EMBED);
            *out = parts_bytes(p) + logits_bytes(p) + (run > embed ? run : embed);
        }
    }
    dq_quantize_close(q);
    dq_calibrate_free(c);
    return err->code;
}

dq_status dq_plan_memory_check(const dq_plan_weights *p, dq_err *err)
{
    const double mib = 1024.0 * 1024.0;
    const int64_t have = dq_os_memory_bytes();
    int64_t want;
    DQ_TRY(dq_plan_memory(&want, p, err));
    if (have <= 0 || want <= have) return DQ_OK;
    const char *less = p->set.rule->aligns ? ". gptq takes less than align" : "";
    return dq_fail(err, DQ_RESOURCE,
                   "%s: not enough memory to plan (expected about %.1f MiB, this process can have "
                   "%.1f MiB)%s.",
                   p->set.model, (double)want / mib, (double)have / mib, less);
}
