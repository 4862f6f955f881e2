/* cmd_tokenize: text to ids, for looking and for comparing with other programs.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "base/text.h"
#include "checkpoint/gguf.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "model/model.h"
#include "record/record.h"
#include "settings/inputs.h"
#include "settings/options.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>

typedef struct tokenize {
    const char *text_path;
    bool lines, special, decode;
    dq_logger logger;
    dq_arena *arena;
    dq_model *model; /* NULL unless a container */
    dq_tokenizer *tokenizer;
    dq_strbuf out;          /* printed only once everything went well */
    int64_t bad, first_bad; /* ill-formed subparts of the text */
} tokenize;

static const dq_usage usage = {
    .name = "tokenize",
    .synopsis = "MODEL --text FILE [--lines] [--special] [--decode]",
    .about = "Prints the ids of a text as decimal numbers with one space between them, on one "
             "line, exactly as the Hugging Face tokenizers library gives them, with the added "
             "tokens of transformers. MODEL is a folder with tokenizer.json, a tokenizer.json "
             "file, a container, or a GGUF file of any model, with or without tensors. In a "
             "folder, tokenizer_config.json, special_tokens_map.json and added_tokens.json are "
             "read if they exist. With --decode FILE holds such ids, and their text is printed, "
             "followed by a newline; on a terminal '?' stands for control characters.\n",
    .examples = "  dq tokenize diffllama/ --text book.txt\n"
                "  printf 'two words' | dq tokenize tokenizer.json --text - --special\n"
                "  printf '17 4 250' | dq tokenize diffllama/ --text - --decode\n"};

static dq_status load(tokenize *x, const char *where, const char *json, size_t len,
                      const char *config, size_t config_len, dq_err *err)
{
    if (dq_tokenizer_load(&x->tokenizer, json, len, config, config_len, err) != DQ_OK)
        return dq_in(err, "%s: ", where);
    return DQ_OK;
}

static dq_status no_tokenizer(const char *path, dq_err *err)
{
    return dq_fail(err, DQ_MISMATCH,
                   "%s: the file holds no tokenizer. Give the folder of its source.", path);
}

static dq_status open_tokenizer(tokenize *x, const char *path, dq_err *err)
{
    static const uint8_t hdf5[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1A, '\n'};
    uint8_t begin[8] = {0};
    char *json;
    size_t len;
    if (dq_file_is_dir(path)) {
        dq_tokenizer_text text[DQ_TOKENIZER_FILES] = {{NULL, 0}};
        for (int i = 0; i < DQ_TOKENIZER_FILES; i++) {
            const size_t max = i ? DQ_MAX_CONFIG : DQ_MAX_TOKENIZER;
            const char *file = dq_textf(x->arena, err, "%s/%s", path, dq_tokenizer_file[i]);
            char *s;
            if (!file) return err->code;
            if (i && !dq_file_exists(file)) continue;
            DQ_TRY(dq_file_read_small(&s, &text[i].len, file, max, x->arena, err));
            text[i].s = s;
        }
        if (dq_tokenizer_load_files(&x->tokenizer, text, err) != DQ_OK)
            return dq_in(err, "%s: ", path);
        return DQ_OK;
    }
    dq_os_map map;
    DQ_TRY(dq_os_map_open(&map, path, err));
    if (map.bytes >= 8) memcpy(begin, map.data, 8);
    dq_os_map_close(&map);
    if (memcmp(begin, hdf5, 8) == 0) {
        DQ_TRY(dq_model_open(&x->model, path, err));
        DQ_TRY(dq_input_tokenizer(&x->tokenizer, x->model, false, err));
        return x->tokenizer ? DQ_OK : no_tokenizer(path, err);
    }
    if (memcmp(begin, "GGUF", 4) == 0) {
        /* Metadata are enough: any model's, or a file with nothing else. */
        const char *tokens, *config;
        size_t length, config_len;
        dq_gguf_model *m;
        DQ_TRY(dq_gguf_model_open_tokenizer(&m, path, err));
        dq_gguf_model_text(m, "tokenizer.json", &tokens, &length, err);
        dq_gguf_model_text(m, "tokenizer_config.json", &config, &config_len, err);
        if (tokens)
            load(x, path, tokens, length, config, config_len, err);
        else
            no_tokenizer(path, err);
        dq_gguf_model_close(m);
        return err->code;
    }
    DQ_TRY(dq_file_read_small(&json, &len, path, DQ_MAX_TOKENIZER, x->arena, err));
    return load(x, path, json, len, NULL, 0, err);
}

/* Appends the ids of text[len], at offset `at` of the whole, as a line. */
static dq_status put_line(tokenize *x, const char *text, size_t len, size_t at, dq_err *err)
{
    int32_t *ids;
    int64_t n, first, bad;
    DQ_TRY(dq_tokenizer_encode(x->tokenizer, text + at, len, x->special ? DQ_TOK_SPECIAL : 0, &ids,
                               &n, &first, &bad, err));
    if (bad && x->bad == 0) x->first_bad = (int64_t)at + first;
    x->bad += bad;
    dq_strbuf *out = &x->out;
    if (dq_strbuf_reserve(out, (size_t)n * 12 + 1, err) == DQ_OK) {
        for (int64_t i = 0; i < n; i++) {
            if (i) out->s[out->n++] = ' ';
            char digits[12];
            size_t count = sizeof digits;
            uint32_t v = (uint32_t)ids[i];
            do {
                digits[--count] = (char)('0' + v % 10);
                v /= 10;
            } while (v);
            memcpy(out->s + out->n, digits + count, sizeof digits - count);
            out->n += sizeof digits - count;
        }
        out->s[out->n++] = '\n';
    }
    dq_block_free(ids);
    return err->code;
}

/* The line number of byte `at`. */
static int64_t line_of(const char *text, size_t at)
{
    int64_t line = 1;
    for (size_t i = 0; i < at; i++) line += text[i] == '\n';
    return line;
}

static dq_status put_text(tokenize *x, const char *text, size_t len, size_t at, dq_err *err)
{
    const char *line = text + at;
    static const char spaces[] = " \t\r\n";
    int32_t *ids = dq_block_new(len / 2 + 1, sizeof *ids, err);
    char *decoded = NULL;
    int64_t n = 0;
    size_t used = 0;
    if (!ids) return err->code;
    for (size_t i = 0; err->code == DQ_OK && i < len;) {
        int64_t v = 0;
        size_t digits = 0;
        if (strchr(spaces, line[i]) && line[i]) {
            i++;
            continue;
        }
        for (; i < len && line[i] >= '0' && line[i] <= '9' && digits < 10; i++, digits++)
            v = 10 * v + (line[i] - '0');
        bool ends = i == len || (line[i] && strchr(spaces, line[i]));
        if (!digits || !ends || v >= dq_tokenizer_vocab(x->tokenizer))
            dq_fail(err, DQ_DAMAGED,
                    "%s: line %lld: expected whole numbers from 0 to %d with spaces between "
                    "(--decode takes ids)",
                    x->text_path, (long long)line_of(text, at + i),
                    dq_tokenizer_vocab(x->tokenizer) - 1);
        ids[n++] = (int32_t)v;
    }
    if (err->code == DQ_OK &&
        dq_tokenizer_decode(x->tokenizer, ids, n, x->special ? DQ_TOK_SPECIAL : 0, &decoded, &used,
                            err) == DQ_OK &&
        dq_strbuf_add(&x->out, decoded, used, err) == DQ_OK)
        dq_strbuf_add(&x->out, "\n", 1, err);
    dq_block_free(decoded);
    dq_block_free(ids);
    return err->code;
}

static dq_status put(tokenize *x, const char *text, size_t len, size_t at, dq_err *err)
{
    return x->decode ? put_text(x, text, len, at, err) : put_line(x, text, len, at, err);
}

static dq_status put_lines(tokenize *x, const char *text, size_t len, dq_err *err)
{
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t line = end ? (size_t)(end - text) - at : len - at;
        DQ_TRY(dq_os_check_stop(err));
        DQ_TRY(put(x, text, line, at, err));
        at += line + 1;
    }
    return DQ_OK;
}

static dq_status run(tokenize *x, const dq_args *args, dq_err *err)
{
    char *text;
    size_t len;
    if (!x->text_path)
        return dq_fail(err, DQ_USAGE,
                       "no text given. Use --text FILE, or --text - for standard input.");
    DQ_TRY(open_tokenizer(x, args->item[0], err));
    DQ_TRY(dq_file_read_text(&text, &len, x->text_path, 0, x->arena, err));
    DQ_TRY(x->lines ? put_lines(x, text, len, err) : put(x, text, len, 0, err));
    if (x->bad)
        dq_logger_warn(
            &x->logger,
            "%s: not UTF-8: %lld ill-formed pieces were read as U+FFFD, the first at byte %lld",
            x->text_path, (long long)x->bad, (long long)x->first_bad);
    if (x->out.n) dq_stdout_put_exact(x->out.s, x->out.n);
    return dq_stdout_flush(err);
}

dq_status dq_cmd_tokenize(int argc, char **argv, dq_err *err)
{
    tokenize x = {.arena = dq_arena_new()};
    const dq_opt opts[] = {
        dq_opt_text("text", "FILE", &x.text_path, "text to encode, - for standard input"),
        dq_opt_flag("lines", &x.lines,
                    "one line of ids per line of text; a line ends at U+000A, which is removed"),
        dq_opt_flag(
            "special", &x.special,
            "add the tokens that the tokenizer puts around a text; with --decode, keep them"),
        dq_opt_flag("decode", &x.decode,
                    "the other way round: FILE holds decimal ids, the text is printed"),
        DQ_LOGGER_OPTIONS(x.logger),
        {0},
    };
    dq_args args;
    if (!x.arena) dq_fail(err, DQ_RESOURCE, "out of memory");
    if (x.arena && dq_help_begin(&args, argc, argv, opts, &usage, &x.logger, err))
        run(&x, &args, err);
    dq_tokenizer_free(x.tokenizer);
    dq_model_close(x.model);
    dq_logger_end(&x.logger);
    dq_block_free(x.out.s);
    dq_arena_free(x.arena);
    return err->code;
}
