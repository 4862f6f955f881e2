/* kv_field: the settings of a KV cache one by one. A row of the table says where a setting stands in
 * dq_kv_config and dq_kv_spec, how it is named, and what it acts on; options and their help, JSON, HDF5
 * attributes, columns of a CSV, equality and the key of a resumed run go through the rows.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_FIELD_H
#define DQ_KV_FIELD_H

#include "kv/kv_config.h"

typedef enum dq_kv_type {
    DQ_KV_INT,      /* int */
    DQ_KV_WIDTH,    /* the same; 0 in dq_kv_config where widths say, and results list the mean */
    DQ_KV_LONG,     /* int64_t, or uint64_t below 2^63 */
    DQ_KV_ROWS,     /* int64_t; -1: as the policy says */
    DQ_KV_SHARE,    /* double */
    DQ_KV_WORD,     /* an enum with names */
    DQ_KV_ROTATE,   /* the same in dq_kv_config; rotate_k and rotate_v in dq_kv_spec */
    DQ_KV_POLICY,   /* const dq_kv_policy * */
    DQ_KV_BY_LAYER, /* char[DQ_KV_LISTS]; empty: none */
    DQ_KV_BY_GROUP  /* char[DQ_KV_HEADS_TEXT]; the same */
} dq_kv_type;

typedef struct dq_kv_field {
    const char *name; /* key of JSON, attribute of HDF5 */
    dq_kv_type type;
    size_t config, spec; /* offsets in the two structs */
    unsigned applies;    /* any of DQ_KV_CODES ... it needs to say something; 0: it always does */
    bool or_other;       /* one of several ways to say one thing: 0 where another says it */
    bool later;          /* came after the first files: what is usual is not written */
    const char *const *words; /* [n_words] of a word */
    int n_words;
    /* The option: its place in --help from 1 on (0: it has none of its own), its name, and what --help shows for
     * the value and says about it, {default} and {names} filled in. Numbers lie in [min, max]; of what is
     * swept, dq eval takes several with commas between, as texts. */
    int option_place;
    const char *option, *value, *help;
    double min, max;
    bool swept;
    int column_place; /* in a CSV from 1 on, for ever: a new one goes to the end; rotate has two */
    const char *column[2]; /* their titles */
} dq_kv_field;

enum { DQ_KV_FIELDS = 17, DQ_KV_OPTIONS = 15, DQ_KV_COLUMNS = 18 };
extern const dq_kv_field dq_kv_fields[DQ_KV_FIELDS]; /* in the order of JSON and HDF5 */

/* Index of the field whose option, or title of the column that, has this place, from 1 on. */
int dq_kv_field_of_option(int place);
const char *dq_kv_field_title(int place);
/* A part of dq_evict_spec besides the policy: left out where nothing is evicted. */
bool dq_kv_field_evicts(const dq_kv_field *f);
/* Files and recipes hold it. */
bool dq_kv_field_stored(const dq_kv_field *f, const dq_kv_config *c);
/* c's `later` field becomes what it is in a file that does not name it; after k_bits and v_bits. */
void dq_kv_field_leave_out(const dq_kv_field *f, dq_kv_config *c);

/* How a setting is written down. */
typedef enum dq_kv_form { DQ_KV_AS_INTEGER, DQ_KV_AS_REAL, DQ_KV_AS_TEXT } dq_kv_form;
dq_kv_form dq_kv_field_form(const dq_kv_field *f);
/* One of a dq_kv_config, by its form. Also the index of a word. */
int64_t dq_kv_field_integer(const dq_kv_field *f, const dq_kv_config *c);
void dq_kv_field_set_integer(const dq_kv_field *f, dq_kv_config *c, int64_t v);
double dq_kv_field_real(const dq_kv_field *f, const dq_kv_config *c);
void dq_kv_field_set_real(const dq_kv_field *f, dq_kv_config *c, double v);
/* NULL: no policy, no widths by layer, no heads. */
const char *dq_kv_field_text(const dq_kv_field *f, const dq_kv_config *c);
/* DQ_DAMAGED for an unknown word or one that is too long, naming the field; an unknown policy goes to the arena. */
dq_status dq_kv_field_set_text(const dq_kv_field *f, dq_kv_config *c, const char *text, dq_arena *a,
                               dq_err *err);

bool dq_kv_spec_same(const dq_kv_spec *a, const dq_kv_spec *b);
/* What a column of dq_kv_spec says: a text (then the number is NaN), or NULL and the number, NaN where the
 * setting says nothing. */
const char *dq_kv_spec_column(double *number, const dq_kv_spec *s, int place);
/* What runs, as results list it and the key of a resumed run has it: null where a setting says nothing. */
json_t *dq_kv_spec_json(const dq_kv_spec *s);

#endif
