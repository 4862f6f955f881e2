/* Pages of dq report from documents of the other commands, and of several: parts with ids of their own, refusals by name.
 * SPDX-License-Identifier: MIT */
#define FIXTURE DQ_TEST_DIR "/golden/html/all.json"
#include "tests/rigs/page_rig.h"
#include "tests/rigs/suite.h"

/* A value without whitespace in which ' stands for ". */
static json_t *parsed(const char *text)
{
    char buf[4096];
    json_error_t e;
    snprintf(buf, sizeof buf, "%s", text);
    for (char *c = buf; *c; c++) {
        if (*c == '\'') *c = '"';
    }
    json_t *v = json_loads(buf, 0, &e);
    if (!v) fail_msg("%s: %s", e.text, buf);
    return v;
}

#define VALUES                                                                                     \
    "{'n':4,'top1':3.5,'top2':3,'top3':2,'top10':null,'top100':null,'median':1,'rms':1,"           \
    "'kurtosis0':3}"
#define BOTH "{'attention_logits':" VALUES ",'hidden_states':" VALUES "}"
#define PLAN                                                                                       \
    "'tensors':1,'packed':1,'params':4,'packed_params':4,'weight_bytes':8,'file_bytes':9,"         \
    "'bits_per_weight':4"
#define NATS(value)                                                                                \
    "'kld_nats':{'value':" value ",'stderr':null},'ln_ppl_ratio':{'value':0,'stderr':null}"
#define INTERVALS(kld, ppl) "'kld_interval':" kld ",'ln_ppl_interval':" ppl ",'outside':0.025"
#define OF_KIND(kind)       "{'schema':'dq-plan/1','settings':{'kind':'" kind "'},"
#define KV(found, more)                                                                            \
    OF_KIND("kv")                                                                                  \
    "'results':[{'path':'o/<p>.json','chosen':{'kv':{'widths':'4:3','quant':'dither','recent':16," \
    "'sink':4},'mean_bits':3.5,'unseen':{" NATS(found) "," INTERVALS("[0,1]", "[-1,1]") "}}" more  \
                                                                                        "}]}"
#define HEADS_KV(policy, heads)                                                                    \
    "{'policy':'" policy "','keep':0.25,'budget':'heads','heads':'" heads "','sink':4,'recent':"   \
    "16}"
#define HEADS_OF(kv, chosen, more)                                                                 \
    OF_KIND("heads")                                                                               \
    "'results':[{'path':'o/<r>.json','chosen':{'kv':" kv                                           \
    ",'unseen':{" NATS("0.25") "," INTERVALS("[0,1]", "[-1,1]") "}" chosen "}" more "}]}"
#define HEADS(chosen, more) HEADS_OF(HEADS_KV("keydiff", "1.0/0.0"), chosen, more)
#define GROUP(layer, group, shares, alone, lack)                                                   \
    "{'layer':" layer ",'group':" group ",'shares':" shares ",'alone':" alone ",'lack_nats':" lack \
    "}"
#define CUT(value)   "{" NATS(value) "}"
#define LACKS(value) "{'value':" value ",'stderr':null}"
#define BESIDE(kld, ppl)                                                                           \
    "{'unseen':{" NATS("1") "},'plan_less_it':{" NATS("-1") "," INTERVALS(kld, ppl) "}}"
#define SHARE(sharing, kld, lack, taken)                                                           \
    "{'sharing':" sharing ",'kld_nats':" kld ",'lack_nats':" lack ",'taken':" taken "}"
static const struct {
    const char *document, *says;
    dq_status status;
} refused[] = {
    {"{'schema':'dq-plan/2','results':[]}", "expected dq-plan/1, found", DQ_MISMATCH},
    {"{'schema':'dq-plan/1','results':[]}",
     "settings: \"kind\" is \"\" (expected weights, kv or heads)", DQ_DAMAGED},
    {OF_KIND("heads") "'results':[{'caches_alone':4,'units':[]}]}",
     "one.json: results[0]: a plan of --dry-run, which measures nothing", DQ_MISMATCH},
    {OF_KIND("heads") "'results':[{'units':[]}]}", "results[0]: \"chosen\" is missing", DQ_DAMAGED},
    {OF_KIND("heads") "'results':[{'chosen':{}}]}", "results[0].chosen: \"kv\" is missing",
     DQ_DAMAGED},
    {HEADS_OF("{}", "", ""), "results[0].chosen.kv: \"policy\" is missing", DQ_DAMAGED},
    {HEADS_OF(HEADS_KV("keydiff; rm", "1.0/0.0"), "", ""),
     "results[0].chosen.kv: \"policy\" is \"keydiff; rm\"", DQ_DAMAGED},
    {HEADS_OF(HEADS_KV("keydiff", "1.0 0.0"), "", ""),
     "results[0].chosen.kv: \"heads\" is \"1.0 0.0\"", DQ_DAMAGED},
    {HEADS_OF("{'policy':'h2o','heads':'/','keep':'1'}", "", ""),
     "results[0].chosen.kv: \"keep\" is of another type", DQ_DAMAGED},
    {HEADS("", ""), "results[0].chosen: \"sharing\" is missing", DQ_DAMAGED},
    {HEADS(",'sharing':1", ""), "results[0]: \"baselines\" is missing (expected a list)",
     DQ_DAMAGED},
    {HEADS(",'sharing':1", ",'baselines':[{}]"), "results[0].baselines[0]: \"unseen\" is missing",
     DQ_DAMAGED},
    {HEADS(",'sharing':1", ",'baselines':[{'unseen':{" NATS("1") "}}]"),
     "results[0].baselines[0]: \"plan_less_it\" is missing", DQ_DAMAGED},
    {HEADS(",'sharing':1", ",'baselines':[]"), "results[0]: \"trials\" is missing", DQ_DAMAGED},
    {HEADS(",'sharing':1", ",'baselines':[],'trials':[" SHARE("1", "1", "'x'", "true") "]"),
     "results[0].trials[0]: \"lack_nats\" is of another type", DQ_DAMAGED},
    {HEADS(",'sharing':1", ",'baselines':[],'trials':[" SHARE("1", "1", "null", "1") "]"),
     "results[0].trials[0]: \"taken\" is of another type (expected true or false)", DQ_DAMAGED},
    {HEADS(",'sharing':1", ",'baselines':[],'trials':[]"), "results[0]: \"units\" is missing",
     DQ_DAMAGED},
#define NO_TRIALS(sharing, uniform, groups)                                                        \
    HEADS(",'sharing':" sharing, ",'baselines':[" uniform "],'trials':[],'units':[" groups "]")
    {NO_TRIALS("1", "", GROUP("-1", "0", "true", CUT("1"), "null")),
     "results[0].units[0]: \"layer\" is -1 (expected a number from 0 to 1023)", DQ_DAMAGED},
    {NO_TRIALS("1", "", GROUP("0", "1024", "true", CUT("1"), "null")),
     "results[0].units[0]: \"group\" is 1024", DQ_DAMAGED},
    {NO_TRIALS("1", "", GROUP("0", "0", "1", CUT("1"), "null")),
     "results[0].units[0]: \"shares\" is of another type", DQ_DAMAGED},
    {NO_TRIALS("1", "", GROUP("0", "0", "true", "{}", "null")),
     "results[0].units[0].alone: \"kld_nats\" is missing", DQ_DAMAGED},
    {NO_TRIALS("1", "", GROUP("0", "0", "true", "null", "{}")),
     "results[0].units[0].lack_nats: \"value\" is missing", DQ_DAMAGED},
    {NO_TRIALS("1", "", GROUP("0", "0", "true", "null", "null")),
     "results[0].units[0]: \"alone\" and \"lack_nats\" are null", DQ_DAMAGED},
    {NO_TRIALS("0", "", ""), "results[0]: \"units\" holds 0 groups, which are no map", DQ_DAMAGED},
    {NO_TRIALS("1", "", GROUP("1", "0", "true", CUT("1"), "null")),
     "results[0]: \"units\" holds 1 groups, which are no map", DQ_DAMAGED},
    {NO_TRIALS(
         "2", "",
         GROUP("0", "0", "true", CUT("1"), "null") "," GROUP("0", "0", "true", CUT("1"), "null")),
     "results[0]: \"units\" holds 2 groups, which are no map", DQ_DAMAGED},
    {NO_TRIALS("1", "", GROUP("1023", "1023", "true", CUT("1"), "null")),
     "results[0]: \"units\" holds 1 groups, which are no map", DQ_DAMAGED},
    {NO_TRIALS("2", "", GROUP("0", "0", "true", CUT("1"), "null")),
     "results[0]: \"sharing\" is 2 (expected 1, the groups that share)", DQ_DAMAGED},
    {NO_TRIALS("0", "", GROUP("0", "0", "false", CUT("1"), "null")),
     "results[0]: \"baselines\" holds 0 (expected none where all groups share, else one)",
     DQ_DAMAGED},
    {NO_TRIALS("1", BESIDE("[0,1]", "[0,1]"), GROUP("0", "0", "true", CUT("1"), "null")),
     "results[0]: \"baselines\" holds 1 (expected none where", DQ_DAMAGED},
    {OF_KIND("kv") "'results':[{'caches_alone':13,'units':[]}]}",
     "one.json: results[0]: a plan of --dry-run, which measures nothing", DQ_MISMATCH},
    {OF_KIND("kv") "'results':[{'chosen':{'kv':{'widths':4},'unseen':{" NATS("1") "," INTERVALS(
         "[0,1]", "[-1,1]") "}}}]}",
     "results[0].chosen.kv: \"widths\" is of another type", DQ_DAMAGED},
    {KV("'x'", ""), "results[0].chosen.unseen.kld_nats: \"value\" is of another type", DQ_DAMAGED},
    {KV("1", ""), "results[0]: \"baselines\" is missing", DQ_DAMAGED},
    {KV("1", ",'baselines':[{'widths':'3:3','mean_bits':3}]"),
     "results[0].baselines[0]: \"unseen\" is missing", DQ_DAMAGED},
    {KV("1", ",'baselines':[],'trials':[{'widths':'3:3','from':'units'}]"),
     "results[0].trials[0]: \"mean_bits\" is missing", DQ_DAMAGED},
    {KV("1", ",'baselines':[],'trials':[],'units':[{'side':'keys','layers':[0,0],'map':'1'}]"),
     "results[0].units[0]: \"map\" is of another type (expected a number or null)", DQ_DAMAGED},
    {KV("1", ",'baselines':[],'trials':[],'units':[{'side':'keys','layers':[0,0],'map':1,'bits':3,"
             "'alone':[{'bits':3}]}]"),
     "results[0].units[0].alone[0]: \"kld_nats\" is missing", DQ_DAMAGED},
    {"[]", "one.json: not a document of dq", DQ_DAMAGED},
    {"{}", "one.json: not a document of dq", DQ_DAMAGED},
    {"{'schema':1}", "not a document of dq", DQ_DAMAGED},
    {"{'schema':'dq-doctor/1','results':[]}",
     "expected dq-stats/1, dq-quantize/1, dq-plan/1, dq-bench/1 or dq-eval/1", DQ_MISMATCH},
    {"{'schema':'dq-bench/1','results':[{'model':'m'}]}", "results[0]: \"what\" is missing",
     DQ_DAMAGED},
    {"{'schema':'dq-bench/1','results':[{'model':'m','what':'nothing'}]}",
     "results[0]: \"what\" is \"nothing\" (expected prefill, attention, generate, decode, evict "
     "or items)",
     DQ_DAMAGED},
    {"{'schema':'dq-bench/1','results':[{'model':'m','what':'prefill','tokens':8}]}",
     "results[0]: \"seconds_median\" is missing (expected a number)", DQ_DAMAGED},
    {"{'schema':'dq-eval-plan/1','results':[]}", "found \"dq-eval-plan/1\"", DQ_MISMATCH},
    {"{'schema':'dq-eval','results':[]}", "found \"dq-eval\"", DQ_MISMATCH},
    {"{'schema':'dq-eval/2','dq_version':'3.1','results':[]}",
     "expected dq-eval/1, found \"dq-eval/2\"). Use the dq that made it, 3.1", DQ_MISMATCH},
    {"{'schema':'dq-eval/','results':[]}", "another version", DQ_MISMATCH},
    {"{'schema':'dq-eval/1x','results':[]}", "another version", DQ_MISMATCH},
    {"{'schema':'dq-eval/1'}", "one.json: the document: \"results\" is missing", DQ_DAMAGED},
    {"{'schema':'dq-eval/1','results':{}}", "\"results\" is of another type", DQ_DAMAGED},
    {"{'schema':'dq-eval/1','results':[{'model':'m'}]}",
     "one.json: results[0]: \"task\" is missing (expected text)", DQ_DAMAGED},
    {"{'schema':'dq-eval/1','results':[{'model':'m','task':'t'}]}", "\"metrics\" is missing",
     DQ_DAMAGED},
    {"{'schema':'dq-eval/1','results':[3]}", "results[0]: \"model\" is missing", DQ_DAMAGED},
    {"{'schema':'dq-stats/1','results':[[]]}", "results[0]: \"model\" is missing", DQ_DAMAGED},
    {"{'schema':'dq-stats/1','results':[{'model':'m','table5':{},'layers':[]}]}",
     "results[0].table5: \"attention_logits\" is missing", DQ_DAMAGED},
    {"{'schema':'dq-stats/1','results':[{'model':'m','table5':" BOTH ",'layers':[{}]}]}",
     "results[0].layers[0]: \"layer\" is missing (expected a number)", DQ_DAMAGED},
    {"{'schema':'dq-stats/1','results':[{'model':'m','table5':{'attention_logits':" VALUES
     ",'hidden_states':{'n':'4'}},'layers':[]}]}",
     "results[0].table5.hidden_states: \"n\" is of another type", DQ_DAMAGED},
    {"{'schema':'dq-stats/1','results':[{'model':'m','table5':" BOTH ",'layers':[{'layer':-1}]}]}",
     "results[0].layers[0]: \"layer\" is -1 (expected a number from 0 up)", DQ_DAMAGED},
    {"{'schema':'dq-quantize/1','results':[{}]}", "results[0]: \"tensors\" is missing", DQ_DAMAGED},
    {"{'schema':'dq-quantize/1','results':[{" PLAN "}]}", "results[0]: \"rows\" is missing",
     DQ_DAMAGED},
    {"{'schema':'dq-quantize/1','results':[{" PLAN ",'rows':[{'name':'w'}]}]}",
     "results[0].rows[0]: \"bits\" is missing", DQ_DAMAGED},
};

TEST(other_documents_are_refused)
{
    place *p = *case_state;
    char *text;
    size_t len;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        json_t *d = parsed(refused[i].document);
        dq_err err = {0};
        assert_int_equal(dq_file_write(p->page, "older", 5, &err), DQ_OK);
        assert_int_equal(write_one(d, p->page, &err), refused[i].status);
        if (!strstr(err.text, refused[i].says))
            fail_msg("\"%s\" is not in: %s", refused[i].says, err.text);
        memset(&err, 0, sizeof err);
        assert_int_equal(dq_file_read(&text, &len, p->page, given_arena(), &err), DQ_OK);
        assert_string_equal(text, "older");
        json_decref(d);
    }
}

static json_t *stats_of(const char *model, int ctx)
{
    json_t *d = parsed("{'schema':'dq-stats/1','dq_version':'0.1.0','command':'stats','inputs':["
                       "{'kind':'text','path':'t','bytes':3}],'settings':{'ctx':0,'threads':1},"
                       "'warnings':[],'results':[{'table5':" BOTH ",'layers':[]}]}");
    json_t *r = json_array_get(json_object_get(d, "results"), 0);
    json_object_set_new(r, "model", json_string(model));
    json_object_set_new(json_object_get(d, "settings"), "ctx", json_integer(ctx));
    json_object_set_new(json_object_get(d, "settings"), "threads", json_integer(ctx));
    return d;
}

/* Models of several documents of dq stats stand side by side, under names of their own, and a page whose
 * documents differ in what was measured says so. */
DRAWING_TEST(outliers_of_several_documents_stand_together)
{
    dq_err err = {0};
    char *text = NULL;
    size_t len;
    json_t *d[3] = {stats_of("x/<m>", 64), stats_of("y/<m>", 64), stats_of("x/<m>", 128)};
    dq_report_input in[3] = {{"a/one.json", d[0]}, {"two.json", d[1]}, {"b/one.json", d[2]}};
    assert_int_equal(dq_report_write(in, 2, p->page, &err), DQ_OK);
    assert_int_equal(dq_file_read(&text, &len, p->page, given_arena(), &err), DQ_OK);
    assert_balanced(text);
    assert_alone(text);
    assert_non_null(strstr(text, "<h1>dq stats: x/&lt;m&gt;, y/&lt;m&gt;</h1>"));
    assert_int_equal(count(text, "<section id=\"magnitudes\">"), 1);
    assert_null(strstr(text, "These documents differ"));
    assert_int_equal(dq_report_write(in, 3, p->page, &err), DQ_OK);
    assert_int_equal(dq_file_read(&text, &len, p->page, given_arena(), &err), DQ_OK);
    assert_balanced(text);
    assert_non_null(strstr(text, "<p>These documents differ in: ctx. "));
    assert_int_equal(count(text, "<h3>a/one.json</h3>"), 1); /* two documents are one.json */
    assert_int_equal(count(text, "<h3>b/one.json</h3>"), 1);
    assert_int_equal(count(text, "<h3>two.json</h3>"), 1);
    for (int i = 0; i < 3; i++) json_decref(d[i]);
}

#define SENSITIVE(kind, where, kld)                                                                \
    "{" kind "," where ",'kld_nats':{'value':1,'interval':" kld "},'local_error':1}"
#define HEAD "'of':'logits','by':'head'"
#define ODD  "'of':'<k>','by':'layer'"
#define OUTLIER(values)                                                                            \
    "{'values':'" values "','tokens':'<i>','magnitude':9,'layer':1,'head':2,'channel':3}"

#define UNITS                                                                                      \
    SENSITIVE(HEAD, "'layer':0,'head':1", "[2,4]")                                                 \
    "," SENSITIVE(HEAD, "'layer':1,'head':0", "[0.5,1.9]") "," SENSITIVE(                          \
        ODD, "'layer':0", "[2,4]") "," SENSITIVE(ODD, "'layer':1", "[1,2]")

/* What breaks first is said where a test or intervals decide it; texts of the document are escaped. */
DRAWING_TEST(what_breaks_first_follows_from_intervals)
{
    json_t *d = stats_of("m", 64);
    json_t *result = json_array_get(json_object_get(d, "results"), 0);
    json_object_set_new(result, "sensitivity", parsed("{'bits':4,'scored':9,'units':[" UNITS "]}"));
    json_object_set_new(result, "outliers",
                        parsed("[" OUTLIER("attention_logits") "," OUTLIER("hidden_states") "]"));
    const char *page = page_of(p, d);
    assert_balanced(page);
    assert_entities(page);
    assert_alone(page);
    assert_null(strstr(page, "<i>"));
    assert_null(strstr(page, "<k>"));
    assert_null(strstr(page, "First to break")); /* no windows have judged */
    assert_non_null(strstr(page, "in layer 1 head 2, key: &lt;i&gt; token; hidden state"));
    json_object_set_new(
        json_object_get(result, "sensitivity"), "first",
        parsed("[{'first':{" HEAD ",'layer':1,'head':0},'next':{'layer':0,'head':"
               "1},'more_nats':{'interval':[-0.5,1]}},{'first':{'of':'<k>','by':'layer','layer':0},"
               "'next':{'layer':1},'more_nats':{'interval':[0.5,1]}}]"));
    page = page_of(p, d);
    assert_balanced(page);
    assert_non_null(
        strstr(page, "<li>inconclusive: logits by head (layer 1 head 0 or layer 0 head 1)"));
    assert_non_null(strstr(page, "<li>&lt;k&gt; by layer: <b>layer 0</b>, 0.5 to 1 nats a token "
                                 "more than any other; next layer 1</li>"));
    json_decref(d);
}

/* Where every value is null or 0 (a logarithmic axis shows none), a sentence stands for the picture. */
TEST(pictures_may_have_nothing_to_draw)
{
    place *p = *case_state;
    json_t *d = stats_of("m", 64), *x, *v;
    const char *key, *name;
    json_object_foreach(json_object_get(json_array_get(json_object_get(d, "results"), 0), "table5"),
                        key, x)
    {
        json_object_foreach(x, name, v)
            json_object_set_new(x, name, *name == 'n' ? json_integer(0) : json_null());
    }
    const char *page = page_of(p, d); /* no gnuplot is needed */
    assert_balanced(page);
    assert_int_equal(count(page, "No value that could be drawn."), 2);
    assert_int_equal(count(page, "<svg class=\"plot\""), 0);
    json_decref(d);
}

static json_t *container(void)
{
    return parsed("{'schema':'dq-quantize/1','dq_version':'0.1.0','command':'quantize','inputs':[{"
                  "'path':'m','bytes':100}],'settings':{'bits':4,'group':'128','scale':'absmax'},"
                  "'warnings':[],'results':[{'path':'o/<c>.h5','packed_bytes':2," PLAN
                  ",'content_sha256':null,'rows':["
                  "{'name':'l.10.q_proj.weight','encoding':'int-packed','bits':4,'rows':1,'cols':2,"
                  "'group_size':2,'bytes':1,'bits_per_weight':4,'sqnr_db':18.5},"
                  "{'name':'l.9.q_proj.weight','encoding':'int-packed','bits':4,'rows':1,'cols':2,"
                  "'group_size':2,'bytes':1,'bits_per_weight':4,'sqnr_db':17.25},"
                  "{'name':'norm','encoding':'dense','bits':16,'rows':1,'cols':2,"
                  "'group_size':null,'bytes':4,'bits_per_weight':16,'sqnr_db':null}]}]}");
}

DRAWING_TEST(containers_show_their_worst_tensors)
{
    json_t *d = container();
    const char *page = page_of(p, d), *worst = strstr(page, "<section id=\"worst\">");
    assert_balanced(page);
    assert_entities(page);
    assert_non_null(strstr(page, "<td class=\"l\">&lt;c&gt;.h5</td>"));
    assert_non_null(strstr(page, "planned (--dry-run), not written"));
    assert_non_null(strstr(page, "<td class=\"l\">q_proj</td><td>2</td><td>17.25</td><td>9</td>"
                                 "<td>18.50</td>"));
    assert_non_null(worst);
    assert_true(strstr(worst, "l.9.q_proj") < strstr(worst, "l.10.q_proj"));
    /* a plan knows no SQNR */
    json_t *row;
    size_t i;
    json_array_foreach(json_object_get(json_array_get(json_object_get(d, "results"), 0), "rows"), i,
                       row) json_object_set_new(row, "sqnr_db", json_null());
    page = page_of(p, d);
    assert_balanced(page);
    assert_null(strstr(page, "id=\"sqnr\""));
    assert_null(strstr(page, "id=\"worst\""));
    assert_non_null(strstr(page, "id=\"tensors\""));
    json_decref(d);
}

/* Several kinds, and several documents of dq eval, are parts with ids of their own. */
DRAWING_TEST(documents_of_several_kinds_are_parts)
{
    dq_err err = {0};
    char *text = NULL;
    size_t len;
    json_t *stats = stats_of("m", 64), *packed = container();
    const dq_report_input in[] = {
        {"e/<one>.json", p->all}, {"stats.json", stats}, {"two.json", p->all}, {"q.json", packed}};
    assert_int_equal(dq_report_write(in, 4, p->page, &err), DQ_OK);
    assert_int_equal(dq_file_read(&text, &len, p->page, given_arena(), &err), DQ_OK);
    assert_balanced(text);
    assert_entities(text);
    assert_alone(text);
    const char *order[] = {"<h2>Outliers: stats.json</h2>", "<h2>Containers: q.json</h2>",
                           "<h2>Evaluation: &lt;one&gt;.json</h2>",
                           "<h2>Evaluation: two.json</h2>"};
    const char *at = text;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(count(text, order[i]), 1);
        assert_non_null(at = strstr(at, order[i]));
    }
    assert_int_equal(count(text, "<h1>"), 1);
    assert_int_equal(count(text, "-run\">"), 8); /* a link and a section in each part */
    assert_int_equal(count(text, "<section id=\"part4-needle\">"), 1);
    json_decref(stats);
    json_decref(packed);
}

#define PREFILL(tokens, more)                                                                      \
    "{'model':'m','what':'prefill','weights':'BF16','tokens':" tokens ",'seconds_median':1" more "}"

/* A result without rounded logits lies on one curve with those of documents that know no rounding. */
DRAWING_TEST(curves_of_dq_bench_are_told_apart)
{
    json_t *d = parsed(
        "{'schema':'dq-bench/1','settings':{'math':'f32','threads':1},'results':[" PREFILL("64", "") "," PREFILL(
            "128",
            ",'logit_bits':16,'logit_granularity':null") "," PREFILL("128",
                                                                     ",'logit_bits':8,'logit_"
                                                                     "granularity':'"
                                                                     "tile'") "," PREFILL("64",
                                                                                          ",'logit_"
                                                                                          "bits':"
                                                                                          "4") "," PREFILL("128",
                                                                                                           ",'logit_bits':'4'") "]}");
    const char *page = page_of(p, d);
    assert_int_equal(count(page, "m: prefill, BF16, f32, threads: 1</span>"), 1);
    assert_int_equal(count(page, "m: prefill, BF16, 8-bit logits, tile, f32, threads: 1</span>"),
                     1);
    assert_int_equal(count(page, "m: prefill, BF16, 4-bit logits, f32, threads: 1</span>"), 1);
    assert_int_equal(count(page, "m: prefill"), 3);
    assert_null(strstr(page, "logit_"));
    assert_non_null(strstr(page, "multiply-adds on registers alone, which products of other"));
    json_decref(d);
}

/* A baseline of a plan of the cache, with the ends of its intervals. */
#define RIVAL(widths, bits, kld, ppl)                                                              \
    "{'widths':'" widths "','mean_bits':" bits                                                     \
    ",'unseen':{" NATS("0.5") "},'plan_less_it':{" NATS("-0.25") "," INTERVALS(kld, ppl) "}}"
#define TRIAL(widths, from, taken)                                                                 \
    "{'widths':'" widths "','from':'" from "','mean_bits':3.5,'kld_nats':0.125,'taken':" taken "}"
#define UNIT(side, map, alone)                                                                     \
    "{'side':'" side "','layers':[2,3],'map':" map ",'bits':3,'alone':[" alone "]}"
#define ALONE(bits, kld) "{'bits':" bits ",'kld_nats':{'value':" kld ",'stderr':null}}"

typedef struct said {
    const char *words;
    int n;
} said;

static void assert_says(const char *page, const said *says, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (count(page, says[i].words) != says[i].n)
            fail_msg("\"%s\" is there %d times", says[i].words, count(page, says[i].words));
    }
}

/* What is decided follows from the ends of an interval; without ends nothing is. */
DRAWING_TEST(plans_of_the_cache_say_what_is_decided)
{
    json_t *d = parsed(KV(
        "0.25",
        ",'baselines':[" RIVAL("4:3", "3.5", "[-2,-1]", "[1,2]") "," RIVAL("<3>", "3", "[1,2]", "[-2,-1]") "," RIVAL(
            "3:3", "3", "[-1,1]",
            "[null,null]") "],'trials':[" TRIAL("4:<3>", "units",
                                                "false") "," TRIAL("3:4", "trade",
                                                                   "true") "],'units':"
                                                                           "[" UNIT(
                                                                               "keys", "2",
                                                                               ALONE("3", "0.0125") "," ALONE(
                                                                                   "2",
                                                                                   "0"
                                                                                   "."
                                                                                   "5")) "," UNIT("values",
                                                                                                  "null",
                                                                                                  ALONE(
                                                                                                      "3",
                                                                                                      "null")) "]"));
    const char *page = page_of(p, d);
    assert_balanced(page);
    assert_entities(page);
    assert_alone(page);
    assert_non_null(strstr(page, "<h1>dq plan kv: &lt;p&gt;.json</h1>"));
    const said says[] = {
        {"the plan is closer</td>", 1},
        {"the uniform width is closer</td>", 1},
        {"inconclusive which is closer</td>", 1},
        {"the plan loses less</td>", 1},
        {"the uniform width loses less</td>", 1},
        {"inconclusive which loses less</td>", 1},
        {"<td>97.5</td>", 7},
        {"against &lt;3&gt;</span>", 2},
        {": the plan has 0.5 bits more: no uniform widths", 1},
        {"<th scope=\"col\">2</th><th scope=\"col\">3</th>", 1},
        {"<th scope=\"row\">keys of layers 2 to 3, map 2</th>", 1},
        {"<th scope=\"row\">values of layers 2 to 3</th>", 1},
        {"style=\"--v:1.00\">0.5000</td><td style=\"--v:0.00\"><b>0.0125</b></td>", 1},
        {"<td class=\"l\">by units</td><td class=\"l\">4:&lt;3&gt;</td>", 1},
        {"<td class=\"l\">a step away</td><td class=\"l\">3:4</td>", 2}};
    assert_says(page, says, sizeof says / sizeof *says);
    json_decref(d);
    d = parsed(
        KV("0.25", ",'baselines':[],'trials':[" TRIAL("3:4", "units", "true") "],'units':[]"));
    page = page_of(p, d);
    assert_balanced(page);
    assert_non_null(strstr(page, ".json: no other mix within the mean was measured.</p>"));
    assert_null(strstr(page, "decided which"));
    json_decref(d);
}

/* Two layers of two groups, of which one shares; and the lists of a plan of them. */
#define FOUR_GROUPS(a, b, c, d)                                                                    \
    "'units':[" GROUP("1", "0", "true", a, "null") "," GROUP(                                      \
        "0", "1", "false", b, "null") "," GROUP("0", "0", "false", c,                              \
                                                "null") "," GROUP("1", "1", "false", d,            \
                                                                  "null") "]"

DRAWING_TEST(plans_of_heads_are_maps_of_layers_and_groups)
{
    json_t *d = parsed(HEADS(
        ",'sharing':1", ",'baselines':[" BESIDE("[-2,-1]", "[1,2]") "],'trials':[" SHARE(
                            "1", "0.125", "null",
                            "true") "," SHARE("2", "0.5", "null",
                                              "false") "]," FOUR_GROUPS(CUT("0.5"), CUT("0.0125"),
                                                                        CUT("0"), CUT("null"))));
    const char *page = page_of(p, d);
    const said says[] = {
        {"<h1>dq plan heads: &lt;r&gt;.json</h1>", 1},
        {"<td>1 of 4</td>", 1},
        {"<pre>--kv-policy keydiff --kv-keep 0.25 --kv-sink 4 --kv-recent 16 --kv-budget heads "
         "--kv-heads 1.0/0.0</pre>",
         1},
        {"the plan is closer</td>", 1},
        {"the uniform share loses less</td>", 1},
        {"decided which", 0},
        {"<td>97.5</td>", 3},
        {"&lt;r&gt;.json against the uniform share</span>", 2},
        {"<th scope=\"col\">layer \\ group</th><th scope=\"col\">0</th><th "
         "scope=\"col\">1</th></tr>",
         1},
        {"<th scope=\"row\">0</th><td style=\"--v:0.00\">0.0000<br/>cut</td>"
         "<td style=\"--v:0.00\">0.0125<br/>cut</td></tr>",
         1},
        {"<th scope=\"row\">1</th><td class=\"hi\" style=\"--v:1.00\"><b>0.5000</b><br/>shares</td>"
         "<td style=\"--v:0.00\">–<br/>cut</td></tr>",
         1},
        {": what the answers lack</figcaption>", 0},
        {"<td>1.0</td><td class=\"l\">shares</td><td>0.5000</td><td>–</td></tr>", 1},
        {"<td>1</td><td>0.125</td><td>–</td><td>0.125</td><td class=\"l\">yes</td></tr>", 1},
        {"<td>2</td><td>0.5</td><td>–</td><td>0.5</td><td class=\"l\"></td></tr>", 1},
        {"<span>&lt;r&gt;.json, KLD</span>", 1},
        {"KLD + answers", 0},
        {"href=\"#gpPt5\"", 1}, /* a ring around what was taken */
        {"Nothing is compared", 0}};
    assert_balanced(page);
    assert_entities(page);
    assert_alone(page);
    assert_says(page, says, sizeof says / sizeof *says);
    json_decref(d);
}

/* Questions have a map and a line of their own; without windows that find there is no other. */
DRAWING_TEST(plans_of_heads_say_what_answers_lack)
{
#define TWO_GROUPS(alone)                                                                          \
    "'units':[" GROUP("0", "1", "true", alone, LACKS("0.5")) "," GROUP("0", "0", "false", alone,   \
                                                                       LACKS("0.125")) "]"
    json_t *d = parsed(
        HEADS(",'sharing':1", ",'baselines':[" BESIDE("[-1,1]", "[null,null]") "],'trials':[" SHARE(
                                  "1", "0.25", "0.5", "true") "]," TWO_GROUPS(CUT("0.5"))));
    const char *page = page_of(p, d);
    const said both[] = {{"inconclusive which is closer</td>", 1},
                         {"inconclusive which loses less</td>", 1},
                         {"&lt;r&gt;.json: KLD</figcaption>", 1},
                         {"&lt;r&gt;.json: what the answers lack</figcaption>", 1},
                         {"<td style=\"--v:0.00\">0.1250<br/>cut</td>", 1},
                         {"<span>&lt;r&gt;.json, KLD + answers</span>", 1},
                         {"<span>&lt;r&gt;.json, KLD</span>", 1},
                         {"<span>&lt;r&gt;.json, answers lack</span>", 1},
                         {"<td>0.25</td><td>0.5</td><td>0.75</td><td class=\"l\">yes</td>", 1}};
    assert_balanced(page);
    assert_says(page, both, sizeof both / sizeof *both);
    json_decref(d);
    d = parsed(
        HEADS(",'sharing':1", ",'baselines':[" BESIDE("[-1,1]", "[-1,1]") "],'trials':[" SHARE(
                                  "1", "null", "0.5", "true") "]," TWO_GROUPS("null")));
    page = page_of(p, d);
    const said asked[] = {{"&lt;r&gt;.json: KLD</figcaption>", 0},
                          {"&lt;r&gt;.json: what the answers lack</figcaption>", 1},
                          {"<span>&lt;r&gt;.json, answers lack</span>", 1},
                          {"<span>&lt;r&gt;.json, KLD", 0},
                          {"<td>–</td><td>0.5</td><td>0.5</td><td class=\"l\">yes</td>", 1}};
    assert_balanced(page);
    assert_says(page, asked, sizeof asked / sizeof *asked);
    json_decref(d);
}

DRAWING_TEST(plans_in_which_all_groups_share_compare_nothing)
{
    json_t *d = parsed(
        HEADS(",'sharing':1",
              ",'baselines':[],'trials':[" SHARE("1", "0", "null", "true") "],'units':[" GROUP(
                  "0", "0", "true", CUT("0"), "null") "]"));
    const char *page = page_of(p, d);
    const said says[] = {{".json: the plan is this one: all groups share, so each keeps as much. "
                          "Nothing is compared.</p>",
                          1},
                         {"decided which", 0},
                         {"<td>1 of 1</td>", 1},
                         {"against the uniform share", 0},
                         {"No value that could be drawn.", 1}};
    assert_balanced(page);
    assert_says(page, says, sizeof says / sizeof *says);
    json_decref(d);
}

/* The range of an axis is one, whatever lies beside what can be drawn. */
DRAWING_TEST(losses_at_the_ends_of_a_double_are_left_out)
{
    json_t *d = parsed(
        HEADS(",'sharing':1",
              ",'baselines':[],'trials':[" SHARE("1", "0.5", "null", "true") "," SHARE(
                  "2", "1e308", "null",
                  "false") "," SHARE("3", "1e-308", "null",
                                     "false") "],'units':[" GROUP("0", "0", "true", CUT("1e308"),
                                                                  "null") "]"));
    const char *page = page_of(p, d);
    assert_balanced(page);
    assert_int_equal(count(page, "<svg class=\"plot\""), 1);
    assert_int_equal(count(page, "href=\"#gpPt5\""), 1);
    json_decref(d);
}

FIXTURES(begin, end)
