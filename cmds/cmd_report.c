/* cmd_report: dq report FILE.json... [-o PAGE.html]
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "cmds/report_page.h"
#include "model/model.h"
#include "settings/options.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const dq_usage usage = {
    .name = "report",
    .synopsis = "FILE.json... [-o PAGE.html] [--force]",
    .about =
        "Makes one page with tables and pictures of JSON documents: those of dq stats, dq "
        "quantize, dq plan, dq bench and dq eval (--json; dq eval -o FILE writes the same). "
        "It shows outliers of several models side by side, containers, plans, speeds, and "
        "scores as dq eval --html shows them, byte for byte. Documents of several kinds, and "
        "several of dq eval, become parts of the page under their names. FILE - is standard "
        "input. The page is one file that loads nothing: the documents, and the script that draws "
        "them in a browser. Hovering over a point shows its setting, its interval and the "
        "command that measures it.\n"
        "The page begins with the answer: the lowest settings of each model that dq eval "
        "found within its --margin, and what breaks first. Settings come last.\n"
        "Without -o, or with -o -, the page goes to standard output; to a terminal only with "
        "-o -.\n",
    .examples = "  dq report results.json -o page.html\n"
                "  dq report stats.json weights.json logits.json -o page.html\n"
                "  dq stats llama/ diffllama/ --json | dq report - >page.html\n",
    .min_args = 1,
    .max_args = DQ_LIST_MAX,
    .args = "one or more documents (FILE.json)",
};

typedef struct request {
    const char *out; /* NULL: standard output */
    bool force;
    dq_page_input in[DQ_LIST_MAX];
    json_t *document[DQ_LIST_MAX];
    int n;
} request;

static bool is_standard(const char *path)
{
    return strcmp(path, "-") == 0;
}

static dq_status run(request *r, const dq_args *args, dq_err *err)
{
    /* Everything that can be wrong comes before anything is read. */
    for (int i = 0; i < args->n; i++) {
        for (int k = 0; k < i; k++) {
            if (dq_file_same(args->item[i], args->item[k]))
                return dq_fail(err, DQ_USAGE, "%s: is given twice.", args->item[i]);
        }
    }
    if (!r->out && isatty(STDOUT_FILENO))
        return dq_fail(err, DQ_USAGE,
                       "-o PAGE.html is missing, and standard output is a terminal. Name a file, "
                       "or say -o -.");
    if (r->out && is_standard(r->out)) r->out = NULL;
    const dq_output out = {"-o", r->out, DQ_OUTPUT_HTML, NULL};
    DQ_TRY(dq_output_guard_check(&out, 1, args->input, args->n_inputs, r->force, err));
    for (int i = 0; i < args->n; i++) {
        const char *path = args->item[i];
        DQ_TRY(dq_os_check_stop(err));
        DQ_TRY(dq_document_read(&r->document[i], path, err));
        r->n++;
        r->in[i] = (dq_page_input){is_standard(path) ? "standard input" : path, r->document[i]};
    }
    return dq_page_write(r->in, r->n, r->out, err);
}

dq_status dq_cmd_report(int argc, char **argv, dq_err *err)
{
    request *r = dq_block_new(1, sizeof *r, err);
    if (!r) return err->code;
    const dq_opt opts[] = {
        dq_opt_letter('o', dq_opt_output(dq_opt_text("output", "PAGE.html", &r->out,
                                                     "the page to write; - for standard output"))),
        dq_opt_flag("force", &r->force, "replace an existing page"),
        {0},
    };
    dq_args args;
    if (dq_help_parse(&args, argc, argv, opts, &usage, err) == DQ_OK && !args.help)
        run(r, &args, err);
    for (int i = 0; i < DQ_LIST_MAX; i++) json_decref(r->document[i]);
    dq_block_free(r);
    return err->code;
}
