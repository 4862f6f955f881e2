/* Options of quantization, and what they become.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_OPTIONS_H
#define DQ_QUANTIZE_OPTIONS_H

#include "calibrate/calibrate.h"
#include "plan/plan_weights.h"
#include "quantize/quantize.h"
#include "settings/cache_options.h"

/* ---- Recipe options ----
 * --recipe, --bits-map and the other options of weights, as settings. */

/* As given; {0} at first. 0 or NULL: not given. */
typedef struct dq_recipe_options {
    const char *file;
    dq_list map;
    int64_t bits, embed_bits, head_bits;
    const char *group, *skip;
    dq_word scale, scale_dtype, dense_type; /* a dq_scale_mode, of ..._dtypes, a dq_dense_type */
    dq_arena *arena;
    json_t *json, *rules;
    char modes[512];
    const char *mode_name[DQ_QUANT_MODES];
    bool scale_by_bits; /* --bits chose the scales */
} dq_recipe_options;

/* For the option table: builds the text and words of --scale. */
const char *dq_recipe_options_modes(dq_recipe_options *o, bool calibrated);
const char *const *dq_recipe_options_mode_names(dq_recipe_options *o);
enum { DQ_RECIPE_OPTIONS_DTYPES = 2, DQ_RECIPE_OPTIONS_GROUPS = 2 };
extern const char *const dq_recipe_options_dtype_name[DQ_RECIPE_OPTIONS_DTYPES]; /* "f16", "f32" */
extern const char
    *const dq_recipe_options_group_name[DQ_RECIPE_OPTIONS_GROUPS]; /* "row", "tensor" */
#define DQ_RECIPE_OPTION_GROUP(o)                                                                  \
    dq_opt_offer(dq_recipe_options_group_name, DQ_RECIPE_OPTIONS_GROUPS,                           \
                 dq_opt_text("group", "N", &(o).group,                                             \
                             "columns per scale, or row, or tensor (default the largest of 128, "  \
                             "64 and 32 that divides the columns of all packed tensors, else the " \
                             "one that leaves the fewest with a short last group)"))
#define DQ_RECIPE_OPTION_SCALE(o, calibrated)                                                      \
    dq_opt_word("scale", "MODE", &(o).scale, dq_recipe_options_mode_names(&(o)), DQ_QUANT_MODES,   \
                dq_recipe_options_modes(&(o), calibrated))
#define DQ_RECIPE_OPTION_SCALE_DTYPE(o, text)                                                      \
    dq_opt_word("scale-dtype", "TYPE", &(o).scale_dtype, dq_recipe_options_dtype_name,             \
                DQ_RECIPE_OPTIONS_DTYPES, text)
#define DQ_RECIPE_OPTION_DENSE_TYPE(o, text)                                                       \
    dq_opt_word("dense-type", "TYPE", &(o).dense_type, dq_dense_type_name, DQ_DENSE_TYPES, text)
#define DQ_RECIPE_OPTION_ROWS(o)                                                                   \
    dq_opt_bits("bits", "N", &(o).bits,                                                            \
                "of projections, 2 to 8, or 16: not packed (default 4, where an option of the "    \
                "kind is given)"),                                                                 \
        DQ_RECIPE_OPTION_GROUP(o), DQ_RECIPE_OPTION_SCALE(o, false),                               \
        DQ_RECIPE_OPTION_SCALE_DTYPE(                                                              \
            o, "{words} (default f16; f32 for tensors with a scale that f16 cannot hold)"),        \
        dq_opt_bits("embed-bits", "N", &(o).embed_bits,                                            \
                    "of the embedding, and of a head that is tied to it: 2 to 8, or 16: not "      \
                    "packed (default 6, or --bits where that is more)"),                           \
        dq_opt_bits("head-bits", "N", &(o).head_bits,                                              \
                    "of a head of its own, likewise (default as --embed-bits)"),                   \
        DQ_RECIPE_OPTION_DENSE_TYPE(                                                               \
            o, "{words}: type of matrices that are not packed, rounded to nearest; "               \
               "f16 refuses values beyond 65504; vectors (norms, biases, lambda) keep "            \
               "theirs, being small and sensitive (default keep)"),                                \
        dq_opt_list("bits-map", "REGEX=N[/GROUP[/SCALE]]", &(o).map,                               \
                    "other settings for tensors whose name matches; may be repeated, the last "    \
                    "match wins"),                                                                 \
        dq_opt_text("skip", "REGEX", &(o).skip,                                                    \
                    "tensors whose name matches stay as they are, whatever else is said"),         \
        dq_opt_text(                                                                               \
            "recipe", "FILE", &(o).file,                                                           \
            "take all this and the settings of the KV cache from a file (dq-recipe/1, as "         \
            "--print-recipe and dq info --recipe print it); options override it, but for tensors " \
            "that its rules decide about; --bits-map goes after its rules")

/* Fills weight settings of *s and, from the file or plain ones, KV settings; texts and rules belong
 * to *o. */
dq_status dq_recipe_options_read(dq_quantize_settings *s, dq_recipe_options *o, dq_err *err);
/* Then chooses scales where settings name none: at 4 to 6 bits without a text zero points lose
 * least for their bits; calibrated methods and fewer bits do better with searched scales
 * (results/weights). */
void dq_recipe_options_scale(dq_quantize_settings *s, dq_recipe_options *o, bool calibrated);
void dq_recipe_options_end(dq_recipe_options *o);

/* ---- Size options ----
 * --preset and --size: widths and codes for a number of bits per weight. */

/* As given; {0} at first. */
typedef struct dq_size_options {
    dq_word preset; /* of dq_plan_sizes */
    double size;
    char presets[512];
    const char *preset_name[DQ_PLAN_SIZES];
    double bits; /* that are chosen for; 0: other options say what tensors become */
    json_t *rules;
} dq_size_options;

/* Fills the help and words of --preset. */
const char *dq_size_options_presets(dq_size_options *o);
const char *const *dq_size_options_preset_names(dq_size_options *o);
#define DQ_SIZE_OPTION_ROWS(o)                                                                     \
    dq_opt_word("preset", "NAME", &(o).preset, dq_size_options_preset_names(&(o)), DQ_PLAN_SIZES,  \
                dq_size_options_presets(&(o))),                                                    \
        dq_opt_float("size", "BITS", &(o).size, 2, 16,                                             \
                     "bits per weight at most, over all parameters and with scales: chooses the "  \
                     "width of each kind of tensor, and codes. Without it, --preset or any of "    \
                     "--bits, --embed-bits, --head-bits, --scale, --bits-map and --recipe it is "  \
                     "that of balanced")

/* The options of calibrated quantization, and reports about a run. */

enum { DQ_CALIB_RUN_METHODS = 1 + DQ_CALIBRATE_RULES };
typedef struct dq_calib_run {
    dq_word requested; /* --method: of method_name */
    const char *file;
    int64_t tokens, ctx;
    bool own;                /* text that the model writes itself, after dq_calib_run_check */
    const char *method;      /* what was decided on, after dq_calib_run_check */
    dq_backend *backend;     /* NULL: the method needs none */
    dq_calibrate *calibrate; /* NULL: nothing is calibrated */
    const char *method_name[DQ_CALIB_RUN_METHODS];
} dq_calib_run;
/* Fills c->method_name, the words of the row: "nearest", and the rules. */
const char *const *dq_calib_run_method_names(dq_calib_run *c);
#define DQ_CALIB_RUN_OPTIONS(c)                                                                    \
    dq_opt_heading("calibration:"),                                                                \
        dq_opt_word(                                                                               \
            "method", "NAME", &(c).requested, dq_calib_run_method_names(&(c)),                     \
            DQ_CALIB_RUN_METHODS,                                                                  \
            "nearest: each value to its nearest code; gptq, by a text: layer by layer, errors of " \
            "columns made up for by those still to be rounded; align: gptq of weights that first " \
            "make up for what was lost before them, in twice the time (default align with a "      \
            "text, nearest without)"),                                                             \
        dq_opt_text("calib", "FILE", &(c).file,                                                    \
                    "text that the model is to keep predicting: plain, or .jsonl of {\"text\"}; "  \
                    "not the text that it is scored with later. self: the model writes it, at "    \
                    "temperature 1, in about a fifth of the time that align then takes. none: no " \
                    "text. A file of such a name is ./self. (default self with --size, --preset, " \
                    "--method gptq or align, or none of the options of weights; else none)"),      \
        dq_opt_int("calib-tokens", "N", &(c).tokens, 1, 1000000000000,                             \
                   "tokens taken from it, at even intervals (default 16384)"),                     \
        dq_opt_int("calib-ctx", "N", &(c).ctx, 2, INT32_MAX,                                       \
                   "tokens of a sequence (default min(512, the model's positions))")

bool dq_calib_run_wanted(const dq_calib_run *c);
/* Warns of a repetitive text; part: "calibration". */
void dq_calib_run_warn_repeats(const dq_calib_text *t, const char *file, const char *part,
                               dq_logger *logger);
void dq_calib_run_warn_form(const dq_calib_text *t, const char *file, dq_logger *logger);
/* Both, and warns of a text shorter than asked for, or of few tokens for a rule that fits so many
 * inputs. */
void dq_calib_run_warn(const dq_calib_text *t, const char *file, const dq_calibrate_rule *rule,
                       int64_t inputs, dq_logger *logger);
void dq_calib_run_rows(dq_row_writer *w, const dq_calib_run *c, const dq_quantizer *q);

/* What dq quantize and the library are asked to write: options for weights, calibration, attention
 * and cache, and how they become a container. */

typedef struct dq_quantize_request {
    dq_logger *logger;   /* not owned */
    const char *out;     /* NULL: nothing is written */
    dq_word granularity; /* a dq_granularity */
    int64_t logit_bits, threads;
    dq_recipe_options recipe;
    dq_size_options size;
    dq_kv_options kv;
    dq_calib_run calib;
    bool resume, force;
    dq_quantize_settings set; /* what the options mean */
    const char
        *planned; /* SHA-256 of the weights that the recipe's plan measured; NULL: it has no plan */
    bool as_planned; /* these are the weights */
} dq_quantize_request;

#define DQ_QUANTIZE_REQUEST_OPTIONS(r)                                                             \
    dq_opt_heading("weights:"), DQ_SIZE_OPTION_ROWS((r).size), DQ_RECIPE_OPTION_ROWS((r).recipe),  \
        DQ_CALIB_RUN_OPTIONS((r).calib), dq_opt_heading("attention, stored for dq eval:"),         \
        dq_opt_bits("logit-bits", "N", &(r).logit_bits,                                            \
                    "2 to 8, or 16: not rounded (default 16)"),                                    \
        dq_opt_word("logit-granularity", "GRANULARITY", &(r).granularity, dq_granularity_name,     \
                    DQ_GRANULARITIES, "{words} (default per-tensor)"),                             \
        DQ_KV_OPTION_ROWS((r).kv)

/* End with dq_quantize_request_end, also after failures. */
void dq_quantize_request_begin(dq_quantize_request *r, dq_logger *logger);
/* Reads the options before any model is open. DQ_USAGE. */
dq_status dq_quantize_request_read(dq_quantize_request *r, dq_err *err);
/* Opens the model (the first argument), checks the request and the output, if any, and warns. End
 * *out with dq_quantize_close before the request. */
dq_status dq_quantize_request_open(dq_quantizer **out, dq_quantize_request *r, const dq_args *args,
                                   dq_err *err);
/* Before writing: ranks must agree and memory suffice; warns of what the source has lost. */
dq_status dq_quantize_request_check(dq_quantize_request *r, dq_quantizer *q, dq_err *err);
/* Expected seconds of writing, timed briefly where that is long. */
dq_status dq_quantize_request_seconds(double *seconds, dq_quantize_request *r, dq_quantizer *q,
                                      dq_err *err);
/* Writes the output and compares it with a plan. p: NULL allowed. */
dq_status dq_quantize_request_write(dq_quantize_request *r, dq_quantizer *q,
                                    const dq_quantize_progress *p, dq_err *err);
void dq_quantize_request_end(dq_quantize_request *r);

#endif
