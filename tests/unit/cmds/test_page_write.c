/* What becomes a page and what is refused by name, and that no text of a document is ever markup. What the script draws of documents is
 * tests/cli/page.py, in a browser.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"
#include "tests/rigs/test_folder.h"

#include "base/file.h"
#include "cmds/report_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A value in which ' stands for ". */
static json_t *parsed(const char *text)
{
    char buf[4096];
    json_error_t e;
    snprintf(buf, sizeof buf, "%s", text);
    for (char *c = buf; *c; c++) {
        if (*c == '\'') *c = '"';
    }
    json_t *v = json_loads(buf, JSON_ALLOW_NUL, &e);
    if (!v) fail_msg("%s: %s", e.text, buf);
    return v;
}

static dq_status write_one(const json_t *document, dq_err *err)
{
    const dq_page_input in = {"one.json", document};
    return dq_page_write(&in, 1, at("page.html"), err);
}

#define RESULT(schema, result) "{'schema':'dq-" schema "/1','results':[" result "]}"
#define PLAN(kind, result)                                                                         \
    "{'schema':'dq-plan/1','settings':{'kind':'" kind "'},'results':[" result "]}"
#define SIZES                                                                                      \
    "'tensors':1,'packed':1,'params':4,'packed_params':4,'weight_bytes':8,'file_bytes':9,"         \
    "'bits_per_weight':4"
#define BOTH "{'attention_logits':{},'hidden_states':{}}"
#define KV   "'chosen':{'kv':{'widths':'4:3','quant':'dither'},'mean_bits':3.5,'unseen':{}}"
#define HEADS                                                                                      \
    "'chosen':{'kv':{'policy':'h2o','heads':'0.0/','keep':0.5,'sink':4,'recent':4},'unseen':{},"   \
    "'sharing':1}"

static const struct {
    const char *document, *says;
    dq_status status;
} refused[] = {
    {"[]", "one.json: not a document of dq", DQ_DAMAGED},
    {"{'schema':1}", "not a document of dq", DQ_DAMAGED},
    {"{'schema':'dq-doctor/1'}", "no page is made of such a document", DQ_MISMATCH},
    {"{'schema':'dq-eval-plan/1','results':[]}", "found \"dq-eval-plan/1\"", DQ_MISMATCH},
    {"{'schema':'dq-eval','results':[]}", "found \"dq-eval\"", DQ_MISMATCH},
    {"{'schema':'dq-eval/2','dq_version':'3.1','results':[]}",
     "expected dq-eval/1, found \"dq-eval/2\"). Use the dq that made it, 3.1", DQ_MISMATCH},
    {"{'schema':'dq-eval/','results':[]}", "another version", DQ_MISMATCH},
    {"{'schema':'dq-eval/1x','results':[]}", "another version", DQ_MISMATCH},
    {"{'schema':'dq-eval/1'}", "one.json: the document: \"results\" is missing", DQ_DAMAGED},
    {"{'schema':'dq-eval/1','results':{}}", "\"results\" is of another type", DQ_DAMAGED},
    {RESULT("eval", "3"), "results[0]: \"model\" is missing (expected text)", DQ_DAMAGED},
    {RESULT("eval", "{'model':'m'}"), "one.json: results[0]: \"task\" is missing", DQ_DAMAGED},
    {RESULT("eval", "{'model':'m','task':'t'}"), "\"metrics\" is missing", DQ_DAMAGED},
    {RESULT("stats", "[]"), "results[0]: \"model\" is missing", DQ_DAMAGED},
    {RESULT("stats", "{'model':'m','table5':{},'layers':[]}"),
     "results[0].table5: \"attention_logits\" is missing", DQ_DAMAGED},
    {RESULT("stats", "{'model':'m','table5':" BOTH ",'layers':[{'layer':'1'}]}"),
     "results[0].layers[0]: \"layer\" is of another type (expected a number)", DQ_DAMAGED},
    {RESULT("quantize", "{}"), "results[0]: \"tensors\" is missing", DQ_DAMAGED},
    {RESULT("quantize", "{" SIZES "}"), "results[0]: \"rows\" is missing", DQ_DAMAGED},
    {RESULT("quantize", "{" SIZES ",'rows':[{'name':'w'}]}"),
     "results[0].rows[0]: \"bits\" is missing", DQ_DAMAGED},
    {RESULT("bench", "{'model':'m'}"), "results[0]: \"what\" is missing", DQ_DAMAGED},
    {RESULT("bench", "{'model':'m','what':'nothing'}"),
     "\"what\" is another word (expected prefill, attention, generate, decode, evict or items)",
     DQ_DAMAGED},
    {"{'schema':'dq-plan/2','results':[]}", "expected dq-plan/1, found", DQ_MISMATCH},
    {"{'schema':'dq-plan/1','results':[]}",
     "settings: \"kind\" is \"\" (expected weights, kv or heads)", DQ_DAMAGED},
    {PLAN("gates", ""), "no page is made of gates", DQ_MISMATCH},
    {PLAN("kv\\u0000x", ""), "\"kind\" is \"\"", DQ_DAMAGED},
    {PLAN("weights", "{'budget':'b'}"), "\"packed_bits_per_weight\" is missing", DQ_DAMAGED},
    {PLAN("kv", "{'caches_alone':13,'units':[]}"),
     "one.json: results[0]: a plan of --dry-run, which measures nothing", DQ_MISMATCH},
    {PLAN("kv", "{'units':[]}"), "results[0]: \"chosen\" is missing", DQ_DAMAGED},
    {PLAN("kv", "{'chosen':{'kv':{'widths':4},'unseen':{}}}"),
     "results[0].chosen.kv: \"widths\" is of another type", DQ_DAMAGED},
    {PLAN("kv", "{" KV ",'baselines':[],'trials':[],'units':[{'side':'keys','layers':[0,0],"
                "'bits':3,'alone':[{'bits':3}]}]}"),
     "results[0].units[0].alone[0]: \"kld_nats\" is missing", DQ_DAMAGED},
    {PLAN("heads", "{'chosen':{}}"), "results[0].chosen: \"kv\" is missing", DQ_DAMAGED},
    {PLAN("heads", "{" HEADS ",'baselines':[{}]}"), "results[0]: \"trials\" is missing",
     DQ_DAMAGED},
    {PLAN("heads", "{" HEADS ",'baselines':[],'trials':[{'sharing':1,'kld_nats':'x'}]}"),
     "results[0]: \"units\" is missing", DQ_DAMAGED},
    {PLAN("heads", "{" HEADS ",'baselines':[],'units':[],'trials':[{'sharing':1,'kld_nats':'x'}]}"),
     "results[0].trials[0]: \"kld_nats\" is of another type (expected a number or null)",
     DQ_DAMAGED},
    {PLAN("heads",
          "{" HEADS ",'baselines':[],'trials':[],'units':[{'layer':0,'group':0,'shares':1}]}"),
     "results[0].units[0]: \"shares\" is of another type (expected true or false)", DQ_DAMAGED},
};

TEST(other_documents_are_refused)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        json_t *d = parsed(refused[i].document);
        dq_err err = {0};
        size_t len;
        assert_int_equal(dq_file_write(at("page.html"), "older", 5, &err), DQ_OK);
        assert_int_equal(write_one(d, &err), refused[i].status);
        if (!strstr(err.text, refused[i].says))
            fail_msg("\"%s\" is not in: %s", refused[i].says, err.text);
        assert_string_equal(given_file(&len, "%s", at("page.html")), "older");
        json_decref(d);
    }
}

/* What stands between the tags of the documents. */
static const char *documents_of(const json_t *document)
{
    static const char begin[] = "id=\"documents\">";
    dq_err err = {0};
    size_t len;
    assert_int_equal(write_one(document, &err), DQ_OK);
    char *page = strstr(given_file(&len, "%s", at("page.html")), begin);
    assert_non_null(page);
    char *end = strstr(page, "</script>");
    assert_non_null(end);
    *end = 0;
    return page + sizeof begin - 1;
}

/* A name that would end the element, open a comment or name a file of the page stays text; the document comes back as it was. */
TEST(no_text_of_a_document_is_markup)
{
    json_t *d = parsed(RESULT("eval", "{'task':'t','metrics':{'<!--<script>':{'value':0.1}}}"));
    json_t *result = json_array_get(json_object_get(d, "results"), 0);
    json_object_set_new(result, "model",
                        json_string("</script><script>alert(1)</script>@draw.js@"));
    const char *text = documents_of(d);
    assert_null(strchr(text, '<'));
    json_t *all = json_loads(text, 0, NULL), *one = json_array_get(all, 0);
    assert_true(json_equal(json_object_get(one, "document"), d));
    assert_string_equal(json_string_value(json_object_get(one, "name")), "");
    json_decref(all);
    json_decref(d);
}

/* Files of the page stand in it whole, and load nothing. */
TEST(a_page_is_alone)
{
    static const char *const outside[] = {"http:",   "https:", "@import", "url(",  "<link",
                                          "<iframe", "<img",   "import ", "fetch("};
    json_t *d = parsed(RESULT("eval", ""));
    dq_err err = {0};
    size_t len;
    assert_int_equal(write_one(d, &err), DQ_OK);
    const char *page = given_file(&len, "%s", at("page.html"));
    assert_non_null(strstr(page, "default-src 'none'"));
    assert_non_null(strstr(page, dq_page_css));
    assert_non_null(strstr(page, dq_page_draw));
    assert_non_null(strstr(page, dq_page_documents));
    assert_non_null(strstr(page, dq_page_sections));
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        const char *found = strstr(page, outside[i]);
        if (found && strncmp(found, "http://www.w3.org/2000/svg", 26) != 0)
            fail_msg("%s: %.60s", outside[i], found);
    }
    json_decref(d);
}

FIXTURES(folder_begin, folder_end)
