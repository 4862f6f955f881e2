/* eval_face: the table of the kinds of evaluation, and how a source finds its row.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_face.h"

#include <stdio.h>
#include <string.h>

const cmd_eval_face *const cmd_eval_faces[DQ_EVAL_FACES] = {
    &cmd_eval_face_choices, &cmd_eval_face_text, &cmd_eval_face_generate,
    &cmd_eval_face_needle,  &cmd_eval_face_icl,  &cmd_eval_face_ruler,
};

static bool shows_kind(const cmd_eval_face *face, const dq_eval_kind *kind)
{
    for (int k = 0; k < DQ_EVAL_FACE_KINDS && face->kind[k]; k++) {
        if (face->kind[k] == kind) return true;
    }
    return false;
}

const cmd_eval_face *cmd_eval_face_of(const dq_eval_source *source)
{
    int i = 0;
    while (!shows_kind(cmd_eval_faces[i], source->kind)) i++;
    return cmd_eval_faces[i];
}

int cmd_eval_face_named(const char *task)
{
    for (int i = 0; i < DQ_EVAL_FACES; i++) {
        const cmd_eval_face *face = cmd_eval_faces[i];
        const char *name;
        for (int k = 0; face->task && (name = face->task(k)) != NULL; k++) {
            if (strcmp(name, task) == 0) return i;
        }
    }
    return -1;
}

bool cmd_eval_face_shows(const cmd_eval_face *face, const dq_eval *e, int row)
{
    return e->row[row].shown && cmd_eval_face_of(dq_eval_source_of(e, &e->row[row])) == face;
}

const char *cmd_eval_face_join(char *buf, size_t cap, cmd_eval_face_word *word, const char *between)
{
    size_t n = 0;
    buf[0] = 0;
    for (int i = 0; i < DQ_EVAL_FACES && n < cap; i++) {
        const char *own = word(cmd_eval_faces[i]), *other;
        bool again = !own;
        for (int k = 0; k < i && !again; k++)
            again = (other = word(cmd_eval_faces[k])) != NULL && strcmp(own, other) == 0;
        if (!again) n += (size_t)snprintf(buf + n, cap - n, "%s%s", n ? between : "", own);
    }
    return buf;
}

const dq_eval_source *cmd_eval_face_source(const cmd_eval_face *face, const dq_eval_source *source,
                                           int n_sources)
{
    for (int i = 0; i < n_sources; i++) {
        if (cmd_eval_face_of(&source[i]) == face) return &source[i];
    }
    return NULL;
}
