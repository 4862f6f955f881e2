/* jinja_statements: statements of a template as nodes. A row of `tags` is a tag with the function that parses it, from the
 * token after its name up to the end of its own tag or of the one that closes it.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_lex.h"
#include "template/jinja_parse.h"

typedef dq_jinja_parser parser;
typedef dq_jinja_node node;

static void parse_statements(parser *p, dq_jinja_nodes *out, const char *const *ends);

/* The end of the tag at hand and what follows, up to a tag of the list, at whose name it stops. */
static void parse_body(parser *p, dq_jinja_nodes *out, const char *const *ends)
{
    dq_jinja_parse_skip(p, ":"); /* as in Python */
    if (p->t->kind != DQ_JINJA_BLOCK_END) dq_jinja_parse_unexpected(p, "%}");
    dq_jinja_parse_next(p);
    if (dq_jinja_parse_deeper(p)) parse_statements(p, out, ends);
    p->r->depth--;
}

/* The same for a body with names of its own, which is no branch and has so many loops around it. */
static void parse_inner(parser *p, dq_jinja_nodes *out, const char *const *ends, int loops)
{
    const bool was_branch = p->is_branch;
    const int had = p->loops;
    p->is_branch = false;
    p->loops = loops;
    parse_body(p, out, ends);
    p->is_branch = was_branch;
    p->loops = had;
}

/* ---- Targets ---- */

static node *parse_target(parser *p, bool with_namespace, const char *end);

static node *parse_target_one(parser *p, bool with_namespace)
{
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    node *n = dq_jinja_parse_node(p, DQ_JINJA_VARIABLE);
    if (dq_jinja_parse_is(p, "(") && dq_jinja_parse_deeper(p)) {
        dq_jinja_parse_next(p);
        n = parse_target(p, with_namespace, ")");
        dq_jinja_parse_expect(p, ")");
        p->r->depth--;
        return n;
    }
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (dq_jinja_parse_is(p, constants[i])) dq_jinja_parse_unexpected(p, "a name");
    }
    if (p->loops && dq_jinja_parse_is(p, "loop"))
        dq_jinja_parse_unexpected(p, "another name within a loop");
    n->name = dq_jinja_parse_name(p);
    if (!with_namespace || !dq_jinja_parse_skip(p, ".")) return n;
    node *attribute = dq_jinja_parse_node(p, DQ_JINJA_ATTRIBUTE);
    attribute->a = n;
    attribute->name = dq_jinja_parse_name(p);
    return attribute;
}

/* Names with commas between them, up to the word `end`. */
static node *parse_target(parser *p, bool with_namespace, const char *end)
{
    node *one = parse_target_one(p, with_namespace), *n = NULL;
    if (!dq_jinja_parse_is(p, ",")) return one;
    n = dq_jinja_parse_node(p, DQ_JINJA_TUPLE_OF);
    dq_jinja_parse_add(p, &n->item, one);
    while (dq_jinja_parse_skip(p, ",") && !dq_jinja_parse_is(p, end))
        dq_jinja_parse_add(p, &n->item, parse_target_one(p, with_namespace));
    return dq_jinja_parse_end(p, n);
}

/* ---- Tags ---- */

static void parse_for(parser *p, node *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    n->kind = DQ_JINJA_FOR;
    p->loops++;
    n->a = parse_target(p, false, "in");
    p->loops--;
    dq_jinja_parse_expect(p, "in");
    n->b = dq_jinja_parse_tuple(p, true);
    if (dq_jinja_parse_skip(p, "if")) n->c = dq_jinja_parse_expression(p);
    if (dq_jinja_parse_is(p, "recursive"))
        dq_jinja_parse_fail(p, DQ_MISMATCH, "a recursive loop is not supported");
    parse_inner(p, &n->body, ends, p->loops + 1);
    if (dq_jinja_parse_skip(p, "else")) parse_inner(p, &n->item, ends, p->loops);
    dq_jinja_parse_expect(p, "endfor");
}

static void parse_if(parser *p, node *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    node *const first = n;
    const bool was = p->is_branch;
    int depth = 0;
    p->is_branch = true;
    for (bool more = true; more;) {
        n->kind = DQ_JINJA_IF;
        n->a = dq_jinja_parse_tuple(p, true);
        parse_body(p, &n->body, ends);
        more = dq_jinja_parse_skip(p, "elif");
        if (!more && dq_jinja_parse_skip(p, "else")) parse_body(p, &n->item, ends + 2);
        dq_jinja_parse_end(p, n);
        if (n->depth > depth) depth = n->depth;
        node *next = more ? dq_jinja_parse_node(p, DQ_JINJA_IF) : NULL;
        n->c = next;
        n = next;
    }
    dq_jinja_parse_expect(p, "endif");
    first->depth = depth; /* a chain of elif is not walked by recursion */
    p->is_branch = was;
}

static void parse_set(parser *p, node *n)
{
    static const char *const ends[] = {"endset", NULL};
    n->a = parse_target(p, true, "=");
    if (dq_jinja_parse_skip(p, "=")) {
        n->kind = DQ_JINJA_SET;
        n->b = dq_jinja_parse_tuple(p, false);
        return;
    }
    n->kind = DQ_JINJA_SET_TEXT;
    n->b = dq_jinja_parse_filters(p, dq_jinja_parse_node(p, DQ_JINJA_CAPTURED));
    parse_inner(p, &n->body, ends, p->loops);
    dq_jinja_parse_expect(p, "endset");
}

static void parse_macro(parser *p, node *n)
{
    static const char *const ends[] = {"endmacro", NULL};
    bool with_default = false;
    n->kind = DQ_JINJA_MACRO_OF;
    n->name = dq_jinja_parse_name(p);
    p->macros++;
    dq_jinja_parse_expect(p, "(");
    while (dq_jinja_ok(p->r) && !dq_jinja_parse_skip(p, ")")) {
        if (n->item.n) dq_jinja_parse_expect(p, ",");
        node *one = dq_jinja_parse_node(p, DQ_JINJA_PARAMETER);
        one->name = dq_jinja_parse_name(p);
        if (dq_jinja_parse_skip(p, "="))
            one->a = dq_jinja_parse_expression(p);
        else if (with_default)
            dq_jinja_parse_unexpected(p, "a default, as before");
        with_default = one->a != NULL;
        dq_jinja_parse_add(p, &n->item, dq_jinja_parse_end(p, one));
    }
    parse_inner(p, &n->body, ends, 0);
    p->macros--;
    dq_jinja_parse_expect(p, "endmacro");
}

/* What training marks: text like any other. */
static void parse_generation(parser *p, node *n)
{
    static const char *const ends[] = {"endgeneration", NULL};
    n->kind = DQ_JINJA_SCOPE;
    parse_inner(p, &n->body, ends, 0);
    dq_jinja_parse_expect(p, "endgeneration");
}

static void parse_break(parser *p, node *n)
{
    n->kind = DQ_JINJA_LEAVE;
    if (!p->loops) dq_jinja_parse_fail(p, DQ_DAMAGED, "break and continue need a loop");
}

static void parse_continue(parser *p, node *n)
{
    parse_break(p, n);
    n->value = dq_jinja_bool(true);
}

static const struct {
    const char *name;
    void (*parse)(parser *p, node *n); /* NULL: not supported */
} tags[] = {
    {"for", parse_for},
    {"if", parse_if},
    {"set", parse_set},
    {"macro", parse_macro},
    {"generation", parse_generation},
    {"break", parse_break},
    {"continue", parse_continue},
    {"autoescape", NULL},
    {"block", NULL},
    {"call", NULL},
    {"extends", NULL},
    {"filter", NULL},
    {"from", NULL},
    {"import", NULL},
    {"include", NULL},
    {"print", NULL},
    {"with", NULL},
};

static node *parse_tag(parser *p)
{
    node *n = dq_jinja_parse_node(p, DQ_JINJA_SET);
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (p->t->kind != DQ_JINJA_NAME || !dq_jinja_parse_is(p, tags[i].name)) continue;
        if (!tags[i].parse)
            return dq_jinja_parse_fail(p, DQ_MISMATCH, "the tag \"%s\" is not supported",
                                       tags[i].name);
        dq_jinja_parse_next(p);
        tags[i].parse(p, n);
        if (p->t->kind != DQ_JINJA_BLOCK_END) dq_jinja_parse_unexpected(p, "%}");
        dq_jinja_parse_next(p);
        return n->kind == DQ_JINJA_IF ? n : dq_jinja_parse_end(p, n);
    }
    return dq_jinja_parse_unexpected(p, "a tag");
}

static node *parse_output(parser *p)
{
    node *n = dq_jinja_parse_node(p, DQ_JINJA_OUTPUT);
    n->a = dq_jinja_parse_tuple(p, false);
    if (p->t->kind != DQ_JINJA_PRINT_END) dq_jinja_parse_unexpected(p, "}}");
    dq_jinja_parse_next(p);
    return dq_jinja_parse_end(p, n);
}

static bool is_end(const parser *p, const char *const *ends)
{
    while (ends && *ends && !dq_jinja_parse_is(p, *ends)) ends++;
    return ends && *ends;
}

/* Up to a tag of the list, at whose name it stops; NULL: to the end of the template. */
static void parse_statements(parser *p, dq_jinja_nodes *out, const char *const *ends)
{
    while (p->t->kind != DQ_JINJA_END) {
        node *n = dq_jinja_parse_node(p, DQ_JINJA_TEXT);
        const dq_jinja_token_kind kind = p->t->kind;
        n->name = p->t->text;
        dq_jinja_parse_next(p);
        if (kind == DQ_JINJA_PRINT_BEGIN) n = parse_output(p);
        if (kind == DQ_JINJA_BLOCK_BEGIN) {
            if (is_end(p, ends)) return;
            n = parse_tag(p);
        }
        dq_jinja_parse_add(p, out, n);
    }
    if (ends) dq_jinja_parse_unexpected(p, *ends);
}

dq_jinja_nodes dq_jinja_parse(dq_jinja_run *r, const char *text, size_t len)
{
    dq_jinja_nodes out = {0};
    parser p = {.r = r, .t = dq_jinja_lex(r, text, len)};
    if (!dq_jinja_ok(r)) return out;
    parse_statements(&p, &out, NULL);
    if (p.missing) {
        r->line = p.missing->line;
        dq_jinja_fail(r, DQ_DAMAGED, "there is no filter or test \"%.*s\"", (int)p.missing->name.n,
                      p.missing->name.s);
    }
    return out;
}
