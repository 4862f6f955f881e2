/* bench_report: see bench_report.h. A figure becomes a member and a cell; the columns of the table are those of the first row.
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_report.h"

#include "cmds/bench/bench_rates.h"
#include "cmds/cli/stdout.h"
#include "record/record.h"

#include <math.h>

enum { COLUMNS = 24 };

dq_status dq_bench_report_begin(dq_bench_report *r, const dq_bench *bench, dq_err *err)
{
    *r = (dq_bench_report){.bench = bench, .doc = dq_document_new(&bench->logger, "dq-bench/1")};
    if (!r->doc) return dq_fail(err, DQ_RESOURCE, "out of memory");
    r->settings = json_object_get(r->doc, "settings");
    json_array_append_new(json_object_get(r->doc, "inputs"), dq_document_name(bench->model->path));
    json_object_set_new(r->settings, "device", json_string(bench->backend->device));
    json_object_set_new(r->settings, "threads", json_integer(bench->backend->threads));
    json_object_set_new(r->settings, "clock", json_string(dq_bench_clock(bench->backend)));
    return DQ_OK;
}

void dq_bench_report_runs(dq_bench_report *r)
{
    json_object_set_new(r->settings, "runs", json_integer((json_int_t)r->bench->runs));
    json_object_set_new(r->settings, "math", json_string(r->bench->math_word.text));
}

static json_t *json_of(const dq_bench_figure *f)
{
    if (f->text) return json_string(f->text);
    return f->whole ? json_integer((json_int_t)f->value) : dq_document_real(f->value);
}

static void put_cell(dq_table *t, const dq_bench_figure *f)
{
    if (f->text)
        dq_table_cell(t, "%s", f->text);
    else if (isfinite(f->value))
        dq_table_cell(t, "%.*f", f->digits, f->value * f->scale);
    else
        dq_table_cell(t, "-");
}

static dq_status begin_table(dq_bench_report *r, const dq_bench_figure *f, int n, dq_err *err)
{
    const char *titles[COLUMNS];
    int columns = 0;
    for (int i = 0; i < n && columns < COLUMNS; i++) {
        if (f[i].title) titles[columns++] = f[i].title;
    }
    return dq_table_new(&r->table, titles, columns, err);
}

json_t *dq_bench_report_add(dq_bench_report *r, const char *what, const dq_bench_figure *f, int n,
                            dq_err *err)
{
    json_t *result = json_object();
    json_object_set_new(result, "model", dq_document_name(r->bench->model->name));
    json_object_set_new(result, "what", json_string(what));
    if (!r->table) begin_table(r, f, n, err);
    for (int i = 0; i < n; i++) {
        if (f[i].member) json_object_set_new(result, f[i].member, json_of(&f[i]));
        if (f[i].title && r->table) put_cell(r->table, &f[i]);
    }
    json_array_append_new(json_object_get(r->doc, "results"), result);
    return result;
}

void dq_bench_report_logit(json_t *result, dq_logit_spec s)
{
    json_object_set_new(result, "logit_bits", json_integer(s.bits));
    json_object_set_new(result, "logit_granularity",
                        dq_logit_rounds(s) ? json_string(dq_granularity_name[s.granularity])
                                           : json_null());
}

dq_status dq_bench_report_print(const dq_bench_report *r, dq_err *err)
{
    return r->bench->json ? dq_stdout_print(json_incref(r->doc), err)
                          : dq_table_print(r->table, err);
}

void dq_bench_report_end(dq_bench_report *r)
{
    json_decref(r->doc);
    dq_table_free(r->table);
}
