/* What a command or the library has to tell: notes, documents, their rows, and who wrote them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RECORD_H
#define DQ_RECORD_H

#include "base/json.h"
#include "stat/stat.h"

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
/* Reads a document that dq, or tests/peers, wrote; "-": standard input. The caller frees it. */
dq_status dq_document_read(json_t **doc, const char *path, dq_err *err);
/* A line of JSON lines; frees the value. */
dq_status dq_document_put_line(FILE *f, json_t *value, dq_err *err);
/* Replaces ill-formed UTF-8, as in names of files, by U+FFFD. */
json_t *dq_document_name(const char *s);
/* The same as one line (dq_one_line) in the arena. */
dq_status dq_document_name_text(const char **out, const char *s, dq_arena *a, dq_err *err);
/* null when not finite. */
json_t *dq_document_real(double x);
/* "3.1 MiB"; "27 min". */
const char *dq_document_size_text(char *buf, size_t cap, int64_t bytes);
const char *dq_document_time_text(char *buf, size_t cap, double seconds);
/* The same, good until the block ends. */
#define DQ_SIZE(bytes)   dq_document_size_text((char[32]){0}, 32, bytes)
#define DQ_TIME(seconds) dq_document_time_text((char[32]){0}, 32, seconds)

/* ---- Rows ----
 * A member of a document is described once, where it is written: its name, its value, what its
 * schema says of it and its column of a table. The function that writes a document also describes
 * it: a writer that is not live takes no value, so that nothing behind the function's arguments is
 * read, and makes a JSON Schema of the rows. Hence such a function reads its arguments in values
 * of rows alone, or after a look at w->live, and loops with DQ_MORE. A member that is described
 * several times is one of these. */

typedef enum dq_row_type {
    DQ_ROW_BOOL,
    DQ_ROW_INT,
    DQ_ROW_REAL, /* one that is not finite says nothing */
    DQ_ROW_TEXT, /* NULL says nothing; ill-formed UTF-8 is repaired */
    DQ_ROW_JSON, /* made elsewhere: `ref` is its schema; NULL says nothing */
    DQ_ROW_OBJECT,
    DQ_ROW_LIST,
    DQ_ROW_MAP /* an object whose names are data */
} dq_row_type;

/* What is written for a value that says nothing; without these a schema allows no such value. */
enum {
    DQ_NULL = 1,
    DQ_OUT = 2,        /* the member is left out */
    DQ_AT_0 = 4,       /* a number says nothing at 0 */
    DQ_BELOW_0 = 8,    /* nor below it */
    DQ_SIGNED = 16,    /* an integer may be negative */
    DQ_POSITIVE = 32,  /* a real may not */
    DQ_SOMETIMES = 64, /* the row is not always reached */
    DQ_UNSCORED = 128  /* no score depends on it: a writer that is `scored` leaves it out */
};
#define DQ_SHA256 "^[0-9a-f]{64}$" /* a pattern */

struct dq_row_writer;
typedef struct dq_row {
    const char *name;  /* NULL in a list */
    const char *about; /* one sentence */
    dq_row_type type;
    unsigned when;            /* DQ_NULL ... */
    const char *const *words; /* [n_words] all texts that there can be */
    int n_words;
    int min, max;      /* of an integer; 0: none but what `when` says; max of a list: its length */
    const char *mixed; /* written for 0 in place of a number */
    const char *pattern; /* that a text has */
    const char *ref;     /* of JSON: "common.json#/$defs/texts", or a type, "string" */
    const char *def;     /* an object that is described once, under "$defs" */
    void (*describe)(struct dq_row_writer *w); /* of JSON with a `def`: writes its rows, not live */
    const char *title;                         /* of a table's column; NULL: it has none */
    int digits;                                /* of a real there, after the point; -n: in all */
    double scale;                              /* that it is multiplied with there; 0: 1 */
} dq_row;

typedef struct dq_value {
    int64_t integer; /* bool, too */
    double real;
    const char *text;
    json_t *json; /* taken over */
} dq_value;

/* Twice as deep as any document; how deep one is does not depend on what is measured. */
enum { DQ_ROW_DEPTH = 16 };
typedef struct dq_row_writer {
    bool live; /* values are read; else rows are described */
    bool scored;
    struct {
        json_t *value; /* object or array; of a schema what describes it */
        dq_row row;
        bool kept; /* it is in its place already */
    } at[DQ_ROW_DEPTH];
    int depth;
    json_t *defs; /* of a schema; NULL: none */
    /* Takes cells of a table, in place of JSON. */
    void (*cell)(void *arg, const dq_row *row, const char *text);
    void *arg;
} dq_row_writer;

/* One row: DQ_PUT(w, "layers", m->n_layers, "Layers of the model.", .title = "layers"). The C type
 * of the value gives the row's. */
#define DQ_PUT(w, name_, value_, ...)                                                              \
    dq_row_put(                                                                                    \
        w, &(const dq_row){.name = (name_), .type = DQ_ROW_TYPE(value_), .about = __VA_ARGS__},    \
        (w)->live ? DQ_ROW_VALUE(value_) : (dq_value){0})
/* A cell of a table alone: DQ_CELL(w, rms, "rms", .digits = -4). */
#define DQ_CELL(w, value_, ...)                                                                    \
    ((w)->cell ? dq_row_put(w, &(const dq_row){.type = DQ_ROW_TYPE(value_), .title = __VA_ARGS__}, \
                            DQ_ROW_VALUE(value_))                                                  \
               : (void)0)
typedef signed char dq_maybe; /* a bool; -1: it says nothing */
/* clang-format off */
#define DQ_ROW_TYPE(x) _Generic((x), bool: DQ_ROW_BOOL, dq_maybe: DQ_ROW_BOOL,                     \
    double: DQ_ROW_REAL, float: DQ_ROW_REAL, char *: DQ_ROW_TEXT, const char *: DQ_ROW_TEXT,       \
    json_t *: DQ_ROW_JSON, default: DQ_ROW_INT)
#define DQ_ROW_VALUE(x) _Generic((x), double: dq_value_real, float: dq_value_real,                 \
    char *: dq_value_text, const char *: dq_value_text, json_t *: dq_value_json,                   \
    default: dq_value_integer)(x)
/* clang-format on */
dq_value dq_value_integer(int64_t x);
dq_value dq_value_real(double x);
dq_value dq_value_text(const char *x);
dq_value dq_value_json(json_t *x);
/* Absent numbers. */
#define DQ_NO_REAL     ((double)NAN)
#define DQ_WORDS(list) .words = (list), .n_words = (int)(sizeof(list) / sizeof *(list))
#define DQ_WORD(...)   DQ_WORDS(((const char *const[]){__VA_ARGS__}))

/* Begins an object, list or map, which dq_row_end ends; false: it is not `there`, or its schema
 * is written already, so nothing is to be ended. */
#define DQ_BEGIN(w, type_, name_, there_, ...)                                                     \
    dq_row_begin(w,                                                                                \
                 &(const dq_row){.name = (name_), .type = DQ_ROW_##type_, .about = __VA_ARGS__},   \
                 !(w)->live || (there_))
#define DQ_LIST(w, name, ...)   DQ_BEGIN(w, LIST, name, true, __VA_ARGS__)
#define DQ_OBJECT(w, name, ...) DQ_BEGIN(w, OBJECT, name, true, __VA_ARGS__)
#define DQ_ITEM(w)              DQ_OBJECT(w, NULL, NULL)
/* Whether a loop over n elements goes on: a schema sees one. */
#define DQ_MORE(w, i, n) ((w)->live ? (i) < (n) : (i) < 1)
/* A pointer for a function of rows, and what decides between several. */
#define DQ_LIVE(w, x) ((w)->live ? (x) : NULL)
#define DQ_WHEN(w, x) (!(w)->live || (x))

void dq_row_put(dq_row_writer *w, const dq_row *row, dq_value v);
bool dq_row_begin(dq_row_writer *w, const dq_row *row, bool there);
void dq_row_end(dq_row_writer *w);
/* Goes on with a member, an object that has ended; it is ended again. */
void dq_row_again(dq_row_writer *w, const char *name);
/* Rows of one of several things, and an object of these in a list. */
typedef void dq_row_items(dq_row_writer *w, const void *arg, int64_t i);
void dq_row_item(dq_row_writer *w, dq_row_items *rows, const void *arg, int64_t i);
/* A list of n of them. */
#define DQ_ITEMS(w, name_, rows_, arg_, n_, ...)                                                   \
    dq_row_list(w, &(const dq_row){.name = (name_), .type = DQ_ROW_LIST, .about = __VA_ARGS__},    \
                rows_, arg_, (w)->live ? (n_) : 1)
void dq_row_list(dq_row_writer *w, const dq_row *row, dq_row_items *rows, const void *arg,
                 int64_t n);
/* Writes members into an object, which stays the caller's, or describes them there. */
dq_row_writer dq_row_json(json_t *object);
dq_row_writer dq_row_schema(json_t *object);
/* Tells cells of a table: of each row with a title. */
dq_row_writer dq_row_cells(void (*cell)(void *arg, const dq_row *row, const char *text), void *arg);

/* {"value", "stderr"} of a mean, and [low, high] of an interval, null without one. */
#define DQ_METRIC(w, name_, mean_, ...)                                                            \
    dq_row_metric(w, &(const dq_row){.name = (name_), .about = __VA_ARGS__},                       \
                  (w)->live ? (mean_) : dq_mean_none)
#define DQ_INTERVAL(w, name_, interval_, ...)                                                      \
    dq_row_interval(w, &(const dq_row){.name = (name_), .about = __VA_ARGS__},                     \
                    (w)->live ? (interval_) : dq_interval_none)
void dq_row_metric(dq_row_writer *w, const dq_row *row, dq_mean m);
void dq_row_interval(dq_row_writer *w, const dq_row *row, dq_interval x);

/* A document beside its frame: schema, dq_version, command, warnings. */
typedef struct dq_document {
    const char *name;                   /* "dq-info/1" */
    const char *about;                  /* a sentence */
    const char *command;                /* "info"; NULL: `describe` names it; "": no frame */
    void (*describe)(dq_row_writer *w); /* writes all its rows, not live */
} dq_document;
/* The document whose rows a function writes of arg, with its frame. */
typedef void dq_document_rows(dq_row_writer *w, const void *arg);
json_t *dq_document_of(const dq_logger *logger, const dq_document *d, dq_document_rows *rows,
                       const void *arg);
/* Its JSON Schema (draft 2020-12). */
json_t *dq_document_schema(const dq_document *d);

/* The commit of this build, which the build looks up each time (commit.cmake). */

/* "0123456789ab", with "-dirty" after changes to tracked files; NULL: unknown. */
const char *dq_commit_text(void);
/* The version, with the commit in parentheses if known. */
const char *dq_commit_version(void);

#endif
