/* page_memory: The memory of one page of the KV cache; see kv_pages.h. Every part is a block of the backend, taken
 * and given back through one account per kind of bytes, so that kv->bytes is right after each change, failed ones
 * included.
 * SPDX-License-Identifier: MIT */
#include "kernels/paged/kv_pages.h"

#include <string.h>

static void *part_new(const dq_kv *kv, int64_t *account, int64_t bytes)
{
    void *p = kv->device->block_new(kv->b, bytes);
    if (p) *account += bytes;
    return p;
}

static void part_free(const dq_kv *kv, void *p, int64_t *account, int64_t bytes)
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

static int64_t part_scale_bytes(const dq_kv *kv, int group, int side, const dq_kv_part *part)
{
    return scale_bytes(kv, group, side, part->n_sets, part->wide);
}

static int64_t sink_bytes(const dq_kv *kv, int group, int32_t n_sinks)
{
    return (int64_t)kv->heads[group] * n_sinks * kv->map->head_dim * kv->dense_bytes;
}

dq_kv_page *dq_kv_page_new(dq_kv *kv, int place)
{
    dq_kv_page *p = dq_block_new(1, sizeof *p, &kv->b->err);
    if (!p) return NULL;
    kv->bytes.index += (int64_t)sizeof *p;
    p->holders = 1;
    p->place = (uint16_t)place;
    return p;
}

bool dq_kv_page_add_plain(dq_kv *kv, dq_kv_page *p, int group, int64_t at)
{
    for (int side = DQ_K; side <= DQ_V; side++) {
        if (p->part[side].plain) continue;
        p->part[side].plain = part_new(kv, &kv->bytes.unquantized, plain_bytes(kv, group, side));
        if (!p->part[side].plain) return false;
        if (p->part[side].sinks)
            kv->device->sinks(kv->b, kv, p, group, side, p->n_sinks < at ? p->n_sinks : at, true);
    }
    return true;
}

static void free_codes(dq_kv *kv, dq_kv_page *p, int group)
{
    for (int side = DQ_K; side <= DQ_V; side++) {
        dq_kv_part *part = &p->part[side];
        part_free(kv, part->codes, &kv->bytes.codes, dq_kv_code_bytes(kv, p, group, side));
        part_free(kv, part->scale, &kv->bytes.scales, part_scale_bytes(kv, group, side, part));
        part_free(kv, part->sinks, &kv->bytes.unquantized, sink_bytes(kv, group, p->n_sinks));
        part->codes = NULL;
        part->scale = NULL;
        part->sinks = NULL;
        part->wide = false;
        part->n_sets = 0;
    }
    p->n_sinks = p->coded = p->due = 0;
    p->begins = 0;
}

bool dq_kv_page_add_codes(dq_kv *kv, dq_kv_page *p, int group, int32_t n_sinks)
{
    p->n_sinks = p->coded = p->due = (int16_t)n_sinks;
    for (int side = DQ_K; side <= DQ_V; side++) {
        dq_kv_part *part = &p->part[side];
        if (kv->form[side].bits == 16) continue;
        part->n_sets = (uint8_t)dq_kv_sets(p, DQ_PAGE_TOKENS);
        const int64_t scales = part_scale_bytes(kv, group, side, part);
        part->codes = part_new(kv, &kv->bytes.codes, dq_kv_code_bytes(kv, p, group, side));
        if (scales) part->scale = part_new(kv, &kv->bytes.scales, scales);
        if (n_sinks)
            part->sinks = part_new(kv, &kv->bytes.unquantized, sink_bytes(kv, group, n_sinks));
        if (!part->codes || (scales && !part->scale) || (n_sinks && !part->sinks)) {
            free_codes(kv, p, group);
            return false;
        }
        if (part->plain) kv->device->sinks(kv->b, kv, p, group, side, n_sinks, false);
    }
    return true;
}

/* Room for n sets; those that are there stay. */
static bool grow_sets(dq_kv *kv, dq_kv_part *part, int group, int side, int n)
{
    const int64_t now = part_scale_bytes(kv, group, side, part);
    void *more = part_new(kv, &kv->bytes.scales, scale_bytes(kv, group, side, n, part->wide));
    if (!more) return false;
    if (part->scale) kv->device->block_copy(kv->b, more, part->scale, now);
    part_free(kv, part->scale, &kv->bytes.scales, part->scale ? now : 0);
    part->scale = more;
    part->n_sets = (uint8_t)n;
    return true;
}

bool dq_kv_page_add_sets(dq_kv *kv, dq_kv_page *p, int group)
{
    p->begins &= (1ull << p->coded) - 1; /* coded < due */
    for (int i = p->coded; i < p->due; i++) {
        if (i == p->coded || p->pos[i] / DQ_PAGE_TOKENS != p->pos[i - 1] / DQ_PAGE_TOKENS)
            p->begins |= 1ull << i;
    }
    const int n = dq_kv_sets(p, DQ_PAGE_TOKENS);
    for (int side = DQ_K; side <= DQ_V; side++) {
        dq_kv_part *part = &p->part[side];
        if (part->codes && part->n_sets < n && !grow_sets(kv, part, group, side, n)) return false;
    }
    return true;
}

bool dq_kv_page_widen(dq_kv *kv, dq_kv_page *p, int group, int side)
{
    dq_kv_part *part = &p->part[side];
    const int64_t n = part_scale_bytes(kv, group, side, part) / 2;
    float *wide = part_new(kv, &kv->bytes.scales, 4 * n);
    if (!wide) return false;
    kv->device->widen(kv->b, wide, part->scale, n);
    part_free(kv, part->scale, &kv->bytes.scales, 2 * n);
    part->scale = wide;
    part->wide = true;
    return true;
}

/* *to, with its accounts, becomes a copy of `from`, which may be absent. */
static bool copy_block(const dq_kv *kv, int64_t *account, void **to, const void *from,
                       int64_t bytes)
{
    if (!from) return true;
    *to = part_new(kv, account, bytes);
    if (*to) kv->device->block_copy(kv->b, *to, from, bytes);
    return *to != NULL;
}

dq_kv_page *dq_kv_page_copy(dq_kv *kv, const dq_kv_page *p, int group)
{
    dq_kv_page *own = dq_kv_page_new(kv, p->place);
    if (!own) return NULL;
    memcpy(own->pos, p->pos, sizeof own->pos);
    own->n_sinks = p->n_sinks;
    own->coded = own->due = p->coded;
    own->begins = p->begins;
    bool ok = true;
    for (int side = DQ_K; ok && side <= DQ_V; side++) {
        const dq_kv_part *from = &p->part[side];
        dq_kv_part *to = &own->part[side];
        void *block[4] = {NULL, NULL, NULL, NULL};
        to->wide = from->wide;
        to->n_sets = from->n_sets;
        ok = copy_block(kv, &kv->bytes.unquantized, &block[0], from->plain,
                        plain_bytes(kv, group, side)) &&
             copy_block(kv, &kv->bytes.codes, &block[1], from->codes,
                        dq_kv_code_bytes(kv, p, group, side)) &&
             copy_block(kv, &kv->bytes.scales, &block[2], from->scale,
                        part_scale_bytes(kv, group, side, from)) &&
             copy_block(kv, &kv->bytes.unquantized, &block[3], from->sinks,
                        sink_bytes(kv, group, p->n_sinks));
        to->plain = block[0];
        to->codes = block[1];
        to->scale = block[2];
        to->sinks = block[3];
    }
    if (ok) return own;
    dq_kv_page_drop(kv, own, group);
    return NULL;
}

void dq_kv_page_cut(dq_kv *kv, dq_kv_page *p, int group, int64_t at)
{
    if (p->coded > at) {
        const int32_t cut = p->pos[at] / DQ_PAGE_TOKENS; /* sets of it are made again, whole */
        while (kv->by_page && at > 0 && p->pos[at - 1] / DQ_PAGE_TOKENS == cut) at--;
        p->coded = p->due = (int16_t)at;
        if (kv->by_page && at < DQ_PAGE_TOKENS) p->begins &= (1ull << at) - 1;
    }
    /* without a coded token the sinks are like any other */
    if (p->coded <= p->n_sinks) free_codes(kv, p, group);
}

static void free_plain(dq_kv *kv, dq_kv_page *p, int group, int side)
{
    part_free(kv, p->part[side].plain, &kv->bytes.unquantized, plain_bytes(kv, group, side));
    p->part[side].plain = NULL;
}

void dq_kv_page_release(dq_kv *kv, dq_kv_page *p, int group)
{
    if (p->agreed < p->holders) return;
    for (int side = DQ_K; side <= DQ_V; side++) {
        if (p->part[side].codes) free_plain(kv, p, group, side);
    }
}

void dq_kv_page_drop(dq_kv *kv, dq_kv_page *p, int group)
{
    if (--p->holders > 0) {
        dq_kv_page_release(kv, p, group);
        return;
    }
    free_codes(kv, p, group);
    for (int side = DQ_K; side <= DQ_V; side++) free_plain(kv, p, group, side);
    kv->bytes.index -= (int64_t)sizeof *p;
    dq_block_free(p);
}
