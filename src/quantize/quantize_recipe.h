/* quantize_recipe: settings as JSON: the recipe that a container stores, and files of schema dq-recipe/1. Reading and
 * printing go through one table of keys.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_RECIPE_H
#define DQ_QUANTIZE_RECIPE_H

#include "quantize/quantize.h"

/* As /config/recipe_json has it. The caller ends it with json_decref; DQ_USAGE for a text that is not UTF-8. */
dq_status dq_quantize_recipe_of(json_t **out, const dq_quantize_settings *s, dq_err *err);

/* Values, DQ_DAMAGED with the key. Bits are 2..8 or 16; a group is a number of columns from 1 up, as number or text,
 * "row" or "tensor". */
dq_status dq_quantize_recipe_bits(int *out, const json_t *v, const char *key, dq_err *err);
dq_status dq_quantize_recipe_group(int64_t *out, const json_t *group, dq_err *err);
dq_status dq_quantize_recipe_mode(int *out, const json_t *mode, dq_err *err);
/* DQ_DAMAGED for a key of the object that is not in the list, which ends with NULL. */
dq_status dq_quantize_recipe_keys(const json_t *object, const char *const *keys, dq_err *err);

/* How two lines of a journal differ, for people: settings ("settings {...}") by the first keys that do, others as they
 * stand. In the arena; "" with a failure: see err. */
const char *dq_quantize_recipe_changes(dq_arena *a, const char *found, const char *want,
                                       dq_err *err);

#endif
