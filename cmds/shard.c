/* shard: see shard.h. The words of a command are kept as they were given, so that dq merge reads them as the command did, and
 * are shown as a shell reads them.
 * SPDX-License-Identifier: MIT */
#include "cmds/shard.h"

#include "base/ranks.h"

#include <stdio.h>
#include <string.h>

dq_status dq_shard_read(dq_shard *part, const char *file, const char *also, dq_err *err)
{
    int used = 0;
    const char *w = part->word;
    if (!w) return DQ_OK;
    const size_t digits = strspn(w, "0123456789");
    const bool plain = digits > 0 && digits < 7 && w[digits] == '/' && strlen(w) < 14 &&
                       strspn(w + digits + 1, "0123456789") == strlen(w) - digits - 1;
    if (!plain || sscanf(w, "%d/%d%n", &part->shard, &part->n, &used) != 2 || w[used] ||
        part->shard < 1 || part->n < part->shard || part->n > DQ_SHARDS)
        return dq_fail(err, DQ_USAGE,
                       "--shard: expected I/N, with I from 1 to N and N at most %d, found \"%s\".",
                       DQ_SHARDS, w);
    if (dq_ranks_count() > 1)
        return dq_fail(err, DQ_USAGE,
                       "--shard is for runs without MPI: mpirun shares the work itself.");
    if (!file) return dq_fail(err, DQ_USAGE, "--shard: nowhere to write the part. Add -o FILE.");
    if (also)
        return dq_fail(err, DQ_USAGE,
                       "--%s: a part has nothing to show. Leave it out, and give it to dq merge.",
                       also);
    return DQ_OK;
}

dq_status dq_shard_head(json_t **about, const dq_shard_about *a, int argc, char **argv, dq_err *err)
{
    json_t *words = json_array(), *o = json_object();
    for (int i = 1; i < argc; i++) {
        json_t *word = json_string(argv[i]);
        if (!word)
            dq_fail(err, DQ_USAGE, "%s: not UTF-8, so a part cannot name it. Give it another name.",
                    argv[i]);
        json_array_append_new(words, word);
    }
    json_object_set_new(o, "command", json_string(a->command));
    json_object_set_new(o, "shard", json_integer(a->part->shard));
    json_object_set_new(o, "shards", json_integer(a->part->n));
    json_object_set_new(o, "program", json_string(a->program));
    json_object_set_new(o, "device", json_string(a->backend->device));
    json_object_set_new(o, "threads", json_integer(a->backend->threads));
    json_object_set_new(o, "conditions", a->conditions);
    json_object_set_new(o, "arguments", words);
    *about = o;
    return err->code;
}

void dq_shard_say(const dq_shard *part, const char *file, double share, const char *out,
                  dq_logger *logger)
{
    dq_logger_say(logger,
                  "part %d of %d, %.3g %% of the work, is in %s. Of all parts: dq merge FILE... -o "
                  "%s",
                  part->shard, part->n, 100 * share, file, out);
}

/* Appends a word as a shell reads it; false where it does not fit. */
static bool add_word(char *line, size_t cap, const char *word)
{
    size_t n = strlen(line);
    bool plain = word[0] && !word[strcspn(word, " \t\n'\"\\$`*?[]{}~#!;&|<>()")];
    if (n + 4 * strlen(word) + 4 > cap) return false;
    line[n++] = ' ';
    if (!plain) line[n++] = '\'';
    for (const char *c = word; *c; c++) {
        if (*c == '\'') { /* ends the quotes, stands alone, begins them again */
            memcpy(line + n, "'\\'", 3);
            n += 3;
        }
        line[n++] = *c;
    }
    if (!plain) line[n++] = '\'';
    line[n] = 0;
    return true;
}

dq_status dq_shard_stopped(const char *command, const char *file, bool whole, int argc, char **argv,
                           dq_err *err)
{
    char again[600] = "";
    bool fits = true;
    for (int i = 1; fits && i < argc; i++)
        fits = strcmp(argv[i], "--resume") == 0 || add_word(again, sizeof again, argv[i]);
    if (!fits) snprintf(again, sizeof again, " and the same arguments as before");
    memset(err, 0, sizeof *err);
    return dq_fail(err, DQ_STOPPED,
                   "interrupted; finished work%s is in %s. Go on from this folder with: dq %s "
                   "--resume%s",
                   whole ? "" : ", up to where the file could be written,", file, command, again);
}
