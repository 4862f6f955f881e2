/* html_sensitivity: what dq stats --sensitivity found: units that were rounded alone, by the KL divergence that came of it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HTML_SENSITIVITY_H
#define DQ_HTML_SENSITIVITY_H

#include "cmds/report/html_part.h"

typedef struct dq_html_unit {
    const json_t *j;
    size_t place;          /* in the document, which has the largest first */
    const char *of, *by;   /* "logits", "head" */
    const char *name;      /* "layer 11 head 3"; a tensor's name, which is anybody's text */
    double kld, low, high; /* NaN: not known */
    double local, logits;  /* forecasts: local error, logit error */
} dq_html_unit;

/* Units of what and by what stand together. */
typedef struct dq_html_units {
    dq_html_unit *at; /* [n], the largest KLD first */
    int n;
} dq_html_units;

/* The sensitivity of the result of item i; NULL: none. */
const json_t *dq_html_sensitivity_of(const dq_html *h, int i);
/* The kinds (of, by) of its units in the order of the document: the units of the k-th; n is 0 after the last one. */
dq_html_units dq_html_units_of(dq_html *h, int i, int k);
/* What the document says of the first and the next of such units, from windows that did not choose them: {first, next, more_nats}.
 * NULL: nothing. */
const json_t *dq_html_units_decided(const dq_html *h, int i, const dq_html_units *u);
/* "layer 11 head 3" of an object with these members. */
const char *dq_html_unit_name(dq_html *h, const json_t *unit);

#endif
