/* The table of KV settings: every row must reach everything that goes over it.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "kv/kv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TWO_MAPS = 2 };

/* Something of everything, no number what it is by default. */
static dq_kv_config full(void)
{
    dq_err err = {0};
    return (dq_kv_config){.k_bits = 6,
                          .v_bits = 3,
                          .group = 8,
                          .sink = 1,
                          .recent = 9,
                          .rotate = DQ_ROTATE_OFF,
                          .evict = {.policy = dq_kv_policy_find("random", &err),
                                    .keep = 0.3,
                                    .every = 5,
                                    .window = 7,
                                    .budget = DQ_KV_BUDGET_GLOBAL,
                                    .seed = 11}};
}

/* The same with another value in one field. */
static dq_kv_config other(int i)
{
    static const int64_t bits[] = {4, 2};
    const dq_kv_field *f = &dq_kv_fields[i];
    dq_err err = {0};
    dq_kv_config c = full();
    if (f->type == DQ_KV_POLICY)
        c.evict.policy = dq_kv_policy_find("diff", &err);
    else if (f->type == DQ_KV_SHARE)
        dq_kv_field_set(f, &c, (dq_kv_value){.real = 0.25}, NULL, &err);
    else if (i < 2)
        dq_kv_field_set(f, &c, (dq_kv_value){.integer = bits[i]}, NULL, &err);
    else if (f->type == DQ_KV_BY_LAYER) {
        c.quant = DQ_KV_PER_CHANNEL; /* in full(), too: see places below */
        assert_int_equal(dq_kv_config_set_widths(&c, "6|3+2:3", &err), DQ_OK);
    } else if (f->type == DQ_KV_BY_GROUP) {
        c.evict.budget = DQ_KV_BUDGET_HEADS;
        assert_int_equal(dq_kv_config_set_heads(&c, "1.0/0.0,0.1,1.1", &err), DQ_OK);
    } else if (f->words)
        dq_kv_field_set(f, &c,
                        (dq_kv_value){.integer = f->type == DQ_KV_ROTATE ? DQ_ROTATE_ON
                                                                         : DQ_KV_BUDGET_ADAPTIVE},
                        NULL, &err);
    else
        dq_kv_field_set(f, &c, (dq_kv_value){.integer = dq_kv_field_get(f, &c).integer + 100}, NULL,
                        &err);
    assert_int_equal(err.code, DQ_OK);
    if (f->or_other && f->type == DQ_KV_LONG) c.evict.keep = 0;
    return c;
}

static dq_kv_spec spec_of(const dq_kv_config *c)
{
    dq_err err = {0};
    dq_kv_spec s;
    dq_kv_config_spec(&s, c, DQ_NUM_F32, 64, 2, TWO_MAPS, &err);
    assert_string_equal(err.text, "");
    return s;
}

TEST(places_are_taken_once)
{
    int named = 0, columns = 0;
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        const dq_kv_field *f = &dq_kv_fields[i];
        assert_non_null(f->name);
        assert_non_null(f->column[0]);
        columns += f->column[1] ? 2 : 1;
        for (int k = 0; k < i; k++) assert_string_not_equal(f->name, dq_kv_fields[k].name);
        if (!f->option) continue;
        named++;
        assert_int_equal(dq_kv_field_of_option(f->option_place), i);
    }
    assert_int_equal(named, DQ_KV_OPTIONS);
    assert_int_equal(columns, DQ_KV_COLUMNS);
    for (int i = 1; i <= DQ_KV_COLUMNS; i++) {
        assert_memory_equal(dq_kv_field_title(i), "kv_", 3);
        for (int k = 1; k < i; k++)
            assert_string_not_equal(dq_kv_field_title(i), dq_kv_field_title(k));
    }
}

static bool same_column(const dq_kv_spec *a, const dq_kv_spec *b, int place)
{
    double x, y;
    const char *s = dq_kv_spec_column(&x, a, place), *t = dq_kv_spec_column(&y, b, place);
    if (s || t) return s && t && strcmp(s, t) == 0;
    return x == y || (isnan(x) && isnan(y));
}

/* A value that equality, JSON or the CSV left out would be a row that another one stands for. */
TEST(every_field_reaches_everything)
{
    const dq_kv_config all = full();
    const dq_kv_spec ran = spec_of(&all);
    json_t *requested = dq_kv_config_json(&all), *runs = dq_kv_spec_json(&ran);
    assert_true(dq_kv_config_same(&all, &all) && dq_kv_spec_same(&ran, &ran));
    for (int i = 0; i < DQ_KV_FIELDS; i++) {
        const dq_kv_field *f = &dq_kv_fields[i];
        const dq_kv_config c = other(i);
        const dq_kv_spec s = spec_of(&c);
        json_t *o = dq_kv_config_json(&c), *p = dq_kv_spec_json(&s);
        bool columns = true;
        for (int k = 1; k <= DQ_KV_COLUMNS; k++) columns = columns && same_column(&ran, &s, k);
        if (dq_kv_config_same(&all, &c) || dq_kv_spec_same(&ran, &s) || columns ||
            json_equal(o, requested) || json_equal(p, runs) ||
            json_equal(json_object_get(o, f->name), json_object_get(requested, f->name)) ||
            json_equal(json_object_get(p, f->name), json_object_get(runs, f->name)))
            fail_msg("%s does not reach everything", f->name);
        json_decref(o);
        json_decref(p);
    }
    json_decref(requested);
    json_decref(runs);
}

TEST(json_comes_back)
{
    dq_arena *a = given_arena();
    dq_err err = {0};
    dq_kv_config back;
    for (int i = -2; i < DQ_KV_FIELDS; i++) {
        const dq_kv_config c = i == -2 ? dq_kv_config_plain : i < 0 ? full() : other(i);
        json_t *o = dq_kv_config_json(&c);
        dq_kv_config_read(&back, o, a, &err);
        assert_string_equal(err.text, "");
        assert_true(dq_kv_config_same(&back, &c));
        json_decref(o);
    }
}

/* Without a policy nothing of an eviction is compared, listed or asked for. */
TEST(no_policy_no_eviction)
{
    dq_kv_config a = full(), b;
    dq_err err = {0};
    a.evict.policy = NULL;
    b = a;
    b.evict.keep = 0.9;
    b.evict.seed = 12;
    assert_true(dq_kv_config_same(&a, &b));
    dq_kv_spec s = spec_of(&a), t = spec_of(&b);
    assert_true(dq_kv_spec_same(&s, &t));
    assert_int_equal(dq_evict_check(&s, &err), DQ_OK);
    json_t *o = dq_kv_config_json(&a), *p = dq_kv_spec_json(&s);
    assert_int_equal(json_object_size(o), 7); /* no "quant", no "widths" */
    assert_int_equal(json_object_size(p), DQ_KV_FIELDS);
    assert_true(json_real_value(json_object_get(p, "keep")) == 1);
    assert_true(json_is_null(json_object_get(p, "tokens")));
    assert_true(json_is_null(json_object_get(p, "window")));
    json_decref(o);
    json_decref(p);
    assert_int_equal(dq_kv_config_uses(&a, TWO_MAPS), DQ_KV_CODES | DQ_KV_NARROW);
    a.evict.policy = dq_kv_policy_find("random", &err);
    assert_int_equal(dq_kv_config_uses(&a, TWO_MAPS),
                     DQ_KV_CODES | DQ_KV_NARROW | DQ_KV_EVICTS | DQ_KV_DRAWS);
    a.k_bits = a.v_bits = 8;
    a.evict.policy = dq_kv_policy_find("diff", &err);
    assert_int_equal(dq_kv_config_uses(&a, TWO_MAPS), DQ_KV_CODES | DQ_KV_EVICTS | DQ_KV_SUMS);
    assert_int_equal(dq_kv_config_uses(&dq_kv_config_plain, TWO_MAPS), 0);
}

/* A container may name what only a later dq has: it is shown and compared, but not run. */
TEST(unknown_policies_are_kept_and_refused)
{
    dq_arena *a = given_arena();
    dq_err err = {0};
    dq_kv_config c = full(), back;
    c.evict.policy = dq_kv_policy_stored("tomorrow", a, &err);
    json_t *o = dq_kv_config_json(&c);
    assert_string_equal(json_string_value(json_object_get(o, "policy")), "tomorrow");
    assert_int_equal(dq_kv_config_read(&back, o, a, &err), DQ_OK);
    assert_ptr_not_equal(back.evict.policy, c.evict.policy);
    assert_true(dq_kv_config_same(&back, &c));
    dq_kv_spec s = spec_of(&c);
    assert_int_equal(dq_evict_check(&s, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "\"tomorrow\", which this dq does not have"));
    assert_ptr_equal(dq_kv_policy_stored("h2o", a, &err), dq_kv_policy_find("h2o", &err));
    json_decref(o);
}

TEST(rotation_waits_for_a_model)
{
    dq_err err = {0};
    dq_kv_config c = dq_kv_config_plain;
    dq_kv_spec s;
    c.quant = DQ_KV_PER_TOKEN;
    c.v_bits = 4;
    assert_int_equal(dq_kv_config_spec(&s, &c, DQ_NUM_F32, 64, 2, TWO_MAPS, &err), DQ_OK);
    assert_true(!s.rotate_k && s.rotate_v);
    assert_int_equal(dq_kv_config_spec(&s, &c, DQ_NUM_F32, 80, 2, TWO_MAPS, &err), DQ_OK);
    assert_true(!s.rotate_k && !s.rotate_v);
    c.rotate = DQ_ROTATE_ON;
    assert_int_equal(dq_kv_config_spec(&s, &c, DQ_NUM_F32, DQ_KV_ANY_DIM, 2, TWO_MAPS, &err),
                     DQ_OK);
    assert_int_equal(dq_kv_config_spec(&s, &c, DQ_NUM_F32, 80, 2, TWO_MAPS, &err), DQ_MISMATCH);
    dq_kv_config_spec(&s, &dq_kv_config_plain, DQ_NUM_F32, 64, 2, TWO_MAPS, &err);
    assert_true(dq_kv_spec_same(&s, &dq_kv_plain));
    assert_true(dq_kv_spec_is_plain(&s));
}

/* Labels say how a cache is rotated where `auto` would do otherwise, and which code it has. */
TEST(labels_say_what_a_cache_has)
{
    static const struct {
        const char *widths;
        dq_kv_quant quant;
        dq_rotate rotate;
        const char *says;
    } all[] = {{"16", DQ_KV_QUANT_AUTO, DQ_ROTATE_AUTO, "16:16"},
               {"16", DQ_KV_QUANT_AUTO, DQ_ROTATE_OFF, "16:16"},
               {"16", DQ_KV_QUANT_AUTO, DQ_ROTATE_ON, "16:16 rotated"},
               {"32", DQ_KV_QUANT_AUTO, DQ_ROTATE_AUTO, "32:32"},
               {"32:4", DQ_KV_PER_CHANNEL, DQ_ROTATE_OFF, "32:4 per-channel f32"},
               {"8:32", DQ_KV_PER_CHANNEL, DQ_ROTATE_AUTO, "8:32 per-channel f32"},
               {"8:4", DQ_KV_PER_CHANNEL, DQ_ROTATE_AUTO, "8:4 per-channel"},
               {"8:4", DQ_KV_PER_CHANNEL, DQ_ROTATE_ON, "8:4 per-channel rotated"},
               {"8:4", DQ_KV_PER_CHANNEL, DQ_ROTATE_OFF, "8:4 per-channel unrotated"},
               {"16:4", DQ_KV_PER_CHANNEL, DQ_ROTATE_OFF, "16:4 per-channel"},
               {"8", DQ_KV_PER_TOKEN, DQ_ROTATE_OFF, "8:8"},
               {"8:4", DQ_KV_PER_TOKEN, DQ_ROTATE_AUTO, "8:4"},
               {"8:4", DQ_KV_PER_TOKEN, DQ_ROTATE_ON, "8:4 rotated"},
               {"4", DQ_KV_PER_TOKEN, DQ_ROTATE_ON, "4:4"},
               {"4", DQ_KV_PER_TOKEN, DQ_ROTATE_OFF, "4:4 unrotated"},
               {"4", DQ_KV_DITHER, DQ_ROTATE_AUTO, "4:4 dither"},
               {"4:3", DQ_KV_DITHER, DQ_ROTATE_AUTO, "4:3 per-channel"},
               {"4:16", DQ_KV_DITHER, DQ_ROTATE_AUTO, "4:16 per-channel"},
               {"4:2|3", DQ_KV_DITHER, DQ_ROTATE_AUTO, "4:2|3 per-channel"},
               {"4:2|5", DQ_KV_DITHER, DQ_ROTATE_AUTO, "4:2|5 dither"}};
    dq_err err = {0};
    dq_kv_spec s;
    char text[DQ_KV_TEXT];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        dq_kv_config c = dq_kv_config_plain;
        c.quant = all[i].quant;
        c.rotate = all[i].rotate;
        c.dense = DQ_KV_DENSE_AUTO;
        assert_int_equal(dq_kv_config_set_widths(&c, all[i].widths, &err), DQ_OK);
        assert_int_equal(dq_kv_config_spec(&s, &c, DQ_NUM_F32, 64, 2, TWO_MAPS, &err), DQ_OK);
        assert_string_equal(dq_kv_codes_text(text, &s), all[i].says);
    }
}

/* On one map the usual code is mixed, whatever is forgotten. */
TEST(usual_code_of_one_map_is_mixed)
{
    dq_err err = {0};
    dq_kv_config c = dq_kv_config_plain;
    dq_kv_spec s;
    assert_int_equal(dq_kv_config_quant(&c, 1), DQ_KV_PER_TOKEN); /* nothing is coded */
    c.k_bits = 4;
    c.v_bits = 2;
    assert_int_equal(dq_kv_config_spec(&s, &c, DQ_NUM_F32, 64, 2, 1, &err), DQ_OK);
    assert_true(s.quant == DQ_KV_MIXED && s.rotate_k && s.rotate_v);
    assert_true(dq_kv_config_uses(&c, 1) & DQ_KV_NARROW);
    c.evict.policy = dq_kv_policy_find("h2o", &err);
    c.evict.keep = 0.5;
    assert_int_equal(dq_kv_config_quant(&c, 1), DQ_KV_MIXED);
    assert_int_equal(dq_kv_config_quant(&c, DQ_KV_ANY_MAPS), DQ_KV_MIXED);
}

/* The usual code of two maps, and what a file means that names none. */
TEST(usual_code_goes_by_what_is_forgotten)
{
    dq_arena *a = given_arena();
    dq_err err = {0};
    dq_kv_config c = dq_kv_config_plain, back;
    dq_kv_spec s;
    assert_int_equal(c.quant, DQ_KV_QUANT_AUTO);
    c.k_bits = c.v_bits = 4;
    assert_int_equal(dq_kv_config_spec(&s, &c, DQ_NUM_F32, 64, 2, TWO_MAPS, &err), DQ_OK);
    assert_true(s.quant == DQ_KV_PER_CHANNEL && s.rotate_k && !s.rotate_v);
    c.evict.policy = dq_kv_policy_find("h2o", &err); /* keeps everything */
    assert_int_equal(dq_kv_config_quant(&c, TWO_MAPS), DQ_KV_PER_CHANNEL);
    c.evict.keep = 0.5;
    assert_int_equal(dq_kv_config_spec(&s, &c, DQ_NUM_F32, 64, 2, TWO_MAPS, &err), DQ_OK);
    assert_true(s.quant == DQ_KV_PER_TOKEN && s.rotate_k && s.rotate_v);
    assert_true(dq_kv_config_uses(&c, TWO_MAPS) & DQ_KV_NARROW);
    c.k_bits = 3;
    assert_int_equal(dq_kv_config_quant(&c, TWO_MAPS), DQ_KV_PER_CHANNEL);
    assert_false(dq_kv_config_uses(&c, TWO_MAPS) & DQ_KV_NARROW);
    c.k_bits = 4;
    c.evict.keep = 0;
    c.evict.tokens = 100;
    assert_int_equal(dq_kv_config_quant(&c, TWO_MAPS), DQ_KV_PER_TOKEN);
    json_t *o = dq_kv_config_json(&c);
    assert_string_equal(json_string_value(json_object_get(o, "quant")), "auto");
    json_object_del(o, "quant");
    assert_int_equal(dq_kv_config_read(&back, o, a, &err), DQ_OK);
    assert_int_equal(back.quant, DQ_KV_PER_TOKEN);
    json_decref(o);
    o = dq_kv_config_json(&dq_kv_config_plain);
    assert_null(json_object_get(o, "quant"));
    assert_int_equal(dq_kv_config_read(&back, o, a, &err), DQ_OK);
    assert_int_equal(back.quant, DQ_KV_QUANT_AUTO);
    json_decref(o);
}

/* 64 was the default: it stays where something is coded or evicted, and where it is another number. */
TEST(old_default_is_renewed)
{
    dq_err err = {0};
    dq_kv_config c = dq_kv_config_plain;
    assert_int_equal(c.sink + c.recent, DQ_PAGE_TOKENS);
    c.recent = 64;
    dq_kv_config_renew(&c);
    assert_true(dq_kv_config_same(&c, &dq_kv_config_plain));
    c.recent = 32;
    dq_kv_config_renew(&c);
    assert_int_equal(c.recent, 32);
    c.recent = 64;
    c.k_bits = 4;
    dq_kv_config_renew(&c);
    assert_int_equal(c.recent, 64);
    c.k_bits = 16;
    c.evict.policy = dq_kv_policy_find("streaming", &err);
    dq_kv_config_renew(&c);
    assert_int_equal(c.recent, 64);
}

/* Before a model is known, widths that are all alike have the codes, and make use of the options, of one width. */
TEST(equal_widths_are_no_list)
{
    dq_err err = {0};
    dq_kv_config c = dq_kv_config_plain;
    dq_kv_spec s;
    assert_int_equal(dq_kv_config_set_widths(&c, "4|4", &err), DQ_OK);
    assert_int_equal(dq_kv_config_quant(&c, TWO_MAPS), DQ_KV_PER_CHANNEL);
    c.evict.policy = dq_kv_policy_find("h2o", &err);
    c.evict.keep = 0.5;
    assert_int_equal(dq_kv_config_quant(&c, TWO_MAPS), DQ_KV_PER_TOKEN);
    assert_int_equal(dq_kv_config_uses(&c, TWO_MAPS),
                     DQ_KV_CODES | DQ_KV_NARROW | DQ_KV_EVICTS | DQ_KV_SUMS);
    c.quant = DQ_KV_PER_TOKEN;
    assert_int_equal(
        dq_kv_config_spec(&s, &c, DQ_NUM_F32, DQ_KV_ANY_DIM, DQ_KV_ANY_LAYERS, TWO_MAPS, &err),
        DQ_OK);
    assert_true(!s.widths[0] && s.k_bits == 4 && s.v_bits == 4);
    assert_int_equal(dq_kv_config_spec(&s, &c, DQ_NUM_F32, 64, 3, TWO_MAPS, &err), DQ_MISMATCH);
}

/* What a list means for a model, and that one of equal widths is no list. */
TEST(widths_wait_for_a_model)
{
    dq_err err = {0};
    dq_kv_config c = dq_kv_config_plain;
    dq_kv_spec s, t;
    c.quant = DQ_KV_PER_CHANNEL;
    assert_int_equal(dq_kv_config_set_widths(&c, "3|5+3:2*|6", &err), DQ_OK);
    assert_true(c.k_bits == 0 && c.v_bits == 0);
    assert_int_equal(dq_kv_config_uses(&c, TWO_MAPS), DQ_KV_CODES);
    assert_int_equal(dq_kv_config_spec(&s, &c, DQ_NUM_F32, 64, 2, TWO_MAPS, &err), DQ_OK);
    assert_string_equal(s.widths, "3|5+3:2|6");
    assert_true(s.k_bits == 5 && s.v_bits == 6 && s.rotate_k && !s.rotate_v);
    assert_true(dq_kv_mean_bits(&s, false) == 3.5 && dq_kv_mean_bits(&s, true) == 4);
    assert_true(dq_kv_token_bytes(&s, 64) == 64 * (3.5 + 4) / 8 + 2 * 4);
    assert_int_equal(dq_kv_config_spec(&s, &c, DQ_NUM_F32, 64, 3, TWO_MAPS, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "keys are for 2 layers, and the model has 3"));
    err = (dq_err){0};
    assert_int_equal(dq_kv_config_set_widths(&c, "4|4*:4|4", &err), DQ_OK);
    assert_int_equal(dq_kv_config_spec(&s, &c, DQ_NUM_F32, 64, 2, TWO_MAPS, &err), DQ_OK);
    assert_int_equal(dq_kv_config_fit(&c, 2, &err), DQ_OK);
    dq_kv_config plain = dq_kv_config_plain;
    plain.quant = DQ_KV_PER_CHANNEL;
    plain.k_bits = plain.v_bits = 4;
    assert_int_equal(dq_kv_config_spec(&t, &plain, DQ_NUM_F32, 64, 2, TWO_MAPS, &err), DQ_OK);
    assert_true(dq_kv_spec_same(&s, &t) && dq_kv_config_same(&c, &plain));
    c = plain;
    assert_int_equal(dq_kv_config_set_widths(&c, "16|16*:16", &err), DQ_OK);
    assert_int_equal(dq_kv_config_uses(&c, TWO_MAPS), 0);
    c = plain;
    assert_int_equal(dq_kv_config_set_widths(&c, "3|4", &err), DQ_OK);
    c.quant = DQ_KV_PER_TOKEN;
    assert_int_equal(dq_kv_config_spec(&s, &c, DQ_NUM_F32, 64, 2, TWO_MAPS, &err), DQ_USAGE);
}

/* Of a budget that goes by heads two lists are two settings; beside another budget there is none. */
TEST(roles_are_compared_and_refused)
{
    static const struct {
        const char *heads;
        dq_kv_budget budget;
        const char *says;
    } bad[] = {{"", DQ_KV_BUDGET_HEADS, "the budget \"heads\" needs heads"},
               {"1.0,0.0", DQ_KV_BUDGET_GLOBAL, "heads say nothing with the budget \"global\""},
               {"1.0,1.0", DQ_KV_BUDGET_HEADS, "KV settings: heads: group 1.0 stands twice"}};
    dq_arena *a = given_arena();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dq_err err = {0};
        dq_kv_config c = full(), back;
        c.evict.budget = bad[i].budget;
        snprintf(c.evict.heads, sizeof c.evict.heads, "%s", bad[i].heads);
        json_t *o = dq_kv_config_json(&c);
        assert_int_equal(dq_kv_config_read(&back, o, a, &err), DQ_DAMAGED);
        if (!strstr(err.text, bad[i].says)) fail_msg("%s", err.text);
        err = (dq_err){0};
        assert_int_equal(dq_kv_config_file(&back, o, &err), DQ_DAMAGED);
        json_decref(o);
    }
    dq_err err = {0};
    dq_kv_config c = full(), d;
    c.evict.budget = DQ_KV_BUDGET_HEADS;
    dq_kv_spec s = spec_of(&c);
    assert_int_equal(dq_evict_check(&s, &err), DQ_USAGE);
    assert_int_equal(err.remedy[0].code, DQ_REMEDY_KV_HEADS);
    err = (dq_err){0};
    assert_int_equal(dq_kv_config_set_heads(&c, "1.0/0.0", &err), DQ_OK);
    d = c;
    assert_int_equal(dq_kv_config_set_heads(&d, "1.0,0.0", &err), DQ_OK);
    assert_false(dq_kv_config_same(&c, &d));
    assert_int_equal(dq_kv_config_set_heads(&d, "1.0,", &err), DQ_USAGE);
    assert_string_equal(d.evict.heads, "1.0,0.0"); /* as it was */
    s = spec_of(&c);
    err = (dq_err){0};
    assert_int_equal(dq_evict_check(&s, &err), DQ_OK);
    assert_true(dq_kv_config_uses(&c, TWO_MAPS) & DQ_KV_BY_HEADS);
}

/* A file says widths once, what it says can be read, and words are known. */
TEST(damaged_settings_are_refused)
{
    static const char *const bad[] = {"{'k_bits': 4, 'v_bits': 0, 'widths': '3|4:4'}",
                                      "{'k_bits': 0, 'v_bits': 0, 'widths': '3|'}",
                                      "{'k_bits': 0, 'v_bits': 0}",
                                      "{'k_bits': 0, 'v_bits': 0, 'widths': ''}",
                                      "{'dense_type': 'f8'}",
                                      "{'dense_type': ''}",
                                      "{'dense_type': 1}"};
    dq_arena *a = given_arena();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dq_err err = {0};
        dq_kv_config back;
        char text[128];
        snprintf(text, sizeof text, "%s", bad[i]);
        for (char *p = text; *p; p++) *p = *p == '\'' ? '"' : *p;
        json_t *o = dq_kv_config_json(&dq_kv_config_plain), *more = json_loads(text, 0, NULL);
        assert_non_null(more);
        json_object_set_new(o, "quant", json_string("per-channel"));
        json_object_update(o, more);
        assert_int_equal(dq_kv_config_read(&back, o, a, &err), DQ_DAMAGED);
        json_decref(o);
        json_decref(more);
    }
}

/* ---- Files that people write ---- */

static dq_status read_file(dq_kv_config *out, const char *single_quoted, dq_err *err)
{
    char text[256];
    *err = (dq_err){0};
    snprintf(text, sizeof text, "%s", single_quoted);
    for (char *p = text; *p; p++) *p = *p == '\'' ? '"' : *p;
    json_t *o = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(o);
    dq_kv_config_file(out, o, err);
    json_decref(o);
    return err->code;
}

/* Each key may be left out; what a container remembers is such a file as it stands. */
TEST(files_leave_out)
{
    dq_err err;
    dq_kv_config c, want = dq_kv_config_plain;
    assert_int_equal(read_file(&c, "{}", &err), DQ_OK);
    assert_true(dq_kv_config_same(&c, &want));
    assert_int_equal(
        read_file(&c, "{'widths': '3|5+3:3|6', 'quant': 'dither', 'recent': 16}", &err), DQ_OK);
    want.quant = DQ_KV_DITHER;
    want.recent = 16;
    assert_int_equal(dq_kv_config_set_widths(&want, "3|5+3:3|6", &err), DQ_OK);
    assert_true(dq_kv_config_same(&c, &want));
    want = dq_kv_config_plain;
    assert_int_equal(read_file(&c, "{'widths': '8:4'}", &err), DQ_OK);
    want.quant = DQ_KV_PER_TOKEN; /* which files without the key mean */
    want.k_bits = 8;
    want.v_bits = 4;
    assert_true(dq_kv_config_same(&c, &want));
    assert_int_equal(read_file(&c, "{'k_bits': 8, 'v_bits': 4, 'policy': null}", &err), DQ_OK);
    assert_true(dq_kv_config_same(&c, &want));
    assert_int_equal(read_file(&c, "{'k_bits': 32, 'v_bits': 32}", &err), DQ_OK);
    want = dq_kv_config_plain;
    want.dense = DQ_KV_F32;
    assert_true(dq_kv_config_same(&c, &want));
    assert_int_equal(read_file(&c, "{'policy': 'h2o', 'tokens': 100}", &err), DQ_OK);
    assert_true(c.evict.keep == 0 && c.evict.tokens == 100);
    assert_string_equal(c.evict.policy->name, "h2o");
    for (int i = -2; i < DQ_KV_FIELDS; i++) {
        const dq_kv_config stored = i == -2 ? dq_kv_config_plain : i < 0 ? full() : other(i);
        json_t *o = dq_kv_config_json(&stored);
        dq_kv_config_file(&c, o, &err);
        assert_string_equal(err.text, "");
        assert_true(dq_kv_config_same(&c, &stored));
        json_decref(o);
    }
}

TEST(damaged_files_are_refused)
{
    static const struct {
        const char *text, *says;
    } bad[] = {{"[]", "not an object"},
               {"{'bits': 4}", "unknown key \"bits\""},
               {"{'sink': null}", "key \"sink\": expected a value"},
               {"{'sink': -1}", "key \"sink\": expected 0 to"},
               {"{'recent': '16'}", "key \"recent\": expected an integer"},
               {"{'quant': 'pages'}", "key \"quant\": expected \"per-token\", \"per-channel\", "
                                      "\"dither\", \"mixed\" or \"auto\", found \"pages\""},
               {"{'rotate': 1}", "key \"rotate\": expected a string"},
               {"{'widths': '3|'}", "key \"widths\" is \"3|\": "},
               {"{'widths': '4:4', 'k_bits': 4}", "\"widths\" and \"k_bits\" are two ways"},
               {"{'widths': '3|4:4'}", "KV settings: "}, /* of per-token codes */
               {"{'k_bits': 7}", "KV settings: 7 bits"},
               {"{'k_bits': 32}", "16 and 32 bits in one cache"},
               {"{'k_bits': 32, 'v_bits': 32, 'dense_type': 'f16'}", "32 bits are f32, and key"},
               {"{'widths': '32', 'dense_type': 'f16'}", "32 bits are f32, and key"},
               {"{'k_bits': null}", "key \"k_bits\": expected a value"},
               {"{'keep': 0.5}", "key \"keep\" says nothing without \"policy\""},
               {"{'policy': 'h3o', 'keep': 0.5}", "key \"policy\" is \"h3o\": unknown policy"},
               {"{'policy': 'h2o'}", "\"policy\" needs \"keep\" or \"tokens\""},
               {"{'policy': 'h2o', 'keep': 1.5}", "found keep 1.5"},
               {"{'policy': 'h2o', 'keep': 0.5, 'tokens': 100}", "the other one 0"},
               {"{'policy': 'h2o', 'keep': 0.5, 'budget': 'heads', 'heads': '1.0,'}",
                "key \"heads\" is \"1.0,\": expected layers"},
               {"{'policy': 'h2o', 'keep': 0.5, 'budget': 'heads'}", "needs heads"},
               {"{'policy': 'h2o', 'keep': 0.5, 'heads': '1.0'}", "heads say nothing with"},
               {"{'policy': 'h2o', 'keep': 0.5, 'budget': 'heads', 'heads': 1}",
                "key \"heads\": expected a string"},
               {"{'heads': '1.0'}", "key \"heads\" says nothing without \"policy\""},
               {"{'policy': 'h2o', 'tokens': 10}", "tokens 10 is less than sink"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dq_err err;
        dq_kv_config c;
        if (read_file(&c, bad[i].text, &err) != DQ_DAMAGED || !strstr(err.text, bad[i].says))
            fail_msg("%s: expected \"%s\", found %d \"%s\"", bad[i].text, bad[i].says,
                     (int)err.code, err.text);
    }
}
