/* jinja_value: what the expressions of a template give, as Python has it: values that do not change once they are made, in
 * the arena of one rendering. A failure stands in the rendering's err, the first one only; from then on functions give
 * absent values, false and 0, so that what calls them asks dq_jinja_ok where it matters: in loops and at the end.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JINJA_VALUE_H
#define DQ_JINJA_VALUE_H

#include "base/text.h"

/* Bytes of UTF-8, without a NUL after them. */
typedef struct dq_jinja_text {
    const char *s;
    size_t n;
} dq_jinja_text;

typedef enum dq_jinja_kind {
    DQ_JINJA_ABSENT, /* no value: an argument that was not given, the result of what failed */
    DQ_JINJA_UNDEFINED,
    DQ_JINJA_NONE,
    DQ_JINJA_BOOL,
    DQ_JINJA_INT,
    DQ_JINJA_FLOAT,
    DQ_JINJA_STRING,
    DQ_JINJA_LIST,
    DQ_JINJA_TUPLE,
    DQ_JINJA_RANGE,
    DQ_JINJA_VIEW,     /* keys(), values() and items() of a dict */
    DQ_JINJA_ITERATOR, /* can be read once: what map, select and others give */
    DQ_JINJA_DICT,     /* keys are strings */
    DQ_JINJA_NAMESPACE,
    DQ_JINJA_LOOP,
    DQ_JINJA_MACRO,
    DQ_JINJA_FUNCTION,
    DQ_JINJA_METHOD,
    DQ_JINJA_KINDS
} dq_jinja_kind;

typedef struct dq_jinja_value {
    dq_jinja_kind kind;
    bool is_safe; /* a string that came through the filter safe */
    union {
        bool truth;
        int64_t i;
        double f;
        dq_jinja_text text;         /* a string; of an undefined value, what using it says */
        struct dq_jinja_list *list; /* list, tuple, range, view, iterator */
        struct dq_jinja_dict *dict; /* dict, namespace */
        struct dq_jinja_loop *loop;
        const struct dq_jinja_macro *macro;
        const struct dq_jinja_function *function;
        const struct dq_jinja_method *method;
    };
} dq_jinja_value;

typedef struct dq_jinja_list {
    dq_jinja_value *item; /* [n] */
    size_t n, capacity;
} dq_jinja_list;

typedef struct dq_jinja_entry {
    dq_jinja_text key;
    dq_jinja_value value;
} dq_jinja_entry;

typedef struct dq_jinja_dict {
    dq_jinja_entry *entry; /* [n], in the order in which keys came */
    size_t n, capacity;
} dq_jinja_dict;

/* One rendering. */
typedef enum dq_jinja_flow { DQ_JINJA_ON, DQ_JINJA_BREAK, DQ_JINJA_CONTINUE } dq_jinja_flow;
typedef struct dq_jinja_run {
    dq_arena *arena; /* all values */
    dq_err *err;
    dq_strbuf *out; /* where text goes */
    struct dq_jinja_scope *scope;
    dq_jinja_flow flow; /* what ends the statements around */
    int line;           /* of the node at work */
    int depth;          /* of nodes and values at work */
    size_t work;        /* nodes, bytes and items so far, in units of a byte */
} dq_jinja_run;

/* A call of a filter, test, method or function, and the row of a table that it calls. */
enum { DQ_JINJA_PARAMETERS = 5 };
typedef struct dq_jinja_call {
    dq_jinja_value self;                   /* before the filter, the test or the method's dot */
    dq_jinja_list arg;                     /* given by position */
    dq_jinja_dict named;                   /* given by name */
    dq_jinja_value p[DQ_JINJA_PARAMETERS]; /* of the row's parameters, absent: not given */
} dq_jinja_call;

typedef dq_jinja_value dq_jinja_code(dq_jinja_run *r, dq_jinja_call *c);
typedef struct dq_jinja_function {
    const char *name;
    const char *
        parameters; /* names with blanks between them, _name: by position only; NULL: the code takes arg and named */
    size_t required;     /* the first ones that must be given */
    dq_jinja_code *code; /* NULL: Jinja2 has it, and it is not implemented */
} dq_jinja_function;

typedef struct dq_jinja_method {
    dq_jinja_value self;
    const dq_jinja_function *function;
} dq_jinja_method;

/* "chat template, line N: ..." as the failure, and an absent value. DQ_DAMAGED: what Jinja2 refuses too; DQ_MISMATCH: what
 * is not implemented, or what the template itself raises. */
dq_jinja_value dq_jinja_fail(dq_jinja_run *r, dq_status code, const char *fmt, ...) DQ_PRINTF(3, 4);
/* An undefined value was used: what it says. */
dq_jinja_value dq_jinja_fail_undefined(dq_jinja_run *r, const dq_jinja_value *v);
bool dq_jinja_ok(const dq_jinja_run *r);
/* Work is counted in bytes that are copied, compared or passed over. What takes longer counts as so many bytes: */
enum {
    DQ_JINJA_MAX_WORK = 1 << 28, /* of a rendering: bounds its time and memory */
    DQ_JINJA_CHARACTER = 4,      /* a character that is decoded, beside what is done with it */
    DQ_JINJA_PIECE = 8,          /* a piece that is put, an item that is read, a comparison */
    DQ_JINJA_STEP = 32,          /* a node that is run, a value that is written */
    DQ_JINJA_SEARCH = 128,       /* a name among methods, the text of an undefined value */
    DQ_JINJA_NUMBER = 512,       /* a number from its digits */
    DQ_JINJA_DIVISION = 4096     /* the rest of a real, or its shortest digits */
};
/* Adds to the work and says dq_jinja_ok; DQ_MISMATCH above the limit. Looks now and then for a request to stop:
 * DQ_STOPPED. Whatever touches texts and items goes through this or through a function below that has the run, all of
 * which spend what they touch. */
bool dq_jinja_spend(dq_jinja_run *r, size_t work);
/* Of any text that is made, the output among them: 16 MiB, which at 4 bytes a token are 4 million tokens, 32 times what a
 * model of 131072 positions reads. */
enum { DQ_JINJA_MAX_TEXT = 16 << 20 };
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
int dq_jinja_text_order(dq_jinja_run *r, dq_jinja_text a, dq_jinja_text b); /* -1, 0, 1 */
/* The character of t at byte *at, which goes past it, or the one that ends before byte *end, which goes to its start; one
 * must be there. After a failure 0, and the place is the end or the start of t. */
uint32_t dq_jinja_text_next(dq_jinja_run *r, dq_jinja_text t, size_t *at);
uint32_t dq_jinja_text_last(dq_jinja_run *r, dq_jinja_text t, size_t *end);
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
bool dq_jinja_is_list(const dq_jinja_value *v);    /* of the kinds that have a list */
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

#endif
