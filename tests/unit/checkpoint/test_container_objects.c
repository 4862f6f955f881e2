/* test_container_objects: no attribute, group, dataset or link of a container can be changed, lost or added unnoticed.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/h5.h"
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"
#include "tests/rigs/test_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char model[] = DQ_TEST_DIR "/golden/models/diffllama-f32";
#define DOWN "/tensors/model.layers.0.mlp.down_proj.weight"

/* What `dq verify` looks at before payloads. */
static dq_status check(const char *path, dq_err *err)
{
    dq_container *c;
    DQ_TRY(dq_container_open(&c, path, err));
    if (dq_container_check_index(c, err) == DQ_OK) dq_container_check_objects(c, err);
    dq_container_close(c);
    return err->code;
}

static void begin(hid_t *file)
{
    size_t len;
    char *bytes = bytes_of(at("whole.h5"), &len);
    put_bytes(at("changed.h5"), bytes, len);
    free(bytes);
    *file = H5Fopen(at("changed.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(*file >= 0);
}

/* "FILE: OBJECT: ... WHAT ...". Of a cache's settings the recipe may be named, which says something else, or what they mean,
 * where no cache can have them. */
static bool is_named(const char *text, const char *object, const char *what)
{
    static const char meaning[] = "KV settings: ";
    const bool cache = strcmp(object, "/kv_cache") == 0;
    char place[300];
    size_t n = (size_t)snprintf(place, sizeof place, "%s: %s: ", at("changed.h5"), object);
    if (strncmp(text, place, n) == 0)
        return strstr(text + n, what) ||
               (cache && strncmp(text + n, meaning, strlen(meaning)) == 0);
    n = (size_t)snprintf(place, sizeof place, "%s: /config/recipe_json: \"kv\" differs from ",
                         at("changed.h5"));
    return cache && strncmp(text, place, n) == 0 && strstr(text + n, what);
}

/* Closes the file, which is damaged and says where and what. */
static void expect(hid_t file, const char *object, const char *what)
{
    dq_err err = {0};
    assert_true(H5Fclose(file) >= 0);
    if (check(at("changed.h5"), &err) != DQ_DAMAGED)
        fail_msg("%s, %s: expected damage, found %d: %s", object, what, (int)err.code, err.text);
    if (!is_named(err.text, object, what))
        fail_msg("%s, %s: is not named: %s", object, what, err.text);
}

/* Another value of the same type: one bit of its last byte; of texts that vary in length, one byte. */
static void change(hid_t a)
{
    hid_t type = H5Aget_type(a), space = H5Aget_space(a);
    const size_t n = (size_t)H5Sget_simple_extent_npoints(space) * H5Tget_size(type);
    uint8_t *v = calloc(n, 1);
    assert_true(v && H5Aread(a, type, v) >= 0);
    if (H5Tis_variable_str(type) > 0) {
        char *text;
        memcpy(&text, v, sizeof text);
        text[0] ^= 1;
        assert_true(H5Awrite(a, type, v) >= 0);
        H5Dvlen_reclaim(type, space, H5P_DEFAULT, v);
    } else {
        v[H5Tget_class(type) == H5T_STRING ? n - 1 : 0] ^= 1;
        assert_true(H5Awrite(a, type, v) >= 0);
    }
    free(v);
    H5Sclose(space);
    H5Tclose(type);
}

typedef struct found {
    char name[32][64];
    int n;
} found;

static herr_t note(hid_t at, const char *name, const H5A_info_t *info, void *arg)
{
    (void)at;
    (void)info;
    found *f = arg;
    assert_true(f->n < 32 && strlen(name) < 64);
    strcpy(f->name[f->n++], name);
    return 0;
}

/* What the header's first look says of these, which needs their values before it can compare them. */
static bool is_form(const char *object, const char *name)
{
    return strcmp(object, "/") == 0 && strncmp(name, "encoding-", 9) == 0;
}

static int try_object(const char *object)
{
    found f = {.n = 0};
    hid_t file, o;
    begin(&file);
    o = H5Oopen(file, object, H5P_DEFAULT);
    assert_true(o >= 0 && H5Aiterate2(o, H5_INDEX_NAME, H5_ITER_INC, NULL, note, &f) >= 0);
    H5Oclose(o);
    H5Fclose(file);
    for (int i = 0; i < f.n; i++) {
        if (is_form(object, f.name[i])) continue;
        for (int lost = 0; lost < 2; lost++) {
            begin(&file);
            o = H5Oopen(file, object, H5P_DEFAULT);
            hid_t a = H5Aopen(o, f.name[i], H5P_DEFAULT);
            if (!lost) change(a);
            H5Aclose(a);
            if (lost) assert_true(H5Adelete(o, f.name[i]) >= 0);
            H5Oclose(o);
            expect(file, object, f.name[i]);
        }
    }
    return f.n;
}

TEST(attributes_cannot_change)
{
    static const char *const object[] = {
        "/",           "/attention", "/kv_cache",
        "/provenance", DOWN,         DOWN "/packed",
        DOWN "/scale", DOWN "/zero", "/tensors/model.layers.0.input_layernorm.weight"};
    int n = 0;
    for (size_t i = 0; i < sizeof object / sizeof *object; i++) n += try_object(object[i]);
    assert_true(n >= 36);
}

/* A major version that is not known is another format; a minor one belongs to another file. */
TEST(versions_cannot_change)
{
    static const struct {
        const char *value;
        dq_status status;
    } row[] = {{"9.0", DQ_MISMATCH}, {"1.7", DQ_DAMAGED}};
    for (int i = 0; i < 2; i++) {
        dq_err err = {0};
        hid_t file;
        begin(&file);
        hid_t a = H5Aopen(file, "encoding-version", H5P_DEFAULT), type = H5Aget_type(a);
        assert_true(H5Awrite(a, type, row[i].value) >= 0);
        H5Tclose(type);
        H5Aclose(a);
        H5Fclose(file);
        assert_int_equal(check(at("changed.h5"), &err), row[i].status);
        assert_non_null(strstr(err.text, row[i].value));
    }
}

static void put_attribute(hid_t file, const char *object, const char *name, hid_t type)
{
    const int64_t v[2] = {1, 2};
    hid_t o = H5Oopen(file, object, H5P_DEFAULT), space = H5Screate(H5S_SCALAR);
    hid_t a = H5Acreate2(o, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(a >= 0 && H5Awrite(a, type, v) >= 0);
    H5Aclose(a);
    H5Sclose(space);
    H5Oclose(o);
}

static void put_dataset(hid_t file, const char *path)
{
    const hsize_t dim = 3;
    hid_t space = H5Screate_simple(1, &dim, NULL);
    hid_t d = H5Dcreate2(file, path, H5T_STD_U8LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(d >= 0);
    H5Dclose(d);
    H5Sclose(space);
}

TEST(nothing_can_be_added)
{
    static const char *const folder[] = {
        "", "/config", "/tensors/model.layers.0.mlp.up_proj.weight", "/tokenizer", "/kv_cache"};
    char path[200];
    hid_t file;
    for (size_t i = 0; i < sizeof folder / sizeof *folder; i++) {
        snprintf(path, sizeof path, "%s/more", folder[i]);
        begin(&file);
        put_dataset(file, path);
        expect(file, path, "was not written with the file");
        begin(&file);
        H5Gclose(H5Gcreate2(file, path, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        expect(file, path, "was not written with the file");
        begin(&file);
        assert_true(H5Lcreate_soft("/index", file, path, H5P_DEFAULT, H5P_DEFAULT) >= 0);
        expect(file, path, "was not written with the file");
        begin(&file); /* in a circle */
        assert_true(H5Lcreate_hard(file, "/", file, path, H5P_DEFAULT, H5P_DEFAULT) >= 0);
        expect(file, path, "was not written with the file");
        begin(&file);
        put_attribute(file, *folder[i] ? folder[i] : "/", "more", H5T_STD_I64LE);
        expect(file, *folder[i] ? folder[i] : "/", "attribute more is one that was not written");
    }
    begin(&file);
    put_attribute(file, "/index", "more", H5T_STD_I32BE);
    expect(file, "/index", "attribute more is one that was not written");
    begin(&file); /* a link to what was there */
    assert_true(H5Lmove(file, "/tokenizer", file, "/elsewhere", H5P_DEFAULT, H5P_DEFAULT) >= 0 &&
                H5Lcreate_soft("/elsewhere", file, "/tokenizer", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    expect(file, "/elsewhere", "was not written with the file");
}

/* Attribute `name` of an object, made anew as one text, or with dims as one label. Its type is not kept. */
static void put_form(hid_t file, const char *object, const char *name, hid_t type, int dims,
                     const void *value)
{
    const hsize_t one = 1;
    hid_t o = H5Oopen(file, object, H5P_DEFAULT);
    hid_t space = dims ? H5Screate_simple(1, &one, NULL) : H5Screate(H5S_SCALAR);
    assert_true(H5Adelete(o, name) >= 0);
    hid_t a = H5Acreate2(o, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(a >= 0 && H5Awrite(a, type, value) >= 0);
    H5Aclose(a);
    H5Sclose(space);
    H5Tclose(type);
    H5Oclose(o);
}

/* The same text to a reader that stops at its end, in another form. */
TEST(texts_have_one_form)
{
    static const char hidden[16] = "int-zero\0secret", name[] = "encoding-type";
    const char *const label = "out,byte";
    hid_t file, type;
    begin(&file); /* as it was */
    put_form(file, DOWN, name, dq_h5_text_type(8), 0, hidden);
    H5Fclose(file);
    dq_err err = {0};
    assert_int_equal(check(at("changed.h5"), &err), DQ_OK);
    begin(&file);
    put_form(file, DOWN, name, dq_h5_text_type(sizeof hidden), 0, hidden);
    expect(file, DOWN, "attribute encoding-type is of another type");
    begin(&file);
    put_form(file, DOWN, name, dq_h5_text_type(9), 0, hidden);
    expect(file, DOWN, "attribute encoding-type is of another type");
    begin(&file);
    type = dq_h5_text_type(8);
    assert_true(H5Tset_cset(type, H5T_CSET_ASCII) >= 0);
    put_form(file, DOWN, name, type, 0, hidden);
    expect(file, DOWN, "attribute encoding-type is of another type");
    begin(&file);
    type = dq_h5_text_type(8);
    assert_true(H5Tset_strpad(type, H5T_STR_SPACEPAD) >= 0);
    put_form(file, DOWN, name, type, 0, hidden);
    expect(file, DOWN, "attribute encoding-type is of another type");
    begin(&file);
    put_form(file, DOWN "/packed", "DIMENSION_LABELS", dq_h5_text_type(10), 0, "[out,byte]");
    expect(file, DOWN "/packed",
           "DIMENSION_LABELS is text:\\[out,byte] (expected text:[out,byte])");
    type = H5Tcopy(H5T_C_S1);
    assert_true(H5Tset_size(type, H5T_VARIABLE) >= 0);
    begin(&file);
    put_form(file, DOWN "/packed", "DIMENSION_LABELS", type, 1, &label);
    expect(file, DOWN "/packed",
           "DIMENSION_LABELS is text:[out\\,byte] (expected text:[out,byte])");
}

TEST(comments_cannot_be_added)
{
    static const char *const object[] = {"/", "/config", "/index", DOWN "/scale"};
    hid_t file;
    for (size_t i = 0; i < sizeof object / sizeof *object; i++) {
        begin(&file);
        assert_true(H5Oset_comment_by_name(file, object[i], "more", H5P_DEFAULT) >= 0);
        expect(file, object[i], "is an object with a comment (expected ");
    }
}

/* HDF5 itself reads past these. */
TEST(bytes_cannot_be_added)
{
    enum { FRONT = 4096 };
    size_t len;
    char *whole = bytes_of(at("whole.h5"), &len), *more = calloc(len + FRONT, 1);
    assert_non_null(more);
    for (int front = 0; front < 2; front++) {
        dq_err err = {0};
        memset(more, 0, FRONT);
        memcpy(more + (front ? FRONT : 0), whole, len);
        put_bytes(at("changed.h5"), more, front ? len + FRONT : len + 1);
        assert_int_equal(check(at("changed.h5"), &err), DQ_DAMAGED);
        assert_non_null(
            strstr(err.text, front ? "a block was put before it" : ", where HDF5 ends)"));
    }
    free(more);
    free(whole);
}

/* /tokenizer holds nothing in this model: no payload and no attribute lacks with it. */
TEST(nothing_can_go)
{
    static const char *const path[] = {"/tokenizer", "/attention", "/kv_cache",
                                       "/config/recipe_json", "/objects"};
    H5G_info_t in;
    hid_t file;
    begin(&file);
    assert_true(H5Gget_info_by_name(file, "/tokenizer", &in, H5P_DEFAULT) >= 0 && in.nlinks == 0);
    H5Fclose(file);
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        begin(&file);
        assert_true(H5Ldelete(file, path[i], H5P_DEFAULT) >= 0);
        expect(file, path[i], "missing");
    }
}

/* Any two lines have a first difference that is named. */
TEST(differences_are_named)
{
    static const struct {
        const char *written, *found, *says;
    } row[] = {
        {"/a\tgroup\tx=i64:1", "/a\tgroup\tx=i64:1", NULL},
        {"/a\tgroup\tx=i64:1", "/a\tgroup\tx=i64:2", "attribute x is i64:2 (expected i64:1)"},
        {"/a\tgroup\tx=i64:1", "/a\tgroup\tx=f64:1", "attribute x is f64:1 (expected i64:1)"},
        {"/a\tgroup\tx=i64:1\ty=i64:1", "/a\tgroup\ty=i64:1", "attribute x is missing"},
        {"/a\tgroup\ty=i64:1", "/a\tgroup\tx=i64:1\ty=i64:1", "attribute x is one that was not"},
        {"/a\tgroup\tx=i64:1", "/a\tgroup", "attribute x is missing (expected i64:1)"},
        {"/a\tgroup", "/a\tgroup\tx=i64:1", "attribute x is one that was not"},
        {"/a\tgroup\tx_y=i64:1", "/a\tgroup\tx=i64:1", "attribute x is one that was not"},
        {"/a\tf16[2]", "/a\tbf16[2]", "is bf16[2] (expected f16[2])"},
        {"/a\tgroup\tx", "/a\tgroup\tx=i64:1", "attribute x is i64:1 (expected )"},
        {"/a", "/a\tgroup", "is no line of objects"},
    };
    dq_arena *a = given_arena();
    dq_err err = {0};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *says = dq_object_list_differs(row[i].written, row[i].found, a, &err);
        if (!says != !row[i].says || (says && !strstr(says, row[i].says)))
            fail_msg("%zu: %s", i, says ? says : "(nothing)");
    }
}

/* Whatever order they come in, and whatever is in them. */
TEST(lines_have_one_form)
{
    static const char want[] =
        "/\tgroup\n"
        "/a-b\ttext\tlist=text:[o\\,t,[in]]\tn=i64:[-1,2]\tn_more=i64:7\tone=text:\\[a,b]\n"
        "/a\\tb\tf16[2,3]\tr=f64:0.10000000000000001\tt=text:x\\\\y\\nz\n";
    const int64_t shape[2] = {2, 3}, n[2] = {-1, 2}, seven = 7;
    const char *const axes[2] = {"o,t", "[in]"}, *const array = "[a,b]", *const text = "x\\y\nz";
    dq_err err = {0};
    dq_object_list l = {.arena = dq_arena_new(), .err = &err};
    const char *out;
    size_t len;
    dq_object_list_add(&l, "/a-b", "text");
    dq_object_list_ints(&l, "n_more", &seven, 0);
    dq_object_list_ints(&l, "n", n, 2);
    dq_object_list_texts(&l, "one", &array, 0);
    dq_object_list_texts(&l, "list", axes, 2);
    dq_object_list_add(&l, "/a\tb", dq_object_list_kind(&l, "f16", 2, shape));
    dq_object_list_texts(&l, "t", &text, 0);
    dq_object_list_real(&l, "r", 0.1);
    dq_object_list_add(&l, "/", "group");
    assert_int_equal(dq_object_list_end(&l, &out, &len), DQ_OK);
    assert_string_equal(out, want);
    assert_int_equal(len, strlen(want));
    dq_arena_free(l.arena);
}

static int begin_whole(void **state)
{
    const dq_quantize_settings s = settings_of(4, 8, DQ_ASYM);
    dq_err err = {0};
    if (folder_begin(state) != 0) return -1;
    make_container(model, at("whole.h5"), &s);
    return check(at("whole.h5"), &err) == DQ_OK ? 0 : -1;
}

FIXTURES(begin_whole, folder_end)
