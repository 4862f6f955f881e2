/* bench_run: see bench_run.h. Words are read before the model is opened.
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_run.h"

#include "cmds/cli/kv_report.h"
#include "cmds/cli/progress.h"
#include "settings/cache_options.h"

#include <stdio.h>

const dq_bench dq_bench_defaults = {.device = "auto", .math_word = {"f32", DQ_NUM_F32}, .runs = 5};

dq_status dq_bench_list_read(dq_bench_list *out, const char *text, const char *option, int max,
                             dq_err *err)
{
    return dq_options_ints(out->at, &out->n, DQ_BENCH_LIST, text, option, 1, max, err);
}

static dq_status read_logits(dq_bench *x, dq_err *err)
{
    int width[8], n_widths = 0;
    dq_words *of = &x->logit_granularity;
    if (of->text && !x->logit_bits)
        return dq_fail(err, DQ_USAGE,
                       "--logit-granularity has nothing to act on. Add --logit-bits N[,N...].");
    if (x->logit_bits)
        DQ_TRY(dq_options_bits(width, &n_widths, 8, x->logit_bits, "logit-bits", err));
    if (of->n == 0) of->at[of->n++] = DQ_GRANULARITY_TENSOR;
    x->logit[x->n_logits++] = dq_logit_plain;
    for (int i = 0; i < n_widths; i++) {
        for (int g = 0; width[i] < 16 && g < of->n; g++)
            x->logit[x->n_logits++] = (dq_logit_spec){width[i], (dq_granularity)of->at[g]};
    }
    return DQ_OK;
}

static dq_status choose_cache(dq_bench *x, dq_err *err)
{
    dq_kv_config kv = dq_kv_config_plain;
    kv.quant = DQ_KV_PER_TOKEN;
    if (x->math.kv == DQ_NUM_INT8) {
        kv.k_bits = kv.v_bits = 8;
        kv.dense = DQ_KV_DENSE_AUTO;
    }
    return dq_kv_options_fit(&x->kv, &kv, x->model, x->math, x->backend, &x->logger, err);
}

dq_status dq_bench_open(dq_bench *x, const char *command, const char *path, dq_err *err)
{
    const dq_num num = (dq_num)x->math_word.at;
    x->math = (dq_math){num, num, num, num};
    DQ_TRY(read_logits(x, err));
    DQ_TRY(dq_progress_listen(&x->logger, command, err));
    DQ_TRY(dq_model_open(&x->model, path, err));
    DQ_TRY(dq_backend_open(&x->backend, x->device, (int)x->threads, err));
    return choose_cache(x, err);
}

dq_status dq_bench_open_runner(dq_bench *x, dq_err *err)
{
    DQ_TRY(dq_runner_new(&x->runner, x->model, x->backend, &x->kv, err));
    dq_kv_report_note_routes(&x->logger, x->backend, x->model, x->math, &x->kv);
    return DQ_OK;
}

void dq_bench_close(dq_bench *x)
{
    dq_runner_free(x->runner);
    dq_backend_close(x->backend);
    dq_model_close(x->model);
    dq_logger_end(&x->logger);
}

const char *dq_bench_logit_name(char *out, dq_logit_spec s)
{
    snprintf(out, DQ_BENCH_LOGIT_NAME, dq_logit_rounds(s) ? "%d %s" : "%d", s.bits,
             dq_granularity_name[s.granularity]);
    return out;
}
