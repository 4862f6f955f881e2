/* identity: see identity.h. A CPU's own line names its threads, so that its instruction sets stand for it; that
 * of a GPU begins with its number.
 * SPDX-License-Identifier: MIT */
#include "settings/identity.h"

#include "base/os.h"
#include "record/record.h"

#include <stdio.h>
#include <string.h>

void dq_identity_text(char out[DQ_IDENTITY], const dq_backend *b)
{
    static const struct {
        unsigned bit;
        const char *name;
    } sets[] = {{DQ_CPU_AVX2, " avx2"},
                {DQ_CPU_AVX512, " avx512"},
                {DQ_CPU_VNNI, " vnni"},
                {DQ_CPU_VBMI, " vbmi"}};
    const bool cpu = strcmp(b->ops->name, "cpu") == 0;
    const unsigned have = dq_os_cpu_features(NULL);
    const char *comma = strchr(b->device, ','), *kind = comma ? comma + 2 : b->device;
    char words[40] = "";
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const size_t n = strlen(words);
        if (have & sets[i].bit) snprintf(words + n, sizeof words - n, "%s", sets[i].name);
    }
    snprintf(out, DQ_IDENTITY, "dq %.40s, compiler %.40s, %.80s%.40s", dq_commit_version(),
             __VERSION__, cpu ? "cpu" : kind, words);
}
