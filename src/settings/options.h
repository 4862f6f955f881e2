/* options: command line options as data; the same rows parse argv and print --help.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_OPTIONS_H
#define DQ_OPTIONS_H

#include "record/record.h"

typedef enum dq_opt_kind {
    DQ_OPT_FLAG,  /* bool */
    DQ_OPT_COUNT, /* int, one more each time */
    DQ_OPT_INT,   /* int64_t within [min, max] */
    DQ_OPT_BITS,  /* int64_t: 2 to 8, or 16 */
    DQ_OPT_FLOAT, /* double within [min, max] */
    DQ_OPT_TEXT,  /* const char * */
    DQ_OPT_LIST,  /* dq_list: may be repeated */
    DQ_OPT_WORD,  /* dq_word: one of the row's words */
    DQ_OPT_WORDS, /* dq_words: several of them with commas between, none twice */
    DQ_OPT_ROWS   /* dq_opt[], ended as every table, in place of this row; help is "" */
} dq_opt_kind;

/* What a row is for; for the command of a shard dq merge takes settings only. */
typedef enum dq_opt_use {
    DQ_OPT_SETTING, /* what results depend on; a path is of an input */
    DQ_OPT_OUTPUT,  /* what comes out; a path is written */
    DQ_OPT_MANNER   /* how it runs */
} dq_opt_use;

enum { DQ_LIST_MAX = 256, DQ_WORDS_MAX = 32, DQ_ARGS_MAX = 10000, DQ_INPUTS_MAX = 12000 };
typedef struct dq_list {
    const char *item[DQ_LIST_MAX];
    int n;
} dq_list;
typedef struct dq_words {
    const char *text; /* as given, NULL: not given */
    int at[DQ_WORDS_MAX], n;
} dq_words;

/* The table ends with a row whose name and help are NULL. A NULL name with a help text is a
 * heading; its value is the topic of `dq help COMMAND TOPIC`, or NULL. */
typedef struct dq_opt {
    const char *name; /* "bits", used as --bits */
    char letter;      /* 'b' or 0 */
    dq_opt_kind kind;
    dq_opt_use use;
    void *to;          /* where the value goes, by kind; holds the default before */
    double min, max;   /* DQ_OPT_INT, DQ_OPT_FLOAT */
    const char *value; /* what --help shows for the value: "N" */
    const char *help;  /* one or more lines; names the default. {words}: "a, b or c" */
    /* [n_words] that a DQ_OPT_WORD or DQ_OPT_WORDS takes; for other kinds, words for completion */
    const char *const *words;
    int n_words;
} dq_opt;

static inline bool dq_opt_is_end(const dq_opt *o)
{
    return !o->name && !o->help;
}
static inline bool dq_opt_takes_value(const dq_opt *o)
{
    return o->kind != DQ_OPT_FLAG && o->kind != DQ_OPT_COUNT;
}

/* Judged by the value's name in help: FILE or OUT.h5, but not N[,N...]. */
bool dq_opt_is_path(const dq_opt *o);

/* Rows read as in --help: --name VALUE, target, range, text. */
static inline dq_opt dq_opt_heading(const char *text)
{
    return (dq_opt){.help = text};
}
static inline dq_opt dq_opt_topic(const char *topic, const char *text)
{
    return (dq_opt){.help = text, .value = topic};
}
static inline dq_opt dq_opt_flag(const char *name, bool *to, const char *help)
{
    return (dq_opt){.name = name, .kind = DQ_OPT_FLAG, .to = to, .help = help};
}
static inline dq_opt dq_opt_count(const char *name, int *to, const char *help)
{
    return (dq_opt){.name = name, .kind = DQ_OPT_COUNT, .to = to, .help = help};
}
static inline dq_opt dq_opt_int(const char *name, const char *value, int64_t *to, double min,
                                double max, const char *help)
{
    return (dq_opt){.name = name,
                    .kind = DQ_OPT_INT,
                    .to = to,
                    .min = min,
                    .max = max,
                    .value = value,
                    .help = help};
}
static inline dq_opt dq_opt_float(const char *name, const char *value, double *to, double min,
                                  double max, const char *help)
{
    return (dq_opt){.name = name,
                    .kind = DQ_OPT_FLOAT,
                    .to = to,
                    .min = min,
                    .max = max,
                    .value = value,
                    .help = help};
}
static inline dq_opt dq_opt_bits(const char *name, const char *value, int64_t *to, const char *help)
{
    return (dq_opt){.name = name, .kind = DQ_OPT_BITS, .to = to, .value = value, .help = help};
}
static inline dq_opt dq_opt_text(const char *name, const char *value, const char **to,
                                 const char *help)
{
    return (dq_opt){.name = name, .kind = DQ_OPT_TEXT, .to = to, .value = value, .help = help};
}
static inline dq_opt dq_opt_list(const char *name, const char *value, dq_list *to, const char *help)
{
    return (dq_opt){.name = name, .kind = DQ_OPT_LIST, .to = to, .value = value, .help = help};
}
static inline dq_opt dq_opt_word(const char *name, const char *value, dq_word *to,
                                 const char *const *words, int n_words, const char *help)
{
    return (dq_opt){.name = name,
                    .kind = DQ_OPT_WORD,
                    .to = to,
                    .value = value,
                    .help = help,
                    .words = words,
                    .n_words = n_words};
}
static inline dq_opt dq_opt_words(const char *name, const char *value, dq_words *to,
                                  const char *const *words, int n_words, const char *help)
{
    return (dq_opt){.name = name,
                    .kind = DQ_OPT_WORDS,
                    .to = to,
                    .value = value,
                    .help = help,
                    .words = words,
                    .n_words = n_words};
}
/* Adds words for completion to a row that takes others too. */
static inline dq_opt dq_opt_offer(const char *const *words, int n_words, dq_opt row)
{
    row.words = words;
    row.n_words = n_words;
    return row;
}
static inline dq_opt dq_opt_output(dq_opt row)
{
    row.use = DQ_OPT_OUTPUT;
    return row;
}
static inline dq_opt dq_opt_manner(dq_opt row)
{
    row.use = DQ_OPT_MANNER;
    return row;
}
static inline dq_opt dq_opt_letter(char letter, dq_opt row)
{
    row.letter = letter;
    return row;
}

extern const char *const dq_options_device_name[3]; /* "cpu", "cuda", "auto" */
#define DQ_OPT_DEVICE(to)                                                                          \
    dq_opt_offer(                                                                                  \
        dq_options_device_name, 3,                                                                 \
        dq_opt_text("device", "NAME", to, "cpu, cuda[:N] or auto, which is cpu (default auto)"))
#define DQ_OPT_RUN(device, threads)                                                                \
    DQ_OPT_DEVICE(device), dq_opt_manner(dq_opt_int("threads", "N", threads, 0, 4096,              \
                                                    "threads, 0 for all processors (default 0)"))

#define DQ_LOGGER_OPTIONS(logger)                                                                  \
    dq_opt_manner(dq_opt_word("progress", "WHEN", &(logger).progress, dq_logger_when_name,         \
                              DQ_LOGGER_WHENS, "{words} (default auto: now and then in a file)")), \
        dq_opt_manner(dq_opt_letter(                                                               \
            'q', dq_opt_flag("quiet", &(logger).quiet, "no progress, no warnings on stderr"))),    \
        dq_opt_manner(dq_opt_letter(                                                               \
            'v', dq_opt_count("verbose", &(logger).verbose, "say on stderr what runs")))

/* A line of the first page of a long help: an option and its text; a NULL name: a heading. Ends
 * with an empty one. */
typedef struct dq_opt_brief {
    const char *name, *text;
} dq_opt_brief;

typedef struct dq_usage {
    const char *name;     /* "quantize" */
    const char *synopsis; /* "MODEL -o OUT.h5 [options]" */
    const char *about;    /* a paragraph: what it does and when to use it */
    const char *examples; /* lines */
    int min_args, max_args;
    const char *args; /* what is missing or too much: "one FILE"; NULL: it is one MODEL */
    /* what --help shows where all options exceed a page, with topics for the rest; NULL: all */
    const dq_opt_brief *first;
    const char *first_about, *first_examples;
} dq_usage;

typedef struct dq_args {
    const char *item[DQ_ARGS_MAX];
    int n;
    /* inputs named on the command line: arguments, and settings that are paths, with NAME= removed
     * as well */
    const char *input[DQ_INPUTS_MAX];
    int n_inputs;
    const char *also;  /* an option given that writes something besides --output; NULL: none is */
    bool help;         /* --help was asked for, and nothing else counts */
    const char *topic; /* of --help=TOPIC; NULL: none */
} dq_args;

/* Options may stand anywhere; "--" ends them. Abbreviations are refused, and unknown options get
 * the nearest name. DQ_USAGE with the remedy. With dq merge's own rows: for a shard's command, of
 * which only settings count, then these; DQ_DAMAGED: no such command. */
dq_status dq_options_parse_shard(dq_args *args, int argc, char **argv, const dq_opt *opts,
                                 const dq_opt *own, const dq_usage *usage, dq_err *err);

/* Flattens a table with its sub-tables. DQ_BUG: too many rows. */
enum { DQ_OPTIONS_MAX = 128 };
dq_status dq_options_flatten(dq_opt flat[DQ_OPTIONS_MAX], const dq_opt *rows, dq_err *err);

/* Adds the paths in rows to args->input, once values are read. DQ_USAGE: more than
 * DQ_INPUTS_MAX. */
dq_status dq_options_inputs(dq_args *args, const dq_opt *rows, dq_err *err);

/* "16,8,4" as numbers in [min, max], without empty parts and duplicates; *n of at most cap. */
dq_status dq_options_ints(int *out, int *n, int cap, const char *text, const char *option, int min,
                          int max, dq_err *err);
/* The same for widths of 2 to 8 bits, or 16. */
dq_status dq_options_bits(int *out, int *n, int cap, const char *text, const char *option,
                          dq_err *err);
/* "per-row,per-tile" as indices into names[n_names], in out[n_names]; no empty part, no
 * duplicate. */
dq_status dq_options_words(int *out, int *n, const char *text, const char *option,
                           const char *const *names, int n_names, dq_err *err);
/* -1: DQ_USAGE lists names[n]. */
int dq_options_word(const char *text, const char *option, const char *const *names, int n,
                    dq_err *err);
/* The nearest of names[n] by edit distance; NULL: none is near. */
const char *dq_options_nearest(const char *text, const char *const *names, int n);

/* Options of the command line as settings: "kv_bits=4:4". */

/* Values that were read point into the text. */
typedef struct dq_settings {
    char *text; /* a block; NULL: none */
} dq_settings;

/* Reads a list that ends with NULL (or NULL itself). "NAME=VALUE" is "--NAME VALUE" with dashes for
 * underscores; a flag is true or false. DQ_USAGE. */
dq_status dq_settings_read(dq_settings *s, const char *const *settings, const dq_opt *rows,
                           dq_err *err);
void dq_settings_free(dq_settings *s);

#endif
