/* kv_help: see kv_help.h. The field's text is copied up to each {, and what stands for the word in braces is appended.
 * SPDX-License-Identifier: MIT */
#include "settings/kv_help.h"

#include "settings/kv_options.h"

#include <stdio.h>
#include <string.h>

static void append(char help[DQ_KV_HELP], const char *text, size_t len)
{
    const size_t n = strlen(help);
    snprintf(help + n, DQ_KV_HELP - n, "%.*s", (int)len, text);
}

static const char all_help[] =
    "; " DQ_KV_ALL ", in dq eval: each of those in front, and where they are not given --kv-keep "
    "1,0.5,0.25,0.125 and --kv-bits 16,8,4";

static const char codes_help[] =
    "; in dq eval, per-token,per-channel,mixed compares them at every width that they have";

/* "a, b or c"; policies: "a, b; to compare them with: c, d". */
static void append_names(char help[DQ_KV_HELP], const dq_kv_field *f)
{
    const bool policies = f->type == DQ_KV_POLICY;
    const int n = policies ? dq_kv_n_policies : f->n_words;
    for (int i = 0; i < n; i++) {
        const char *name = policies ? dq_kv_policies[i].name : f->words[i];
        const bool turn =
            policies && dq_kv_policies[i].baseline && i && !dq_kv_policies[i - 1].baseline;
        const char *before = i == 0                    ? ""
                             : turn                    ? "; to compare them with: "
                             : !policies && i == n - 1 ? " or "
                                                       : ", ";
        append(help, before, strlen(before));
        append(help, name, strlen(name));
    }
    if (policies) append(help, all_help, strlen(all_help));
    if (f->words == dq_kv_quant_name) append(help, codes_help, strlen(codes_help));
}

static void append_default(char help[DQ_KV_HELP], const dq_kv_field *f)
{
    char number[32];
    const char *text = number;
    if (f->type == DQ_KV_POLICY)
        text = "kvzap where there are gates, else " DQ_POLICY_USUAL;
    else if (dq_kv_field_form(f) == DQ_KV_AS_TEXT)
        text = dq_kv_field_text(f, &dq_kv_config_plain);
    else
        snprintf(number, sizeof number, "%lld",
                 (long long)dq_kv_field_integer(f, &dq_kv_config_plain));
    append(help, text, strlen(text));
}

void dq_kv_help_fill(char help[DQ_KV_HELP], const dq_kv_field *f)
{
    const char *p = f->help;
    for (help[0] = 0; *p;) {
        const size_t n = strcspn(p, "{");
        append(help, p, n);
        p += n;
        if (!*p) break;
        if (strncmp(p, "{names}", 7) == 0)
            append_names(help, f);
        else
            append_default(help, f);
        p += strcspn(p, "}") + 1;
    }
}
