/* base: status codes, error text, arenas, checked sizes. Knows nothing of dq.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BASE_H
#define DQ_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/remedy.h"

/* The value is also the exit status of the process. */
typedef enum dq_status {
    DQ_OK = 0,
    DQ_BUG = 1,      /* broken invariant of dq itself */
    DQ_USAGE = 2,    /* wrong command line */
    DQ_DAMAGED = 3,  /* input is not what it claims to be */
    DQ_MISMATCH = 4, /* valid inputs that do not fit together, or an unsupported variant */
    DQ_RESOURCE = 5, /* memory or device missing or exhausted */
    DQ_FILE = 6,     /* path missing, existing, full, forbidden */
    DQ_GATE = 7,     /* results written, requested limit missed */
    DQ_STOPPED = 130 /* interrupted, resumable */
} dq_status;

enum { DQ_ERR_REMEDIES = 4 };
typedef struct dq_err {
    dq_status code;                       /* first failure; later ones do not overwrite it */
    int n_remedies;                       /* in the order of the text */
    dq_remedy_at remedy[DQ_ERR_REMEDIES]; /* of parts of the text that do not overlap */
    char text[1024];                      /* one line: no newline, no program name, no option */
} dq_err;

#if defined(__GNUC__)
#define DQ_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define DQ_PRINTF(f, a)
#endif

/* Records the first failure: "what is wrong (expected X, found Y). What to do." Returns code.
 * Control characters are replaced, so that the text stays one line whatever a file contained. */
dq_status dq_fail(dq_err *err, dq_status code, const char *fmt, ...) DQ_PRINTF(3, 4);
/* The same with a remedy of the whole text. */
dq_status dq_fail_with(dq_err *err, dq_status code, dq_remedy remedy, const char *fmt, ...)
    DQ_PRINTF(4, 5);
/* Says more after the text of a failure, which err must hold; with a remedy of what is added. Returns its code. */
dq_status dq_fail_more(dq_err *err, dq_remedy remedy, const char *fmt, ...) DQ_PRINTF(3, 4);
/* Records another failure with its text and remedies; nothing if that is DQ_OK. Returns err->code. */
dq_status dq_fail_as(dq_err *err, const dq_err *other);
extern const dq_remedy dq_remedy_none;
/* The same replacement in any text that is to be one line: '?' for newlines, tabs and what dq_utf8_plain replaces. */
void dq_one_line(char *s);
/* Puts the place before the text: "model.safetensors: ". Returns err->code. */
dq_status dq_in(dq_err *err, const char *fmt, ...) DQ_PRINTF(2, 3);

#define DQ_TRY(call)                                                                               \
    do {                                                                                           \
        dq_status dq_try_status = (call);                                                          \
        if (dq_try_status != DQ_OK) return dq_try_status;                                          \
    } while (0)

/* Memory that dies together. Not for use by two threads at once. */
typedef struct dq_arena dq_arena;

dq_arena *dq_arena_new(void);    /* NULL: out of memory */
void dq_arena_free(dq_arena *a); /* NULL allowed */
/* n items of `size` bytes, zeroed, 64-byte aligned, valid until the arena is freed (n = 0 gives a
 * valid pointer). NULL with DQ_RESOURCE in err on overflow or exhaustion. */
void *dq_alloc(dq_arena *a, size_t n, size_t size, dq_err *err);
/* Copy of s[len] with a final NUL added. */
char *dq_text(dq_arena *a, const char *s, size_t len, dq_err *err);
/* printf into the arena. */
char *dq_textf(dq_arena *a, dq_err *err, const char *fmt, ...) DQ_PRINTF(3, 4);

/* One zeroed, 64-byte aligned block of n * size bytes; ended by dq_block_free (NULL allowed).
 * NULL with DQ_RESOURCE on overflow or exhaustion. */
void *dq_block_new(size_t n, size_t size, dq_err *err);
/* The same with any content, not touched yet. */
void *dq_block_raw(size_t n, size_t size, dq_err *err);
void dq_block_free(void *p);

/* list[*cap] of items of `size` bytes, in the arena or, where a is NULL, a block, with room for `want` of them: the same
 * list, or one of at least twice the room with the items copied, zeros after them, and *cap set; a block it was is
 * freed. NULL with DQ_RESOURCE on overflow or exhaustion: the old list stays. */
void *dq_grow(dq_arena *a, void *list, size_t want, size_t *cap, size_t size, dq_err *err);

/* *product = a * b; false on overflow. */
bool dq_mul_ok(size_t *product, size_t a, size_t b);

/* Test hook: the n-th allocation from now on fails (1 = the next); 0 turns it off. */
void dq_alloc_fail_at(int64_t n);

#endif
