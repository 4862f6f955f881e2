/* plan_heads: which groups of KV heads need the whole context, and how many of them share what a cache may keep, measured on a
 * text.
 *
 * Windows of the text, one after the other, whose first halves are compressed and whose second halves are scored: the first of
 * them find, the others decide. Every group is cut alone, as far as the tokens that always stay, while the others keep all;
 * groups are ordered by the KLD that this costs. Then as many groups of that order as can be whole, one more, ... share what may be
 * kept (of many groups: some numbers that grow by a factor), and the number that loses least is taken. The windows that no choice has seen tell
 * what heads lose, beside the same share in every group. A cache is compared with the same weights and a cache that evicts
 * nothing, as dq_eval does it.
 *
 * Questions may count in both choices, beside windows or alone: to the KLD is added what their right answers lack of all
 * choices, -ln of their share, mean over questions. A group is cut alone in the shortest of their contexts: whole groups keep
 * as many tokens of a longer one, which is less than all of it. A choice of one id is predicted by the last row of its context
 * before anything is evicted, so it says nothing.
 *
 * retrieval heads are DuoAttention's (arXiv 2410.10819), where gates that are trained find them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_HEADS_H
#define DQ_PLAN_HEADS_H

#include "plan/cache/plan_caches.h"
#include "plan/cache/plan_heads_order.h"

enum {
    DQ_PLAN_HEADS_FIND = 6, /* without other words */
    DQ_PLAN_HEADS_WINDOWS = 30,
    DQ_PLAN_HEADS_TRIES = 16,
    DQ_PLAN_HEADS_RECENT = 16,
    DQ_PLAN_HEADS_LEAST_UNSEEN = 2,
    DQ_PLAN_HEADS_MAX_TRIES = DQ_KV_HEADS_MAX
};

typedef struct dq_plan_heads_settings {
    dq_plan_caches_input in;
    double keep;     /* share of the context that stays */
    dq_kv_config kv; /* its policy, and the tokens that always stay */
    int64_t find;    /* windows; 0: questions alone, which must be there */
    int tries;       /* numbers of groups that share, at most */
} dq_plan_heads_settings;

/* A number of groups that share, with what that loses on the windows that find, and on questions. */
typedef struct dq_plan_heads_trial {
    int sharing, cache; /* of dq_plan_heads.caches */
    double kld, lack;   /* 0 where there are no such windows, or no questions */
} dq_plan_heads_trial;

typedef struct dq_plan_heads {
    dq_plan_heads_settings set;
    dq_plan_caches caches;
    dq_kv_heads_group *group; /* [n_groups] layer by layer */
    int n_groups;
    /* tokens of a window's context; and what a group keeps on average where all but one are whole, of windows and questions */
    int64_t context, whole, question_whole;
    int least; /* groups that share in the first trial: see dq_plan_heads_order_least */
    /* [n_groups] caches in which each is cut alone, what that loses on the windows that find, and groups in order of need */
    int *alone, *question_alone;
    dq_plan_caches_numbers *missed;
    dq_mean *lack; /* the same of questions */
    int *order;
    dq_plan_heads_trial *trial; /* [n_trials] */
    int n_trials, chosen;       /* -1: nothing was searched */
    char text[DQ_KV_HEADS_TEXT];
    /* on the unseen windows: of the plan, of the same share in every group, and of the first less the second; where all groups
     * share these two are one */
    bool all_share;
    dq_plan_caches_numbers found, uniform, difference;
    dq_interval kld, loss; /* of the difference */
    double outside;        /* of each of these: 5 % for both */
    /* private */
    dq_arena *arena;
} dq_plan_heads;

/* Cuts the text and lists groups. DQ_MISMATCH for a model with one group or too many, a window that the model has no positions
 * for, too little text, a share or windows with which nothing is left to share, a policy that the model or the device does not
 * have, questions that no cache changes the answers to. */
dq_status dq_plan_heads_open(dq_plan_heads **out, const dq_plan_heads_settings *s, dq_err *err);
void dq_plan_heads_close(dq_plan_heads *p); /* NULL allowed */
/* Numbers of groups that are tried; caches on the unseen windows, at most. */
int dq_plan_heads_numbers(const dq_plan_heads *p);
/* What a choice goes by. */
double dq_plan_heads_lost(const dq_plan_heads_trial *t);
enum { DQ_PLAN_HEADS_UNSEEN = 2 };
/* Seconds that a token takes, by a window that is run now. */
dq_status dq_plan_heads_pace(double *seconds, dq_plan_heads *p, dq_err *err);
/* All of it. After DQ_STOPPED and other failures that leave something, what was found is in out.journal, and a plan with
 * `resume` goes on from there to the same result, or to that of another share. */
dq_status dq_plan_heads_run(dq_plan_heads *p, dq_err *err);
/* After a failure of what is made of a plan, too: says what is kept. Returns err->code. */
dq_status dq_plan_heads_failed(dq_plan_heads *p, dq_err *err);
/* Drops the journal: what it holds is written elsewhere. */
void dq_plan_heads_done(dq_plan_heads *p);

#endif
