/* last_words: see last_words.h. What runs here may have interrupted anything: no stdio, no memory. The line is put
 * together in a static buffer and written by one call; a second thread that fails meanwhile waits for the process
 * to end.
 * SPDX-License-Identifier: MIT */
#include "cmds/last_words.h"

#include "base/os.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *who;
static atomic_flag spoken = ATOMIC_FLAG_INIT;
static bool ended;

static size_t append(char *line, size_t cap, size_t n, const char *text)
{
    while (*text && n + 2 < cap) line[n++] = *text++;
    line[n] = 0;
    return n;
}

/* Says it in one write and ends. Other threads that come here meanwhile wait for that. */
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
