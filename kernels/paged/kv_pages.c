/* Rows of U from the first on, each taken off those below it; its inverse from the last row on.
 * SPDX-License-Identifier: MIT */
#include "kernels/paged/kv_pages.h"

#include "engine/backend.h"
#include "kv/kv.h"

#include <math.h>
#include <string.h>

static inline int dq_kv_place(const dq_kv *kv, int layer, int group)
{
    return kv->by_layer ? layer * kv->map->n_groups + group : group;
}

static inline int64_t dq_kv_code_bytes(const dq_kv *kv, const dq_kv_page *p, int group, int side)
{
    return dq_kv_head_codes_of(kv, p, side, kv->heads[group])->at;
}

static void drop_page(dq_kv *kv, dq_kv_page *p, int group);

/* See dq_kv_device. A page with several holders stands in several lists. */
static void changed(const dq_kv *kv, const dq_kv_list *list, int64_t index)
{
    if (!kv->device->changed) return;
    kv->device->changed(kv, list, index);
    if (list && list->page[index]->holders > 1) kv->device->changed(kv, NULL, 0);
}

/* What the source adds to the diagonal; ten times as much as long as there is no factor. */
static const double ridge = 1e-2;

/* U of gram + add on the diagonal. */
static bool factor(double *u, const double *gram, double add, int64_t cols, int64_t ld)
{
    memcpy(u, gram, (size_t)(cols * ld) * sizeof *u);
    for (int64_t k = 0; k < cols; k++) u[k * ld + k] += add;
    for (int64_t k = 0; k < cols; k++) {
        double *row = u + k * ld;
        if (!(row[k] > 0 && isfinite(row[k]))) return false;
        const double root = sqrt(row[k]);
        for (int64_t j = k; j < cols; j++) row[j] /= root;
        for (int64_t i = k + 1; i < cols; i++) {
            double *to = u + i * ld;
            const double f = row[i];
            for (int64_t j = i; j < cols; j++) to[j] -= f * row[j];
        }
    }
    return true;
}

bool dq_key_factor(float *right, double *work, const double *gram, int64_t cols, int64_t ld)
{
    const size_t n = (size_t)(cols * ld);
    double add = ridge, *u = work, *inverse = work + n;
    for (int64_t i = 0; i < cols; i++)
        if (!isfinite(gram[i * ld + i])) return false;
    while (isfinite(add) && !factor(u, gram, add, cols, ld)) add *= 10;
    if (!isfinite(add)) return false;
    memset(inverse, 0, n * sizeof *inverse);
    memset(right, 0, n * sizeof *right);
    for (int64_t k = cols - 1; k >= 0; k--) {
        double *row = inverse + k * ld;
        row[k] = 1.0;
        for (int64_t j = k + 1; j < cols; j++) {
            const double f = u[k * ld + j], *from = inverse + j * ld;
            for (int64_t c = j; c < cols; c++) row[c] -= f * from[c];
        }
        for (int64_t c = k; c < cols; c++) {
            row[c] /= u[k * ld + k];
            right[k * ld + c] = (float)row[c];
        }
    }
    return true;
}

/* ---- Span rows ----
 * Rows that count are numbered sequence by sequence, and the classes of the tokens of each list
 * are laid out once per call. Sums then take rows in that numbering, whichever thread or block
 * made them. */

void dq_span_rows_place(int64_t *at, const dq_attention_spans *spans, const dq_batch *batch)
{
    at[0] = 0;
    for (int i = 0; i < batch->n_seq; i++)
        at[i + 1] =
            at[i] + batch->cu_rows[i + 1] - dq_attention_spans_first(spans, batch->cu_rows, i);
}

static bool label_keys(dq_backend *b, dq_span_rows *s, const dq_attend_args *args, int l)
{
    const dq_attention_spans *spans = args->spans;
    const int n_groups = args->attn->map->n_groups, i = l / n_groups;
    const dq_kv_list *list =
        dq_kv_list_of(args->kv, args->batch->seq[i], args->layer, l % n_groups);
    uint8_t *label = s->label + s->key[l];
    for (int64_t k = 0; k < s->key[l + 1] - s->key[l]; k++) {
        label[k] = spans->label[spans->at[i] + dq_kv_pos(list, k)];
        if (label[k] >= spans->n_classes) {
            dq_fail(&b->err, DQ_BUG, "the token at position %d has class %d of %d",
                    (int)dq_kv_pos(list, k), label[k], spans->n_classes);
            return false;
        }
    }
    return true;
}

bool dq_span_rows_new(dq_backend *b, dq_span_rows *s, const dq_attend_args *args)
{
    const dq_head_order *map = args->attn->map;
    const int n_seq = args->batch->n_seq, n_lists = n_seq * map->n_groups;
    memset(s, 0, sizeof *s);
    if (args->spans->n_classes < 1 || args->spans->n_classes > DQ_SPAN_CLASSES) {
        dq_fail(&b->err, DQ_BUG, "%d classes of tokens (expected 1 to %d)", args->spans->n_classes,
                DQ_SPAN_CLASSES);
        return false;
    }
    s->row_bytes = (size_t)map->n_out * (size_t)args->spans->n_classes * sizeof(dq_span_mass);
    s->at = dq_block_new((size_t)n_seq + 1, sizeof *s->at, &b->err);
    s->key = dq_block_new((size_t)n_lists + 1, sizeof *s->key, &b->err);
    if (s->at && s->key) {
        dq_span_rows_place(s->at, args->spans, args->batch);
        s->n = s->at[n_seq];
        const int n_groups = args->attn->map->n_groups;
        for (int l = 0; l < args->batch->n_seq * n_groups; l++) {
            const int i = l / n_groups;
            s->key[l + 1] = s->key[l];
            if (s->at[i + 1] > s->at[i])
                s->key[l + 1] +=
                    dq_kv_list_of(args->kv, args->batch->seq[i], args->layer, l % n_groups)->count;
        }
        s->label = dq_block_new((size_t)s->key[n_lists] + 1, sizeof *s->label, &b->err);
    }
    bool ok = s->label != NULL;
    for (int l = 0; ok && l < n_lists; l++) ok = label_keys(b, s, args, l);
    if (!ok) dq_span_rows_free(s);
    return ok;
}

void dq_span_rows_free(dq_span_rows *s)
{
    dq_block_free(s->at);
    dq_block_free(s->key);
    dq_block_free(s->label);
    memset(s, 0, sizeof *s);
}

void dq_span_rows_add(dq_span_share *sums, const int64_t *at, int n_seq, int n_out, int n_classes,
                      const dq_span_mass *mass)
{
    for (int i = 0; i < n_seq; i++) {
        for (int64_t row = at[i]; row < at[i + 1]; row++) {
            for (int o = 0; o < n_out; o++, mass += n_classes)
                dq_attention_spans_add_row(&sums[i * n_out + o], mass, n_classes);
        }
    }
}

/* ---- Page memory ----
 * The memory of one page of the KV cache; see kv_pages.h. Every array is a block of the backend,
 * taken and given back through one account per kind of bytes, so that kv->bytes is right after
 * each change, failed ones included. */

/* All n or none. */
static bool arrays_new(const dq_kv *kv, int64_t *account, void **p, int64_t n, int64_t bytes)
{
    if (!kv->device->blocks_new(kv->b, p, n, bytes)) return false;
    *account += n * bytes;
    return true;
}

static void *array_new(const dq_kv *kv, int64_t *account, int64_t bytes)
{
    void *p;
    return arrays_new(kv, account, &p, 1, bytes) ? p : NULL;
}

static void array_free(const dq_kv *kv, void *p, int64_t *account, int64_t bytes)
{
    if (p) *account -= bytes;
    kv->device->block_free(kv->b, p);
}

static int64_t plain_bytes(const dq_kv *kv, int group, int side)
{
    return kv->heads[group] * kv->form[side].plain_floats * kv->dense_bytes;
}

static int64_t scale_bytes(const dq_kv *kv, int group, int side, int n_sets, bool wide)
{
    return kv->heads[group] * dq_kv_page_scale_bytes(&kv->form[side], n_sets, wide);
}

static int64_t side_scale_bytes(const dq_kv *kv, int group, int side, const dq_kv_arrays *arrays)
{
    return scale_bytes(kv, group, side, arrays->n_sets, arrays->wide);
}

static int64_t sink_bytes(const dq_kv *kv, int group, int32_t n_sinks)
{
    return (int64_t)kv->heads[group] * n_sinks * kv->map->head_dim * kv->dense_bytes;
}

/* ---- "Page memory": memory of pages. On one thread; kv->bytes follows. */
/* Sanitizers see a page that is used after it is gone in memory of its own. */
#if defined(__SANITIZE_ADDRESS__)
enum { SLAB_PAGES = 1, KEPT_SLABS = 0 };
#else
enum { SLAB_PAGES = 16, KEPT_SLABS = 1024 };
#endif

/* One allocation for pages of one list and append. It stays as long as any of them, which keeps 6
 * KiB of the host at most, and then for others, 6 MiB of a cache at most. */
struct dq_kv_slab {
    int32_t live;     /* pages */
    bool whole;       /* has room for SLAB_PAGES */
    dq_kv_slab *next; /* of those without a page */
    dq_kv_page page[SLAB_PAGES];
};

static dq_kv_slab *take_slab(dq_kv *kv, int64_t n)
{
    const size_t rest = (size_t)(SLAB_PAGES - n) * sizeof(dq_kv_page);
    dq_kv_slab *s = kv->kept;
    if (n < SLAB_PAGES || !s) return dq_block_raw(1, sizeof *s - rest, &kv->b->err);
    kv->kept = s->next;
    kv->n_kept--;
    return s;
}

static void free_kept(dq_kv *kv)
{
    while (kv->kept) {
        dq_kv_slab *s = kv->kept;
        kv->kept = s->next;
        dq_block_free(s);
    }
}

/* At most SLAB_PAGES of them. */
static bool new_pages(dq_kv *kv, dq_kv_page **page, int64_t n, int place)
{
    dq_kv_slab *s = take_slab(kv, n);
    if (!s) return false;
    s->live = (int32_t)n;
    s->whole = n == SLAB_PAGES;
    for (int64_t i = 0; i < n; i++) {
        dq_kv_page *p = page[i] = &s->page[i];
        memset(p, 0, offsetof(dq_kv_page, pos));
        p->holders = 1;
        p->index = (uint8_t)i;
        p->place = (uint16_t)place;
    }
    kv->bytes.index += n * (int64_t)sizeof *s->page;
    return true;
}

static dq_kv_page *new_page(dq_kv *kv, int place)
{
    dq_kv_page *p;
    return new_pages(kv, &p, 1, place) ? p : NULL;
}

static void free_page(dq_kv *kv, dq_kv_page *p)
{
    dq_kv_slab *s = (dq_kv_slab *)(void *)((uint8_t *)(p - p->index) - offsetof(dq_kv_slab, page));
    kv->bytes.index -= (int64_t)sizeof *p;
    if (--s->live > 0) return;
    if (!s->whole || kv->n_kept >= KEPT_SLABS) {
        dq_block_free(s);
        return;
    }
    s->next = kv->kept;
    kv->kept = s;
    kv->n_kept++;
}

/* Unquantized parts of a page, or of n new ones; sinks among its first `at` slots come back into
 * them. all: of sides that have codes, too. */
static bool add_plain(dq_kv *kv, dq_kv_page *const *page, int64_t n, int group, int64_t at,
                      bool all)
{
    for (int side = DQ_K; side <= DQ_V; side++) {
        dq_kv_page *p = page[0];
        void *plain[SLAB_PAGES];
        if (p->arrays[side].plain || (!all && kv->form[side].bits < 16)) continue;
        if (!arrays_new(kv, &kv->bytes.unquantized, plain, n, plain_bytes(kv, group, side)))
            return false;
        for (int64_t i = 0; i < n; i++) page[i]->arrays[side].plain = plain[i];
        if (p->arrays[side].codes)
            kv->device->reopen(kv->b, kv, p, group, side, p->n_sinks < at ? p->n_sinks : at);
    }
    return true;
}

static void free_codes(dq_kv *kv, dq_kv_page *p, int group)
{
    for (int side = DQ_K; side <= DQ_V; side++) {
        dq_kv_arrays *arrays = &p->arrays[side];
        array_free(kv, arrays->codes, &kv->bytes.codes, dq_kv_code_bytes(kv, p, group, side));
        array_free(kv, arrays->scale, &kv->bytes.scales, side_scale_bytes(kv, group, side, arrays));
        array_free(kv, arrays->sinks, &kv->bytes.unquantized, sink_bytes(kv, group, p->n_sinks));
        arrays->codes = NULL;
        arrays->scale = NULL;
        arrays->sinks = NULL;
        arrays->wide = false;
        arrays->n_sets = 0;
    }
    p->n_sinks = 0;
    p->coded = p->due = 0;
    p->begins = 0;
}

/* Room for codes and f16 scales of one page, or of n with the same widths and sets, and beside them
 * for n_sinks slots. Per-channel codes get room for the sets of p->begins. */
static bool add_codes(dq_kv *kv, dq_kv_page *const *page, int64_t n, int group, int32_t n_sinks)
{
    bool ok = true;
    for (int64_t i = 0; i < n; i++) {
        page[i]->n_sinks = (uint8_t)n_sinks;
        page[i]->coded = page[i]->due = (int16_t)n_sinks;
    }
    for (int side = DQ_K; ok && side <= DQ_V; side++) {
        void *block[3][SLAB_PAGES] = {0};
        const dq_kv_page *p = page[0];
        if (kv->form[side].bits == 16) continue;
        const int n_sets = dq_kv_sets(p, DQ_PAGE_TOKENS);
        const int64_t codes = dq_kv_code_bytes(kv, p, group, side),
                      scales = scale_bytes(kv, group, side, n_sets, false);
        ok = arrays_new(kv, &kv->bytes.codes, block[0], n, codes) &&
             (!scales || arrays_new(kv, &kv->bytes.scales, block[1], n, scales)) &&
             (!n_sinks ||
              arrays_new(kv, &kv->bytes.unquantized, block[2], n, sink_bytes(kv, group, n_sinks)));
        for (int64_t i = 0; i < n; i++) {
            dq_kv_arrays *arrays = &page[i]->arrays[side];
            arrays->n_sets = (uint8_t)n_sets;
            arrays->codes = block[0][i];
            arrays->scale = block[1][i];
            arrays->sinks = block[2][i];
        }
    }
    for (int64_t i = 0; !ok && i < n; i++) free_codes(kv, page[i], group);
    return ok;
}

/* Room for n sets; those that are there stay. */
static bool grow_sets(dq_kv *kv, dq_kv_arrays *arrays, int group, int side, int n)
{
    const int64_t now = side_scale_bytes(kv, group, side, arrays);
    void *more = array_new(kv, &kv->bytes.scales, scale_bytes(kv, group, side, n, arrays->wide));
    if (!more) return false;
    if (arrays->scale) kv->device->block_copy(kv->b, more, arrays->scale, now);
    array_free(kv, arrays->scale, &kv->bytes.scales, arrays->scale ? now : 0);
    arrays->scale = more;
    arrays->n_sets = (uint8_t)n;
    return true;
}

/* Per-channel codes: sets for slots coded .. due-1 by their positions, with room for numbers. */
static bool add_sets(dq_kv *kv, dq_kv_page *p, int group)
{
    p->begins &= (1ull << p->coded) - 1; /* coded < due */
    for (int i = p->coded; i < p->due; i++) {
        if (i == p->coded || p->pos[i] / DQ_PAGE_TOKENS != p->pos[i - 1] / DQ_PAGE_TOKENS)
            p->begins |= 1ull << i;
    }
    const int n = dq_kv_sets(p, DQ_PAGE_TOKENS);
    for (int side = DQ_K; side <= DQ_V; side++) {
        dq_kv_arrays *arrays = &p->arrays[side];
        if (arrays->codes && arrays->n_sets < n && !grow_sets(kv, arrays, group, side, n))
            return false;
    }
    return true;
}

static bool widen_page(dq_kv *kv, dq_kv_page *p, int group, int side)
{
    dq_kv_arrays *arrays = &p->arrays[side];
    const int64_t n = side_scale_bytes(kv, group, side, arrays) / 2;
    float *wide = array_new(kv, &kv->bytes.scales, 4 * n);
    if (!wide) return false;
    kv->device->widen(kv->b, wide, arrays->scale, n);
    array_free(kv, arrays->scale, &kv->bytes.scales, 2 * n);
    arrays->scale = wide;
    arrays->wide = true;
    return true;
}

/* *to, with its accounts, becomes a copy of `from`, which may be absent. */
static bool copy_block(const dq_kv *kv, int64_t *account, void **to, const void *from,
                       int64_t bytes)
{
    if (!from) return true;
    *to = array_new(kv, account, bytes);
    if (*to) kv->device->block_copy(kv->b, *to, from, bytes);
    return *to != NULL;
}

static dq_kv_page *copy_page(dq_kv *kv, const dq_kv_page *p, int group)
{
    dq_kv_page *own = new_page(kv, p->place);
    if (!own) return NULL;
    memcpy(own->pos, p->pos, sizeof own->pos);
    own->n_sinks = p->n_sinks;
    own->coded = own->due = p->coded;
    own->begins = p->begins;
    bool ok = true;
    for (int side = DQ_K; ok && side <= DQ_V; side++) {
        const dq_kv_arrays *from = &p->arrays[side];
        dq_kv_arrays *to = &own->arrays[side];
        void *block[4] = {NULL, NULL, NULL, NULL};
        to->wide = from->wide;
        to->n_sets = from->n_sets;
        ok = copy_block(kv, &kv->bytes.unquantized, &block[0], from->plain,
                        plain_bytes(kv, group, side)) &&
             copy_block(kv, &kv->bytes.codes, &block[1], from->codes,
                        dq_kv_code_bytes(kv, p, group, side)) &&
             copy_block(kv, &kv->bytes.scales, &block[2], from->scale,
                        side_scale_bytes(kv, group, side, from)) &&
             copy_block(kv, &kv->bytes.unquantized, &block[3], from->sinks,
                        sink_bytes(kv, group, p->n_sinks));
        to->plain = block[0];
        to->codes = block[1];
        to->scale = block[2];
        to->sinks = block[3];
    }
    if (ok) return own;
    drop_page(kv, own, group);
    return NULL;
}

static void free_plain(dq_kv *kv, dq_kv_page *p, int group, int side)
{
    array_free(kv, p->arrays[side].plain, &kv->bytes.unquantized, plain_bytes(kv, group, side));
    p->arrays[side].plain = NULL;
}

/* Whether it had an unquantized part that it can do without now. */
static bool release_page(dq_kv *kv, dq_kv_page *p, int group)
{
    bool had = false;
    if (p->agreed < p->holders) return false;
    for (int side = DQ_K; side <= DQ_V; side++) {
        if (!p->arrays[side].codes) continue;
        had = had || p->arrays[side].plain;
        free_plain(kv, p, group, side);
    }
    return had;
}

static void drop_page(dq_kv *kv, dq_kv_page *p, int group)
{
    if (--p->holders > 0) {
        if (release_page(kv, p, group)) changed(kv, NULL, 0);
        return;
    }
    free_codes(kv, p, group);
    for (int side = DQ_K; side <= DQ_V; side++) free_plain(kv, p, group, side);
    free_page(kv, p);
}

/* ---- Page codes ----
 * Which tokens of the KV cache become codes, and when; see kv_pages.h. A query at t reads the
 * tokens below a position that the spec derives from t as codes. append makes those that its
 * last row and the one after it read, compact what is due after other changes. Jobs are
 * collected by two walks over the same lists, one that counts and one that fills: `due` is how
 * far a page will be coded, which keeps a page of several lists from being coded twice; `coded`
 * follows when the device has done all jobs, or else `due` falls back to it. A scale or low that
 * stays f32 (kv.h) widens that side of the page, and its codes are made again. Per-channel codes
 * belong to a set, which is coded whole or not at all: all its tokens are there when it is due,
 * a token that is written where one of a set stood takes the set's codes away, and what is
 * evicted is evicted after all that is due has codes. */

static bool has_codes(const dq_kv_page *p)
{
    return p->arrays[DQ_K].codes || p->arrays[DQ_V].codes;
}

/* Room for codes of page p and, where it has no sinks, of those before it that are to have some,
 * too. */
static bool open_codes(dq_kv *kv, dq_kv_list *list, int group, int64_t p, int64_t sinks)
{
    const int64_t lowest = (sinks + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS;
    int64_t n = 1;
    while (n < SLAB_PAGES && p - n >= lowest && !has_codes(list->page[p - n])) n++;
    return add_codes(kv, list->page + p - n + 1, n, group, (int32_t)dq_kv_slots(sinks, p));
}

/* Made ready and added to jobs; those without codes are the last. jobs NULL: counts, or a few
 * more. */
static bool list_codes(dq_kv *kv, dq_kv_list *list, int group, int32_t t, dq_kv_job *jobs,
                       int64_t *n)
{
    const int64_t end = dq_kv_coded_index(kv, list, t);
    const int64_t sinks = dq_kv_visible(list, kv->spec.sink - 1);
    for (int64_t p = (end + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS - 1; p >= 0; p--) {
        dq_kv_page *page = list->page[p];
        const int16_t from = (int16_t)dq_kv_slots(sinks, p), to = (int16_t)dq_kv_slots(end, p);
        if (to <= from || page->due >= to) break;
        if (!jobs || page->due == page->coded) ++*n;
        if (!jobs) continue;
        if (!has_codes(page) && !open_codes(kv, list, group, p, sinks)) {
            --*n;
            return false;
        }
        if (page->due == page->coded) jobs[*n - 1] = (dq_kv_job){page, group, -1, list, p};
        page->due = to;
        changed(kv, list, p);
    }
    return true;
}

/* Coded is what the last row of each sequence of a batch reads so, or the row `ahead` after it, or
 * a row at t of one list. */
typedef struct coding {
    int layer, ahead, group;
    const dq_batch *batch;
    dq_kv_list *list;
    int32_t t;
} coding;

static bool list_due(dq_kv *kv, const coding *d, dq_kv_job *jobs, int64_t *n)
{
    *n = 0;
    if (d->list) return list_codes(kv, d->list, d->group, d->t, jobs, n);
    for (int i = 0; i < d->batch->n_seq; i++) {
        const int64_t end = d->batch->cu_rows[i + 1];
        for (int g = 0; end > d->batch->cu_rows[i] && g < kv->map->n_groups; g++) {
            dq_kv_list *list = dq_kv_list_of(kv, d->batch->seq[i], d->layer, g);
            if (!list_codes(kv, list, g, d->batch->pos[end - 1] + d->ahead, jobs, n)) return false;
        }
    }
    return true;
}

/* Sides with a scale or low that stays f32, again. */
static bool encode_wide(dq_backend *b, dq_kv *kv, const dq_kv_job *job, const dq_kv_new_rows *rows)
{
    for (int side = DQ_K; side <= DQ_V; side++) {
        if (!job->page->arrays[side].overflow) continue;
        const dq_kv_job again = {job->page, job->group, side, job->list, job->index};
        if (!widen_page(kv, job->page, job->group, side)) return false;
        changed(kv, job->list, job->index);
        if (!kv->device->fill(b, kv, rows, &again, 1)) return false;
    }
    return true;
}

/* `planned`: whether all jobs could be made ready. rows NULL: codes alone. */
static bool do_jobs(dq_backend *b, dq_kv *kv, const dq_kv_job *jobs, int64_t n, bool planned,
                    dq_kv_new_rows *rows)
{
    bool ok = planned;
    for (int64_t i = 0; ok && kv->by_page && i < n; i++)
        ok = add_sets(kv, jobs[i].page, jobs[i].group);
    ok = ok && kv->device->fill(b, kv, rows, jobs, n);
    if (rows) rows->written = true;
    for (int64_t i = 0; ok && i < n; i++) ok = encode_wide(b, kv, &jobs[i], rows);
    for (int64_t i = 0; i < n; i++) {
        dq_kv_page *p = jobs[i].page;
        if (ok) p->coded = p->due;
        p->due = p->coded;
        if (ok || !kv->by_page || p->coded == DQ_PAGE_TOKENS) continue;
        p->begins &= (1ull << p->coded) - 1;
        changed(kv, jobs[i].list, jobs[i].index);
    }
    return ok;
}

/* False: b->err is set. */
static bool make_codes(dq_backend *b, dq_kv *kv, const coding *d, dq_kv_new_rows *rows)
{
    int64_t n = 0;
    if (kv->has_codes) list_due(kv, d, NULL, &n);
    if (n == 0 && !rows) return true;
    dq_kv_job *jobs = dq_block_new((size_t)n + 1, sizeof *jobs, &b->err);
    if (!jobs) return false;
    const bool planned = !kv->has_codes || list_due(kv, d, jobs, &n);
    const bool ok = do_jobs(b, kv, jobs, n, planned, rows);
    dq_block_free(jobs);
    return ok;
}

/* Of what is due after the list's last token, where codes depend on tokens that are about to go. */
static bool code_due(dq_backend *b, dq_kv *kv, dq_kv_list *list, int group)
{
    if (!kv->by_page || list->count == 0) return true;
    const int32_t t = dq_kv_pos(list, list->count - 1) + dq_kv_ahead(&kv->spec);
    return make_codes(b, kv, &(coding){.list = list, .group = group, .t = t}, NULL);
}

/* ---- KV pages ----
 * Each (sequence, layer, group) has a list of pages; forks have lists of their own and share
 * pages. Writing. A page with other holders is copied before a token is written to it
 * (open_tail), so no list sees another's tokens below its count. Memory is taken before the
 * device writes, and counts fall back where it fails. Unquantized arrays. Below `compacted` a
 * list never reads a token unquantized again. A list whose part of a page lies below counts
 * itself in the page's `agreed`, once: list->agreed is how many leading pages it has counted
 * itself in. When all holders have agreed, the unquantized array is freed. A rewind after which
 * such a token would be read unquantized is refused. */

static bool list_reserve(dq_backend *b, dq_kv *kv, dq_kv_list *list, int64_t n)
{
    if (n <= list->capacity) return true;
    const int64_t capacity = dq_kv_page_capacity(n);
    dq_kv_page **page = dq_block_new((size_t)capacity, sizeof(dq_kv_page *), &b->err);
    if (!page) return false;
    if (list->n_pages) memcpy(page, list->page, (size_t)list->n_pages * sizeof(dq_kv_page *));
    dq_block_free(list->page);
    list->page = page;
    kv->bytes.index += (capacity - list->capacity) * (int64_t)sizeof(dq_kv_page *);
    list->capacity = capacity;
    return true;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void list_cut(dq_kv *kv, dq_kv_list *list, int group, int64_t n_pages)
{
    while (list->n_pages > n_pages) {
        dq_kv_page *p = list->page[--list->n_pages];
        if (list->agreed > list->n_pages) {
            list->agreed = (int32_t)list->n_pages;
            p->agreed--;
        }
        drop_page(kv, p, group);
    }
}

static void leave_window(dq_kv *kv, dq_kv_list *list, int group, int window)
{
    if (list->count == 0) return;
    const int32_t next = dq_kv_pos(list, list->count - 1) + 1;
    const int64_t gone = dq_kv_hidden(list, window, next) / DQ_PAGE_TOKENS;
    if (gone == 0) return;
    for (int64_t p = 0; p < gone; p++) {
        list->page[p]->agreed -= p < list->agreed;
        drop_page(kv, list->page[p], group);
    }
    list->n_pages -= gone;
    list->count -= gone * DQ_PAGE_TOKENS;
    list->agreed -= (int32_t)least(gone, list->agreed);
    memmove(list->page, list->page + gone, (size_t)list->n_pages * sizeof(dq_kv_page *));
    list->since = list->count ? dq_kv_pos(list, 0) + window - 1 : next;
    if (list->n_pages) changed(kv, list, 0);
}

static void list_free(dq_kv *kv, dq_kv_list *list, int group)
{
    list_cut(kv, list, group, 0);
    if (kv->device->list_free) kv->device->list_free(kv, list);
    kv->bytes.index -= list->capacity * (int64_t)sizeof(dq_kv_page *);
    dq_block_free(list->page);
}

static int64_t pages_of(int64_t tokens)
{
    return (tokens + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS;
}

int64_t dq_kv_visible(const dq_kv_list *list, int32_t t)
{
    if (list->count && dq_kv_pos(list, list->count - 1) == list->count - 1) /* nothing is evicted */
        return t < 0 ? 0 : t < list->count ? t + 1 : list->count;
    int64_t low = 0, high = list->count; /* positions before low are <= t, from high on > t */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (dq_kv_pos(list, middle) <= t) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

int64_t dq_kv_hidden(const dq_kv_list *list, int window, int32_t t)
{
    return window ? dq_kv_visible(list, t - window) : 0;
}

dq_kv_list dq_kv_seen(const dq_kv_list *list, int window, int32_t t)
{
    const int64_t gone = dq_kv_hidden(list, window, t) / DQ_PAGE_TOKENS;
    dq_kv_list seen = *list;
    if (gone == 0) return seen; /* an empty list may have no pages */
    seen.page += gone;
    seen.n_pages -= gone;
    seen.count -= gone * DQ_PAGE_TOKENS;
    return seen;
}

int64_t dq_kv_coded_index(const dq_kv *kv, const dq_kv_list *list, int32_t t)
{
    return kv->has_codes ? dq_kv_visible(list, dq_kv_coded_end(&kv->spec, t) - 1) : 0;
}

bool dq_kv_lost(const dq_kv *kv, const dq_kv_list *list, int32_t t)
{
    if (dq_kv_coded_end(&kv->spec, t) >= list->compacted) return false;
    const int32_t end = t < list->compacted ? t : list->compacted;
    int64_t first = dq_kv_coded_index(kv, list, t);
    const int64_t sinks = dq_kv_visible(list, kv->spec.sink - 1);
    if (first < sinks) first = sinks;
    return dq_kv_visible(list, end - 1) > first;
}

/* Whether tokens that stand before `end` and after the sinks lack codes. */
static bool lacks_codes(const dq_kv *kv, const dq_kv_list *list, int64_t end)
{
    const int64_t sinks = dq_kv_visible(list, kv->spec.sink - 1);
    for (int64_t p = sinks / DQ_PAGE_TOKENS; p * DQ_PAGE_TOKENS < end; p++) {
        const int64_t to = dq_kv_slots(end, p);
        if (to > dq_kv_slots(sinks, p) && list->page[p]->coded < to) return true;
    }
    return false;
}

bool dq_kv_read_as_at(dq_backend *b, const dq_kv *kv, const dq_kv_list *list, int32_t t,
                      int64_t *coded_end)
{
    *coded_end = dq_kv_coded_index(kv, list, t);
    if (!kv->has_codes || !(dq_kv_lost(kv, list, t) || lacks_codes(kv, list, *coded_end)))
        return true;
    dq_fail(&b->err, DQ_BUG, "a KV cache does not hold what a row at position %d reads", (int)t);
    return false;
}

int dq_kv_spans(dq_kv_span span[2], const dq_kv *kv, const dq_kv_list *list, const dq_kv_rows *rows)
{
    const int32_t first = dq_kv_coded_end(&kv->spec, rows->pos[0]);
    const int64_t until = dq_kv_coded_until(&kv->spec, first);
    int64_t n = rows->n;
    if (kv->has_codes) n = least(n, until - rows->pos[0]); /* positions ascend */
    while (kv->has_codes && rows->pos[n - 1] >= until) n--;
    span[0] = (dq_kv_span){0, n, dq_kv_coded_index(kv, list, rows->pos[0])};
    if (n == rows->n) return 1;
    span[1] = (dq_kv_span){n, rows->n - n, dq_kv_coded_index(kv, list, rows->pos[n])};
    return 2;
}

int dq_kv_page_spans(dq_kv_span out[2], const dq_kv_span *span, int n, int64_t page)
{
    out[0] = span[0];
    if (n == 1) return 1;
    out[1] = span[1];
    if (dq_kv_slots(span[0].coded_end, page) != dq_kv_slots(span[1].coded_end, page)) return 2;
    out[0].n += span[1].n;
    return 1;
}

/* Widths of all heads, and where their codes lie in a page. */
static bool place_codes(dq_backend *b, dq_kv *kv)
{
    const dq_head_order *map = kv->map;
    const int uniform[2] = {kv->spec.k_bits, kv->spec.v_bits};
    dq_kv_widths w;
    kv->by_layer = kv->spec.widths[0] != 0;
    if (kv->by_layer && (dq_kv_widths_parse(&w, kv->spec.widths, &b->err) != DQ_OK ||
                         dq_kv_widths_fit(&w, kv->n_layers, &b->err) != DQ_OK))
        return false;
    const int layers = kv->by_layer ? kv->n_layers : 1, places = layers * map->n_groups;
    for (int g = 0; g < map->n_groups; g++)
        if (kv->heads[g] > kv->max_heads) kv->max_heads = kv->heads[g];
    if (places > UINT16_MAX) {
        dq_fail(&b->err, DQ_MISMATCH, "widths by layer of %d layers with %d groups of KV heads",
                layers, map->n_groups);
        return false;
    }
    kv->codes =
        dq_block_new((size_t)places * 2 * (size_t)(kv->max_heads + 1), sizeof *kv->codes, &b->err);
    for (int i = 0; kv->codes && i < layers * 2 * map->n_kv; i++) {
        const int layer = i / map->n_kv / 2, side = i / map->n_kv % 2, j = i % map->n_kv;
        const dq_kv_page at = {.place = (uint16_t)dq_kv_place(kv, layer, map->group[j])};
        dq_kv_head_codes *c =
            kv->codes + (dq_kv_head_codes_of(kv, &at, side, kv->slot[j]) - kv->codes);
        c->bits = uniform[side];
        if (kv->by_layer)
            c->bits = dq_kv_widths_of(&w, side, layer, dq_head_order_key_map(map, j) == 1);
        c[1].at = c->at + (c->bits == 16 ? 0 : kv->v_cols * DQ_PAGE_TOKENS * c->bits / 8);
    }
    return kv->codes != NULL;
}

dq_kv *dq_kv_pages_new(dq_backend *b, const dq_head_order *map, int n_layers,
                       const dq_kv_spec *spec, const dq_kv_device *device)
{
    static const dq_dtype dense_of[DQ_KV_DENSE_TYPES] = {DQ_F32, DQ_F16, DQ_BF16};
    if (b->err.code != DQ_OK) return NULL;
    dq_kv *kv = dq_block_new(1, sizeof *kv, &b->err);
    if (!kv) return NULL;
    kv->b = b;
    kv->device = device;
    kv->map = map;
    kv->spec = *spec;
    kv->has_codes = dq_kv_has_codes(spec);
    kv->by_page = dq_kv_by_page(spec);
    kv->dense = dense_of[spec->dense];
    kv->dense_bytes = dq_kv_dense_bytes(spec);
    kv->n_layers = n_layers;
    kv->v_cols = (map->head_dim + 15) / 16 * 16;
    kv->form[DQ_K] = dq_kv_page_form_of(spec, false, map->head_dim);
    kv->form[DQ_V] = dq_kv_page_form_of(spec, true, map->head_dim);
    kv->slot = dq_block_new((size_t)map->n_kv, sizeof *kv->slot, &b->err);
    kv->heads = dq_block_new((size_t)map->n_groups, sizeof *kv->heads, &b->err);
    if (!kv->slot || !kv->heads) {
        dq_kv_pages_free(b, kv);
        return NULL;
    }
    for (int j = 0; j < map->n_kv; j++) kv->slot[j] = kv->heads[map->group[j]]++;
    if (!place_codes(b, kv)) {
        dq_kv_pages_free(b, kv);
        return NULL;
    }
    for (int i = 0; dq_kv_dithers(spec) && i < DQ_PAGE_TOKENS; i++) kv->dither[i] = dq_kv_dither(i);
    return kv;
}

void dq_kv_pages_free(dq_backend *b, dq_kv *kv)
{
    if (!kv) return;
    for (int32_t i = 0; i < kv->n_seq; i++) {
        if (kv->seq[i]) dq_kv_pages_seq_free(b, kv, i);
    }
    free_kept(kv);
    dq_block_free(kv->seq);
    dq_block_free(kv->codes);
    dq_block_free(kv->slot);
    dq_block_free(kv->heads);
    dq_block_free(kv);
}

static int64_t lists_bytes(const dq_kv *kv)
{
    return (int64_t)kv->n_layers * kv->map->n_groups * (int64_t)sizeof(dq_kv_list);
}

/* The lowest free handle; the table grows when none is free. */
static int32_t handle_new(dq_backend *b, dq_kv *kv)
{
    for (; kv->lowest < kv->n_seq; kv->lowest++) {
        if (!kv->seq[kv->lowest]) return kv->lowest;
    }
    int32_t n = kv->n_seq ? kv->n_seq * 2 : 8;
    dq_kv_list **seq = dq_block_new((size_t)n, sizeof(dq_kv_list *), &b->err);
    if (!seq) return -1;
    if (kv->n_seq) memcpy(seq, kv->seq, (size_t)kv->n_seq * sizeof(dq_kv_list *));
    dq_block_free(kv->seq);
    kv->seq = seq;
    kv->bytes.index += (n - kv->n_seq) * (int64_t)sizeof(dq_kv_list *);
    int32_t handle = kv->n_seq;
    kv->n_seq = n;
    return handle;
}

void dq_kv_refuse_range(dq_backend *b, dq_dtype dense, int layer, float beyond)
{
    const bool f16 = dense == DQ_F16;
    dq_fail_with(&b->err, DQ_MISMATCH,
                 (dq_remedy){.code = DQ_REMEDY_KV_RANGE, .word = f16 ? "bf16 or f32" : "f32"},
                 "layer %d has a key or value of %.6g, and %s ends at %.6g", layer, (double)beyond,
                 f16 ? "f16" : "bf16", f16 ? 65504.0 : 0x1.fep127);
}

bool dq_kv_pages_known(dq_backend *b, const dq_kv *kv, int32_t seq)
{
    if (seq >= 0 && seq < kv->n_seq && kv->seq[seq]) return true;
    dq_fail(&b->err, DQ_BUG, "no sequence %d in the KV cache", (int)seq);
    return false;
}

int32_t dq_kv_pages_seq_new(dq_backend *b, dq_kv *kv)
{
    if (b->err.code != DQ_OK) return -1;
    int32_t seq = handle_new(b, kv);
    if (seq < 0) return -1;
    size_t n = (size_t)kv->n_layers * (size_t)kv->map->n_groups;
    kv->seq[seq] = dq_block_new(n, sizeof(dq_kv_list), &b->err);
    if (!kv->seq[seq]) return -1;
    kv->bytes.index += lists_bytes(kv);
    return seq;
}

int32_t dq_kv_pages_fork(dq_backend *b, dq_kv *kv, int32_t seq)
{
    if (b->err.code != DQ_OK || !dq_kv_pages_known(b, kv, seq)) return -1;
    int32_t copy = dq_kv_pages_seq_new(b, kv);
    if (copy < 0) return -1;
    for (int i = 0; i < kv->n_layers * kv->map->n_groups; i++) {
        const dq_kv_list *from = &kv->seq[seq][i];
        dq_kv_list *to = &kv->seq[copy][i];
        const int64_t n_pages = pages_of(from->count);
        if (!list_reserve(b, kv, to, n_pages)) {
            dq_kv_pages_seq_free(b, kv, copy);
            return -1;
        }
        for (int64_t p = 0; p < n_pages; p++) {
            to->page[p] = from->page[p];
            to->page[p]->holders++;
            to->page[p]->agreed += p < from->agreed;
        }
        to->n_pages = n_pages;
        to->agreed = (int32_t)least(from->agreed, n_pages);
        to->since = from->since;
        to->compacted = from->compacted;
        to->count = from->count;
    }
    return copy;
}

/* Works after an error too: memory must go back. */
void dq_kv_pages_seq_free(dq_backend *b, dq_kv *kv, int32_t seq)
{
    if (!dq_kv_pages_known(b, kv, seq)) return;
    for (int i = 0; i < kv->n_layers * kv->map->n_groups; i++) {
        list_free(kv, &kv->seq[seq][i], i % kv->map->n_groups);
    }
    dq_block_free(kv->seq[seq]);
    kv->seq[seq] = NULL;
    if (seq < kv->lowest) kv->lowest = seq;
    kv->bytes.index -= lists_bytes(kv);
}

/* Makes the page at the list's end ready for tokens from slot `at` on. */
static bool open_tail(dq_kv *kv, dq_kv_list *list, int group, int64_t tail, int64_t at)
{
    dq_kv_page *p = list->page[tail];
    dq_kv_page *own = p->holders > 1 ? copy_page(kv, p, group) : p;
    if (!own) return false;
    if (list->agreed > tail) {
        list->agreed = (int32_t)tail;
        p->agreed--;
    }
    list->page[tail] = own;
    changed(kv, list, tail);
    if (own != p) drop_page(kv, p, group);
    if (!add_plain(kv, &own, 1, group, at, true)) return false;
    /* Forgets codes of slots from `at` on, which are written next. The page has its plain parts. */
    if (own->coded > at) {
        const int32_t cut = own->pos[at] / DQ_PAGE_TOKENS; /* sets of it are made again, whole */
        while (kv->by_page && at > 0 && own->pos[at - 1] / DQ_PAGE_TOKENS == cut) at--;
        own->coded = own->due = (int16_t)at;
        if (kv->by_page && at < DQ_PAGE_TOKENS) own->begins &= (1ull << at) - 1;
    }
    /* without a coded token the sinks are like any other */
    if (own->coded <= own->n_sinks) free_codes(kv, own, group);
    return true;
}

/* Rows of one sequence that are about to be appended, and the tokens before which a list will hold
 * codes alone where the device keeps views of them: else none. */
typedef struct growth {
    const int32_t *pos;
    int64_t n;
    bool viewed;
} growth;

/* What later rows read unquantized begins here. */
static int32_t compacted_after(const dq_kv *kv, int32_t last)
{
    return dq_kv_coded_end(&kv->spec, last + dq_kv_ahead(&kv->spec));
}

/* Tokens of the list and the rows at positions below `end`. */
static int64_t tokens_below(const dq_kv_list *list, const growth *g, int32_t end)
{
    int64_t low = 0, high = g->n;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (g->pos[middle] < end)
            low = middle + 1;
        else
            high = middle;
    }
    return dq_kv_visible(list, end - 1) + low;
}

/* New pages that hold codes alone: from *from on, before *to. */
static void coded_pages(int64_t *from, int64_t *to, const dq_kv *kv, const dq_kv_list *list,
                        const growth *g)
{
    *from = *to = 0;
    if (!g->viewed || g->n == 0) return;
    const int32_t end = compacted_after(kv, g->pos[g->n - 1]);
    const int64_t sinks = tokens_below(list, g, kv->spec.sink), coded = tokens_below(list, g, end);
    if (coded <= sinks) return;
    *from = sinks / DQ_PAGE_TOKENS;
    *to = coded == list->count + g->n ? pages_of(coded) : coded / DQ_PAGE_TOKENS;
}

/* Pages for more tokens, none of them shared from the first free slot on. */
static bool reserve(dq_backend *b, dq_kv *kv, dq_kv_list *list, int layer, int group,
                    const growth *g)
{
    int64_t need = pages_of(list->count + g->n), tail = list->count / DQ_PAGE_TOKENS, from, to;
    coded_pages(&from, &to, kv, list, g);
    if (!list_reserve(b, kv, list, need)) return false;
    if (g->n && tail < list->n_pages &&
        !open_tail(kv, list, group, tail, list->count % DQ_PAGE_TOKENS))
        return false;
    while (list->n_pages < need) {
        const int64_t first = list->n_pages, stop = first < from ? from : first < to ? to : need;
        const int64_t n_new = least(least(stop, need) - first, SLAB_PAGES);
        if (!new_pages(kv, list->page + first, n_new, dq_kv_place(kv, layer, group))) return false;
        list->n_pages += n_new;
        changed(kv, list, first);
        if (!add_plain(kv, list->page + first, n_new, group, 0, first < from || first >= to)) {
            list_cut(kv, list, group, first);
            return false;
        }
    }
    return true;
}

static bool ascends(const int32_t *pos, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        if (pos[i] <= pos[i - 1]) return false;
    }
    return true;
}

/* Memory first and on one thread: either all lists grow or none. */
static bool grow_lists(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch, bool viewed)
{
    for (int i = 0; i < batch->n_seq; i++) {
        int64_t first = batch->cu_rows[i], n = batch->cu_rows[i + 1] - first;
        const bool rows_ascend = ascends(batch->pos + first, n);
        const growth rows = {batch->pos + first, n, viewed};
        for (int g = 0; g < kv->map->n_groups; g++) {
            dq_kv_list *list = &kv->seq[batch->seq[i]][layer * kv->map->n_groups + g];
            /* or a query's visible tokens would not be a prefix of the list */
            const bool ascend =
                rows_ascend && (n == 0 || list->count == 0 ||
                                dq_kv_pos(list, list->count - 1) < batch->pos[first]);
            if (!ascend) {
                dq_fail(&b->err, DQ_BUG, "positions of appended tokens do not ascend");
                return false;
            }
            if (n && kv->has_codes && dq_kv_lost(kv, list, batch->pos[first])) {
                dq_fail(&b->err, DQ_BUG,
                        "a row at position %d would read unquantized what is held as codes only",
                        (int)batch->pos[first]);
                return false;
            }
            if (!reserve(b, kv, list, layer, g, &rows)) return false;
        }
    }
    return true;
}

/* For n more tokens, which there are pages for. */
static void put_positions(dq_kv_list *list, const int32_t *pos, int64_t n)
{
    for (int64_t done = 0; done < n;) {
        const int64_t slot = list->count % DQ_PAGE_TOKENS;
        const int64_t some = least(n - done, DQ_PAGE_TOKENS - slot);
        memcpy(list->page[list->count / DQ_PAGE_TOKENS]->pos + slot, pos + done,
               (size_t)some * sizeof *pos);
        list->count += some;
        done += some;
    }
}

void dq_kv_pages_append(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch, dq_mat k,
                        dq_mat v, dq_num reads)
{
    const int groups = kv->map->n_groups;
    const dq_kv_device *d = kv->device;
    if (b->err.code != DQ_OK) return;
    for (int i = 0; i < batch->n_seq; i++) {
        if (!dq_kv_pages_known(b, kv, batch->seq[i])) return;
    }
    dq_kv_new_rows rows = {.layer = layer, .batch = batch, .k = k, .v = v};
    rows.viewed = d->keeps_views && d->keeps_views(b, kv, layer, batch, reads);
    if (!grow_lists(b, kv, layer, batch, rows.viewed)) return;
    for (int task = 0; task < batch->n_seq * groups; task++) {
        const int i = task / groups;
        const int64_t first = batch->cu_rows[i];
        dq_kv_list *list = &kv->seq[batch->seq[i]][layer * groups + task % groups];
        put_positions(list, batch->pos + first, batch->cu_rows[i + 1] - first);
    }
    /* what the next row reads as codes, too: compact then has none to make */
    const coding due = {.batch = batch, .layer = layer, .ahead = dq_kv_ahead(&kv->spec)};
    const bool ok = make_codes(b, kv, &due, &rows);
    for (int task = 0; task < batch->n_seq * groups; task++) {
        const int i = task / groups;
        const int64_t n = batch->cu_rows[i + 1] - batch->cu_rows[i];
        dq_kv_list *list = &kv->seq[batch->seq[i]][layer * groups + task % groups];
        if (ok && n && rows.viewed) {
            const int32_t end = compacted_after(kv, batch->pos[batch->cu_rows[i + 1] - 1]);
            if (end > list->compacted) list->compacted = end;
        } else if (!ok) {
            list->count -= n;
            list_cut(kv, list, task % groups, pages_of(list->count));
        }
    }
}

/* Pages of compacted tokens alone may lose `plain`, once all their holders say so. */
static void agree(dq_kv *kv, dq_kv_list *list, int group)
{
    const int64_t sinks = dq_kv_visible(list, kv->spec.sink - 1);
    int64_t end = dq_kv_visible(list, list->compacted - 1);
    if (end < sinks) end = sinks;
    for (; list->agreed < pages_of(list->count); list->agreed++) {
        const int64_t stop = (list->agreed + 1) * DQ_PAGE_TOKENS;
        if ((stop < list->count ? stop : list->count) > end) return;
        list->page[list->agreed]->agreed++;
        if (release_page(kv, list->page[list->agreed], group)) changed(kv, list, list->agreed);
    }
}

void dq_kv_pages_compact(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch, int window)
{
    if (b->err.code != DQ_OK) return;
    for (int i = 0; i < batch->n_seq; i++) {
        if (!dq_kv_pages_known(b, kv, batch->seq[i])) return;
    }
    const coding next = {.batch = batch, .layer = layer, .ahead = dq_kv_ahead(&kv->spec)};
    const int n_groups = kv->map->n_groups;
    for (int i = 0; window && i < batch->n_seq * n_groups; i++) {
        dq_kv_list *list = dq_kv_list_of(kv, batch->seq[i / n_groups], layer, i % n_groups);
        leave_window(kv, list, i % n_groups, window);
    }
    if (!kv->has_codes || !make_codes(b, kv, &next, NULL)) return;
    for (int i = 0; i < batch->n_seq; i++) {
        const int64_t end = batch->cu_rows[i + 1];
        if (end == batch->cu_rows[i]) continue;
        const int32_t compacted = compacted_after(kv, batch->pos[end - 1]);
        for (int g = 0; g < n_groups; g++) {
            dq_kv_list *list = &kv->seq[batch->seq[i]][layer * n_groups + g];
            if (compacted > list->compacted) list->compacted = compacted;
            agree(kv, list, g);
        }
    }
}

void dq_kv_pages_rewind(dq_backend *b, dq_kv *kv, int32_t seq, int32_t length)
{
    const int n_lists = kv->n_layers * kv->map->n_groups;
    if (b->err.code != DQ_OK || !dq_kv_pages_known(b, kv, seq)) return;
    if (length < 0) length = 0;
    for (int i = 0; i < n_lists; i++) {
        if (length >= kv->seq[seq][i].since) continue;
        dq_fail(&b->err, DQ_BUG,
                "a KV cache cannot go back to %d tokens: some that are seen there have left the "
                "window of a layer",
                (int)length);
        return;
    }
    for (int i = 0; kv->has_codes && i < n_lists; i++) {
        if (!dq_kv_lost(kv, &kv->seq[seq][i], length)) continue;
        dq_fail(&b->err, DQ_BUG,
                "a KV cache cannot go back to %d tokens: some that are read unquantized there are "
                "held as codes only",
                (int)length);
        return;
    }
    const int32_t coded = dq_kv_coded_end(&kv->spec, length);
    for (int i = 0; i < n_lists; i++) {
        dq_kv_list *list = &kv->seq[seq][i];
        list->count = dq_kv_visible(list, length - 1);
        list_cut(kv, list, i % kv->map->n_groups, pages_of(list->count));
        if (list->compacted > coded) list->compacted = coded;
    }
}

static bool kept_is_valid(const int32_t *kept, int64_t n, int64_t count)
{
    for (int64_t i = 0; i < n; i++) {
        if (kept[i] < 0 || kept[i] >= count || (i > 0 && kept[i] <= kept[i - 1])) return false;
    }
    return true;
}

static bool same_set(const dq_kv_list *list, int64_t a, int64_t b)
{
    const dq_kv_page *p = list->page[a / DQ_PAGE_TOKENS];
    return p == list->page[b / DQ_PAGE_TOKENS] &&
           dq_kv_sets(p, a % DQ_PAGE_TOKENS + 1) == dq_kv_sets(p, b % DQ_PAGE_TOKENS + 1);
}

/* A page with tokens kept[0..n-1] of the list and the parts that they still need. */
static dq_kv_page *dense_page(dq_kv *kv, const dq_kv_list *list, int group, const int32_t *kept,
                              int64_t n)
{
    const int32_t end =
        dq_kv_coded_end(&kv->spec, dq_kv_pos(list, list->count - 1) + dq_kv_ahead(&kv->spec));
    const int32_t due = end > list->compacted ? end : list->compacted;
    int32_t sinks = 0, coded = 0;
    uint64_t begins = 0;
    bool plain = false, wide[2] = {false, false};
    for (int64_t i = 0; i < n; i++) {
        const dq_kv_page *from = list->page[kept[i] / DQ_PAGE_TOKENS];
        const int32_t pos = from->pos[kept[i] % DQ_PAGE_TOKENS];
        if (pos < kv->spec.sink) {
            sinks++;
            continue;
        }
        if (pos < due && kept[i] % DQ_PAGE_TOKENS < from->coded) {
            if (!coded || !same_set(list, kept[i - 1], kept[i])) begins |= 1ull << i;
            coded++;
        }
        plain = plain || pos >= list->compacted;
        for (int side = DQ_K; side <= DQ_V; side++)
            wide[side] = wide[side] || from->arrays[side].wide;
    }
    dq_kv_page *p = new_page(kv, list->page[0]->place);
    if (!p) return NULL;
    if (kv->by_page) p->begins = begins;
    bool ok =
        add_plain(kv, &p, 1, group, 0, true) && (!coded || add_codes(kv, &p, 1, group, sinks));
    for (int side = DQ_K; ok && coded && side <= DQ_V; side++)
        ok = !wide[side] || widen_page(kv, p, group, side);
    if (ok && coded) p->coded = p->due = (int16_t)(sinks + coded);
    if (ok && coded && !plain) {
        p->agreed = 1;
        release_page(kv, p, group);
    }
    if (ok) return p;
    drop_page(kv, p, group);
    return NULL;
}

void dq_kv_pages_keep(dq_backend *b, dq_kv *kv, int32_t seq, int layer, int group,
                      const int32_t *kept, int64_t n)
{
    if (b->err.code != DQ_OK || !dq_kv_pages_known(b, kv, seq)) return;
    dq_kv_list *list = &kv->seq[seq][layer * kv->map->n_groups + group];
    if (!kept_is_valid(kept, n, list->count)) {
        dq_fail(&b->err, DQ_BUG, "kept tokens are not ascending indices below %lld",
                (long long)list->count);
        return;
    }
    int64_t whole = 0; /* pages that stay as they are, perhaps shared */
    while ((whole + 1) * DQ_PAGE_TOKENS <= n &&
           kept[whole * DQ_PAGE_TOKENS + DQ_PAGE_TOKENS - 1] ==
               (int32_t)(whole * DQ_PAGE_TOKENS + DQ_PAGE_TOKENS - 1)) {
        whole++;
    }
    dq_kv_list dense = {0};
    if (!code_due(b, kv, list, group)) return;
    if (!list_reserve(b, kv, &dense, pages_of(n))) return;
    bool ok = true;
    for (int64_t p = whole; ok && p < pages_of(n); p++) {
        const int32_t *from = kept + p * DQ_PAGE_TOKENS;
        const int64_t some = least(n - p * DQ_PAGE_TOKENS, DQ_PAGE_TOKENS);
        dq_kv_page *page = dense_page(kv, list, group, from, some);
        ok = page != NULL;
        if (!ok) break;
        dense.page[dense.n_pages++] = page;
        for (int64_t i = 0; i < some; i++) page->pos[i] = dq_kv_pos(list, from[i]);
        ok = kv->device->move(b, kv, page, group, list, from, some);
    }
    if (ok) {
        /* Pages of `dense` take the place of the list's from `whole` on. */
        list_cut(kv, list, group, whole);
        for (int64_t k = 0; k < dense.n_pages; k++) {
            dq_kv_page *page = dense.page[k];
            list->page[list->n_pages++] = page;
            if (page->agreed && list->agreed == whole + k) {
                list->agreed++;
            } else {
                page->agreed = 0;
            }
        }
        dense.n_pages = 0;
        list->count = n;
        if (whole < list->n_pages) changed(kv, list, whole);
    }
    list_free(kv, &dense, group);
}

int64_t dq_kv_pages_count(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                          int32_t *pos)
{
    if (!dq_kv_pages_known(b, kv, seq)) return 0;
    const dq_kv_list *list = dq_kv_list_of(kv, seq, layer, group);
    for (int64_t i = 0; pos && i < list->count; i++) pos[i] = dq_kv_pos(list, i);
    return list->count;
}

dq_kv_bytes dq_kv_pages_bytes(dq_backend *b, const dq_kv *kv)
{
    dq_kv_bytes bytes = kv->bytes;
    (void)b;
    for (int32_t s = 0; s < kv->n_seq; s++) {
        for (int i = 0; kv->seq[s] && i < kv->n_layers * kv->map->n_groups; i++) {
            const dq_kv_list *list = &kv->seq[s][i];
            const int64_t coded =
                dq_kv_visible(list, list->compacted - 1) - dq_kv_visible(list, kv->spec.sink - 1);
            bytes.tokens += list->count;
            if (coded > 0) bytes.tokens_coded += coded;
        }
    }
    return bytes;
}
