/* info_lists: see info_lists.h. Files sort names byte by byte; here numbers count as numbers.
 * SPDX-License-Identifier: MIT */
#include "cmds/info_lists.h"

#include "base/text.h"
#include "cmds/cli/table.h"

#include <math.h>
#include <stdio.h>

/* Indices of what `name` gives, layer 2 before layer 10; *a is the caller's to end. */
static const int64_t *order_of(dq_arena **a, int64_t n,
                               const char *(*name)(const void *arg, int64_t i), const void *arg,
                               dq_err *err)
{
    int64_t *order = NULL;
    *a = dq_arena_new();
    if (!*a) dq_fail(err, DQ_RESOURCE, "out of memory");
    if (*a) dq_name_order_make(&order, n, name, arg, *a, err);
    return err->code == DQ_OK ? order : NULL;
}

static const char *payload_name(const void *container, int64_t i)
{
    return dq_container_payload(container, i)->path;
}

static const char *tensor_name(const void *checkpoint, int64_t i)
{
    return dq_checkpoint_at(checkpoint, i)->name;
}

dq_status dq_info_lists_payloads(const dq_container *c, dq_err *err)
{
    static const char *const titles[] = {"dataset", "encoding", "bits", "group",  "rows",
                                         "cols",    "bytes",    "bpw",  "SQNR dB"};
    dq_table *t;
    dq_arena *a;
    const int64_t n = dq_container_n_payloads(c);
    const int64_t *order = order_of(&a, n, payload_name, c, err);
    if (!order || dq_table_new(&t, titles, 9, err) != DQ_OK) {
        dq_arena_free(a);
        return err->code;
    }
    for (int64_t i = 0; i < n; i++) {
        const dq_payload *p = dq_container_payload(c, order[i]);
        dq_table_cell(t, "%s", p->path);
        dq_table_cell(t, "%s", p->encoding);
        dq_table_cell(t, "%d", p->bits);
        if (p->group_size)
            dq_table_cell(t, "%lld", (long long)p->group_size);
        else
            dq_table_cell(t, "-");
        dq_table_cell(t, "%lld", (long long)p->rows);
        dq_table_cell(t, "%lld", (long long)p->cols);
        dq_table_cell(t, "%lld", (long long)p->bytes);
        if (p->bits_per_weight > 0)
            dq_table_cell(t, "%.3f", p->bits_per_weight);
        else
            dq_table_cell(t, "-");
        if (isfinite(p->sqnr_db) && p->row && p->row->is_codes)
            dq_table_cell(t, "%.2f", p->sqnr_db);
        else
            dq_table_cell(t, "-");
    }
    putchar('\n');
    dq_table_print(t, err);
    dq_table_free(t);
    dq_arena_free(a);
    return err->code;
}

static void shape_text(char *out, size_t cap, const dq_tensor *t)
{
    size_t n = 0;
    out[0] = 0;
    for (int d = 0; d < t->n_dims && n < cap; d++)
        n += (size_t)snprintf(out + n, cap - n, "%s%lld", d ? "x" : "", (long long)t->shape[d]);
    if (t->n_dims == 0) snprintf(out, cap, "scalar");
}

dq_status dq_info_lists_tensors(const dq_checkpoint *k, dq_err *err)
{
    static const char *const titles[] = {"tensor", "type", "shape", "bytes"};
    dq_table *t;
    char shape[200];
    dq_arena *a;
    const int64_t *order = order_of(&a, dq_checkpoint_count(k), tensor_name, k, err);
    if (!order || dq_table_new(&t, titles, 4, err) != DQ_OK) {
        dq_arena_free(a);
        return err->code;
    }
    for (int64_t i = 0; i < dq_checkpoint_count(k); i++) {
        const dq_tensor *x = dq_checkpoint_at(k, order[i]);
        shape_text(shape, sizeof shape, x);
        dq_table_cell(t, "%s", x->name);
        dq_table_cell(t, "%s", dq_checkpoint_type(k, i));
        dq_table_cell(t, "%s", shape);
        dq_table_cell(t, "%zu", dq_checkpoint_stored_bytes(k, i));
    }
    putchar('\n');
    dq_table_print(t, err);
    dq_table_free(t);
    dq_arena_free(a);
    return err->code;
}
