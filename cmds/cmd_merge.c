/* The words of a command are kept as they were given, so that dq merge reads them as the command
 * did.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "record/record.h"
#include "settings/options.h"
#include "work/ranks.h"
#include "work/work.h"

#include <stdio.h>
#include <string.h>

enum { DQ_SHARDS = 9999 };

dq_status dq_shard_read(dq_shard *shard, const char *file, const char *also, dq_err *err)
{
    int used = 0;
    const char *w = shard->word;
    if (!w) return DQ_OK;
    const size_t digits = strspn(w, "0123456789");
    const bool plain = digits > 0 && digits < 7 && w[digits] == '/' && strlen(w) < 14 &&
                       strspn(w + digits + 1, "0123456789") == strlen(w) - digits - 1;
    if (!plain || sscanf(w, "%d/%d%n", &shard->index, &shard->n, &used) != 2 || w[used] ||
        shard->index < 1 || shard->n < shard->index || shard->n > DQ_SHARDS)
        return dq_fail(err, DQ_USAGE,
                       "--shard: expected I/N, with I from 1 to N and N at most %d, found \"%s\".",
                       DQ_SHARDS, w);
    if (dq_ranks_count() > 1)
        return dq_fail(err, DQ_USAGE,
                       "--shard is for runs without MPI: mpirun shares the work itself.");
    if (!file) return dq_fail(err, DQ_USAGE, "--shard: nowhere to write the shard. Add -o FILE.");
    if (also)
        return dq_fail(err, DQ_USAGE,
                       "--%s: a shard has nothing to show. Leave it out, and give it to dq merge.",
                       also);
    return DQ_OK;
}

dq_status dq_shard_head(json_t **about, const dq_shard_about *a, int argc, char **argv, dq_err *err)
{
    json_t *words = json_array(), *o = json_object();
    for (int i = 1; i < argc; i++) {
        json_t *word = json_string(argv[i]);
        if (!word)
            dq_fail(err, DQ_USAGE,
                    "%s: not UTF-8, so a shard cannot name it. Give it another name.", argv[i]);
        json_array_append_new(words, word);
    }
    json_object_set_new(o, "command", json_string(a->command));
    json_object_set_new(o, "program", json_string(a->program));
    json_object_set_new(o, "device", json_string(a->backend->device));
    json_object_set_new(o, "threads", json_integer(a->backend->threads));
    json_object_set_new(o, "conditions", a->conditions);
    json_object_set_new(o, "arguments", words);
    *about = o;
    return err->code;
}

void dq_shard_say(const dq_shard *shard, const char *file, double share, const char *out,
                  dq_logger *logger)
{
    dq_logger_say(
        logger,
        "shard %d of %d, %.3g %% of the work, is in %s. Of all shards: dq merge FILE... -o "
        "%s",
        shard->index, shard->n, 100 * share, file, out);
}

/* A shard's first line has its command, which runs once more with the shards in place of
 * computing, so that models and data are read and everything is printed as ever. */

static const dq_usage usage = {
    .name = "merge",
    .synopsis = "FILE... [-o OUT] [options]",
    .about =
        "Makes one run of the shards that dq eval --shard I/N or dq stats --one-pass --shard "
        "I/N wrote: the same tables, files and document as without --shard. Name the outputs "
        "here, as for the command itself: -o is the JSON document of dq eval, or the HDF5 "
        "file of dq stats. Models and data are read again, from the paths of the shards' "
        "command, so run this where that command ran. Nothing is computed. Refused by name "
        "are shards that are missing, given twice, unfinished, of another command, or computed "
        "by another program or processor.\n",
    .examples =
        "  for i in 1 2 3 4; do dq eval model --text book.txt --shard $i/4 -o run$i.shard; done\n"
        "  dq merge run?.shard -o all.json\n",
    .min_args = 1,
    .max_args = DQ_SHARDS,
    .args = "one FILE or more"};

static const struct kind {
    const char *name, *what; /* what messages call a run of it */
    dq_shard_merged *run;
} kinds[] = {{"eval", "evaluation", cmd_eval_merged},
             {"stats", "run of dq stats", cmd_stats_merged}};

typedef struct merge {
    const dq_opt *own; /* what comes out */
    dq_arena *a;
    json_t *first;   /* the first line of the first file */
    const char **of; /* [shards] the file of each shard; NULL: none yet */
    int n;           /* shards */
    const struct kind *kind;
} merge;

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static const struct kind *kind_of(const json_t *head)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(text_of(head, "command"), kinds[i].name) == 0) return &kinds[i];
    }
    return NULL;
}

static dq_status read_head(json_t **head, const char *path, dq_err *err)
{
    bool ended;
    DQ_TRY(dq_work_head(head, &ended, path, err));
    if (!kind_of(*head) || !json_is_array(json_object_get(*head, "arguments")) ||
        !json_is_string(json_object_get(*head, "device")) ||
        !json_is_integer(json_object_get(*head, "threads")))
        return dq_fail(
            err, DQ_MISMATCH,
            "%s: not a shard. Give what dq eval or dq stats with --shard I/N -o FILE wrote", path);
    if (!ended)
        return dq_fail(err, DQ_MISMATCH, "%s: is not finished. Run its command again with --resume",
                       path);
    return DQ_OK;
}

static dq_status compare(const merge *x, const json_t *head, const char *path, const char *first,
                         dq_err *err)
{
    const char *here = text_of(head, "program"), *there = text_of(x->first, "program");
    const json_int_t n = json_integer_value(json_object_get(head, "shards"));
    if (kind_of(head) != x->kind)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: is a shard of a dq %s, and %s of a dq %s. Merge each by itself", path,
                       kind_of(head)->name, first, x->kind->name);
    if (strcmp(here, there) != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: its bits may differ from those of %s, as something else computed it "
                       "(%.100s; there %.100s). Compute it anew where the others were",
                       path, first, here, there);
    if (strcmp(text_of(head, "key"), text_of(x->first, "key")) != 0)
        return dq_fail(err, DQ_MISMATCH, "%s: is a shard of another %s than %s", path,
                       x->kind->what, first);
    if (n != x->n)
        return dq_fail(err, DQ_MISMATCH, "%s: is one of %lld shards, %s of %d", path, (long long)n,
                       first, x->n);
    if (!json_equal(json_object_get(head, "conditions"), json_object_get(x->first, "conditions")))
        return dq_fail(err, DQ_MISMATCH,
                       "%s: its command asks for other conditions than that of %s", path, first);
    return DQ_OK;
}

static dq_status add_shard(merge *x, const char *path, const char *first, dq_err *err)
{
    json_t *head;
    if (read_head(&head, path, err) == DQ_OK && !x->first) {
        const json_int_t n = json_integer_value(json_object_get(head, "shards"));
        x->first = json_incref(head);
        x->n = (int)n;
        x->kind = kind_of(head);
        if (n < 1 || n > DQ_SHARDS)
            dq_fail(err, DQ_DAMAGED, "%s: expected 1 to %d shards, found %lld", path, DQ_SHARDS,
                    (long long)n);
        else
            x->of = dq_alloc(x->a, (size_t)n, sizeof *x->of, err);
    }
    if (err->code == DQ_OK) compare(x, head, path, first, err);
    const json_int_t i = json_integer_value(json_object_get(head, "shard"));
    json_decref(head);
    DQ_TRY(err->code);
    if (i < 1 || i > x->n)
        return dq_fail(err, DQ_DAMAGED, "%s: shard %lld of %d", path, (long long)i, x->n);
    if (x->of[i - 1])
        return dq_fail(err, DQ_MISMATCH, "%s and %s are both shard %lld. Leave one of them out",
                       x->of[i - 1], path, (long long)i);
    x->of[i - 1] = path;
    return DQ_OK;
}

static dq_status check_complete(const merge *x, dq_err *err)
{
    char list[120] = "";
    int missing = 0;
    for (int i = 0; i < x->n; i++) {
        const size_t n = strlen(list);
        if (x->of[i]) continue;
        if (missing++ < 12) snprintf(list + n, sizeof list - n, "%s%d", n ? ", " : "", i + 1);
    }
    if (!missing) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "%d of %d shards %s missing: %s%s", missing, x->n,
                   missing == 1 ? "is" : "are", list, missing > 12 ? ", ..." : "");
}

static dq_status run_again(const merge *x, dq_err *err)
{
    const json_t *words = json_object_get(x->first, "arguments");
    const size_t n = json_array_size(words);
    char **argv = dq_alloc(x->a, n + 2, sizeof *argv, err);
    if (!argv) return err->code;
    argv[0] = dq_text(x->a, x->kind->name, strlen(x->kind->name), err);
    for (size_t i = 0; i < n; i++) {
        const char *w = json_string_value(json_array_get(words, i));
        if (!w) return dq_fail(err, DQ_DAMAGED, "%s: word %zu of its command", x->of[0], i + 1);
        argv[i + 1] = dq_text(x->a, w, strlen(w), err);
    }
    DQ_TRY(err->code);
    const dq_shard_merge m = {.path = x->of,
                              .n = x->n,
                              .program = text_of(x->first, "program"),
                              .device = json_object_get(x->first, "device"),
                              .threads = json_object_get(x->first, "threads"),
                              .own = x->own};
    return x->kind->run(&m, (int)n + 1, argv, err);
}

dq_status dq_cmd_merge(int argc, char **argv, dq_err *err)
{
    merge x = {.a = dq_arena_new()};
    dq_args args;
    const char *output = NULL, *csv = NULL, *html = NULL, *items = NULL, *requests = NULL,
               *completions = NULL;
    bool json = false, force = false, quiet = false;
    const dq_opt opts[] = {
        dq_opt_output(dq_opt_letter('o', dq_opt_text("output", "FILE", &output,
                                                     "of dq eval the JSON document, of dq stats "
                                                     "HDF5"))),
        dq_opt_output(dq_opt_flag("json", &json, "print the document instead of the table")),
        dq_opt_output(dq_opt_text("csv", "FILE", &csv, "the numbers as CSV too")),
        dq_opt_output(dq_opt_text("html", "FILE", &html, "of dq eval: a page with pictures too")),
        dq_opt_output(dq_opt_text("dump-items", "FILE", &items, "as dq eval writes it")),
        dq_opt_output(dq_opt_text("dump-requests", "FILE", &requests, "as dq eval writes it")),
        dq_opt_output(
            dq_opt_text("dump-completions", "FILE", &completions, "as dq eval writes it")),
        dq_opt_flag("force", &force, "replace files that exist"),
        dq_opt_letter('q', dq_opt_flag("quiet", &quiet, "no warnings on stderr")),
        {0}};
    x.own = opts;
    if (!x.a) dq_fail(err, DQ_RESOURCE, "out of memory");
    if (err->code == DQ_OK && dq_help_parse(&args, argc, argv, opts, &usage, err) == DQ_OK &&
        !args.help) {
        for (int i = 0; err->code == DQ_OK && i < args.n; i++)
            add_shard(&x, args.item[i], args.item[0], err);
        if (err->code == DQ_OK && check_complete(&x, err) == DQ_OK) run_again(&x, err);
    }
    json_decref(x.first);
    dq_arena_free(x.a);
    return err->code;
}
