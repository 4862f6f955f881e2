/* os: what the operating system gives: mappings, libraries, CPU features, clocks, the stop flag.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_OS_H
#define DQ_OS_H

#include "base/base.h"

/* "path: what: reason", the reason from errno: DQ_RESOURCE for memory, else DQ_FILE. */
dq_status dq_os_fail(dq_err *err, const char *path, const char *what);

/* Remembered until it is closed, so that a change of its file is seen. By any thread. */
typedef struct dq_os_map {
    const uint8_t *data; /* NULL when the file is empty */
    size_t bytes;
    struct dq_mapping *entry;
} dq_os_map;

/* Read-only mapping of a regular file; the caller closes it. DQ_FILE names the path. Never waits. */
dq_status dq_os_map_open(dq_os_map *m, const char *path, dq_err *err);
void dq_os_map_close(dq_os_map *m); /* leaves an empty map; may be called again */
/* [p, p + bytes) of a mapping is not needed again: resident memory stays bounded. */
void dq_os_map_release(const void *p, size_t bytes);
/* Reading a page may make this many bytes before and after it resident, too. */
enum { DQ_OS_MAP_AROUND = 64 << 10 };
/* Makes pages at once for whoever is about to write all of them; what they hold stays. */
void dq_os_memory_touch(void *p, size_t bytes);
/* Asks for large pages (2 MiB on x86-64) wherever a whole one fits into [p, p + bytes) of this process's own memory that is
 * not touched yet: what is read in long streams is then translated, and fetched ahead, across 4 KiB. A system that
 * cannot does nothing. */
void dq_os_memory_large(void *p, size_t bytes);
/* DQ_FILE names a mapped file that was written to since it was opened: numbers may come from both of
 * its states. A file that another one replaced under its name, or that was removed, has not changed. */
dq_status dq_os_maps_check(dq_err *err);
/* Addresses for memory that may be needed later: until it is taken it costs nothing and cannot be read. */
typedef struct dq_os_block {
    uint8_t *data; /* NULL: none */
    size_t bytes;
} dq_os_block;
bool dq_os_block_reserve(dq_os_block *b, size_t bytes); /* false: an empty one */
bool dq_os_block_take(dq_os_block *b); /* zeros at first; again: as it is; false: not to be had */
void dq_os_block_free(dq_os_block *b); /* leaves an empty one */
/* NULL: none. *cut: the file is shorter now. For handlers of SIGBUS: calls only what these may call. */
const char *dq_os_map_at(const void *p, bool *cut);

/* A shared library: a path, or a name that the loader searches for; it stays open. NULL: *why says what the loader
 * did, until the next call. A function in it, or NULL. The file it came from, in the arena. */
typedef void dq_os_function(void);
void *dq_os_library_open(const char *name, const char **why);
dq_os_function *dq_os_library_function(void *library, const char *name);
const char *dq_os_library_path(void *library, dq_arena *a, dq_err *err);

enum { DQ_CPU_AVX2 = 1, DQ_CPU_AVX512 = 2, DQ_CPU_VNNI = 4, DQ_CPU_VBMI = 8 };
/* Feature bits of this machine, cut down by the environment variable DQ_CPU=scalar|avx2|avx512
 * (each names the highest ISA allowed). AVX2 means AVX2 + FMA + F16C; AVX512 means F, BW, DQ, VL
 * as well. *unknown (may be NULL) becomes true when DQ_CPU holds another word. */
unsigned dq_os_cpu_features(bool *unknown);
/* What the bits of the forward pass in f32 on this machine's CPU depend on, besides dq itself: whether sums are fused, the
 * compiler and the C library: "ISA avx2 or avx512, gcc 12.2.0, glibc 2.36". One line. */
enum { DQ_OS_ARITHMETIC = 160 };
void dq_os_arithmetic(char about[DQ_OS_ARITHMETIC]);
double dq_os_seconds(void);      /* monotonic */
double dq_os_own_seconds(void);  /* that processors have spent on this process */
int64_t dq_os_cache_bytes(void); /* of the last-level cache that a processor sees; 0 unknown */
/* os.c. Processors that this process may use: its affinity, and the quota of time of its control groups, rounded
 * up. root: "", or where a test keeps files. */
int dq_os_cpu_count(const char *root);
/* n processes of this job are on this machine: each has an nth of its memory, and of its processors where none is bound to a part
 * of them. */
void dq_os_share_machine(int n);
int dq_os_threads(void); /* that parallel regions have */
/* Makes threads that wait for each other sleep after some 50 microseconds, unless the environment says how they wait
 * (GOMP_SPINCOUNT, OMP_WAIT_POLICY): starts the program anew with that set. First in main. Returns where it is set,
 * or where this cannot be done; then threads wait as the runtime of OpenMP has it. */
void dq_os_threads_begin(char **argv);
/* How often this process and those it comes of were forked since the first call, which is made before a team of threads is
 * needed. From that call on the team of a thread that forks ends before it does: a child would wait for threads that it does
 * not have. Parent and child start teams of their own when they need them. */
int dq_os_forks(void);
int64_t dq_os_peak_bytes(void); /* peak resident memory of this process; 0 unknown */
/* Memory of this machine, or this process's share of it; less where its address space is limited to less; 0 unknown. */
int64_t dq_os_memory_bytes(void);
/* os.c. What this process could still take without driving others out: memory that the machine has available, or
 * less where a control group (version 2) or a limit of the address space leaves less; 0: nothing, or unknown. `root`
 * stands before /proc and /sys: "", or a folder of a test. */
int64_t dq_os_memory_left(const char *root);

/* First thing in main: descriptors 0 to 2 that are closed are taken, so that no file becomes one of
 * them, and reading or writing them fails; SIGXFSZ becomes the error EFBIG. */
dq_status dq_os_process_begin(dq_err *err);
/* Ctrl-C and SIGTERM set a flag; long loops ask for it at a safe point and return DQ_STOPPED. */
void dq_os_catch_signals(void);
int dq_os_stop_signal(void);             /* 0, SIGINT or SIGTERM */
dq_status dq_os_check_stop(dq_err *err); /* DQ_STOPPED "interrupted" once a signal came */
void dq_os_clear_stop(void);             /* as if none had come */

#endif
