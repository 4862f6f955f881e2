/* output: what commands have in common on their way out: tables, JSON documents, progress, warnings.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_OUTPUT_H
#define DQ_OUTPUT_H

#include "base/json.h"

#include <stdio.h>

/* Verbosity and progress as every command takes them; rows for the option table. */
typedef struct dq_talk {
    bool quiet;
    int verbose;
    const char *progress; /* "auto", "always", "never" */
    const char *command;  /* "eval", for the prefix of lines on stderr */
    json_t *warnings;     /* array of strings, for the JSON document; owned */
} dq_talk;
#define DQ_TALK_OPTIONS(talk)                                                                      \
    {.name = "progress",                                                                           \
     .kind = DQ_OPT_TEXT,                                                                          \
     .to = &(talk).progress,                                                                       \
     .value = "WHEN",                                                                              \
     .help = "auto, always or never (default auto: when stderr is a terminal)"},                   \
        {.name = "quiet",                                                                          \
         .letter = 'q',                                                                            \
         .kind = DQ_OPT_FLAG,                                                                      \
         .to = &(talk).quiet,                                                                      \
         .help = "no progress, no warnings on stderr"},                                            \
    {                                                                                              \
        .name = "verbose", .letter = 'v', .kind = DQ_OPT_COUNT, .to = &(talk).verbose,             \
        .help = "say on stderr what runs"                                                          \
    }

/* Checks --progress and makes the list of warnings; dq_talk_end frees it. */
dq_status dq_talk_begin(dq_talk *t, const char *command, dq_err *err);
void dq_talk_end(dq_talk *t);
/* One line "dq eval: warning: ..." on stderr (unless quiet) and in the JSON document. The same text
 * is said once. */
void dq_warn(dq_talk *t, const char *fmt, ...) DQ_PRINTF(2, 3);
/* One line on stderr with -v. */
void dq_say(dq_talk *t, const char *fmt, ...) DQ_PRINTF(2, 3);

/* Progress on stderr: a redrawn line on a terminal, else a line per 5 % or 30 s. */
typedef struct dq_progress {
    const dq_talk *talk;
    const char *label;
    double total, done, start, first, last_time,
        last_share; /* first: share done before the start */
    bool redraw, shown, on;
} dq_progress;
void dq_progress_begin(dq_progress *p, const dq_talk *t, const char *label, double total);
/* `note` says what is being done now; may be NULL. */
void dq_progress_set(dq_progress *p, double done, const char *note);
void dq_progress_end(dq_progress *p);

/* A table of text cells. Columns whose cells are all numbers are set to the right. */
typedef struct dq_table dq_table;
dq_status dq_table_new(dq_table **out, const char *const *titles, int n_cols, dq_err *err);
void dq_table_free(dq_table *t);
void dq_table_cell(dq_table *t, const char *fmt, ...) DQ_PRINTF(2, 3); /* next cell, row by row */
void dq_table_real(dq_table *t, double x); /* all digits; empty where it is not finite: for CSV */
void dq_table_rule(dq_table *t);           /* a line between rows in the text form */
dq_status dq_table_print(const dq_table *t, dq_err *err);                 /* text, to stdout */
dq_status dq_table_csv(const dq_table *t, const char *path, dq_err *err); /* a whole file */
const char *dq_size_text(char *buf, size_t cap, int64_t bytes);           /* "3.1 MiB" */

/* A whole file of what `make` prints into f; nothing is written where that fails. */
typedef dq_status dq_make_lines(FILE *f, const void *arg, dq_err *err);
dq_status dq_lines_write(const char *path, dq_make_lines *make, const void *arg, dq_err *err);

/* The frame of every JSON document: schema, dq_version, command, inputs [], settings {}, results [],
 * warnings []. Steals nothing; results, inputs and settings are filled by the caller. */
json_t *dq_document(const dq_talk *t, const char *schema);
/* Prints the document, consumes it. NaN and infinities cannot occur: jansson refuses them. */
dq_status dq_document_print(json_t *doc, dq_err *err);
/* The same as a whole file. */
dq_status dq_document_write(json_t *doc, const char *path, dq_err *err);
/* One line of a file of JSON lines; the value is consumed. */
dq_status dq_line_put(FILE *f, json_t *value, dq_err *err);
/* A string; U+FFFD stands for what is no UTF-8 in it, as names of files may hold. */
json_t *dq_name_json(const char *s);
/* The same as text in the arena, with '?' for control characters: for tables, which a terminal may show. */
dq_status dq_name_text(const char **out, const char *s, dq_arena *a, dq_err *err);
/* A number, or null when it is not finite. */
json_t *dq_real(double x);
/* {"value": v, "stderr": e}; e NaN gives null. */
json_t *dq_metric(double value, double std_err);
/* Flushes stdout and checks that everything was written, unless its reader has left. */
dq_status dq_flush_stdout(dq_err *err);
/* Whether something could not be written because the reader of the pipe has closed it, having enough
 * (dq info x.h5 | head -1): no failure, so files are kept; main ends in silence. */
bool dq_stdout_left(void);

#endif
