/* What commands share: progress, standard output, help, tables.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CLI_H
#define DQ_CLI_H

#include "base/base.h"
#include "base/work.h"
#include "record/record.h"
#include "settings/options.h"

/* ---- Progress ----
 * How far a command is, and how long it will take. */

/* Progress on stderr: on a terminal a line that is redrawn, in a file a line now and then: the first after 3 s, then as a
 * log of hours stays short, see dq_progress_due. `always` adds one for every 5 %.
 * After a second of work comes dq_progress_announce, once. */
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
/* dq_logger_begin of a command, whose lines go to stderr. */
dq_status dq_progress_listen(dq_logger *logger, const char *command, dq_err *err);
void dq_progress_begin(dq_progress *p, const dq_logger *logger, const char *label, double total);
/* Another label for what follows of the same work. The text must outlive it. */
void dq_progress_label(dq_progress *p, const char *label);
/* `note` says what is being done now; may be NULL. */
void dq_progress_set(dq_progress *p, double done, const char *note);
/* The same for work whose total is told with every step; `progress` is a dq_progress. */
void dq_progress_step(void *progress, double done, double total, const char *note);
/* Seconds are left. */
void dq_progress_left(dq_progress *p, double seconds, const char *note);
/* The same of a quantization: step of dq_quantize_progress. */
void dq_progress_pace(void *progress, const dq_pace *pace, const char *note);
void dq_progress_end(dq_progress *p);
/* "takes about 4 min on 2 threads", where that is long enough to be worth a line, and for one process; threads 0: elsewhere. */
void dq_progress_announce(const dq_logger *logger, double seconds, int threads);
/* Whether what takes so many seconds by a rough estimate is worth timing. */
bool dq_progress_is_long(double seconds);
/* Whether a line is due at `now`, seconds of dq_os_seconds. */
bool dq_progress_due(const dq_progress *p, double now, double share);

/* ---- Stdout ----
 * What commands print besides tables. */

/* Prints the document, consumes it. NaN and infinities cannot occur: jansson refuses them. */
dq_status dq_stdout_print(json_t *doc, dq_err *err);
/* From now on stdout is a stream in which '?' stands for what could move a terminal's cursor (dq_utf8_plain), whoever prints:
 * names come from files of other people. */
dq_status dq_stdout_begin(dq_err *err);
/* Prints s[len], UTF-8, as it is, where stdout is no terminal. */
void dq_stdout_put_exact(const char *s, size_t len);
/* Flushes stdout and checks that everything was written, unless its reader has left. */
dq_status dq_stdout_flush(dq_err *err);
/* Whether something could not be written because the reader of the pipe has closed it, having enough
 * (dq info x.h5 | head -1): no failure, so files are kept; main ends in silence. */
bool dq_stdout_reader_left(void);
/* The line "bits per weight    4.480 over all 477824 parameters", without its end. */
void dq_stdout_print_bits(double bits_per_weight, int64_t params);
/* A recipe as a container or a quantizer has it, as a file of schema dq-recipe/1. */
dq_status dq_stdout_print_recipe(const char *recipe, dq_err *err);

/* ---- Help ----
 * What a command prints about its options: text for a terminal, or a section of Markdown. */

/* Prints all that there is to a command in another form. opts: ended, without DQ_OPT_ROWS. */
typedef void dq_help_taker(const dq_opt *opts, const dq_usage *usage);
/* From now on dq_help_print calls it instead; topics do not count. */
void dq_help_take(dq_help_taker *taker);
/* A taker: a section of Markdown. */
void dq_help_markdown(const dq_opt *opts, const dq_usage *usage);
/* dq_options_parse and dq_options_parse_part, and the help where it is asked for: then args->help, and the command returns. */
dq_status dq_help_parse(dq_args *args, int argc, char **argv, const dq_opt *rows,
                        const dq_usage *usage, dq_err *err);
dq_status dq_help_parse_part(dq_args *args, int argc, char **argv, const dq_opt *rows,
                             const dq_opt *own, const dq_usage *usage, dq_err *err);

/* ---- Manual ----
 * A page of the manual, in roff with the macros of man(7). Parts of a page are printed in the
 * order in which they are called for; texts are plain and become filled lines. */

/* The title and the section NAME. name: "plan kv", or NULL for the page of dq itself. The date is that of
 * SOURCE_DATE_EPOCH, or today. */
void dq_manual_begin(const char *name, const char *purpose);
void dq_manual_section(const char *title);
/* A paragraph for each line. */
void dq_manual_text(const char *text);
/* The command and each line that may follow it: options are bold, what is in capitals is italic. name as above. */
void dq_manual_synopsis(const char *name, const char *text);
/* A tag and what it is, as an exit status. */
void dq_manual_item(const char *tag, const char *text);
/* A command as a tag that names its page, and what it is for. */
void dq_manual_entry(const char *name, const char *purpose);
/* The next of a list of pages, of which there are more. name as above. */
void dq_manual_see(const char *name, bool more);
/* Synopsis, description, options and examples of a command (a dq_help_taker). opts: ended, without DQ_OPT_ROWS. */
void dq_manual_command(const dq_opt *opts, const dq_usage *usage);

/* ---- Completion ----
 * A script with which a shell completes the command line of dq: commands, options, words that an
 * option takes, and names of files. One script is printed, in the order of the functions below. */

/* shell: "bash" or "zsh"; DQ_USAGE for another. */
dq_status dq_completion_begin(const char *shell, dq_err *err);
/* What is completed after the name of a command (a dq_help_taker). */
void dq_completion_command(const dq_opt *opts, const dq_usage *usage);
/* Then the names that may follow dq (group "") or a group's name: each group, its names, and its end. */
void dq_completion_names(void);
void dq_completion_group(const char *group);
void dq_completion_name(const char *name, const char *purpose);
void dq_completion_group_end(void);
void dq_completion_end(void);

/* completion.bash and completion.zsh. */
extern const char dq_completion_bash[], dq_completion_zsh[];
extern const size_t dq_completion_bash_len, dq_completion_zsh_len;

/* ---- Table ----
 * Results as text in columns, or as CSV. */

/* A table of text cells. Columns whose cells are all numbers are set to the right. */
typedef struct dq_table dq_table;
dq_status dq_table_new(dq_table **out, const char *const *titles, int n_cols, dq_err *err);
void dq_table_free(dq_table *t);
void dq_table_cell(dq_table *t, const char *fmt, ...) DQ_PRINTF(2, 3); /* next cell, row by row */
void dq_table_known(dq_table *t, bool known, const char *fmt, ...) DQ_PRINTF(3, 4); /* else "-" */
void dq_table_real(dq_table *t, double x); /* all digits, or inf; empty where it is NaN: for CSV */
void dq_table_rule(dq_table *t);           /* a line between rows in the text form */
/* The first n columns say which row it is, and stand in every block; without this the first. */
void dq_table_keys(dq_table *t, int n);
/* Text, to stdout, in lines of at most 120 characters where keys and one column allow it: a wider table loses columns that
 * hold nothing in all rows ("-"), then those that hold the same in all rows, which a line in front says, until it fits; else
 * it goes on in blocks of columns below one another, with "…" for the middle of long names in the first column. */
dq_status dq_table_print(const dq_table *t, dq_err *err);
dq_status dq_table_finish(dq_table *t, dq_err *err); /* prints it and ends it */
dq_status dq_table_csv(const dq_table *t, const char *path, dq_err *err); /* a whole file */

#endif
