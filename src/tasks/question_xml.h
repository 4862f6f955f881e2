/* question_xml: the XML that ASDiv is published in, as records.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUESTION_XML_H
#define DQ_QUESTION_XML_H

#include "base/json.h"

/* The next <Problem ID="..."> of text[len] from *at on as {"ID", "Body", "Question", "Answer"}, with entities replaced;
 * *out NULL: there is none. DQ_DAMAGED: it does not end, or an element or entity is not one of those. The caller ends *out
 * with json_decref. */
dq_status dq_question_xml_next(json_t **out, const char *text, size_t len, size_t *at, dq_err *err);

#endif
