/* container_settings: the settings of the KV cache that a container remembers.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/container_read.h"
#include "kv/kv.h"

#include <limits.h>
#include <string.h>

static const char group[] = "/kv_cache";

static dq_status read_integer(dq_container_h5 *r, const dq_kv_field *f, dq_kv_config *c)
{
    int64_t v;
    DQ_TRY(dq_container_h5_ints(r, group, f->name, &v, 1));
    if ((f->type == DQ_KV_INT || f->type == DQ_KV_WIDTH) && (v < 0 || v > INT_MAX))
        return dq_fail(r->err, DQ_DAMAGED, "%s: %s: attribute %s: expected 0 to %d, found %lld",
                       r->path, group, f->name, INT_MAX, (long long)v);
    dq_kv_field_set_integer(f, c, v);
    return DQ_OK;
}

static dq_status read_text(dq_container_h5 *r, const dq_kv_field *f, dq_kv_config *c, dq_arena *a)
{
    char word[DQ_KV_HEADS_TEXT]; /* the longest there is */
    const size_t cap = f->type == DQ_KV_BY_GROUP ? sizeof word : DQ_KV_LISTS;
    DQ_TRY(dq_container_h5_words(r, group, f->name, word, cap));
    if (f->type == DQ_KV_POLICY && strcmp(word, "none") == 0) return DQ_OK;
    return dq_kv_field_set_text(f, c, word, a, r->err) == DQ_OK
               ? DQ_OK
               : dq_in(r->err, "%s: %s: ", r->path, group);
}

static dq_status read_field(dq_container_h5 *r, const dq_kv_field *f, dq_kv_config *c, dq_arena *a)
{
    double real;
    if (dq_kv_field_evicts(f) && !c->evict.policy) return DQ_OK;
    if (f->later && !dq_container_h5_has(r, group, f->name)) {
        dq_kv_field_leave_out(f, c);
        return DQ_OK;
    }
    switch (dq_kv_field_form(f)) {
    case DQ_KV_AS_INTEGER: return read_integer(r, f, c);
    case DQ_KV_AS_TEXT: return read_text(r, f, c, a);
    case DQ_KV_AS_REAL: break;
    }
    DQ_TRY(dq_container_h5_real(r, group, f->name, &real));
    dq_kv_field_set_real(f, c, real);
    return DQ_OK;
}

dq_status dq_container_h5_kv_config(dq_container_h5 *r, dq_kv_config *c, dq_arena *a)
{
    *c = dq_kv_config_plain;
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        DQ_TRY(read_field(r, &dq_kv_fields[i], c, a));
    }
    dq_kv_config_renew(c);
    return dq_kv_config_check(c, r->err) == DQ_OK ? DQ_OK
                                                  : dq_in(r->err, "%s: %s: ", r->path, group);
}

/* What attributes say about running the model stands in the recipe too, whose bytes have a hash. */
dq_status dq_container_agrees(const dq_container_info *info, const json_t *recipe, dq_arena *a,
                              dq_err *err)
{
    int64_t bits;
    const char *granularity;
    dq_logit_spec logit;
    dq_kv_config kv = dq_kv_config_plain;
    const json_t *stored = json_object_get(recipe, "kv");
    DQ_TRY(dq_json_int(&bits, recipe, "logit_bits", 2, 16, NULL, err));
    DQ_TRY(dq_json_text(&granularity, recipe, "logit_granularity", NULL, err));
    if (stored) DQ_TRY(dq_kv_config_read(&kv, stored, a, err));
    dq_kv_config_renew(&kv);
    const bool good = dq_logit_parse(&logit, bits, granularity);
    if (!good || logit.bits != info->logit.bits || logit.granularity != info->logit.granularity)
        return dq_fail(err, DQ_DAMAGED, "\"%s\" differs from /attention",
                       good && logit.bits == info->logit.bits ? "logit_granularity" : "logit_bits");
    const char *differs = dq_kv_config_differs(&kv, &info->kv);
    if (!differs) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "\"kv\" differs from the attributes of /kv_cache (%s)",
                   differs);
}
