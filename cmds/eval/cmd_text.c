/* What a window or --slices adds to running text: small tables after the large one.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "cmds/cli/cli.h"
#include "cmds/eval/inside.h"
#include "eval/kinds.h"
#include "record/record.h"
#include "settings/inputs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_text(const dq_eval *e, const dq_eval_ids *ids)
{
    return cmd_eval_kind_of(&e->source[ids->source]) == &cmd_eval_text;
}

/* Those of the first model; NULL: the run has no text. */
static const dq_eval_ids *ids_of(const dq_eval *e)
{
    for (int i = 0; i < e->n_ids; i++) {
        if (is_text(e, &e->ids[i])) return &e->ids[i];
    }
    return NULL;
}

static const cmd_eval_key row_keys[] = {DQ_KEY_MODEL, DQ_KEY_WEIGHTS, DQ_KEY_LOGIT,
                                        DQ_KEY_KV,    DQ_KEY_MATH,    DQ_KEYS_END};

static dq_status print(const cmd_eval_view *v, const char *head, const cmd_eval_column *column,
                       int n, dq_err *err)
{
    const cmd_eval_table_of p = {.keys = row_keys, .column = column, .n = n};
    return cmd_eval_pivot(v, &cmd_eval_text, head, &p, err);
}

static void ppl_cell(dq_table *t, const json_t *x)
{
    const double value = cmd_eval_mean_of(x).value;
    dq_table_cell(t, isinf(value) ? "beyond f64" : "%.6g", value);
}

static bool compared(const dq_eval *e)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (cmd_eval_kind_shows(&cmd_eval_text, e, i) && e->row[i].ref != i) return true;
    }
    return false;
}

static const cmd_eval_column positions[] = {{.path = "positions.cumulative_nll_nats",
                                             .cell = cmd_eval_cell_mean,
                                             .labels = "positions.at",
                                             .unit = ""},
                                            {.path = "positions.difference_nats",
                                             .cell = cmd_eval_cell_change,
                                             .labels = "positions.at",
                                             .unit = ""}};

static dq_status print_positions(const cmd_eval_view *v, const dq_windows *w, dq_err *err)
{
    static const cmd_eval_column fit[] = {
        DQ_COLUMN("alpha", "positions.fit.alpha", cmd_eval_cell_mean),
        DQ_COLUMN("beta", "positions.fit.beta", cmd_eval_cell_mean),
        DQ_COLUMN("gamma", "positions.fit.gamma", cmd_eval_cell_mean),
        DQ_COLUMN("residual", "positions.fit.residual_nats", cmd_eval_cell_real)};
    char head[160];
    int at[DQ_EVAL_LABELS];
    cmd_eval_labels(at, v, &positions[0]);
    snprintf(head, sizeof head,
             "Mean NLL (nats) of the first tokens of each of %lld documents:", (long long)w->n);
    DQ_TRY(print(v, head, &positions[0], 1, err));
    if (compared(v->e))
        DQ_TRY(print(v, "The same, less that of the reference:", &positions[1], 1, err));
    snprintf(head, sizeof head,
             "alpha t^beta + gamma through the mean NLL of the first t tokens, t from %d on "
             "(\u00b1 jackknife over documents):",
             at[0]);
    return print(v, head, fit, 4, err);
}

static dq_status text_tables(const cmd_eval_view *v, dq_err *err)
{
    static const cmd_eval_column rolling[] = {
        DQ_COLUMN("PPL per word", "metrics.word_ppl", ppl_cell),
        DQ_COLUMN("per byte", "metrics.byte_ppl", ppl_cell),
        DQ_COLUMN("bits per byte", "metrics.bits_per_byte", ppl_cell)};
    static const cmd_eval_column sliced[] = {
        DQ_COLUMN("AR-hit share", "slices.share_ar_hit", cmd_eval_cell_real),
        DQ_COLUMN("AR-hit NLL", "slices.ar_hit.nll_nats", cmd_eval_cell_mean),
        DQ_COLUMN("others NLL", "slices.others.nll_nats", cmd_eval_cell_mean),
        DQ_COLUMN("AR-hit against reference", "slices.ar_hit.delta_nats", cmd_eval_cell_change),
        DQ_COLUMN("others against reference", "slices.others.delta_nats", cmd_eval_cell_change)};
    const dq_eval_ids *ids = ids_of(v->e);
    if (!ids) return DQ_OK;
    const dq_text_settings *s = v->e->source[ids->source].settings;
    if (s->scheme == DQ_WINDOW_ROLLING && !ids->win.cut)
        DQ_TRY(print(v, "Perplexity by the words and bytes of the text:", rolling, 3, err));
    if (s->scheme == DQ_WINDOW_POSITIONS) DQ_TRY(print_positions(v, &ids->win, err));
    if (!ids->slices) return DQ_OK;
    return print(v,
                 ids->slices->own
                     ? "NLL of tokens that end a repeated bigram (frequent ones counted in "
                       "the other documents):"
                     : "NLL of tokens that end a repeated bigram (frequent ones counted in "
                       "--slice-counts):",
                 sliced, 5, err);
}

typedef struct text_options {
    dq_list files;
    const char *counts;
    dq_word window;            /* a dq_scheme */
    int64_t stride, threshold; /* 0, -1: not given */
    bool positions, slices;
    dq_text_settings settings; /* what they mean */
} text_options;

static const cmd_eval_kind_option options[] = {
    DQ_KIND_OPTION(
        LIST, "text", "FILE", text_options, files,
        .help =
            "UTF-8 text: NLL and perplexity, KLD and top-1 agreement with the reference; may be "
            "repeated, each FILE is a document; FILE.jsonl holds one a line, {\"text\": ...}"),
    /* positions are an option of their own */
    DQ_KIND_OPTION(WORD, "window", "FORM", text_options, window, .words = dq_scheme_name,
                   .n_words = DQ_WINDOW_POSITIONS,
                   .help = "chunk (default): one after the other, the second half of each scored;\n"
                           "stride: each --stride after the one before, every token scored once;\n"
                           "block: one after the other, all of each scored;\n"
                           "rolling: as lm-eval, with perplexity per word and byte"),
    DQ_KIND_OPTION(INT, "stride", "N", text_options, stride, .min = 1, .max = 1e9,
                   .help = "tokens between windows of --window stride (default: half of --ctx)"),
    DQ_KIND_OPTION(FLAG, "positions", NULL, text_options, positions,
                   .help = "NLL by position: score the first --ctx tokens after the beginning of "
                           "every document that has as many"),
    DQ_KIND_OPTION(FLAG, "slices", NULL, text_options, slices,
                   .help = "NLL of tokens that end a bigram seen before in the window and rare in "
                           "training, and of the others"),
    DQ_KIND_OPTION(TEXT, "slice-counts", "FILE", text_options, counts,
                   .help = "text that stands for the training text when bigrams are counted "
                           "(default: the scored documents, each without itself)"),
    DQ_KIND_OPTION(
        INT, "slice-threshold", "N", text_options, threshold, .min = 0, .max = 1e10,
        .help = "a bigram with more than N in 10^10 counted tokens is frequent (default 1250)"),
    {.opt = {.name = NULL}},
};

static dq_status choose(void *own, cmd_eval_options *run, const char *name, const char *path,
                        dq_err *err)
{
    text_options *t = own;
    dq_text_settings *s = &t->settings;
    (void)name;
    (void)path;
    if (t->files.n == 0 && run->ctx)
        return dq_fail(err, DQ_USAGE, "--ctx is about --text, which is not given.");
    if (t->files.n == 0) return DQ_OK;
    if (!t->slices && (t->counts || t->threshold >= 0))
        return dq_fail(err, DQ_USAGE, "--%s is about --slices, which is not given.",
                       t->counts ? "slice-counts" : "slice-threshold");
    if (t->positions && t->window.text)
        return dq_fail(err, DQ_USAGE,
                       "--positions makes windows of its own; it does not go with --window %s.",
                       t->window.text);
    s->scheme = t->positions ? DQ_WINDOW_POSITIONS : (dq_scheme)t->window.at;
    if (t->stride && s->scheme != DQ_WINDOW_STRIDE)
        return dq_fail(err, DQ_USAGE, "--stride is about --window stride.");
    s->stride = t->stride;
    s->slices = t->slices;
    s->threshold = t->threshold < 0 ? 1250 : (double)t->threshold;
    /* a document given twice would count as two independent ones */
    for (int i = 0; i < t->files.n; i++) {
        for (int k = 0; k < i; k++) {
            if (dq_file_same(t->files.item[i], t->files.item[k]))
                return dq_fail(err, DQ_USAGE, "%s: --text is given twice for this file (%s).",
                               t->files.item[i], t->files.item[k]);
        }
    }
    const dq_eval_source source = {
        .name = "text", .path = t->files.item[0], .kind = &dq_eval_text, .settings = &t->settings};
    return cmd_eval_add_source(run, &source, "tasks", err);
}

static dq_status read_docs(dq_docs *docs, const char *path, const char *kind, cmd_eval_files *files,
                           char sha[65], dq_arena *a, dq_err *err)
{
    const char *text;
    size_t len;
    DQ_TRY(cmd_eval_file_read(files, sha, kind, path, &text, &len, a, err));
    return dq_documents_add(docs, path, text, len, a, err);
}

static bool has_text(const dq_docs *d)
{
    for (int64_t i = 0; i < d->n; i++) {
        if (d->doc[i].len > 0) return true;
    }
    return false;
}

/* The hash covers all scored files and how each is read. */
static dq_status load(void *own, dq_eval *e, const cmd_eval_options *run, int source,
                      cmd_eval_files *files, dq_err *err)
{
    text_options *t = own;
    dq_text_settings *s = &t->settings;
    dq_sha256 h = {NULL};
    char one[65], line[256], *sha = files->sha[files->n++];
    (void)run;
    (void)source;
    for (int i = 0; i < t->files.n; i++) {
        int64_t from = s->docs.n;
        if (read_docs(&s->docs, t->files.item[i], "text", files, one, e->a, err) != DQ_OK) break;
        if (i == 0 && dq_sha256_begin(&h, err) != DQ_OK) break;
        int n = snprintf(line, sizeof line, "%s %lld\n", one, (long long)(s->docs.n - from));
        dq_sha256_add(&h, line, (size_t)n);
    }
    if (err->code == DQ_OK && !has_text(&s->docs))
        dq_fail(err, DQ_DAMAGED, "%s: holds no text", t->files.item[0]);
    if (err->code == DQ_OK && t->counts)
        read_docs(&s->counts, t->counts, "slice-counts", files, one, e->a, err);
    if (err->code == DQ_OK && t->counts && !has_text(&s->counts))
        dq_fail(err, DQ_DAMAGED, "%s: holds no text", t->counts);
    if (err->code != DQ_OK) {
        dq_sha256_drop(&h);
        return err->code;
    }
    dq_input_warn_bad(files->logger, s->docs.bad_path, s->docs.n_bad, s->docs.first_bad);
    if (s->docs.lines_path) dq_input_warn_lines(s->docs.lines_path, files->logger);
    dq_input_warn_bad(files->logger, s->counts.bad_path, s->counts.n_bad, s->counts.first_bad);
    return dq_sha256_end(&h, sha, err);
}

static void put_settings(dq_row_writer *w, const void *own, const dq_eval *e)
{
    const text_options *t = own;
    const dq_text_settings *s = DQ_LIVE(w, &t->settings);
    const dq_eval_ids *ids = DQ_LIVE(w, ids_of(e));
    const bool strides = ids && s->scheme == DQ_WINDOW_STRIDE;
    DQ_PUT(w, "window", ids ? dq_scheme_name[s->scheme] : NULL,
           "How a text is cut; null: there is none.", .when = DQ_NULL, DQ_WORDS(dq_scheme_name));
    DQ_PUT(w, "ctx", ids ? e->n_ctx : -1, "Tokens of its windows.", .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "stride",
           !strides    ? -1
           : s->stride ? s->stride
                       : e->n_ctx / 2,
           "Tokens between them; null: other windows.", .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "text_stderr",
           ids && ids->win.n_docs > 1 ? "clustered by document" : "clustered by window",
           "What its errors take for independent.",
           DQ_WORD("clustered by document", "clustered by window"));
    if (!DQ_BEGIN(w, OBJECT, "slices", s->slices, "Of --slices; null: not asked for.",
                  .when = DQ_NULL | DQ_UNSCORED))
        return;
    DQ_PUT(w, "counted_in", t->counts ? t->counts : "text", "File of the counts, or text.");
    DQ_PUT(w, "threshold", s->threshold, "Occurrences of a bigram that make it frequent.");
    dq_row_end(w);
}

static void warn_ids(dq_logger *logger, const dq_eval_ids *ids, const dq_text_settings *s)
{
    const dq_windows *w = &ids->win;
    if (w->n == 0) return;
    if (w->n_short)
        dq_logger_warn(
            logger, "%lld of %s%lld documents are too short for a window (%s, --ctx) and left out",
            (long long)w->n_short, w->n_given < w->n_all ? "the first " : "", (long long)w->n_given,
            dq_scheme_name[s->scheme]);
    if (w->n_copies)
        dq_logger_warn(logger, "%lld of %lld %s are copies of earlier ones; errors count each once",
                       (long long)w->n_copies, (long long)(w->n_docs < 2 ? w->n : w->n_docs),
                       w->n_docs < 2 ? "windows" : "documents");
    if (w->cut && s->scheme == DQ_WINDOW_ROLLING)
        dq_logger_warn(
            logger, "--limit ends inside a document, so there is no perplexity per word or byte");
    if (ids->slices && ids->slices->own && w->n_given == 1)
        dq_logger_warn(
            logger, "--slices: one document alone has nothing to count frequent bigrams in; give "
                    "--slice-counts FILE or several documents");
}

static void warn(dq_logger *logger, const cmd_eval_view *v, bool done)
{
    for (int i = 0; !done && i < v->e->n_ids; i++) {
        const dq_eval_ids *ids = &v->e->ids[i];
        if (is_text(v->e, ids)) warn_ids(logger, ids, v->e->source[ids->source].settings);
    }
}

static void put_difference(dq_row_writer *w, const char *name, dq_mean m, bool is_ref)
{
    DQ_NUMBER(w, name, MEAN, !is_ref, m, dq_interval_none, NULL,
              "Less the reference's; null: it is the reference.", .when = DQ_NULL);
}

static void put_fit(dq_row_writer *w, const dq_text_details *d)
{
    static const char *const names[DQ_TEXT_FIT_PARAMETERS][2] = {
        {"alpha", "The factor, with the jackknife's error over documents."},
        {"beta", "The exponent, likewise."},
        {"gamma", "The offset, likewise."}};
    if (!DQ_BEGIN(w, OBJECT, "fit", d->fit.there,
                  "A power law with an offset through the cumulative NLL, by least squares; null: "
                  "none is best.",
                  .when = DQ_NULL))
        return;
    DQ_PUT(w, "form", "alpha t^beta + gamma", "What is fitted, t being tokens.",
           DQ_WORD("alpha t^beta + gamma"));
    DQ_PUT(w, "from", d->at[0].at, "The first t.", .min = 1);
    DQ_PUT(w, "to", d->at[d->n_at - 1].at, "The last t.", .min = 1);
    DQ_PUT(w, "points", d->fit_points,
           "Positions that it goes through, an eighth of a doubling apart.", .min = 1);
    for (int i = 0; i < DQ_TEXT_FIT_PARAMETERS; i++)
        DQ_ESTIMATE(w, names[i][0], d->fit.parameter[i], d->fit.interval[i], names[i][1]);
    DQ_PUT(w, "residual_nats", d->fit.residual, "Root mean square of what is left.",
           .when = DQ_POSITIVE);
    dq_row_end(w);
}

#define OVER_TOKENS "Mean over the tokens, of NLL and KLD in nats."

static void put_positions(dq_row_writer *w, const dq_text_details *d, int64_t documents,
                          bool is_ref)
{
    if (!DQ_BEGIN(w, OBJECT, "positions", d->n_at, "By position.", .when = DQ_OUT)) return;
    DQ_PUT(w, "documents", documents, "Documents.");
    DQ_LIST(w, "at", "Positions.");
    for (int i = 0; DQ_MORE(w, i, d->n_at); i++) DQ_PUT(w, NULL, d->at[i].at, NULL);
    dq_row_end(w);
    DQ_LIST(w, "cumulative_nll_nats", "Mean NLL up to each.");
    for (int i = 0; DQ_MORE(w, i, d->n_at); i++) DQ_MEAN(w, NULL, d->at[i].cumulative, OVER_TOKENS);
    dq_row_end(w);
    if (DQ_BEGIN(w, LIST, "difference_nats", !is_ref,
                 "Less the reference's; null: it is the reference.", .when = DQ_NULL)) {
        for (int i = 0; DQ_MORE(w, i, d->n_at); i++)
            DQ_MEAN(w, NULL, d->at[i].difference, OVER_TOKENS);
        dq_row_end(w);
    }
    DQ_LIST(w, "bins", "Between positions.");
    for (int i = 0; DQ_MORE(w, i, d->n_bins); i++) {
        const dq_position_bin *b = &d->bin[i];
        DQ_ITEM(w);
        DQ_PUT(w, "from", b->from, "First position.");
        DQ_PUT(w, "to", b->to, "Last.");
        DQ_PUT(w, "n", b->n, "Tokens.");
        DQ_MEAN(w, "nll_nats", b->nll, OVER_TOKENS);
        put_difference(w, "difference_nats", b->difference, is_ref);
        dq_row_end(w);
    }
    dq_row_end(w);
    put_fit(w, d);
    dq_row_end(w);
}

static void put_slice(dq_row_writer *w, const char *name, const dq_slice *s, bool is_ref,
                      const char *about)
{
    DQ_OBJECT(w, name, about);
    DQ_PUT(w, "n", s->n, "Tokens.");
    DQ_MEAN(w, "nll_nats", s->nll, OVER_TOKENS);
    put_difference(w, "delta_nats", s->delta, is_ref);
    dq_row_end(w);
}

static dq_status details(dq_row_writer *w, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval_ids *ids = DQ_LIVE(w, &v->e->ids[v->e->row[row].ids]);
    const dq_text_settings *s = DQ_LIVE(w, v->e->source[ids->source].settings);
    const bool is_ref = w->live && v->e->row[row].ref == row;
    dq_text_details d = {.n_at = 0};
    if (w->live) DQ_TRY(dq_text_numbers_details(v->e, row, &d, err));
    DQ_PUT(w, "window", dq_scheme_name[s->scheme], "How the text is cut.",
           DQ_WORDS(dq_scheme_name));
    DQ_PUT(w, "windows", ids->win.n, "Windows.");
    DQ_PUT(w, "documents", ids->win.n_docs, "Documents.");
    DQ_LIST(w, "kld_by_confidence", "By the probability of the reference's most likely token.");
    for (int i = 0; DQ_MORE(w, i, DQ_CONFIDENCES); i++) {
        const dq_confidence *c = &d.confidence[i];
        DQ_ITEM(w);
        DQ_PUT(w, "from", c->from, "Least probability.");
        DQ_PUT(w, "to", c->to, "Most.");
        DQ_PUT(w, "n", c->n, "Tokens.");
        DQ_MEAN(w, "kld_nats", c->kld, OVER_TOKENS);
        DQ_MEAN(w, "same_top1", c->same, OVER_TOKENS);
        dq_row_end(w);
    }
    dq_row_end(w);
    put_positions(w, &d, w->live ? ids->win.n_docs : 0, is_ref);
    if (!DQ_BEGIN(w, OBJECT, "slices", d.sliced, "By whether a bigram was seen before.",
                  .when = DQ_OUT))
        return DQ_OK;
    put_slice(w, "ar_hit", &d.hit, is_ref,
              "Last tokens of bigrams that stood in the window before.");
    put_slice(w, "others", &d.others, is_ref, "All others.");
    DQ_PUT(w, "share_ar_hit", d.share_hit, "Share of the former.", .when = DQ_NULL);
    DQ_PUT(w, "counted_in", ids->slices->own ? "text" : s->counts.doc[0].path,
           "Where bigrams were counted.");
    DQ_PUT(w, "counted_ids", ids->slices->counted, "Tokens there.");
    DQ_PUT(w, "threshold", ids->slices->threshold, "Occurrences that make a bigram frequent.");
    dq_row_end(w);
    return DQ_OK;
}

static double mean_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum / (double)n;
}

static dq_status item(dq_row_writer *w, const cmd_eval_view *v, const dq_eval_row *r, int64_t unit,
                      dq_err *err)
{
    const dq_window *win = &v->e->ids[r->ids].win.win[unit];
    const int64_t n = dq_window_scored(win);
    const bool differs = &v->e->row[r->ref] != r && r->kld;
    DQ_PUT(w, "document", win->doc, NULL);
    DQ_PUT(w, "at", win->at, NULL);
    DQ_PUT(w, "fed", win->n, NULL);
    DQ_PUT(w, "scored", n, NULL);
    DQ_PUT(w, "nll_nats", -mean_of(r->logp + win->value, n), NULL);
    DQ_PUT(w, "kld_nats", differs ? mean_of(r->kld + win->value, n) : DQ_NO_REAL, NULL);
    return err->code;
}

const cmd_eval_kind cmd_eval_text = {
    .kind = {&dq_eval_text},
    .size = sizeof(text_options),
    .options = options,
    .needs = "is about --text, which is not given.",
    .choose = choose,
    .load = load,
    .settings = put_settings,
    .warn = warn,
    .details = details,
    .tables = text_tables,
    .item = item,
};
