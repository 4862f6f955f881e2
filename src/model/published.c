/* published: see published.h. A table, searched by the architecture and the sizes of a model. Totals come from the
 * repositories' own metadata.
 * SPDX-License-Identifier: MIT */
#include "model/published.h"

#include <string.h>

static const dq_published table[] = {
    {"kajuma/DiffLlama-0.3B-handcut, reyllama/diffllama_300m", "diffllama", 128256, 2048, 16, 32, 8,
     64, 16, 8192, true, 1235818496},
    {"kajuma/DiffLlama-1B", "diffllama", 102400, 2048, 16, 32, 8, 64, 16, 8192, false, 1392580608},
    {"reyllama/DiffLlama-375M", "diffllama", 128256, 1024, 16, 16, 4, 64, 8, 4096, true, 374641664},
    {"Motif-Technologies/Motif-2.6B", "motif", 219520, 2048, 32, 16, 16, 128, 8, 8192, true,
     2597218432},
    {"Motif-Technologies/Motif-2-12.7B", "motif2", 219520, 4096, 40, 40, 16, 128, 32, 16384, false,
     12703860896},
};

const dq_published *dq_published_find(const dq_model *m)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const dq_published *p = &table[i];
        if (strcmp(p->architecture, m->architecture->name) == 0 && p->vocab == m->vocab &&
            p->dim == m->dim && p->n_layers == m->n_layers && p->n_q == m->map.n_q &&
            p->n_kv == m->map.n_kv && p->head_dim == m->map.head_dim && p->n_out == m->map.n_out &&
            p->ffn == m->ffn && p->tied == m->tied)
            return p;
    }
    return NULL;
}
