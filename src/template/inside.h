/* What the files of src/template share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TEMPLATE_INSIDE_H
#define DQ_TEMPLATE_INSIDE_H

#include "base/text.h"
#include "template/chat_template.h"

/* Records "chat template, line N: ..." and returns an absent value. DQ_DAMAGED: Jinja2 refuses it
 * too; DQ_MISMATCH: not implemented, or raised by the template. */
dq_jinja_value dq_jinja_fail(dq_jinja_run *r, dq_status code, const char *fmt, ...) DQ_PRINTF(3, 4);
/* Fails because an undefined value was used. */
dq_jinja_value dq_jinja_fail_undefined(dq_jinja_run *r, const dq_jinja_value *v);
bool dq_jinja_ok(const dq_jinja_run *r);
/* Adds to the work and returns dq_jinja_ok; DQ_MISMATCH above the limit, DQ_STOPPED on a signal.
 * All work on texts and items must come here, directly or through a function with the run. */
bool dq_jinja_spend(dq_jinja_run *r, size_t work);
/* n zeroed items; NULL on failure. */
void *dq_jinja_alloc(dq_jinja_run *r, size_t n, size_t size);
/* DQ_MISMATCH above DQ_JINJA_MAX_TEXT. */
void dq_jinja_put(dq_jinja_run *r, const char *s, size_t n);

dq_jinja_text dq_jinja_text_of(const char *s);         /* the same bytes */
bool dq_jinja_text_is(dq_jinja_text t, const char *s); /* s: a short one */
bool dq_jinja_text_same(dq_jinja_run *r, dq_jinja_text a, dq_jinja_text b);
/* Decodes the character at byte *at and moves past it; or the one that ends at *end and moves to
 * its start; there must be one. After a failure 0, and the place is the end or start of t. */
uint32_t dq_jinja_text_next(dq_jinja_run *r, dq_jinja_text t, size_t *at);
dq_jinja_value dq_jinja_bool(bool truth);
dq_jinja_value dq_jinja_int(int64_t i);
dq_jinja_value dq_jinja_float(double f);
dq_jinja_value dq_jinja_string(const char *s, size_t n); /* the same bytes */
dq_jinja_value dq_jinja_undefined(dq_jinja_run *r, const char *fmt, ...) DQ_PRINTF(2, 3);
/* Fails unless the value of a record's key is a text, as dq_json_text does. */
void dq_jinja_check_key(dq_jinja_run *r, dq_jinja_text key, const dq_jinja_value *v);
/* A key that a record lacks. */
dq_jinja_value dq_jinja_no_key(dq_jinja_text key);
/* Text put between the two calls goes to *mine and becomes a string. */
dq_strbuf *dq_jinja_capture(dq_jinja_run *r, dq_strbuf *mine);
dq_jinja_value dq_jinja_captured(dq_jinja_run *r, dq_strbuf *mine, dq_strbuf *before);

/* Python's name of the type, "str", "dict". */
const char *dq_jinja_type(const dq_jinja_value *v);
bool dq_jinja_is_integer(const dq_jinja_value *v); /* truth values too */
int64_t dq_jinja_integer(const dq_jinja_value *v);

/* A list, tuple, ... with space for n items. */
dq_jinja_value dq_jinja_list_new(dq_jinja_run *r, dq_jinja_kind kind, size_t n);
void dq_jinja_list_add(dq_jinja_run *r, dq_jinja_list *l, dq_jinja_value item);
dq_jinja_value dq_jinja_dict_new(dq_jinja_run *r, dq_jinja_kind kind);
void dq_jinja_dict_put(dq_jinja_run *r, dq_jinja_dict *d, dq_jinja_text key, dq_jinja_value value);
/* NULL: none. */
dq_jinja_value *dq_jinja_dict_get(dq_jinja_run *r, const dq_jinja_dict *d, dq_jinja_text key);

/* All items of an iterable; an iterator is empty after that. */
dq_jinja_list dq_jinja_items(dq_jinja_run *r, const dq_jinja_value *v);
size_t dq_jinja_length(dq_jinja_run *r, const dq_jinja_value *v); /* len(v) */
bool dq_jinja_truth(const dq_jinja_value *v);
bool dq_jinja_equal(dq_jinja_run *r, const dq_jinja_value *a, const dq_jinja_value *b);
/* -1, 0, 1: a before, equal to, after b; 2: one of them is not a number. */
int dq_jinja_order(dq_jinja_run *r, const dq_jinja_value *a, const dq_jinja_value *b);

/* Binds arguments to the row's parameters and calls its function. */
dq_jinja_value dq_jinja_eval_apply(dq_jinja_run *r, const dq_jinja_function *f, dq_jinja_call *c);

/* The value of a body that is one {{expression}}, unless its text is asked for, else its text. */
dq_jinja_value dq_jinja_eval_value(dq_jinja_run *r, const dq_jinja_nodes *body, bool text);

typedef enum dq_jinja_table { DQ_JINJA_FILTERS, DQ_JINJA_TESTS, DQ_JINJA_FUNCTIONS } dq_jinja_table;
/* NULL: no such name; a row without code: Jinja2 has it, but it is not implemented. Functions need
 * no definition. */
const dq_jinja_function *dq_jinja_find(dq_jinja_table table, dq_jinja_text name);

/* loop.name; absent: there is none. */
dq_jinja_value dq_jinja_loop_attribute(dq_jinja_run *r, dq_jinja_loop *l, dq_jinja_text name);

/* of.name, undefined where there is none; DQ_MISMATCH: Python has it, but it is not implemented. */
dq_jinja_value dq_jinja_methods_attribute(dq_jinja_run *r, const dq_jinja_value *of,
                                          dq_jinja_text name);
/* of[key]; in a dict a key hides the method of its name. */
dq_jinja_value dq_jinja_methods_subscript(dq_jinja_run *r, const dq_jinja_value *of,
                                          const dq_jinja_value *key);

/* DQ_DAMAGED: Python raises an exception; DQ_MISMATCH: beyond int64, string %, or a result of
 * safe. */
dq_jinja_value dq_jinja_operators_arithmetic(dq_jinja_run *r, dq_jinja_operation operation,
                                             const dq_jinja_value *a, const dq_jinja_value *b);
bool dq_jinja_operators_compare(dq_jinja_run *r, dq_jinja_operation operation,
                                const dq_jinja_value *a, const dq_jinja_value *b);
/* v[i] of a list or string, negative from the end; absent: none. */
dq_jinja_value dq_jinja_operators_item(dq_jinja_run *r, const dq_jinja_value *v, int64_t i);

/* Arguments of json.dumps. */
typedef struct dq_jinja_json {
    dq_jinja_text between, colon; /* what stands between items, and after a key */
    dq_jinja_text indent;         /* of a level; s NULL: all on one line */
    bool ascii, sorted;           /* other characters as \u; keys in order */
} dq_jinja_json;

/* str(v); a string's bytes are not copied. */
dq_jinja_text dq_jinja_print_text(dq_jinja_run *r, const dq_jinja_value *v);
/* json.dumps(v) as a string. */
dq_jinja_value dq_jinja_print_json(dq_jinja_run *r, const dq_jinja_value *v,
                                   const dq_jinja_json *form);

/* An integer or truth value; absent or None: the fallback. */
int64_t dq_jinja_strings_int(dq_jinja_run *r, const dq_jinja_value *v, int64_t fallback);

/* Byte offset of `part` from `at` on; SIZE_MAX: none. */
size_t dq_jinja_strings_find(dq_jinja_run *r, dq_jinja_text t, dq_jinja_text part, size_t at);
dq_jinja_value dq_jinja_strings_join(dq_jinja_run *r, dq_jinja_text between,
                                     const dq_jinja_list *items);

#endif
