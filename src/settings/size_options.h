/* size_options: --preset and --size: widths and codes for a number of bits per weight.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIZE_OPTIONS_H
#define DQ_SIZE_OPTIONS_H

#include "plan/weights/plan_size.h"
#include "settings/recipe_options.h"

/* As given; {0} at first. */
typedef struct dq_size_options {
    dq_word preset; /* of dq_plan_sizes */
    double size;
    /* private */
    char presets[512];
    const char *preset_name[DQ_PLAN_SIZES];
    double bits; /* that are chosen for; 0: other options say what tensors become */
    json_t *rules;
} dq_size_options;

/* For the row of --preset: its help, and its words. */
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

/* After dq_recipe_options_read: the mode of s, where widths are chosen. DQ_USAGE for options that say the same twice. */
dq_status dq_size_options_read(dq_size_options *o, dq_quantize_settings *s,
                               const dq_recipe_options *recipe, dq_err *err);
/* Once the method of s is set: the widths. */
dq_status dq_size_options_choose(dq_size_options *o, dq_quantize_settings *s, const char *model,
                                 dq_err *err);
void dq_size_options_end(dq_size_options *o);

#endif
