/* task_file: what the readers of task files have in common: lines, JSON lines, items that grow in
 * number, and choices. Readers give gold -1 where a file may keep its answers elsewhere.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TASK_FILE_H
#define DQ_TASK_FILE_H

#include "base/json.h"
#include "tasks/items.h"

/* Items while their number is unknown. */
typedef struct dq_task_items {
    dq_item *item;
    int64_t n;
    size_t cap;
    dq_arena *a;
} dq_task_items;

/* A zeroed item after the others, or NULL with DQ_RESOURCE. */
dq_item *dq_task_file_add(dq_task_items *l, dq_err *err);

/* A line of text[len] from *at on, without its U+000A. False at the end. */
bool dq_task_file_next_line(const char *text, size_t len, size_t *at, const char **line, size_t *n);
/* Spaces, tabs and line ends only. */
bool dq_task_file_is_blank(const char *line, size_t n);

/* Fills an item, whose delimiter is one space as in lm-evaluation-harness, from one object. */
typedef dq_status dq_task_file_object(dq_item *item, const json_t *o, dq_arena *a, dq_err *err);
/* An item per line that is not blank, at most `limit` (0: all). Messages begin with item and line. */
dq_status dq_task_file_read_jsonl(dq_task_items *l, const char *text, size_t len, int64_t limit,
                                  dq_task_file_object *read, dq_err *err);

/* A choice after the item's delimiter; its points are those of the text alone. */
dq_status dq_task_file_set_choice(const dq_item *item, dq_choice *c, const char *text, dq_arena *a,
                                  dq_err *err);
dq_status dq_task_file_set_choices(dq_item *item, const char *const *text, int n, dq_arena *a,
                                   dq_err *err);
/* Strings of the array `key`, through `clean` if given; at least two. */
dq_status dq_task_file_read_choices(dq_item *item, const json_t *o, const char *key,
                                    char *(*clean)(dq_arena *, const char *, dq_err *), dq_arena *a,
                                    dq_err *err);
/* What an item depends on: `cluster` of its record, a text or an integer; *out stays as it is where that is absent. */
dq_status dq_task_file_read_cluster(uint64_t *out, const json_t *o, dq_err *err);
/* printf into the item's context. */
dq_status dq_task_file_set_context(dq_item *item, dq_arena *a, dq_err *err, const char *fmt, ...)
    DQ_PRINTF(4, 5);
/* The decimal number in s[len], white space around it aside, less `first`; -1 unless below n. */
int dq_task_file_index_of(const char *s, size_t len, int first, int n);
/* A key that counts n things from `first`: a number in original files, a string in later copies.
 * *out counts from 0; it is *fallback where the key is absent, DQ_DAMAGED if there is none. */
dq_status dq_task_file_read_index(int *out, const json_t *o, const char *key, int first, int n,
                                  const int *fallback, dq_err *err);

#endif
