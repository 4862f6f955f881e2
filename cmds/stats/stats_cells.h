/* stats_cells: numbers and tokens as the tables of dq stats show them. Private to cmds/stats.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STATS_CELLS_H
#define DQ_STATS_CELLS_H

#include "cmds/cli/table.h"
#include "cmds/stats/stats_out.h"

enum { CMD_STATS_CELL = 96, CMD_STATS_TOPS = 5 };
extern const int cmd_stats_tops[CMD_STATS_TOPS]; /* 1, 2, 3, 10, 100 */
enum { CMD_STATS_QUANTILES = 4 };
extern const struct cmd_stats_quantile {
    const char *name; /* "p90" .. */
    double p;
} cmd_stats_quantile[CMD_STATS_QUANTILES];
extern const char *const cmd_stats_kind_title[DQ_N_KINDS]; /* "attention logits" .. */

/* A number with so many significant digits; "-" for what does not exist. */
void cmd_stats_number(dq_table *t, double x, int digits);
/* With its bound where it has one. */
void cmd_stats_median(dq_table *t, dq_median m);
/* The id at a position of a sequence; the same as a word in quotes, or "#5" without a tokenizer. */
int32_t cmd_stats_id_at(const cmd_stats_entry *e, int32_t seq, int32_t pos);
void cmd_stats_token(dq_table *t, const cmd_stats_entry *e, int32_t seq, int32_t pos);
/* A token as one printable word: control characters, the backslash and bytes that are no character on
 * their own as escapes; NULL without a tokenizer. */
const char *cmd_stats_word(char buf[CMD_STATS_CELL], const dq_tokenizer *t, int32_t id);

/* [low, high], null where there is none; {"value", "stderr", "interval"}. */
json_t *cmd_stats_interval_json(dq_interval i);
json_t *cmd_stats_mean_json(dq_mean m, dq_interval i);

#endif
