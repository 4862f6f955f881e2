/* Lines of documents are counted first; what is not taken is neither parsed nor copied. The
 * quarters of a single text are the same bytes however many tokens are asked for, and a region
 * lies within one, so that parts share nothing.
 * SPDX-License-Identifier: MIT */
#include "calibrate/inside.h"
#include "tasks/tasks.h"

#include <string.h>

enum { QUARTERS = DQ_CALIB_TEXT_QUARTERS, NEAR = 4096 }; /* bytes within which a line may begin */

static int64_t quarters_in(unsigned quarters)
{
    int64_t n = 0;
    for (int i = 0; i < QUARTERS; i++) n += quarters >> i & 1;
    return n;
}

static bool is_inside(char c) /* of a character */
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

/* A region begins after the next line end, if that is near. */
static size_t begin_of(const char *text, size_t from, size_t end)
{
    const size_t near = end - from < NEAR ? end - from : NEAR;
    const char *line = from > 0 ? memchr(text + from, '\n', near) : NULL;
    if (line) return (size_t)(line - text) + 1;
    while (from < end && is_inside(text[from])) from++;
    return from;
}

/* A quarter of a single text ends where the next begins. */
static size_t quarter_begin(const char *text, size_t len, int64_t quarter)
{
    const size_t each = len / QUARTERS;
    if (quarter == QUARTERS) return len;
    return begin_of(text, each * (size_t)quarter, each * (size_t)(quarter + 1));
}

static dq_status add_regions(dq_calib_excerpt *x, const char *path, const char *text, size_t len,
                             int64_t tokens, int64_t ctx, unsigned quarters, int64_t per_token,
                             dq_arena *a, dq_err *err)
{
    const int64_t sequences = (tokens + ctx - 1) / ctx, of = quarters_in(quarters);
    const int64_t n = QUARTERS * ((sequences + of - 1) / of);
    const size_t most = (size_t)(ctx * per_token);
    int32_t *unit = dq_alloc(a, (size_t)n, sizeof *unit, err);
    if (!unit) return err->code;
    x->cut = true;
    for (int64_t k = 0; k < n; k++) {
        if (!(quarters >> k * QUARTERS / n & 1)) continue;
        unit[x->docs.n] = (int32_t)k;
        /* Region k of n lies within its quarter. */
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
    }
    x->unit = unit;
    x->n_units = n;
    return DQ_OK;
}

dq_status dq_calib_excerpt_make(dq_calib_excerpt *out, const char *path, const char *text,
                                size_t len, int64_t tokens, int64_t ctx, unsigned quarters,
                                int64_t per_token, dq_arena *a, dq_err *err)
{
    const bool has_lines = dq_documents_has_lines(path), large = len > DQ_CALIB_EXCERPT_FROM;
    bool whole = !large || (int64_t)len / DQ_CALIB_EXCERPT_BYTES <= tokens;
    const int64_t lines = has_lines && !whole ? dq_task_file_count(text, len) : 0;
    *out = (dq_calib_excerpt){.all = true, .bytes = (int64_t)len};
    if (large && whole && !has_lines && quarters != DQ_CALIB_TEXT_ALL) {
        out->quarters = true;
        for (int64_t q = 0; q < QUARTERS; q++) {
            const size_t begin = quarter_begin(text, len, q), end = quarter_begin(text, len, q + 1);
            out->docs.at = (int64_t)begin;
            DQ_TRY(dq_documents_add(&out->docs, path, text + begin, end - begin, a, err));
        }
        out->n_units = out->docs.n;
        return DQ_OK;
    }
    whole = whole || (has_lines && lines < 2); /* no line is parsed in part */
    if (whole) {
        DQ_TRY(dq_documents_add(&out->docs, path, text, len, a, err));
        out->n_units = out->docs.n;
        return DQ_OK;
    }
    out->bytes = 0;
    if (has_lines) {
        const char *line;
        size_t at = dq_utf8_mark(text, len), n;
        int64_t number = 0, i = 0, mine = 0, next = 0;
        const double each = (double)len / (double)lines;
        int64_t all = 0;
        out->n_units = lines;
        for (int64_t k = 0; k < lines; k++) all += quarters >> k % QUARTERS & 1;
        int64_t wanted = (int64_t)((double)(tokens * per_token) / each) + QUARTERS;
        if (wanted > all) wanted = all;
        out->all = wanted == all;
        int32_t *unit = dq_alloc(a, (size_t)wanted + 1, sizeof *unit, err);
        if (!unit) return err->code;
        while (next < wanted && dq_task_file_next_line(text, len, &at, &line, &n)) {
            number++;
            if (dq_task_file_is_blank(line, n)) continue;
            const int64_t this = i++;
            if (!(quarters >> this % QUARTERS & 1)) continue;
            if (mine++ != (int64_t)((double)next * (double)all / (double)wanted)) continue;
            unit[out->docs.n] = (int32_t)this;
            next++;
            out->docs.at = line - text;
            DQ_TRY(dq_documents_add_line(&out->docs, path, number, line, n, a, err));
            out->bytes += (int64_t)n;
        }
        out->unit = unit;
        return DQ_OK;
    }
    return add_regions(out, path, text, len, tokens, ctx, quarters, per_token, a, err);
}

enum { LEAST = 2 }; /* ids of a piece: one alone has no context */

typedef struct piece {
    const int32_t *ids;
    int64_t n;
    bool starts; /* its document */
    int32_t unit;
    int32_t quarter;
} piece;

typedef struct pieces {
    piece *list;
    int64_t n;
    size_t cap;
} pieces;

/* unit: the document's, or -1: each piece is its own. quarter: -1 until all pieces are known
 * (take_part). */
static dq_status cut(pieces *p, const dq_doc_ids *doc, int32_t unit, int32_t quarter, int64_t ctx,
                     dq_arena *a, dq_err *err)
{
    for (int64_t at = 0; at < doc->n; at += ctx) {
        const int64_t n = doc->n - at < ctx ? doc->n - at : ctx;
        if (n < LEAST) break;
        piece *list = dq_grow(a, p->list, (size_t)p->n + 1, &p->cap, sizeof *list, err);
        if (!list) return err->code;
        p->list = list;
        list[p->n] = (piece){doc->ids + at, n, at == 0, unit < 0 ? (int32_t)p->n : unit, quarter};
        p->n++;
    }
    return DQ_OK;
}

/* Takes pieces at even intervals until there are `tokens` ids. */
static dq_status choose(dq_calib_text *out, const pieces *p, int64_t tokens, int32_t bos,
                        dq_arena *a, dq_err *err)
{
    int64_t total = 0, wanted = p->n;
    for (int64_t i = 0; i < p->n; i++) total += p->list[i].n;
    if (total > tokens) { /* as many pieces as hold them, were all of the same length */
        wanted = (int64_t)((double)p->n * (double)tokens / (double)total) + 1;
        wanted = wanted < p->n ? wanted : p->n;
    }
    int32_t *ids = dq_alloc(a, (size_t)(total < tokens ? total : tokens), sizeof *ids, err);
    int64_t *cu = dq_alloc(a, (size_t)wanted + 1, sizeof *cu, err);
    int32_t *unit = dq_alloc(a, (size_t)wanted, sizeof *unit, err);
    if (!ids || !cu || !unit) return err->code;
    for (int64_t i = 0; i < wanted && out->n_ids < tokens; i++) {
        const piece *from = &p->list[i * p->n / wanted];
        const int64_t left = tokens - out->n_ids, n = from->n < left ? from->n : left;
        if (n < LEAST && out->n_seq > 0) break;
        memcpy(ids + out->n_ids, from->ids, (size_t)n * sizeof *ids);
        if (bos >= 0 && !from->starts) ids[out->n_ids] = bos;
        out->n_ids += n;
        unit[out->n_seq] = from->unit;
        cu[++out->n_seq] = out->n_ids;
    }
    out->ids = ids;
    out->cu = cu;
    out->unit = unit;
    return DQ_OK;
}

static dq_repeats_run run_of(const dq_calib_text *t, int64_t s, int32_t unit)
{
    return (dq_repeats_run){t->ids + t->cu[s], t->cu[s + 1] - t->cu[s], unit};
}

dq_status dq_calib_text_shared(int64_t *n, const dq_calib_text *t, const dq_calib_text *before,
                               dq_err *err)
{
    const int64_t first = before->n_seq, all = first + t->n_seq;
    int64_t n_clusters, n_first = 0;
    dq_repeats_run *run = dq_block_new((size_t)all, sizeof *run, err);
    int32_t *cluster = dq_block_new((size_t)all, sizeof *cluster, err);
    *n = 0;
    for (int64_t s = 0; run && cluster && s < all; s++)
        run[s] = s < first ? run_of(before, s, (int32_t)s) : run_of(t, s - first, (int32_t)s);
    if (err->code == DQ_OK) dq_repeats_clusters(cluster, &n_clusters, NULL, run, all, err);
    for (int64_t s = 0; err->code == DQ_OK && s < all; s++) {
        if (s < first && cluster[s] >= n_first) n_first = cluster[s] + 1;
        if (s >= first && cluster[s] < n_first) ++*n;
    }
    dq_block_free(run);
    dq_block_free(cluster);
    return err->code;
}

static dq_status encode(dq_calib_text *out, const dq_calib_excerpt *x, const dq_tokenizer *t,
                        const dq_model *m, int64_t tokens, unsigned quarters, dq_arena *a,
                        dq_err *err)
{
    const bool several = !x->cut && !x->quarters && x->n_units > 1;
    pieces p = {0};
    out->found = 0;
    for (int64_t i = 0; i < x->docs.n; i++) {
        dq_doc_ids doc = {0};
        DQ_TRY(dq_windows_encode(&doc, t, &x->docs.doc[i], DQ_BOS_AUTO, m->vocab,
                                 x->cut ? out->ctx : 0, a, err));
        if (x->cut && doc.n > out->ctx) doc.n = out->ctx;
        const int32_t unit = x->unit ? x->unit[i] : (int32_t)i;
        const int32_t quarter = several       ? unit % DQ_CALIB_TEXT_QUARTERS
                                : x->quarters ? (int32_t)i
                                              : -1;
        DQ_TRY(cut(&p, &doc, several || x->cut ? unit : -1, quarter, out->ctx, a, err));
        out->found += doc.n;
    }
    out->cut = x->cut;
    out->n_units = several || x->cut ? x->n_units : p.n;
    if (quarters != DQ_CALIB_TEXT_ALL) {
        /* Keeps the pieces of the quarters that are asked for. */
        int64_t n = 0;
        for (int64_t i = 0; i < p.n; i++) {
            int64_t quarter = p.list[i].quarter;
            if (quarter < 0)
                quarter = (int64_t)p.list[i].unit * DQ_CALIB_TEXT_QUARTERS / out->n_units;
            if (quarters >> quarter & 1) p.list[n++] = p.list[i];
        }
        p.n = n;
        out->found = 0;
        for (int64_t i = 0; i < p.n; i++) out->found += p.list[i].n;
    }
    out->n_ids = out->n_seq = 0;
    if (p.n == 0 && !x->all) return DQ_OK; /* there may be some in what was left out */
    if (p.n == 0) return dq_fail(err, DQ_DAMAGED, "holds no text to calibrate with");
    return choose(out, &p, tokens, dq_items_bos(t, DQ_BOS_AUTO), a, err);
}

dq_status dq_calib_tokenizer(dq_tokenizer **out, const dq_model *m, dq_err *err)
{
    dq_tokenizer_text files[DQ_TOKENIZER_FILES] = {{NULL, 0}};
    *out = NULL;
    for (int i = 0; i < DQ_TOKENIZER_FILES; i++)
        DQ_TRY(dq_model_file(m, dq_tokenizer_file[i], &files[i].s, &files[i].len, err));
    return files[0].s ? dq_tokenizer_load_files(out, files, err) : DQ_OK;
}

/* Reads more of the file where the excerpt has too few tokens. */
static dq_status read_pieces(dq_calib_text *out, const char *path, const char *text, size_t len,
                             const dq_model *m, unsigned quarters, dq_arena *a, dq_err *err)
{
    enum { PER_TOKEN = 16, MORE = 4 };
    dq_calib_excerpt x;
    dq_tokenizer *t;
    DQ_TRY(dq_calib_tokenizer(&t, m, err));
    if (!t)
        return dq_fail(err, DQ_MISMATCH, "%s: has no tokenizer.json, so text cannot become ids",
                       m->path);
    for (int64_t per = PER_TOKEN;; per *= MORE) {
        if (dq_calib_excerpt_make(&x, path, text, len, out->requested, out->ctx, quarters, per, a,
                                  err) != DQ_OK)
            break;
        if (encode(out, &x, t, m, out->requested, quarters, a, err) != DQ_OK)
            dq_in(err, "%s: ", path);
        if (err->code != DQ_OK || x.all || out->n_ids >= out->requested) break;
    }
    dq_tokenizer_free(t);
    out->n_bad = x.docs.n_bad;
    out->first_bad = x.docs.first_bad;
    out->json_lines = x.docs.lines_path != NULL;
    out->bytes = (int64_t)len;
    out->bytes_read = x.bytes;
    if (err->code != DQ_OK) return err->code;
    const int64_t n = out->n_seq;
    int32_t *cluster = dq_alloc(a, (size_t)n, sizeof *cluster, err);
    dq_repeats_run *run = dq_block_new((size_t)n, sizeof *run, err);
    for (int64_t s = 0; cluster && run && s < n; s++) run[s] = run_of(out, s, out->unit[s]);
    if (err->code == DQ_OK)
        dq_repeats_clusters(cluster, &out->n_clusters, &out->n_copies, run, n, err);
    if (err->code == DQ_OK) dq_repeats_count(&out->n_places, &out->n_new, run, n, err);
    dq_block_free(run);
    out->cluster = cluster;
    return err->code;
}

dq_status dq_calib_text_begin(dq_calib_text *out, const dq_model *m, int64_t tokens, int64_t ctx,
                              dq_err *err)
{
    *out = (dq_calib_text){.ctx = ctx};
    if (m->max_positions > 0 && ctx > m->max_positions)
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OPTION},
                            "calib-ctx: expected at most the %d positions of %s, found %lld.",
                            m->max_positions, m->path, (long long)ctx);
    if (ctx == 0) {
        const bool few = m->max_positions > 0 && m->max_positions < DQ_CALIB_TEXT_CTX;
        out->ctx = few ? m->max_positions : DQ_CALIB_TEXT_CTX;
    }
    out->requested = tokens > 0 ? tokens : DQ_CALIB_TEXT_TOKENS;
    return DQ_OK;
}

dq_status dq_calib_text_read(dq_calib_text *out, const char *path, const dq_model *m,
                             int64_t tokens, int64_t ctx, unsigned quarters, dq_arena *a,
                             dq_err *err)
{
    enum {
        CHECKED = 1 << 20
    }; /* bytes of a file that may be far larger than what is taken of it */
    dq_os_map file = {0};
    DQ_TRY(dq_calib_text_begin(out, m, tokens, ctx, err));
    char *text = NULL;
    size_t len = 0;
    if (!dq_file_is_regular(path)) /* a pipe, or standard input */
        DQ_TRY(dq_file_read(&text, &len, path, a, err));
    else
        DQ_TRY(dq_os_map_open(&file, path, err));
    const char *all = file.data ? (const char *)file.data : text ? text : "";
    if (file.data) len = file.bytes;
    if (dq_utf8_check_text(all, len < CHECKED ? len : CHECKED, err) != DQ_OK)
        dq_in(err, "%s: ", path);
    else if (dq_sha256_of(out->sha256, all, len, err) == DQ_OK)
        read_pieces(out, path, all, len, m, quarters, a, err);
    dq_os_map_close(&file);
    return err->code;
}

json_t *dq_calib_text_sketch(const dq_calib_text *t)
{
    dq_repeats_sketch s = {.n = 0};
    for (int64_t i = 0; i < t->n_seq; i++)
        dq_repeats_sketch_add(&s, t->ids + t->cu[i], t->cu[i + 1] - t->cu[i]);
    return dq_repeats_sketch_json(&s);
}

int64_t dq_calib_text_longest(const dq_calib_text *t)
{
    int64_t n = 0;
    for (int64_t s = 0; s < t->n_seq; s++)
        n = t->cu[s + 1] - t->cu[s] > n ? t->cu[s + 1] - t->cu[s] : n;
    return n;
}

json_t *dq_calib_text_quarters_json(unsigned quarters)
{
    json_t *list = json_array();
    for (int i = 0; i < DQ_CALIB_TEXT_QUARTERS; i++) {
        if (quarters >> i & 1) json_array_append_new(list, json_integer(i));
    }
    return list;
}

unsigned dq_calib_text_quarters(const json_t *list)
{
    unsigned quarters = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t q = -1;
        if (!dq_json_whole(&q, json_array_get(list, i)) || q < 0 || q >= DQ_CALIB_TEXT_QUARTERS)
            return 0;
        quarters |= 1u << q;
    }
    return quarters;
}
