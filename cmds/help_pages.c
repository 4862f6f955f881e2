/* A command hands over its rows where it would print its help: each is run with --help, after
 * cli.h was told who takes them.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *status, *meaning;
} exits[] = {
    {"0", "done"},
    {"1", "bug"},
    {"2", "usage"},
    {"3", "damaged input"},
    {"4", "inputs that do not fit or are unsupported"},
    {"5", "resources"},
    {"6", "files"},
    {"7", "quality gate missed"},
    {"130/143", "interrupted"},
    {"141", "the reader of standard output left (| head): files are complete"},
};
enum { N_EXITS = sizeof exits / sizeof exits[0] };

void dq_help_pages_exits(FILE *f)
{
    int at = fprintf(f, "exit status:");
    for (int i = 0; i < N_EXITS; i++) {
        const int n = (int)(strlen(exits[i].status) + strlen(exits[i].meaning)) + 3;
        if (at + n > 100) {
            fprintf(f, "\n            ");
            at = 12;
        }
        at +=
            fprintf(f, " %s %s%s", exits[i].status, exits[i].meaning, i < N_EXITS - 1 ? "," : "\n");
    }
}

/* The command passes its rows to the taker. */
static dq_status hand_over(const dq_cmd *c, dq_err *err)
{
    char name[] = "dq", requested[] = "--help", *argv[] = {name, requested, NULL};
    return c->run(2, argv, err);
}

static dq_status hand_over_all(const dq_help_pages *all, dq_err *err)
{
    for (int i = 0; i < all->n; i++) {
        if (all->cmd[i].run) DQ_TRY(hand_over(&all->cmd[i], err));
    }
    return dq_stdout_flush(err);
}

/* NULL: the command is no group's. */
static bool is_of(const dq_cmd *c, const char *group)
{
    const char *space = strchr(c->name, ' ');
    const size_t n = group ? strlen(group) : 0;
    if (!group || !space) return !group && !space;
    return (size_t)(space - c->name) == n && strncmp(c->name, group, n) == 0;
}

dq_status dq_help_pages_commands(const dq_help_pages *all, dq_err *err)
{
    for (int i = 0; i < all->n; i++) printf("%s\n", all->cmd[i].name);
    return dq_stdout_flush(err);
}

dq_status dq_help_pages_schema(const dq_help_pages *all, const char *name, dq_err *err)
{
    for (const dq_document *const *d = all->document; *d; d++) {
        if (!name) printf("%s\n", (*d)->name);
        if (name && strcmp(name, (*d)->name) == 0)
            return dq_stdout_print(dq_document_schema(*d), err);
    }
    if (name)
        return dq_fail(err, DQ_USAGE, "no document is named \"%s\". See dq help --schema.", name);
    return dq_stdout_flush(err);
}

dq_status dq_help_pages_markdown(const dq_help_pages *all, dq_err *err)
{
    printf("# Commands and options\n\n`dq help --markdown` prints this page.\n\n");
    dq_help_take(dq_help_markdown);
    DQ_TRY(hand_over_all(all, err));
    printf("## dq help\n\n"
           "| Option | |\n|---|---|\n"
           "| `--man [COMMAND]` | a page of the manual, in roff |\n"
           "| `--completion SHELL` | the script for bash or zsh |\n"
           "| `--schema [NAME]` | the JSON Schema of a document, or the names of all |\n"
           "| `--markdown` | this page |\n"
           "| `--commands` | the names of all commands |\n");
    return DQ_OK;
}

static void put_list(const dq_help_pages *all, const char *group)
{
    dq_manual_section("COMMANDS");
    for (int i = 0; i < all->n; i++) {
        const dq_cmd *c = &all->cmd[i];
        if (!group || is_of(c, group)) dq_manual_entry(c->name, c->purpose);
    }
}

dq_status dq_help_pages_manual(const dq_help_pages *all, const dq_cmd *cmd, dq_err *err)
{
    dq_manual_begin(cmd ? cmd->name : NULL,
                    cmd ? cmd->purpose : "low-bit quantization of Differential Transformers");
    dq_help_take(dq_manual_command);
    if (!cmd) {
        dq_manual_section("SYNOPSIS");
        dq_manual_synopsis(NULL, "COMMAND [options] ARGUMENTS\nhelp [COMMAND [TOPIC]]\n--version");
        dq_manual_section("DESCRIPTION");
        dq_manual_text(
            "Quantizes the weights, attention logits and KV caches of Differential Transformers "
            "and of plain ones, and measures what is lost by it.\n"
            "A MODEL is a folder with config.json and *.safetensors, a .gguf file, or a .h5 "
            "container that dq quantize wrote.");
        put_list(all, NULL);
        dq_manual_section("HELP");
        dq_manual_item("dq COMMAND --help",
                       "the options of a command, as does dq help COMMAND; of dq eval the "
                       "most important ones, and the topics that hold the others");
        dq_manual_item("dq help --man [COMMAND]", "a page of this manual, in roff");
        dq_manual_item("dq help --completion bash|zsh", "completion for a shell");
        dq_manual_item("dq help --schema [NAME]",
                       "the JSON Schema of a document, such as dq-info/1, or the names of all");
        dq_manual_item("dq help --markdown", "all options of all commands, in Markdown");
        dq_manual_item("dq help --commands", "the names of all commands");
        dq_manual_item("dq --version",
                       "the version, and the commit that dq was built from where that is known");
    } else if (!cmd->run) {
        dq_manual_section("SYNOPSIS");
        dq_manual_synopsis(cmd->name, "COMMAND [options] ARGUMENTS");
        put_list(all, cmd->name);
    } else
        DQ_TRY(hand_over(cmd, err));
    dq_manual_section("EXIT STATUS");
    for (int i = 0; i < N_EXITS; i++) dq_manual_item(exits[i].status, exits[i].meaning);
    if (cmd) {
        /* The pages of dq and of cmd's group. */
        const dq_cmd *group = NULL;
        for (int i = 0; i < all->n; i++) {
            if (!all->cmd[i].run && is_of(cmd, all->cmd[i].name)) group = &all->cmd[i];
        }
        dq_manual_section("SEE ALSO");
        dq_manual_see(NULL, group != NULL);
        if (group) dq_manual_see(group->name, false);
    }
    return dq_stdout_flush(err);
}

static void put_names(const dq_help_pages *all, const char *group)
{
    dq_completion_group(group ? group : "");
    for (int i = 0; i < all->n; i++) {
        const dq_cmd *c = &all->cmd[i];
        if (is_of(c, group))
            dq_completion_name(c->name + (group ? strlen(group) + 1 : 0), c->purpose);
    }
    dq_completion_group_end();
}

dq_status dq_help_pages_completion(const dq_help_pages *all, const char *shell, dq_err *err)
{
    DQ_TRY(dq_completion_begin(shell, err));
    dq_help_take(dq_completion_command);
    DQ_TRY(hand_over_all(all, err));
    dq_completion_names();
    put_names(all, NULL);
    for (int i = 0; i < all->n; i++) {
        if (!all->cmd[i].run) put_names(all, all->cmd[i].name);
    }
    dq_completion_end();
    return dq_stdout_flush(err);
}

/* What runs here may have interrupted anything: no stdio, no memory. The line is put together in a
 * static buffer and written by one call; a second thread that fails meanwhile waits for the process
 * to end. */

static const char *who;
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

void dq_last_words_begin(void)
{
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_sigaction = on_bus_error;
    act.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &act, NULL);
    if (atexit(on_exit_elsewhere) != 0) ended = true; /* 32 handlers are guaranteed, this is one */
}

void dq_last_words_name(const char *command)
{
    who = command;
}

void dq_last_words_end(void)
{
    ended = true;
}
