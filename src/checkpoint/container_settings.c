/* container_settings: the settings of the KV cache that a container remembers.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/container_read.h"

#include <limits.h>
#include <string.h>

static const char group[] = "/kv_cache";

static dq_status read_int(dq_h5_reader *r, const char *name, int *out)
{
    int64_t v;
    DQ_TRY(dq_h5_ints(r, group, name, &v, 1));
    if (v < 0 || v > INT_MAX)
        return dq_fail(r->err, DQ_DAMAGED, "%s: %s: attribute %s: expected 0 to %d, found %lld",
                       r->path, group, name, INT_MAX, (long long)v);
    *out = (int)v;
    return DQ_OK;
}

/* Files of before had the widths only; one that lost its policy is not one of them. */
static bool has_widths_only(dq_h5_reader *r)
{
    static const char *const later[] = {"policy", "group", "sink", "recent", "rotate"};
    for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
        if (dq_h5_has(r, group, later[i])) return false;
    }
    return true;
}

static dq_status check(dq_h5_reader *r, const dq_kv_settings *s)
{
    return dq_kv_settings_check(s, r->err) == DQ_OK ? DQ_OK
                                                    : dq_in(r->err, "%s: %s: ", r->path, group);
}

/* One of three words. */
static dq_status read_choice(dq_h5_reader *r, const char *name, const char *const words[3],
                             int *out)
{
    char buf[64];
    DQ_TRY(dq_h5_words(r, group, name, buf, sizeof buf));
    return dq_kv_settings_word(out, buf, words, name, r->err) == DQ_OK
               ? DQ_OK
               : dq_in(r->err, "%s: %s: ", r->path, group);
}

static dq_status read_eviction(dq_h5_reader *r, dq_kv_settings *s)
{
    int budget;
    int64_t seed;
    DQ_TRY(dq_h5_real(r, group, "keep", &s->keep));
    DQ_TRY(dq_h5_ints(r, group, "tokens", &s->tokens, 1));
    DQ_TRY(dq_h5_ints(r, group, "every", &s->every, 1));
    DQ_TRY(dq_h5_ints(r, group, "window", &s->window, 1));
    DQ_TRY(dq_h5_ints(r, group, "seed", &seed, 1));
    DQ_TRY(read_choice(r, "budget", dq_kv_budget_name, &budget));
    s->seed = (uint64_t)seed;
    s->budget = (dq_kv_budget)budget;
    return DQ_OK;
}

dq_status dq_h5_kv_settings(dq_h5_reader *r, dq_kv_settings *s, dq_arena *a)
{
    char policy[64];
    int rotate;
    *s = dq_kv_settings_plain;
    DQ_TRY(read_int(r, "k_bits", &s->k_bits));
    DQ_TRY(read_int(r, "v_bits", &s->v_bits));
    if (has_widths_only(r)) return check(r, s);
    DQ_TRY(read_int(r, "group", &s->group));
    DQ_TRY(read_int(r, "sink", &s->sink));
    DQ_TRY(read_int(r, "recent", &s->recent));
    DQ_TRY(read_choice(r, "rotate", dq_rotate_name, &rotate));
    s->rotate = (dq_rotate)rotate;
    DQ_TRY(dq_h5_words(r, group, "policy", policy, sizeof policy));
    if (strcmp(policy, "none") != 0) {
        s->policy = dq_text(a, policy, strlen(policy), r->err);
        if (!s->policy) return r->err->code;
        DQ_TRY(read_eviction(r, s));
    }
    return check(r, s);
}

/* What attributes say about running the model stands in the recipe too, whose bytes have a hash. */
dq_status dq_container_agrees(const dq_container_info *info, const json_t *recipe, dq_err *err)
{
    int64_t bits;
    const char *grain;
    dq_logit_spec logit;
    dq_kv_settings kv = dq_kv_settings_plain;
    const json_t *stored = json_object_get(recipe, "kv");
    DQ_TRY(dq_json_int(&bits, recipe, "logit_bits", 2, 16, NULL, err));
    DQ_TRY(dq_json_text(&grain, recipe, "logit_grain", NULL, err));
    if (stored) DQ_TRY(dq_kv_settings_read(&kv, stored, err));
    if (!dq_logit_parse(&logit, bits, grain) || logit.bits != info->logit.bits ||
        logit.grain != info->logit.grain)
        return dq_fail(err, DQ_DAMAGED,
                       "\"logit_bits\" or \"logit_grain\" differs from /attention");
    return dq_kv_settings_same(&kv, &info->kv)
               ? DQ_OK
               : dq_fail(err, DQ_DAMAGED, "\"kv\" differs from the attributes of /kv_cache");
}
