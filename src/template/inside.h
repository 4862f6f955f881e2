/* What the files of src/template share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TEMPLATE_INSIDE_H
#define DQ_TEMPLATE_INSIDE_H

#include "base/text.h"
#include "template/chat_template.h"

/* "chat template, line N: ..." as the failure, and an absent value. DQ_DAMAGED: what Jinja2 refuses too; DQ_MISMATCH: what
 * is not implemented, or what the template itself raises. */
dq_jinja_value dq_jinja_fail(dq_jinja_run *r, dq_status code, const char *fmt, ...) DQ_PRINTF(3, 4);
/* An undefined value was used: what it says. */
dq_jinja_value dq_jinja_fail_undefined(dq_jinja_run *r, const dq_jinja_value *v);
bool dq_jinja_ok(const dq_jinja_run *r);
/* Adds to the work and says dq_jinja_ok; DQ_MISMATCH above the limit. Looks now and then for a request to stop:
 * DQ_STOPPED. Whatever touches texts and items goes through this or through a function below that has the run, all of
 * which spend what they touch. */
bool dq_jinja_spend(dq_jinja_run *r, size_t work);
/* Goes into a nested node or value and says dq_jinja_ok; --r->depth leaves it. */
bool dq_jinja_enter(dq_jinja_run *r);
/* n zeroed items of size bytes; NULL with the failure. */
void *dq_jinja_alloc(dq_jinja_run *r, size_t n, size_t size);
/* Bytes for a text; NULL with the failure, DQ_MISMATCH above DQ_JINJA_MAX_TEXT. */
char *dq_jinja_alloc_text(dq_jinja_run *r, size_t n);
/* Puts bytes to the output; DQ_MISMATCH above DQ_JINJA_MAX_TEXT. */
void dq_jinja_put(dq_jinja_run *r, const char *s, size_t n);

dq_jinja_text dq_jinja_text_of(const char *s);         /* the same bytes */
bool dq_jinja_text_is(dq_jinja_text t, const char *s); /* s: a short one */
bool dq_jinja_text_same(dq_jinja_run *r, dq_jinja_text a, dq_jinja_text b);
/* The character of t at byte *at, which goes past it, or the one that ends before byte *end, which goes to its start; one
 * must be there. After a failure 0, and the place is the end or the start of t. */
uint32_t dq_jinja_text_next(dq_jinja_run *r, dq_jinja_text t, size_t *at);
dq_jinja_value dq_jinja_bool(bool truth);
dq_jinja_value dq_jinja_int(int64_t i);
dq_jinja_value dq_jinja_float(double f);
dq_jinja_value dq_jinja_string(const char *s, size_t n); /* the same bytes */
dq_jinja_value dq_jinja_undefined(dq_jinja_run *r, const char *fmt, ...) DQ_PRINTF(2, 3);
/* Text that is put between the two calls goes to *mine, and is a string then. */
dq_strbuf *dq_jinja_capture(dq_jinja_run *r, dq_strbuf *mine);
dq_jinja_value dq_jinja_captured(dq_jinja_run *r, dq_strbuf *mine, dq_strbuf *before);

/* "str", "dict", ... as Python names the type. */
const char *dq_jinja_type(const dq_jinja_value *v);
bool dq_jinja_is_integer(const dq_jinja_value *v); /* truth values too */
int64_t dq_jinja_integer(const dq_jinja_value *v);

/* A list, tuple, ... of n items, to be filled or, with fewer, added to. */
dq_jinja_value dq_jinja_list_new(dq_jinja_run *r, dq_jinja_kind kind, size_t n);
void dq_jinja_list_add(dq_jinja_run *r, dq_jinja_list *l, dq_jinja_value item);
dq_jinja_value dq_jinja_dict_new(dq_jinja_run *r, dq_jinja_kind kind);
void dq_jinja_dict_put(dq_jinja_run *r, dq_jinja_dict *d, dq_jinja_text key, dq_jinja_value value);
/* NULL: none. */
dq_jinja_value *dq_jinja_dict_get(dq_jinja_run *r, const dq_jinja_dict *d, dq_jinja_text key);

/* All items of what can be iterated over; what is left of an iterator, which has none after that. */
dq_jinja_list dq_jinja_items(dq_jinja_run *r, const dq_jinja_value *v);
size_t dq_jinja_length(dq_jinja_run *r, const dq_jinja_value *v); /* len(v) */
bool dq_jinja_truth(const dq_jinja_value *v);
bool dq_jinja_equal(dq_jinja_run *r, const dq_jinja_value *a, const dq_jinja_value *b);
/* -1, 0, 1: a before, like, after b; 2: one of them is not a number. */
int dq_jinja_order(dq_jinja_run *r, const dq_jinja_value *a, const dq_jinja_value *b);

/* What jinja_parse.c and jinja_eval.c share. After a failure the template is at its end, and nodes are what they are
 * then: no function gives NULL. */
typedef struct dq_jinja_parser {
    dq_jinja_run *r; /* its depth is that of what is being parsed */
    const struct dq_jinja_token *t;
    int loops, macros; /* around what is parsed, loops those of the same macro */
    bool
        is_branch; /* right within an if, where a filter that does not exist fails when it is used */
    const dq_jinja_node *missing; /* elsewhere: the first one that uses such a filter or test */
    dq_jinja_node none;           /* where memory is short */
} dq_jinja_parser;

dq_jinja_node *dq_jinja_parse_node(dq_jinja_parser *p, dq_jinja_node_kind kind);
void dq_jinja_parse_add(dq_jinja_parser *p, dq_jinja_nodes *list, const dq_jinja_node *n);
/* A node whose parts are all there: fails if they nest too deeply. */
dq_jinja_node *dq_jinja_parse_end(dq_jinja_parser *p, dq_jinja_node *n);
/* Goes into a nested part, false with the failure where there are too many; --p->r->depth leaves it. */
bool dq_jinja_parse_deeper(dq_jinja_parser *p);

dq_jinja_node *dq_jinja_parse_expression(dq_jinja_parser *p);
/* One expression, or several with commas between them; is_condition: none of the form a if b else c. */
dq_jinja_node *dq_jinja_parse_tuple(dq_jinja_parser *p, bool is_condition);
/* a|filter|filter as far as it goes. */
dq_jinja_node *dq_jinja_parse_filters(dq_jinja_parser *p, dq_jinja_node *a);

dq_jinja_node *dq_jinja_parse_fail(dq_jinja_parser *p, dq_status code, const char *fmt, ...)
    DQ_PRINTF(3, 4);
/* The same for the token at hand where `expected` should be. */
dq_jinja_node *dq_jinja_parse_unexpected(dq_jinja_parser *p, const char *expected);
bool dq_jinja_parse_is(const dq_jinja_parser *p, const char *word); /* an operator or a name */
bool dq_jinja_parse_skip(dq_jinja_parser *p, const char *word);     /* the same, and goes past it */
void dq_jinja_parse_expect(dq_jinja_parser *p, const char *word);   /* the same, or fails */
dq_jinja_text dq_jinja_parse_name(dq_jinja_parser *p);              /* a name, or fails */
void dq_jinja_parse_next(dq_jinja_parser *p);

/* Calls the function of a row: arguments become its parameters. */
dq_jinja_value dq_jinja_eval_apply(dq_jinja_run *r, const dq_jinja_function *f, dq_jinja_call *c);

/* The row of this name, without code where Jinja2 has one that is not implemented; NULL: there is none. Functions are those
 * that templates find without being given them. */
const dq_jinja_function *dq_jinja_filters_find(dq_jinja_text name);
const dq_jinja_function *dq_jinja_tests_find(dq_jinja_text name);
const dq_jinja_function *dq_jinja_functions_find(dq_jinja_text name);

typedef enum dq_jinja_token_kind {
    DQ_JINJA_END,
    DQ_JINJA_DATA, /* text outside of tags */
    DQ_JINJA_PRINT_BEGIN,
    DQ_JINJA_PRINT_END,
    DQ_JINJA_BLOCK_BEGIN,
    DQ_JINJA_BLOCK_END,
    DQ_JINJA_NAME,
    DQ_JINJA_LITERAL, /* a string or a number */
    DQ_JINJA_OPERATOR,
} dq_jinja_token_kind;

typedef struct dq_jinja_token {
    dq_jinja_token_kind kind;
    int line;
    dq_jinja_text text;   /* as it stands there */
    dq_jinja_value value; /* of a literal */
} dq_jinja_token;

/* Tokens of the arena, the last one DQ_JINJA_END. r: an arena and an err. DQ_DAMAGED: Jinja2 refuses the text too;
 * DQ_MISMATCH: it does not. */
const dq_jinja_token *dq_jinja_lex(dq_jinja_run *r, const char *text, size_t len);

/* Python's str.isspace of a character. */
bool dq_jinja_lex_is_space(uint32_t c);

/* loop.name; absent: there is none. */
dq_jinja_value dq_jinja_loop_attribute(dq_jinja_run *r, dq_jinja_loop *l, dq_jinja_text name);

/* of.name, an undefined value where there is none; DQ_MISMATCH: Python has it, and it is not implemented. */
dq_jinja_value dq_jinja_methods_attribute(dq_jinja_run *r, const dq_jinja_value *of,
                                          dq_jinja_text name);
/* of[key], which of a dict is the key before the method of this name. */
dq_jinja_value dq_jinja_methods_subscript(dq_jinja_run *r, const dq_jinja_value *of,
                                          const dq_jinja_value *key);

/* a + b and its like. DQ_DAMAGED where Python has an exception; DQ_MISMATCH for what int64 cannot hold, for a string % and
 * for what safe gives. */
dq_jinja_value dq_jinja_operators_arithmetic(dq_jinja_run *r, dq_jinja_operation operation,
                                             const dq_jinja_value *a, const dq_jinja_value *b);
/* a < b, a in b and their like. */
bool dq_jinja_operators_compare(dq_jinja_run *r, dq_jinja_operation operation,
                                const dq_jinja_value *a, const dq_jinja_value *b);
/* v[i] of a list or string, negative ones from its end; absent: it has none. */
dq_jinja_value dq_jinja_operators_item(dq_jinja_run *r, const dq_jinja_value *v, int64_t i);

/* How json.dumps is called. */
typedef struct dq_jinja_json {
    dq_jinja_text between, colon; /* what stands between items, and after a key */
    dq_jinja_text indent;         /* of a level; s NULL: all on one line */
    bool ascii, sorted;           /* other characters as \u; keys in order */
} dq_jinja_json;

/* str(v) to the output; what has no text of its own in Python (a loop, a macro) is DQ_MISMATCH. */
void dq_jinja_print(dq_jinja_run *r, const dq_jinja_value *v);
/* str(v); the bytes of a string are not copied. */
dq_jinja_text dq_jinja_print_text(dq_jinja_run *r, const dq_jinja_value *v);
/* json.dumps(v) as a string. */
dq_jinja_value dq_jinja_print_json(dq_jinja_run *r, const dq_jinja_value *v,
                                   const dq_jinja_json *form);

/* The bytes of an argument that is a string; DQ_DAMAGED for another value, DQ_MISMATCH for what safe gives. */
dq_jinja_text dq_jinja_strings_text(dq_jinja_run *r, const dq_jinja_value *v);
/* An argument that is an integer or a truth value; absent or None: the fallback. */
int64_t dq_jinja_strings_int(dq_jinja_run *r, const dq_jinja_value *v, int64_t fallback);

typedef enum dq_jinja_case {
    DQ_JINJA_LOWER,
    DQ_JINJA_UPPER,
    DQ_JINJA_CAPITALIZE, /* the first character in upper case, others in lower */
    DQ_JINJA_TITLE,      /* str.title(): the first letter after another character; ASCII only */
    DQ_JINJA_WORDS /* the filter title: the first character, and those after blanks and - ( { [ < */
} dq_jinja_case;
/* DQ_MISMATCH for characters that become several, or that depend on those beside them. */
dq_jinja_value dq_jinja_strings_case(dq_jinja_run *r, dq_jinja_text t, dq_jinja_case form);
/* Without the characters at its ends that chars has; absent or None: without whitespace. */
dq_jinja_value dq_jinja_strings_strip(dq_jinja_run *r, dq_jinja_text t, const dq_jinja_value *chars,
                                      bool left, bool right);
/* Place of `part` from byte `at` on; SIZE_MAX: none. */
size_t dq_jinja_strings_find(dq_jinja_run *r, dq_jinja_text t, dq_jinja_text part, size_t at);
/* The first `count` places with the other text; negative: all. */
dq_jinja_value dq_jinja_strings_replace(dq_jinja_run *r, dq_jinja_text t, dq_jinja_text old,
                                        dq_jinja_text with, int64_t count);
/* Its parts between `by`, at most `count` times; negative: all. by absent or None: runs of whitespace. */
dq_jinja_value dq_jinja_strings_split(dq_jinja_run *r, dq_jinja_text t, const dq_jinja_value *by,
                                      int64_t count);
dq_jinja_value dq_jinja_strings_lines(dq_jinja_run *r, dq_jinja_text t); /* str.splitlines() */
/* str() of the items with a text between them. */
dq_jinja_value dq_jinja_strings_join(dq_jinja_run *r, dq_jinja_text between,
                                     const dq_jinja_list *items);

#endif
