/* Numbers, characters, growing texts, lines of CSV, names in order.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TEXT_H
#define DQ_TEXT_H

#include "base/base.h"

#include <stdio.h>

/* ---- Real ----
 * A number as people write it. */

/* strtod of decimal notation alone: *end is text where it begins with anything else (a blank, 0x, inf, nan). */
double dq_real_parse(const char *text, char **end);

/* ---- UTF8 ----
 * UTF-8 checking and repair, the character classes that added tokens need, and the byte-to-
 * character table of byte-level vocabularies. */

/* Number of maximal ill-formed subparts of s[len] (Unicode 3.9, "substitution of maximal
 * subparts"); *first_bad is the offset of the first one, -1 when there is none. */
int64_t dq_utf8_check(const char *s, size_t len, int64_t *first_bad);
/* DQ_MISMATCH where s[len], the beginning of a file, is no text: it begins as a packed or binary format does, which is named,
 * or as UTF-16, or has more than one zero byte or ill-formed sequence, and more than one in a thousand bytes. */
dq_status dq_utf8_check_text(const char *s, size_t len, dq_err *err);
/* Copies s with U+FFFD in place of each such subpart; out has capacity for len + 2 * (their number)
 * bytes. Returns the bytes written. */
size_t dq_utf8_repair(char *out, const char *s, size_t len);

/* 3, or 0 where there is none. Readers of forms pass over it; in a text it is a character. */
size_t dq_utf8_mark(const char *s, size_t len);

/* And the one that ends before s[at]; well-formed, with a character there; *bytes is its length. */
uint32_t dq_utf8_first(const char *s, size_t *bytes);
uint32_t dq_utf8_last(const char *s, size_t at, size_t *bytes);

/* Bytes of the character that s[len] begins with, 1 of what is none; len > 0. *control: it could move a terminal's cursor, or show
 * a line in another order than it has: C0 but newline and tab, DEL, C1 (as a character, or as a byte of none), U+2028 and U+2029,
 * and what has the property Bidi_Control. */
size_t dq_utf8_next(const char *s, size_t len, bool *control);
/* Copies s, with '?' for each such character; out has room for len bytes and may be s. Returns the bytes written. */
size_t dq_utf8_plain(char *out, const char *s, size_t len);

/* Whether a byte begins a character, and how many of these well-formed s[len] has. */
bool dq_utf8_begins(char byte);
int64_t dq_utf8_count(const char *s, size_t len);

/* UTF-8 of c, which is no surrogate and at most U+10FFFF; returns its length. */
size_t dq_utf8_put(char out[4], uint32_t c);

/* A table of ranges, rising, without overlap. */
typedef struct dq_utf8_range {
    uint32_t first, last;
} dq_utf8_range;

bool dq_utf8_in_ranges(const dq_utf8_range *range, size_t n, uint32_t c);

bool dq_utf8_is_space(uint32_t c);  /* property White_Space */
bool dq_utf8_is_number(uint32_t c); /* Nd, Nl, No */
bool dq_utf8_is_punctuation(
    uint32_t c); /* P* of the reference's older tables, and ASCII's symbols */
/* \w of UTS 18: Alphabetic, marks, decimal digits, connector punctuation, joiners. */
bool dq_utf8_is_word(uint32_t c);

/* Byte-level vocabularies write each byte as one character: visible Latin-1 bytes as themselves, the
 * other 68 as U+0100 + n in increasing order. Returns the length of the UTF-8 form, 1 or 2.
 * Source: bytes_to_unicode of the GPT-2 encoder. */
size_t dq_utf8_of_byte(char out[2], uint8_t byte);
/* out has capacity for len bytes. False when some character stands for no byte. */
bool dq_utf8_to_bytes(char *out, size_t *out_len, const char *s, size_t len);

/* ---- Strbuf ----
 * Bytes that grow, and a stream into them. */

/* {0} is empty; s is a block, ended by dq_block_free. */
typedef struct dq_strbuf {
    char *s;
    size_t n, capacity;
} dq_strbuf;

/* Capacity for `more` bytes after s[n]. */
dq_status dq_strbuf_reserve(dq_strbuf *b, size_t more, dq_err *err);
dq_status dq_strbuf_add(dq_strbuf *b, const char *s, size_t n, dq_err *err);
/* The next n of the bytes from *at on, which moves behind them; false: fewer lie before `end`. */
bool dq_strbuf_take(void *to, size_t n, const char **at, const char *end);

/* A stream whose bytes end after one another in *b; NULL with DQ_RESOURCE. Unlike open_memstream it
 * remembers what memory was too short for: dq_strbuf_memory_close, which ends it, says DQ_RESOURCE then. */
FILE *dq_strbuf_memory_open(dq_strbuf *b, dq_err *err);
dq_status dq_strbuf_memory_close(FILE *f, dq_err *err);

/* What rewriting a text of len bytes may make of it: no tokenizer in use comes near, and files can be
 * written that multiply a text at every step. DQ_MISMATCH names what makes `now` bytes of it. */
dq_status dq_strbuf_check_growth(size_t now, size_t len, const char *what, dq_err *err);

/* ---- CSV ----
 * Records of comma-separated values as RFC 4180 has them: fields may stand in quotes, and then
 * hold commas, line ends and doubled quotes; lines end at LF or CR LF. */

/* Where reading stands. Begin with {.s = text, .n = length, .line = 1}. */
typedef struct dq_csv {
    const char *s; /* [n] */
    size_t n, at;
    int64_t line; /* of s[at] */
} dq_csv;

/* The next record while c->at < c->n: its first `want` fields in field[want], with a NUL after each, written
 * to `out`, which has capacity for the length of the text + 1; *have counts all of its fields. An empty line is a
 * record of one empty field. DQ_DAMAGED names the line: a quote without end, text after a closing quote, a
 * quote inside a field without quotes, a NUL. */
dq_status dq_csv_record(dq_csv *c, char *out, const char **field, int want, int *have, dq_err *err);

/* ---- Base64 ----
 * Bytes as text of RFC 4648, with padding and without line ends. */

/* Appends the text. DQ_RESOURCE. */
dq_status dq_base64_put(dq_strbuf *to, const void *bytes, size_t n, dq_err *err);
/* The bytes of a text, into out, which has room for len / 4 * 3; *n: how many. False: it is none. */
bool dq_base64_get(void *out, size_t *n, const char *text, size_t len);

/* ---- Name order ----
 * Names in the order that people count in, layers.2 before layers.10. */

/* As strcmp, but digits that stand together count as one number; of equal numbers the one with fewer digits comes first. */
int dq_name_order_compare(const char *a, const char *b);

/* *out: indices 0..n-1 of what `name` gives, which the caller holds, in that order; in the arena. DQ_RESOURCE. */
dq_status dq_name_order_make(int64_t **out, int64_t n,
                             const char *(*name)(const void *arg, int64_t i), const void *arg,
                             dq_arena *a, dq_err *err);

#endif
