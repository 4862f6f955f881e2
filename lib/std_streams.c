/* std_streams: stdin, stdout and stderr for archives that are not position independent, in a
 * libdq.so that holds them. Those of Debian refer to these variables of libc by offset, which a
 * shared library cannot; the linker's --wrap turns the references to copies in the library.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>

extern FILE *__real_stdin, *__real_stdout, *__real_stderr;
extern FILE *__wrap_stdin, *__wrap_stdout, *__wrap_stderr;
FILE *__wrap_stdin, *__wrap_stdout, *__wrap_stderr;

/* Runs before constructors without a priority. */
__attribute__((constructor(101))) static void copy_streams(void)
{
    __wrap_stdin = __real_stdin;
    __wrap_stdout = __real_stdout;
    __wrap_stderr = __real_stderr;
}
