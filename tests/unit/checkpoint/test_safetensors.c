/* Tests of safetensors files and checkpoint folders: what is valid loads, everything else ends in
 * its status and a line that names the culprit.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"
#include "tests/rigs/test_folder.h"

#include "checkpoint/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- One file in memory ---- */

/* length (8 bytes) + header + n data bytes 0, 1, 2, ... in a block of exactly that size, so that a
 * sanitizer sees any step outside. */
static uint8_t *make_file(size_t *len, const char *header, size_t data_bytes)
{
    uint64_t n = strlen(header);
    *len = 8 + n + data_bytes;
    uint8_t *bytes = malloc(*len);
    assert_non_null(bytes);
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++) bytes[8 + n + i] = (uint8_t)i;
    return bytes;
}

TEST(valid_files_load)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"zeta\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
        "\"empty\":{\"dtype\":\"I64\",\"shape\":[0,9223372036854775807],\"data_offsets\":[8,8]},"
        "\"alpha\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[8,14]},"
        "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[14,15]}}   ";
    static const char *const names[] = {"alpha", "empty", "scalar", "zeta"};
    static const size_t offset[] = {8, 8, 14, 0}, bytes_of[] = {6, 0, 1, 8};
    size_t len;
    dq_tensor *t;
    int64_t n;
    dq_err err = {0};
    dq_arena *a = given_arena();
    uint8_t *bytes = make_file(&len, header, 15);
    assert_int_equal(dq_safetensors_parse(&t, &n, bytes, len, a, &err), DQ_OK);
    assert_int_equal(n, 4);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(t[i].name, names[i]);
        assert_ptr_equal(t[i].data, bytes + 8 + strlen(header) + offset[i]);
        assert_int_equal(dq_tensor_bytes(&t[i]), bytes_of[i]);
    }
    assert_int_equal(t[0].dtype, DQ_BF16);
    assert_int_equal(t[2].n_dims, 0);
    assert_int_equal(t[3].shape[0], 2);
    free(bytes);
}

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(lying_headers_are_named)
{
    static const struct {
        const char *header;
        size_t data;
        dq_status status;
        const char *text;
    } t[] = {
        {"{}", 0, DQ_OK, ""},
        {"{}", 3, DQ_DAMAGED, "3 bytes at the end"},
        {"[]", 0, DQ_DAMAGED, "begin with '{'"},
        {" {}", 0, DQ_DAMAGED, "begin with '{'"},
        {"{", 0, DQ_DAMAGED, "JSON"},
        {"{} x", 0, DQ_DAMAGED, "JSON"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"a\":" T("F32", "[1]", "[4,8]") "}", 8, DQ_DAMAGED,
         "duplicate"},
        {"{\"a\":7}", 0, DQ_DAMAGED, "\"a\" is not an object"},
        {"{\"a\":" T("F33", "[1]", "[0,4]") "}", 4, DQ_DAMAGED, "unknown dtype \"F33\""},
        {"{\"a\":" T("C64", "[1]", "[0,8]") "}", 8, DQ_MISMATCH, "C64 is not supported"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, DQ_DAMAGED, "\"dtype\" is missing"},
        {"{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, DQ_DAMAGED, "\"dtype\""},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, DQ_DAMAGED, "\"shape\""},
        {"{\"a\":" T("F32", "4", "[0,4]") "}", 4, DQ_DAMAGED, "\"shape\""},
        {"{\"a\":" T("F32", "[-1]", "[0,4]") "}", 4, DQ_DAMAGED, "\"shape\""},
        {"{\"a\":" T("F32", "[1.0]", "[0,4]") "}", 4, DQ_DAMAGED, "\"shape\""},
        {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, DQ_DAMAGED, "9 dimensions"},
        {"{\"a\":" T("F32", "[4611686018427387904]", "[0,4]") "}", 4, DQ_DAMAGED, "too large"},
        {"{\"a\":" T("F32", "[4294967296,4294967296]", "[0,0]") "}", 0, DQ_DAMAGED, "too large"},
        {"{\"a\":" T("F32", "[99999999999999999999]", "[0,4]") "}", 4, DQ_DAMAGED, "not a count"},
        {"{\"a\":" T("F32", "[2]", "[0,4]") "}", 4, DQ_DAMAGED, "need 8 bytes"},
        {"{\"a\":" T("F32", "[1]", "[0,8]") "}", 8, DQ_DAMAGED, "need 4 bytes"},
        {"{\"a\":" T("F32", "[1]", "[4,0]") "}", 4, DQ_DAMAGED, "data_offsets"},
        {"{\"a\":" T("F32", "[1]", "[-4,0]") "}", 4, DQ_DAMAGED, "data_offsets"},
        {"{\"a\":" T("F32", "[1]", "[0]") "}", 4, DQ_DAMAGED, "data_offsets"},
        {"{\"a\":" T("F32", "[1]", "[0,4,4]") "}", 4, DQ_DAMAGED, "data_offsets"},
        {"{\"a\":" T("F32", "[1]", "\"x\"") "}", 4, DQ_DAMAGED, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, DQ_DAMAGED, "data_offsets"},
        {"{\"a\":" T("F32", "[2]", "[0,8]") "}", 7, DQ_DAMAGED, "incomplete"},
        {"{\"a\":" T("F32", "[1]", "[9223372036854775803,9223372036854775807]") "}", 4, DQ_DAMAGED,
         "incomplete"},
        {"{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F32", "[1]", "[4,8]") "}", 8, DQ_DAMAGED,
         "\"b\" overlaps tensor \"a\""},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[0,4]") "}", 4, DQ_DAMAGED,
         "overlaps"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[8,12]") "}", 12, DQ_DAMAGED,
         "4 bytes before tensor \"b\""},
        {"{\"a\":" T("F32", "[1]", "[4,8]") "}", 8, DQ_DAMAGED, "4 bytes before tensor \"a\""},
        {"{\"__metadata__\":{\"a\":1}}", 0, DQ_DAMAGED, "metadata \"a\""},
        {"{\"__metadata__\":[]}", 0, DQ_DAMAGED, "__metadata__"},
        {"{\"a\\u0000b\":" T("F32", "[1]", "[0,4]") "}", 4, DQ_DAMAGED, "JSON"},
        {"{\"a\\nb\":" T("F32", "[2]", "[0,4]") "}", 4, DQ_DAMAGED, "a?b"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        size_t len;
        dq_tensor *tensors;
        int64_t n;
        dq_err err = {0};
        dq_arena *a = given_arena();
        uint8_t *bytes = make_file(&len, t[i].header, t[i].data);
        dq_safetensors_parse(&tensors, &n, bytes, len, a, &err);
        check_error(&err, t[i].status, t[i].text);
        free(bytes);
    }
}

TEST(header_lengths_are_checked)
{
    static const struct {
        uint64_t length;
        size_t file; /* bytes of the whole file */
        const char *text;
    } t[] = {
        {2, 0, "0 bytes"},
        {2, 7, "7 bytes"},
        {0, 8, "begin with"},
        {0, 20, "begin with"},
        {13, 20, "incomplete"},
        {UINT64_C(100000000), 20, "incomplete"},
        {UINT64_C(100000001), 20, "100000001"},
        {UINT64_C(1) << 60, 20, "1152921504606846976"},
        {UINT64_MAX, 20, "18446744073709551615"},
        {UINT64_MAX - 7, 20, "not plausible"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_tensor *tensors;
        int64_t n;
        dq_err err = {0};
        dq_arena *a = given_arena();
        uint8_t *bytes = malloc(t[i].file + 1);
        assert_non_null(bytes);
        memset(bytes, ' ', t[i].file + 1);
        memcpy(bytes, &t[i].length, t[i].file < 8 ? t[i].file : 8);
        dq_safetensors_parse(&tensors, &n, bytes, t[i].file, a, &err);
        check_error(&err, DQ_DAMAGED, t[i].text);
        free(bytes);
    }
}

/* ---- Folders ---- */

static void empty_folder(void)
{
    assert_int_equal(shell("rm -rf", at("*"), ""), 0);
}

static void put_text(const char *name, const char *text)
{
    put_bytes(at(name), text, strlen(text));
}

/* A weight file with one f32 each for the letters of `names`. */
static void put_weights(const char *file, const char *names)
{
    char header[1024] = "{";
    size_t len, n = strlen(names);
    for (size_t i = 0; i < n; i++) {
        size_t used = strlen(header);
        snprintf(header + used, sizeof header - used,
                 "%s\"%c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}",
                 i ? "," : "", names[i], 4 * i, 4 * i + 4);
    }
    strcat(header, "}");
    uint8_t *bytes = make_file(&len, header, 4 * n);
    put_bytes(at(file), bytes, len);
    free(bytes);
}

TEST(deep_json_does_not_exhaust_the_stack)
{
    enum { DEPTH = 100000 };
    static char header[DEPTH + 8];
    size_t len;
    dq_tensor *tensors;
    int64_t n;
    dq_err err = {0};
    dq_arena *a = given_arena();
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', DEPTH);
    header[5 + DEPTH] = 0;
    uint8_t *bytes = make_file(&len, header, 0);
    dq_safetensors_parse(&tensors, &n, bytes, len, a, &err);
    check_error(&err, DQ_DAMAGED, "JSON");
    dq_checkpoint *c;
    dq_err config_err = {0};
    put_text("config.json", header);
    dq_checkpoint_open(&c, at(""), &config_err);
    check_error(&config_err, DQ_DAMAGED, "config.json: not valid JSON");
    empty_folder();
    free(bytes);
}

#define INDEX(map) "{\"metadata\":{\"total_size\":12.0},\"weight_map\":" map "}"

/* a.safetensors holds x and y, b.safetensors z, sub/c.safetensors w. */
TEST(indexes_are_checked)
{
    static const struct {
        const char *index;
        dq_status status;
        const char *text;
    } t[] = {
        {INDEX("{\"x\":\"a.safetensors\",\"y\":\"a.safetensors\",\"z\":\"b.safetensors\"}"), DQ_OK,
         ""},
        {"{\"weight_map\":{\"z\":\"b.safetensors\"}}", DQ_OK, ""},
        {INDEX("{\"w\":\"sub/c.safetensors\",\"z\":\"./b.safetensors\"}"), DQ_OK, ""},
        {INDEX("{\"x\":\"a.safetensors\",\"z\":\"b.safetensors\"}"), DQ_OK, ""},
        {INDEX("{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\",\"z\":\"b.safetensors\"}"), DQ_OK,
         ""},
        {INDEX("{\"x\":\"a.safetensors\",\"z\":\"b.safetensors\",\"v\":\"a.safetensors\"}"), DQ_OK,
         ""},
        {INDEX("{\"x\":\"lost.safetensors\"}"), DQ_FILE, "lost.safetensors"},
        {INDEX("{\"x\":\"/etc/passwd\"}"), DQ_DAMAGED, "\"x\""},
        {INDEX("{\"x\":\"../a.safetensors\"}"), DQ_DAMAGED, "\"x\""},
        {INDEX("{\"x\":\"sub/../a.safetensors\"}"), DQ_DAMAGED, "\"x\""},
        {INDEX("{\"x\":\"..\"}"), DQ_DAMAGED, "\"x\""},
        {INDEX("{\"x\":\"\"}"), DQ_DAMAGED, "\"x\""},
        {INDEX("{\"x\":\"a\\u0000b\"}"), DQ_DAMAGED, "\"x\""},
        {INDEX("{\"x\":7}"), DQ_DAMAGED, "\"x\""},
        {INDEX("{\"x\":\"sub\"}"), DQ_FILE, "is a folder, a file is needed"},
        {INDEX("{\"x\":\"config.json\"}"), DQ_DAMAGED, "config.json"},
        {INDEX("{}"), DQ_DAMAGED, "0 weight files"},
        {INDEX("[]"), DQ_DAMAGED, "weight_map"},
        {"{}", DQ_DAMAGED, "weight_map"},
        {"[]", DQ_DAMAGED, "weight_map"},
        {"", DQ_DAMAGED, "JSON"},
        {INDEX("{\"x\":\"a.safetensors\",\"x\":\"a.safetensors\"}"), DQ_DAMAGED, "duplicate"},
    };
    assert_int_equal(mkdir(at("sub"), 0700), 0);
    put_text("config.json", "{\"k\":1}");
    put_weights("a.safetensors", "xy");
    put_weights("b.safetensors", "z");
    put_weights("sub/c.safetensors", "w");
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_checkpoint *c;
        dq_err err = {0};
        put_text("model.safetensors.index.json", t[i].index);
        dq_checkpoint_open(&c, at(""), &err);
        check_error(&err, t[i].status, t[i].text);
        if (t[i].status == DQ_OK) assert_non_null(dq_checkpoint_find(c, "z"));
        if (t[i].status != DQ_OK) assert_null(c);
        dq_checkpoint_close(c);
    }
    empty_folder();
}

/* Which of x, y, z and w there are, and in which file's place among those of the index. */
static void check_kept(const char *index, const char *tensors, const char *files)
{
    dq_checkpoint *c;
    dq_err err = {0};
    put_text("model.safetensors.index.json", index);
    dq_checkpoint_open(&c, at(""), &err);
    assert_string_equal(err.text, "");
    assert_int_equal(c->count, strlen(tensors));
    for (int i = 0; tensors[i]; i++) {
        const char name[] = {tensors[i], 0};
        const dq_tensor *x = dq_checkpoint_find(c, name);
        size_t bytes;
        const uint8_t *file;
        assert_non_null(x);
        assert_string_equal(c->tensor[i].name, name);
        file = c->file[files[i] - '0'].map.data;
        bytes = c->file[files[i] - '0'].map.bytes;
        assert_true((const uint8_t *)x->data > file && (const uint8_t *)x->data < file + bytes);
    }
    dq_checkpoint_close(c);
}

TEST(an_index_decides_which_tensors_count)
{
    static const char third[] =
        INDEX("{\"x\":\"a.safetensors\",\"y\":\"c.safetensors\",\"z\":\"b.safetensors\"}");
    dq_checkpoint *c;
    dq_err err = {0};
    put_text("config.json", "{\"k\":1}");
    put_weights("a.safetensors", "xy");
    put_weights("b.safetensors", "yz");
    put_weights("c.safetensors", "w");
    check_kept(INDEX("{\"x\":\"a.safetensors\",\"y\":\"a.safetensors\",\"z\":\"b.safetensors\"}"),
               "xyz", "001");
    check_kept(INDEX("{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}"), "xy", "01");
    check_kept(INDEX("{\"x\":\"a.safetensors\",\"z\":\"b.safetensors\",\"v\":\"b.safetensors\"}"),
               "xz", "01"); /* v is nowhere */
    check_kept(INDEX("{\"x\":\"b.safetensors\",\"z\":\"a.safetensors\"}"), "xz",
               "01"); /* the other way */
    put_text("model.safetensors.index.json", third);
    dq_checkpoint_open(&c, at(""), &err);
    check_error(&err, DQ_DAMAGED,
                "\"y\" is stored in several weight files, and not in c.safetensors");
    empty_folder();
}

TEST(odd_folders_are_explained)
{
    dq_checkpoint *c;
    for (int i = 0; i < 8; i++) {
        dq_err err = {0};
        switch (i) {
        case 0: /* no config.json */
            dq_checkpoint_open(&c, at(""), &err);
            check_error(&err, DQ_FILE, "config.json");
            break;
        case 1:
            put_text("config.json", "{\"a\":1}");
            dq_checkpoint_open(&c, at(""), &err);
            check_error(&err, DQ_FILE, "neither model.safetensors nor");
            break;
        case 2:
            put_text("pytorch_model.bin", "PK");
            dq_checkpoint_open(&c, at(""), &err);
            check_error(&err, DQ_MISMATCH, "Convert");
            break;
        case 3:
            put_weights("model.safetensors", "qp");
            dq_checkpoint_open(&c, at(""), &err);
            assert_int_equal(err.code, DQ_OK);
            assert_int_equal(c->count, 2);
            assert_string_equal(c->tensor[0].name, "p");
            assert_string_equal(c->tensor[1].name, "q");
            assert_null(dq_checkpoint_find(c, "r"));
            assert_int_equal(c->n_files, 1);
            dq_checkpoint_close(c);
            break;
        case 4: /* a file instead of a folder */
            dq_checkpoint_open(&c, at("config.json"), &err);
            check_error(&err, DQ_DAMAGED, "not a folder");
            break;
        case 5:
            put_text("config.json", "[1]");
            dq_checkpoint_open(&c, at(""), &err);
            check_error(&err, DQ_DAMAGED, "config.json: not a JSON object");
            break;
        case 6:
            put_text("config.json", "{\"a\":1,\n\"a\":2}");
            dq_checkpoint_open(&c, at(""), &err);
            check_error(&err, DQ_DAMAGED, "line 2");
            break;
        default:
            put_text("config.json", "{\"a\":1}");
            put_text("model.safetensors", "");
            dq_checkpoint_open(&c, at(""), &err);
            check_error(&err, DQ_DAMAGED, "model.safetensors: 0 bytes");
        }
    }
    empty_folder();
}

TEST(shards_become_one_table)
{
    dq_checkpoint *c;
    dq_err err = {0};
    assert_int_equal(
        dq_checkpoint_open(&c, DQ_TEST_DIR "/golden/models/diffllama-f16-shards", &err), DQ_OK);
    assert_int_equal(c->n_files, 2);
    assert_string_equal(c->file[0].name, "model-00001-of-00002.safetensors");
    assert_non_null(c->file[0].map.data);
    for (int64_t i = 1; i < c->count; i++)
        assert_true(strcmp(c->tensor[(i - 1)].name, c->tensor[i].name) < 0);
    const dq_tensor *t = dq_checkpoint_find(c, "model.layers.1.mlp.down_proj.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, DQ_F16);
    assert_int_equal(t->shape[0], 64);
    assert_int_equal(c->config_text[0], '{');
    assert_int_equal(c->config_text[c->config_bytes], 0);
    assert_true(json_is_object(c->config));
    dq_checkpoint_close(c);
}

FIXTURES(folder_begin, folder_end)
