/* os: what the operating system gives: mappings, libraries, CPU features, clocks, the stop flag.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_OS_H
#define DQ_OS_H

#include "base/base.h"

/* "path: what: reason" from errno: DQ_RESOURCE for memory, else DQ_FILE. */
dq_status dq_os_fail(dq_err *err, const char *path, const char *what);

/* Registered until closed, so that changes of its file are seen. For any thread. */
typedef struct dq_os_map {
    const uint8_t *data; /* NULL when the file is empty */
    size_t bytes;
    struct dq_mapping *entry;
} dq_os_map;

/* Maps a regular file read-only; the caller closes it. DQ_FILE names the path. Never waits. */
dq_status dq_os_map_open(dq_os_map *m, const char *path, dq_err *err);
void dq_os_map_close(dq_os_map *m); /* leaves an empty map; may be called again */
/* [p, p + bytes) of a mapping will not be needed again. */
void dq_os_map_release(const void *p, size_t bytes);
/* Reading a page may make so many bytes before and after it resident. */
enum { DQ_OS_MAP_AROUND = 64 << 10 };
/* Creates pages at once for a caller about to write all of them; their content stays. */
void dq_os_memory_touch(void *p, size_t bytes);
/* Asks for large pages (2 MiB on x86-64) in untouched own memory [p, p + bytes), which speeds up
 * long sequential reads; does nothing where unsupported. */
void dq_os_memory_large(void *p, size_t bytes);
/* DQ_FILE: the named mapped file was written to since it was opened, so numbers may mix both
 * states. Replacing or removing a file does not change its mapping. */
dq_status dq_os_maps_check(dq_err *err);
/* Reserved address space, which costs nothing and cannot be read until it is taken. */
typedef struct dq_os_block {
    uint8_t *data; /* NULL: none */
    size_t bytes;
} dq_os_block;
bool dq_os_block_reserve(dq_os_block *b, size_t bytes); /* false: an empty one */
bool dq_os_block_take(dq_os_block *b); /* zeros at first; again: as it is; false: not to be had */
void dq_os_block_free(dq_os_block *b); /* leaves an empty one */
/* NULL: none. *cut: the file is shorter now. Safe in handlers of SIGBUS. */
const char *dq_os_map_at(const void *p, bool *cut);

/* Opens a shared library by path or searched name for good; NULL: *why is the loader's reason until
 * the next call. Then a function in it, or NULL; and the file it came from, in the arena. */
typedef void dq_os_function(void);
void *dq_os_library_open(const char *name, const char **why);
dq_os_function *dq_os_library_function(void *library, const char *name);
const char *dq_os_library_path(void *library, dq_arena *a, dq_err *err);

enum { DQ_CPU_AVX2 = 1, DQ_CPU_AVX512 = 2, DQ_CPU_VNNI = 4, DQ_CPU_VBMI = 8 };
/* Feature bits limited by DQ_CPU=scalar|avx2|avx512 (the highest ISA allowed). AVX2 means AVX2 +
 * FMA + F16C; AVX512 means F, BW, DQ, VL too. *unknown (NULL allowed): DQ_CPU holds another
 * word. */
unsigned dq_os_cpu_features(bool *unknown);
/* What the bits of f32 on this CPU depend on besides dq, one line: fused sums, compiler and C
 * library: "ISA avx2 or avx512, gcc 12.2.0, glibc 2.36". */
enum { DQ_OS_ARITHMETIC = 160 };
void dq_os_arithmetic(char about[DQ_OS_ARITHMETIC]);
double dq_os_seconds(void);      /* monotonic */
double dq_os_own_seconds(void);  /* that processors have spent on this process */
int64_t dq_os_cache_bytes(void); /* of the last-level cache that a processor sees; 0 unknown */
/* Processors this process may use: its affinity, and its groups' quota rounded up. root: "", or a
 * test's folder. */
int dq_os_cpu_count(const char *root);
/* n processes of this job share the machine: each has an nth of its memory, and of its processors
 * unless bound. */
void dq_os_share_machine(int n);
int dq_os_threads(void); /* that parallel regions have */
/* They have n from now on; 0: as many as processors. */
void dq_os_threads_set(int64_t n);
/* Makes waiting threads sleep after some 50 microseconds unless the environment decides
 * (GOMP_SPINCOUNT, OMP_WAIT_POLICY), by restarting the program. First in main; does nothing where
 * it cannot. */
void dq_os_threads_begin(char **argv);
/* Counts forks of this process and its ancestors since the first call, which must precede the first
 * team of threads. From then on a forking thread's team ends first, as the child would wait for
 * threads that it lacks; both start new teams. */
int dq_os_forks(void);
int64_t dq_os_peak_bytes(void); /* peak resident memory of this process; 0 unknown */
/* This machine's memory, or this process's share, or its address limit if less; 0: unknown. */
int64_t dq_os_memory_bytes(void);
/* Memory that this process can take without hurting others: what is available, or what a control
 * group (version 2) or address limit leaves; 0: nothing, or unknown. root precedes /proc and /sys:
 * "", or a test's folder. */
int64_t dq_os_memory_left(const char *root);

/* First in main: occupies closed descriptors 0 to 2, so that no file gets them and using them
 * fails; turns SIGXFSZ into EFBIG. */
dq_status dq_os_process_begin(dq_err *err);
/* Ctrl-C and SIGTERM set a flag, which long loops check at safe points to return DQ_STOPPED. */
void dq_os_catch_signals(void);
int dq_os_stop_signal(void);             /* 0, SIGINT or SIGTERM */
dq_status dq_os_check_stop(dq_err *err); /* DQ_STOPPED "interrupted" once a signal came */
void dq_os_clear_stop(void);             /* as if none had come */

#endif
