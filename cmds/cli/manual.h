/* manual: a page of the manual, in roff with the macros of man(7). Parts of a page are printed in the order in which they
 * are called for; texts are plain and become filled lines.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_MANUAL_H
#define DQ_MANUAL_H

#include "settings/options.h"

/* The title and the section NAME. name: "plan kv", or NULL for the page of dq itself. The date is that of
 * SOURCE_DATE_EPOCH, or today. */
void dq_manual_begin(const char *name, const char *purpose);
void dq_manual_section(const char *title);
/* A paragraph for each line. */
void dq_manual_text(const char *text);
/* The command and each line that may follow it: options are bold, what is in capitals is italic. name as above. */
void dq_manual_synopsis(const char *name, const char *text);
/* A tag and what it is, as an exit status. */
void dq_manual_item(const char *tag, const char *text);
/* A command as a tag that names its page, and what it is for. */
void dq_manual_entry(const char *name, const char *purpose);
/* The next of a list of pages, of which there are more. name as above. */
void dq_manual_see(const char *name, bool more);
/* Synopsis, description, options and examples of a command (a dq_help_taker). opts: ended, without DQ_OPT_ROWS. */
void dq_manual_command(const dq_opt *opts, const dq_usage *usage);

#endif
