/* Getopt_long reads the command line by tables that are built from the rows of options;
 * abbreviations that it would accept are refused afterwards. Ranges and the nearest name of a
 * misspelt option come from the same rows.
 * SPDX-License-Identifier: MIT */
#include "settings/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dq_status options_set(const dq_opt *rows, const char *name, const char *value, dq_err *err);

enum { LONG_BASE = 256 };

const char *const dq_options_device_name[3] = {"cpu", "cuda", "auto"};

bool dq_opt_is_path(const dq_opt *o)
{
    static const char *const of_paths[] = {"FILE", "MODEL", "DIR", "PATH"};
    if (!dq_opt_takes_value(o) || !o->value) return false;
    for (size_t i = 0; i < sizeof of_paths / sizeof *of_paths; i++) {
        if (strcmp(o->value, of_paths[i]) == 0) return true;
    }
    const char *dot = strchr(o->value, '.');
    return dot && islower((unsigned char)dot[1]);
}

/* Names are capped at 63 characters. */
static int distance(const char *a, const char *b)
{
    int row[64], la = (int)strlen(a), lb = (int)strlen(b);
    if (la > 63 || lb > 63) return 64;
    for (int j = 0; j <= lb; j++) row[j] = j;
    for (int i = 1; i <= la; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= lb; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int best = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = change < best ? change : best;
        }
    }
    return row[lb];
}

const char *dq_options_nearest(const char *text, const char *const *names, int n)
{
    const char *best = NULL;
    const int most = ((int)strlen(text) + 2) / 3; /* "evla", but no other word of four letters */
    int best_d = most < 3 ? most + 1 : 4;
    for (int i = 0; i < n; i++) {
        int d = distance(text, names[i]);
        if (d < best_d && (d < 2 || *text == *names[i])) {
            best_d = d;
            best = names[i];
        }
    }
    return best;
}

/* What users of llama.cpp, lm-evaluation-harness, transformers and other quantizers type, and its
 * meaning here: the first listed option that the command has, or a sentence. */
static const struct {
    const char *ours;   /* the option; NULL: whatever the command has */
    const char *theirs; /* words, spaces between */
    const char *says;   /* instead of its name */
} known_elsewhere[] = {
    {NULL, "m model model-args model-name-or-path model-path model-id pretrained hf-repo",
     "The model is the first argument, without an option"},
    {"prompt-file", "p prompt", "The prompt is the second argument, without an option"},
    {"prompt-file", "f file", NULL},
    {"text", "f file perplexity ppl", NULL},
    {"calib", "f imatrix dataset calib-data calib-dataset calibration calibration-dataset", NULL},
    {"ctx",
     "c ctx-size context-length context-size n-ctx max-length max-seq-length max-seq-len seqlen "
     "seq-len",
     NULL},
    {"context", "c ctx-size max-length", NULL},
    {"calib-ctx", "c ctx-size context-length max-seq-length max-seq-len seqlen seq-len", NULL},
    {"max-new", "max-length n n-predict predict max-tokens max-new-tokens max-gen-toks", NULL},
    {"limit", "n chunks n-samples num-samples samples", NULL},
    {"temperature", "temp do-sample", NULL},
    {"threads", "t nthreads n-threads", NULL},
    {"seed", "s", NULL},
    {"device", "ngl n-gpu-layers gpu-layers dev cuda", NULL},
    {"kv-bits", "cache-type-k cache-type-v ctk ctv kv-cache-dtype", NULL},
    {"interactive", "cnv conversation chat i", NULL},
    {"raw", "no-cnv no-conversation", NULL},
    {"system", "sys system-prompt system-instruction", NULL},
    {"stop", "r reverse-prompt stop-strings stop-sequences until", NULL},
    {"stride", "ppl-stride", NULL},
    {"task", "tasks hellaswag winogrande multiple-choice", NULL},
    {"ref", "kl-divergence kl-divergence-base save-all-logits", NULL},
    {"num-fewshot", "fewshot n-shot n-shots num-shots shots", NULL},
    {"output", "output-path output-dir output-file save save-path out outfile", NULL},
    {"dump-items", "log-samples", NULL},
    {"dump-requests", "write-out", NULL},
    {"dump-completions", "predict-only", NULL},
    {"data", "dataset data-dir", NULL},
    {"calib-tokens", "nsamples num-samples num-calibration-samples calib-size", NULL},
    {"size", "bpw", NULL},
    {"bits",
     "wbits w-bits w-bit weight-bits load-in-4bit load-in-8bit qtype ftype scheme quant-type",
     NULL},
    {"group", "groupsize group-size q-group-size", NULL},
    {"scale", "mse sym asym zero-point", NULL},
    {"method", "awq gptq quant-method", NULL},
    {"skip", "ignore exclude modules-to-not-convert", NULL},
    {"head-bits", "leave-output-tensor output-tensor-type lm-head", NULL},
    {"embed-bits", "token-embedding-type", NULL},
    {"dtype", "torch-dtype fp16 bf16", NULL},
    {"format", "outtype", NULL},
    {"math", "torch-dtype dtype", NULL},
    {"shard-mb", "split-max-size max-shard-size", NULL},
    {"batch", "b batch-size", NULL},
    {NULL,
     "b batch batch-size max-batch-size ub ubatch-size tb threads-batch fa flash-attn no-mmap "
     "mlock jinja trust-remote-code use-cache color repeat-penalty repetition-penalty "
     "frequency-penalty presence-penalty mirostat typical num-beams damp damp-percent percdamp "
     "desc-act act-order true-sequential static-groups",
     "Leave it out: dq has no such setting"},
};

static bool has_word(const char *list, const char *word)
{
    const size_t len = strlen(word);
    for (size_t n; *list; list += n + (list[n] == ' ')) {
        n = strcspn(list, " ");
        if (n == len && memcmp(list, word, n) == 0) return true;
    }
    return false;
}

/* NULL: the word is unknown, or the command has nothing for it. */
static const char *known_as(const char *word, const char *const *names, int n)
{
    for (size_t i = 0; i < sizeof known_elsewhere / sizeof *known_elsewhere; i++) {
        const char *ours = known_elsewhere[i].ours;
        int k = 0;
        if (!has_word(known_elsewhere[i].theirs, word)) continue;
        while (ours && k < n && strcmp(names[k], ours) != 0) k++;
        if (!ours || k < n) return known_elsewhere[i].says ? known_elsewhere[i].says : ours;
    }
    return NULL;
}

static dq_status unknown_option(const char *text, const dq_opt *opts, const dq_usage *usage,
                                dq_err *err)
{
    const char *names[DQ_OPTIONS_MAX];
    char word[64];
    int n = 0;
    for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
        if (o->name && n < DQ_OPTIONS_MAX) names[n++] = o->name;
    }
    const char *dashes = (text[0] == '-' && text[1] != '-') || !text[0] || !text[1] ? "-" : "--";
    while (*text == '-') text++;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(text, "="), text);
    dq_fail(err, DQ_USAGE, "unknown option %s%s.", dashes, word);
    for (char *c = word; *c; c++) {
        if (*c == '_') *c = '-';
    }
    const char *known = known_as(word, names, n);
    if (!known && word[0] && word[1]) known = dq_options_nearest(word, names, n);
    if (known && strchr(known, ' '))
        dq_fail_more(err, dq_remedy_none, " %s.", known);
    else if (known)
        dq_fail_more(err, dq_remedy_none, " Did you mean --%s?", known);
    return usage ? dq_fail_more(err, dq_remedy_none, " See dq %s --help.", usage->name) : err->code;
}

static dq_status set_int(const dq_opt *o, const char *text, dq_err *err)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || (double)v < o->min || (double)v > o->max)
        return dq_fail(err, DQ_USAGE,
                       "--%s: expected a whole number from %.0f to %.0f, found \"%s\".", o->name,
                       o->min, o->max, text);
    *(int64_t *)o->to = v;
    return DQ_OK;
}

static bool is_width(int64_t bits)
{
    return (bits >= 2 && bits <= 8) || bits == 16;
}

static dq_status set_bits(const dq_opt *o, const char *text, dq_err *err)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || !is_width(v))
        return dq_fail(err, DQ_USAGE, "--%s: expected 2 to 8, or 16; found \"%s\".", o->name, text);
    *(int64_t *)o->to = v;
    return DQ_OK;
}

static dq_status set_float(const dq_opt *o, const char *text, dq_err *err)
{
    char *end;
    double v = dq_real_parse(text, &end);
    if (end == text || *end || !isfinite(v) || v < o->min || v > o->max)
        return dq_fail(err, DQ_USAGE, "--%s: expected a number from %g to %g, found \"%s\".",
                       o->name, o->min, o->max, text);
    *(double *)o->to = v;
    return DQ_OK;
}

static dq_status set_word(const dq_opt *o, const char *text, dq_err *err)
{
    dq_word *word = o->to;
    const int i = dq_options_word(text, o->name, o->words, o->n_words, err);
    if (i >= 0) *word = (dq_word){text, i};
    return err->code;
}

static dq_status set_words(const dq_opt *o, const char *text, dq_err *err)
{
    dq_words *words = o->to;
    if (o->n_words > DQ_WORDS_MAX)
        return dq_fail(err, DQ_BUG, "--%s has more than %d words", o->name, DQ_WORDS_MAX);
    words->text = text;
    return dq_options_words(words->at, &words->n, text, o->name, o->words, o->n_words, err);
}

static dq_status set(const dq_opt *o, const char *text, dq_err *err)
{
    dq_list *list;
    switch (o->kind) {
    case DQ_OPT_FLAG: *(bool *)o->to = true; return DQ_OK;
    case DQ_OPT_COUNT: *(int *)o->to += 1; return DQ_OK;
    case DQ_OPT_INT: return set_int(o, text, err);
    case DQ_OPT_BITS: return set_bits(o, text, err);
    case DQ_OPT_FLOAT: return set_float(o, text, err);
    case DQ_OPT_TEXT: *(const char **)o->to = text; return DQ_OK;
    case DQ_OPT_WORD: return set_word(o, text, err);
    case DQ_OPT_WORDS: return set_words(o, text, err);
    case DQ_OPT_ROWS: break;
    case DQ_OPT_LIST:
        list = o->to;
        if (list->n == DQ_LIST_MAX)
            return dq_fail(err, DQ_USAGE, "--%s: at most %d times.", o->name, DQ_LIST_MAX);
        list->item[list->n++] = text;
        return DQ_OK;
    }
    return dq_fail(err, DQ_BUG, "option kind %d", (int)o->kind);
}

/* getopt_long accepts abbreviations, which scripts must not depend on; `name` is the full one. */
static bool abbreviated(char **argv, const char *name, bool value)
{
    const char *text = argv[optind - 1];
    if (value && optarg == text) text = argv[optind - 2];
    if (strncmp(text, "--", 2) != 0) return false; /* the short form */
    return strcspn(text + 2, "=") != strlen(name);
}

static dq_status add_input(dq_args *args, const char *path, dq_err *err)
{
    if (args->n_inputs == DQ_INPUTS_MAX)
        return dq_fail(err, DQ_USAGE, "more than %d files.", DQ_INPUTS_MAX);
    args->input[args->n_inputs++] = path;
    return DQ_OK;
}

static dq_status add_value(dq_args *args, const char *value, dq_err *err)
{
    const char *sign = value ? strchr(value, '=') : NULL;
    if (sign) DQ_TRY(add_input(args, sign + 1, err));
    return value ? add_input(args, value, err) : DQ_OK;
}

dq_status dq_options_inputs(dq_args *args, const dq_opt *o, dq_err *err)
{
    for (; !dq_opt_is_end(o); o++) {
        if (o->kind == DQ_OPT_ROWS) DQ_TRY(dq_options_inputs(args, o->to, err));
        if (!o->name || o->use == DQ_OPT_OUTPUT || !dq_opt_is_path(o)) continue;
        if (o->kind == DQ_OPT_TEXT) DQ_TRY(add_value(args, *(const char **)o->to, err));
        const dq_list *list = o->kind == DQ_OPT_LIST ? o->to : NULL;
        for (int i = 0; list && i < list->n; i++) DQ_TRY(add_value(args, list->item[i], err));
    }
    return DQ_OK;
}

/* llama.cpp has options of several letters after one dash, which getopt takes for several
 * options. */
static bool is_one_dash(const char *word)
{
    bool known = false;
    if (!word || word[0] != '-' || word[1] == '-' || !word[1] || !word[2]) return false;
    for (size_t i = 0; !known && i < sizeof known_elsewhere / sizeof *known_elsewhere; i++)
        known = has_word(known_elsewhere[i].theirs, word + 1);
    return known;
}

static dq_status parse_option(dq_args *args, int c, char **argv, const dq_opt **row,
                              const dq_opt *opts, bool shard, const dq_usage *usage, dq_err *err)
{
    const dq_opt *o = NULL;
    if (c < LONG_BASE) { /* optind is at the word until its last letter is read */
        for (int i = optind - 1; i <= optind; i++) {
            const bool own = i < optind || c == '?';
            if (own && is_one_dash(argv[i])) return unknown_option(argv[i], opts, usage, err);
        }
    }
    if (c >= LONG_BASE) {
        o = row[c - LONG_BASE];
        if (abbreviated(argv, o->name, dq_opt_takes_value(o)))
            return unknown_option(argv[optind - 1] == optarg ? argv[optind - 2] : argv[optind - 1],
                                  opts, usage, err);
    } else if (c == ':') {
        return dq_fail(err, DQ_USAGE, "%s needs a value. See dq %s --help.", argv[optind - 1],
                       usage->name);
    } else if (c == '?') {
        if (optopt > 0 && optopt < LONG_BASE)
            return unknown_option((const char[]){(char)optopt, 0}, opts, usage, err);
        if (optopt >= LONG_BASE)
            return dq_fail(err, DQ_USAGE, "--%s takes no value.", row[optopt - LONG_BASE]->name);
        return unknown_option(argv[optind - 1], opts, usage, err);
    } else {
        for (o = opts; !dq_opt_is_end(o) && (!o->name || o->letter != c);) o++;
    }
    if (shard && o->use != DQ_OPT_SETTING) return DQ_OK;
    if (o->use == DQ_OPT_OUTPUT && strcmp(o->name, "output") != 0) args->also = o->name;
    return set(o, optarg, err);
}

static dq_status append(dq_opt flat[DQ_OPTIONS_MAX], int *n, const dq_opt *rows, dq_err *err)
{
    for (; !dq_opt_is_end(rows); rows++) {
        if (rows->kind == DQ_OPT_ROWS) {
            DQ_TRY(append(flat, n, rows->to, err));
            continue;
        }
        if (*n == DQ_OPTIONS_MAX - 1) return dq_fail(err, DQ_BUG, "too many options");
        flat[(*n)++] = *rows;
    }
    flat[*n] = (dq_opt){.name = NULL};
    return DQ_OK;
}

dq_status dq_options_flatten(dq_opt flat[DQ_OPTIONS_MAX], const dq_opt *rows, dq_err *err)
{
    int n = 0;
    return append(flat, &n, rows, err);
}

static dq_status parse(dq_args *args, int argc, char **argv, const dq_opt *rows, bool shard,
                       const dq_usage *usage, dq_err *err)
{
    dq_opt opts[DQ_OPTIONS_MAX];
    struct option lopts[DQ_OPTIONS_MAX] = {{0}};
    const dq_opt *row[DQ_OPTIONS_MAX];
    char sopts[2 * DQ_OPTIONS_MAX + 4];
    int c;

    memset(args, 0, sizeof *args);
    DQ_TRY(dq_options_flatten(opts, rows, err));
    int n = 0;
    size_t s = 0;
    sopts[s++] = ':'; /* tell a missing value from an unknown option */
    sopts[s++] = 'h';
    for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
        if (!o->name) continue;
        if (n >= DQ_OPTIONS_MAX - 2) return dq_fail(err, DQ_BUG, "too many options");
        lopts[n] =
            (struct option){.name = o->name,
                            .has_arg = dq_opt_takes_value(o) ? required_argument : no_argument,
                            .val = LONG_BASE + n};
        row[n++] = o;
        if (o->letter) {
            sopts[s++] = o->letter;
            if (dq_opt_takes_value(o)) sopts[s++] = ':';
        }
    }
    lopts[n] = (struct option){.name = "help", .has_arg = optional_argument, .val = 'h'};
    sopts[s] = 0;
    opterr = 0;
    optind = 1;
    while ((c = getopt_long(argc, argv, sopts, lopts, NULL)) != -1) {
        if (c == 'h' && shard) continue;
        if (c == 'h') {
            args->help = true;
            args->topic = optarg;
            return DQ_OK;
        }
        DQ_TRY(parse_option(args, c, argv, row, opts, shard, usage, err));
    }
    for (int i = optind; i < argc; i++) {
        if (args->n == DQ_ARGS_MAX)
            return dq_fail(err, DQ_USAGE, "more than %d arguments.", DQ_ARGS_MAX);
        args->item[args->n++] = argv[i];
        DQ_TRY(add_input(args, argv[i], err));
    }
    const char *wanted = usage->args ? usage->args : "one MODEL";
    if (usage->args ? args->n < usage->min_args || args->n > usage->max_args : args->n != 1) {
        /* Failures are one line, so a long synopsis is replaced by a pointer to the help. */
        const int found = args->n;
        const char *plural = found == 1 ? "" : "s";
        if (strchr(usage->synopsis, '\n'))
            return dq_fail(err, DQ_USAGE, "expected %s, found %d argument%s. See dq %s --help.",
                           wanted, found, plural, usage->name);
        return dq_fail(err, DQ_USAGE, "expected %s, found %d argument%s. Usage: dq %s %s", wanted,
                       found, plural, usage->name, usage->synopsis);
    }
    return dq_options_inputs(args, opts, err);
}

dq_status dq_options_parse_shard(dq_args *args, int argc, char **argv, const dq_opt *rows,
                                 const dq_opt *own, const dq_usage *usage, dq_err *err)
{
    if (!own) return parse(args, argc, argv, rows, false, usage, err);
    if (parse(args, argc, argv, rows, true, usage, err) != DQ_OK) {
        err->code = DQ_DAMAGED;
        return dq_in(err, "the command in the shards: ");
    }
    for (; !dq_opt_is_end(own); own++) {
        const char *text = own->kind == DQ_OPT_TEXT ? *(const char **)own->to : NULL;
        const bool given = own->kind == DQ_OPT_FLAG ? *(bool *)own->to : text != NULL;
        if (given && options_set(rows, own->name, text, err) != DQ_OK)
            return dq_in(err, "the shards are of dq %s: ", usage->name);
    }
    return DQ_OK;
}

/* Sets an option by its long name, from elsewhere than a command line; value: NULL only for flags,
 * and must stay valid. */
static dq_status options_set(const dq_opt *rows, const char *name, const char *value, dq_err *err)
{
    dq_opt opts[DQ_OPTIONS_MAX];
    DQ_TRY(dq_options_flatten(opts, rows, err));
    for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
        if (o->name && strcmp(o->name, name) == 0) return set(o, value, err);
    }
    return unknown_option(name, opts, NULL, err);
}

/* Numbers with commas; `expected` names them where [min, max] is not enough. */
static dq_status parse_list(int *out, int *n, int cap, const char *text, const char *option,
                            int min, int max, bool widths, dq_err *err)
{
    char expected[64];
    snprintf(expected, sizeof expected,
             widths ? "widths of %d to 8 bits, or %d," : "numbers from %d to %d", min, max);
    *n = 0;
    for (const char *p = text;; p++) {
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        if (end == p || errno || (*end && *end != ',') || v < min || v > max || *n == cap ||
            *p == ' ' || (widths && !is_width(v)))
            return dq_fail(err, DQ_USAGE, "--%s: expected %s with commas between, found \"%s\".",
                           option, expected, text);
        for (int i = 0; i < *n; i++) {
            if (out[i] == v)
                return dq_fail(err, DQ_USAGE, "--%s: %ld stands twice in \"%s\".", option, v, text);
        }
        out[(*n)++] = (int)v;
        if (!*end) return DQ_OK;
        p = end;
    }
}

dq_status dq_options_ints(int *out, int *n, int cap, const char *text, const char *option, int min,
                          int max, dq_err *err)
{
    return parse_list(out, n, cap, text, option, min, max, false, err);
}

dq_status dq_options_bits(int *out, int *n, int cap, const char *text, const char *option,
                          dq_err *err)
{
    return parse_list(out, n, cap, text, option, 2, 16, true, err);
}

int dq_options_word(const char *text, const char *option, const char *const *names, int n,
                    dq_err *err)
{
    char all[256] = "";
    for (int i = 0; i < n; i++) {
        if (strcmp(text, names[i]) == 0) return i;
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", names[i]);
    }
    dq_fail(err, DQ_USAGE, "--%s: expected one of %s; found \"%s\".", option, all, text);
    return -1;
}

dq_status dq_options_words(int *out, int *n, const char *text, const char *option,
                           const char *const *names, int n_names, dq_err *err)
{
    char word[64];
    *n = 0;
    for (const char *p = text;; p++) {
        const size_t len = strcspn(p, ",");
        if (len == 0) return dq_fail(err, DQ_USAGE, "--%s: an empty part in \"%s\".", option, text);
        snprintf(word, sizeof word, "%.*s", (int)(len < sizeof word ? len : sizeof word), p);
        const int i = dq_options_word(word, option, names, n_names, err);
        if (i < 0) return err->code;
        for (int k = 0; k < *n; k++) {
            if (out[k] == i) return dq_fail(err, DQ_USAGE, "--%s: %s stands twice.", option, word);
        }
        out[(*n)++] = i;
        p += len;
        if (!*p) return DQ_OK;
    }
}

/* The rows of command options do the work, with their checks and nearest names; getopt does not, as
 * the calling program may be using it. */

static bool is_flag(const dq_opt *rows, const char *name)
{
    for (const dq_opt *o = rows; !dq_opt_is_end(o); o++) {
        if (o->kind == DQ_OPT_ROWS && is_flag(o->to, name)) return true;
        if (o->name && strcmp(o->name, name) == 0) return o->kind == DQ_OPT_FLAG;
    }
    return false;
}

/* `text` becomes a copy of the setting: NAME, a NUL, and VALUE. */
static dq_status read_one(char *text, const char *setting, const dq_opt *rows, dq_err *err)
{
    const char *equals = strchr(setting, '=');
    if (!equals || equals == setting)
        return dq_fail(err, DQ_USAGE, "expected NAME=VALUE, found \"%.80s\"", setting);
    const size_t n = (size_t)(equals - setting);
    char *value = text + n + 1;
    memcpy(text, setting, strlen(setting) + 1);
    text[n] = 0;
    for (char *c = text; *c; c++) {
        if (*c == '_') *c = '-';
    }
    if (!is_flag(rows, text)) return options_set(rows, text, value, err);
    if (strcmp(value, "true") == 0) return options_set(rows, text, NULL, err);
    if (strcmp(value, "false") == 0) return DQ_OK;
    return dq_fail(err, DQ_USAGE, "%.80s: expected true or false", setting);
}

dq_status dq_settings_read(dq_settings *s, const char *const *settings, const dq_opt *rows,
                           dq_err *err)
{
    size_t bytes = 1, at = 0;
    *s = (dq_settings){0};
    for (int i = 0; settings && settings[i]; i++) bytes += strlen(settings[i]) + 1;
    s->text = dq_block_new(bytes, 1, err);
    if (!s->text) return err->code;
    for (int i = 0; settings && settings[i]; i++) {
        DQ_TRY(read_one(s->text + at, settings[i], rows, err));
        at += strlen(settings[i]) + 1;
    }
    return DQ_OK;
}

void dq_settings_free(dq_settings *s)
{
    dq_block_free(s->text);
    s->text = NULL;
}
