/* container_check: the contents of a container against its hashes. See container.h.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "checkpoint/container_impl.h"

#include <stdlib.h>

static dq_status damaged(const dq_container *c, const char *path, const char *what, dq_err *err)
{
    return dq_fail(err, DQ_DAMAGED, "%s: %s: %s", c->path, path, what);
}

/* Gives back what reading a payload has made resident. Its neighbours' pages may be wanted by other threads: no more. */
static void release(const dq_container *c, const dq_payload *p)
{
    const size_t at = (size_t)(p->data - c->map.data), end = at + (size_t)p->bytes;
    const size_t from = at < DQ_OS_MAP_AROUND ? 0 : at - DQ_OS_MAP_AROUND;
    const size_t to = c->map.bytes - end < DQ_OS_MAP_AROUND ? c->map.bytes : end + DQ_OS_MAP_AROUND;
    dq_os_map_release(c->map.data + from, to - from);
}

dq_status dq_container_payload_check(const dq_container *c, int64_t i, dq_err *err)
{
    const dq_payload *p = &c->payload[i];
    char hex[65];
    DQ_TRY(dq_sha256_mapped(hex, p->data, (size_t)p->bytes, err));
    if (strcmp(hex, p->sha256) != 0)
        return dq_fail(err, DQ_DAMAGED,
                       "%s: %s: damaged (expected SHA-256 %.16s..., found %.16s...). Fetch or "
                       "write the file again.",
                       c->path, p->path, p->sha256, hex);
    const char *wrong = p->row ? p->row->wrong(&p->part, p->mode) : NULL;
    if (wrong) damaged(c, p->path, wrong, err);
    release(c, p);
    return err->code;
}

/* Of the lines "path sha256\n" of payloads below a folder; "": all. */
static dq_status hash_rows(char hex[65], const dq_container *c, const char *folder, dq_err *err)
{
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    for (int64_t i = 0; i < c->n_payloads; i++) {
        const dq_payload *p = &c->payload[i];
        if (strncmp(p->path, folder, strlen(folder)) != 0) continue;
        dq_sha256_add(&h, p->path, strlen(p->path));
        dq_sha256_add(&h, " ", 1);
        dq_sha256_add(&h, p->sha256, 64);
        dq_sha256_add(&h, "\n", 1);
    }
    return dq_sha256_end(&h, hex, err);
}

dq_status dq_container_weights_sha256(char hex[65], const dq_container *c, dq_err *err)
{
    return hash_rows(hex, c, "/tensors/", err);
}

dq_status dq_container_check_index(const dq_container *c, dq_err *err)
{
    char hex[65];
    DQ_TRY(dq_sha256_of(hex, c->index, (size_t)c->index_bytes, err));
    if (strcmp(hex, c->index_sha256) != 0)
        return damaged(c, "/index", "damaged: its SHA-256 is not that of /index_sha256", err);
    DQ_TRY(hash_rows(hex, c, "", err));
    if (strcmp(hex, c->info.content_sha256) != 0)
        return damaged(c, "/content_sha256", "is not the hash of the rows of /index", err);
    return DQ_OK;
}

/* ---- What is read is checked once ---- */

dq_status dq_container_payload_check_once(dq_container *c, int64_t i, dq_err *err)
{
    dq_err one = {0};
    if (c->payload[i].sound) return DQ_OK;
    c->payload[i].sound = dq_container_payload_check(c, i, &one) == DQ_OK;
    if (one.code == DQ_DAMAGED)
        return dq_fail_with(err, DQ_DAMAGED, (dq_remedy){.code = DQ_REMEDY_VERIFY}, "%s", one.text);
    return one.code == DQ_OK ? DQ_OK : dq_fail_as(err, &one);
}

dq_status dq_container_check_header(dq_container *c, dq_err *err)
{
    DQ_TRY(dq_container_check_index(c, err));
    for (int64_t i = 0; i < c->n_payloads; i++) {
        const dq_payload *p = &c->payload[i];
        if (!dq_container_payload_in(p, DQ_PATH_TENSORS) &&
            !dq_container_payload_in(p, DQ_PATH_FILES))
            DQ_TRY(dq_container_payload_check_once(c, i, err));
    }
    if (c->objects_sound) return DQ_OK;
    dq_err one = {0};
    c->objects_sound = dq_container_check_objects(c, &one) == DQ_OK;
    if (one.code == DQ_DAMAGED)
        return dq_fail_with(err, DQ_DAMAGED, (dq_remedy){.code = DQ_REMEDY_VERIFY}, "%s", one.text);
    return one.code == DQ_OK ? DQ_OK : dq_fail_as(err, &one);
}

/* One dataset after the other of those that no thread has begun. */
typedef struct to_check {
    const dq_payload *payload;
    dq_err err;
} to_check;

static int largest_first(const void *a, const void *b)
{
    int64_t x = ((const to_check *)a)->payload->bytes, y = ((const to_check *)b)->payload->bytes;
    return x < y ? 1 : x > y ? -1 : 0;
}

dq_status dq_container_check_weights(dq_container *c, dq_err *err)
{
    enum { SMALL_BYTES = 4 << 20 }; /* waking threads costs more than this much work */
    int64_t n = 0, bytes = 0;
    if (c->sound) return DQ_OK;
    to_check *list = dq_block_new((size_t)c->n_payloads, sizeof *list, err);
    if (!list) return err->code;
    for (int64_t i = 0; i < c->n_payloads; i++) {
        if (!dq_container_payload_in(&c->payload[i], DQ_PATH_TENSORS)) continue;
        list[n++].payload = &c->payload[i];
        bytes += c->payload[i].bytes;
    }
    qsort(list, (size_t)n, sizeof *list, largest_first);
#pragma omp parallel for schedule(dynamic, 1) if (bytes > SMALL_BYTES)
    for (int64_t k = 0; k < n; k++) {
        if (dq_os_check_stop(&list[k].err) == DQ_OK)
            dq_container_payload_check_once(c, list[k].payload - c->payload, &list[k].err);
    }
    const to_check *bad = NULL; /* in path order, whichever thread was first */
    for (int64_t k = 0; k < n; k++) {
        if (list[k].err.code != DQ_OK && (!bad || list[k].payload < bad->payload)) bad = &list[k];
    }
    c->sound = !bad;
    if (bad) dq_fail_as(err, &bad->err);
    dq_block_free(list);
    return err->code;
}
