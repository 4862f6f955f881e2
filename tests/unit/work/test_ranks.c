/* test_ranks: what ranks pass to each other, by three of them that mpirun has started: nothing is overwritten on its way, numbers and
 * rows are everybody's, and ranks that meet at different places or have failed do not wait for ever. 0 where that is so.
 * SPDX-License-Identifier: MIT */
#include "work/ranks.h"
#include "work/work.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { BLOCK = 1 << 16, BLOCKS = 3, TURNS = 20, ROWS = 1000 };

static int failures;

#define CHECK(x) check(x, #x, __LINE__)
static void check(bool holds, const char *what, int line)
{
    if (holds) return;
    fprintf(stderr, "test_ranks: rank %d, line %d: %s\n", dq_ranks_number(), line, what);
    failures++;
}

static void fill(int *block, int value)
{
    for (int i = 0; i < BLOCK; i++) block[i] = value;
}

/* Each turn has a receiver, which is slow; others send it blocks from one buffer, which they then use anew. */
static void pass_blocks(void)
{
    static int buffer[BLOCKS * BLOCK], got[BLOCK];
    for (int turn = 0; turn < TURNS; turn++) {
        const int to = turn % dq_ranks_count();
        if (to != dq_ranks_number()) {
            dq_ranks_sent(buffer, sizeof buffer);
            for (int b = 0; b < BLOCKS; b++) {
                fill(buffer + b * BLOCK, 1000 * turn + 10 * b + dq_ranks_number());
                dq_ranks_send(to, buffer + b * BLOCK, sizeof got);
            }
            continue;
        }
        for (int rank = 0; rank < dq_ranks_count(); rank++) {
            for (int b = 0; b < BLOCKS && rank != to; b++) {
                nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
                dq_ranks_receive(rank, got, sizeof got);
                const int want = 1000 * turn + 10 * b + rank;
                CHECK(got[0] == want && got[BLOCK - 1] == want);
            }
        }
    }
    dq_ranks_sent(buffer, sizeof buffer);
}

/* Every row belongs to one rank. */
static void join_rows(int64_t n, int64_t unit)
{
    int row[ROWS];
    const dq_ranks_rows own = dq_ranks_stripe(dq_ranks_number(), n, unit);
    for (int64_t i = 0; i < n; i++) row[i] = -1;
    for (int64_t i = own.first; i < own.end; i++) row[i] = (int)i;
    dq_ranks_join(row, n, unit, sizeof *row);
    for (int64_t i = 0; i < n; i++) CHECK(row[i] == i);
}

static void tell_numbers(void)
{
    dq_err err = {0};
    int64_t all[3], sum = 10 * dq_ranks_number();
    char text[8] = "";
    CHECK(dq_ranks_gather(all, dq_ranks_number(), &err) == DQ_OK);
    for (int i = 0; i < 3; i++) CHECK(all[i] == i);
    CHECK(dq_ranks_sum(&sum, &err) == DQ_OK && sum == 30);
    if (dq_ranks_number() == 2) strcpy(text, "two");
    dq_ranks_spread(2, text, sizeof text);
    CHECK(strcmp(text, "two") == 0);
    CHECK(dq_ranks_agree("thing", "same", &err) == DQ_OK);
}

/* Pieces whose lines come at once, or are held back until the rank has no more. */
enum { PIECES = 20 };
typedef struct pieces {
    dq_work w;
    bool held[PIECES];
    int known[PIECES], told;
} pieces;

static dq_status compute(void *arg, int64_t piece, dq_err *err)
{
    pieces *x = arg;
    x->known[piece]++;
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if ((x->held[piece] = piece % 3 == 0)) return DQ_OK;
    return dq_work_put(&x->w, json_pack("{s:I}", "piece", (json_int_t)piece), err);
}

static dq_status flush(void *arg, dq_err *err)
{
    pieces *x = arg;
    for (int i = 0; i < PIECES; i++) {
        if (x->held[i]) DQ_TRY(dq_work_put(&x->w, json_pack("{s:i}", "piece", i), err));
        x->held[i] = false;
    }
    return DQ_OK;
}

static dq_status take(void *arg, const json_t *line, bool told, dq_err *err)
{
    pieces *x = arg;
    (void)err;
    x->told += told;
    x->known[json_integer_value(json_object_get(line, "piece"))]++;
    return DQ_OK;
}

static void run_pieces(bool shared)
{
    dq_err err = {0};
    pieces x = {.told = 0};
    json_t *of = json_pack("{s:b}", "shared", shared);
    int known = 0;
    const dq_work_how how = {
        .schema = "form/1", .of = of, .shared = shared, .take = take, .flush = flush, .arg = &x};
    CHECK(dq_work_open(&x.w, &how, &err) == DQ_OK);
    CHECK(dq_work_run(&x.w, PIECES, compute, &x, &err) == DQ_OK);
    if (dq_ranks_number() == 0) flush(&x, &err);
    for (int i = 0; i < PIECES; i++) known += x.known[i] > 0;
    if (dq_ranks_number() == 0) {
        CHECK(known == PIECES && x.told > 0 && x.told < PIECES);
        for (int i = 0; i < PIECES; i++) CHECK(x.known[i] == 1);
    } else {
        CHECK(x.told == 0 && (!shared || known > 0));
        for (int i = 0; i < PIECES; i++) CHECK(!shared || i % 3 == 0 || x.known[i] > 0);
    }
    dq_work_close(&x.w, false);
    json_decref(of);
}

static int late_rank, n_late;
static char late_what[40];
static void on_late(int rank, const char *what)
{
    late_rank = rank;
    snprintf(late_what, sizeof late_what, "%s", what);
    n_late++;
}

static dq_status sleep_long(void *arg, int64_t piece, dq_err *err)
{
    bool *slept = arg;
    (void)piece, (void)err;
    if (dq_ranks_number() == 2 && !*slept) nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    *slept = true;
    return DQ_OK;
}

/* Rank 0 alone hears of one that keeps it waiting: on the way to a meeting, and within pieces. */
static void wait_long(void)
{
    dq_err err = {0};
    bool slept = false;
    const dq_ranks_work work = {.n = 30, .run = sleep_long, .arg = &slept};
    dq_ranks_listen(on_late, 0.2);
    if (dq_ranks_number() == 1) nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    CHECK(dq_ranks_agree(NULL, NULL, &err) == DQ_OK);
    CHECK(n_late == (dq_ranks_number() == 0));
    if (n_late) CHECK(late_rank == 1 && strcmp(late_what, "come to the next step") == 0);
    CHECK(dq_ranks_run(&work, &err) == DQ_OK);
    CHECK(n_late == 2 * (dq_ranks_number() == 0));
    if (n_late) CHECK(late_rank == 2 && strcmp(late_what, "end what it computes") == 0);
    dq_ranks_listen(NULL, 0);
}

/* The last thing that ranks do together. */
static void part(const char *how)
{
    dq_err err = {0};
    int64_t x = 1;
    if (strcmp(how, "fail") == 0) {
        if (dq_ranks_number() == 1) dq_fail(&err, DQ_FILE, "no such thing");
        dq_ranks_sum(&x, &err);
        CHECK(err.code == DQ_FILE && strstr(err.text, "no such thing"));
        err = (dq_err){0};
        CHECK(dq_ranks_sum(&x, &err) == DQ_BUG); /* rather than to wait for those who have gone */
    } else if (strcmp(how, "differ") == 0) {
        dq_ranks_agree("thing", dq_ranks_number() == 2 ? "other" : "same", &err);
        CHECK(err.code == DQ_MISMATCH && strstr(err.text, "rank 2 has another thing"));
    } else { /* one has gone ahead */
        if (dq_ranks_number() == 1)
            dq_ranks_agree(NULL, NULL, &err);
        else
            dq_ranks_agree("thing", "same", &err);
        CHECK(err.code == DQ_MISMATCH && strstr(err.text, "rank 1 does something else"));
    }
}

int main(int argc, char **argv)
{
    dq_err err = {0};
    if (argc != 2 || dq_ranks_begin(&err) != DQ_OK || dq_ranks_count() != 3) return 2;
    pass_blocks();
    for (int64_t n = 0; n <= ROWS; n += 125) join_rows(n, 1 + n % 64);
    tell_numbers();
    run_pieces(false);
    run_pieces(true);
    wait_long();
    part(argv[1]);
    dq_ranks_end(DQ_OK);
    return failures > 0;
}
