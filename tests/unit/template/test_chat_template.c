/* test_chat_template: every text and failure of golden/chat_templates.py, byte for byte; what is refused, by name; limits;
 * and where the template of a model comes from.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/edits.h"
#include "tests/rigs/suite.h"

#include "base/os.h"
#include "template/chat_template.c" /* what is private there */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

FIXTURES(folder_begin, folder_end)

enum { MAX_MESSAGES = 16 };

static json_t *golden;

static int load(void **state)
{
    (void)state;
    golden = json_load_file(DQ_TEST_DIR "/golden/chat_templates/golden.json", 0, NULL);
    return golden ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    json_decref(golden);
    return 0;
}

CASE_FIXTURES(load, unload)

static const char *member(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static int messages_of(dq_chat_message *m, const json_t *conversation)
{
    const size_t n = json_array_size(conversation);
    assert_true(n > 0 && n <= MAX_MESSAGES);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(conversation, i);
        m[i] = (dq_chat_message){member(one, "role"), member(one, "content")};
    }
    return (int)n;
}

/* The template's text for the messages, for dq_block_free; NULL with the failure. */
static char *render(const char *text, size_t text_len, const dq_chat_message *m, int n, bool prompt,
                    size_t *len, dq_err *err)
{
    dq_chat_template *t;
    const char *key;
    json_t *token;
    char *out = NULL;
    *err = (dq_err){0};
    if (new_template(&t, text, text_len, err) != DQ_OK) {
        assert_null(t);
        return NULL;
    }
    json_object_foreach(json_object_get(golden, "tokens"), key, token)
        assert_int_equal(define(t, key, json_string_value(token), err), DQ_OK);
    const dq_status status = render_template(t, m, n, prompt, &out, len, err);
    assert_int_equal(status, err->code);
    assert_true((out != NULL) == (err->code == DQ_OK));
    if (out) assert_int_equal(out[*len], 0);
    dq_chat_template_free(t);
    return out;
}

/* The failure with the text that follows the place; without one, with any. */
static void check_failure(const char *template, const json_t *want, const dq_err *err)
{
    const char *kind = member(want, "error"), *text = member(want, "text");
    const bool raised = strcmp(kind, "raised") == 0;
    const json_int_t line = json_integer_value(json_object_get(want, "line"));
    char place[64], expected[300];
    int got = 0;
    if (err->code != (raised ? DQ_MISMATCH : DQ_DAMAGED) ||
        sscanf(err->text, "chat template, line %d: ", &got) != 1)
        fail_msg("%s: expected %s, got %d \"%s\"", template, kind, (int)err->code, err->text);
    if (line && line != got)
        fail_msg("%s: expected line %d, got \"%s\"", template, (int)line, err->text);
    if (strcmp(kind, "undefined") != 0 && !raised) return;
    snprintf(place, sizeof place, "chat template, line %d: ", got);
    snprintf(expected, sizeof expected, "%s", text);
    dq_one_line(expected);
    if (strcmp(err->text + strlen(place), expected) != 0)
        fail_msg("%s: expected \"%s\", got \"%s\"", template, expected, err->text);
}

static void check(const json_t *template, const json_t *conversation, bool prompt,
                  const json_t *want)
{
    dq_chat_message m[MAX_MESSAGES];
    const json_t *out = json_object_get(want, "out");
    const char *text = json_string_value(template);
    size_t len = 0;
    dq_err err;
    const int n = messages_of(m, conversation);
    char *got = render(text, json_string_length(template), m, n, prompt, &len, &err);
    if (!out) {
        check_failure(text, want, &err);
    } else {
        if (!got) fail_msg("%s: %s", text, err.text);
        if (len != json_string_length(out) || memcmp(got, json_string_value(out), len) != 0)
            fail_msg("%s: expected \"%s\", got \"%s\"", text, json_string_value(out), got);
    }
    dq_block_free(got);
}

TEST(conversations_are_as_transformers_renders_them)
{
    const json_t *conversations = json_object_get(golden, "conversations"), *one;
    size_t i, checked = 0;
    json_array_foreach(json_object_get(golden, "templates"), i, one)
    {
        const json_t *renders = json_object_get(one, "renders");
        for (size_t k = 0; k < json_array_size(conversations); k++) {
            for (size_t p = 0; p < 2; p++, checked++)
                check(json_object_get(one, "template"), json_array_get(conversations, k), p == 0,
                      json_array_get(json_array_get(renders, k), p));
        }
    }
    assert_int_equal(checked, 180);
}

TEST(constructs_are_as_jinja2_has_them)
{
    const json_t *conversation = json_object_get(golden, "conversation"), *one;
    size_t i;
    json_array_foreach(json_object_get(golden, "lines"), i, one)
    {
        check(json_object_get(one, "template"), conversation, true, one);
    }
    assert_int_equal(i, 477);
}

/* ---- What is refused, and limits ---- */

/* The template fails for one message with the status and this part of the text. */
static void check_refused(const char *template, dq_status status, const char *part)
{
    const dq_chat_message m = {"user", "x"};
    size_t len;
    dq_err err;
    char *out = render(template, strlen(template), &m, 1, true, &len, &err);
    if (out) fail_msg("%.100s: gave \"%.100s\"", template, out);
    check_error(&err, status, part);
}

TEST(what_is_not_there_is_refused_by_name)
{
    static const struct {
        const char *template, *text;
    } row[] = {
        {"\n{% include 'x' %}", "line 2: the tag \"include\" is not supported"},
        {"{% call f() %}{% endcall %}", "the tag \"call\""},
        {"{% for a in b recursive %}{% endfor %}", "a recursive loop"},
        {"{% macro f() %}{{ varargs }}{% endmacro %}", "varargs"},
        {"{{ f(*a) }}", "arguments with *"},
        {"{{ a[1, 2] }}", "several subscripts"},
        {"{{ a[] }}", "an empty subscript"},
        {"{% if false %}{{ 1|round }}{% endif %}", "\"round\" is not supported"},
        {"{{ 1 is upper }}", "\"upper\" is not supported"},
        {"{{ cycler }}", "the function \"cycler\""},
        {"{{ 'a'.format(1) }}", "the attribute \"format\" of 'str'"},
        {"{{ 'a'.__class__ }}", "the attribute \"__class__\""},
        {"{{ loop }}{% for a in [1] %}{{ loop.cycle(1) }}{% endfor %}", "the attribute \"cycle\""},
        {"{{ 'a'.find('b', 1) }}", "so many arguments"},
        {"{{ 'a' % 1 }}", "% of a string"},
        {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
        {"{{ 9223372036854775808 }}", "too large"},
        {"{{ (-2) ** 0.5 }}", "complex numbers"},
        {"{{ {1: 2} }}", "a key of type 'int'"},
        {"{{ 0x10 }}", "another base"},
        {"{{ 'ß'|upper }}", "U+00DF"},
        {"{{ 'ÉA'.title() }}", "U+00C9"},
        {"{{ ('a'|safe) + 'b' }}", "what safe gives"},
        {"{{ ('a'|safe).strip() }}", "what safe gives"},
        {"{{ range(3) }}", "printing a value of type 'range'"},
        {"{{ messages|map('upper') }}", "printing a value of type 'generator'"},
        {"{{ namespace() }}", "printing a value of type 'jinja2.utils.Namespace'"},
        {"{{ 1 in ([1]|select) }}", "\"in\" of what map"},
        {"{{ é }}", "names beyond ASCII"},
        {"{{ '\\N{DASH}' }}", "escapes of names"},
        {"{{ '\\ud800' }}", "surrogates"},
        {"{{ 'a' is sameas 'a' }}", "sameas of 'str'"},
        {"{{ '12'|int(0, 16) }}", "a base"},
        {"{{ strftime_now('%f') }}", "%f is not supported"},
        {"{{ 1[:1] }}", "a slice of 'int'"},
        {"{{ [1]|sort(attribute='a,b') }}", "several attributes"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        check_refused(row[i].template, DQ_MISMATCH, row[i].text);
}

/* begin, n times the middle, end. */
static char *repeated(const char *begin, const char *middle, int n, const char *end)
{
    const size_t a = strlen(begin), b = strlen(middle), c = strlen(end);
    char *text = malloc(a + b * (size_t)n + c + 1), *p = text;
    assert_non_null(text);
    memcpy(p, begin, a);
    p += a;
    for (int i = 0; i < n; i++, p += b) memcpy(p, middle, b);
    memcpy(p, end, c + 1);
    return text;
}

TEST(hostile_templates_end)
{
    static const struct {
        const char *begin, *middle, *end, *text;
        int n;
    } row[] = {
        {"{{ ", "(", "", "open brackets", 300},
        {"{{ ", "-", " 1 }}", "nests too deeply", 10000},
        {"{{ ", "not ", " 1 }}", "nests too deeply", 10000},
        {"{{ a", ".a", " }}", "nests too deeply", 10000},
        {"{{ 1", " + 1", " }}", "nests too deeply", 10000},
        {"{{ 1", "|list", " }}", "nests too deeply", 10000},
        {"{{ 1", " if 1 else 1", " }}", "nests too deeply", 10000},
        {"", "{% if 1 %}", "", "nests too deeply", 10000},
        {"{% set ", "(", "a = 1 %}", "open brackets", 300},
        {"{% macro f() %}{{ f() }}{% endmacro %}", "", "{{ f() }}", "nest too deeply", 0},
        {"{% set ns = namespace(a=[]) %}{% for i in range(5000) %}{% set ns.a = [ns.a] %}{% endfor "
         "%}{{ ns.a }}",
         "", "", "nest too deeply", 0},
        {"{% set ns = namespace(a=[]) %}{% for i in range(5000) %}{% set ns.a = [ns.a] %}{% endfor "
         "%}{{ ns.a == [ns.a] }}",
         "", "", "nest too deeply", 0},
        {"{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}", "", "",
         "too much work", 0},
        {"{% set ns = namespace(a='x') %}{% for i in range(99) %}{% set ns.a = ns.a ~ ns.a %}{% "
         "endfor %}",
         "", "", "more than 16777216 bytes", 0},
        {"{{ 'x' * 9999999999 }}", "", "", "more than 16777216 bytes", 0},
        {"{{ [0] * 9999999999 }}", "", "", "too much work", 0},
        {"{% set a = 'a' * 1000000 %}{{ (a ~ 'b' ~ a).find(a ~ 'c') }}{{ a.find('a' * 500000 ~ "
         "'b') }}",
         "", "", "too much work", 0},
        {"{{ 'a'|indent(999999999, true) }}", "", "", "more than 16777216 bytes", 0},
        {"{% set a = 'ab' * 1000000 %}{{ a|list|sort }}", "", "", "too much work", 0},
        {"", "x", "", "more than 1048576 bytes", (1 << 20) + 1},
        {"{% set s=' '*1000000 %}{% for j in range(10) %}{% for i in range(100000) %}",
         "{% if s|trim %}{% endif %}", "{% endfor %}{% endfor %}", "too much work", 1},
        {"{% set s='a'*1000000 %}{% for j in range(10) %}{% for i in range(100000) %}",
         "{% if s[s] %}{% endif %}", "{% endfor %}{% endfor %}", "too much work", 1},
        {"{% set s='a'*10000 %}{% for i in range(10000) %}{{ s }}{% endfor %}", "", "",
         "line 1: the template makes a text of more than 16777216 bytes", 0},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char *text = repeated(row[i].begin, row[i].middle, row[i].n, row[i].end);
        check_refused(text, DQ_MISMATCH, row[i].text);
        free(text);
    }
}

/* Names aN=1 for each N, which are all compared with each other. */
TEST(many_keywords_are_work)
{
    enum { N = 100000, EACH = 10 };
    char *text = malloc(N * EACH + 64), *p = text;
    assert_non_null(text);
    p += snprintf(p, 32, "{%% if 0 %%}{{ f(");
    for (int i = 0; i < N; i++) p += snprintf(p, EACH + 1, "a%06d=1,", i);
    snprintf(p, 32, ") }}{%% endif %%}");
    check_refused(text, DQ_MISMATCH, "too much work");
    free(text);
}

/* The text of a template's rendering that begins with `left` of its work. */
static void run_with(const char *template, size_t left, dq_err *err)
{
    dq_strbuf out = {0};
    dq_jinja_run parser = {.arena = dq_arena_new(), .err = err};
    dq_jinja_run r = {.arena = dq_arena_new(), .err = err, .out = &out};
    *err = (dq_err){0};
    const dq_jinja_nodes body = dq_jinja_parse(&parser, template, strlen(template));
    if (err->code != DQ_OK) fail_msg("%s: %s", template, err->text);
    r.work = DQ_JINJA_MAX_WORK - left;
    if (dq_jinja_eval_scope(&r, NULL)) dq_jinja_eval_body(&r, &body);
    dq_block_free(out.s);
    dq_arena_free(r.arena);
    dq_arena_free(parser.arena);
}

/* What an operation touches is work: so many of them meet the limit where as many loops without it do not. */
TEST(operations_cost_what_they_touch)
{
    static const char before[] =
        "{% set s = ' ' * 100000 %}{% set a = 'a' * 100000 %}{% set z = a ~ 'z' %}"
        "{% set y = a ~ 'y' %}{% set p = '.' * 100000 %}{% set n = '\\n' * 100000 %}"
        "{% set d = {z: 1} %}{% set e = {z: 1} %}{% set l = [q] * 30000 %}{% set k = [0] * 30000 "
        "%}";
    enum { LEFT = 1 << 26, TEXTS = 1000, ITEMS = 300, FLAT = 16000 };
    static const struct {
        const char *operation;
        int times;
    } row[] = {
        {"s|trim", TEXTS},
        {"s|trim('abcdefgh ')", TEXTS},
        {"s.strip()", TEXTS},
        {"s.lstrip()", TEXTS},
        {"s.rstrip()", TEXTS},
        {"s.strip(' ')", TEXTS},
        {"'x'.strip(a)", TEXTS},
        {"s|int", TEXTS},
        {"s.split()", TEXTS},
        {"a.split()", TEXTS},
        {"('a' ~ s).split(none, 0)", TEXTS},
        {"z.split('z')", TEXTS},
        {"a.split('z')", TEXTS},
        {"a.splitlines()", TEXTS},
        {"n.splitlines()", TEXTS},
        {"a|indent", TEXTS},
        {"a.startswith(a)", TEXTS},
        {"a.endswith(a)", TEXTS},
        {"a.startswith((a, 'b'))", TEXTS},
        {"z.find('z')", TEXTS},
        {"z.rfind('z')", TEXTS},
        {"'z' in z", TEXTS},
        {"'z' not in a", TEXTS},
        {"'z' is in z", TEXTS},
        {"z.replace('z', '', 1)", TEXTS},
        {"a|replace('z', '')", TEXTS},
        {"a.upper()", TEXTS},
        {"a|lower", TEXTS},
        {"a|title", TEXTS},
        {"a|capitalize", TEXTS},
        {"a|length", TEXTS},
        {"a|list", TEXTS},
        {"a|first", TEXTS},
        {"a|last", TEXTS},
        {"a|reverse", TEXTS},
        {"a|tojson", TEXTS},
        {"p|tojson(ensure_ascii=true)", TEXTS},
        {"[a]|string", TEXTS},
        {"[a]|join", TEXTS},
        {"a.join(['', ''])", TEXTS},
        {"''.join([a])", TEXTS},
        {"a[99999]", TEXTS},
        {"a[-1]", TEXTS},
        {"a[1:]", TEXTS},
        {"a[:99999]", TEXTS},
        {"a[::2]", TEXTS},
        {"a ~ ''", TEXTS},
        {"a + ''", TEXTS},
        {"a * 1", TEXTS},
        {"z == y", TEXTS},
        {"z != y", TEXTS},
        {"z < y", TEXTS},
        {"z is ge y", TEXTS},
        {"z in [y]", TEXTS},
        {"d[y]", TEXTS},
        {"d[z]", TEXTS},
        {"d.get(y)", TEXTS},
        {"y in d", TEXTS},
        {"d == e", TEXTS},
        {"{z: 1, y: 2}", TEXTS},
        {"{z: 1, y: 2}|tojson(sort_keys=true)", TEXTS},
        {"{z: 1, y: 2}|dictsort", TEXTS},
        {"[z, y]|sort", TEXTS},
        {"[]|sort(attribute=a)", TEXTS},
        {"[d]|map(attribute=a)|list", TEXTS},
        {"[d]|selectattr(a)|list", TEXTS},
        {"[{}]|map(attribute=p, default=d)|list", TEXTS},
        {"s[a]", TEXTS},
        {"none[a]", TEXTS},
        {"namespace(b=1)[a]", TEXTS},
        {"l|list|length == 0 or l|first", ITEMS},
        {"l|last", ITEMS},
        {"l|join", ITEMS},
        {"''.join(l|map('string'))", ITEMS},
        {"l|reverse", ITEMS},
        {"l|select|list", ITEMS},
        {"l|reject|list", ITEMS},
        {"l|map('default')|list", ITEMS},
        {"l|string", ITEMS},
        {"k|tojson", ITEMS},
        {"l == l", ITEMS},
        {"1 in k", ITEMS},
        {"l + []", ITEMS},
        {"l * 1", ITEMS},
        {"l[1:]", ITEMS},
        {"range(30000)", ITEMS},
        {"0.1|string", FLAT},
        {"1e308 % 2.3e-308", FLAT},
        {"1e308 // 2.3e-308", FLAT},
        {"1e308 is divisibleby 2.3e-308", FLAT},
        {"strftime_now('%c%c%c%c')", FLAT},
    };
    char text[1000];
    dq_err err;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        for (int cheap = 0; cheap < 2; cheap++) {
            snprintf(text, sizeof text,
                     "%s{%% for i in range(%d) %%}{%% if %s %%}{%% endif %%}{%% endfor %%}", before,
                     row[i].times, cheap ? "s" : row[i].operation);
            run_with(text, LEFT, &err);
            if (cheap ? err.code != DQ_OK
                      : err.code != DQ_MISMATCH || !strstr(err.text, "too much work"))
                fail_msg("%s: %d \"%s\"", row[i].operation, (int)err.code, err.text);
        }
    }
}

/* A text of 16 MiB is one that can be made, by every way. */
TEST(texts_have_a_limit)
{
    static const char a[] = "{% set a = 'a' * 4096 %}{% set b = a * 4096 %}";
    static const char *const more[] = {"{{ b }}x",
                                       "{{ b ~ 'x' }}",
                                       "{{ b + 'x' }}",
                                       "{% set c %}{{ b }}x{% endset %}",
                                       "{{ b|replace('a', 'aa', 1) }}",
                                       "{{ a * 4097 }}"};
    const dq_chat_message m = {"user", "x"};
    char text[200];
    size_t len;
    dq_err err;
    snprintf(text, sizeof text, "%s{{ b }}", a);
    char *out = render(text, strlen(text), &m, 1, true, &len, &err);
    assert_non_null(out);
    assert_int_equal(len, 16 << 20);
    dq_block_free(out);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        snprintf(text, sizeof text, "%s{%% if 1 %%}%s{%% endif %%}", a, more[i]);
        check_refused(text, DQ_MISMATCH, "makes a text of more than 16777216 bytes");
    }
}

TEST(a_request_to_stop_ends_it)
{
    static const char text[] =
        "{% for i in range(9999) %}{% for k in range(9999) %}{% endfor %}{% endfor %}";
    const dq_chat_message m = {"user", "x"};
    dq_chat_template *t;
    char *out = NULL;
    size_t len;
    dq_err err = {0};
    assert_int_equal(new_template(&t, text, sizeof text - 1, &err), DQ_OK);
    dq_os_catch_signals();
    raise(SIGTERM);
    assert_int_equal(dq_chat_template_prompt(t, "m", &m, 1, true, &out, &len, &err), DQ_STOPPED);
    dq_os_clear_stop();
    assert_null(out);
    assert_string_equal(err.text, "interrupted");
    err = (dq_err){0}; /* without one it is the template that is refused */
    assert_int_equal(dq_chat_template_prompt(t, "m", &m, 1, true, &out, &len, &err), DQ_MISMATCH);
    check_error(&err, DQ_MISMATCH, "m: chat template, line 1: the template takes too much work");
    dq_chat_template_free(t);
}

TEST(an_empty_text_is_no_prompt)
{
    static const char text[] = "{% if messages|length > 1 %}{{ messages[0].role }}{% endif %}";
    const dq_chat_message m[] = {{"user", "x"}, {"user", "y"}};
    dq_chat_template *t;
    char *out = NULL;
    size_t len;
    dq_err err = {0};
    assert_int_equal(new_template(&t, text, sizeof text - 1, &err), DQ_OK);
    assert_int_equal(dq_chat_template_prompt(t, "a model", m, 2, true, &out, &len, &err), DQ_OK);
    assert_string_equal(out, "user");
    dq_block_free(out);
    assert_int_equal(dq_chat_template_prompt(t, "a model", m, 1, true, &out, &len, &err),
                     DQ_MISMATCH);
    assert_null(out);
    check_error(&err, DQ_MISMATCH, "a model: the chat template makes an empty text");
    dq_chat_template_free(t);
}

TEST(lost_messages_are_found)
{
    static const struct {
        const char *text, *system, *lost;
    } rows[] = {
        {"<s>be brief</s>hi", "be brief", NULL},
        {"<s>be brief</s>hi", " be brief\n", NULL},
        {"hi", "be brief", "system"},
        {"be brihi", "be brief", "system"},
        {"be brief", "be brief", "user"},
        {"hi", " \n", NULL},
        {"", "b", "system"},
        {"bbe briehi", "be brief", "system"},
        {"<u>hi", "hi", "system"}, /* the user says it */
        {"<u>hi", "i", "system"},
        {"i<u>hi", "i", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const dq_chat_message m[] = {
            {"system", rows[i].system}, {"user", "hi"}, {"assistant", "left out"}};
        const char *lost = dq_chat_template_lost(rows[i].text, strlen(rows[i].text), m, 3);
        if (!lost != !rows[i].lost || (lost && strcmp(lost, rows[i].lost) != 0))
            fail_msg("row %zu: %s", i, lost ? lost : "none");
    }
}

TEST(long_chains_are_no_depth)
{
    const dq_chat_message m = {"user", "x"};
    size_t len;
    dq_err err;
    char *text = repeated("{% if 0 %}", "{% elif 0 %}a", 5000, "{% else %}b{% endif %}");
    char *out = render(text, strlen(text), &m, 1, true, &len, &err);
    assert_string_equal(out, "b");
    free(text);
    dq_block_free(out);
    text = repeated("{{ 1", " ~ 1", 5000, " }}");
    out = render(text, strlen(text), &m, 1, true, &len, &err);
    assert_int_equal(len, 5001);
    free(text);
    dq_block_free(out);
    text = repeated("{{ ", "'a' ", 200000, " }}"); /* is one string */
    out = render(text, strlen(text), &m, 1, true, &len, &err);
    assert_int_equal(len, 200000);
    free(text);
    dq_block_free(out);
}

TEST(texts_must_be_utf8)
{
    const dq_chat_message role = {"us\xff", "x"}, content = {"user", "\xc3"};
    dq_chat_template *t;
    char *out;
    size_t len;
    dq_err err = {0};
    assert_null(render("a\xff", 2, &role, 1, true, &len, &err));
    check_error(&err, DQ_DAMAGED, "chat template: byte 1 is not UTF-8");
    assert_null(render("a", 1, &role, 1, true, &len, &err));
    check_error(&err, DQ_DAMAGED, "role: byte 2 is not UTF-8");
    assert_null(render("a", 1, &content, 1, true, &len, &err));
    check_error(&err, DQ_DAMAGED, "content: byte 0 is not UTF-8");
    err = (dq_err){0};
    assert_int_equal(new_template(&t, "a", 1, &err), DQ_OK);
    assert_int_equal(define(t, "bos_token", "\x80", &err), DQ_DAMAGED);
    dq_chat_template_free(t);
    assert_non_null(out = render("{{ 'a\0b' }}", 11, &content, 0, true, &len, &err));
    assert_memory_equal(out, "a\0b", 4); /* a NUL is a character */
    dq_block_free(out);
}

TEST(the_date_is_that_of_strftime)
{
    static const char text[] = "{{ strftime_now('%d %b %Y %%') }}";
    const dq_chat_message m = {"user", "x"};
    char want[2][64], *out;
    size_t len;
    dq_err err;
    time_t now = time(NULL);
    strftime(want[0], sizeof want[0], "%d %b %Y %%", localtime(&now));
    assert_non_null(out = render(text, sizeof text - 1, &m, 1, true, &len, &err));
    now = time(NULL);
    strftime(want[1], sizeof want[1], "%d %b %Y %%", localtime(&now));
    if (strcmp(out, want[0]) != 0) assert_string_equal(out, want[1]);
    dq_block_free(out);
    char *lines = repeated("{{ strftime_now('", "%c", 90, "') }}");
    assert_non_null(out = render(lines, strlen(lines), &m, 1, true, &len, &err));
    assert_int_equal(len, 90 * strlen("Sat Jan  1 00:00:00 2000")); /* not cut */
    dq_block_free(out);
    free(lines);
}

/* Much of what a template may do. */
static const char various[] =
    "{% macro f(a, b='x') %}{{ a|upper }}{{ b }}{% endmacro %}{% set ns = namespace(n=[1]) %}"
    "{% set d = [{'role': 'user', 'content': 'é'}, {'content': \"it's\", 'role': 'b'}] %}"
    "{% set x | trim %}{% for m in d if m.role %}{{ f(m.role, b=m['content']) ~ loop.last }}"
    "{% endfor %} {% endset %}{% set ns.n = ns.n + [x, {'k': 1, 'a': (1,)}] %}{{ ns.n }}"
    "{{ ns.n|tojson(indent=2, sort_keys=true) }}{{ d|map(attribute='role')|join(',') }}"
    "{{ d|selectattr('role', 'equalto', 'b')|list|length }}{{ 'a b'.split()[1:] }}{{ undef }}"
    "{{ 'x'|replace('x', 'y') }}{{ [2, 1, 3]|sort }}{{ d[0]|dictsort }}{{ 'abc'[::-1] }}"
    "{{ 'a\\nb'|indent(2) }}{{ [1, [2]] == [1, [2]] }}{{ 'b' in 'abc' }}{{ {'a': 1} == {'a': 1} }}"
    "{{ ['a', 'b']|map('title')|reverse|first }}{{ 'x' * 3 }}{{ range(3)[1:]|list }}"
    "{% for k, v in dict(a=1).items() %}{{ k }}{{ v if loop.first }}{{ loop.nextitem is defined }}"
    "{% endfor %}{% for a in [] %}{% else %}{{ [1] < [2] }}{% endfor %}{{ 1.5 }}{{ '7'|int }}"
    "{{ 'ab'.replace('', '-').rfind('b') }}{% generation %}{{ 'a,b'.split(',', 1)|last }}"
    "{{ 'a\\n b '.splitlines() }}{{ 'a'.join(['x', 'y']) }}{% endgeneration %}";

/* Every allocation of memory fails once. */
TEST(short_memory_is_a_failure)
{
    const dq_chat_message m[] = {{"user", "x"}, {"assistant", "y"}};
    size_t len;
    int64_t n = 1;
    for (; n < 10000; n++) {
        dq_err err = {0};
        dq_chat_template *t = NULL;
        char *out = NULL;
        dq_alloc_fail_at(n);
        if (new_template(&t, various, sizeof various - 1, &err) == DQ_OK)
            render_template(t, m, 2, true, &out, &len, &err);
        dq_alloc_fail_at(0);
        dq_chat_template_free(t);
        if (err.code == DQ_OK)
            assert_non_null(out);
        else
            assert_null(out);
        dq_block_free(out);
        if (err.code == DQ_OK) break;
        check_error(&err, DQ_RESOURCE, "memory");
    }
    if (n < 10 || n == 10000) fail_msg("%d allocations", (int)n);
}

/* The limit is met at every place that spends. */
TEST(the_limit_is_a_failure_anywhere)
{
    dq_err err = {0};
    dq_strbuf out = {0};
    size_t left = 0;
    dq_jinja_run parser = {.arena = dq_arena_new(), .err = &err};
    const dq_jinja_nodes body = dq_jinja_parse(&parser, various, sizeof various - 1);
    assert_int_equal(err.code, DQ_OK);
    do {
        dq_jinja_run r = {.arena = dq_arena_new(), .err = &err, .out = &out};
        err = (dq_err){0};
        out.n = 0;
        r.work = DQ_JINJA_MAX_WORK - left;
        left += 24;
        if (dq_jinja_eval_scope(&r, NULL)) dq_jinja_eval_body(&r, &body);
        dq_arena_free(r.arena);
        if (err.code != DQ_OK) check_error(&err, DQ_MISMATCH, "too much work");
    } while (err.code != DQ_OK && left < 1 << 20);
    if (err.code != DQ_OK || left < 10000) fail_msg("%zu: %s", left, err.text);
    dq_block_free(out.s);
    dq_arena_free(parser.arena);
}

/* ---- The template of a model ---- */

static void put(const char *name, const char *text)
{
    edits_put(name, text, strlen(text));
}

/* The text of the model's template for one message, or "" without one. */
static void check_model(const char *path, const char *want)
{
    const dq_chat_message m = {"user", "x"};
    dq_chat_template *t;
    dq_model *model = given_model("%s", path);
    char *out = NULL;
    size_t len;
    dq_err err = {0};
    if (dq_chat_template_of(&t, model, &err) != DQ_OK) fail_msg("%s", err.text);
    assert_true((t == NULL) == (*want == 0));
    if (t && render_template(t, &m, 1, true, &out, &len, &err) != DQ_OK) fail_msg("%s", err.text);
    if (t) assert_string_equal(out, want);
    dq_block_free(out);
    dq_chat_template_free(t);
    dq_model_close(model);
}

static void check_model_fails(const char *config, dq_status status, const char *text)
{
    dq_chat_template *t;
    dq_err err = {0};
    put("tokenizer_config.json", config);
    dq_model *model = given_model("%s", at(""));
    assert_int_equal(dq_chat_template_of(&t, model, &err), status);
    assert_null(t);
    check_error(&err, status, text);
    dq_model_close(model);
}

TEST(a_model_brings_its_template)
{
    static const char alone[] = "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}|"
                                "{{ messages[0].content }}";
    char config[400];
    const edit e = {.base = MODELS "llama-f32"};
    dq_quantize_settings s = settings_of(4, 32, DQ_ABSMAX);
    edits_write(&e);
    check_model(at(""), "");
    put("tokenizer_config.json", "{\"bos_token\": \"<s>\", \"chat_template\": null}");
    check_model(at(""), "");
    snprintf(
        config, sizeof config,
        "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, \"pad_token\": null, "
        "\"chat_template\": \"%s\"}",
        alone);
    put("tokenizer_config.json", config);
    check_model(at(""), "<s>|</s>|False|x");
    make_container(at(""), at("m.h5"), &s);
    check_model(at("m.h5"), "<s>|</s>|False|x");
    put("special_tokens_map.json",
        "{\"bos_token\": \"<S>\", \"pad_token\": {\"content\": \"<p>\"}}");
    check_model(at(""), "<S>|</s>|True|x");
    make_container(at(""), at("m.h5"), &s);
    check_model(at("m.h5"), "<S>|</s>|True|x");
    config[strlen(config) - 1] = 0; /* with a decoder the older file is not read */
    strcat(config, ", \"added_tokens_decoder\": {}}");
    put("tokenizer_config.json", config);
    check_model(at(""), "<s>|</s>|False|x");
    assert_int_equal(remove(at("special_tokens_map.json")), 0);
    put("chat_template.jinja", "of a file, {{ eos_token }}\n");
    check_model(at(""), "of a file, </s>");
    make_container(at(""), at("m.h5"), &s);
    check_model(at("m.h5"), "of a file, </s>");
    assert_int_equal(remove(at("chat_template.jinja")), 0);
    put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": "
                                 "\"no\"}, {\"name\": \"default\", "
                                 "\"template\": \"yes\"}]}");
    check_model(at(""), "yes");
    check_model_fails("{\"chat_template\": [{\"name\": \"rag\", \"template\": \"\"}]}", DQ_MISMATCH,
                      "no chat template is named \"default\"");
    check_model_fails("{\"chat_template\": 5}", DQ_DAMAGED, "\"chat_template\"");
    check_model_fails("{\"chat_template\": \"{{ \"}", DQ_DAMAGED, "line 1: ");
    check_model_fails("{", DQ_DAMAGED, "tokenizer_config.json");
}
