/* sweep: which variant of attend_hopper is the fastest that is right, and how far what it is made of could go.
 *   gpu_sweep [--small] [--only TEXT] [--limit SECONDS] [--seconds SECONDS]
 * Parts are loops of one thing alone (sweep_kernels.h), and each variant with 8192, 65536 and 2048 keys, in f16
 * and with logits rounded to 8 bits: a prompt whose tokens are codes but for the last of each row, in 12 output heads with two maps
 * of 128 channels and values of 256. --only: parts whose name holds TEXT. A variant is right if tiles of its output
 * are those of the kernel by mma.sync; what is not is not timed.
 *
 * Parts run in a process of their own, which is ended where one takes longer than --limit (default 20), and begun again
 * behind it. Each result is a line of JSON on stderr as it comes. stdout gets one document at the end, which is after
 * --seconds (default 240) or a SIGTERM at the latest: variants by time, and the winner.
 * Exits: 0, 1 a part is wrong, failed or was not run, 2 usage, 77 no GPU of compute capability 9.0.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "kernels/cuda/host/runtime.h"
#include "tests/gpu/peaks.h"
#include "tests/gpu/sweep_kernels.h"

#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DIM = 128, WIDTH = 256, TILE = 64, HEADS = 12, SMALL_HEADS = 1, QMAX = 127 };
enum { LOOP_PARTS = 1, SIZES = 3, MAX_TILES = 6, MAX_RUNS = 9, NO_GPU = 77 };
static const int sizes[SIZES] = {8192, 65536, 2048}, small_sizes[SIZES] = {320, 0, 0};
static const float largest_logit = 6;

typedef struct options {
    bool small;
    const char *only;
    double limit, seconds;
} options;

/* ------------------------------------------------------------------------------------------ parts */
/* 0: peaks of libraries; then loops; then variants, by size, in f16 and rounded. */
typedef struct part {
    int loop, variant, keys; /* -1: none of those */
    bool rounded;
    char name[96];
} part;

static bool part_of(part *p, int i, const options *o)
{
    memset(p, 0, sizeof *p);
    p->loop = p->variant = -1;
    if (i < LOOP_PARTS) {
        snprintf(p->name, sizeof p->name, "peaks");
        return true;
    }
    i -= LOOP_PARTS;
    if (i < dq_sweep_n_loops) {
        p->loop = i;
        snprintf(p->name, sizeof p->name, "alone:%s", dq_sweep_loops[i].name);
        return true;
    }
    i -= dq_sweep_n_loops;
    if (i >= 2 * SIZES * dq_sweep_n_variants) return false;
    const int size = i / (2 * dq_sweep_n_variants);
    p->variant = i % dq_sweep_n_variants;
    p->rounded = i / dq_sweep_n_variants % 2 != 0;
    p->keys = (o->small ? small_sizes : sizes)[size];
    const dq_sweep_variant *v = &dq_sweep_variants[p->variant];
    snprintf(p->name, sizeof p->name, "%d:%s:cluster-%d:ring-%d:%s:%s", p->keys,
             p->rounded ? "rounded" : "f16", v->cluster, v->stages,
             v->swizzled ? "swizzled" : "cells", v->run_last ? "run-last" : "ascending");
    return true;
}

static bool is_wanted(const part *p, const options *o)
{
    if (p->variant >= 0 && p->keys == 0) return false; /* a size that is left out in small */
    return !o->only || strstr(p->name, o->only);
}

/* ---------------------------------------------------------------------------------------- problems */
/* A prompt of so many keys on the device. */
typedef struct problem {
    int keys, heads, tiles; /* tiles: of a head */
    dq_attention_unit *unit;
    dq_attend_call call; /* but for what a variant has of its own */
    uint8_t *pages[2];   /* in cells, swizzled */
    float *out, *absmax;
    dq_attend_item *item[5]; /* by blocks of a cluster */
    int n_items[5];
    int checked[MAX_TILES], n_checked; /* units that are compared */
    float *right[2];                   /* f16, rounded: [n_checked][TILE][WIDTH] */
    void *memory[32];
    int n_memory;
    cudaError_t error; /* the first */
} problem;

static void note(problem *p, cudaError_t e)
{
    if (p->error == cudaSuccess) p->error = e;
}

static void *device(problem *p, size_t bytes, const void *from)
{
    void *d = NULL;
    if (p->error != cudaSuccess) return NULL;
    note(p, cudaMalloc(&d, bytes));
    p->memory[p->n_memory++] = d;
    if (from && p->error == cudaSuccess)
        note(p, cudaMemcpy(d, from, bytes, cudaMemcpyHostToDevice));
    return d;
}

static void *room(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) abort();
    return p;
}

static void close_problem(problem *p)
{
    for (int i = 0; i < p->n_memory; i++) cudaFree(p->memory[i]);
    free(p->unit);
    free(p->right[0]);
    free(p->right[1]);
    memset(p, 0, sizeof *p);
}

/* What the host gives a layer of a prompt: rows of tile t read pages before t - 1 as codes, the last five those
 * before t. */
static void make_units(problem *p)
{
    p->unit = room((size_t)(p->heads * p->tiles), sizeof *p->unit);
    for (int i = 0; i < p->heads * p->tiles; i++) {
        const int t = i % p->tiles;
        p->unit[i] = (dq_attention_unit){.visible = -(int64_t)TILE * t - 2,
                                         .row = TILE * t,
                                         .n = TILE,
                                         .split = TILE - 5,
                                         .coded = {TILE * (t ? t - 1 : 0), TILE * t},
                                         .keys = TILE * (t + 1),
                                         .group = i / p->tiles};
    }
}

static void make_heads(problem *p)
{
    dq_attention_units *u = &p->call.u;
    dq_q_head q[2 * HEADS];
    dq_o_head o[HEADS];
    int32_t first[2][HEADS + 1] = {{0}};
    for (int h = 0; h < p->heads; h++) {
        for (int m = 0; m < 2; m++) q[2 * h + m] = (dq_q_head){2 * h + m, m};
        o[h] = (dq_o_head){h, {0, 1}, {0, 1}, 0};
        first[0][h + 1] = 2 * (h + 1);
        first[1][h + 1] = h + 1;
    }
    u->q_head = device(p, sizeof q, q);
    u->o_head = device(p, sizeof o, o);
    u->q_first = device(p, sizeof first[0], first[0]);
    u->o_first = device(p, sizeof first[1], first[1]);
    u->max_q = 2;
    u->max_out = 1;
    u->n_groups = u->n_out = p->heads;
    u->n_q = 2 * p->heads;
    u->n_slabs = u->n_maps = 2;
}

/* Items of at most `together` units; how many operand pages there are. chosen: of those units alone. */
static int64_t make_items(problem *p, int together, dq_attend_item **to, int *n_items, bool chosen)
{
    const int n = p->heads * p->tiles;
    int32_t *count = room((size_t)p->tiles + 1, sizeof *count);
    dq_attend_plan plan = {.list = room((size_t)n, sizeof *plan.list),
                           .item = room((size_t)dq_attend_items(p->unit, n), sizeof *plan.item),
                           .join = room((size_t)n, sizeof *plan.join)};
    dq_attend_plan_units(&plan, &p->call.u, p->unit, together, NULL, count);
    int k = 0;
    for (int i = 0; i < plan.n_items; i++) {
        bool is = !chosen;
        for (int c = 0; c < p->n_checked; c++) is |= plan.item[i].unit == p->checked[c];
        if (is) plan.item[k++] = plan.item[i];
    }
    *n_items = k;
    *to = device(p, (size_t)k * sizeof **to, plan.item);
    free(plan.list);
    free(plan.item);
    free(plan.join);
    free(count);
    return plan.operand_pages;
}

/* The first, the second, the last tile and some between, of the first and the last head. */
static void choose_tiles(problem *p)
{
    const int n = p->tiles, last = (p->heads - 1) * n;
    const int of[] = {0, 1, n / 2, n - 1, last + n / 3, last + n - 2};
    p->n_checked = 0;
    for (int i = 0; i < MAX_TILES; i++) {
        bool again = false;
        for (int k = 0; k < p->n_checked; k++) again |= p->checked[k] == of[i];
        if (!again) p->checked[p->n_checked++] = of[i];
    }
}

static dq_attend_logits logits_of(const problem *p, bool rounded)
{
    return rounded ? (dq_attend_logits){DQ_ROUND_GIVEN, QMAX, p->absmax}
                   : (dq_attend_logits){.round = DQ_ROUND_NOT};
}

/* Rows of checked tiles to the host. */
static void take_rows(problem *p, float *to)
{
    const size_t row = (size_t)(p->heads * WIDTH);
    for (int i = 0; i < p->n_checked; i++)
        for (int r = 0; r < TILE; r++) {
            const dq_attention_unit *w = p->unit + p->checked[i];
            note(p, cudaMemcpy(to + (i * TILE + r) * WIDTH,
                               p->out + (size_t)(w->row + r) * row + w->group * WIDTH,
                               WIDTH * sizeof *to, cudaMemcpyDeviceToHost));
        }
}

static void poison(problem *p)
{
    const size_t bytes = (size_t)p->keys * (size_t)(p->heads * WIDTH) * sizeof(float);
    note(p, cudaMemset(p->out, 0xff, bytes));
}

/* What is right, by the other kernel on the same operands. */
static void make_right(problem *p)
{
    dq_attend_call a = p->call;
    dq_attend_item *items = NULL;
    make_items(p, 1, &items, &a.n_items, true);
    a.item = items;
    a.o.page = p->pages[0];
    a.together = 1;
    for (int rounded = 0; rounded < 2 && p->error == cudaSuccess; rounded++) {
        p->right[rounded] = room((size_t)p->n_checked * TILE * WIDTH, sizeof(float));
        poison(p);
        a.logits = logits_of(p, rounded);
        note(p, dq_attend_run(a, false, NULL));
        note(p, cudaDeviceSynchronize());
        take_rows(p, p->right[rounded]);
    }
}

static void open_problem(problem *p, int keys, const options *o)
{
    close_problem(p);
    p->keys = keys;
    p->heads = o->small ? SMALL_HEADS : HEADS;
    p->tiles = keys / TILE;
    make_units(p);
    make_heads(p);
    dq_attention_units *u = &p->call.u;
    const int n = p->heads * p->tiles;
    const size_t q = (size_t)keys * (size_t)(2 * p->heads * DIM);
    float absmax[2 * HEADS];
    for (int i = 0; i < 2 * HEADS; i++) absmax[i] = largest_logit;
    u->unit = device(p, (size_t)n * sizeof *p->unit, p->unit);
    u->n = n;
    u->max_rows = TILE;
    u->max_keys = keys;
    u->form[0] = u->form[1] = (dq_page_form){.bits = 8, .dim = DIM, .cols = DIM, .stride = DIM};
    u->scale = 1.0f / sqrtf(DIM);
    u->lambda_layer = 0.6f;
    p->absmax = device(p, sizeof absmax, absmax);
    float *const queries = device(p, q * sizeof(float), NULL);
    u->q = queries;
    p->out = device(p, (size_t)keys * (size_t)(p->heads * WIDTH) * sizeof(float), NULL);
    p->call.f = (dq_attention_finish){.out = p->out,
                                      .out_cols = p->heads * WIDTH,
                                      .norm = true,
                                      .norm_eps = 1e-5f,
                                      .out_scale = 0.4f};
    p->call.beyond = device(p, sizeof(int32_t), NULL);
    p->call.o = dq_attend_operands(DIM, 2, 2, 1, 2);
    int64_t pages = 0;
    for (int cluster = 1; cluster <= 4; cluster *= 2)
        pages = make_items(p, cluster, &p->item[cluster], &p->n_items[cluster], false);
    choose_tiles(p);
    if (p->error == cudaSuccess) note(p, dq_sweep_fill(queries, (int64_t)q, NULL));
    for (int swizzled = 0; swizzled < 2 && p->error == cudaSuccess; swizzled++) {
        p->pages[swizzled] = device(p, (size_t)(pages * p->call.o.page_bytes), NULL);
        dq_operands at = p->call.o;
        at.page = p->pages[swizzled];
        if (p->error == cudaSuccess) note(p, dq_sweep_fill_operands(at, pages, swizzled, NULL));
    }
    make_right(p);
}

/* ------------------------------------------------------------------------------------------ timing */
typedef cudaError_t work(void *arg);

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of the device, of 3 to MAX_RUNS runs in about .2 s; in small of one. */
static cudaError_t median(double *seconds, int *runs, work *f, void *arg, bool small)
{
    double s[MAX_RUNS], spent = 0;
    cudaEvent_t from, to;
    cudaError_t e = cudaEventCreate(&from);
    int n = 0;
    if (e != cudaSuccess) return e;
    e = cudaEventCreate(&to);
    for (; e == cudaSuccess && n < (small ? 1 : MAX_RUNS) && (n < 3 || spent < .2); n++) {
        float ms = 0;
        cudaEventRecord(from, NULL);
        e = f(arg);
        cudaEventRecord(to, NULL);
        if (e == cudaSuccess) e = cudaDeviceSynchronize();
        if (e == cudaSuccess) e = cudaEventElapsedTime(&ms, from, to);
        s[n] = (double)ms / 1e3;
        spent += s[n];
    }
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    qsort(s, (size_t)n, sizeof *s, by_value);
    *seconds = n ? s[n / 2] : 0;
    *runs = n;
    return e;
}

typedef struct attention {
    problem *p;
    const dq_sweep_variant *v;
    dq_attend_call a;
} attention;

static cudaError_t attend(void *arg)
{
    attention *t = arg;
    return t->v->run(t->a, NULL);
}

/* The largest difference from what is right, as a share of the largest number; not a number where one is none. */
static double worst_of(problem *p, bool rounded)
{
    const size_t n = (size_t)p->n_checked * TILE * WIDTH;
    float *got = room(n, sizeof *got);
    double largest = 0, worst = 0;
    take_rows(p, got);
    for (size_t i = 0; i < n; i++) {
        const double off = fabs((double)got[i] - (double)p->right[rounded][i]);
        largest = fmax(largest, fabs((double)p->right[rounded][i]));
        worst = off <= worst ? worst : off;
    }
    free(got);
    return worst / largest;
}

static const char *reason(cudaError_t e)
{
#ifdef DQ_SIMT
    if (dq_simt_report()[0]) return dq_simt_report();
#endif
    return cudaGetErrorString(e);
}

static json_t *failed(const char *status, const char *why)
{
    return json_pack("{s:s, s:s}", "status", status, "why", why);
}

static json_t *run_variant(problem *p, const part *is, const options *o)
{
    /* one logit may go to either of two numbers of the grid */
    const double most = is->rounded ? .02 : .002;
    const dq_sweep_variant *v = &dq_sweep_variants[is->variant];
    attention t = {p, v, p->call};
    double seconds = 0;
    int runs = 0;
    t.a.item = p->item[v->cluster];
    t.a.n_items = p->n_items[v->cluster];
    t.a.together = v->cluster;
    t.a.o.page = p->pages[v->swizzled];
    t.a.logits = logits_of(p, is->rounded);
    poison(p);
    if (p->error == cudaSuccess) note(p, attend(&t));
    note(p, cudaDeviceSynchronize());
    const double worst = p->error == cudaSuccess ? worst_of(p, is->rounded) : 0;
    const bool right = worst <= most;
    if (p->error == cudaSuccess && right) note(p, median(&seconds, &runs, attend, &t, o->small));
    if (p->error != cudaSuccess) return failed("failed", reason(p->error));
    const double pairs = p->heads * (double)p->keys * ((double)p->keys + 1) / 2;
    json_t *r = json_pack(
        "{s:s, s:i, s:b, s:i, s:i, s:s, s:s, s:o}", "status", right ? "ok" : "wrong", "keys",
        p->keys, "rounded", (int)is->rounded, "cluster", v->cluster, "ring", v->stages, "layout",
        v->swizzled ? "swizzled" : "cells", "order", v->run_last ? "run-last" : "ascending",
        "worst", isfinite(worst) ? json_real(worst) : json_null());
    if (!right) return r;
    json_object_set_new(r, "seconds_median", json_real(seconds));
    json_object_set_new(r, "runs", json_integer(runs));
    json_object_set_new(r, "flops_per_second", json_real(1536 * pairs / seconds));
    return r;
}

/* ------------------------------------------------------------------------------------------- loops */
enum { SOURCE = 32 << 20, SMALL_SOURCE = 256 << 10 };

typedef struct loop_run {
    const dq_sweep_loop *l;
    int rounds;
    const uint8_t *source;
    int64_t bytes;
    int32_t *wrong;
    double each;
} loop_run;

static cudaError_t run_once(void *arg)
{
    loop_run *r = arg;
    return dq_sweep_run_loop(r->l, r->rounds, r->source, r->bytes, r->wrong, &r->each, NULL);
}

static json_t *run_loop(const part *is, const options *o)
{
    loop_run r = {.l = &dq_sweep_loops[is->loop],
                  .rounds = o->small ? 9 : 4096,
                  .bytes = o->small ? SMALL_SOURCE : SOURCE};
    int32_t wrong = 0;
    double seconds = 0;
    int runs = 0;
    void *source = NULL, *flag = NULL;
    cudaError_t e = cudaMalloc(&source, (size_t)r.bytes);
    if (e == cudaSuccess) e = cudaMalloc(&flag, sizeof wrong);
    if (e == cudaSuccess) e = cudaMemset(flag, 0, sizeof wrong);
    if (e == cudaSuccess) e = dq_sweep_fill(source, r.bytes / 4, NULL);
    r.source = source;
    r.wrong = flag;
    if (e == cudaSuccess && !o->small) e = run_once(&r);
    if (e == cudaSuccess) e = median(&seconds, &runs, run_once, &r, o->small);
    if (e == cudaSuccess) e = cudaMemcpy(&wrong, flag, sizeof wrong, cudaMemcpyDeviceToHost);
    cudaFree(source);
    cudaFree(flag);
    if (e != cudaSuccess) return failed("failed", reason(e));
    return json_pack("{s:s, s:s, s:f, s:f}", "status", wrong ? "wrong" : "ok", "unit", r.l->unit,
                     "seconds_median", seconds, "per_second", r.rounds * r.each / seconds);
}

/* Of libraries and of copies; what is refused is 0. */
static json_t *run_peaks(const options *o)
{
    dq_err err = {0};
    dq_backend *b = NULL;
    dq_peaks top = {0};
    if (dq_backend_open(&b, "cuda", 0, &err) == DQ_OK)
        dq_peaks_measure(&top, b, o->small ? 256 : 8192, &err);
    if (b) dq_backend_close(b);
    return json_pack("{s:s, s:s, s:f, s:f, s:f}", "status", err.code == DQ_OK ? "ok" : "failed",
                     "why", err.text, "copy_bytes_per_second", top.copy,
                     "bf16_matmul_flops_per_second", top.bf16, "int8_matmul_flops_per_second",
                     top.int8);
}

/* --------------------------------------------------------------------------------------- processes */
/* The child: parts from the first-th on, a line each to `to`. What fails is its last. */
static void work_on(int first, int to, const options *o)
{
    problem p = {0};
    part is;
    for (int i = first; part_of(&is, i, o); i++) {
        if (!is_wanted(&is, o)) continue;
        json_t *r;
        if (is.variant >= 0) {
            if (p.keys != is.keys) open_problem(&p, is.keys, o);
            r = p.error == cudaSuccess ? run_variant(&p, &is, o)
                                       : failed("failed", reason(p.error));
        } else {
            r = is.loop >= 0 ? run_loop(&is, o) : run_peaks(o);
        }
        char *line = json_dumps(r, JSON_COMPACT);
        const bool sick = cudaPeekAtLastError() != cudaSuccess || p.error != cudaSuccess;
        if (!line || dprintf(to, "%s\n", line) < 0) break;
        free(line);
        json_decref(r);
        if (sick) break; /* no context survives that */
    }
    close_problem(&p);
}

typedef struct sweep {
    options o;
    int next;   /* part */
    double end; /* by the clock of dq_os_seconds */
    json_t *parts;
    pid_t child;
    int begun; /* the child's first part */
    int from;  /* what the child says; -1: there is none */
    char line[16384];
    size_t n;
} sweep;

static volatile sig_atomic_t stopped;
static void stop(int number)
{
    stopped = number;
}

static void skip_unwanted(sweep *s)
{
    part is;
    while (part_of(&is, s->next, &s->o) && !is_wanted(&is, &s->o)) s->next++;
}

static void take(sweep *s, json_t *r)
{
    part is;
    if (!part_of(&is, s->next, &s->o)) return;
    json_object_set_new(r, "part", json_string(is.name));
    json_array_append_new(s->parts, r);
    char *line = json_dumps(r, JSON_COMPACT);
    if (line) fprintf(stderr, "%s\n", line);
    free(line);
    s->next++;
    skip_unwanted(s);
}

static bool start_child(sweep *s)
{
    int fd[2];
    if (pipe(fd) != 0) return false;
    fflush(NULL);
    s->child = fork();
    if (s->child == 0) {
        signal(SIGTERM, SIG_DFL);
        close(fd[0]);
        work_on(s->next, fd[1], &s->o);
        _exit(0);
    }
    close(fd[1]);
    s->from = fd[0];
    s->begun = s->next;
    s->n = 0;
    return s->child > 0;
}

/* How it ended, as a sentence. It may take some seconds to end by itself. */
static void end_child(sweep *s, double patience, char *how, size_t capacity)
{
    const double end = dq_os_seconds() + patience;
    int status = 0;
    pid_t ended = 0;
    if (s->from < 0) return;
    close(s->from);
    s->from = -1;
    while (patience > 0 && (ended = waitpid(s->child, &status, WNOHANG)) == 0 &&
           dq_os_seconds() < end)
        poll(NULL, 0, 10);
    if (ended == 0) {
        kill(s->child, SIGKILL);
        waitpid(s->child, &status, 0);
    }
    if (WIFSIGNALED(status))
        snprintf(how, capacity, "signal %d", WTERMSIG(status));
    else
        snprintf(how, capacity, "exit status %d", WEXITSTATUS(status));
}

/* Lines that have come. False: the child has ended. */
static bool read_lines(sweep *s)
{
    const ssize_t n = read(s->from, s->line + s->n, sizeof s->line - 1 - s->n);
    if (n <= 0) return false;
    s->n += (size_t)n;
    for (;;) {
        char *end = memchr(s->line, '\n', s->n);
        if (!end) return s->n < sizeof s->line - 1;
        *end = 0;
        json_t *r = json_loads(s->line, 0, NULL);
        if (r) take(s, r);
        s->n -= (size_t)(end + 1 - s->line);
        memmove(s->line, end + 1, s->n);
    }
}

/* All parts, as far as time goes. */
static void supervise(sweep *s)
{
    part is;
    double last = dq_os_seconds();
    int before = -1;
    skip_unwanted(s);
    while (!stopped && part_of(&is, s->next, &s->o) && dq_os_seconds() < s->end) {
        if (s->from < 0 && !start_child(s)) return;
        struct pollfd fd = {s->from, POLLIN, 0};
        if (before != s->next) last = dq_os_seconds();
        before = s->next;
        const int ready = poll(&fd, 1, 200);
        if (ready > 0 && !read_lines(s)) {
            char how[64] = "";
            end_child(s, 5, how, sizeof how);
            if (s->next == s->begun || strcmp(how, "exit status 0") != 0)
                take(s, failed("failed", how));
        } else if (ready == 0 && dq_os_seconds() - last > s->o.limit) {
            char how[64] = "";
            end_child(s, 0, how, sizeof how);
            take(s, failed("timeout", "it took longer than its limit"));
        }
    }
    char how[64];
    end_child(s, 0, how, sizeof how);
    while (part_of(&is, s->next, &s->o)) take(s, failed("not run", "the time was up"));
}

/* ---------------------------------------------------------------------------------------- document */
static double number_of(const json_t *r, const char *key)
{
    return json_number_value(json_object_get(r, key));
}
static const char *text_of(const json_t *r, const char *key)
{
    const char *s = json_string_value(json_object_get(r, key));
    return s ? s : "";
}
static bool is_time(const json_t *r)
{
    return json_object_get(r, "keys") && json_object_get(r, "seconds_median");
}

/* By keys, then f16 before rounded, then the fastest. */
static int by_time(const void *a, const void *b)
{
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    const double by[3] = {number_of(x, "keys") - number_of(y, "keys"),
                          (double)json_is_true(json_object_get(x, "rounded")) -
                              (double)json_is_true(json_object_get(y, "rounded")),
                          number_of(x, "seconds_median") - number_of(y, "seconds_median")};
    for (int i = 0; i < 3; i++)
        if (by[i] != 0) return by[i] > 0 ? 1 : -1;
    return 0;
}

static bool same_variant(const json_t *a, const json_t *b)
{
    return number_of(a, "cluster") == number_of(b, "cluster") &&
           number_of(a, "ring") == number_of(b, "ring") &&
           strcmp(text_of(a, "layout"), text_of(b, "layout")) == 0 &&
           strcmp(text_of(a, "order"), text_of(b, "order")) == 0;
}

/* Times of each case over the best of the case, their mean in logarithms: of the variant that has most cases, the least. */
static json_t *winner_of(json_t *times)
{
    json_t *const nobody = json_null();
    const json_t *best = nobody;
    double least = INFINITY;
    size_t most = 0;
    for (size_t i = 0; i < json_array_size(times); i++) {
        const json_t *one = json_array_get(times, i);
        double sum = 0;
        size_t cases = 0;
        for (size_t k = 0; k < json_array_size(times); k++) {
            const json_t *other = json_array_get(times, k);
            if (!same_variant(one, other)) continue;
            sum += log(number_of(other, "times_the_best"));
            cases++;
        }
        if (cases < most || (cases == most && sum / (double)cases >= least)) continue;
        most = cases;
        least = sum / (double)cases;
        best = one;
    }
    if (best == nobody) return nobody;
    return json_pack("{s:O, s:O, s:O, s:O, s:I, s:f}", "cluster", json_object_get(best, "cluster"),
                     "ring", json_object_get(best, "ring"), "layout",
                     json_object_get(best, "layout"), "order", json_object_get(best, "order"),
                     "cases", (json_int_t)most, "times_the_best", exp(least));
}

/* Times in their order, with shares; to what is wrong, failed or was not run. */
static json_t *sorted(json_t *parts, double peak)
{
    const size_t n = json_array_size(parts);
    json_t **list = room(n, sizeof *list), *times = json_array();
    size_t k = 0;
    double best = 0;
    for (size_t i = 0; i < n; i++)
        if (is_time(json_array_get(parts, i))) list[k++] = json_array_get(parts, i);
    qsort(list, k, sizeof *list, by_time);
    for (size_t i = 0; i < k; i++) {
        const bool first =
            i == 0 || number_of(list[i], "keys") != number_of(list[i - 1], "keys") ||
            json_object_get(list[i], "rounded") != json_object_get(list[i - 1], "rounded");
        const double seconds = number_of(list[i], "seconds_median");
        if (first) best = seconds;
        json_object_set_new(list[i], "times_the_best", json_real(best > 0 ? seconds / best : 1));
        if (peak > 0)
            json_object_set_new(list[i], "share_of_bf16_matmul",
                                json_real(number_of(list[i], "flops_per_second") / peak));
        json_array_append(times, list[i]);
    }
    free(list);
    return times;
}

/* The document; how many parts are not well. */
static int write_document(const sweep *s, FILE *to)
{
    json_t *others = json_array(), *r;
    size_t i;
    double peak = 0;
    int bad = 0;
    json_array_foreach(s->parts, i, r)
    {
        peak = fmax(peak, number_of(r, "bf16_matmul_flops_per_second"));
        bad += strcmp(text_of(r, "status"), "ok") != 0;
        if (!is_time(r)) json_array_append(others, r);
    }
    json_t *times = sorted(s->parts, peak);
    json_t *doc = json_pack("{s:s, s:i, s:o, s:o, s:o}", "schema", "dq-sweep/1", "bad", bad,
                            "winner", winner_of(times), "variants", times, "others", others);
    json_dumpf(doc, to, JSON_INDENT(1));
    fputc('\n', to);
    json_decref(doc);
    return bad;
}

/* In a process of its own: after it has a context no child may be started. */
static int looks_for_device(void)
{
    const pid_t child = fork();
    if (child == 0) {
        int n = 0, major = 0;
        const bool there =
            cudaGetDeviceCount(&n) == cudaSuccess && n > 0 &&
            cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess;
        _exit(there && major == 9 ? 0 : 1);
    }
    int status = 1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv)
{
    sweep s = {.o = {.limit = 20, .seconds = 240}, .from = -1, .parts = json_array()};
    bool usage = false;
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (strcmp(argv[i], "--small") == 0) {
            s.o.small = true;
        } else if (strcmp(argv[i], "--only") == 0 && more) {
            s.o.only = argv[++i];
        } else if (strcmp(argv[i], "--limit") == 0 && more) {
            s.o.limit = atof(argv[++i]);
        } else if (strcmp(argv[i], "--seconds") == 0 && more) {
            s.o.seconds = atof(argv[++i]);
        } else {
            usage = true;
        }
    }
    if (usage || s.o.limit <= 0 || s.o.seconds <= 0) {
        fprintf(stderr,
                "usage: gpu_sweep [--small] [--only TEXT] [--limit SECONDS] [--seconds SECONDS]\n");
        return 2;
    }
#ifdef DQ_SIMT
    dq_simt_set_capability(90);
#endif
    if (!looks_for_device()) {
        fprintf(stderr, "gpu_sweep: no GPU of compute capability 9.0\n");
        return NO_GPU;
    }
    const struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    s.end = dq_os_seconds() + s.o.seconds;
    supervise(&s);
    const size_t n = json_array_size(s.parts);
    const int bad = write_document(&s, stdout);
    json_decref(s.parts);
    if (n == 0) fprintf(stderr, "gpu_sweep: --only %s names nothing\n", s.o.only);
    return n == 0 ? 2 : bad != 0;
}
