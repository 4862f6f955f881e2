/* main: the table of commands, one error line, the exit status.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "cmds/cli/advice.h"
#include "cmds/cli/document.h"
#include "cmds/cli/options.h"
#include "cmds/cli/version.h"
#include "cmds/command.h"
#include "cmds/last_words.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef struct dq_cmd {
    const char *name, *purpose;
    dq_cmd_run *run;
} dq_cmd;

static const dq_cmd commands[] = {
    {"stats", "activation outliers of one or many models, side by side", dq_cmd_stats},
    {"quantize", "write a low-bit container", dq_cmd_quantize},
    {"plan", "find out which bits where, of weights or of the KV cache", dq_cmd_plan},
    {"eval", "score models across bit widths: accuracy, NLL, KLD", dq_cmd_eval},
    {"report", "a page of what stats, quantize, plan, bench and eval print with --json",
     dq_cmd_report},
    {"info", "what a container or checkpoint holds", dq_cmd_info},
    {"verify", "check every byte of a container", dq_cmd_verify},
    {"export", "a container as a folder for transformers", dq_cmd_export},
    {"logits", "logits of given ids, for comparing with other programs", dq_cmd_logits},
    {"tokenize", "text to ids", dq_cmd_tokenize},
    {"bench", "prefill speed with its share of the matrix product", dq_cmd_bench},
    {"doctor", "versions, devices and CPU features, for bug reports", dq_cmd_doctor},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_usage(FILE *f)
{
    fprintf(f, "dq " DQ_VERSION ": low-bit quantization of Differential Transformers\n\n"
               "usage: dq COMMAND [options] ARGUMENTS\n\ncommands:\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].purpose);
    fprintf(
        f, "\nA MODEL is a folder with config.json and *.safetensors, a .gguf file, or a .h5 "
           "container.\n"
           "dq COMMAND --help, or dq help COMMAND, explains a command; dq --version prints the "
           "version.\n\n"
           "exit status: 0 done, 1 bug, 2 usage, 3 damaged input, 4 inputs that do not fit or are\n"
           "unsupported, 5 resources, 6 files, 7 quality gate missed, 130/143 interrupted,\n"
           "141 the reader of standard output left (| head): files are complete\n");
}

static const dq_cmd *find(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(name, commands[i].name) == 0) return &commands[i];
    }
    return NULL;
}

static dq_status unknown(const char *word, dq_err *err)
{
    const char *names[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++) names[i] = commands[i].name;
    const char *near = dq_options_nearest(word, names, N_COMMANDS);
    return dq_fail(err, DQ_USAGE, "unknown command \"%s\". %s%s%sSee dq --help.", word,
                   near ? "Did you mean dq " : "", near ? near : "", near ? "? " : "");
}

static dq_status run(int argc, char **argv, const char **name, dq_err *err)
{
    if (argc < 2) {
        print_usage(stderr);
        return dq_fail(err, DQ_USAGE, "no command given.");
    }
    const char *word = argv[1];
    bool help = strcmp(word, "help") == 0;
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || (help && argc == 2)) {
        print_usage(stdout);
        return dq_document_flush(err);
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "version") == 0) {
        printf("dq " DQ_VERSION "\n");
        return dq_document_flush(err);
    }
    if (help && argc > 4)
        return dq_fail(err, DQ_USAGE, "dq help takes a command and a topic (found \"%s\").",
                       argv[4]);
    if (help && strcmp(argv[2], "help") == 0) {
        print_usage(stdout);
        return dq_document_flush(err);
    }
    const dq_cmd *c = find(help ? argv[2] : word);
    if (!c) return unknown(help ? argv[2] : word, err);
    char requested[64] = "--help", *text[] = {argv[help ? 2 : 1], requested, NULL};
    if (help && argc > 3) snprintf(requested, sizeof requested, "--help=%s", argv[3]);
    *name = c->name;
    dq_last_words_name(*name);
    if (c->run(help ? 2 : argc - 1, help ? text : argv + 1, err) == DQ_OK &&
        dq_json_complete(err) == DQ_OK)
        dq_document_flush(err);
    return err->code;
}

static int run_all(int argc, char **argv)
{
    dq_err err = {0};
    const char *name = NULL;

    if (dq_os_process_begin(&err) != DQ_OK) return (int)err.code;
    dq_last_words_begin();
    signal(SIGPIPE, SIG_IGN); /* outputs in files are to be finished first */
    dq_os_catch_signals();
    dq_json_watch();
    run(argc, argv, &name, &err);
    if (err.code == DQ_OK &&
        dq_document_reader_left()) { /* as other programs end there: 141 in a shell */
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    if (err.code == DQ_OK) return 0;
    dq_advice_apply(&err);
    fprintf(stderr, "dq%s%s: error: %s\n", name ? " " : "", name ? name : "", err.text);
    if (err.code == DQ_BUG)
        fprintf(stderr, "dq: this is a bug in dq; please report it with the output of dq doctor\n");
    if (err.code == DQ_STOPPED && dq_os_stop_signal() == SIGTERM) return 143;
    return (int)err.code;
}

int main(int argc, char **argv)
{
    dq_os_threads_begin(argv);
    int status = run_all(argc, argv);
    dq_last_words_end();
    return status;
}
