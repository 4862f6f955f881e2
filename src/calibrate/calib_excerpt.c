/* calib_excerpt: see calib_excerpt.h. Lines of documents are counted first; what is not taken is neither parsed nor copied.
 * The quarters of a single text are the same bytes however many tokens are asked for, and a region lies within one, so that
 * parts share nothing.
 * SPDX-License-Identifier: MIT */
#include "calibrate/calib_excerpt.h"

#include "base/text.h"
#include "calibrate/calib_text.h"
#include "tasks/task_file.h"

#include <string.h>

enum { QUARTERS = DQ_CALIB_TEXT_QUARTERS, NEAR = 4096 }; /* bytes within which a line may begin */

static int64_t quarters_in(unsigned part)
{
    int64_t n = 0;
    for (int i = 0; i < QUARTERS; i++) n += part >> i & 1;
    return n;
}

static bool is_inside(char c) /* of a character */
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

/* Where a region that may begin at `from` does. */
static size_t begin_of(const char *text, size_t from, size_t end)
{
    const size_t near = end - from < NEAR ? end - from : NEAR;
    const char *line = from > 0 ? memchr(text + from, '\n', near) : NULL;
    if (line) return (size_t)(line - text) + 1;
    while (from < end && is_inside(text[from])) from++;
    return from;
}

/* Where a quarter of a single text begins, and the one before it ends. */
static size_t quarter_begin(const char *text, size_t len, int64_t quarter)
{
    const size_t each = len / QUARTERS;
    if (quarter == QUARTERS) return len;
    return begin_of(text, each * (size_t)quarter, each * (size_t)(quarter + 1));
}

static dq_status add_quarters(dq_calib_excerpt *x, const char *path, const char *text, size_t len,
                              dq_arena *a, dq_err *err)
{
    x->quarters = true;
    for (int64_t q = 0; q < QUARTERS; q++) {
        const size_t begin = quarter_begin(text, len, q), end = quarter_begin(text, len, q + 1);
        x->docs.at = (int64_t)begin;
        DQ_TRY(dq_documents_add(&x->docs, path, text + begin, end - begin, a, err));
    }
    x->n_units = x->docs.n;
    return DQ_OK;
}

/* Adds region `k` of `n`, which lies within its quarter. */
static dq_status add_region(dq_calib_excerpt *x, const char *path, const char *text, size_t len,
                            int64_t k, int64_t n, size_t most, dq_arena *a, dq_err *err)
{
    const double each = (double)len / (double)n;
    const size_t from = quarter_begin(text, len, k * QUARTERS / n);
    const size_t to = quarter_begin(text, len, k * QUARTERS / n + 1);
    const size_t stop = (size_t)(each * (double)(k + 1));
    size_t end = k + 1 == n || stop > to ? to : stop;
    size_t begin = begin_of(text, (size_t)(each * (double)k), end);
    if (begin < from) begin = from;
    if (end < begin) end = begin;
    if (end - begin > most) end = begin + most;
    while (end > begin && end < len && is_inside(text[end])) end--;
    x->docs.at = (int64_t)begin;
    DQ_TRY(dq_documents_add(&x->docs, path, text + begin, end - begin, a, err));
    x->bytes += (int64_t)(end - begin);
    x->all = x->all && end - begin < most;
    return DQ_OK;
}

static dq_status add_regions(dq_calib_excerpt *x, const char *path, const char *text, size_t len,
                             int64_t tokens, int64_t ctx, unsigned part, int64_t per_token,
                             dq_arena *a, dq_err *err)
{
    const int64_t sequences = (tokens + ctx - 1) / ctx, of = quarters_in(part);
    const int64_t n = QUARTERS * ((sequences + of - 1) / of);
    const size_t most = (size_t)(ctx * per_token);
    int32_t *unit = dq_alloc(a, (size_t)n, sizeof *unit, err);
    if (!unit) return err->code;
    x->cut = true;
    for (int64_t k = 0; k < n; k++) {
        if (!(part >> k * QUARTERS / n & 1)) continue;
        unit[x->docs.n] = (int32_t)k;
        DQ_TRY(add_region(x, path, text, len, k, n, most, a, err));
    }
    x->unit = unit;
    x->n_units = n;
    return DQ_OK;
}

/* Lines that are not blank. */
static int64_t count_lines(const char *text, size_t len)
{
    const char *line;
    size_t at = dq_utf8_mark(text, len), n;
    int64_t found = 0;
    while (dq_task_file_next_line(text, len, &at, &line, &n))
        found += !dq_task_file_is_blank(line, n);
    return found;
}

/* Some of the `lines` documents of a file. */
static dq_status add_some_lines(dq_calib_excerpt *x, const char *path, const char *text, size_t len,
                                int64_t lines, int64_t tokens, unsigned part, int64_t per_token,
                                dq_arena *a, dq_err *err)
{
    const char *line;
    size_t at = dq_utf8_mark(text, len), n;
    int64_t number = 0, i = 0, mine = 0, next = 0;
    const double each = (double)len / (double)lines;
    int64_t all = 0;
    x->n_units = lines;
    for (int64_t k = 0; k < lines; k++) all += part >> k % QUARTERS & 1;
    int64_t wanted = (int64_t)((double)(tokens * per_token) / each) + QUARTERS;
    if (wanted > all) wanted = all;
    x->all = wanted == all;
    int32_t *unit = dq_alloc(a, (size_t)wanted + 1, sizeof *unit, err);
    if (!unit) return err->code;
    while (next < wanted && dq_task_file_next_line(text, len, &at, &line, &n)) {
        number++;
        if (dq_task_file_is_blank(line, n)) continue;
        const int64_t this = i++;
        if (!(part >> this % QUARTERS & 1)) continue;
        if (mine++ != (int64_t)((double)next * (double)all / (double)wanted)) continue;
        unit[x->docs.n] = (int32_t)this;
        next++;
        x->docs.at = line - text;
        DQ_TRY(dq_documents_add_line(&x->docs, path, number, line, n, a, err));
        x->bytes += (int64_t)n;
    }
    x->unit = unit;
    return DQ_OK;
}

dq_status dq_calib_excerpt_make(dq_calib_excerpt *out, const char *path, const char *text,
                                size_t len, int64_t tokens, int64_t ctx, unsigned part,
                                int64_t per_token, dq_arena *a, dq_err *err)
{
    const bool has_lines = dq_documents_has_lines(path), large = len > DQ_CALIB_EXCERPT_FROM;
    bool whole = !large || (int64_t)len / DQ_CALIB_EXCERPT_BYTES <= tokens;
    const int64_t lines = has_lines && !whole ? count_lines(text, len) : 0;
    *out = (dq_calib_excerpt){.all = true, .bytes = (int64_t)len};
    if (large && whole && !has_lines && part != DQ_CALIB_TEXT_ALL)
        return add_quarters(out, path, text, len, a, err);
    whole = whole || (has_lines && lines < 2); /* no line is parsed in part */
    if (whole) {
        DQ_TRY(dq_documents_add(&out->docs, path, text, len, a, err));
        out->n_units = out->docs.n;
        return DQ_OK;
    }
    out->bytes = 0;
    if (has_lines)
        return add_some_lines(out, path, text, len, lines, tokens, part, per_token, a, err);
    return add_regions(out, path, text, len, tokens, ctx, part, per_token, a, err);
}
