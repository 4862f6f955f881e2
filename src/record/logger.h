/* logger: what a command says while it runs: warnings, and with -v what runs.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LOGGER_H
#define DQ_LOGGER_H

#include "base/json.h"

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
    dq_word progress;    /* a dq_logger_when */
    const char *command; /* "eval", for the prefix of lines */
    void (*listener)(const char *line); /* takes "dq eval: warning: ..."; NULL: nobody does */
    json_t *warnings;    /* array of strings, for the JSON document; owned */
    json_t *left_out;    /* reason to array of what it is of; owned, NULL: nothing */
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

#endif
