/* What commands share: progress, standard output, help, tables.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CLI_H
#define DQ_CLI_H

#include "base/base.h"
#include "record/record.h"
#include "settings/options.h"
#include "work/work.h"

/* Progress on stderr: on a terminal a line that is redrawn, in a file a line now and then: the
 * first after 3 s, then as a log of hours stays short, see dq_progress_due. `always` adds one for
 * every 5 %. After a second of work comes dq_progress_announce, once. */
typedef struct dq_progress {
    const dq_logger *logger;
    const char *label;
    double total, done, start, first, last_time,
        last_share;                /* first: share done before the start */
    bool redraw, shown, on, often; /* often: `always` */
    int threads;
    bool wait, announced; /* what is left is not to be announced yet; or it was */
    bool rough;           /* how much there is to do is an estimate, and so is the time left: "~" */
} dq_progress;
/* dq_logger_begin for a command: lines go to stderr. */
dq_status dq_progress_listen(dq_logger *logger, const char *command, dq_err *err);
void dq_progress_begin(dq_progress *p, const dq_logger *logger, const char *label, double total);
/* Relabels the rest of the same work; the text must outlive it. */
void dq_progress_label(dq_progress *p, const char *label);
/* note: what is being done; NULL allowed. */
void dq_progress_set(dq_progress *p, double done, const char *note);
/* For work that tells its total at every step; `progress` is a dq_progress. */
void dq_progress_step(void *progress, double done, double total, const char *note);
void dq_progress_left(dq_progress *p, double seconds, const char *note);
/* For the step of dq_quantize_progress. */
void dq_progress_pace(void *progress, const dq_pace *pace, const char *note);
void dq_progress_end(dq_progress *p);
/* "takes about 4 min on 2 threads", if long enough, and once per job; threads 0: elsewhere. */
void dq_progress_announce(const dq_logger *logger, double seconds, int threads);
/* Whether a rough estimate of so many seconds is worth timing. */
bool dq_progress_is_long(double seconds);
/* now: dq_os_seconds. */
bool dq_progress_due(const dq_progress *p, double now, double share);

/* Prints and frees the document. */
dq_status dq_stdout_print(json_t *doc, dq_err *err);
/* From now on '?' replaces what could move a terminal's cursor (dq_utf8_plain) in stdout, as names
 * come from other people's files. */
dq_status dq_stdout_begin(dq_err *err);
/* Prints UTF-8 unchanged where stdout is no terminal. */
void dq_stdout_put_exact(const char *s, size_t len);
/* Flushes stdout; fails if something was not written, unless the reader has left. */
dq_status dq_stdout_flush(dq_err *err);
/* Whether the pipe's reader has closed it (dq info x.h5 | head -1): no failure, so files are kept
 * and main ends silently. */
bool dq_stdout_reader_left(void);
/* "bits per weight    4.480 over all 477824 parameters", without newline. */
void dq_stdout_print_bits(double bits_per_weight, int64_t params);
/* A stored recipe as a file of schema dq-recipe/1. */
dq_status dq_stdout_print_recipe(const char *recipe, dq_err *err);

/* dq_options_parse_shard; prints the help if requested and sets args->help, whereupon the command
 * returns. */
dq_status dq_help_parse(dq_args *args, int argc, char **argv, const dq_opt *rows,
                        const dq_usage *usage, dq_err *err);
/* The same, and lines of the logger go to stderr. False: it failed, or the help was printed. */
bool dq_help_begin(dq_args *args, int argc, char **argv, const dq_opt *rows, const dq_usage *usage,
                   dq_logger *logger, dq_err *err);
dq_status dq_help_parse_shard(dq_args *args, int argc, char **argv, const dq_opt *rows,
                              const dq_opt *own, const dq_usage *usage, dq_err *err);

extern const char dq_completion_bash[], dq_completion_zsh[];
extern const size_t dq_completion_bash_len, dq_completion_zsh_len;

/* Columns of numbers only are right-aligned. */
typedef struct dq_table dq_table;
dq_status dq_table_new(dq_table **out, const char *const *titles, int n_cols, dq_err *err);
void dq_table_free(dq_table *t);
#define dq_table_cell(t, ...) dq_table_known(t, true, __VA_ARGS__) /* next cell, row by row */
void dq_table_known(dq_table *t, bool known, const char *fmt, ...) DQ_PRINTF(3, 4); /* else "-" */
void dq_table_real(dq_table *t, double x); /* all digits, or inf; empty where it is NaN: for CSV */
void dq_table_rule(dq_table *t);           /* a line between rows in the text form */
/* The first n columns identify a row and are repeated in every block; default 1. */
void dq_table_keys(dq_table *t, int n);
/* Text, to stdout, in lines of at most 120 characters where keys and one column allow it: a wider
 * table loses columns that hold nothing in all rows ("-"), then those that hold the same in all
 * rows, which a line in front says, until it fits; else it goes on in blocks of columns below one
 * another, with "…" for the middle of long names in the first column. */
dq_status dq_table_print(const dq_table *t, dq_err *err);
/* A table with the titles of the rows, for one item of what `arg` is, and no line. */
dq_status dq_table_begin(dq_table **t, dq_row_items *rows, const void *arg, int64_t item,
                         dq_err *err);
/* Adds a line of the rows with titles, for one item of what `arg` is; *t NULL: begins the table. */
dq_status dq_table_add_rows(dq_table **t, dq_row_items *rows, const void *arg, int64_t item,
                            dq_err *err);
dq_status dq_table_finish(dq_table *t, dq_err *err); /* prints it and ends it; NULL: nothing */
/* A whole table of n items, printed; the first `keys` columns identify a row. */
dq_status dq_table_rows(dq_row_items *rows, const void *arg, int64_t n, int keys, dq_err *err);
dq_status dq_table_csv(const dq_table *t, const char *path, dq_err *err); /* a whole file */

#endif
