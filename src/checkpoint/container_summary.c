/* container_summary: what a container says of itself as a whole. Its payloads are added up and compared with the attributes
 * of its root; what the recipe asked for is named where all tensors have it.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/container_impl.h"
#include "checkpoint/container_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dq_status add_up(dq_container *c, dq_err *err)
{
    dq_container_info *info = &c->info;
    int64_t params = 0, bytes = 0, i;
    int bits = 16;
    const char *mode = "";
    for (i = 0; i < c->n_payloads; i++) {
        const dq_payload *p = &c->payload[i];
        if (dq_container_payload_in(p, DQ_PATH_TENSORS)) bytes += p->bytes;
        if (!p->row) continue;
        const char *own = dq_quant_modes[p->mode].name;
        mode = *mode == 0 || mode == own ? own : "mixed";
    }
    for (i = 0; i < c->n_tensors; i++) {
        const dq_weight *w = &c->tensor[i];
        params += w->rows * (w->cols > 0 ? w->cols : 0);
        if (!dq_weight_is_coded(w)) continue;
        bits = bits == 16 || bits == w->bits ? w->bits : 0;
    }
    if (params != info->params || bytes != info->weight_bytes)
        return dq_fail(err, DQ_DAMAGED,
                       "%s: /: attributes params or bytes_total disagree with /index", c->path);
    info->bits_per_weight = dq_weight_bits_over(bytes, params);
    info->weight_bits = bits;
    info->scale_mode = mode;
    info->file_bytes = (int64_t)c->map.bytes;
    return DQ_OK;
}

/* Whether a tensor is stored as the wanted group has it: 128 of 64 columns is stored as 64. */
static bool has_group(const dq_weight *w, const char *group)
{
    const bool one = w->scale_rows == 1 && w->rows > 1;
    const int64_t n = strtoll(group, NULL, 10);
    if (strcmp(group, "tensor") == 0) return w->scale_rows == 1;
    if (strcmp(group, "row") == 0) return !one && w->group_size == w->cols;
    return !one && w->group_size == (n < w->cols ? n : w->cols);
}

static bool all_have_group(const dq_container *c, const char *group)
{
    for (int64_t i = 0; i < c->n_tensors; i++) {
        const dq_weight *w = &c->tensor[i];
        if (dq_weight_is_coded(w) && !has_group(w, group)) return false;
    }
    return true;
}

/* The group of all packed tensors: as wanted, which the stored sizes alone do not tell, or what rules gave all of
 * them, or "mixed". */
static dq_status name_group(dq_container *c, const char *wanted, dq_err *err)
{
    int64_t widest = 0;
    char number[32];
    for (int64_t i = 0; i < c->n_tensors; i++) {
        const dq_weight *w = &c->tensor[i];
        if (dq_weight_is_coded(w) && w->group_size > widest) widest = w->group_size;
    }
    snprintf(number, sizeof number, "%lld", (long long)widest);
    const char *const names[] = {wanted, "row", "tensor", number};
    const char *group = "mixed";
    for (int i = 3; i >= 0; i--) {
        if (all_have_group(c, names[i])) group = names[i];
    }
    c->info.weight_group = dq_text(c->arena, group, strlen(group), err);
    return err->code;
}

static dq_status read_recipe(dq_container *c, dq_err *err)
{
    static const char *const keep = "keep";
    json_t *recipe = NULL;
    const char *group = NULL, *dense;
    c->info.weight_group = "";
    if (dq_json_parse(&recipe, c->recipe, c->recipe_len, "/config/recipe_json", err) != DQ_OK)
        return dq_in(err, "%s: ", c->path);
    if (dq_json_text(&group, recipe, "group", NULL, err) == DQ_OK &&
        dq_json_text(&dense, recipe, "dense_type", &keep, err) == DQ_OK &&
        dq_container_agrees(&c->info, recipe, c->arena, err) == DQ_OK) {
        c->info.is_rounded = c->info.weight_bits != 16 || strcmp(dense, keep) != 0;
        if (c->info.weight_bits != 16) name_group(c, group, err);
    } else {
        dq_in(err, "%s: /config/recipe_json: ", c->path);
    }
    json_decref(recipe);
    return err->code;
}

dq_status dq_container_sum_up(dq_container *c, dq_err *err)
{
    DQ_TRY(add_up(c, err));
    return read_recipe(c, err);
}
