/* windows: see windows.h. One function gives the i-th window of a document for each scheme, from its begin, its
 * first scored id and its length; counting, limits and cutting only call it. Ids are copied where a window changes
 * them, else windows point into the document.
 * SPDX-License-Identifier: MIT */
#include "tasks/windows.h"

#include "base/file.h"
#include "tasks/repeats.h"

#include <string.h>

const char *const dq_scheme_name[DQ_SCHEMES] = {"chunk", "stride", "block", "rolling", "positions"};

int64_t dq_window_scored(const dq_window *w)
{
    return w->n - 1 - w->first + w->past;
}

int64_t dq_windows_values(const dq_windows *w, int64_t i)
{
    return i < w->n ? w->win[i].value : w->n_values;
}

dq_status dq_windows_hash(char hex[65], const dq_windows *w, dq_err *err)
{
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    for (int64_t i = 0; i < w->n; i++) {
        const dq_window *x = &w->win[i];
        const int64_t head[] = {x->n, x->first, x->past, x->doc};
        dq_sha256_add(&h, head, sizeof head);
        dq_sha256_add(&h, x->ids, (size_t)(x->n + x->past) * sizeof *x->ids);
    }
    return dq_sha256_end(&h, hex, err);
}

bool dq_windows_alike(const dq_windows *w, int64_t begin, int64_t end)
{
    const dq_window *a = &w->win[begin];
    for (int64_t i = begin + 1; i < end; i++) {
        const dq_window *b = &w->win[i];
        if (b->n != a->n || b->first != a->first || b->past != a->past) return false;
    }
    return true;
}

/* Windows of a document in the making. */
typedef struct cutter {
    const dq_window_spec *spec;
    const dq_doc_ids *doc;
    int64_t index; /* of the document */
    int32_t before, bos;
    int64_t stride;
    int32_t
        *copy; /* of the document's tokens, for windows that change or precede them; NULL: none */
} cutter;

/* Whether a rolling document begins with the prefix itself, which then stands for it. */
static bool spells_prefix(const cutter *c, const dq_doc_ids *d)
{
    return c->spec->scheme == DQ_WINDOW_ROLLING && d->n > 0 && d->n_before == 0 &&
           d->ids[0] == c->before;
}

/* Window i of the document. Only those that count_windows has are asked for. */
static dq_window window_at(const cutter *c, int64_t i)
{
    const int skip = spells_prefix(c, c->doc);
    const int64_t L = c->spec->n_ctx, n = c->doc->n - skip;
    const int32_t *ids = c->doc->ids;
    dq_window w = {.doc = c->index, .at = i * L, .n = L};
    switch (c->spec->scheme) {
    case DQ_WINDOW_CHUNK:
        w.first = L / 2;
        if (c->copy) ids = c->copy;
        break;
    case DQ_WINDOW_STRIDE:
        w.at = i * c->stride;
        if (n - w.at < L) w.n = n - w.at;
        if (i > 0) w.first = L - c->stride - 1; /* the window before ends there */
        break;
    case DQ_WINDOW_ROLLING: /* ids[-1] is the prefix */
        ids = (c->copy ? c->copy : ids) + 1;
        w.past = 1;
        w.at = -1;
        if (i == 0 && n < L) w.n = n;
        if (i == 0) break;
        w.at = (n - i * L < L ? n : (i + 1) * L) - L - 1;
        w.first = i * L - w.at - 1;
        break;
    case DQ_WINDOW_POSITIONS: w.past = 1; break;
    case DQ_WINDOW_BLOCK: break;
    }
    w.ids = ids + w.at;
    w.at += skip;
    return w;
}

static int64_t count_windows(const cutter *c, const dq_doc_ids *d)
{
    const int64_t L = c->spec->n_ctx, n = d->n - spells_prefix(c, d);
    switch (c->spec->scheme) {
    case DQ_WINDOW_STRIDE:
        if (n < 2) return 0;
        return n <= L ? 1 : 1 + (n - L + c->stride - 1) / c->stride;
    case DQ_WINDOW_ROLLING: return (n + L - 1) / L;
    case DQ_WINDOW_POSITIONS: return n > L;
    default: return n / L;
    }
}

/* Ids of the document that windows may change, or that have the prefix in front. */
static dq_status copy_ids(cutter *c, dq_arena *a, dq_err *err)
{
    const int64_t L = c->spec->n_ctx, n = c->doc->n;
    bool rolling = c->spec->scheme == DQ_WINDOW_ROLLING;
    c->copy = NULL;
    if (spells_prefix(c, c->doc)) return DQ_OK;
    if (!rolling && (c->spec->scheme != DQ_WINDOW_CHUNK || c->bos < 0)) return DQ_OK;
    c->copy = dq_alloc(a, (size_t)n + 1, sizeof *c->copy, err);
    if (!c->copy) return err->code;
    memcpy(c->copy + rolling, c->doc->ids, (size_t)n * sizeof *c->copy);
    if (rolling) c->copy[0] = c->before;
    for (int64_t i = 0; !rolling && i < n; i += L) c->copy[i] = c->bos;
    return DQ_OK;
}

/* Why nothing can be scored, in the words of one document where there is one. */
static dq_status too_short(const dq_windows *w, const dq_window_spec *spec, dq_err *err)
{
    enum { LEAST_CTX = 4 };
    const long long n = w->n_ids, L = spec->n_ctx;
    const long long need[DQ_SCHEMES] = {2 * L, 2, L, 1, L + 1};
    const char *name = dq_scheme_name[spec->scheme];
    if (w->n_all > 1)
        return dq_fail_with(
            err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SMALLER_CTX},
            "none of %lld documents is long enough (%s windows of %lld tokens need %lld). "
            "Use longer documents",
            (long long)w->n_all, name, L, spec->scheme == DQ_WINDOW_CHUNK ? L : need[spec->scheme]);
    if (spec->scheme == DQ_WINDOW_CHUNK && n < 2 * LEAST_CTX)
        return dq_fail(
            err, DQ_MISMATCH,
            "the text has %lld tokens, two of the smallest windows need %d. Use more text", n,
            2 * LEAST_CTX);
    if (spec->scheme == DQ_WINDOW_CHUNK)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_CTX, .number = {n / 2}},
                            "the text has %lld tokens, two windows of %lld need %lld", n, L, 2 * L);
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SMALLER_CTX},
                        "the text has %lld tokens, %s windows of %lld need %lld. Use more text", n,
                        name, L, need[spec->scheme]);
}

static dq_status find_clusters(dq_windows *w, dq_arena *a, dq_err *err)
{
    int32_t *cluster = dq_alloc(a, (size_t)w->n, sizeof *cluster, err);
    dq_repeats_run *run = dq_block_new((size_t)w->n, sizeof *run, err);
    for (int64_t i = 0; cluster && run && i < w->n; i++) {
        const dq_window *x = &w->win[i];
        const int64_t unit = w->n_docs < 2 ? i : x->doc;
        run[i] = (dq_repeats_run){x->ids, x->n + x->past, (int32_t)unit};
    }
    if (err->code == DQ_OK)
        dq_repeats_clusters(cluster, &w->n_clusters, &w->n_copies, run, w->n, err);
    dq_block_free(run);
    w->cluster = cluster;
    return err->code;
}

/* n_all: documents there are; those after n_docs are not needed, as the limit is reached before them. */
static dq_status cut(dq_windows *out, const dq_doc_ids *doc, int64_t n_docs, int64_t n_all,
                     const dq_window_spec *spec, int32_t before, int32_t bos, dq_arena *a,
                     dq_err *err)
{
    cutter c = {.spec = spec, .before = before, .bos = bos};
    int64_t all = 0;
    *out = (dq_windows){.doc = doc, .n_given = n_docs, .n_all = n_all};
    c.stride = spec->stride ? spec->stride : spec->n_ctx / 2;
    for (int64_t d = 0; d < n_docs; d++) {
        int64_t n = count_windows(&c, &doc[d]);
        out->n_ids += doc[d].n;
        out->n_short += n == 0;
        all += n;
    }
    if (all < (spec->scheme == DQ_WINDOW_CHUNK && n_all == 1 ? 2 : 1))
        return too_short(out, spec, err);
    int64_t take = spec->limit && spec->limit < all ? spec->limit : all;
    dq_window *win = dq_alloc(a, (size_t)take, sizeof *win, err);
    if (!win) return err->code;
    out->win = win;
    for (c.index = 0; c.index < n_docs && out->n < take; c.index++) {
        c.doc = &doc[c.index];
        int64_t n = count_windows(&c, c.doc);
        if (n == 0) continue;
        DQ_TRY(copy_ids(&c, a, err));
        out->n_docs++;
        for (int64_t i = 0; i < n && out->n < take; i++) {
            dq_window w = window_at(&c, i);
            w.value = out->n_values;
            out->n_values += dq_window_scored(&w);
            if (w.n > out->longest) out->longest = w.n;
            win[out->n++] = w;
            out->cut = out->n == take && i + 1 < n;
        }
    }
    return find_clusters(out, a, err);
}

dq_status dq_windows_cut(dq_windows *out, const dq_doc_ids *doc, int64_t n_docs,
                         const dq_window_spec *spec, int32_t before, int32_t bos, dq_arena *a,
                         dq_err *err)
{
    return cut(out, doc, n_docs, n_docs, spec, before, bos, a, err);
}

dq_status dq_windows_encode(dq_doc_ids *out, const dq_tokenizer *t, const dq_doc *d, dq_bos bos,
                            int64_t vocab, int64_t max, dq_arena *a, dq_err *err)
{
    const unsigned flags = dq_items_bos_flags(t, bos, d->text, d->len);
    int32_t *ids = NULL, *kept = NULL;
    int n_before, n_after;
    int64_t n = 0, n_bad;
    if (d->len == 0) return DQ_OK;
    dq_tokenizer_template(t, flags, &n_before, &n_after);
    DQ_TRY(dq_tokenizer_encode_first(t, d->text, d->len, flags, max, &ids, &n, NULL, &n_bad, err));
    if (dq_tokenizer_check_ids(ids, n, vocab, err) == DQ_OK)
        kept = dq_alloc(a, (size_t)n, sizeof *kept, err);
    if (kept && n) memcpy(kept, ids, (size_t)n * sizeof *kept);
    dq_block_free(ids);
    *out = (dq_doc_ids){.ids = kept, .n = n, .n_before = n_before, .n_after = n_after};
    return err->code;
}

/* Words and bytes of the documents that have windows. */
static void count_text(dq_windows *w, const dq_docs *docs)
{
    int64_t last = -1;
    for (int64_t i = 0; i < w->n; i++) {
        const dq_doc *d = &docs->doc[w->win[i].doc];
        if (w->win[i].doc == last) continue;
        last = w->win[i].doc;
        w->n_words += d->words;
        w->bytes += (int64_t)d->len;
    }
}

/* ids[*n]: of documents until the limit's windows are there, and of the last one a window more, which tells that it goes on. */
static dq_status encode_docs(dq_doc_ids *ids, int64_t *n, const dq_tokenizer *t,
                             const dq_docs *docs, const dq_window_spec *spec, dq_arena *a,
                             dq_err *err)
{
    const bool first = spec->limit > 0 && !spec->whole;
    const cutter c = {.spec = spec,
                      .before = dq_tokenizer_prefix(t),
                      .stride = spec->stride ? spec->stride : spec->n_ctx / 2};
    for (int64_t left = spec->limit; *n < docs->n && (!first || left > 0); ++*n) {
        const int64_t max = first ? (left + 2) * spec->n_ctx + 1 : 0;
        dq_doc_ids *d = &ids[*n];
        DQ_TRY(dq_windows_encode(d, t, &docs->doc[*n], spec->bos, spec->vocab, max, a, err));
        left -= count_windows(&c, d);
    }
    return DQ_OK;
}

dq_status dq_windows_make(dq_windows *out, const dq_tokenizer *t, const dq_docs *docs,
                          const dq_window_spec *spec, dq_arena *a, dq_err *err)
{
    const int32_t before = dq_tokenizer_prefix(t);
    int64_t with_text = 0;
    for (int64_t i = 0; i < docs->n; i++) with_text += docs->doc[i].len > 0;
    if (with_text == 0) return dq_fail(err, DQ_DAMAGED, "holds no text");
    DQ_TRY(dq_items_bos_check(t, spec->bos, err));
    if (spec->scheme == DQ_WINDOW_ROLLING && (before < 0 || before >= spec->vocab))
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_ROLLING},
                            "window rolling needs a token before a text; tokenizer_config.json "
                            "names neither bos_token nor eos_token");
    dq_doc_ids *ids = dq_alloc(a, (size_t)docs->n, sizeof *ids, err);
    if (!ids) return err->code;
    int64_t n = 0;
    DQ_TRY(encode_docs(ids, &n, t, docs, spec, a, err));
    DQ_TRY(cut(out, ids, n, docs->n, spec, before, dq_items_bos(t, spec->bos), a, err));
    count_text(out, docs);
    out->prefixed = spec->scheme == DQ_WINDOW_ROLLING;
    return DQ_OK;
}
