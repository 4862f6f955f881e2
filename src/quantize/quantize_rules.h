/* quantize_rules: which tensors are packed and how, by name: what their role gives, then the rules in order, then
 * the pattern of tensors to leave.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_RULES_H
#define DQ_QUANTIZE_RULES_H

#include "quantize/quantize.h"

/* One tensor of the checkpoint. */
typedef struct dq_quantize_choice {
    const char *name;
    bool packable;   /* its role is one that kernels read as codes */
    dq_role role;    /* of that */
    bool projection; /* skipping it counts even where it was to be dense */
    bool embedding;
    bool
        fed; /* its codes are a method's, where there is one: a projection, or with a method a head */
    bool kept;                          /* named by `skip`: neither packed nor rounded */
    bool skipped;                       /* and it would have been packed */
    bool own_bits, own_group, own_mode; /* a rule's, not those of the settings */
    int bits;                           /* 2..8, or 16: dense */
    int64_t group;
    dq_scale_mode mode;
} dq_quantize_choice;

/* Applies s->rules and s->skip to choice[n], which hold what the roles give. DQ_USAGE for a pattern that is none,
 * or that matches no tensor it could change, with near names; from s->file these are DQ_DAMAGED and DQ_MISMATCH.
 * DQ_DAMAGED for a rule that says something else than a rule can. tied_head: the name of a head that is the embedding;
 * NULL: the head is a tensor of its own. */
dq_status dq_quantize_rules_apply(const dq_quantize_settings *s, const char *tied_head,
                                  dq_quantize_choice *choice, int64_t n, dq_err *err);
/* The same refusals of rules, as far as no tensor is needed. */
dq_status dq_quantize_rules_check(const json_t *rules, dq_err *err);

#endif
