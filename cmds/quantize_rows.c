/* quantize_rows: see quantize_rows.h. Folding goes over the rows in order and takes the later ones that are alike.
 * SPDX-License-Identifier: MIT */
#include "cmds/quantize_rows.h"

#include "cmds/cli/table.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Cells after the name, without SQNR and loss. */
static void stored_cells(dq_table *t, const dq_quantize_row *r, int64_t bytes)
{
    char size[32];
    dq_table_cell(t, "%lldx%lld", (long long)r->rows, (long long)r->cols);
    if (r->packed)
        dq_table_cell(t, "%s", r->scale_dtype == DQ_F16 ? "packed" : "packed, f32 scales");
    else if (r->dense_dtype != r->dtype)
        dq_table_cell(t, "dense%s, %s to %s", r->skipped ? ", skipped" : "",
                      dq_dtypes[r->dtype].name, dq_dtypes[r->dense_dtype].name);
    else
        dq_table_cell(t, "%s", r->skipped ? "dense, skipped" : "dense");
    dq_table_cell(t, "%d", r->bits);
    if (r->packed)
        dq_table_cell(t, "%lld", (long long)r->group_size);
    else
        dq_table_cell(t, "-");
    dq_table_cell(t, "%.3f", r->bits_per_weight);
    dq_table_cell(t, "%s", dq_document_size_text(size, sizeof size, bytes));
}

/* All tensors together, in a last row. */
static void sum_cells(dq_table *t, const dq_quantizer *q, bool folded)
{
    const dq_quantize_info *i = dq_quantize_result(q);
    char size[32];
    dq_table_rule(t);
    dq_table_cell(t, "the whole model");
    if (folded) dq_table_cell(t, "%lld", (long long)i->n_tensors);
    for (int k = 0; k < 4; k++) dq_table_cell(t, "-"); /* shape, stored as, bits, group */
    dq_table_cell(t, "%.3f", i->bits_per_weight);
    dq_table_cell(t, "%s", dq_document_size_text(size, sizeof size, i->weight_bytes));
}

static dq_status finish(dq_table *t, dq_err *err)
{
    dq_table_print(t, err);
    dq_table_free(t);
    putchar('\n');
    return err->code;
}

dq_status dq_quantize_rows_print(const dq_quantizer *q, bool loss, dq_err *err)
{
    static const char *const titles[] = {"tensor", "shape", "stored as", "bits", "group",
                                         "bpw",    "size",  "SQNR dB",   "loss"};
    dq_table *t;
    DQ_TRY(dq_table_new(&t, titles, loss ? 9 : 8, err));
    for (int64_t i = 0; i < dq_quantize_result(q)->n_tensors; i++) {
        const dq_quantize_row r = dq_quantize_row_at(q, i);
        dq_table_cell(t, "%s", r.name);
        stored_cells(t, &r, r.bytes);
        if (r.packed && isfinite(r.sqnr_db) && r.sqnr_db != 0)
            dq_table_cell(t, "%.2f", r.sqnr_db);
        else
            dq_table_cell(t, "-");
        if (loss && isfinite(r.loss)) dq_table_cell(t, "%.3g", r.loss);
        if (loss && !isfinite(r.loss)) dq_table_cell(t, "-");
    }
    sum_cells(t, q, false);
    for (int k = 0; k < 1 + loss; k++) dq_table_cell(t, "-"); /* SQNR, loss */
    return finish(t, err);
}

/* ---- Folded ---- */

/* A name around its first number; digits 0: it has none. */
typedef struct cut_name {
    const char *name;
    size_t before, digits;
    long long number;
} cut_name;

static cut_name cut(const char *name)
{
    cut_name c = {.name = name, .before = strcspn(name, "0123456789")};
    c.digits = strspn(name + c.before, "0123456789");
    c.number = c.digits ? strtoll(name + c.before, NULL, 10) : 0;
    return c;
}

static bool same_but_number(const cut_name *a, const cut_name *b)
{
    return a->digits && b->digits && a->before == b->before &&
           strncmp(a->name, b->name, a->before) == 0 &&
           strcmp(a->name + a->before + a->digits, b->name + b->before + b->digits) == 0;
}

static bool stored_alike(const dq_quantize_row *a, const dq_quantize_row *b)
{
    return a->packed == b->packed && a->skipped == b->skipped && a->dtype == b->dtype &&
           a->dense_dtype == b->dense_dtype && a->scale_dtype == b->scale_dtype &&
           a->bits == b->bits && a->rows == b->rows && a->cols == b->cols &&
           a->group_size == b->group_size && a->bytes == b->bytes;
}

/* The rows that one line stands for. */
typedef struct fold {
    cut_name name;
    int64_t n;
    long long last;    /* number */
    char numbers[512]; /* "0,3-5", of all but a run that ends with `last` */
    size_t used;
    long long run; /* number that this run began with */
} fold;

static void end_run(fold *f)
{
    if (f->used < sizeof f->numbers)
        f->used += (size_t)snprintf(f->numbers + f->used, sizeof f->numbers - f->used,
                                    f->run == f->last ? "%s%lld" : "%s%lld-%lld",
                                    f->used ? "," : "", f->run, f->last);
}

static void take(fold *f, long long number)
{
    if (f->n > 0 && number != f->last + 1) {
        end_run(f);
        f->run = number;
    }
    f->last = number;
    f->n++;
}

static void add_fold(dq_table *t, const dq_quantizer *q, bool *taken, int64_t from)
{
    const dq_quantize_row first = dq_quantize_row_at(q, from);
    fold f = {.name = cut(first.name)};
    f.run = f.name.number;
    take(&f, f.name.number);
    for (int64_t i = from + 1; i < dq_quantize_result(q)->n_tensors; i++) {
        if (taken[i]) continue;
        const dq_quantize_row r = dq_quantize_row_at(q, i);
        const cut_name c = cut(r.name);
        if (!same_but_number(&f.name, &c) || !stored_alike(&first, &r)) continue;
        taken[i] = true;
        take(&f, c.number);
    }
    end_run(&f);
    if (f.name.digits)
        dq_table_cell(t, "%.*s%s%s", (int)f.name.before, first.name, f.numbers,
                      first.name + f.name.before + f.name.digits);
    else
        dq_table_cell(t, "%s", first.name);
    dq_table_cell(t, "%lld", (long long)f.n);
    stored_cells(t, &first, f.n * first.bytes);
}

dq_status dq_quantize_rows_folded(const dq_quantizer *q, dq_err *err)
{
    static const char *const titles[] = {"tensor", "tensors", "shape", "stored as",
                                         "bits",   "group",   "bpw",   "size"};
    const int64_t n = dq_quantize_result(q)->n_tensors;
    dq_arena *a = dq_arena_new();
    bool *taken = a ? dq_alloc(a, (size_t)n, sizeof *taken, err) : NULL;
    dq_table *t;
    if (!a) dq_fail(err, DQ_RESOURCE, "out of memory");
    if (taken && dq_table_new(&t, titles, 8, err) == DQ_OK) {
        for (int64_t i = 0; i < n; i++) {
            if (!taken[i]) add_fold(t, q, taken, i);
        }
        sum_cells(t, q, true);
        finish(t, err);
    }
    dq_arena_free(a);
    return err->code;
}
