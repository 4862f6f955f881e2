/* eval_field: every form walks the list and finds the number by its offset in dq_eval_numbers.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_field.h"

#include "cmds/eval/eval_cells.h"
#include "record/record.h"

#include <math.h>
#include <string.h>

dq_mean cmd_eval_field_value(const cmd_eval_field *f, const dq_eval_numbers *x)
{
    const void *at = (const char *)x + f->at;
    dq_mean m = {.std_err = (double)NAN};
    if (f->type == DQ_FIELD_MEAN) return *(const dq_mean *)at;
    m.value = *(const double *)at;
    return m;
}

static void put_member(json_t *metric, const cmd_eval_field *f, dq_mean m)
{
    char name[64];
    json_object_set_new(metric, f->name, dq_document_real(m.value));
    if (f->type != DQ_FIELD_MEAN) return;
    snprintf(name, sizeof name, "%s_stderr", f->name);
    json_object_set_new(metric, name, dq_document_real(m.std_err));
}

void cmd_eval_field_json(json_t *metrics, const cmd_eval_field *list, const dq_eval_numbers *x)
{
    for (const cmd_eval_field *f = list; f && f->name; f++) {
        const dq_mean m = cmd_eval_field_value(f, x);
        if (f->of)
            put_member(json_object_get(metrics, f->of), f, m);
        else if (f->type == DQ_FIELD_MEAN)
            json_object_set_new(metrics, f->name, cmd_eval_mean_json(m));
        else if (!isnan(m.value))
            json_object_set_new(metrics, f->name, dq_document_metric(m.value, m.std_err));
    }
}

/* "rms_stderr" is a member of a metric with the member "rms", which is a mean. */
static bool names_member(const cmd_eval_field *f, const char *member)
{
    const size_t n = strlen(f->name);
    if (strncmp(member, f->name, n) != 0) return false;
    return !member[n] || (f->type == DQ_FIELD_MEAN && strcmp(member + n, "_stderr") == 0);
}

static bool is_there(const cmd_eval_field *f, const dq_eval_source *source)
{
    return !f->there || f->there(source);
}

bool cmd_eval_field_known(const cmd_eval_field *list, const dq_eval_source *source,
                          const char *metric, const char *member)
{
    for (const cmd_eval_field *f = list; f && f->name; f++) {
        if (!is_there(f, source)) continue;
        if (!member && !f->of && strcmp(metric, f->name) == 0) return true;
        if (member && f->of && strcmp(metric, f->of) == 0 && names_member(f, member)) return true;
    }
    return false;
}

dq_status cmd_eval_field_csv_titles(const char **titles, int *n, const cmd_eval_field *list,
                                    const dq_eval_source *source, dq_arena *a, dq_err *err)
{
    for (const cmd_eval_field *f = list; f && f->name; f++) {
        if (f->every_csv || !is_there(f, source)) continue;
        titles[(*n)++] = f->csv;
        if (f->type != DQ_FIELD_MEAN) continue;
        titles[*n] = dq_textf(a, err, "%s_stderr", f->csv);
        if (!titles[(*n)++]) return err->code;
    }
    return DQ_OK;
}

void cmd_eval_field_csv_cells(dq_table *t, const cmd_eval_field *list, const dq_eval_source *source,
                              const dq_eval_numbers *x)
{
    for (const cmd_eval_field *f = list; f && f->name; f++) {
        const dq_mean m = cmd_eval_field_value(f, x);
        if (f->every_csv || !is_there(f, source)) continue;
        if (f->type == DQ_FIELD_MEAN)
            cmd_eval_mean_columns(t, m);
        else
            dq_table_real(t, m.value);
    }
}
