/* stats_cells: see stats_cells.h. A token is taken apart byte by byte, so that whatever a vocabulary holds stays one word on a
 * terminal.
 * SPDX-License-Identifier: MIT */
#include "cmds/stats/stats_cells.h"

#include "base/text.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>

enum { CELL = CMD_STATS_CELL };

const int cmd_stats_tops[CMD_STATS_TOPS] = {1, 2, 3, 10, 100};
const struct cmd_stats_quantile cmd_stats_quantile[CMD_STATS_QUANTILES] = {
    {"p90", 0.9}, {"p99", 0.99}, {"p99_9", 0.999}, {"p99_99", 0.9999}};
const char *const cmd_stats_kind_title[DQ_N_KINDS] = {
    "attention logits", "hidden states", "queries",          "keys",         "values",
    "input of q k v",   "input of o",    "input of gate up", "input of down"};

void cmd_stats_number(dq_table *t, double x, int digits)
{
    if (isfinite(x))
        dq_table_cell(t, "%.*g", digits, x);
    else
        dq_table_cell(t, "-");
}

void cmd_stats_median(dq_table *t, dq_median m)
{
    if (isfinite(m.value) && m.bound > 0)
        dq_table_cell(t, "%.4g +- %.1g", m.value, m.bound);
    else
        cmd_stats_number(t, m.value, 5);
}

int32_t cmd_stats_id_at(const cmd_stats_entry *e, int32_t seq, int32_t pos)
{
    return e->in.ids[e->in.cu[seq] + pos];
}

const char *cmd_stats_word(char buf[CMD_STATS_CELL], const dq_tokenizer *t, int32_t id)
{
    size_t len = 0, used = 0;
    int64_t first_bad;
    const char *s = t ? dq_tokenizer_piece(t, id, &len) : NULL;
    if (!s) return NULL;
    bool whole = dq_utf8_check(s, len, &first_bad) == 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        bool head = c < 0x80 || c >= 0xc0;
        if (head && used > CELL - 16) { /* cut between characters */
            used += (size_t)snprintf(buf + used, CELL - used, "...");
            break;
        }
        bool control =
            c < 0x20 || c == 0x7f || (c == 0xc2 && whole && (unsigned char)s[i + 1] < 0xa0);
        if (c == '\n')
            used += (size_t)snprintf(buf + used, CELL - used, "\\n");
        else if (c == '\t')
            used += (size_t)snprintf(buf + used, CELL - used, "\\t");
        else if (c == '\\')
            used += (size_t)snprintf(buf + used, CELL - used, "\\\\");
        else if (control && c == 0xc2)
            used += (size_t)snprintf(buf + used, CELL - used, "\\xc2\\x%02x",
                                     (unsigned)(unsigned char)s[++i]);
        else if (control || (c >= 0x80 && !whole))
            used += (size_t)snprintf(buf + used, CELL - used, "\\x%02x", (unsigned)c);
        else
            buf[used++] = (char)c;
    }
    buf[used] = 0;
    return buf;
}

void cmd_stats_token(dq_table *t, const cmd_stats_entry *e, int32_t seq, int32_t pos)
{
    char buf[CELL];
    const int32_t id = cmd_stats_id_at(e, seq, pos);
    const char *text = cmd_stats_word(buf, e->tokenizer, id);
    if (text)
        dq_table_cell(t, "\"%s\"", text);
    else
        dq_table_cell(t, "#%d", (int)id);
}

json_t *cmd_stats_interval_json(dq_interval i)
{
    if (!isfinite(i.low)) return json_null();
    json_t *x = json_array();
    json_array_append_new(x, dq_document_real(i.low));
    json_array_append_new(x, dq_document_real(i.high));
    return x;
}

json_t *cmd_stats_mean_json(dq_mean m, dq_interval i)
{
    json_t *x = dq_document_metric(m.value, m.std_err);
    json_object_set_new(x, "interval", cmd_stats_interval_json(i));
    return x;
}
