/* What a command or the library has to tell: notes, documents, and who wrote them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RECORD_H
#define DQ_RECORD_H

#include "base/json.h"

#include <stdio.h>

/* What a command says while it runs: warnings, and with -v what runs. */

/* A word from a list, as given by an option or file. */
typedef struct dq_word {
    const char *text; /* NULL: not given */
    int at;           /* its index among the words */
} dq_word;

typedef enum dq_logger_when { DQ_LOGGER_AUTO, DQ_LOGGER_ALWAYS, DQ_LOGGER_NEVER } dq_logger_when;
enum { DQ_LOGGER_WHENS = 3 };
extern const char *const dq_logger_when_name[DQ_LOGGER_WHENS]; /* "auto", "always", "never" */

/* Verbosity, progress and listener of a command. */
typedef struct dq_logger {
    bool quiet;
    int verbose;
    dq_word progress;                   /* a dq_logger_when */
    const char *command;                /* "eval", for the prefix of lines */
    void (*listener)(const char *line); /* takes "dq eval: warning: ..."; NULL: nobody does */
    json_t *warnings;                   /* array of strings, for the JSON document; owned */
    json_t *left_out;                   /* reason to array of what it is of; owned, NULL: nothing */
} dq_logger;
/* Ended by dq_logger_end. */
dq_status dq_logger_begin(dq_logger *logger, const char *command, dq_err *err);
void dq_logger_end(dq_logger *logger);
/* Sends "dq eval: warning: ..." to the listener (unless quiet) and to the document, each text
 * once. */
void dq_logger_warn(dq_logger *logger, const char *fmt, ...) DQ_PRINTF(2, 3);
/* Collects settings in a list that are impossible; the second function warns once per reason, "left
 * out: A, B: why". what NULL: `why` names it. */
void dq_logger_left_out(dq_logger *logger, const char *what, const char *why);
void dq_logger_say_left_out(dq_logger *logger);
/* One line, unless quiet. */
void dq_logger_say(const dq_logger *logger, const char *fmt, ...) DQ_PRINTF(2, 3);
/* One line with -v. */
void dq_logger_note(dq_logger *logger, const char *fmt, ...) DQ_PRINTF(2, 3);

/* Prints the content of a file into f; on failure no file is written. */
typedef dq_status dq_document_lines(FILE *f, const void *arg, dq_err *err);
dq_status dq_document_write_lines(const char *path, dq_document_lines *make, const void *arg,
                                  dq_err *err);

/* The frame of every document: schema, dq_version, command, inputs [], settings {}, results [],
 * warnings []; the caller fills results, inputs and settings. */
json_t *dq_document_new(const dq_logger *logger, const char *schema);
/* Writes and frees the document. NaN and infinities cannot occur: jansson refuses them. */
dq_status dq_document_write(json_t *doc, const char *path, dq_err *err);
/* A line of JSON lines; frees the value. */
dq_status dq_document_put_line(FILE *f, json_t *value, dq_err *err);
/* Replaces ill-formed UTF-8, as in names of files, by U+FFFD. */
json_t *dq_document_name(const char *s);
/* The same as one line (dq_one_line) in the arena. */
dq_status dq_document_name_text(const char **out, const char *s, dq_arena *a, dq_err *err);
/* null when not finite. */
json_t *dq_document_real(double x);
/* {"value": v, "stderr": e}; NaN e gives null. An infinite v, which only perplexities have, gives
 * null and a "reason". */
json_t *dq_document_metric(double value, double std_err);
/* "3.1 MiB"; "27 min". */
const char *dq_document_size_text(char *buf, size_t cap, int64_t bytes);
const char *dq_document_time_text(char *buf, size_t cap, double seconds);

/* The commit of this build, which the build looks up each time (commit.cmake). */

/* "0123456789ab", with "-dirty" after changes to tracked files; NULL: unknown. */
const char *dq_commit_text(void);
/* The version, with the commit in parentheses if known. */
const char *dq_commit_version(void);

#endif
