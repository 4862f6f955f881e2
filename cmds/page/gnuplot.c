/* gnuplot: see gnuplot.h. Script, drawing and complaints are three nameless files that the child inherits as its
 * standard streams: no pipe can fill up, and nothing is left behind. What the child wrote is read after it has
 * ended.
 * SPDX-License-Identifier: MIT */
#include "cmds/page/gnuplot.h"

#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* A nameless file; -1 on failure. */
static int nameless(dq_err *err)
{
    char path[4096];
    const char *dir = getenv("TMPDIR");
    if (!dir || !*dir) dir = "/tmp";
    if (snprintf(path, sizeof path, "%s/dq-XXXXXX", dir) >= (int)sizeof path) {
        dq_fail(err, DQ_FILE, "TMPDIR: path too long");
        return -1;
    }
    int fd = mkstemp(path);
    if (fd < 0)
        dq_fail(err, DQ_FILE, "%s: cannot create a file: %s. Set TMPDIR to another folder", dir,
                strerror(errno));
    else
        unlink(path);
    return fd;
}

static dq_status put(int fd, const char *text, size_t len, dq_err *err)
{
    while (len > 0) {
        ssize_t n = write(fd, text, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return dq_fail(err, DQ_FILE, "temporary file: cannot write: %s", strerror(errno));
        text += n;
        len -= (size_t)n;
    }
    if (lseek(fd, 0, SEEK_SET) != 0)
        return dq_fail(err, DQ_FILE, "temporary file: %s", strerror(errno));
    return DQ_OK;
}

static dq_status take(char **out, size_t *len, int fd, dq_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return dq_fail(err, DQ_FILE, "temporary file: %s", strerror(errno));
    char *text = malloc((size_t)st.st_size + 1);
    if (!text) return dq_fail(err, DQ_RESOURCE, "out of memory");
    size_t have = 0, want = (size_t)st.st_size;
    while (have < want) {
        ssize_t n = pread(fd, text + have, want - have, (off_t)have);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        have += (size_t)n;
    }
    text[have] = 0;
    *out = text;
    *len = have;
    return have == want ? DQ_OK : dq_fail(err, DQ_FILE, "temporary file: cannot be read");
}

/* Starts `argv` on three open files and waits for it. */
static dq_status spawn(int *status, char *const *argv, const int fd[3], dq_err *err)
{
    posix_spawn_file_actions_t files;
    pid_t pid;
    if (posix_spawn_file_actions_init(&files) != 0)
        return dq_fail(err, DQ_RESOURCE, "out of memory");
    int e = 0;
    for (int i = 0; i < 3 && e == 0; i++) e = posix_spawn_file_actions_adddup2(&files, fd[i], i);
    for (int i = 0; i < 3 && e == 0; i++) {
        if (fd[i] > 2) e = posix_spawn_file_actions_addclose(&files, fd[i]);
    }
    if (e == 0) e = posix_spawnp(&pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (e == ENOENT || e == EACCES || e == ENOTDIR)
        return dq_fail(err, DQ_RESOURCE,
                       "gnuplot is missing; it draws the pictures of pages. Install it (Debian, "
                       "Ubuntu: gnuplot-nox; Fedora: gnuplot-minimal)");
    if (e != 0) return dq_fail(err, DQ_RESOURCE, "gnuplot cannot be started: %s", strerror(e));
    while (waitpid(pid, status, 0) < 0) {
        if (errno != EINTR) return dq_fail(err, DQ_RESOURCE, "gnuplot: %s", strerror(errno));
        if (dq_os_stop_signal()) kill(pid, SIGTERM);
    }
    return dq_os_check_stop(err); /* Ctrl-C ends gnuplot too: no fault of its own */
}

/* The first line with letters; gnuplot also prints the place of an error as a line of marks. */
static void first_complaint(char line[200], const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (strpbrk(text, "abcdefghijklmnopqrstuvwxyz") < text + n && text[0] != '^') {
            snprintf(line, 200, "%.*s", (int)n, text);
            if (strstr(line, "line ")) return;
        }
        text += n + (text[n] == '\n');
    }
}

/* A full disk makes gnuplot fail like any other trouble, or not at all: whether another byte fits after what it
 * wrote. */
static dq_status check_disk(int fd, dq_err *err)
{
    struct stat st;
    if (fstat(fd, &st) == 0 &&
        (pwrite(fd, "\n", 1, st.st_size) != 1 || ftruncate(fd, st.st_size) != 0))
        return dq_fail(err, DQ_FILE, "temporary file: cannot write what gnuplot draws: %s",
                       strerror(errno));
    return DQ_OK;
}

static dq_status run(char **out, size_t *len, char *const *argv, const int fd[3], dq_err *err)
{
    int status = 0;
    char *said = NULL, line[200] = "no message";
    size_t n;
    DQ_TRY(spawn(&status, argv, fd, err));
    DQ_TRY(check_disk(fd[1], err));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return take(out, len, fd[1], err);
    if (take(&said, &n, fd[2], err) == DQ_OK) {
        first_complaint(line, said);
        dq_fail(err, DQ_RESOURCE, "gnuplot failed (%s %d): %s",
                WIFEXITED(status) ? "exit status" : "signal",
                WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), line);
    }
    free(said);
    return err->code;
}

static dq_status start(char **out, size_t *len, const char *script, size_t script_len,
                       char *const *argv, dq_err *err)
{
    int fd[3] = {-1, -1, -1};
    for (int i = 0; i < 3 && err->code == DQ_OK; i++) fd[i] = nameless(err);
    if (err->code == DQ_OK && put(fd[0], script, script_len, err) == DQ_OK)
        run(out, len, argv, fd, err);
    for (int i = 0; i < 3; i++) {
        if (fd[i] >= 0) close(fd[i]);
    }
    return err->code;
}

dq_status dq_gnuplot_check(dq_err *err)
{
    char name[] = "gnuplot", option[] = "--version";
    char *argv[] = {name, option, NULL}, *out = NULL;
    size_t len;
    int version = 0;
    DQ_TRY(start(&out, &len, "", 0, argv, err));
    if (sscanf(out, "gnuplot %d", &version) != 1 || version < 5)
        dq_fail(err, DQ_RESOURCE, "gnuplot: version 5 or later is needed (found \"%.40s\")", out);
    free(out);
    return err->code;
}

/* Read as a file, not as a dialogue, a script ends at its first error. */
dq_status dq_gnuplot_run(char **out, size_t *len, const char *script, size_t script_len,
                         dq_err *err)
{
    char name[] = "gnuplot", defaults[] = "-d", file[] = "/dev/stdin";
    char *argv[] = {name, defaults, file, NULL};
    return start(out, len, script, script_len, argv, err);
}
