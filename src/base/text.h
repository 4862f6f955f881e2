/* Numbers, characters, growing texts, lines of CSV, names in order.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TEXT_H
#define DQ_TEXT_H

#include "base/base.h"

#include <stdio.h>

/* strtod of decimal notation alone: *end is text where it begins otherwise (a blank, 0x, inf,
 * nan). */
double dq_real_parse(const char *text, char **end);

/* Number of maximal ill-formed subparts of s[len] (Unicode 3.9, "substitution of maximal
 * subparts"); *first_bad: offset of the first, or -1. */
int64_t dq_utf8_check(const char *s, size_t len, int64_t *first_bad);
/* DQ_MISMATCH: s[len], the start of a file, is no text: it begins as a packed or binary format
 * (which is named), or UTF-16, or has more than one zero byte or ill-formed sequence, and more than
 * one per thousand bytes. */
dq_status dq_utf8_check_text(const char *s, size_t len, dq_err *err);
/* Copies s with U+FFFD for each such subpart into len + 2 * (their number) bytes; returns the bytes
 * written. */
size_t dq_utf8_repair(char *out, const char *s, size_t len);

/* Bytes of a byte order mark: 3 or 0. In running text it is a character. */
size_t dq_utf8_mark(const char *s, size_t len);

/* Decodes the character at s, and the one that ends before s[at], in well-formed text; *bytes: its
 * length. */
uint32_t dq_utf8_first(const char *s, size_t *bytes);
uint32_t dq_utf8_last(const char *s, size_t at, size_t *bytes);

/* Bytes of the first character of s[len], 1 for an ill-formed one; len > 0. *control: it could move
 * a cursor or reorder a line: C0 except newline and tab, DEL, C1 (as character or stray byte),
 * U+2028, U+2029, and Bidi_Control. */
size_t dq_utf8_next(const char *s, size_t len, bool *control);
/* Copies s with '?' for each such character; out may be s. Returns the bytes written. */
size_t dq_utf8_plain(char *out, const char *s, size_t len);

/* Whether a byte begins a character; and the characters of a well-formed s[len]. */
bool dq_utf8_begins(char byte);
int64_t dq_utf8_count(const char *s, size_t len);

/* UTF-8 of c, which is no surrogate and at most U+10FFFF; returns its length. */
size_t dq_utf8_put(char out[4], uint32_t c);

/* Tables of ranges ascend without overlap. */
typedef struct dq_utf8_range {
    uint32_t first, last;
} dq_utf8_range;

bool dq_utf8_in_ranges(const dq_utf8_range *range, size_t n, uint32_t c);

bool dq_utf8_is_space(uint32_t c);  /* property White_Space */
bool dq_utf8_is_strip(uint32_t c);  /* white space as Python's str.isspace sees it */
bool dq_utf8_is_number(uint32_t c); /* Nd, Nl, No */
bool dq_utf8_is_punctuation(
    uint32_t c); /* P* of the reference's older tables, and ASCII's symbols */
/* \w of UTS 18: Alphabetic, marks, decimal digits, connector punctuation, joiners. */
bool dq_utf8_is_word(uint32_t c);

/* Byte-level vocabularies write each byte as one character: visible Latin-1 as itself, the other 68
 * as U+0100 + n in order. Returns the UTF-8 length, 1 or 2.
 * Source: bytes_to_unicode of the GPT-2 encoder. */
size_t dq_utf8_of_byte(char out[2], uint8_t byte);
/* out has capacity for len bytes. False: some character stands for no byte. */
bool dq_utf8_to_bytes(char *out, size_t *out_len, const char *s, size_t len);

/* {0} is empty; s is a block, ended by dq_block_free. */
typedef struct dq_strbuf {
    char *s;
    size_t n, capacity;
} dq_strbuf;

/* Makes space for `more` bytes after s[n]. */
dq_status dq_strbuf_reserve(dq_strbuf *b, size_t more, dq_err *err);
dq_status dq_strbuf_add(dq_strbuf *b, const char *s, size_t n, dq_err *err);
/* Copies the next n bytes and moves *at past them; false: fewer lie before `end`. */
bool dq_strbuf_take(void *to, size_t n, const char **at, const char *end);

/* A stream that appends to *b; NULL with DQ_RESOURCE. Unlike open_memstream it remembers failed
 * allocations: dq_strbuf_memory_close ends it and says DQ_RESOURCE then. */
FILE *dq_strbuf_memory_open(dq_strbuf *b, dq_err *err);
dq_status dq_strbuf_memory_close(FILE *f, dq_err *err);

/* Limits the growth of a text of len bytes by rewriting, as crafted tokenizer files multiply a text
 * at each step. DQ_MISMATCH: `what` makes `now` bytes of it. */
dq_status dq_strbuf_check_growth(size_t now, size_t len, const char *what, dq_err *err);

/* RFC 4180: quoted fields may hold commas, line ends and doubled quotes; lines end at LF or CR
 * LF. */

/* Begin with {.s = text, .n = length, .line = 1}. */
typedef struct dq_csv {
    const char *s; /* [n] */
    size_t n, at;
    int64_t line; /* of s[at] */
} dq_csv;

/* Reads the next record while c->at < c->n: its first `want` fields, each with a NUL, into `out`,
 * which has the length of the text + 1; *have counts all fields. An empty line has one empty field.
 * DQ_DAMAGED with the line: an open quote, text after a closing quote, a quote in an unquoted
 * field, a NUL. */
dq_status dq_csv_record(dq_csv *c, char *out, const char **field, int want, int *have, dq_err *err);

/* RFC 4648 with padding and without line ends. */

dq_status dq_base64_put(dq_strbuf *to, const void *bytes, size_t n, dq_err *err);
/* Decodes into out, which has len / 4 * 3 bytes; *n: how many. False: not base64. */
bool dq_base64_get(void *out, size_t *n, const char *text, size_t len);

/* For qsort and bsearch of texts, and of structs that begin with one: byte by byte. */
int dq_name_compare(const void *a, const void *b);

/* As strcmp, but runs of digits compare as numbers (layers.2 before layers.10); of equal ones,
 * fewer digits come first. */
int dq_name_order_compare(const char *a, const char *b);

/* *out: the indices 0 .. n-1 in the order of their names, in the arena. DQ_RESOURCE. */
dq_status dq_name_order_make(int64_t **out, int64_t n,
                             const char *(*name)(const void *arg, int64_t i), const void *arg,
                             dq_arena *a, dq_err *err);

#endif
