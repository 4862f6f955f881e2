/* What strtod takes beyond decimal notation shows in the first two characters.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* fopencookie */
#include "base/text.h"

#include <openssl/evp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

double dq_real_parse(const char *text, char **end)
{
    const char *digits = text + (*text == '-' || *text == '+');
    const bool hex = digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X');
    if (!hex && strchr("0123456789.", *digits) && *digits) return strtod(text, end);
    *end = (char *)(uintptr_t)text;
    return 0;
}

/* `step` alone decides what is well-formed: it takes a character, or the longest ill-formed part
 * for one U+FFFD, as Unicode recommends. Classes of characters come from utf8proc, and from short
 * tables where the reference differs. */

/* Bytes of the character or of the maximal ill-formed subpart at p[0 .. n), n > 0. */
static size_t step(const uint8_t *p, size_t n, bool *ok)
{
    uint8_t lo = 0x80, hi = 0xBF;
    size_t need;
    *ok = true;
    if (p[0] < 0x80) return 1;
    if (p[0] >= 0xC2 && p[0] <= 0xDF) {
        need = 1;
    } else if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        need = 2;
        if (p[0] == 0xE0) lo = 0xA0; /* no overlong forms */
        if (p[0] == 0xED) hi = 0x9F; /* no surrogates */
    } else if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        need = 3;
        if (p[0] == 0xF0) lo = 0x90;
        if (p[0] == 0xF4) hi = 0x8F; /* nothing above U+10FFFF */
    } else {
        *ok = false;
        return 1;
    }
    for (size_t i = 1; i <= need; i++) {
        if (i >= n || p[i] < lo || p[i] > hi) {
            *ok = false;
            return i;
        }
        lo = 0x80;
        hi = 0xBF;
    }
    return need + 1;
}

bool dq_utf8_begins(char byte)
{
    return ((uint8_t)byte & 0xC0) != 0x80;
}

int64_t dq_utf8_count(const char *s, size_t len)
{
    int64_t n = 0;
    for (size_t i = 0; i < len; i++) n += dq_utf8_begins(s[i]);
    return n;
}

int64_t dq_utf8_check(const char *s, size_t len, int64_t *first_bad)
{
    const uint8_t *p = (const uint8_t *)s;
    int64_t count = 0;
    *first_bad = -1;
    for (size_t i = 0; i < len;) {
        uint64_t eight;
        bool ok;
        if (len - i >= sizeof eight) {
            memcpy(&eight, p + i, sizeof eight);
            if (!(eight & UINT64_C(0x8080808080808080))) {
                i += sizeof eight;
                continue;
            }
        }
        size_t used = step(p + i, len - i, &ok);
        if (!ok && count++ == 0) *first_bad = (int64_t)i;
        i += used;
    }
    return count;
}

static const struct {
    const char *begins; /* [len] */
    size_t len;
    const char *is, *what_to_do;
} not_text[] = {
    {"\xff\xfe\0\0", 4, "UTF-32", "Write it as UTF-8: iconv -f UTF-32 -t UTF-8"},
    {"\xff\xfe", 2, "UTF-16", "Write it as UTF-8: iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff", 2, "UTF-16", "Write it as UTF-8: iconv -f UTF-16 -t UTF-8"},
    {"\x1f\x8b", 2, "compressed by gzip", "Unpack it with gunzip first"},
    {"BZh", 3, "compressed by bzip2", "Unpack it with bunzip2 first"},
    {"\xfd"
     "7zXZ",
     5, "compressed by xz", "Unpack it with unxz first"},
    {"\x28\xb5\x2f\xfd", 4, "compressed by zstd", "Unpack it with unzstd first"},
    {"PK\3\4", 4, "a zip archive", "Unpack it first"},
    {"PAR1", 4, "a Parquet file", "Write its rows as JSON lines first"},
    {"ARROW1", 6, "an Arrow file", "Write its rows as JSON lines first"},
    {"SQLite format 3", 15, "an SQLite database", "Write its rows as JSON lines first"},
    {"GGUF", 4, "a GGUF file", "Give a text"},
    {"\x89HDF\r\n", 6, "an HDF5 file", "Give a text"},
    {"%PDF-", 5, "a PDF file", "Write its text first: pdftotext"},
};

/* Without a mark: at least a third of byte pairs have a zero on one and the same side. */
static bool is_utf16(const char *s, size_t len)
{
    size_t zeros[2] = {0, 0};
    for (size_t i = 0; i < len; i++) zeros[i & 1] += s[i] == 0;
    return 6 * zeros[0] > len || 6 * zeros[1] > len;
}

dq_status dq_utf8_check_text(const char *s, size_t len, dq_err *err)
{
    int64_t first = 0, zeros = 0;
    for (size_t i = 0; i < sizeof not_text / sizeof *not_text; i++) {
        if (len < not_text[i].len || memcmp(s, not_text[i].begins, not_text[i].len) != 0) continue;
        return dq_fail(err, DQ_MISMATCH, "is %s (expected UTF-8 text). %s", not_text[i].is,
                       not_text[i].what_to_do);
    }
    for (const char *z = s; len && (z = memchr(z, 0, len - (size_t)(z - s))); z++) zeros++;
    if (zeros > 1 && is_utf16(s, len))
        return dq_fail(err, DQ_MISMATCH,
                       "is UTF-16 without a mark (expected UTF-8 text). Write it as UTF-8: iconv "
                       "-f UTF-16LE -t UTF-8, or UTF-16BE");
    const int64_t bad = dq_utf8_check(s, len, &first), all = bad + zeros;
    if (all < 2 || 1000 * all <= (int64_t)len) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "is no UTF-8 text: %lld ill-formed sequences and %lld zero bytes in %zu bytes. "
                   "Write it as UTF-8, for example: iconv -f LATIN1 -t UTF-8",
                   (long long)bad, (long long)zeros, len);
}

size_t dq_utf8_next(const char *s, size_t len, bool *control)
{
    static const dq_utf8_range controls[] = {{0, 8},          {0xB, 0x1F},      {0x7F, 0x9F},
                                             {0x61C, 0x61C},  {0x200E, 0x200F}, {0x2028, 0x202E},
                                             {0x2066, 0x2069}};
    bool ok;
    size_t used = step((const uint8_t *)s, len, &ok);
    if (!ok) used = 1;
    const uint32_t c = ok ? dq_utf8_first(s, &used) : (uint8_t)s[0];
    *control = dq_utf8_in_ranges(controls, sizeof controls / sizeof *controls, c);
    return used;
}

size_t dq_utf8_plain(char *out, const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0, used; i < len; i += used) {
        bool control;
        used = dq_utf8_next(s + i, len - i, &control);
        if (!control) memmove(out + n, s + i, used);
        if (control) out[n] = '?';
        n += control ? 1 : used;
    }
    return n;
}

size_t dq_utf8_repair(char *out, const char *s, size_t len)
{
    const uint8_t *p = (const uint8_t *)s;
    size_t at = 0;
    for (size_t i = 0; i < len;) {
        bool ok;
        size_t used = step(p + i, len - i, &ok);
        if (ok) {
            memcpy(out + at, s + i, used);
            at += used;
        } else {
            memcpy(out + at, "\xEF\xBF\xBD", 3);
            at += 3;
        }
        i += used;
    }
    return at;
}

size_t dq_utf8_mark(const char *s, size_t len)
{
    return len >= 3 && memcmp(s, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

uint32_t dq_utf8_first(const char *s, size_t *bytes)
{
    const uint8_t *p = (const uint8_t *)s;
    if (p[0] < 0x80) {
        *bytes = 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *bytes = 2;
        return (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
    }
    if (p[0] < 0xF0) {
        *bytes = 3;
        return (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    }
    *bytes = 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
}

uint32_t dq_utf8_last(const char *s, size_t at, size_t *bytes)
{
    size_t begin = at - 1;
    while (begin > 0 && !dq_utf8_begins(s[begin])) begin--;
    return dq_utf8_first(s + begin, bytes);
}

size_t dq_utf8_put(char out[4], uint32_t c)
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

bool dq_utf8_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool dq_utf8_is_strip(uint32_t c)
{
    return dq_utf8_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

bool dq_utf8_is_number(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool dq_utf8_in_ranges(const dq_utf8_range *range, size_t n, uint32_t c)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (range[mid].last < c) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < n && range[lo].first <= c;
}

/* Punctuation that the reference's older tables do not have. */
static const dq_utf8_range newer_punctuation[] = {
    {0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},     {0xC77, 0xC77},
    {0xC84, 0xC84},     {0x1B7D, 0x1B7E},   {0x2E43, 0x2E4F},   {0x2E52, 0x2E5D},
    {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59}, {0x10F86, 0x10F89}, {0x1144B, 0x1144F},
    {0x1145A, 0x1145B}, {0x1145D, 0x1145D}, {0x11660, 0x1166C}, {0x116B9, 0x116B9},
    {0x1183B, 0x1183B}, {0x11944, 0x11946}, {0x119E2, 0x119E2}, {0x11A3F, 0x11A46},
    {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09}, {0x11C41, 0x11C45},
    {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F}, {0x11FFF, 0x11FFF},
    {0x12FF1, 0x12FF2}, {0x16E97, 0x16E9A}, {0x16FE2, 0x16FE2}, {0x1E95E, 0x1E95F},
};

bool dq_utf8_is_punctuation(uint32_t c)
{
    if (c < 0x80)
        return c > ' ' && c < 0x7F && !(c >= '0' && c <= '9') &&
               !((c | 32) >= 'a' && (c | 32) <= 'z');
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    if (k < UTF8PROC_CATEGORY_PC || k > UTF8PROC_CATEGORY_PO)
        return c == 0x166D || c == 0x111C9; /* other classes since */
    return !dq_utf8_in_ranges(newer_punctuation,
                              sizeof newer_punctuation / sizeof *newer_punctuation, c);
}

bool dq_utf8_is_word(uint32_t c)
{
    if (c == 0x200C || c == 0x200D) return true;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    case UTF8PROC_CATEGORY_SO: /* circled and squared Latin letters are Other_Alphabetic */
        return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
               (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
    default: return false;
    }
}

size_t dq_utf8_of_byte(char out[2], uint8_t byte)
{
    uint32_t c = byte;
    if (byte <= 0x20) {
        c = 0x100u + byte;
    } else if (byte >= 0x7F && byte <= 0xA0) {
        c = 0x121u + (byte - 0x7Fu);
    } else if (byte == 0xAD) {
        c = 0x143;
    }
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xC0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3F));
    return 2;
}

bool dq_utf8_to_bytes(char *out, size_t *out_len, const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0, used; i < len; i += used) {
        uint32_t c = dq_utf8_first(s + i, &used);
        if (c >= 0x100 && c <= 0x120) {
            c -= 0x100;
        } else if (c >= 0x121 && c <= 0x142) {
            c = c - 0x121 + 0x7F;
        } else if (c == 0x143) {
            c = 0xAD;
        } else if (!((c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) ||
                     (c >= 0xAE && c <= 0xFF))) {
            return false;
        }
        out[n++] = (char)c;
    }
    *out_len = n;
    return true;
}

dq_status dq_strbuf_reserve(dq_strbuf *b, size_t more, dq_err *err)
{
    if (more > SIZE_MAX - b->n)
        return dq_fail(err, DQ_RESOURCE, "out of memory (a text of %zu bytes)", b->n);
    char *s = dq_grow(NULL, b->s, b->n + more, &b->capacity, 1, err);
    if (!s) return err->code;
    b->s = s;
    return DQ_OK;
}

dq_status dq_strbuf_add(dq_strbuf *b, const char *s, size_t n, dq_err *err)
{
    DQ_TRY(dq_strbuf_reserve(b, n, err));
    if (n) memcpy(b->s + b->n, s, n);
    b->n += n;
    return DQ_OK;
}

bool dq_strbuf_take(void *to, size_t n, const char **at, const char *end)
{
    if ((size_t)(end - *at) < n) return false;
    memcpy(to, *at, n);
    *at += n;
    return true;
}

static ssize_t add_bytes(void *b, const char *s, size_t n)
{
    dq_err full = {0};
    return dq_strbuf_add(b, s, n, &full) == DQ_OK ? (ssize_t)n : 0; /* 0: an error of the stream */
}

FILE *dq_strbuf_memory_open(dq_strbuf *b, dq_err *err)
{
    FILE *f = fopencookie(b, "w", (cookie_io_functions_t){.write = add_bytes});
    if (!f) dq_fail(err, DQ_RESOURCE, "out of memory");
    return f;
}

dq_status dq_strbuf_memory_close(FILE *f, dq_err *err)
{
    const bool lost = ferror(f) != 0;
    if (fclose(f) != 0 || lost) return dq_fail(err, DQ_RESOURCE, "out of memory");
    return DQ_OK;
}

enum { GROWTH = 64, GROWTH_MORE = 1024 };

dq_status dq_strbuf_check_growth(size_t now, size_t len, const char *what, dq_err *err)
{
    if (now <= GROWTH_MORE || (now - GROWTH_MORE) / GROWTH <= len) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "%s makes %zu bytes of a text of %zu. More than %d for each is not supported.",
                   what, now, len, GROWTH);
}

/* One record at a time into a buffer as large as the text: removing quotes only shortens fields. */

dq_status dq_csv_record(dq_csv *c, char *out, const char **field, int want, int *have, dq_err *err)
{
    bool last = false;
    for (*have = 0; !last; ++*have) {
        size_t n = 0;
        if (c->at < c->n && c->s[c->at] == '"') {
            const long long begin = c->line;
            for (c->at++; c->at < c->n; c->at++) {
                const char x = c->s[c->at];
                const bool twice = c->at + 1 < c->n && c->s[c->at + 1] == '"'; /* for one */
                if (x == '"' && !twice) break;
                c->at += x == '"';
                c->line += x == '\n';
                out[n++] = x;
            }
            if (c->at >= c->n)
                return dq_fail(err, DQ_DAMAGED,
                               "line %lld: the quoted field that begins here has no end", begin);
            c->at++;
            if (c->at < c->n && c->s[c->at] == '\r') c->at++;
            if (c->at < c->n && c->s[c->at] != ',' && c->s[c->at] != '\n')
                return dq_fail(err, DQ_DAMAGED,
                               "line %lld: text after a closing quote (expected a comma or the end "
                               "of the line)",
                               (long long)c->line);
        } else {
            for (; c->at < c->n && c->s[c->at] != ',' && c->s[c->at] != '\n'; c->at++) {
                if (c->s[c->at] == '"')
                    return dq_fail(err, DQ_DAMAGED,
                                   "line %lld: a quote inside a field that does not begin with one",
                                   (long long)c->line);
                out[n++] = c->s[c->at];
            }
            bool ends = c->at >= c->n || c->s[c->at] == '\n';
            if (ends && n > 0 && out[n - 1] == '\r') --n;
        }
        if (memchr(out, 0, n))
            return dq_fail(err, DQ_DAMAGED, "line %lld: contains a NUL", (long long)c->line);
        out[n] = 0;
        if (*have < want) field[*have] = out;
        out += n + 1;
        last = c->at >= c->n || c->s[c->at] == '\n';
        if (c->at < c->n) c->line += c->s[c->at++] == '\n';
    }
    return DQ_OK;
}

/* libcrypto converts in pieces, as it counts in int; it would skip white space, so that is checked
 * before. */

enum { PIECE = 3 << 20 }; /* bytes */

dq_status dq_base64_put(dq_strbuf *to, const void *bytes, size_t n, dq_err *err)
{
    const unsigned char *at = bytes;
    DQ_TRY(dq_strbuf_reserve(to, n / 3 * 4 + 8, err));
    for (size_t done = 0; done < n; done += PIECE) {
        const size_t some = n - done < PIECE ? n - done : PIECE;
        to->n += (size_t)EVP_EncodeBlock((unsigned char *)to->s + to->n, at + done, (int)some);
    }
    return DQ_OK;
}

static bool is_digit(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '/';
}

bool dq_base64_get(void *out, size_t *n, const char *text, size_t len)
{
    unsigned char *to = out;
    size_t pad = 0;
    *n = 0;
    if (len % 4) return false;
    while (pad < 2 && len > pad && text[len - 1 - pad] == '=') pad++;
    for (size_t i = 0; i < len - pad; i++) {
        if (!is_digit(text[i])) return false;
    }
    for (size_t done = 0; done < len; done += PIECE / 3 * 4) {
        const size_t left = len - done, some = left < PIECE / 3 * 4 ? left : PIECE / 3 * 4;
        const int got = EVP_DecodeBlock(to + *n, (const unsigned char *)text + done, (int)some);
        if (got < 0) return false;
        *n += (size_t)got;
    }
    *n -= pad;
    return true;
}

/* Numbers are compared by length without leading zeros, then as text, so that they may be of any
 * size. */

static bool name_order_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Compares the numbers at *a and *b and moves past them. */
static int compare_numbers(const char **a, const char **b)
{
    const char *x = *a, *y = *b;
    while (*x == '0') x++;
    while (*y == '0') y++;
    size_t n = 0, m = 0;
    while (name_order_is_digit(x[n])) n++;
    while (name_order_is_digit(y[m])) m++;
    const int64_t digits = (x + n - *a) - (y + m - *b);
    const int order = n == m ? strncmp(x, y, n) : n < m ? -1 : 1;
    *a = x + n;
    *b = y + m;
    return order ? order : digits < 0 ? -1 : digits > 0;
}

int dq_name_compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int dq_name_order_compare(const char *a, const char *b)
{
    while (*a && *b) {
        if (name_order_is_digit(*a) && name_order_is_digit(*b)) {
            const int order = compare_numbers(&a, &b);
            if (order) return order;
        } else if (*a != *b) {
            break;
        } else {
            a++;
            b++;
        }
    }
    return (int)(unsigned char)*a - (int)(unsigned char)*b;
}

typedef struct named {
    const char *name;
    int64_t i;
} named;

static int by_name(const void *x, const void *y)
{
    const named *a = x, *b = y;
    const int order = dq_name_order_compare(a->name, b->name);
    return order ? order : a->i < b->i ? -1 : a->i > b->i;
}

dq_status dq_name_order_make(int64_t **out, int64_t n,
                             const char *(*name)(const void *arg, int64_t i), const void *arg,
                             dq_arena *a, dq_err *err)
{
    named *list = dq_alloc(a, (size_t)n, sizeof *list, err);
    *out = dq_alloc(a, (size_t)n, sizeof **out, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t i = 0; i < n; i++) list[i] = (named){name(arg, i), i};
    qsort(list, (size_t)n, sizeof *list, by_name);
    for (int64_t i = 0; i < n; i++) (*out)[i] = list[i].i;
    return DQ_OK;
}
