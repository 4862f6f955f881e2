/* last_words: the one line on stderr when the process ends otherwise than by a return from main.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LAST_WORDS_H
#define DQ_LAST_WORDS_H

/* From here on until dq_last_words_end: SIGBUS in a mapped file (it was cut short, or its disk fails) is
 * exit status 6 with the file's name; a library that calls exit is exit status 5. Outputs stay as a kill
 * would leave them. */
void dq_last_words_begin(void);
void dq_last_words_name(const char *command); /* a literal: who speaks */
void dq_last_words_end(void);

#endif
