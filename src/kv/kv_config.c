/* kv_config: see kv_config.h.
 * SPDX-License-Identifier: MIT */
#include "kv/kv_config.h"

#include <limits.h>
#include <string.h>

const char *const dq_rotate_name[3] = {"auto", "on", "off"};

const dq_kv_settings dq_kv_settings_plain = {
    .k_bits = 16, .v_bits = 16, .group = 32, .sink = 4, .recent = 64, .window = -1, .seed = 1};

static bool same_policy(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

bool dq_kv_settings_same(const dq_kv_settings *a, const dq_kv_settings *b)
{
    return a->k_bits == b->k_bits && a->v_bits == b->v_bits && a->group == b->group &&
           a->sink == b->sink && a->recent == b->recent && a->rotate == b->rotate &&
           same_policy(a->policy, b->policy) && a->keep == b->keep && a->tokens == b->tokens &&
           a->every == b->every && a->window == b->window && a->budget == b->budget &&
           a->seed == b->seed;
}

static bool rotates(dq_rotate how, int bits, int head_dim)
{
    bool power = (head_dim & (head_dim - 1)) == 0;
    return how == DQ_ROTATE_ON || (how == DQ_ROTATE_AUTO && bits <= 4 && power);
}

dq_status dq_kv_settings_spec(dq_kv_spec *out, const dq_kv_settings *s, dq_num num, int head_dim,
                              dq_err *err)
{
    *out = (dq_kv_spec){.num = num,
                        .k_bits = s->k_bits,
                        .v_bits = s->v_bits,
                        .group = s->group,
                        .rotate_k = rotates(s->rotate, s->k_bits, head_dim),
                        .rotate_v = rotates(s->rotate, s->v_bits, head_dim),
                        .sink = s->sink,
                        .recent = s->recent};
    return dq_kv_check(out, head_dim, err);
}

dq_status dq_kv_settings_check(const dq_kv_settings *s, dq_err *err)
{
    enum { ANY_POWER_OF_TWO = 64 };
    dq_kv_spec spec;
    dq_err e = {0};
    if (dq_kv_settings_spec(&spec, s, DQ_NUM_F32, ANY_POWER_OF_TWO, &e) != DQ_OK)
        return dq_fail(err, DQ_DAMAGED, "KV settings: %s", e.text);
    if (!s->policy) return DQ_OK;
    if (!(s->keep >= 0 && s->keep <= 1) || s->tokens < 0 || s->tokens > INT_MAX ||
        (s->keep > 0) == (s->tokens > 0))
        return dq_fail(err, DQ_DAMAGED,
                       "KV settings: expected a share (keep) up to 1 or a number of tokens, the "
                       "other one 0, found keep %g, tokens %lld",
                       s->keep, (long long)s->tokens);
    if (s->tokens && s->tokens < (int64_t)s->sink + s->recent)
        return dq_fail(err, DQ_DAMAGED,
                       "KV settings: tokens %lld is less than sink %d and recent %d together",
                       (long long)s->tokens, s->sink, s->recent);
    if (s->every < 0 || s->every > INT_MAX || s->window < -1 || s->window > INT_MAX ||
        s->seed > INT64_MAX)
        return dq_fail(err, DQ_DAMAGED,
                       "KV settings: every %lld, window %lld and seed %lld are not all possible",
                       (long long)s->every, (long long)s->window, (long long)s->seed);
    return DQ_OK;
}

json_t *dq_kv_settings_json(const dq_kv_settings *s)
{
    json_t *o = json_object();
    json_object_set_new(o, "k_bits", json_integer(s->k_bits));
    json_object_set_new(o, "v_bits", json_integer(s->v_bits));
    json_object_set_new(o, "group", json_integer(s->group));
    json_object_set_new(o, "rotate", json_string(dq_rotate_name[s->rotate]));
    json_object_set_new(o, "sink", json_integer(s->sink));
    json_object_set_new(o, "recent", json_integer(s->recent));
    json_object_set_new(o, "policy", s->policy ? json_string(s->policy) : json_null());
    if (!s->policy) return o;
    json_object_set_new(o, "keep", s->tokens ? json_null() : json_real(s->keep));
    json_object_set_new(o, "tokens", s->tokens ? json_integer(s->tokens) : json_null());
    json_object_set_new(o, "budget", json_string(dq_kv_budget_name[s->budget]));
    json_object_set_new(o, "every", json_integer(s->every));
    json_object_set_new(o, "window", json_integer(s->window));
    json_object_set_new(o, "seed", json_integer((json_int_t)s->seed));
    return o;
}

dq_status dq_kv_settings_word(int *out, const char *text, const char *const names[3],
                              const char *key, dq_err *err)
{
    for (*out = 0; *out < 3; ++*out) {
        if (strcmp(text, names[*out]) == 0) return DQ_OK;
    }
    return dq_fail(err, DQ_DAMAGED, "KV settings: unknown %s \"%s\"", key, text);
}

static dq_status read_int(int *out, const json_t *o, const char *key, dq_err *err)
{
    int64_t v;
    DQ_TRY(dq_json_int(&v, o, key, 0, INT_MAX, NULL, err));
    *out = (int)v;
    return DQ_OK;
}

static dq_status read_eviction(dq_kv_settings *s, const json_t *o, dq_err *err)
{
    const int64_t none = 0;
    const double all = 0;
    const char *word;
    int index;
    int64_t seed;
    DQ_TRY(dq_json_float(&s->keep, o, "keep", &all, err));
    DQ_TRY(dq_json_int(&s->tokens, o, "tokens", 0, INT32_MAX, &none, err));
    DQ_TRY(dq_json_text(&word, o, "budget", NULL, err));
    DQ_TRY(dq_kv_settings_word(&index, word, dq_kv_budget_name, "budget", err));
    s->budget = (dq_kv_budget)index;
    DQ_TRY(dq_json_int(&s->every, o, "every", 0, INT64_MAX, NULL, err));
    DQ_TRY(dq_json_int(&s->window, o, "window", -1, INT64_MAX, NULL, err));
    DQ_TRY(dq_json_int(&seed, o, "seed", 0, INT64_MAX, NULL, err));
    s->seed = (uint64_t)seed;
    return DQ_OK;
}

dq_status dq_kv_settings_read(dq_kv_settings *out, const json_t *o, dq_err *err)
{
    const char *word, *none = NULL;
    int index;
    *out = dq_kv_settings_plain;
    DQ_TRY(read_int(&out->k_bits, o, "k_bits", err));
    DQ_TRY(read_int(&out->v_bits, o, "v_bits", err));
    DQ_TRY(read_int(&out->group, o, "group", err));
    DQ_TRY(read_int(&out->sink, o, "sink", err));
    DQ_TRY(read_int(&out->recent, o, "recent", err));
    DQ_TRY(dq_json_text(&word, o, "rotate", NULL, err));
    DQ_TRY(dq_kv_settings_word(&index, word, dq_rotate_name, "rotate", err));
    out->rotate = (dq_rotate)index;
    DQ_TRY(dq_json_text(&out->policy, o, "policy", &none, err));
    if (out->policy) DQ_TRY(read_eviction(out, o, err));
    return dq_kv_settings_check(out, err);
}
