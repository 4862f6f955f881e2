/* page_codes: which tokens of the KV cache become codes, and when; see kv_pages.h.
 * A query at t reads the tokens below a position that the spec derives from t as codes. append makes those
 * that its last row reads, compact those that the next row will read. Jobs are collected by two walks over the same
 * lists, one that counts and one that fills: `due` is how far a page will be coded, which keeps a page of several
 * lists from being coded twice; `coded` follows when the device has done all jobs, or else `due` falls back to it.
 * A scale or low that stays f32 (kv.h) widens that side of the page, and its codes are made again. Per-channel codes belong to a set, which
 * is coded whole or not at all: all its tokens are there when it is due, a token that is written where one of a set stood
 * takes the set's codes away, and what is evicted is evicted after all that is due has codes.
 * SPDX-License-Identifier: MIT */
#include "kernels/paged/kv_pages.h"

/* Pages with tokens that a query at t reads as codes and that have none: made ready and added to jobs.
 * Those without codes are the last of the list's due pages. jobs NULL: counts them, or a few more. */
static bool plan_codes(dq_kv *kv, const dq_kv_list *list, int group, int32_t t, dq_kv_job *jobs,
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
        const bool coded = page->part[DQ_K].codes || page->part[DQ_V].codes;
        if (!coded && !dq_kv_page_add_codes(kv, page, group, from)) {
            --*n;
            return false;
        }
        if (page->due == page->coded) jobs[*n - 1] = (dq_kv_job){page, group, -1};
        page->due = to;
    }
    return true;
}

/* The same for every list of a batch, as its last row (ahead 0) or the row after it (1) reads them. */
static bool plan_batch(dq_kv *kv, int layer, const dq_batch *batch, int ahead, dq_kv_job *jobs,
                       int64_t *n)
{
    *n = 0;
    for (int i = 0; i < batch->n_seq; i++) {
        const int64_t end = batch->cu_rows[i + 1];
        for (int g = 0; end > batch->cu_rows[i] && g < kv->map->n_groups; g++) {
            const dq_kv_list *list = dq_kv_list_of(kv, batch->seq[i], layer, g);
            if (!plan_codes(kv, list, g, batch->pos[end - 1] + ahead, jobs, n)) return false;
        }
    }
    return true;
}

/* Sides with a scale or low that stays f32, again. */
static bool encode_wide(dq_backend *b, dq_kv *kv, const dq_kv_job *job)
{
    for (int side = DQ_K; side <= DQ_V; side++) {
        if (!job->page->part[side].overflow) continue;
        const dq_kv_job again = {job->page, job->group, side};
        if (!dq_kv_page_widen(kv, job->page, job->group, side)) return false;
        if (!kv->device->encode(b, kv, &again, 1)) return false;
    }
    return true;
}

/* `planned`: whether all jobs could be made ready. */
static bool do_jobs(dq_backend *b, dq_kv *kv, const dq_kv_job *jobs, int64_t n, bool planned)
{
    bool ok = planned;
    for (int64_t i = 0; ok && kv->by_page && i < n; i++)
        ok = dq_kv_page_add_sets(kv, jobs[i].page, jobs[i].group);
    ok = ok && kv->device->encode(b, kv, jobs, n);
    for (int64_t i = 0; ok && i < n; i++) ok = encode_wide(b, kv, &jobs[i]);
    for (int64_t i = 0; i < n; i++) {
        if (ok) jobs[i].page->coded = jobs[i].page->due;
        jobs[i].page->due = jobs[i].page->coded;
    }
    return ok;
}

bool dq_kv_make_codes(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch, int ahead)
{
    int64_t n;
    plan_batch(kv, layer, batch, ahead, NULL, &n);
    if (n == 0) return true;
    dq_kv_job *jobs = dq_block_new((size_t)n, sizeof *jobs, &b->err);
    if (!jobs) return false;
    const bool planned = plan_batch(kv, layer, batch, ahead, jobs, &n);
    const bool ok = do_jobs(b, kv, jobs, n, planned);
    dq_block_free(jobs);
    return ok;
}

bool dq_kv_code_due(dq_backend *b, dq_kv *kv, const dq_kv_list *list, int group)
{
    int64_t n = 0;
    if (!kv->by_page || list->count == 0) return true;
    const int32_t t = dq_kv_pos(list, list->count - 1) + dq_kv_ahead(&kv->spec);
    plan_codes(kv, list, group, t, NULL, &n);
    if (n == 0) return true;
    dq_kv_job *jobs = dq_block_new((size_t)n, sizeof *jobs, &b->err);
    if (!jobs) return false;
    n = 0;
    const bool planned = plan_codes(kv, list, group, t, jobs, &n);
    const bool ok = do_jobs(b, kv, jobs, n, planned);
    dq_block_free(jobs);
    return ok;
}
