/* eval_text_options: see text_options.h.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_text_options.h"

#include "base/os.h"
#include "base/sha256.h"
#include "cmds/cli/document.h"

#include <stdio.h>
#include <string.h>

void dq_text_options_begin(dq_text_options *t)
{
    *t = (dq_text_options){.stride = -1, .threshold = -1};
}

/* Options that say nothing without another one. */
static dq_status check_company(const dq_text_options *t, int64_t ctx, dq_err *err)
{
    const struct {
        bool given;
        const char *name;
    } texts[] = {{t->window, "window"},
                 {ctx != 0, "ctx"},
                 {t->stride >= 0, "stride"},
                 {t->positions, "positions"},
                 {t->slices, "slices"}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0] && t->files.n == 0; i++) {
        if (texts[i].given)
            return dq_fail(err, DQ_USAGE, "--%s is about --text, which is not given.",
                           texts[i].name);
    }
    if (!t->slices && (t->counts || t->threshold >= 0))
        return dq_fail(err, DQ_USAGE, "--%s is about --slices, which is not given.",
                       t->counts ? "slice-counts" : "slice-threshold");
    if (t->positions && t->window)
        return dq_fail(err, DQ_USAGE,
                       "--positions makes windows of its own; it does not go with --window %s.",
                       t->window);
    return DQ_OK;
}

dq_status dq_text_options_check(const dq_text_options *t, int64_t n_ctx, dq_err *err)
{
    if (t->stride < n_ctx) return DQ_OK;
    return dq_fail(err, DQ_USAGE,
                   "--stride %lld: expected less than the %lld ids of a window. Use --window block "
                   "for windows that do not overlap.",
                   (long long)t->stride, (long long)n_ctx);
}

dq_status dq_text_options_read(dq_text_options *t, int64_t ctx, dq_err *err)
{
    DQ_TRY(check_company(t, ctx, err));
    int w = dq_parse_word(t->window ? t->window : "chunk", "window", dq_scheme_name,
                          DQ_WINDOW_POSITIONS, err);
    if (w < 0) return err->code;
    dq_text_settings *s = &t->settings;
    s->scheme = t->positions ? DQ_WINDOW_POSITIONS : (dq_scheme)w;
    if (t->stride >= 0 && s->scheme != DQ_WINDOW_STRIDE)
        return dq_fail(err, DQ_USAGE, "--stride is about --window stride.");
    if (ctx) DQ_TRY(dq_text_options_check(t, ctx, err));
    s->stride = t->stride < 0 ? 0 : t->stride;
    s->slices = t->slices;
    s->threshold = t->threshold < 0 ? 1250 : (double)t->threshold;
    return DQ_OK;
}

bool dq_text_options_names(const dq_text_options *t, const char *path)
{
    for (int i = 0; i < t->files.n; i++) {
        if (dq_same_file(path, t->files.item[i])) return true;
    }
    return t->counts && dq_same_file(path, t->counts);
}

/* Reads one file and says so in `inputs`. */
static dq_status load(dq_docs *docs, const char *path, const char *kind, json_t *inputs,
                      char sha[65], dq_arena *a, dq_err *err)
{
    char *text;
    size_t len;
    DQ_TRY(dq_file_read(&text, &len, path, a, err));
    DQ_TRY(dq_sha256_of(sha, text, len, err));
    json_t *in = json_object();
    json_object_set_new(in, "kind", json_string(kind));
    json_object_set_new(in, "path", dq_name_json(path));
    json_object_set_new(in, "bytes", json_integer((json_int_t)len));
    json_object_set_new(in, "sha256", json_string(sha));
    json_array_append_new(inputs, in);
    return dq_docs_add(docs, path, text, len, a, err);
}

static void warn_bad(dq_talk *talk, const dq_docs *d)
{
    if (d->n_bad > 0)
        dq_warn(talk, "%s: %lld ill-formed UTF-8 sequences read as U+FFFD, the first at byte %lld",
                d->bad_path, (long long)d->n_bad, (long long)d->first_bad);
}

static bool has_text(const dq_docs *d)
{
    for (int64_t i = 0; i < d->n; i++) {
        if (d->doc[i].len > 0) return true;
    }
    return false;
}

dq_status dq_text_options_load(dq_text_options *t, dq_talk *talk, json_t *inputs, char sha[65],
                               dq_arena *a, dq_err *err)
{
    dq_text_settings *s = &t->settings;
    dq_sha256 h = {NULL};
    char one[65], line[256];
    for (int i = 0; i < t->files.n; i++) {
        int64_t from = s->docs.n;
        if (load(&s->docs, t->files.item[i], "text", inputs, one, a, err) != DQ_OK) break;
        if (i == 0 && dq_sha256_begin(&h, err) != DQ_OK) break;
        int n = snprintf(line, sizeof line, "%s %lld\n", one, (long long)(s->docs.n - from));
        dq_sha256_add(&h, line, (size_t)n);
    }
    if (err->code == DQ_OK && !has_text(&s->docs))
        dq_fail(err, DQ_DAMAGED, "%s: holds no text", t->files.item[0]);
    if (err->code == DQ_OK && t->counts)
        load(&s->counts, t->counts, "slice-counts", inputs, one, a, err);
    if (err->code == DQ_OK && t->counts && !has_text(&s->counts))
        dq_fail(err, DQ_DAMAGED, "%s: holds no text", t->counts);
    if (err->code != DQ_OK) {
        dq_sha256_drop(&h);
        return err->code;
    }
    warn_bad(talk, &s->docs);
    warn_bad(talk, &s->counts);
    /* slices are read off the scores and change none */
    int n =
        snprintf(line, sizeof line, "%s %lld\n", dq_scheme_name[s->scheme], (long long)s->stride);
    dq_sha256_add(&h, line, (size_t)n);
    return dq_sha256_end(&h, sha, err);
}

/* The windows of a text of the run; NULL: there is none. */
static const dq_windows *windows_of(const dq_eval *e)
{
    for (int i = 0; i < e->n_ids; i++) {
        if (e->source[e->ids[i].source].kind == &dq_eval_text) return &e->ids[i].win;
    }
    return NULL;
}

void dq_text_options_json(json_t *settings, const dq_text_options *t, const dq_eval *e)
{
    const dq_text_settings *s = &t->settings;
    const dq_windows *w = windows_of(e);
    bool strided = w && s->scheme == DQ_WINDOW_STRIDE;
    int64_t stride = s->stride ? s->stride : e->n_ctx / 2;
    json_t *slices = s->slices ? json_object() : json_null();
    json_object_set_new(settings, "window",
                        w ? json_string(dq_scheme_name[s->scheme]) : json_null());
    json_object_set_new(settings, "ctx", w ? json_integer((json_int_t)e->n_ctx) : json_null());
    json_object_set_new(settings, "stride",
                        strided ? json_integer((json_int_t)stride) : json_null());
    json_object_set_new(
        settings, "text_stderr",
        json_string(w && w->n_docs > 1 ? "clustered by document" : "clustered by window"));
    if (s->slices) {
        json_object_set_new(slices, "counted_in", dq_name_json(t->counts ? t->counts : "text"));
        json_object_set_new(slices, "threshold", dq_real(s->threshold));
    }
    json_object_set_new(settings, "slices", slices);
}

void dq_text_options_warn(dq_talk *talk, const dq_eval_ids *ids, const dq_text_options *t)
{
    const dq_windows *w = &ids->win;
    if (w->n == 0) return;
    if (w->n_short)
        dq_warn(talk, "%lld of %lld documents are too short for a window (%s, --ctx) and left out",
                (long long)w->n_short, (long long)w->n_given, dq_scheme_name[t->settings.scheme]);
    if (w->cut && t->settings.scheme == DQ_WINDOW_ROLLING)
        dq_warn(talk, "--limit ends inside a document, so there is no perplexity per word or byte");
    if (ids->slices && ids->slices->own && w->n_given == 1)
        dq_warn(talk, "--slices: one document alone has nothing to count frequent bigrams in; give "
                      "--slice-counts FILE or several documents");
}
