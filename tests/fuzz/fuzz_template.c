/* fuzz_template: any bytes as a chat template, rendered for two messages. Every refusal explains itself, and what is given
 * is as long as it says.
 * SPDX-License-Identifier: MIT */
#include "template/chat_template.c" /* what is private there */

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const dq_chat_message m[] = {{"system", "Be \"brief\"."}, {"user", " é\n"}};
    dq_err err = {0};
    dq_chat_template *t = NULL;
    char *out = NULL;
    size_t len = 0;
    if (new_template(&t, (const char *)data, size, &err) == DQ_OK &&
        define(t, "bos_token", "<s>", &err) == DQ_OK)
        render_template(t, m, 2, true, &out, &len, &err);
    if (err.code == DQ_OK ? !out || strlen(out) > len : out || !err.text[0]) abort();
    dq_block_free(out);
    dq_chat_template_free(t);
    return 0;
}
