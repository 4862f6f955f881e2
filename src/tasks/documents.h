/* documents: running text as one document or many, with the counts that are taken of the original text.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_DOCUMENTS_H
#define DQ_DOCUMENTS_H

#include "base/base.h"

typedef struct dq_doc {
    const char *text; /* [len], as it was given; ill-formed UTF-8 is repaired when it is encoded */
    size_t len;
    int64_t words;    /* pieces between runs of white space, empty ones at the ends included */
    const char *path; /* of the file that it is from */
    int64_t line;     /* of that file, from 1; 0: the file is the document */
} dq_doc;

typedef struct dq_docs {
    dq_doc *doc;
    int64_t n;
    size_t cap;
    int64_t n_bad, first_bad; /* ill-formed UTF-8, and the offset of the first in its file */
    const char *bad_path;     /* that file; NULL: none */
    const char
        *lines_path; /* a file that is taken as one document, and looks like lines; NULL: none */
    int64_t at;      /* offset in its file of the text that is added next */
} dq_docs;

/* Adds what a file holds: with a name that ends in ".jsonl", a document for each line {"text": ...} that is
 * not blank; else one document. text[len] and path are kept, not copied. An empty file adds an empty
 * document, or none. DQ_DAMAGED names path and line. */
dq_status dq_documents_add(dq_docs *d, const char *path, const char *text, size_t len, dq_arena *a,
                           dq_err *err);

/* Whether most of the first lines of text[len] are JSON objects. */
bool dq_documents_are_json_lines(const char *text, size_t len);

/* Whether a file of that name holds lines. One of them, which is not blank; its number is for messages. */
bool dq_documents_has_lines(const char *path);
dq_status dq_documents_add_line(dq_docs *d, const char *path, int64_t number, const char *text,
                                size_t len, dq_arena *a, dq_err *err);

/* len(re.split(r"\s+", text)) of Python.
 * Source: lm-evaluation-harness lm_eval/tasks/wikitext/preprocess_wikitext.py (behaviour). */
int64_t dq_documents_count_words(const char *text, size_t len);

#endif
