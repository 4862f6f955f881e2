/* calib_run: see calib_run.h. Calibration runs on the CPU, whose f32 is the definition of right.
 * SPDX-License-Identifier: MIT */
#include "settings/calib_run.h"

#include "base/os.h"
#include "calibrate/calibrate_memory.h"
#include "record/record.h"
#include "settings/input.h"
#include "tasks/repeats.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const *dq_calib_run_method_names(dq_calib_run *c)
{
    c->method_name[0] = "nearest";
    for (int i = 0; i < DQ_CALIBRATE_RULES; i++) c->method_name[i + 1] = dq_calibrate_rules[i].name;
    return c->method_name;
}

/* The rule of a name; NULL: rounding to nearest, which has none. */
static const dq_calibrate_rule *rule_named(const char *name)
{
    for (int i = 0; i < DQ_CALIBRATE_RULES; i++) {
        if (strcmp(dq_calibrate_rules[i].name, name) == 0) return &dq_calibrate_rules[i];
    }
    return NULL;
}

bool dq_calib_run_wanted(const dq_calib_run *c)
{
    return strcmp(c->method, "nearest") != 0;
}

/* A recipe's method without its text; a plan knows which one it was. */
static dq_status recipe_text(const dq_quantize_settings *set, dq_err *err)
{
    const json_t *calib = json_object_get(set->plan, "calib");
    const char *sha = json_string_value(json_object_get(calib, "sha256")),
               *file = json_string_value(json_object_get(calib, "file"));
    dq_fail(err, DQ_USAGE, "%s: its method %s needs a text", set->file.path, set->method_name);
    if (sha)
        dq_fail_more(err, dq_remedy_none, ", that of the plan is %s with SHA-256 %.12s...",
                     file ? file : "a file", sha);
    return dq_fail_more(err, dq_remedy_none,
                        ". Add --calib FILE, or --method nearest to go without.");
}

dq_status dq_calib_run_check(dq_calib_run *c, const dq_quantize_settings *set, dq_err *err)
{
    const char *left = c->tokens ? "calib-tokens" : c->ctx ? "calib-ctx" : NULL;
    const bool nearest = c->requested.text; /* said, where it is that */
    c->method = c->requested.text  ? c->requested.text
                : set->method_name ? set->method_name
                : c->file          ? "align"
                                   : "nearest";
    if (dq_options_word(c->method, "method", dq_calib_run_method_names(c), DQ_CALIB_RUN_METHODS,
                        err) < 0)
        return err->code;
    if (dq_calib_run_wanted(c) && !c->file && c->method == set->file.method_name)
        return recipe_text(set, err);
    if (dq_calib_run_wanted(c) && !c->file)
        return dq_fail(err, DQ_USAGE,
                       "--method %s needs a text: --calib FILE. Without one, leave out --method.",
                       c->method);
    if (!dq_calib_run_wanted(c) && c->file)
        return dq_fail(err, DQ_USAGE,
                       "--calib: --method nearest reads no text. Use --method align, or leave out "
                       "--calib.");
    if (!dq_calib_run_wanted(c) && left)
        return dq_fail(err, DQ_USAGE,
                       "--%s: there is no text to calibrate with. Add --calib FILE%s", left,
                       nearest ? " and leave out --method nearest." : ".");
    return DQ_OK;
}

/* What a planned recipe says about its text: the part that it was measured with, so that the codes are those of the plan.
 * Options go before it. */
static void take_plan(dq_calibrate_settings *s, const json_t *plan)
{
    const json_t *calib = json_object_get(plan, "calib"); /* as it was checked with the recipe */
    if (!calib) return;
    s->sha256 = json_string_value(json_object_get(calib, "sha256"));
    s->part = dq_calib_text_part(json_object_get(calib, "quarters"));
    if (!s->tokens) dq_json_whole(&s->tokens, json_object_get(calib, "tokens"));
    if (!s->ctx) dq_json_whole(&s->ctx, json_object_get(calib, "ctx"));
}

dq_status dq_calib_run_begin(dq_calib_run *c, dq_quantize_settings *set, const char *out,
                             int64_t threads, dq_err *err)
{
    set->method_name = NULL; /* the method itself says it */
    if (!dq_calib_run_wanted(c)) return DQ_OK;
    DQ_TRY(dq_backend_open(&c->backend, "cpu", (int)threads, err));
    dq_calibrate_settings s = {.rule = rule_named(c->method),
                               .path = c->file,
                               .tokens = c->tokens,
                               .ctx = c->ctx,
                               .backend = c->backend,
                               .out = out};
    take_plan(&s, set->plan);
    DQ_TRY(dq_calibrate_new(&c->calibrate, &s, err));
    set->method = dq_calibrate_method(c->calibrate);
    return DQ_OK;
}

void dq_calib_run_end(dq_calib_run *c)
{
    dq_calibrate_free(c->calibrate);
    dq_backend_close(c->backend);
    c->calibrate = NULL;
    c->backend = NULL;
}

void dq_calib_run_warn_repeats(const dq_calib_text *t, const char *file, const char *part,
                               dq_logger *logger)
{
    if (2 * t->n_new < t->n_places)
        dq_logger_warn(logger,
                       "%s: repeats itself: of the %lld places of the %s text at which %d tokens "
                       "begin, %lld begin some that are not there before, so it says as little as "
                       "%lld tokens do. Give text without copies",
                       file, (long long)t->n_places, part, DQ_REPEATS_IDS, (long long)t->n_new,
                       (long long)t->n_new);
}

void dq_calib_run_warn_form(const dq_calib_text *t, const char *file, dq_logger *logger)
{
    if (t->n_bad)
        dq_logger_warn(logger,
                       "%s: not UTF-8: %lld ill-formed piece%s%s became U+FFFD, the first at byte "
                       "%lld",
                       file, (long long)t->n_bad, t->n_bad == 1 ? "" : "s",
                       t->bytes_read < t->bytes ? " in what was read" : "",
                       (long long)t->first_bad);
    if (t->json_lines) dq_input_warn_lines(file, logger);
}

void dq_calib_run_warn(const dq_calib_text *t, const char *file, const dq_calibrate_rule *rule,
                       int64_t inputs, dq_logger *logger)
{
    const int64_t enough = (int64_t)ceil(DQ_CALIBRATE_TOKENS_EACH * (double)inputs);
    dq_calib_run_warn_form(t, file, logger);
    if (t->n_ids < t->requested)
        dq_logger_warn(logger, "%s: gives %lld token%s in %lld sequence%s, %lld were asked for",
                       file, (long long)t->n_ids, t->n_ids == 1 ? "" : "s", (long long)t->n_seq,
                       t->n_seq == 1 ? "" : "s", (long long)t->requested);
    dq_calib_run_warn_repeats(t, file, "calibration", logger);
    if (t->n_ids < enough)
        dq_logger_warn(logger,
                       "%s: %lld %s few for --method %s: with fewer than %g for each of the %lld "
                       "inputs of the widest product, %lld, it may do worse than rounding to "
                       "nearest without a text. Give more text",
                       file, (long long)t->n_ids, t->n_ids == 1 ? "token is" : "tokens are",
                       rule->name, DQ_CALIBRATE_TOKENS_EACH, (long long)inputs, (long long)enough);
}

dq_status dq_calib_run_announce(const dq_calib_run *c, const dq_quantize_info *q, dq_logger *logger,
                                dq_err *err)
{
    if (!c->calibrate) return DQ_OK;
    if (q->n_fed == 0)
        return dq_fail(err, DQ_USAGE,
                       "--calib: no tensor is packed whose codes a text could choose (projections, "
                       "and a head). Leave out --calib and use --method nearest.");
    const dq_calibrate_info *i = dq_calibrate_result(c->calibrate);
    dq_calib_run_warn(i->text, c->file, rule_named(c->method), i->inputs, logger);
    return DQ_OK;
}

dq_status dq_calib_run_memory(const dq_calib_run *c, const dq_quantizer *q, dq_err *err)
{
    return c->calibrate ? dq_calibrate_memory_check(c->calibrate, q, err) : DQ_OK;
}

/* How much of them tokens that they were not found from have left (shrinkage.h). */
static void report_corrections(const dq_calibrate_info *i, dq_logger *logger)
{
    const double little = 0.25, share = i->trust / (double)i->n_corrected;
    if (share < little)
        dq_logger_warn(logger,
                       "%.0f %% is left of what makes up for rounding before it: the rest did not "
                       "hold on tokens that it was not found from. More text would save more",
                       100 * share);
    else
        dq_logger_note(logger,
                       "%.0f %% is left of what makes up for rounding before it: so much holds on "
                       "tokens that it was not found from",
                       100 * share);
}

void dq_calib_run_report(const dq_calib_run *c, dq_logger *logger)
{
    if (!c->calibrate) return;
    const dq_calibrate_info *i = dq_calibrate_result(c->calibrate);
    if (i->n_damped)
        dq_logger_warn(logger,
                       "inputs of %lld product%s are all but dependent: up to %g of the mean "
                       "diagonal was added to their Hessians, %s is the rule; the first is %s",
                       (long long)i->n_damped, i->n_damped == 1 ? "" : "s", i->damped_share,
                       DQ_CALIBRATE_DAMPING, i->damped);
    if (i->n_dead)
        dq_logger_note(logger, "%lld input%s of products %s 0 for every token",
                       (long long)i->n_dead, i->n_dead == 1 ? "" : "s",
                       i->n_dead == 1 ? "is" : "are");
    if (i->n_kept)
        dq_logger_warn(logger,
                       "%lld row%s those of the source, rounded as by --method gptq: %s "
                       "corrected scales do not fit; the first is of %s. --scale-dtype f32 has "
                       "room for all but infinite ones",
                       (long long)i->n_kept, i->n_kept == 1 ? " is" : "s are",
                       i->n_kept == 1 ? "its" : "their", i->kept);
    if (i->n_corrected) report_corrections(i, logger);
    for (int p = 0; p < DQ_CALIBRATE_PARTS; p++) {
        const double gflop = i->flop[p] / 1e9;
        if (gflop > 0)
            dq_logger_note(logger, "%-9s %9.2f s, %.1f GFLOP/s", dq_calibrate_part_name[p],
                           i->seconds[p], i->seconds[p] > 0 ? gflop / i->seconds[p] : 0);
        else
            dq_logger_note(logger, "%-9s %9.2f s", dq_calibrate_part_name[p], i->seconds[p]);
    }
}

void dq_calib_run_json(const dq_calib_run *c, const dq_quantizer *q, json_t *result)
{
    if (!c->calibrate) return;
    const dq_calibrate_info *i = dq_calibrate_result(c->calibrate);
    json_t *o = json_object(), *parts = json_array();
    json_object_set_new(o, "tokens_found", json_integer(i->text->found));
    json_object_set_new(o, "tokens_asked", json_integer(i->text->requested));
    json_object_set_new(o, "text_bytes", json_integer(i->text->bytes));
    json_object_set_new(o, "text_bytes_read", json_integer(i->text->bytes_read));
    json_object_set_new(o, "scratch_bytes", json_integer(i->scratch_bytes));
    json_object_set_new(o, "memory_bytes", json_integer(dq_calibrate_memory(c->calibrate, q)));
    json_object_set_new(o, "peak_bytes", json_integer(dq_os_peak_bytes()));
    json_object_set_new(o, "inputs_always_zero", json_integer(i->n_dead));
    json_object_set_new(o, "rows_not_corrected", json_integer(i->n_kept));
    json_object_set_new(o, "more_damping", json_integer(i->n_damped));
    if (i->n_corrected)
        json_object_set_new(o, "corrections_kept",
                            dq_document_real(i->trust / (double)i->n_corrected));
    for (int p = 0; p < DQ_CALIBRATE_PARTS; p++) {
        json_t *part = json_object();
        json_object_set_new(part, "part", json_string(dq_calibrate_part_name[p]));
        json_object_set_new(part, "seconds", dq_document_real(i->seconds[p]));
        json_object_set_new(part, "flop", dq_document_real(i->flop[p]));
        json_array_append_new(parts, part);
    }
    json_object_set_new(o, "parts", parts);
    json_object_set_new(result, "calibration", o);
}
