/* recipe_options: --recipe, --bits-map and the other options of weights, as settings.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RECIPE_OPTIONS_H
#define DQ_RECIPE_OPTIONS_H

#include "quantize/quantize.h"
#include "record/record.h"
#include "settings/options.h"

/* As given; {0} at first. A number of 0 or a NULL was not given. */
typedef struct dq_recipe_options {
    const char *file;
    dq_list map;
    int64_t bits, embed_bits, head_bits;
    const char *group, *skip;
    dq_word scale, scale_dtype, dense_type; /* a dq_scale_mode, of ..._dtypes, a dq_dense_type */
    /* private: what the settings point into */
    dq_arena *arena;
    json_t *json, *rules;
    char modes[512];
    const char *mode_name[DQ_QUANT_MODES];
    bool scale_by_bits; /* --bits chose the scales */
} dq_recipe_options;

/* Rows for the table of options: the text of --scale is made here, and its words. calibrated: always. */
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

/* Fills the settings of weights in *s and, from the file or plain ones, of the KV cache; their texts and rules belong to *o
 * until it is ended. */
dq_status dq_recipe_options_read(dq_quantize_settings *s, dq_recipe_options *o, dq_err *err);
/* After that: the scales of settings that name none. At 4 to 6 bits zero points lose less than searched scales for their
 * bits where no text chooses codes; calibrated methods and fewer bits do better with searched ones (results/weights). */
void dq_recipe_options_scale(dq_quantize_settings *s, dq_recipe_options *o, bool calibrated);
/* Warns of options that were given and that no tensor goes by, since rules decide. */
void dq_recipe_options_unused(const dq_recipe_options *o, const dq_quantize_used *used,
                              dq_logger *logger);
void dq_recipe_options_end(dq_recipe_options *o);

#endif
