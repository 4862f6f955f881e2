/* size_options: see size_options.h. Any option that says what tensors become takes the place of the usual size.
 * SPDX-License-Identifier: MIT */
#include "settings/size_options.h"

#include <stdio.h>
#include <string.h>

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

/* Whether a recipe says it: one of a cache alone does not. */
static bool has_weights(const json_t *recipe)
{
    static const char *const keys[] = {"bits",  "embed_bits", "head_bits",
                                       "scale", "rules",      "group"};
    bool any = false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        any = any || json_object_get(recipe, keys[i]);
    return any;
}

/* The first option that says what tensors become; NULL: none does. One scale for a tensor is for integers. */
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

dq_status dq_size_options_read(dq_size_options *o, dq_quantize_settings *s,
                               const dq_recipe_options *recipe, dq_err *err)
{
    const char *other = other_option(recipe), *preset = o->preset.text;
    if (preset && o->size > 0)
        return dq_fail(err, DQ_USAGE, "--preset is a --size. Leave out one of them.");
    if (other && (preset || o->size > 0))
        return dq_fail(err, DQ_USAGE, "--%s: chooses widths and codes. Leave out --%s.",
                       preset ? "preset" : "size", other);
    if (other) return DQ_OK;
    o->bits =
        o->size > 0 ? o->size : dq_plan_sizes[preset ? o->preset.at : DQ_PLAN_SIZE_USUAL].bits;
    s->mode = DQ_TRELLIS;
    return DQ_OK;
}

dq_status dq_size_options_choose(dq_size_options *o, dq_quantize_settings *s, const char *model,
                                 dq_err *err)
{
    return o->bits > 0 ? dq_plan_size_choose(s, &o->rules, model, o->bits, err) : DQ_OK;
}

void dq_size_options_end(dq_size_options *o)
{
    json_decref(o->rules);
}
