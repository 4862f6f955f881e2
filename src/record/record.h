/* What a command or the library has to tell: notes, documents, and who wrote them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RECORD_H
#define DQ_RECORD_H

#include "base/json.h"

#include <stdio.h>

/* ---- Logger ----
 * What a command says while it runs: warnings, and with -v what runs. */

/* One of a list of names, as an option or a file says it. */
typedef struct dq_word {
    const char *text; /* NULL: not given */
    int at;           /* its index among the words */
} dq_word;

typedef enum dq_logger_when { DQ_LOGGER_AUTO, DQ_LOGGER_ALWAYS, DQ_LOGGER_NEVER } dq_logger_when;
enum { DQ_LOGGER_WHENS = 3 };
extern const char *const dq_logger_when_name[DQ_LOGGER_WHENS]; /* "auto", "always", "never" */

/* Verbosity and progress as every command takes them, and who is told. */
typedef struct dq_logger {
    bool quiet;
    int verbose;
    dq_word progress;                   /* a dq_logger_when */
    const char *command;                /* "eval", for the prefix of lines */
    void (*listener)(const char *line); /* takes "dq eval: warning: ..."; NULL: nobody does */
    json_t *warnings;                   /* array of strings, for the JSON document; owned */
    json_t *left_out;                   /* reason to array of what it is of; owned, NULL: nothing */
} dq_logger;
/* Makes the list of warnings; dq_logger_end frees it. */
dq_status dq_logger_begin(dq_logger *logger, const char *command, dq_err *err);
void dq_logger_end(dq_logger *logger);
/* One line "dq eval: warning: ..." for the listener (unless quiet) and in the JSON document. The same text
 * is said once. */
void dq_logger_warn(dq_logger *logger, const char *fmt, ...) DQ_PRINTF(2, 3);
/* What a list of settings asks for and cannot have: gathered, and said by the other in a warning for each reason, "left out: A,
 * B: why". The same is said once. what NULL: `why` names it. */
void dq_logger_left_out(dq_logger *logger, const char *what, const char *why);
void dq_logger_say_left_out(dq_logger *logger);
/* One line, unless quiet. */
void dq_logger_say(const dq_logger *logger, const char *fmt, ...) DQ_PRINTF(2, 3);
/* One line with -v. */
void dq_logger_note(dq_logger *logger, const char *fmt, ...) DQ_PRINTF(2, 3);

/* ---- Document ----
 * Results as JSON, and numbers in words. */

/* A whole file of what `make` prints into f; nothing is written where that fails. */
typedef dq_status dq_document_lines(FILE *f, const void *arg, dq_err *err);
dq_status dq_document_write_lines(const char *path, dq_document_lines *make, const void *arg,
                                  dq_err *err);

/* The frame of every JSON document: schema, dq_version, command, inputs [], settings {}, results [],
 * warnings []. Steals nothing; results, inputs and settings are filled by the caller. */
json_t *dq_document_new(const dq_logger *logger, const char *schema);
/* The document as a whole file; it is consumed. NaN and infinities cannot occur: jansson refuses them. */
dq_status dq_document_write(json_t *doc, const char *path, dq_err *err);
/* One line of a file of JSON lines; the value is consumed. */
dq_status dq_document_put_line(FILE *f, json_t *value, dq_err *err);
/* A string; U+FFFD stands for what is no UTF-8 in it, as names of files may hold. */
json_t *dq_document_name(const char *s);
/* The same as text in the arena, of one line (dq_one_line). */
dq_status dq_document_name_text(const char **out, const char *s, dq_arena *a, dq_err *err);
/* A number, or null when it is not finite. */
json_t *dq_document_real(double x);
/* {"value": v, "stderr": e}; e NaN gives null. An infinite v, which a perplexity alone has, gives null and the "reason". */
json_t *dq_document_metric(double value, double std_err);
/* "3.1 MiB"; "27 min". */
const char *dq_document_size_text(char *buf, size_t cap, int64_t bytes);
const char *dq_document_time_text(char *buf, size_t cap, double seconds);

/* ---- Commit ----
 * The state of the repository that the program was built from, which the build looks up each time
 * (commit.cmake). */

/* "0123456789ab", "-dirty" after it where files that git knows were changed; NULL: not known. */
const char *dq_commit_text(void);
/* The version, and in parentheses the commit where it is known. */
const char *dq_commit_version(void);

#endif
