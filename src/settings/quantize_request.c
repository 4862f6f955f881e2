/* quantize_request: options that say the same twice are refused before a model is open, which may take long to read.
 * SPDX-License-Identifier: MIT */
#include "settings/quantize_request.h"

#include "base/file.h"
#include "base/os.h"
#include "base/ranks.h"
#include "model/model.h"
#include "record/record.h"
#include "record/version.h"
#include "settings/kv_sweep.h"

#include <stdio.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

void dq_quantize_request_begin(dq_quantize_request *r, dq_logger *logger)
{
    *r = (dq_quantize_request){.logger = logger, .logit_bits = 16};
    dq_kv_options_begin(&r->kv, "of the policy random (default 1)");
}

void dq_quantize_request_end(dq_quantize_request *r)
{
    dq_calib_run_end(&r->calib);
    dq_size_options_end(&r->size);
    dq_recipe_options_end(&r->recipe);
}

/* What is wrong for any model is wrong here; what is wrong for this one is found when it is open. */
static dq_status kv_settings(dq_quantize_request *r, dq_err *err)
{
    dq_kv_config *list;
    dq_kv_spec any;
    int n;
    const dq_kv_config asked = r->set.kv; /* of the recipe */
    DQ_TRY(dq_kv_options_read(&r->kv, false, err));
    if (dq_kv_sweep_list(&list, &n, &r->kv, &asked, NULL, err) == DQ_OK &&
        dq_kv_options_check(&r->kv, err) == DQ_OK) {
        dq_kv_config_spec(&any, &list[0], DQ_NUM_F32, DQ_KV_ANY_DIM, DQ_KV_ANY_LAYERS,
                          DQ_KV_ANY_MAPS, err);
        if (err->code == DQ_USAGE) dq_in(err, "--kv-bits: ");
        /* on any maps */
        any.evict.budget = dq_kv_budget_for(any.evict.budget, any.evict.policy, DQ_KV_ANY_MAPS);
        if (err->code == DQ_OK) dq_evict_check(&any, err);
    }
    if (err->code == DQ_OK) r->set.kv = list[0];
    if (err->code == DQ_OK && r->kv.size_text) {
        r->set.kv_size = dq_kv_sweep_size(&r->kv, 0);
        if (!r->set.kv_size.context)
            dq_fail(err, DQ_USAGE,
                    "--kv-size %s: for contexts of how many tokens? Say it: --kv-size %s@2048.",
                    r->kv.size_text, r->kv.size_text);
    }
    r->set.gates = r->kv.gates;
    dq_block_free(list);
    return err->code;
}

dq_status dq_quantize_request_read(dq_quantize_request *r, dq_err *err)
{
    DQ_TRY(dq_recipe_options_read(&r->set, &r->recipe, err));
    DQ_TRY(dq_size_options_read(&r->size, &r->set, &r->recipe, err));
    DQ_TRY(dq_calib_run_check(&r->calib, &r->set, err));
    dq_recipe_options_scale(&r->set, &r->recipe, dq_calib_run_wanted(&r->calib));
    if (r->recipe.scale.text && r->set.bits != 16 &&
        dq_quantize_mode(r->set.mode, r->set.bits, true) != r->set.mode)
        return dq_fail(err, DQ_USAGE, "--scale %s: has no codes of %d bits. Use search.",
                       dq_quant_modes[r->set.mode].name, r->set.bits);
    DQ_TRY(kv_settings(r, err));
    r->set.logit = (dq_logit_spec){.bits = (int)r->logit_bits,
                                   .granularity = (dq_granularity)r->granularity.at};
    r->set.dq_version = DQ_VERSION;
    return DQ_OK;
}

/* Bits of the forward pass, and with them codes, are the same for the same of each of these. */
static void warn_other_weights(dq_quantize_request *r)
{
    const char *planned = json_string_value(json_object_get(r->set.plan, "arithmetic"));
    char here[DQ_OS_ARITHMETIC];
    dq_os_arithmetic(here);
    const bool other = planned && strcmp(planned, here) != 0;
    dq_logger_warn(r->logger,
                   "%s: other weights than those that the recipe's plan measured, so what it "
                   "promises was not measured. They are the same with the plan's options, text, "
                   "program and arithmetic%s%.160s%s%s",
                   r->out, other ? " (planned with " : "", other ? planned : "",
                   other ? "; here: " : "", other ? here : "");
}

/* Whether the container has the weights that its plan measured. */
static dq_status check_plan(dq_quantize_request *r, dq_err *err)
{
    char sha[65];
    dq_container *c;
    r->planned = json_string_value(json_object_get(r->set.plan, "weights_sha256"));
    if (!r->planned) return DQ_OK;
    DQ_TRY(dq_container_open(&c, r->out, err));
    if (dq_container_weights_sha256(sha, c, err) == DQ_OK) {
        r->as_planned = strcmp(sha, r->planned) == 0;
        if (!r->as_planned) warn_other_weights(r);
    }
    dq_container_close(c);
    return err->code;
}

static void warn_nothing_left(dq_quantize_request *r)
{
    char partial[4096];
    int n = snprintf(partial, sizeof partial, "%s.partial", r->out);
    if (r->resume && n < (int)sizeof partial && !dq_file_exists(partial) && !dq_file_exists(r->out))
        dq_logger_warn(r->logger,
                       "%s: is not here, so there is nothing to resume; everything is written",
                       partial);
}

static void warn_of_rules(dq_quantize_request *r, const dq_quantize_info *i)
{
    dq_recipe_options_unused(&r->recipe, &i->used, r->logger);
    if (r->set.bits != 16 && i->n_packed == 0)
        dq_logger_warn(r->logger, "no tensor is packed: %s all of them dense",
                       r->set.skip ? "--skip leaves" : "rules leave");
}

/* Where another group would leave none short; else the summary says it. */
static void warn_of_groups(dq_quantize_request *r, const dq_quantize_info *i)
{
    const dq_quantize_short *s = &i->short_groups;
    if (s->n == 0 || !s->whole) return;
    dq_logger_warn(r->logger,
                   "the last group of %lld of %lld packed tensors is short, that of %s first (%lld "
                   "columns in groups of %lld): dq reads them, but dq export --format "
                   "compressed-tensors writes them as values. With --group %lld none is short%s",
                   (long long)s->n, (long long)i->n_packed, s->name, (long long)s->cols,
                   (long long)s->group, (long long)s->whole,
                   s->divides ? "" : ": each row of fewer columns is one group");
}

/* At 3.5 bits SmolLM2-135M loses 1.1 nats a token without a text, .43 with 8 kB of one (results/real). */
static void warn_of_no_text(dq_quantize_request *r, const dq_quantize_info *i)
{
    const double little = 4;
    if (dq_calib_run_wanted(&r->calib) || !i->n_packed || i->bits_per_weight >= little) return;
    dq_logger_warn(r->logger,
                   "%.2f bits per weight without a calibration text: the model may write fluent "
                   "nonsense. Name a text of the kind it will read, --calib FILE (8 kB help much), "
                   "or take --size 4.5",
                   i->bits_per_weight);
}

static void use_threads(const dq_quantize_request *r)
{
#ifdef _OPENMP
    /* One more than processors: one thread hashes the source from end to end, and threads that
     * find nothing to do sleep at once instead of spinning. */
    const bool hashes_beside = !dq_calib_run_wanted(&r->calib) && dq_ranks_count() == 1;
    const int usual = dq_os_cpu_count("") + hashes_beside;
    omp_set_num_threads(r->threads > 0 ? (int)r->threads : usual);
#else
    (void)r;
#endif
}

dq_status dq_quantize_request_seconds(double *seconds, dq_quantize_request *r, dq_quantizer *q,
                                      dq_err *err)
{
    const double worth = 5; /* a second of timing */
    *seconds = dq_quantize_expected(q);
    if (*seconds < worth) return DQ_OK;
    DQ_TRY(dq_quantize_measure(q, err));
    if (r->calib.calibrate) DQ_TRY(dq_calibrate_measure(r->calib.calibrate, q, err));
    *seconds = dq_quantize_expected(q);
    return DQ_OK;
}

dq_status dq_quantize_request_open(dq_quantizer **out, dq_quantize_request *r, const dq_args *args,
                                   dq_err *err)
{
    /* what exists is looked at with what an interrupted run left: dq_quantize_check_output */
    const dq_output output = {"-o", r->out, DQ_OUTPUT_HDF5, dq_quantize_beside};
    const char *model = args->item[0];
    *out = NULL;
    use_threads(r);
    DQ_TRY(dq_output_guard_check(&output, 1, args->input, args->n_inputs, true, err));
    DQ_TRY(dq_calib_run_begin(&r->calib, &r->set, r->out, r->threads, err));
    DQ_TRY(dq_size_options_choose(&r->size, &r->set, model, err));
    DQ_TRY(dq_quantize_open(out, model, &r->set, err));
    const dq_quantize_info *i = dq_quantize_result(*out);
    if (dq_calib_run_announce(&r->calib, i, r->logger, err) == DQ_OK) {
        warn_of_rules(r, i);
        warn_of_groups(r, i);
        warn_of_no_text(r, i);
        if (r->out) dq_quantize_check_output(*out, r->out, r->force, r->resume, err);
    }
    if (err->code == DQ_OK) return DQ_OK;
    dq_quantize_close(*out);
    *out = NULL;
    return err->code;
}

dq_status dq_quantize_request_check(dq_quantize_request *r, dq_quantizer *q, dq_err *err)
{
    const dq_quantize_info *i = dq_quantize_result(q);
    DQ_TRY(dq_ranks_agree("program", dq_commit_version(), err));
    DQ_TRY(dq_calib_run_memory(&r->calib, q, err));
    warn_nothing_left(r);
    if (i->source_types)
        dq_logger_warn(r->logger,
                       "%s: %s: what these types have lost stays lost, and rounding adds to it",
                       i->source, i->source_types);
    return DQ_OK;
}

dq_status dq_quantize_request_write(dq_quantize_request *r, dq_quantizer *q,
                                    const dq_quantize_progress *p, dq_err *err)
{
    const dq_quantize_info *i = dq_quantize_result(q);
    dq_quantize_write(q, r->out, r->force, r->resume, p, err);
    if (err->code == DQ_OK) dq_calib_run_report(&r->calib, r->logger);
    if (err->code == DQ_OK) check_plan(r, err);
    if (i->n_wide)
        dq_logger_warn(r->logger, "%lld tensor%s scales that f16 cannot hold; %s f32",
                       (long long)i->n_wide, i->n_wide == 1 ? " has" : "s have",
                       i->n_wide == 1 ? "its are" : "theirs are");
    return err->code;
}
