/* report: see report.h. Inputs are sorted into parts by their schema; all parts are read, and refused where
 * something is missing, before the first picture is drawn.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/report.h"

#include "base/os.h"
#include "cmds/page/gnuplot.h"
#include "cmds/report/html_sections.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is known of the documents of a schema, "dq-eval/1", and of the command that prints them. */
static const struct kind {
    const char *schema, *command, *subject;
    const char *plan; /* the setting "kind" of a plan; NULL: no plan */
    bool together;    /* all its documents make one part, else one each */
    dq_status (*read)(dq_html *h, dq_err *err);
} kinds[] = {
    [DQ_HTML_STATS] = {"stats", "stats", "Outliers", NULL, true, dq_html_stats_read},
    [DQ_HTML_QUANTIZE] = {"quantize", "quantize", "Containers", NULL, true, dq_html_quantize_read},
    [DQ_HTML_PLAN] = {"plan", "plan weights", "Plans of weights", "weights", true,
                      dq_html_plan_read},
    [DQ_HTML_PLAN_KV] = {"plan", "plan kv", "Plans of the KV cache", "kv", true,
                         dq_html_plan_kv_read},
    [DQ_HTML_PLAN_HEADS] = {"plan", "plan heads", "Plans of retrieval heads", "heads", true,
                            dq_html_plan_heads_read},
    [DQ_HTML_BENCH] = {"bench", "bench", "Speed", NULL, true, dq_html_bench_read},
    [DQ_HTML_EVAL] = {"eval", "eval", "Evaluation", NULL, false, dq_html_rows_read},
};
enum { KINDS = sizeof kinds / sizeof kinds[0], MAJOR = 1, RESULTS_MAX = 5000, TENSORS_MAX = 50000 };

typedef struct report {
    dq_html_part *part; /* [n] */
    int n;
    dq_report_input *in; /* sorted by kind */
    dq_arena *a;
    dq_html_page page;
} report;

/* "1" or "1." and digits. */
static bool is_of_version(const char *version)
{
    char *end;
    if (!isdigit((unsigned char)*version) || strtol(version, &end, 10) != MAJOR) return false;
    return *end == 0 || (*end == '.' && end[1] && end[1 + strspn(end + 1, "0123456789")] == 0);
}

/* The kind that a schema "dq-eval/1" names, and of plans the setting "kind". */
static dq_status kind_of(int *kind, const json_t *document, dq_err *err)
{
    const char *schema = dq_html_text(document, "schema");
    const char *plan = dq_html_text(json_object_get(document, "settings"), "kind");
    bool is_plan = false;
    if (!*schema)
        return dq_fail(err, DQ_DAMAGED,
                       "not a document of dq (expected an object with a \"schema\"). Give what dq "
                       "stats, dq quantize, dq plan, dq bench or dq eval print with --json");
    for (*kind = 0; *kind < KINDS; ++*kind) {
        const char *its = kinds[*kind].schema;
        const size_t n = strlen(its);
        if (strncmp(schema, "dq-", 3) != 0 || strncmp(schema + 3, its, n) != 0 ||
            schema[3 + n] != '/')
            continue;
        if (is_of_version(schema + 4 + n)) {
            if (!kinds[*kind].plan || strcmp(kinds[*kind].plan, plan) == 0) return DQ_OK;
            is_plan = true;
            continue;
        }
        const char *version = dq_html_text(document, "dq_version");
        return dq_fail(
            err, DQ_MISMATCH,
            "a document of another version (expected dq-%s/%d, found \"%.60s\"). Use the dq "
            "that made it%s%.30s",
            its, MAJOR, schema, *version ? ", " : "", version);
    }
    if (is_plan)
        return dq_fail(err, DQ_DAMAGED,
                       "settings: \"kind\" is \"%.60s\" (expected weights, kv or heads). Is the "
                       "document cut or edited?",
                       plan);
    return dq_fail(err, DQ_MISMATCH,
                   "no page is made of such a document (expected dq-stats/1, dq-quantize/1, "
                   "dq-plan/1, dq-bench/1 or dq-eval/1, found \"%.60s\")",
                   schema);
}

/* More would be no page that anybody can read, and take hours to draw. Counted over all documents so far. */
static dq_status check_results(const json_t *document, size_t *results, size_t *tensors,
                               dq_err *err)
{
    static const dq_html_members members[] = {{"", "results", DQ_NEED_LIST}, {0}};
    const json_t *result;
    size_t i;
    DQ_TRY(dq_html_check_members(document, "the document", members, err));
    json_array_foreach(json_object_get(document, "results"), i, result)
    {
        ++*results;
        *tensors += json_array_size(json_object_get(result, "rows"));  /* of a container */
        *tensors += json_array_size(json_object_get(result, "units")); /* of a plan */
        *tensors += json_array_size(json_object_get(result, "trials"));
    }
    if (*results > RESULTS_MAX)
        return dq_fail(err, DQ_MISMATCH,
                       "too many results for a page (expected at most %d in all documents, found "
                       "%zu). Make several pages of them",
                       RESULTS_MAX, *results);
    if (*tensors > TENSORS_MAX)
        return dq_fail(
            err, DQ_MISMATCH,
            "too many tensors, units, groups and trials for a page (expected at most %d in all "
            "documents, found %zu). Make several pages of them",
            TENSORS_MAX, *tensors);
    return DQ_OK;
}

/* Sorts n documents by kind into parts. */
static dq_status sort_inputs(report *r, const dq_report_input *in, int n, dq_err *err)
{
    int *kind = dq_alloc(r->a, (size_t)n, sizeof *kind, err), n_in = 0;
    size_t results = 0, tensors = 0;
    r->in = dq_alloc(r->a, (size_t)n, sizeof *r->in, err);
    r->part = dq_alloc(r->a, (size_t)n, sizeof *r->part, err);
    if (!kind || !r->in || !r->part) return err->code;
    for (int i = 0; i < n; i++) {
        if (kind_of(&kind[i], in[i].document, err) == DQ_OK)
            check_results(in[i].document, &results, &tensors, err);
        DQ_TRY(dq_html_in(&in[i], err));
    }
    for (int k = 0; k < KINDS; k++) {
        for (int i = 0; i < n; i++) {
            if (kind[i] != k) continue;
            const bool joins = kinds[k].together && r->n > 0 && r->part[r->n - 1].kind == k;
            dq_html_part *p = &r->part[joins ? r->n - 1 : r->n++];
            r->in[n_in] = in[i];
            if (!joins)
                *p = (dq_html_part){k, {.in = &r->in[n_in], .document = in[i].document, .a = r->a}};
            p->h.p = &r->page;
            p->h.n_in++;
            n_in++;
        }
    }
    return DQ_OK;
}

/* The documents of a part by their files' names; the paths where two of the page have one name. */
static void name_inputs(report *r, int n)
{
    for (int i = 0; i < n; i++) {
        bool twice = false;
        for (int k = 0; k < n; k++)
            twice = twice || (k != i && strcmp(dq_html_last(r->in[k].name),
                                               dq_html_last(r->in[i].name)) == 0);
        if (!twice) r->in[i].name = dq_html_last(r->in[i].name);
    }
}

static dq_status read_parts(report *r, dq_err *err)
{
    for (int i = 0; i < r->n; i++) {
        dq_html *h = &r->part[i].h;
        DQ_TRY(dq_os_check_stop(err));
        h->about = h->differ = "";
        DQ_TRY(kinds[r->part[i].kind].read(h, err));
    }
    return DQ_OK;
}

/* "a, b" of what a part is about, within `cap` bytes; NULL where it is longer: a cut could fall into a
 * character. */
static const char *list_of(char *buf, size_t cap, const dq_html *h, bool tasks)
{
    size_t used = 0;
    const int n = h->row && !tasks ? h->n_models : h->n;
    buf[0] = 0;
    for (int i = 0; i < n; i++) {
        const char *name = !h->row ? h->item[i].name : tasks ? h->row[i].task : h->model[i];
        if (tasks && !dq_html_first_of_task(h, i)) continue;
        if (!h->row && i && strcmp(name, h->item[i - 1].name) == 0) continue; /* of dq bench */
        used += (size_t)snprintf(buf + used, cap - used, "%s%s", used ? ", " : "", name);
        if (used >= cap) return NULL;
    }
    return buf;
}

/* "dq eval: a, b on t, u", short enough for a heading. */
static const char *title_of(dq_html_part *p)
{
    char names[600], tasks[300];
    dq_html *h = &p->h;
    const char *command = kinds[p->kind].command;
    const char *models = list_of(names, sizeof names, h, false);
    const char *on = h->row ? list_of(tasks, sizeof tasks, h, true) : "";
    if (!models || !on)
        return dq_html_words(h, "dq %s: %d models", command, h->row ? h->n_models : h->n);
    if (h->n == 0)
        return dq_html_words(h, "dq %s: no model%s", command, h->row ? " on nothing" : "");
    return dq_html_words(h, "dq %s: %s%s%s", command, models, *on ? " on " : "", on);
}

/* A page of several parts is named by its files. */
static const char *page_title(report *r, int n)
{
    char names[200];
    size_t used = 0;
    if (r->n == 1) return title_of(&r->part[0]);
    for (int i = 0; i < n && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                 r->in[i].name);
    if (used >= sizeof names) return dq_html_words(&r->part[0].h, "dq report: %d documents", n);
    return dq_html_words(&r->part[0].h, "dq report: %s", names);
}

/* "Evaluation: logits.json". */
static const char *part_title(dq_html_part *p)
{
    const char *subject = kinds[p->kind].subject;
    if (p->h.n_in > 1) return dq_html_words(&p->h, "%s: %d documents", subject, p->h.n_in);
    return dq_html_words(&p->h, "%s: %s", subject, p->h.in[0].name);
}

static dq_status show_part(report *r, dq_html_part *p)
{
    if (r->n > 1) dq_html_page_part(&r->page, part_title(p));
    for (const dq_html_section *s = dq_html_sections; s->id; s++) {
        if ((int)s->of != p->kind || (s->applies && !s->applies(&p->h))) continue;
        dq_html_page_section(&r->page, s->id, s->title);
        s->show(&p->h);
        dq_html_page_section_end(&r->page);
        if (r->page.err->code == DQ_OK) dq_os_check_stop(r->page.err);
        if (r->page.err->code != DQ_OK) break; /* later pictures would be drawn for nothing */
    }
    if (r->n > 1) dq_html_page_part_end(&r->page);
    return r->page.err->code;
}

static dq_status make_page(report *r, const dq_report_input *in, int n, const char *path,
                           dq_err *err)
{
    DQ_TRY(dq_json_complete(err));
    DQ_TRY(sort_inputs(r, in, n, err));
    DQ_TRY(read_parts(r, err));
    name_inputs(r, n);
    dq_html_answer(r->part, r->n);
    dq_html_size(r->part, r->n);
    for (int i = 0; i < r->n; i++) DQ_TRY(show_part(r, &r->part[i]));
    return dq_html_page_write(&r->page, page_title(r, n), path);
}

dq_status dq_report_check(dq_err *err)
{
    return dq_gnuplot_check(err);
}

dq_status dq_report_write(const dq_report_input *in, int n, const char *path, dq_err *err)
{
    report r = {.a = dq_arena_new()};
    if (!r.a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    dq_html_page_begin(&r.page, err);
    make_page(&r, in, n, path, err);
    dq_html_page_free(&r.page);
    dq_arena_free(r.a);
    return err->code;
}
