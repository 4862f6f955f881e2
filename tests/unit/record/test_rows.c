/* test_rows: one function of rows as JSON, as its schema and as cells.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/json.h"
#include "record/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct part {
    const char *name;
    int64_t n;
    double share;
} part;

typedef struct thing {
    const char *note; /* NULL: none */
    int bits;         /* 0: mixed */
    bool tied;
    const part *one;
    const part *part; /* [n] */
    int n;
} thing;

static const char *const names[] = {"a", "b"};

static void part_rows(dq_row_writer *w, const void *list, int64_t i)
{
    const part *p = DQ_LIVE(w, (const part *)list + i);
    DQ_PUT(w, "name", p->name, "What it is.", DQ_WORDS(names), .title = "part");
    DQ_PUT(w, "n", p->n, "How many.", .title = "n", .when = DQ_NULL | DQ_AT_0);
    DQ_PUT(w, "share", p->share, "Of all.", .title = "share", .digits = 2,
           .when = DQ_NULL | DQ_POSITIVE);
}

static void thing_rows(dq_row_writer *w, const thing *t)
{
    DQ_PUT(w, "note", t->note, "A note.", .when = DQ_OUT);
    DQ_PUT(w, "bits", t->bits, "Bits.", .mixed = "mixed", .max = 16);
    DQ_PUT(w, "tied", t->tied, "Whether.");
    if (DQ_BEGIN(w, OBJECT, "one", t->one, "One of them.", .def = "part", .when = DQ_NULL)) {
        part_rows(w, DQ_LIVE(w, t->one), 0);
        dq_row_end(w);
    }
    if (DQ_BEGIN(w, LIST, "parts", t->n, "All of them.", .when = DQ_OUT)) {
        for (int i = 0; DQ_MORE(w, i, t->n); i++) {
            if (!DQ_OBJECT(w, NULL, NULL, .def = "part")) continue;
            part_rows(w, DQ_LIVE(w, t->part), i);
            dq_row_end(w);
        }
        dq_row_end(w);
    }
    DQ_BEGIN(w, MAP, "shares", true, "By name.");
    for (int i = 0; DQ_MORE(w, i, t->n); i++)
        DQ_PUT(w, DQ_LIVE(w, t->part[i].name), t->part[i].share, NULL, .when = DQ_NULL);
    dq_row_end(w);
}

static void describe(dq_row_writer *w)
{
    thing_rows(w, NULL);
}

static const dq_document document = {"dq-thing/1", "A thing.", "thing", describe};

static void expect_json(json_t *x, const char *text)
{
    char *is = json_dumps(x, JSON_COMPACT);
    assert_string_equal(is, text);
    free(is);
    json_decref(x);
}

TEST(rows_as_json)
{
    const part parts[] = {{"a", 0, 0.5}, {"b", 2, (double)NAN}};
    const thing full = {"x\xff", 0, true, &parts[1], parts, 2},
                bare = {NULL, 4, false, NULL, NULL, 0};
    json_t *o = json_object(), *empty = json_object();
    dq_row_writer w = dq_row_json(o);
    thing_rows(&w, &full);
    expect_json(o, "{\"note\":\"x\xef\xbf\xbd\",\"bits\":\"mixed\",\"tied\":true,"
                   "\"one\":{\"name\":\"b\",\"n\":2,\"share\":null},"
                   "\"parts\":[{\"name\":\"a\",\"n\":null,\"share\":0.5},"
                   "{\"name\":\"b\",\"n\":2,\"share\":null}],\"shares\":{\"a\":0.5,\"b\":null}}");
    w = dq_row_json(empty);
    thing_rows(&w, &bare);
    expect_json(empty, "{\"bits\":4,\"tied\":false,\"one\":null,\"shares\":{}}");
}

TEST(rows_as_a_schema)
{
    json_t *s = dq_document_schema(&document), *all = json_object_get(s, "properties");
    assert_string_equal(json_string_value(json_object_get(s, "title")), "dq-thing/1");
    expect_json(json_deep_copy(json_object_get(all, "note")),
                "{\"description\":\"A note.\",\"type\":\"string\"}");
    expect_json(json_deep_copy(json_object_get(all, "bits")),
                "{\"description\":\"Bits.\",\"oneOf\":[{\"type\":\"integer\",\"minimum\":0,"
                "\"maximum\":16},{\"const\":\"mixed\"}]}");
    expect_json(json_deep_copy(json_object_get(all, "one")),
                "{\"description\":\"One of them.\",\"oneOf\":[{\"type\":\"null\"},"
                "{\"$ref\":\"#/$defs/part\"}]}");
    expect_json(json_deep_copy(json_object_get(all, "parts")),
                "{\"description\":\"All of them.\",\"type\":\"array\",\"items\":"
                "{\"$ref\":\"#/$defs/part\"}}");
    expect_json(json_deep_copy(json_object_get(all, "shares")),
                "{\"description\":\"By name.\",\"type\":\"object\",\"additionalProperties\":"
                "{\"type\":[\"number\",\"null\"]}}");
    expect_json(json_deep_copy(json_object_get(s, "required")),
                "[\"schema\",\"dq_version\",\"command\",\"bits\",\"tied\",\"one\",\"shares\","
                "\"warnings\"]");
    expect_json(json_deep_copy(json_object_get(json_object_get(s, "$defs"), "part")),
                "{\"type\":\"object\",\"properties\":{\"name\":{\"description\":\"What it is.\","
                "\"enum\":[\"a\",\"b\"]},\"n\":{\"description\":\"How many.\",\"type\":"
                "[\"integer\",\"null\"],\"minimum\":0},\"share\":{\"description\":\"Of all.\","
                "\"type\":[\"number\",\"null\"],\"minimum\":0}},\"required\":[\"name\",\"n\","
                "\"share\"],\"additionalProperties\":false}");
    json_decref(s);
}

static void take(void *arg, const dq_row *row, const char *text)
{
    (void)row;
    strcat(arg, text);
    strcat(arg, " ");
}

TEST(rows_as_cells)
{
    const part parts[] = {{"a", 0, 0.5}, {"b", 2, (double)NAN}};
    char cells[80] = "";
    dq_row_writer w = dq_row_cells(take, cells);
    for (int i = 0; i < 2; i++) part_rows(&w, parts, i);
    assert_string_equal(cells, "a - 0.50 b 2 - ");
}

static void inner_rows(dq_row_writer *w)
{
    DQ_PUT(w, "x", 1, "A number.", .min = 1);
}

/* What several members share, made elsewhere or here; means and intervals. */
static void shared_rows(dq_row_writer *w, json_t *made, dq_mean m, dq_interval i)
{
    DQ_PUT(w, "made", made, "Made elsewhere.", .def = "inner", .describe = inner_rows);
    if (DQ_OBJECT(w, "here", "Made here.", .def = "inner")) {
        inner_rows(w);
        dq_row_end(w);
    }
    DQ_PUT(w, "seen", (dq_maybe)-1, "Whether.", .when = DQ_NULL);
    DQ_METRIC(w, "ppl", m, "Perplexity.");
    DQ_INTERVAL(w, "interval", i, "Of both.");
}

static void describe_shared(dq_row_writer *w)
{
    shared_rows(w, NULL, dq_mean_none, dq_interval_none);
}

TEST(shared_objects_are_described_once)
{
    const dq_document d = {"dq-shared/1", "Shared.", "shared", describe_shared};
    json_t *s = dq_document_schema(&d), *all = json_object_get(s, "properties");
    expect_json(json_deep_copy(json_object_get(all, "made")),
                "{\"description\":\"Made elsewhere.\",\"$ref\":\"#/$defs/inner\"}");
    expect_json(json_deep_copy(json_object_get(all, "here")),
                "{\"description\":\"Made here.\",\"$ref\":\"#/$defs/inner\"}");
    expect_json(json_deep_copy(json_object_get(json_object_get(s, "$defs"), "inner")),
                "{\"type\":\"object\",\"properties\":{\"x\":{\"description\":\"A number.\","
                "\"type\":\"integer\",\"minimum\":1}},\"required\":[\"x\"],"
                "\"additionalProperties\":false}");
    expect_json(json_deep_copy(json_object_get(all, "interval")),
                "{\"description\":\"Of both.\",\"type\":[\"array\",\"null\"],\"minItems\":2,"
                "\"maxItems\":2,\"items\":{\"type\":[\"number\",\"null\"]}}");
    assert_non_null(json_object_get(json_object_get(s, "$defs"), "metric"));
    json_decref(s);
}

TEST(means_and_what_says_nothing)
{
    json_t *o = json_object();
    dq_row_writer w = dq_row_json(o);
    shared_rows(&w, json_pack("{s:i}", "x", 2), (dq_mean){.value = 0.5, .std_err = (double)NAN},
                (dq_interval){.low = 0.25, .high = 0.75});
    expect_json(o, "{\"made\":{\"x\":2},\"here\":{\"x\":1},\"seen\":null,"
                   "\"ppl\":{\"value\":0.5,\"stderr\":null},\"interval\":[0.25,0.75]}");
    o = json_object();
    w = dq_row_json(o);
    shared_rows(&w, json_object(), (dq_mean){.value = (double)INFINITY, .clusters = 3},
                dq_interval_none);
    expect_json(o, "{\"made\":{},\"here\":{\"x\":1},\"seen\":null,"
                   "\"ppl\":{\"value\":null,\"stderr\":0.0},\"interval\":null}");
}

static void number_rows(dq_row_writer *w, const void *list, int64_t i)
{
    DQ_PUT(w, "x", ((const int *)list)[i], "A number.");
}

/* A member of two types, and a list, of a file without a frame. */
static void file_rows(dq_row_writer *w, const int *list, int n)
{
    DQ_PUT(w, "group", "row", "Columns per scale.");
    if (!w->live) DQ_PUT(w, "group", 1, NULL, .min = 1);
    DQ_ITEMS(w, "list", number_rows, list, n, "Numbers.");
}

static void describe_file(dq_row_writer *w)
{
    file_rows(w, NULL, 0);
}

TEST(a_member_described_twice_is_one_of_both)
{
    const dq_document d = {"dq-file/1", "A file.", "", describe_file};
    json_t *s = dq_document_schema(&d);
    expect_json(json_deep_copy(json_object_get(json_object_get(s, "properties"), "group")),
                "{\"description\":\"Columns per scale.\",\"oneOf\":[{\"description\":\"Columns per "
                "scale.\",\"type\":\"string\"},{\"type\":\"integer\",\"minimum\":1}]}");
    expect_json(json_deep_copy(json_object_get(s, "required")), "[\"group\",\"list\"]");
    json_decref(s);
}

TEST(a_list_of_objects)
{
    const int list[] = {1, 2};
    json_t *o = json_object();
    dq_row_writer w = dq_row_json(o);
    file_rows(&w, list, 2);
    expect_json(o, "{\"group\":\"row\",\"list\":[{\"x\":1},{\"x\":2}]}");
}

static void continued_rows(dq_row_writer *w)
{
    DQ_OBJECT(w, "first", "An object.");
    DQ_PUT(w, "x", 1, "A number.");
    DQ_PUT(w, "note", "read off", "What changes no score.", .when = DQ_UNSCORED);
    dq_row_end(w);
    if (DQ_OBJECT(w, "slices", "Nor do they.", .when = DQ_UNSCORED)) dq_row_end(w);
    DQ_PUT(w, "second", 2, "A number.");
    dq_row_again(w, "first");
    DQ_PUT(w, "y", 3, "A number that comes later.");
    dq_row_end(w);
}

TEST(an_object_goes_on)
{
    json_t *o = json_object(), *schema = json_object();
    dq_row_writer w = dq_row_json(o);
    continued_rows(&w);
    expect_json(o,
                "{\"first\":{\"x\":1,\"note\":\"read off\",\"y\":3},\"slices\":{},\"second\":2}");
    w = dq_row_schema(schema);
    continued_rows(&w);
    expect_json(json_deep_copy(json_object_get(schema, "required")),
                "[\"first\",\"slices\",\"second\"]");
    const json_t *first = json_object_get(json_object_get(schema, "properties"), "first");
    expect_json(json_deep_copy(json_object_get(first, "required")), "[\"x\",\"note\",\"y\"]");
    json_decref(schema);
}

TEST(a_writer_of_what_scores_depend_on)
{
    json_t *o = json_object();
    dq_row_writer w = dq_row_json(o);
    w.scored = true;
    continued_rows(&w);
    expect_json(o, "{\"first\":{\"x\":1,\"y\":3},\"second\":2}");
}
