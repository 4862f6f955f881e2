/* ranks_mpi: see ranks.h. Rank 0 hands out pieces between its own steps, whenever it is polled.
 * Others request the next piece before they begin one, so that none waits for rank 0; what they
 * tell is sent while they compute. Waiting sleeps: an MPI that waits takes a processor.
 * SPDX-License-Identifier: MIT */
#include "work/ranks.h"

#include "base/os.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REQUEST = 1, PIECE, TOLD, LEFT, PASSED }; /* tags */
enum {
    NAP_NS = 300000,
    YIELDS = 100,
    PATIENCE_S = 5,
    SAME = 96,
    AT_ONCE = 1 << 28,
    AFOOT = 1 << 17
};

typedef struct letter {
    struct letter *next;
    size_t bytes;
    MPI_Request request;
    char text[];
} letter;

typedef struct parcel {
    struct parcel *next;
    const char *from;
    MPI_Request request;
} parcel;

/* Why ranks meet, and a number to compare or gather; a failure's text follows. */
typedef enum reason { TO_GO_ON, TO_COMPARE, TO_GATHER, HAS_LEFT } reason;
typedef struct greeting {
    int64_t number;
    int code;
    reason why;
} greeting;

typedef struct report {
    int code;
    char same[SAME], text[sizeof((dq_err *)0)->text];
} report;

static struct {
    bool on, failed, broken; /* MPI runs; all know of a failure; someone may not answer any more */
    int count, number, here; /* here: number on this machine */
    greeting *greeted;       /* [count] */
    report *all;             /* [count] */
    const dq_ranks_work *work; /* while it runs */
    int64_t next;              /* the first piece that nobody has */
    int n_left;                /* ranks that have ended their part */
    dq_err err;                /* of another rank, or of taking what it told; on rank 0 */
    letter *sent;
    parcel *passed;
    MPI_Comm meeting; /* greetings, which are not heard among what is told */
    dq_ranks_late *late;
    double patience; /* seconds */
} job = {.count = 1};

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

/* Naps on rank 0, and tells once of a rank that keeps it waiting. *since: 0 as the wait begins, or
 * as something is heard. */
static void await(double *since, int rank, const char *what)
{
    const double now = dq_os_seconds();
    nap();
    if (*since == 0) *since = now;
    if (job.number > 0 || !job.late || *since < 0 || now - *since < job.patience) return;
    job.late(rank, what);
    *since = -1;
}

/* Waiting ranks sleep, but not through what comes at once. */
static void wait_for(MPI_Request *request, int rank)
{
    int done = 0;
    double since = 0;
    for (int64_t i = 0; MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done; i++) {
        if (i < YIELDS)
            sched_yield();
        else
            await(&since, rank, "come to the next step");
    }
}

dq_status dq_ranks_begin(dq_err *err)
{
    static const char *const launcher[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"};
    MPI_Comm here;
    int n_here, level;
    for (size_t i = 0; i < sizeof launcher / sizeof *launcher; i++)
        job.on = job.on || getenv(launcher[i]);
    if (!job.on) return DQ_OK;
    /* one thread at a time, but any of a team: pieces run on whichever calls */
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS ||
        level < MPI_THREAD_SERIALIZED)
        return dq_fail(err, DQ_RESOURCE, "MPI does not start. Run without mpirun");
    MPI_Comm_size(MPI_COMM_WORLD, &job.count);
    job.all = dq_block_new((size_t)job.count, sizeof *job.all, err);
    job.greeted = dq_block_new((size_t)job.count, sizeof *job.greeted, err);
    if (!job.all || !job.greeted) MPI_Abort(MPI_COMM_WORLD, DQ_RESOURCE);
    MPI_Comm_rank(MPI_COMM_WORLD, &job.number);
    MPI_Comm_dup(MPI_COMM_WORLD, &job.meeting);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    MPI_Comm_size(here, &n_here);
    MPI_Comm_rank(here, &job.here);
    MPI_Comm_free(&here);
    dq_os_share_machine(n_here);
    return DQ_OK;
}

void dq_ranks_end(dq_status status)
{
    if (!job.on) return;
    job.on = false;
    if (job.broken) MPI_Abort(MPI_COMM_WORLD, (int)status);
    MPI_Comm_free(&job.meeting);
    MPI_Finalize();
    dq_block_free(job.all);
    dq_block_free(job.greeted);
}

void dq_ranks_listen(dq_ranks_late *late, double seconds)
{
    job.late = late;
    job.patience = seconds;
}

int dq_ranks_count(void)
{
    return job.count;
}

int dq_ranks_number(void)
{
    return job.number;
}

int dq_ranks_number_here(void)
{
    return job.here;
}

const char *dq_ranks_mpi(void)
{
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int n;
    if (!*text) MPI_Get_library_version(text, &n);
    text[strcspn(text, ",\n")] = 0; /* the rest says who has built it */
    return text;
}

static void take_failure(dq_err *err, int rank, const report *r)
{
    if (err->code != DQ_OK) return;
    if (r->code == DQ_STOPPED || rank == job.number)
        dq_fail(err, (dq_status)r->code, "%s", r->text);
    else
        dq_fail(err, (dq_status)r->code, "rank %d: %s", rank, r->text);
}

/* Rank 0 hears one after the other, so that it knows whom it waits for. */
static void gather(const void *own, void *all, size_t size)
{
    MPI_Request request;
    memcpy((char *)all + (size_t)job.number * size, own, size);
    if (job.number > 0) MPI_Send(own, (int)size, MPI_BYTE, 0, 0, job.meeting);
    for (int i = 1; job.number == 0 && i < job.count; i++) {
        MPI_Irecv((char *)all + (size_t)i * size, (int)size, MPI_BYTE, i, 0, job.meeting, &request);
        wait_for(&request, i);
    }
    dq_ranks_spread(0, all, (size_t)job.count * size);
}

/* Few bytes first; texts of failures or comparisons only where there are any. */
static dq_status meet(reason why, int64_t number, const char *what, const char *same, dq_err *err)
{
    const greeting greet = {number, (int)err->code, why};
    bool failed = false;
    if (job.failed && err->code == DQ_OK)
        return dq_fail(err, DQ_BUG, "ranks go on after a failure");
    if (job.failed || job.broken) return err->code;
    gather(&greet, job.greeted, sizeof greet);
    for (int i = 0; i < job.count; i++) failed = failed || job.greeted[i].code != DQ_OK;
    for (int i = 1; i < job.count && !failed && err->code == DQ_OK; i++) {
        if (job.greeted[i].why != job.greeted[0].why)
            dq_fail(err, DQ_MISMATCH,
                    "rank %d does something else than rank 0. Run the same command everywhere", i);
    }
    failed = failed || err->code != DQ_OK;
    if (!failed && why != TO_COMPARE) return DQ_OK;
    report own = {.code = (int)err->code}, *all = job.all;
    snprintf(own.same, sizeof own.same, "%s", same ? same : "");
    snprintf(own.text, sizeof own.text, "%s", err->text);
    gather(&own, all, sizeof own);
    for (int i = 0; failed && i < job.count; i++) {
        if (all[i].code != DQ_OK) take_failure(err, i, &all[i]);
    }
    if (!failed) {
        for (int i = 1; i < job.count && err->code == DQ_OK; i++) {
            if (strcmp(all[i].same, all[0].same) != 0)
                dq_fail(err, DQ_MISMATCH,
                        "rank %d has another %s than rank 0 (%.40s there, %.40s here). Run the "
                        "same program on the same inputs everywhere",
                        i, what, all[i].same, all[0].same);
        }
    }
    job.failed = err->code != DQ_OK;
    return err->code;
}

dq_status dq_ranks_agree(const char *what, const char *same, dq_err *err)
{
    if (job.count == 1) return err->code;
    return meet(same ? TO_COMPARE : TO_GO_ON, 0, what, same, err);
}

dq_status dq_ranks_gather(int64_t *all, int64_t own, dq_err *err)
{
    *all = own;
    if (job.count == 1) return err->code;
    DQ_TRY(meet(TO_GATHER, own, NULL, NULL, err));
    for (int i = 0; i < job.count; i++) all[i] = job.greeted[i].number;
    return DQ_OK;
}

dq_status dq_ranks_sum(int64_t *x, dq_err *err)
{
    if (job.count == 1) return err->code;
    DQ_TRY(meet(TO_GATHER, *x, NULL, NULL, err));
    *x = 0;
    for (int i = 0; i < job.count; i++) *x += job.greeted[i].number;
    return DQ_OK;
}

static int at_once(size_t left)
{
    return (int)(left < AT_ONCE ? left : AT_ONCE);
}

void dq_ranks_spread(int from, void *p, size_t n)
{
    MPI_Request request;
    for (size_t at = 0; job.count > 1 && at < n; at += AT_ONCE) {
        MPI_Ibcast((char *)p + at, at_once(n - at), MPI_BYTE, from, MPI_COMM_WORLD, &request);
        wait_for(&request, from);
    }
}

dq_status dq_ranks_share(void *p, size_t n, dq_err *err)
{
    DQ_TRY(dq_ranks_agree(NULL, NULL, err));
    dq_ranks_spread(0, p, n);
    return DQ_OK;
}

void dq_ranks_send(int to, const void *p, size_t n)
{
    for (size_t at = 0; at < n; at += AT_ONCE) {
        parcel *x = malloc(sizeof *x);
        if (!x) MPI_Abort(MPI_COMM_WORLD, DQ_RESOURCE); /* the other one waits for it */
        *x = (parcel){.next = job.passed, .from = (const char *)p + at};
        job.passed = x;
        MPI_Isend(x->from, at_once(n - at), MPI_BYTE, to, PASSED, MPI_COMM_WORLD, &x->request);
    }
}

void dq_ranks_sent(const void *p, size_t n)
{
    const char *begin = p;
    for (parcel **at = &job.passed; *at;) {
        parcel *x = *at;
        if (x->from < begin || x->from >= begin + n) {
            at = &x->next;
            continue;
        }
        wait_for(&x->request, job.number);
        *at = x->next;
        free(x);
    }
}

void dq_ranks_receive(int from, void *p, size_t n)
{
    MPI_Request request;
    for (size_t at = 0; at < n; at += AT_ONCE) {
        MPI_Irecv((char *)p + at, at_once(n - at), MPI_BYTE, from, PASSED, MPI_COMM_WORLD,
                  &request);
        wait_for(&request, from);
    }
}

dq_ranks_rows dq_ranks_stripe(int rank, int64_t n, int64_t unit)
{
    const int64_t units = (n + unit - 1) / unit;
    const dq_ranks_rows r = {units * rank / job.count * unit,
                             units * (rank + 1) / job.count * unit};
    return (dq_ranks_rows){r.first < n ? r.first : n, r.end < n ? r.end : n};
}

void dq_ranks_join(void *p, int64_t n, int64_t unit, size_t bytes)
{
    for (int i = 0; i < job.count; i++) {
        const dq_ranks_rows r = dq_ranks_stripe(i, n, unit);
        dq_ranks_spread(i, (char *)p + (size_t)r.first * bytes, (size_t)(r.end - r.first) * bytes);
    }
}

static bool is_over(void)
{
    return job.err.code != DQ_OK || job.next >= job.work->n;
}

static void take(int rank, int len)
{
    dq_err full = {0};
    char *text = dq_block_new((size_t)len + 1, 1, &full);
    if (!text) { /* it cannot be heard, so nothing after it either */
        job.err = full;
        job.broken = true;
        return;
    }
    MPI_Recv(text, len, MPI_BYTE, rank, TOLD, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    dq_err own = {0}; /* what was finished counts, though the job is to end */
    job.work->take(job.work->arg, text, (size_t)len, &own);
    if (job.err.code == DQ_OK) job.err = own;
    dq_block_free(text);
}

/* Whether there was something to hear. */
static bool hear_all(void)
{
    MPI_Status s;
    int here, len;
    bool heard = false;
    while (!job.broken &&
           MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &here, &s) == MPI_SUCCESS &&
           here) {
        MPI_Get_count(&s, MPI_BYTE, &len);
        heard = true;
        if (s.MPI_TAG == REQUEST) {
            int64_t piece = is_over() ? -1 : job.next++;
            MPI_Recv(NULL, 0, MPI_BYTE, s.MPI_SOURCE, REQUEST, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(&piece, 1, MPI_INT64_T, s.MPI_SOURCE, PIECE, MPI_COMM_WORLD);
        } else if (s.MPI_TAG == TOLD)
            take(s.MPI_SOURCE, len);
        else {
            report r;
            MPI_Recv(&r, sizeof r, MPI_BYTE, s.MPI_SOURCE, LEFT, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            job.n_left++;
            job.greeted[s.MPI_SOURCE].why = HAS_LEFT;
            if (r.code != DQ_OK) take_failure(&job.err, s.MPI_SOURCE, &r);
        }
    }
    return heard;
}

/* Whether ranks have had enough time to see the stop. */
static bool out_of_patience(double *since)
{
    if (job.err.code != DQ_STOPPED) return false;
    if (*since == 0) *since = dq_os_seconds();
    return dq_os_seconds() - *since > PATIENCE_S;
}

static dq_status lead(dq_err *err)
{
    const dq_ranks_work *w = job.work;
    double since = 0, silent = 0;
    while (job.n_left < job.count - 1 || !is_over()) {
        if (hear_all()) silent = 0;
        if (!is_over()) {
            dq_err own = {0};
            w->run(w->arg, job.next++, &own);
            if (job.err.code == DQ_OK) job.err = own;
        } else if (job.n_left < job.count - 1) {
            /* The lowest of those that compute, which need not be the one that hangs. */
            int rank = 1;
            while (rank < job.count - 1 && job.greeted[rank].why == HAS_LEFT) rank++;
            dq_os_check_stop(&job.err);
            await(&silent, rank, "end what it computes");
        }
        job.broken = job.broken || out_of_patience(&since);
        if (job.broken) break;
    }
    *err = job.err;
    return err->code;
}

static void free_delivered(bool all)
{
    for (letter **at = &job.sent; *at;) {
        letter *x = *at;
        int delivered = 0;
        if (all)
            delivered = MPI_Wait(&x->request, MPI_STATUS_IGNORE) == MPI_SUCCESS;
        else
            MPI_Test(&x->request, &delivered, MPI_STATUS_IGNORE);
        if (!delivered) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        dq_block_free(x);
    }
}

dq_status dq_ranks_tell(const char *text, size_t len, dq_err *err)
{
    if (len > INT32_MAX) return dq_fail(err, DQ_BUG, "a letter of %zu bytes", len);
    letter *x = dq_block_new(1, sizeof *x + len, err);
    if (!x) return err->code;
    memcpy(x->text, text, len);
    x->bytes = len;
    x->next = job.sent;
    job.sent = x;
    MPI_Isend(x->text, (int)len, MPI_BYTE, 0, TOLD, MPI_COMM_WORLD, &x->request);
    return DQ_OK;
}

/* Large texts are sent at once: rank 0, once it reads a long one, waits for this rank. */
static void deliver(void)
{
    size_t bytes = 0;
    free_delivered(false);
    for (const letter *x = job.sent; x; x = x->next) bytes += x->bytes;
    if (bytes <= AFOOT) return;
    while (job.sent) {
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS / 10}, NULL);
        free_delivered(false);
    }
}

static void request(void)
{
    MPI_Send(NULL, 0, MPI_BYTE, 0, REQUEST, MPI_COMM_WORLD);
}

static int64_t next_piece(void)
{
    int64_t piece;
    int here = 0;
    while (MPI_Iprobe(0, PIECE, MPI_COMM_WORLD, &here, MPI_STATUS_IGNORE) == MPI_SUCCESS && !here) {
        free_delivered(false);
        nap();
    }
    MPI_Recv(&piece, 1, MPI_INT64_T, 0, PIECE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return piece;
}

static dq_status follow(dq_err *err)
{
    const dq_ranks_work *w = job.work;
    int64_t piece;
    request();
    while ((piece = next_piece()) >= 0) {
        request();
        if (err->code == DQ_OK) w->run(w->arg, piece, err);
        deliver();
        if (err->code != DQ_OK) break;
    }
    if (piece >= 0) next_piece(); /* the answer that was requested */
    if (err->code == DQ_OK && w->last) w->last(w->arg, err);
    free_delivered(true);
    report r = {.code = (int)err->code};
    snprintf(r.text, sizeof r.text, "%s", err->text);
    MPI_Send(&r, sizeof r, MPI_BYTE, 0, LEFT, MPI_COMM_WORLD);
    return err->code;
}

dq_status dq_ranks_run(const dq_ranks_work *w, dq_err *err)
{
    DQ_TRY(dq_ranks_agree(NULL, NULL, err));
    if (job.count == 1) {
        for (int64_t i = 0; err->code == DQ_OK && i < w->n; i++) w->run(w->arg, i, err);
        return err->code;
    }
    job.work = w;
    job.next = 0;
    job.n_left = 0;
    job.err = (dq_err){0};
    job.number == 0 ? lead(err) : follow(err);
    job.work = NULL;
    return job.broken ? err->code : dq_ranks_agree(NULL, NULL, err);
}

void dq_ranks_poll(void)
{
    if (!job.work) return;
    if (job.number == 0)
        hear_all();
    else
        free_delivered(false);
}
