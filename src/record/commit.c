/* The only file that includes what the build looks up, so that another commit compiles nothing
 * else.
 * SPDX-License-Identifier: MIT */
#include "record/commit_text.h"
#include "record/record.h"
#include "record/version.h"

#include <stddef.h>

const char *dq_commit_text(void)
{
    return DQ_COMMIT_TEXT[0] ? DQ_COMMIT_TEXT : NULL;
}

const char *dq_commit_version(void)
{
    return DQ_COMMIT_TEXT[0] ? DQ_VERSION " (" DQ_COMMIT_TEXT ")" : DQ_VERSION;
}
