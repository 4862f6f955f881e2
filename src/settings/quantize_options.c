/* Defaults, then the file, then options; rules of --bits-map after those of the file.
 * SPDX-License-Identifier: MIT */
#include "settings/quantize_options.h"

#include "record/version.h"
#include "settings/inputs.h"
#include "work/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const dq_recipe_options_dtype_name[DQ_RECIPE_OPTIONS_DTYPES] = {"f16", "f32"};
const char *const dq_recipe_options_group_name[DQ_RECIPE_OPTIONS_GROUPS] = {"row", "tensor"};

const char *const *dq_recipe_options_mode_names(dq_recipe_options *o)
{
    for (int i = 0; i < DQ_QUANT_MODES; i++) o->mode_name[i] = dq_quant_modes[i].name;
    return o->mode_name;
}

/* "absmax, search (what it does) or asym (what it does) (default ...)" */
const char *dq_recipe_options_modes(dq_recipe_options *o, bool calibrated)
{
    const size_t cap = sizeof o->modes;
    size_t n = 0;
    for (int i = 0; i < DQ_QUANT_MODES && n < cap; i++) {
        const dq_scale_mode_row *m = &dq_quant_modes[i];
        const char *between = i == 0 ? "" : i < DQ_QUANT_MODES - 1 ? ", " : " or ";
        n += (size_t)snprintf(o->modes + n, cap - n, "%s%s", between, m->name);
        if (m->about && n < cap) n += (size_t)snprintf(o->modes + n, cap - n, " (%s)", m->about);
    }
    const char *some = calibrated ? "" : "asym at --bits 4 to 6 without --calib, else ";
    if (n < cap)
        snprintf(o->modes + n, cap - n, " (default %s%s)", some, dq_quant_modes[DQ_SEARCH].name);
    return o->modes;
}

/* `why` names the part that is wrong. */
static dq_status bad_map(const char *item, const char *why, dq_err *err)
{
    char modes[128] = "";
    for (int i = 0; i < DQ_QUANT_MODES; i++) {
        const size_t n = strlen(modes);
        snprintf(modes + n, sizeof modes - n, "%s%s", i ? ", " : "", dq_quant_modes[i].name);
    }
    return dq_fail(err, DQ_USAGE,
                   "--bits-map: expected REGEX=N[/GROUP[/SCALE]] with N 2 to 8, or 16, GROUP a "
                   "number of columns, row or tensor, and SCALE one of %s; found \"%s\": %s.",
                   modes, item, why);
}

/* Reads "6/64/search" into the rule. Returns NULL, or what is wrong. */
static const char *read_values(json_t *rule, const char *values)
{
    char word[3][32] = {""};
    int n = 0;
    for (const char *at = values, *end; at; at = end ? end + 1 : NULL) {
        end = strchr(at, '/');
        const size_t len = end ? (size_t)(end - at) : strlen(at);
        if (n == 3) return "there are more than three values";
        if (len == 0 || len >= sizeof word[0]) return "a value is empty or too long";
        memcpy(word[n++], at, len);
    }
    char *stop;
    int64_t group = 0;
    const long bits = strtol(word[0], &stop, 10);
    if (*stop || stop == word[0] || bits < 2 || (bits > 8 && bits != 16))
        return "N is something else";
    if (n > 1 && !dq_quantize_group_parse(&group, word[1])) return "GROUP is something else";
    int mode = 0;
    while (n > 2 && mode < DQ_QUANT_MODES && strcmp(word[2], dq_quant_modes[mode].name) != 0)
        mode++;
    if (mode == DQ_QUANT_MODES) return "SCALE is something else";
    json_object_set_new(rule, "bits", json_integer(bits));
    if (n > 1)
        json_object_set_new(rule, "group", group > 0 ? json_integer(group) : json_string(word[1]));
    if (n > 2) json_object_set_new(rule, "scale", json_string(word[2]));
    return NULL;
}

static dq_status add_rule(json_t *rules, const char *item, dq_err *err)
{
    const char *split = strrchr(item, '=');
    json_t *rule;
    if (!split) return bad_map(item, "there is no =", err);
    if (split == item) return bad_map(item, "there is no REGEX", err);
    json_array_append_new(rules, rule = json_object());
    json_object_set_new(rule, "match", json_stringn(item, (size_t)(split - item)));
    DQ_TRY(dq_json_complete(err));
    if (!json_object_get(rule, "match"))
        return dq_fail(err, DQ_USAGE, "--bits-map: the pattern is not valid UTF-8.");
    const char *why = read_values(rule, split + 1);
    return why ? bad_map(item, why, err) : DQ_OK;
}

dq_status dq_recipe_options_read(dq_quantize_settings *s, dq_recipe_options *o, dq_err *err)
{
    s->bits = 4;
    s->group = DQ_QUANTIZE_GROUP_AUTO;
    s->embed_bits = s->head_bits = DQ_QUANTIZE_BITS_AUTO;
    s->mode = DQ_QUANT_MODES; /* not given: dq_recipe_options_scale */
    s->scale_dtype = DQ_F16;
    s->kv = dq_kv_config_plain;
    char *text;
    size_t len;
    if (o->file) {
        o->arena = dq_arena_new();
        if (!o->arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
        DQ_TRY(dq_file_read_text(&text, &len, o->file, DQ_MAX_DOCUMENT, o->arena, err));
        DQ_TRY(dq_json_parse(&o->json, text, len, o->file, err));
        if (dq_quantize_recipe_read(s, o->json, err) != DQ_OK) return dq_in(err, "%s: ", o->file);
        s->file.path = o->file;
        s->file.skip = s->skip;
        s->file.method_name = s->method_name;
        s->file.rules = json_array_size(s->rules);
    }
    static const dq_dtype dtype[DQ_RECIPE_OPTIONS_DTYPES] = {DQ_F16, DQ_F32};
    if (o->scale.text) s->mode = (dq_scale_mode)o->scale.at;
    if (o->scale_dtype.text) s->scale_dtype = dtype[o->scale_dtype.at];
    if (o->dense_type.text) s->dense_type = (dq_dense_type)o->dense_type.at;
    if (o->group && !dq_quantize_group_parse(&s->group, o->group))
        return dq_fail(
            err, DQ_USAGE,
            "--group: expected a number of columns from 1 to 2147483647, row or tensor; found "
            "\"%s\".",
            o->group);
    if (o->bits) s->bits = (int)o->bits;
    if (o->embed_bits) s->embed_bits = (int)o->embed_bits;
    if (o->head_bits) s->head_bits = (int)o->head_bits;
    if (o->skip) s->skip = o->skip;
    if (o->map.n == 0) return DQ_OK;
    o->rules = json_array();
    if (s->rules) json_array_extend(o->rules, json_object_get(o->json, "rules"));
    for (int i = 0; i < o->map.n; i++) DQ_TRY(add_rule(o->rules, o->map.item[i], err));
    s->rules = o->rules;
    return dq_json_complete(err);
}

void dq_recipe_options_scale(dq_quantize_settings *s, dq_recipe_options *o, bool calibrated)
{
    enum { FROM = 4, TO = 6 };
    if (s->mode != DQ_QUANT_MODES) return;
    o->scale_by_bits = !calibrated;
    s->mode = !calibrated && s->bits >= FROM && s->bits <= TO ? DQ_ASYM : DQ_SEARCH;
}

void dq_recipe_options_end(dq_recipe_options *o)
{
    json_decref(o->rules);
    json_decref(o->json);
    dq_arena_free(o->arena);
}

/* Any option that decides about tensors replaces the usual size. */

/* "small (--size 3.5), balanced (...) or near-lossless (...)" */
const char *dq_size_options_presets(dq_size_options *o)
{
    const size_t cap = sizeof o->presets;
    size_t n = 0;
    for (int i = 0; i < DQ_PLAN_SIZES && n < cap; i++) {
        const dq_plan_size *p = &dq_plan_sizes[i];
        const char *between = i == 0 ? "" : i < DQ_PLAN_SIZES - 1 ? ", " : " or ";
        n += (size_t)snprintf(o->presets + n, cap - n, "%s%s (--size %g)", between, p->name,
                              p->bits);
    }
    return o->presets;
}

const char *const *dq_size_options_preset_names(dq_size_options *o)
{
    for (int i = 0; i < DQ_PLAN_SIZES; i++) o->preset_name[i] = dq_plan_sizes[i].name;
    return o->preset_name;
}

/* A recipe for the cache alone does not count. */
static bool has_weights(const json_t *recipe)
{
    static const char *const keys[] = {"bits",  "embed_bits", "head_bits",
                                       "scale", "rules",      "group"};
    bool any = false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        any = any || json_object_get(recipe, keys[i]);
    return any;
}

/* The first option that decides about tensors; NULL: none. One scale per tensor is for integers. */
static const char *other_option(const dq_recipe_options *r)
{
    const bool tensor = r->group && strcmp(r->group, "tensor") == 0;
    const struct {
        const char *name;
        bool given;
    } of[] = {{"bits", r->bits},
              {"embed-bits", r->embed_bits},
              {"head-bits", r->head_bits},
              {"scale", r->scale.text},
              {"bits-map", r->map.n},
              {"group tensor", tensor},
              {"recipe", has_weights(r->json)}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        if (of[i].given) return of[i].name;
    }
    return NULL;
}

/* Chooses the widths once the method of s is set. */
static dq_status size_options_choose(dq_size_options *o, dq_quantize_settings *s, const char *model,
                                     dq_err *err)
{
    return o->bits > 0 ? dq_plan_size_choose(s, &o->rules, model, o->bits, err) : DQ_OK;
}

/* Calibration runs on the CPU, whose f32 defines the result. */

const char *const *dq_calib_run_method_names(dq_calib_run *c)
{
    c->method_name[0] = "nearest";
    for (int i = 0; i < DQ_CALIBRATE_RULES; i++) c->method_name[i + 1] = dq_calibrate_rules[i].name;
    return c->method_name;
}

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

/* Words of --calib that are no file. */
static const char own_text[] = "self", no_text[] = "none";

/* Chooses the method: the option's, the recipe's, or align with a text. Without one a size, or a
 * method that is asked for, has the model's own text; a recipe's method has not. DQ_USAGE: an
 * unknown method, an unused text, or a missing one. */
static dq_status calib_run_check(dq_calib_run *c, const dq_quantize_settings *set, bool sized,
                                 dq_err *err)
{
    const char *left = c->tokens ? "calib-tokens" : c->ctx ? "calib-ctx" : NULL;
    const bool nearest = c->requested.text; /* said, where it is that */
    const bool asked = c->requested.text ? strcmp(c->requested.text, "nearest") != 0 : sized;
    const bool none = c->file && strcmp(c->file, no_text) == 0;
    c->own = c->file ? strcmp(c->file, own_text) == 0 : asked && !set->method_name;
    if (none) c->file = NULL;
    if (c->own) c->file = own_text;
    c->method = c->requested.text  ? c->requested.text
                : set->method_name ? set->method_name
                : c->file          ? "align"
                                   : "nearest";
    if (dq_options_word(c->method, "method", dq_calib_run_method_names(c), DQ_CALIB_RUN_METHODS,
                        err) < 0)
        return err->code;
    if (dq_calib_run_wanted(c) && !c->file && c->method == set->file.method_name) {
        /* A planned recipe knows the text of its method. */
        const json_t *calib = json_object_get(set->plan, "calib");
        const char *sha = json_string_value(json_object_get(calib, "sha256")),
                   *file = json_string_value(json_object_get(calib, "file"));
        dq_fail(err, DQ_USAGE, "%s: its method %s needs a text", set->file.path, set->method_name);
        if (sha)
            dq_fail_more(err, dq_remedy_none, ", that of the plan is %s with SHA-256 %.12s...",
                         file ? file : "a file", sha);
        return dq_fail_more(
            err, dq_remedy_none,
            ". Add --calib FILE, or --calib self, or --method nearest to go without.");
    }
    if (dq_calib_run_wanted(c) && !c->file)
        return dq_fail(
            err, DQ_USAGE,
            "--method %s needs a text: --calib FILE, or --calib self. Without one, leave "
            "out --method.",
            c->method);
    if (!dq_calib_run_wanted(c) && c->file)
        return dq_fail(err, DQ_USAGE,
                       "--calib: --method nearest reads no text. Use --method align, or leave out "
                       "--calib.");
    if (!dq_calib_run_wanted(c) && left)
        return dq_fail(err, DQ_USAGE,
                       "--%s: there is no text to calibrate with. Add --calib FILE, or --calib "
                       "self%s",
                       left, nearest ? ", and leave out --method nearest." : ".");
    return DQ_OK;
}

/* Sets the method of *set. out NULL: a dry run. */
static dq_status calib_run_begin(dq_calib_run *c, dq_quantize_settings *set, const char *out,
                                 int64_t threads, dq_err *err)
{
    set->method_name = NULL; /* the method itself says it */
    if (!dq_calib_run_wanted(c)) return DQ_OK;
    DQ_TRY(dq_backend_open(&c->backend, "cpu", (int)threads, err));
    dq_calibrate_settings s = {.rule = rule_named(c->method),
                               .path = c->own ? NULL : c->file,
                               .tokens = c->tokens,
                               .ctx = c->ctx,
                               .backend = c->backend,
                               .out = out};
    /* A planned recipe uses the quarters it was measured with, so that the codes are the plan's;
     * options override it. */
    const json_t *calib =
        json_object_get(set->plan, "calib"); /* as it was checked with the recipe */
    if (calib) {
        s.sha256 = json_string_value(json_object_get(calib, "sha256"));
        s.quarters = dq_calib_text_quarters(json_object_get(calib, "quarters"));
        if (!s.tokens) dq_json_whole(&s.tokens, json_object_get(calib, "tokens"));
        if (!s.ctx) dq_json_whole(&s.ctx, json_object_get(calib, "ctx"));
    }
    DQ_TRY(dq_calibrate_new(&c->calibrate, &s, err));
    set->method = &c->calibrate->method;
    return DQ_OK;
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

/* Before the run: reports the text; DQ_USAGE: it would choose no code; DQ_RESOURCE: memory. q was
 * opened with the method. After it: reports what was unusual and, with -v, the time by phase. */
static dq_status calib_run_announce(const dq_calib_run *c, const dq_quantize_info *q,
                                    dq_logger *logger, dq_err *err)
{
    if (!c->calibrate) return DQ_OK;
    if (q->n_fed == 0)
        return dq_fail(err, DQ_USAGE,
                       "--calib: no tensor is packed whose codes a text could choose (projections, "
                       "and a head). Use --calib none, and leave out --method.");
    const dq_calibrate_info *i = &c->calibrate->info;
    dq_calib_run_warn(i->text, c->own ? "--calib self" : c->file, rule_named(c->method), i->inputs,
                      logger);
    return DQ_OK;
}

/* How much of the corrections held-out tokens confirmed (calibrate.h). */
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

static void calib_run_report(const dq_calib_run *c, dq_logger *logger)
{
    if (!c->calibrate) return;
    const dq_calibrate_info *i = &c->calibrate->info;
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
    for (int p = 0; p < DQ_CALIBRATE_PHASES; p++) {
        const double gflop = i->flop[p] / 1e9;
        if (gflop > 0)
            dq_logger_note(logger, "%-9s %9.2f s, %.1f GFLOP/s", dq_calibrate_phase_name[p],
                           i->seconds[p], i->seconds[p] > 0 ? gflop / i->seconds[p] : 0);
        else
            dq_logger_note(logger, "%-9s %9.2f s", dq_calibrate_phase_name[p], i->seconds[p]);
    }
}

void dq_calib_run_rows(dq_row_writer *w, const dq_calib_run *c, const dq_quantizer *q)
{
    const dq_calibrate_info *i = w->live && c->calibrate ? &c->calibrate->info : NULL;
    if (!DQ_BEGIN(w, OBJECT, "calibration", i, "Of a method that reads a text.", .when = DQ_OUT))
        return;
    DQ_PUT(w, "tokens_found", i->text->found, "Tokens of the text.");
    DQ_PUT(w, "tokens_asked", i->text->requested, "Tokens that were asked for.");
    DQ_PUT(w, "text_bytes", i->text->bytes, "Bytes of the text.");
    DQ_PUT(w, "text_bytes_read", i->text->bytes_read, "Of them read.");
    DQ_PUT(w, "scratch_bytes", i->scratch_bytes, "Bytes of files beside the output while it runs.");
    DQ_PUT(w, "memory_bytes", dq_calibrate_memory(c->calibrate, q),
           "Bytes that it expected to need.");
    DQ_PUT(w, "peak_bytes", dq_os_peak_bytes(), "Bytes that the process had at most.");
    DQ_PUT(w, "inputs_always_zero", i->n_dead, "Columns whose input was 0 for all tokens.");
    DQ_PUT(w, "rows_not_corrected", i->n_kept,
           "Rows that kept their values, as a correction did not hold on other tokens.");
    DQ_PUT(w, "more_damping", i->n_damped,
           "Matrices whose Hessian needed more damping than usual.");
    DQ_PUT(w, "corrections_kept", i->n_corrected ? i->trust / (double)i->n_corrected : DQ_NO_REAL,
           "Mean share of the corrections that was kept; missing: none was made.", .when = DQ_OUT);
    DQ_LIST(w, "parts", "Time and work.");
    for (int p = 0; DQ_MORE(w, p, DQ_CALIBRATE_PHASES); p++) {
        DQ_ITEM(w);
        DQ_PUT(w, "part", dq_calibrate_phase_name[p], "Of what.",
               DQ_WORDS(dq_calibrate_phase_name));
        DQ_PUT(w, "seconds", i->seconds[p], "Seconds.", .when = DQ_NULL);
        DQ_PUT(w, "flop", i->flop[p], "Operations.", .when = DQ_NULL);
        dq_row_end(w);
    }
    dq_row_end(w);
    dq_row_end(w);
}

/* Contradicting options are refused before a model is opened, which may take long. */

void dq_quantize_request_begin(dq_quantize_request *r, dq_logger *logger)
{
    *r = (dq_quantize_request){.logger = logger, .logit_bits = 16};
    dq_kv_options_begin(&r->kv, "of the policy random (default 1)");
}

void dq_quantize_request_end(dq_quantize_request *r)
{
    dq_calib_run *c = &r->calib;
    dq_calibrate_free(c->calibrate);
    dq_backend_close(c->backend);
    c->calibrate = NULL;
    c->backend = NULL;
    json_decref(r->size.rules);
    dq_recipe_options_end(&r->recipe);
}

dq_status dq_quantize_request_read(dq_quantize_request *r, dq_err *err)
{
    DQ_TRY(dq_recipe_options_read(&r->set, &r->recipe, err));
    dq_size_options *o = &r->size;
    const char *other = other_option(&r->recipe), *preset = o->preset.text;
    if (preset && o->size > 0)
        return dq_fail(err, DQ_USAGE, "--preset is a --size. Leave out one of them.");
    if (other && (preset || o->size > 0))
        return dq_fail(err, DQ_USAGE, "--%s: chooses widths and codes. Leave out --%s.",
                       preset ? "preset" : "size", other);
    if (!other) {
        o->bits =
            o->size > 0 ? o->size : dq_plan_sizes[preset ? o->preset.at : DQ_PLAN_SIZE_USUAL].bits;
        r->set.mode = DQ_TRELLIS;
    }
    DQ_TRY(calib_run_check(&r->calib, &r->set, o->bits > 0 && o->bits < 16, err));
    dq_recipe_options_scale(&r->set, &r->recipe, dq_calib_run_wanted(&r->calib));
    if (r->recipe.scale.text && r->set.bits != 16 &&
        dq_quantize_mode(r->set.mode, r->set.bits, true) != r->set.mode)
        return dq_fail(err, DQ_USAGE, "--scale %s: has no codes of %d bits. Use search.",
                       dq_quant_modes[r->set.mode].name, r->set.bits);
    /* Only what no model allows fails here; the rest waits for the model. */
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
    if (err->code != DQ_OK) return err->code;
    r->set.logit = (dq_logit_spec){.bits = (int)r->logit_bits,
                                   .granularity = (dq_granularity)r->granularity.at};
    r->set.dq_version = DQ_VERSION;
    return DQ_OK;
}

/* Codes depend on these as the bits of the forward pass do. */
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

static void use_threads(const dq_quantize_request *r)
{
    /* One more than processors: one thread hashes the source throughout, and idle threads should
     * sleep, not spin. */
    const bool hashes_beside = !dq_calib_run_wanted(&r->calib) && dq_ranks_count() == 1;
    dq_os_threads_set(r->threads > 0 ? r->threads : dq_os_cpu_count("") + hashes_beside);
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
    /* what exists is judged together with an interrupted run's files: dq_quantize_check_output */
    const dq_output output = {"-o", r->out, DQ_OUTPUT_HDF5, dq_quantize_beside};
    const char *model = args->item[0];
    *out = NULL;
    use_threads(r);
    DQ_TRY(dq_output_guard_check(&output, 1, args->input, args->n_inputs, true, err));
    DQ_TRY(calib_run_begin(&r->calib, &r->set, r->out, r->threads, err));
    DQ_TRY(size_options_choose(&r->size, &r->set, model, err));
    DQ_TRY(dq_quantize_open(out, model, &r->set, err));
    const dq_quantize_info *i = &(*out)->info;
    if (calib_run_announce(&r->calib, i, r->logger, err) == DQ_OK) {
        /* Warns of options that rules have overridden for all tensors. */
        const dq_recipe_options *o = &r->recipe;
        const dq_quantize_used *used = &i->used;
        const struct {
            const char *option;
            bool given, used;
        } of[] = {{"bits", o->bits, used->bits || (o->scale_by_bits && used->mode)},
                  {"embed-bits", o->embed_bits, used->embed_bits},
                  {"head-bits", o->head_bits, used->head_bits || used->embed_bits},
                  {"group", o->group, used->group},
                  {"scale", o->scale.text, used->mode}};
        const bool rules = o->map.n || json_array_size(json_object_get(o->json, "rules"));
        for (size_t k = 0; rules && k < sizeof of / sizeof *of; k++) {
            if (of[k].given && !of[k].used)
                dq_logger_warn(r->logger, "--%s has no effect: rules of %s decide for every tensor",
                               of[k].option, o->file ? o->file : "--bits-map");
        }
        if (r->set.bits != 16 && i->n_packed == 0)
            dq_logger_warn(r->logger, "no tensor is packed: %s all of them dense",
                           r->set.skip ? "--skip leaves" : "rules leave");
        /* Warns where another group would leave none short; else the summary says it. */
        const dq_quantize_short *s = &i->short_groups;
        if (s->n != 0 && s->whole) {
            dq_logger_warn(
                r->logger,
                "the last group of %lld of %lld packed tensors is short, that of %s first (%lld "
                "columns in groups of %lld): dq reads them, but dq export --format "
                "compressed-tensors writes them as values. With --group %lld none is short%s",
                (long long)s->n, (long long)i->n_packed, s->name, (long long)s->cols,
                (long long)s->group, (long long)s->whole,
                s->divides ? "" : ": each row of fewer columns is one group");
        }
        /* At 3.5 bits SmolLM2-135M loses 1.1 nats per token without a text, .43 with 8 kB of one
         * (results/real). */
        const double little = 4;
        if (!dq_calib_run_wanted(&r->calib) && i->n_packed && !(i->bits_per_weight >= little)) {
            dq_logger_warn(
                r->logger,
                "%.2f bits per weight without a calibration text: the model may write fluent "
                "nonsense. Name a text of the kind it will read, --calib FILE (8 kB help much), "
                "let the model write one, --calib self, or take --size 4.5",
                i->bits_per_weight);
        }
        if (r->out) dq_quantize_check_output(*out, r->out, r->force, r->resume, err);
    }
    if (err->code == DQ_OK) return DQ_OK;
    dq_quantize_close(*out);
    *out = NULL;
    return err->code;
}

dq_status dq_quantize_request_check(dq_quantize_request *r, dq_quantizer *q, dq_err *err)
{
    const dq_quantize_info *i = &q->info;
    DQ_TRY(dq_ranks_agree("program", dq_commit_version(), err));
    if (r->calib.calibrate) DQ_TRY(dq_calibrate_memory_check(r->calib.calibrate, q, err));
    char partial[4096];
    int n = snprintf(partial, sizeof partial, "%s.partial", r->out);
    if (r->resume && n < (int)sizeof partial && !dq_file_exists(partial) && !dq_file_exists(r->out))
        dq_logger_warn(r->logger,
                       "%s: is not here, so there is nothing to resume; everything is written",
                       partial);
    if (i->source_types)
        dq_logger_warn(r->logger,
                       "%s: %s: what these types have lost stays lost, and rounding adds to it",
                       i->source, i->source_types);
    return DQ_OK;
}

dq_status dq_quantize_request_write(dq_quantize_request *r, dq_quantizer *q,
                                    const dq_quantize_progress *p, dq_err *err)
{
    const dq_quantize_info *i = &q->info;
    dq_quantize_write(q, r->out, r->force, r->resume, p, err);
    if (err->code == DQ_OK) calib_run_report(&r->calib, r->logger);
    if (err->code == DQ_OK) check_plan(r, err);
    if (i->n_wide)
        dq_logger_warn(r->logger, "%lld tensor%s scales that f16 cannot hold; %s f32",
                       (long long)i->n_wide, i->n_wide == 1 ? " has" : "s have",
                       i->n_wide == 1 ? "its are" : "theirs are");
    return err->code;
}
