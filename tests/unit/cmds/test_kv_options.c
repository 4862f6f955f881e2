/* Lists of the KV cache's options: which caches they multiply to, in which order, each once.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "settings/cache_options.h"

#include <stdio.h>
#include <string.h>

enum { LINE = 1024 };

/* What options are given, by name; ends with NULL. */
static void give(dq_kv_options *o, const char *const *given)
{
    dq_kv_options_begin(o, "");
    for (; *given; given += 2) {
        int i = 0;
        while (!dq_kv_fields[i].option || strcmp(dq_kv_fields[i].option, given[0]) != 0) {
            i++;
            assert_true(i < DQ_KV_FIELDS);
        }
        o->given[i].text = given[1];
    }
}

static size_t put_cache(char *text, size_t cap, const dq_kv_config *c)
{
    char widths[DQ_KV_TEXT];
    int n;
    if (c->widths[0])
        snprintf(widths, sizeof widths, "%s", c->widths);
    else
        snprintf(widths, sizeof widths, "%d:%d", c->k_bits, c->v_bits);
    n = snprintf(text, cap, "%s %s", widths, dq_kv_quant_name[c->quant]);
    if (c->evict.policy)
        n += snprintf(text + n, cap - (size_t)n, " %s %g %s", c->evict.policy->name, c->evict.keep,
                      dq_kv_budget_name[c->evict.budget]);
    return (size_t)n + (size_t)snprintf(text + n, cap - (size_t)n, "; ");
}

/* The caches of a container (or dq_kv_config_plain) and options. */
static const char *caches(char text[LINE], const dq_kv_config *stored, const char *const *given)
{
    dq_kv_options o;
    dq_kv_config *list;
    dq_err err = {0};
    int n;
    size_t at = 0;
    give(&o, given);
    assert_int_equal(dq_kv_options_read(&o, true, &err), DQ_OK);
    assert_int_equal(dq_kv_sweep_list(&list, &n, &o, stored, NULL, &err), DQ_OK);
    text[0] = 0;
    for (int i = 0; i < n; i++) at += put_cache(text + at, LINE - at, &list[i]);
    dq_block_free(list);
    return text;
}

#define CACHES(...)                                                                                \
    caches((char[LINE]){0}, &dq_kv_config_plain, (const char *const[]){__VA_ARGS__, NULL})

TEST(codes_multiply)
{
    assert_string_equal(CACHES("kv-bits", "8,4", "kv-quant", "per-token,dither"),
                        "8:8 per-token; 8:8 dither; 4:4 per-token; 4:4 dither; ");
    assert_string_equal(CACHES("kv-bits", "4", "kv-quant", "per-channel,per-token", "kv-policy",
                               "h2o,keydiff", "kv-keep", "0.5,0.25"),
                        "4:4 per-channel h2o 0.5 usual; 4:4 per-channel h2o 0.25 usual; "
                        "4:4 per-channel keydiff 0.5 usual; 4:4 per-channel keydiff 0.25 usual; "
                        "4:4 per-token h2o 0.5 usual; 4:4 per-token h2o 0.25 usual; "
                        "4:4 per-token keydiff 0.5 usual; 4:4 per-token keydiff 0.25 usual; ");
    /* one code alone stays what it is called */
    assert_string_equal(CACHES("kv-bits", "16,4", "kv-quant", "per-channel"),
                        "16:16 per-channel; 4:4 per-channel; ");
    assert_string_equal(CACHES("kv-bits", "4", "kv-quant", "auto"), "4:4 auto; ");
    assert_string_equal(CACHES("kv-bits", "4"), "4:4 auto; ");
}

TEST(without_codes_once)
{
    assert_string_equal(CACHES("kv-bits", "16,16:4", "kv-quant", "per-channel,dither"),
                        "16:16 per-token; 16:4 per-channel; 16:4 dither; ");
    assert_string_equal(CACHES("kv-bits", "16|16", "kv-quant", "per-channel,dither",
                               "kv-dense-type", "f16", "kv-keep", "0.5"),
                        "16|16:16|16 per-token keydiff 0.5 usual; ");
    assert_string_equal(CACHES("kv-bits", "16,8", "kv-quant", "per-channel,per-token", "kv-policy",
                               "a1,a2", "kv-keep", "0.5"),
                        "16:16 per-token a1 0.5 usual; 16:16 per-token a2 0.5 usual; "
                        "8:8 per-channel a1 0.5 usual; 8:8 per-channel a2 0.5 usual; "
                        "8:8 per-token a1 0.5 usual; 8:8 per-token a2 0.5 usual; ");
}

/* Per-channel codes of values with fewer than 4 bits, or uncoded ones, are not dithered. */
TEST(what_is_not_dithered_stands_once)
{
    assert_string_equal(
        CACHES("kv-bits", "3,8:2,4:16,5:4", "kv-quant", "per-channel,dither"),
        "3:3 per-channel; 8:2 per-channel; 4:16 per-channel; 5:4 per-channel; 5:4 dither; ");
    assert_string_equal(CACHES("kv-bits", "4:2|3,4:2|5", "kv-quant", "dither,per-channel"),
                        "4:2|3 dither; 4:2|5 dither; 4:2|5 per-channel; ");
    assert_string_equal(CACHES("kv-bits", "4:3,3", "kv-quant", "per-token,dither"),
                        "4:3 per-token; 4:3 dither; 3:3 dither; ");
}

/* auto is mixed before a model is known. */
TEST(auto_stands_for_another)
{
    assert_string_equal(CACHES("kv-bits", "4", "kv-quant", "auto,per-token,per-channel",
                               "kv-policy", "h2o", "kv-keep", "1,0.5"),
                        "4:4 mixed h2o 1 usual; 4:4 mixed h2o 0.5 usual; "
                        "4:4 per-token h2o 1 usual; 4:4 per-token h2o 0.5 usual; "
                        "4:4 per-channel h2o 1 usual; 4:4 per-channel h2o 0.5 usual; ");
    assert_string_equal(CACHES("kv-bits", "4", "kv-quant", "per-channel,auto"),
                        "4:4 per-channel; 4:4 mixed; ");
}

TEST(missing_widths_are_left_out)
{
    dq_kv_config listed = dq_kv_config_plain;
    dq_err err = {0};
    assert_string_equal(
        CACHES("kv-bits", "4,3,2:4,3|5", "kv-quant", "per-token,per-channel"),
        "4:4 per-token; 4:4 per-channel; 3:3 per-channel; 2:4 per-channel; 3|5:3|5 per-channel; ");
    assert_string_equal(CACHES("kv-bits", "4:3,4|4", "kv-quant", "per-token,per-channel"),
                        "4:3 per-token; 4:3 per-channel; 4|4:4|4 per-token; 4|4:4|4 per-channel; ");
    /* a container's own widths */
    assert_int_equal(dq_kv_config_set_widths(&listed, "3|5", &err), DQ_OK);
    listed.quant = DQ_KV_PER_CHANNEL;
    const char *const given[] = {"kv-quant", "per-token,dither", NULL};
    assert_string_equal(caches((char[LINE]){0}, &listed, given), "3|5:3|5 dither; ");
}

/* `all` is one policy where everything is kept, by each code. */
TEST(all_with_codes)
{
    dq_kv_options o;
    dq_kv_config *list;
    dq_err err = {0};
    int n, policies = 0;
    const char *const given[] = {"kv-policy", "all", "kv-quant", "per-token,per-channel,dither",
                                 NULL};
    for (int i = 0; i < dq_kv_n_policies; i++)
        policies += !dq_kv_policies[i].baseline && !(dq_kv_policies[i].needs & DQ_NEEDS_GATES);
    give(&o, given);
    assert_int_equal(dq_kv_options_read(&o, true, &err), DQ_OK);
    assert_int_equal(dq_kv_sweep_list(&list, &n, &o, &dq_kv_config_plain, NULL, &err), DQ_OK);
    assert_int_equal(n,
                     (1 + 2 * 3) * (1 + 3 * policies)); /* 16 bits once; shares 1 and three more */
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < i; k++) assert_false(dq_kv_config_same(&list[i], &list[k]));
    }
    dq_block_free(list);
}

static void refuses(bool sweep, const char *said, const char *const *given)
{
    dq_kv_options o;
    dq_err err = {0};
    give(&o, given);
    assert_int_equal(dq_kv_options_read(&o, sweep, &err), DQ_USAGE);
    if (!strstr(err.text, said)) fail_msg("%s: expected: %s", err.text, said);
}

#define REFUSES(sweep, said, ...) refuses(sweep, said, (const char *const[]){__VA_ARGS__, NULL})

TEST(what_does_not_exist_is_refused)
{
    REFUSES(true, "--kv-quant: per-channel stands twice", "kv-quant",
            "per-channel,per-token,per-channel");
    REFUSES(true, "--kv-quant: an empty part in \"per-channel,\"", "kv-quant", "per-channel,");
    REFUSES(true, "--kv-quant: expected one of per-token, per-channel, dither, mixed, auto",
            "kv-quant", "per-channel,tokens");
    REFUSES(false, "--kv-quant: one value only; dq eval sweeps over lists", "kv-quant",
            "per-channel,per-token");
    /* a width that no code has, and a code that has none of the widths */
    REFUSES(true, "--kv-bits 7: 7 bits for keys are not offered", "kv-bits", "4,7", "kv-quant",
            "per-token,per-channel");
    REFUSES(true, "--kv-quant per-token: no width of --kv-bits has such codes: 3 bits for keys",
            "kv-bits", "16,3,5", "kv-quant", "per-channel,per-token");
    REFUSES(true, "--kv-quant per-token: no width of --kv-bits has such codes: widths that differ",
            "kv-bits", "3|4", "kv-quant", "per-channel,per-token");
    REFUSES(true, "--kv-bits 3|4: widths that differ by layer", "kv-bits", "4,3|4", "kv-quant",
            "per-token");
    REFUSES(true, "leverage, a1, a2, sum), or all in dq eval", "kv-policy", "keydif");
}

/* What combinations that are left out would have used is not used. */
TEST(options_act_on_what_stays)
{
    dq_kv_options o;
    dq_kv_config *list;
    dq_err err = {0};
    int n;
    const char *const given[] = {"kv-bits", "8,3", "kv-quant", "per-token,per-channel", NULL};
    give(&o, given);
    assert_int_equal(dq_kv_options_read(&o, true, &err), DQ_OK);
    assert_int_equal(dq_kv_sweep_list(&list, &n, &o, &dq_kv_config_plain, NULL, &err), DQ_OK);
    assert_int_equal(n, 3);
    assert_int_equal(o.uses, DQ_KV_CODES); /* no per-token codes of 3 bits, which have groups */
    assert_int_equal(dq_kv_options_check(&o, &err), DQ_OK);
    dq_block_free(list);
}
