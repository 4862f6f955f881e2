/* jinja_filters: the tables of filters, tests and functions of templates.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JINJA_FILTERS_H
#define DQ_JINJA_FILTERS_H

#include "template/jinja_value.h"

/* The row of this name, without code where Jinja2 has one that is not implemented; NULL: there is none. Functions are those
 * that templates find without being given them. */
const dq_jinja_function *dq_jinja_filters_find(dq_jinja_text name);
const dq_jinja_function *dq_jinja_tests_find(dq_jinja_text name);
const dq_jinja_function *dq_jinja_functions_find(dq_jinja_text name);

#endif
