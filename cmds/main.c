/* main: the table of commands, one error line, the exit status.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "base/text.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "export/export.h"
#include "record/record.h"
#include "record/version.h"
#include "settings/inputs.h"
#include "settings/options.h"
#include "work/ranks.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const dq_cmd commands[] = {
    {"stats", "activation outliers of one or many models, side by side", dq_cmd_stats,
     DQ_CMD_RANKS},
    {"quantize", "write a low-bit container", dq_cmd_quantize, DQ_CMD_STEPS},
    {"plan", "find out bits of weights, and bits, heads and gates of the KV cache", NULL, 0},
    {"plan weights", "widths of tensors for a budget of loss or of size", dq_cmd_plan_weights,
     DQ_CMD_STEPS},
    {"plan kv", "widths of a KV cache by layer and map, for a mean of bits", dq_cmd_plan_kv,
     DQ_CMD_STEPS},
    {"plan heads", "which KV heads need the whole context", dq_cmd_plan_heads, DQ_CMD_STEPS},
    {"plan gates", "gates: kvzip's choice of tokens without its second pass", dq_cmd_plan_gates,
     DQ_CMD_STEPS},
    {"eval", "score models across bit widths: accuracy, NLL, KLD", dq_cmd_eval, DQ_CMD_RANKS},
    {"generate", "what a model writes after a prompt, or two of them side by side", dq_cmd_generate,
     0},
    {"merge", "one run of the shards that dq eval or stats --shard wrote", dq_cmd_merge, 0},
    {"judged", "accuracy of completions that somebody judged", dq_cmd_judged, 0},
    {"report", "a page of what other commands print with --json", dq_cmd_report, 0},
    {"info", "what a container or checkpoint holds", dq_cmd_info, 0},
    {"verify", "check every byte of a container", dq_cmd_verify, 0},
    {"export", "a container for transformers or llama.cpp", dq_cmd_export, 0},
    {"logits", "logits of given token ids, for comparing with other programs", dq_cmd_logits, 0},
    {"tokenize", "text to token ids", dq_cmd_tokenize, 0},
    {"bench", "measure speed, beside what the machine can do", NULL, 0},
    {"bench prefill", "time a whole prompt", dq_cmd_bench_prefill, 0},
    {"bench generate", "time the whole model, token by token", dq_cmd_bench_generate, 0},
    {"bench decode", "time attention alone, a token after a long context", dq_cmd_bench_decode, 0},
    {"bench attention", "time attention alone, over a prompt", dq_cmd_bench_attention, 0},
    {"bench items", "time the scoring of short items", dq_cmd_bench_items, 0},
    {"bench evict", "time the choice of what a KV cache keeps", dq_cmd_bench_evict, 0},
    {"bench compare", "show what was measured beside peers", dq_cmd_bench_compare, 0},
    {"doctor", "versions, devices and CPU features, for bug reports", dq_cmd_doctor, 0},
};
static const dq_document *const documents[] = {
    &dq_info_document,     &dq_verify_document,   &dq_export_document,    &dq_logits_document,
    &dq_doctor_document,   &dq_generate_document, &dq_quantize_document,  &dq_bench_document,
    &dq_stats_document,    &dq_plan_document,     &dq_gates_document,     &dq_recipe_document,
    &dq_settings_document, &dq_eval_document,     &dq_eval_plan_document, NULL};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_rows(FILE *f, const char *group)
{
    for (int i = 0; i < N_COMMANDS; i++) {
        const dq_cmd *c = &commands[i];
        if (dq_cmd_is_of(c, group))
            fprintf(f, group ? "  %-16s %s\n" : "  %-10s %s\n", c->name, c->purpose);
    }
}

static void print_usage(FILE *f)
{
    fprintf(f, "dq " DQ_VERSION ": low-bit quantization of Differential Transformers\n\n"
               "usage: dq COMMAND [options] ARGUMENTS\n\ncommands:\n");
    print_rows(f, NULL);
    fprintf(f, "\nA MODEL is a folder with config.json and *.safetensors, a .gguf file, or a .h5 "
               "container.\n"
               "dq COMMAND --help, or dq help COMMAND, explains a command; dq --version prints the "
               "version.\n\n");
    dq_help_pages_exits(f);
}

static void print_group(FILE *f, const dq_cmd *group)
{
    fprintf(f, "usage: dq %s COMMAND [options] ARGUMENTS\n\n%s\n\ncommands:\n", group->name,
            group->purpose);
    print_rows(f, group->name);
    fprintf(f, "\ndq help %s COMMAND explains one of them.\n", group->name);
}

/* NULL: no such command; group NULL: of dq. */
static const dq_cmd *find(const char *group, const char *word)
{
    for (int i = 0; i < N_COMMANDS; i++) {
        const dq_cmd *c = &commands[i];
        if (group ? dq_cmd_is_of(c, group) && strcmp(c->name + strlen(group) + 1, word) == 0
                  : strcmp(c->name, word) == 0)
            return c;
    }
    return NULL;
}

/* Commands of other programs, and what stands for them here. */
static const struct {
    const char *theirs, *ours;
} known_elsewhere[] = {
    {"chat", "generate MODEL -i"},
    {"run", "generate MODEL PROMPT"},
    {"cli", "generate MODEL PROMPT"},
    {"completion", "generate MODEL PROMPT"},
    {"perplexity", "eval MODEL --text FILE"},
    {"ppl", "eval MODEL --text FILE"},
    {"evaluate", "eval"},
    {"lm-eval", "eval MODEL --task NAME --data FILE"},
    {"convert", "export"},
    {"imatrix", "quantize MODEL -o OUT.h5 --calib FILE"},
    {"inspect", "info"},
    {"show", "info"},
    {"dump", "info"},
    {"benchmark", "bench"},
};

static dq_status unknown(const char *group, const char *word, dq_err *err)
{
    for (size_t i = 0; !group && i < sizeof known_elsewhere / sizeof *known_elsewhere; i++) {
        if (strcmp(word, known_elsewhere[i].theirs) == 0)
            return dq_fail(err, DQ_USAGE,
                           "unknown command \"%s\". Did you mean dq %s? See dq --help.", word,
                           known_elsewhere[i].ours);
    }
    const char *names[N_COMMANDS];
    int n = 0;
    for (int i = 0; i < N_COMMANDS; i++) {
        if (dq_cmd_is_of(&commands[i], group))
            names[n++] = commands[i].name + (group ? strlen(group) + 1 : 0);
    }
    const char *near = dq_options_nearest(word, names, n), *of = group ? group : "",
               *space = group ? " " : "";
    if (near)
        return dq_fail(err, DQ_USAGE,
                       "unknown command \"%s%s%s\". Did you mean dq %s%s%s? See dq %s%s--help.", of,
                       space, word, of, space, near, of, space);
    return dq_fail(err, DQ_USAGE, "unknown command \"%s%s%s\". See dq %s%s--help.", of, space, word,
                   of, space);
}

static const char *who; /* the command that has the last words, a literal */

/* A command and its arguments. */
typedef struct call {
    const dq_cmd *cmd; /* NULL: dq itself */
    int argc;
    char **argv; /* argv[0] is the command's last word */
} call;

/* cmd may be a group when nothing, or --help, follows. */
static dq_status find_call(call *out, int argc, char **argv, dq_err *err)
{
    const dq_cmd *c = find(NULL, argv[0]);
    if (!c) return unknown(NULL, argv[0], err);
    if (!c->run && argc > 1 && argv[1][0] != '-') {
        const dq_cmd *of = find(c->name, argv[1]);
        if (!of) return unknown(c->name, argv[1], err);
        argc--;
        argv++;
        c = of;
    }
    *out = (call){c, argc, argv};
    return DQ_OK;
}

static bool asks_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int launched(void)
{
    const char *n = getenv("OMPI_COMM_WORLD_SIZE");
    return n ? atoi(n) : 1;
}

static dq_status run_call(const call *c, const char **name, dq_err *err)
{
    *name = c->cmd->name;
    if (!c->cmd->run) {
        if (c->argc < 2 || !asks_help(c->argv[1])) {
            print_group(stderr, c->cmd);
            return dq_fail(err, DQ_USAGE, "expected one of its commands. See dq %s --help.", *name);
        }
        print_group(stdout, c->cmd);
        return dq_stdout_flush(err);
    }
    if (c->cmd->by) {
        DQ_TRY(dq_ranks_begin(err));
        if (dq_ranks_number() > 0 && !(stdout = fopen("/dev/null", "w")))
            return dq_os_fail(err, "/dev/null", "cannot open");
    } else if (launched() > 1) {
        return dq_fail(err, DQ_USAGE,
                       "is one process, and mpirun has started %d. Leave out mpirun.", launched());
    }
    /* Why there is no --shard, and the alternative. */
    for (int i = 1; c->cmd->by == DQ_CMD_STEPS && i < c->argc; i++) {
        const char *word = c->argv[i];
        if (strcmp(word, "--") == 0) break;
        if (strcmp(word, "--shard") == 0 || strncmp(word, "--shard=", 8) == 0)
            return dq_fail(
                err, DQ_USAGE,
                "--shard: later steps need the results of earlier ones, so this is not cut "
                "into shards, which never meet. Use mpirun -n N dq %s.",
                c->cmd->name);
    }
    who = *name;
    if (c->cmd->run(c->argc, c->argv, err) == DQ_OK && dq_json_complete(err) == DQ_OK)
        dq_stdout_flush(err);
    return err->code;
}

/* dq help --FORM [ARGUMENTS] */
static dq_status run_pages(int argc, char **argv, dq_err *err)
{
    const dq_help_pages all = {commands, N_COMMANDS, documents};
    const char *form = argv[0] + 2;
    call c = {.argc = 1};
    if (strcmp(form, "man") == 0) {
        if (argc > 1) DQ_TRY(find_call(&c, argc - 1, argv + 1, err));
        if (c.argc > 1) return dq_fail(err, DQ_USAGE, "dq help --man takes one command.");
        return dq_help_pages_manual(&all, c.cmd, err);
    }
    if (strcmp(form, "completion") == 0 && argc == 2)
        return dq_help_pages_completion(&all, argv[1], err);
    if (strcmp(form, "completion") == 0)
        return dq_fail(err, DQ_USAGE,
                       "dq help --completion takes the name of a shell: bash or zsh.");
    if (argc <= 2 && strcmp(form, "schema") == 0)
        return dq_help_pages_schema(&all, argc == 2 ? argv[1] : NULL, err);
    if (argc == 1 && strcmp(form, "markdown") == 0) return dq_help_pages_markdown(&all, err);
    if (argc == 1 && strcmp(form, "commands") == 0) return dq_help_pages_commands(&all, err);
    return dq_fail(err, DQ_USAGE,
                   "dq help takes a command and a topic, or one of --man [COMMAND], --completion "
                   "SHELL, --schema [NAME], --markdown and --commands.");
}

/* dq help [COMMAND [TOPIC]] */
static dq_status run_help(int argc, char **argv, const char **name, dq_err *err)
{
    call c;
    char requested[64] = "--help", *text[] = {argv[0], requested, NULL};
    if (argc > 0 && strncmp(argv[0], "--", 2) == 0 && !asks_help(argv[0]))
        return run_pages(argc, argv, err);
    if (argc == 0 || asks_help(argv[0]) || strcmp(argv[0], "help") == 0) {
        print_usage(stdout);
        return dq_stdout_flush(err);
    }
    DQ_TRY(find_call(&c, argc, argv, err));
    if (c.argc > 2)
        return dq_fail(err, DQ_USAGE, "dq help takes a command and a topic (found \"%s\").",
                       c.argv[2]);
    if (c.argc > 1) snprintf(requested, sizeof requested, "--help=%s", c.argv[1]);
    c.argc = 2;
    c.argv = text;
    return run_call(&c, name, err);
}

static dq_status run(int argc, char **argv, const char **name, dq_err *err)
{
    call c;
    if (argc < 2) {
        print_usage(stderr);
        return dq_fail(err, DQ_USAGE, "no command given.");
    }
    const char *word = argv[1];
    if (asks_help(word)) {
        print_usage(stdout);
        return dq_stdout_flush(err);
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "version") == 0) {
        printf("dq %s\n", dq_commit_version());
        return dq_stdout_flush(err);
    }
    if (strcmp(word, "help") == 0) return run_help(argc - 2, argv + 2, name, err);
    DQ_TRY(find_call(&c, argc - 1, argv + 1, err));
    return run_call(&c, name, err);
}

/* ---- Last words ----
 * SIGBUS in a mapped file (it was cut short, or its disk fails) is exit status 6 with the file's
 * name; a library that calls exit is exit status 5. Outputs stay as a kill would leave them. What
 * runs here may have interrupted anything: no stdio, no memory. The line is put together in a
 * static buffer and written by one call; a second thread that fails meanwhile waits for the process
 * to end. */

static atomic_flag spoken = ATOMIC_FLAG_INIT;
static bool ended;

static size_t append(char *line, size_t cap, size_t n, const char *text)
{
    while (*text && n + 2 < cap) line[n++] = *text++;
    line[n] = 0;
    return n;
}

/* Prints in one write and exits; other threads wait for that. */
static void speak(dq_status status, const char *what, const char *more)
{
    static char line[8192];
    while (atomic_flag_test_and_set(&spoken)) pause();
    size_t n = append(line, sizeof line, 0, "dq ");
    n = append(line, sizeof line, n, who ? who : "");
    n = append(line, sizeof line, n, ": error: ");
    n = append(line, sizeof line, n, what);
    n = append(line, sizeof line, n, more);
    dq_one_line(line);
    line[n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written;
    _exit((int)status);
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    bool cut;
    const char *path = dq_os_map_at(info->si_addr, &cut);
    (void)context;
    if (path)
        speak(DQ_FILE, path,
              cut ? ": was cut short while it was read. Run again when nothing writes to it."
                  : ": a part of it cannot be read any more. Is its disk, or the network, at "
                    "fault?");
    signal(number, SIG_DFL); /* not ours: what would have happened without this handler */
    raise(number);
}

/* HDF5 1.10 calls exit(-1) where it cannot allocate. */
static void on_exit_elsewhere(void)
{
    if (!ended)
        speak(DQ_RESOURCE, "a library ended the process, as HDF5 does when memory is exhausted.",
              " No result is printed; what is half written is as after a kill.");
}

static void last_words_begin(void)
{
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_sigaction = on_bus_error;
    act.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &act, NULL);
    if (atexit(on_exit_elsewhere) != 0) ended = true; /* 32 handlers are guaranteed, this is one */
}

enum { LATE_MINUTES = 10 };
static void say_late(int rank, const char *what)
{
    fprintf(stderr,
            "dq: warning: for %d minutes nothing has come from rank %d, which is to %s: it "
            "computes something long, or hangs\n",
            LATE_MINUTES, rank, what);
}

static int run_all(int argc, char **argv)
{
    dq_err err = {0};
    const char *name = NULL;

    if (dq_os_process_begin(&err) != DQ_OK) return (int)err.code;
    last_words_begin();
    signal(SIGPIPE, SIG_IGN); /* outputs in files are to be finished first */
    dq_os_catch_signals();
    dq_json_watch();
    dq_ranks_listen(say_late, 60 * LATE_MINUTES);
    if (dq_stdout_begin(&err) == DQ_OK) run(argc, argv, &name, &err);
    dq_ranks_agree(NULL, NULL, &err);
    if (dq_ranks_number() > 0)
        return 0; /* rank 0 says how it ended; on another status mpirun would end it before */
    if (err.code == DQ_OK &&
        dq_stdout_reader_left()) { /* as other programs end there: 141 in a shell */
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
    fflush(stdout);
    dq_ranks_end((dq_status)status);
    ended = true;
    return status;
}
