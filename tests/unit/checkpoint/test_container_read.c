/* test_container_read: no number comes from a damaged container: whoever opens a model, reads its
 * tokenizer or runs it learns of the damage first.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* memmem */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "base/os.h"
#include "checkpoint/container.h"
#include "engine/runner.h"
#include "tests/rigs/test_folder.h"

#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char container[] = "a.h5";
static char *whole; /* the container as it was written */
static size_t len;

static void put(void)
{
    put_bytes(at(container), whole, len);
}

static void make(dq_scale_mode mode)
{
    const dq_quantize_settings s = settings_of(4, 32, mode);
    make_container(DQ_SOURCE_DIR "/calib/pair/diffllama", at(container), &s);
    free(whole);
    whole = bytes_of(at(container), &len);
}

static int teardown(void **state)
{
    free(whole);
    return folder_end(state);
}

/* Everything that eval reads of a model. */
static dq_status use(dq_err *err)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json",
                                        "special_tokens_map.json"};
    dq_model *m = NULL;
    dq_backend *b = NULL;
    dq_runner *r = NULL;
    *err = (dq_err){0};
    if (dq_model_open(&m, at(container), err) == DQ_OK &&
        dq_backend_open(&b, "cpu", 1, err) == DQ_OK)
        dq_runner_new(&r, m, b, &dq_kv_plain, err);
    for (int i = 0; err->code == DQ_OK && i < 3; i++) {
        const char *text;
        size_t n;
        dq_model_file(m, files[i], &text, &n, err);
    }
    if (err->code == DQ_OK) { /* once is enough */
        dq_runner_free(r);
        dq_runner_new(&r, m, b, &dq_kv_plain, err);
    }
    dq_runner_free(r);
    dq_backend_close(b);
    dq_model_close(m);
    return err->code;
}

/* Paths and places of all payloads. */
typedef struct place {
    char path[256], sha[65];
    size_t at, bytes;
} place;

static place *places(int64_t *n)
{
    dq_err err = {0};
    dq_os_map m;
    assert_int_equal(dq_os_map_open(&m, at(container), &err), DQ_OK);
    dq_container *c = given_container(at(container));
    *n = c->n_payloads;
    place *all = calloc((size_t)*n, sizeof *all);
    assert_non_null(all);
    for (int64_t i = 0; i < *n; i++) {
        const dq_payload *p = &c->payload[i];
        snprintf(all[i].path, sizeof all[i].path, "%s", p->path);
        memcpy(all[i].sha, p->sha256, 65);
        all[i].bytes = (size_t)p->bytes;
        /* payloads begin on pages, so the first page that holds the same bytes is theirs */
        while (memcmp(whole + all[i].at, p->data, all[i].bytes) != 0) all[i].at += 4096;
    }
    dq_container_close(c);
    dq_os_map_close(&m);
    return all;
}

TEST(any_flipped_bit_is_found)
{
    dq_err err;
    int64_t n;
    make(DQ_ASYM);
    place *all = places(&n);
    if (use(&err) != DQ_OK) fail_msg("%s", err.text);
    for (int64_t i = 0; i < n; i++) {
        size_t at = all[i].at + all[i].bytes / 2;
        bool json = strncmp(all[i].path, "/config/", 8) == 0;
        whole[at] ^= 1;
        put();
        whole[at] ^= 1;
        if (use(&err) != DQ_DAMAGED) fail_msg("%s: %d %s", all[i].path, err.code, err.text);
        if (!strstr(err.text, json ? "/config/" : all[i].path))
            fail_msg("%s is not named: %s", all[i].path, err.text);
        if (!json && (!err.n_remedies || err.remedy[0].code != DQ_REMEDY_VERIFY))
            fail_msg("%s", err.text);
    }
    free(all);
}

/* A scale in the place of the first one, and its hash in /index: what a faulty writer would leave. */
static void check_scales(dq_scale_mode mode)
{
    static const struct {
        uint16_t half;
        const char *says;
    } bad[] = {
        {0x7c00, "not finite"}, {0x7e01, "not finite"}, {0xa000, "negative"}, {0x2000, NULL}};
    dq_err err = {0};
    int64_t n;
    make(mode);
    place *all = places(&n);
    const place *p = all;
    while (!strstr(p->path, "/scale")) p++;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char sha[65];
        memcpy(whole + p->at, &bad[i].half, sizeof bad[i].half);
        assert_int_equal(dq_sha256_of(sha, whole + p->at, p->bytes, &err), DQ_OK);
        char *row = memmem(whole, len, i == 0 ? p->sha : all->sha, 64);
        assert_non_null(row);
        memcpy(row, sha, 64);
        memcpy(all->sha, sha, 64); /* the first place's hash is not needed any more */
        put();
        dq_container *c = given_container(at(container));
        dq_container_check_weights(c, &err);
        assert_int_equal(err.code, bad[i].says ? DQ_DAMAGED : DQ_OK);
        if (bad[i].says && (!strstr(err.text, bad[i].says) || !strstr(err.text, p->path)))
            fail_msg("%s", err.text);
        dq_container_close(c);
        err = (dq_err){0};
    }
    free(all);
}

TEST(scales_must_make_sense)
{
    check_scales(DQ_ABSMAX);
    check_scales(DQ_ASYM);
}

/* The row of zero points ends inside a byte: what fills it is zero, whatever its hash says. */
TEST(zero_points_must_make_sense)
{
    dq_err err = {0};
    int64_t n;
    char sha[65];
    make(DQ_ASYM);
    if (use(&err) != DQ_OK) fail_msg("%s", err.text);
    place *all = places(&n);
    const place *p = all; /* 11 groups of 4 bits: half a byte is left in each row */
    while (!strstr(p->path, "down_proj.weight/zero")) p++;
    whole[p->at + 5] = (char)(whole[p->at + 5] | 0x80);
    assert_int_equal(dq_sha256_of(sha, whole + p->at, p->bytes, &err), DQ_OK);
    char *row = memmem(whole, len, p->sha, 64);
    assert_non_null(row);
    memcpy(row, sha, 64);
    put();
    dq_container *c = given_container(at(container));
    assert_int_equal(dq_container_check_weights(c, &err), DQ_DAMAGED);
    if (!strstr(err.text, "padding") || !strstr(err.text, p->path)) fail_msg("%s", err.text);
    dq_container_close(c);
    free(all);
}

/* Scales of a search may be negative. */
TEST(signs_are_for_search)
{
    dq_err err;
    make(DQ_SEARCH);
    if (use(&err) != DQ_OK) fail_msg("%s", err.text);
}

/* A file may ask for a filter; no code is loaded for it, whatever the environment says. */
TEST(no_plugin_is_loaded)
{
    unsigned mask = ~0u;
    dq_err err;
    assert_int_equal(H5PLset_loading_state(~0u), 0);
    make(DQ_ABSMAX);
    use(&err);
    assert_true(H5PLget_loading_state(&mask) >= 0);
    assert_int_equal(mask, 0);
}

FIXTURES(folder_begin, teardown)
