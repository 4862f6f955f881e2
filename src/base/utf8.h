/* utf8: UTF-8 checking and repair, the character classes that added tokens need, and the
 * byte-to-character table of byte-level vocabularies.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_UTF8_H
#define DQ_UTF8_H

#include "base/base.h"

/* Number of maximal ill-formed subparts of s[len] (Unicode 3.9, "substitution of maximal
 * subparts"); *first_bad is the offset of the first one, -1 when there is none. */
int64_t dq_utf8_check(const char *s, size_t len, int64_t *first_bad);
/* DQ_MISMATCH where s[len], the beginning of a file, is no text: it begins as a packed or binary format does, which is named,
 * or as UTF-16, or has more than one zero byte or ill-formed sequence, and more than one in a thousand bytes. */
dq_status dq_utf8_check_text(const char *s, size_t len, dq_err *err);
/* Copies s with U+FFFD in place of each such subpart; out has capacity for len + 2 * (their number)
 * bytes. Returns the bytes written. */
size_t dq_utf8_repair(char *out, const char *s, size_t len);

/* Bytes of the byte order mark that s[len] begins with: 3, or 0 where there is none. Readers of forms
 * pass over it; in a text it is a character like others. */
size_t dq_utf8_mark(const char *s, size_t len);

/* Character that begins at s[0], and the one that ends before s[at], of well-formed text with at
 * least one character there; *bytes is its length. */
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
/* The bytes that the characters of well-formed s[len] stand for; out has capacity for len bytes. False
 * when some character stands for no byte. */
bool dq_utf8_to_bytes(char *out, size_t *out_len, const char *s, size_t len);

#endif
