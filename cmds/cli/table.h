/* table: results as text in columns, or as CSV.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TABLE_H
#define DQ_TABLE_H

#include "base/base.h"

/* A table of text cells. Columns whose cells are all numbers are set to the right. */
typedef struct dq_table dq_table;
dq_status dq_table_new(dq_table **out, const char *const *titles, int n_cols, dq_err *err);
void dq_table_free(dq_table *t);
void dq_table_cell(dq_table *t, const char *fmt, ...) DQ_PRINTF(2, 3); /* next cell, row by row */
void dq_table_real(dq_table *t, double x); /* all digits, or inf; empty where it is NaN: for CSV */
void dq_table_rule(dq_table *t);           /* a line between rows in the text form */
/* The first n columns say which row it is, and stand in every block; without this the first. */
void dq_table_keys(dq_table *t, int n);
/* Text, to stdout, in lines of at most 120 characters where keys and one column allow it: a wider table loses columns that
 * hold nothing in all rows ("-"), then those that hold the same in all rows, which a line in front says, until it fits; else
 * it goes on in blocks of columns below one another, with "…" for the middle of long names in the first column. */
dq_status dq_table_print(const dq_table *t, dq_err *err);
dq_status dq_table_csv(const dq_table *t, const char *path, dq_err *err); /* a whole file */

#endif
