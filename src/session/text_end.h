/* text_end: why a text that a model writes has ended.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TEXT_END_H
#define DQ_TEXT_END_H

typedef enum dq_text_end {
    DQ_TEXT_END_NONE,      /* it has not */
    DQ_TEXT_END_STOP_ID,   /* EOS or its like came */
    DQ_TEXT_END_REQUESTED, /* whoever is told each id said so */
    DQ_TEXT_END_MAX_NEW,
    DQ_TEXT_END_POSITIONS /* the last id would be fed at a position that the model does not have */
} dq_text_end;
/* "none", "stop_id", "asked", "max_new", "positions" */
extern const char *const dq_text_end_name[];

#endif
