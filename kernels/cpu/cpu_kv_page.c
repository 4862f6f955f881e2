/* cpu_kv_page: memory of the KV cache's pages.
 * SPDX-License-Identifier: MIT */
#include "cpu_kv.h"

#include <string.h>

static void *part_new(dq_backend *b, int64_t *account, int64_t bytes)
{
    void *p = dq_block_new(1, (size_t)bytes, &b->err);
    if (p) *account += bytes;
    return p;
}

static void part_free(void *p, int64_t *account, int64_t bytes)
{
    if (p) *account -= bytes;
    dq_block_free(p);
}

static int64_t plain_bytes(const dq_kv *kv, int group, int side)
{
    return kv->heads[group] * kv->form[side].plain_floats * (int64_t)sizeof(float);
}

static int64_t code_bytes(const dq_kv *kv, int group, int side)
{
    return kv->heads[group] * kv->form[side].code_bytes;
}

static int64_t scale_bytes(const dq_kv *kv, int group, int side, bool wide)
{
    return kv->heads[group] * kv->form[side].n_scales * DQ_PAGE * (wide ? 4 : 2);
}

static int64_t sink_bytes(const dq_kv *kv, int group, int32_t n_sinks)
{
    return (int64_t)kv->heads[group] * n_sinks * kv->map->head_dim * (int64_t)sizeof(float);
}

dq_kv_page *dq_kv_page_new(dq_backend *b, dq_kv *kv)
{
    dq_kv_page *p = part_new(b, &kv->bytes.index, (int64_t)sizeof *p);
    if (p) p->holders = 1;
    return p;
}

/* Slots of the sink part, back into the unquantized part or from it. */
static void move_sinks(const dq_kv *kv, dq_kv_page *p, int group, int side, int64_t n, bool back)
{
    const int64_t d = kv->map->head_dim;
    const int64_t channel = side == DQ_K ? DQ_PAGE : 1, token = side == DQ_K ? 1 : kv->v_cols;
    for (int h = 0; h < kv->heads[group]; h++) {
        float *plain = dq_kv_plain_of(kv, p, side, h), *sinks = dq_kv_sinks_of(kv, p, side, h);
        for (int64_t i = 0; i < n * d; i++) {
            float *at = plain + i / d * token + i % d * channel;
            if (back) *at = sinks[i];
            if (!back) sinks[i] = *at;
        }
    }
}

bool dq_kv_page_add_plain(dq_backend *b, dq_kv *kv, dq_kv_page *p, int group, int64_t at)
{
    for (int side = DQ_K; side <= DQ_V; side++) {
        if (p->part[side].plain) continue;
        p->part[side].plain = part_new(b, &kv->bytes.unquantized, plain_bytes(kv, group, side));
        if (!p->part[side].plain) return false;
        if (p->part[side].sinks)
            move_sinks(kv, p, group, side, p->n_sinks < at ? p->n_sinks : at, true);
    }
    return true;
}

static void free_codes(dq_kv *kv, dq_kv_page *p, int group)
{
    for (int side = DQ_K; side <= DQ_V; side++) {
        dq_kv_part *part = &p->part[side];
        part_free(part->codes, &kv->bytes.codes, code_bytes(kv, group, side));
        part_free(part->scale, &kv->bytes.scales, scale_bytes(kv, group, side, part->wide));
        part_free(part->sinks, &kv->bytes.unquantized, sink_bytes(kv, group, p->n_sinks));
        part->codes = NULL;
        part->scale = NULL;
        part->sinks = NULL;
        part->wide = false;
    }
    p->n_sinks = p->coded = p->due = 0;
}

bool dq_kv_page_add_codes(dq_backend *b, dq_kv *kv, dq_kv_page *p, int group, int32_t n_sinks)
{
    p->n_sinks = p->coded = p->due = n_sinks;
    for (int side = DQ_K; side <= DQ_V; side++) {
        dq_kv_part *part = &p->part[side];
        if (kv->form[side].bits == 16) continue;
        part->codes = part_new(b, &kv->bytes.codes, code_bytes(kv, group, side));
        part->scale = part_new(b, &kv->bytes.scales, scale_bytes(kv, group, side, part->wide));
        if (n_sinks)
            part->sinks = part_new(b, &kv->bytes.unquantized, sink_bytes(kv, group, n_sinks));
        if (!part->codes || !part->scale || (n_sinks && !part->sinks)) {
            free_codes(kv, p, group);
            return false;
        }
        if (part->plain) move_sinks(kv, p, group, side, n_sinks, false);
    }
    return true;
}

bool dq_kv_page_widen(dq_backend *b, dq_kv *kv, dq_kv_page *p, int group, int side)
{
    dq_kv_part *part = &p->part[side];
    const int64_t n = scale_bytes(kv, group, side, false) / 2;
    float *wide = part_new(b, &kv->bytes.scales, 4 * n);
    if (!wide) return false;
    dq_to_f32(wide, part->scale, DQ_F16, n);
    part_free(part->scale, &kv->bytes.scales, 2 * n);
    part->scale = wide;
    part->wide = true;
    return true;
}

/* *to, with its accounts, becomes a copy of `from`, which may be absent. */
static bool copy_block(dq_backend *b, int64_t *account, void **to, const void *from, int64_t bytes)
{
    if (!from) return true;
    *to = part_new(b, account, bytes);
    if (*to) memcpy(*to, from, (size_t)bytes);
    return *to != NULL;
}

dq_kv_page *dq_kv_page_copy(dq_backend *b, dq_kv *kv, const dq_kv_page *p, int group)
{
    dq_kv_page *own = dq_kv_page_new(b, kv);
    if (!own) return NULL;
    memcpy(own->pos, p->pos, sizeof own->pos);
    own->n_sinks = p->n_sinks;
    own->coded = own->due = p->coded;
    bool ok = true;
    for (int side = DQ_K; ok && side <= DQ_V; side++) {
        const dq_kv_part *from = &p->part[side];
        dq_kv_part *to = &own->part[side];
        void *block[4] = {NULL, NULL, NULL, NULL};
        to->wide = from->wide;
        ok = copy_block(b, &kv->bytes.unquantized, &block[0], from->plain,
                        plain_bytes(kv, group, side)) &&
             copy_block(b, &kv->bytes.codes, &block[1], from->codes, code_bytes(kv, group, side)) &&
             copy_block(b, &kv->bytes.scales, &block[2], from->scale,
                        scale_bytes(kv, group, side, from->wide)) &&
             copy_block(b, &kv->bytes.unquantized, &block[3], from->sinks,
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
    if (p->coded > at) p->coded = (int32_t)at;
    /* without a coded token the sinks are like any other */
    if (p->coded <= p->n_sinks) free_codes(kv, p, group);
}

static void free_plain(dq_kv *kv, dq_kv_page *p, int group, int side)
{
    part_free(p->part[side].plain, &kv->bytes.unquantized, plain_bytes(kv, group, side));
    p->part[side].plain = NULL;
}

void dq_kv_page_relax(dq_kv *kv, dq_kv_page *p, int group)
{
    if (p->agreed < p->holders) return;
    for (int side = DQ_K; side <= DQ_V; side++) {
        if (p->part[side].codes) free_plain(kv, p, group, side);
    }
}

void dq_kv_page_drop(dq_kv *kv, dq_kv_page *p, int group)
{
    if (--p->holders > 0) {
        dq_kv_page_relax(kv, p, group);
        return;
    }
    free_codes(kv, p, group);
    for (int side = DQ_K; side <= DQ_V; side++) free_plain(kv, p, group, side);
    part_free(p, &kv->bytes.index, (int64_t)sizeof *p);
}
