#!/bin/sh
# words.sh: words and turns of phrase that left the project stay out, so that the field's stand alone; and no line of
# the product is longer than 100 columns.
#   sh tests/words.sh [REPOSITORY]
# Every text file that git knows is searched, names of files included; but those that list such words, and a golden's text. Prints one line per place and exits 1; also checks itself
# on a planted tree. A line of WORDS: an extended regular expression, a colon, and what is said instead.
set -eu
LC_ALL=C
export LC_ALL

WORDS='(^|[^a-z])grains?([^a-z]|$): granularity
(^|[^a-z_])kv[-_]code([^a-z_]|$): kv-quant
(^|[^-])(page|token) codes?([^a-z]|$): per-channel or per-token codes
touchy: sensitive
yardstick: baseline
(^|[^a-z])rivals?([^a-z]|$): baseline
not decided: inconclusive
on the front([^a-z]|$): on the Pareto front
--ends([^a-z-]|$): --include-embeddings
head[-_ ]maps?([^a-z]|$): head order
(^|[^a-z])reread: second pass
kv[-_]roles|head roles: retrieval and streaming heads
CPU levels?([^a-z]|$): ISA
(^|[^a-z])guides? (to|that reads|score)|guides?\.py: importance score
(tokens|cache|policy|context) (is |are |was |were )?forg[eo]t|forgotten tokens: evict
(scored|fewer|more|[0-9]) ids([^a-z]|$): tokens
ceilings?_|ceilings of: peak
(is|are) warned of: a warning names it
[ (,]be it (the|a|an|in|of) : or, whether
(^|[^A-Za-z0-9_])dq_([a-z0-9]+_)*parts?([^a-z]|$): shard of a job, dataset of a weight; block, columns or range
(^|[^a-z])parts? of (a|the|one) (job|run)([^a-z]|$): shard'

# found FOLDER: lines "FILE:LINE:TEXT <- say WORD"
found() {
    (
        cd "$1"
        {
            if [ -e .git ]; then git ls-files -z; else find . -type f -print0; fi
        } | tr '\0' '\n' | grep -vE '^(tests/(words|names).sh|tests/golden/gguf/spm.json)$' >"$top/files"
        printf '%s\n' "$WORDS" | while IFS= read -r line; do
            word=${line%: *} say=${line##*: }
            {
                tr '\n' '\0' <"$top/files" | xargs -0 grep -InE -e "$word" /dev/null | cut -c1-140 || true
                grep -E -e "$word" "$top/files" || true
            } | sed "s/\$/ <- say $say/"
        done
    )
}

# long_lines FOLDER: lines "FILE:LINE: N columns, at most 100"; bytes that go on with a character are none.
long_lines() {
    (
        cd "$1"
        {
            if [ -e .git ]; then git ls-files -z src cmds kernels calib lib; else find . -type f -print0; fi
        } | tr '\0' '\n' | grep -E '\.(c|h|cu|cuh)$' | tr '\n' '\0' | xargs -0 awk '
            { gsub(/[\200-\277]/, "") }
            length > 100 { print FILENAME ":" FNR ": " length " columns, at most 100" }'
    )
}

top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
mkdir "$top/tree"
printf '%s\n' "its grain is one" "the --kv-code" "token codes, page code" touchy "a yardstick" "no rivals" "not decided" "on the front" \
    "--ends" "the head map" "a reread" "--kv-roles" "a CPU level" "a guide to it" "tokens are forgotten" "12 ids" \
    "ceilings of it" "both are warned of" "a head, be it the embedding" "dq_weight_part_bytes()" "a part of the run" >"$top/tree/bad"
printf '%s\n' "grained" "codes of a token" "arrival" "decided" "in front" "--ends-with" "Hugging Face guide" "ids of 12" "the ceiling of .5" "he warned of it" "may it be" "dq_partial_sum()" "part of the text" >"$top/tree/good"
found "$top/tree" >"$top/out"
[ "$(grep -c '^\./bad:' "$top/out")" = 21 ] && [ "$(wc -l <"$top/out")" = 21 ] || {
    echo "words.sh: does not find what was planted:"
    cat "$top/out"
    exit 1
}
awk 'BEGIN { for (n = 99; n <= 101; n++) { s = ""; while (length(s) < n) s = s "x"; print s }
    s = ""; for (n = 0; n < 100; n++) s = s "\303\244"; print s }' >"$top/tree/long.c"
[ "$(long_lines "$top/tree")" = "./long.c:3: 101 columns, at most 100" ] || {
    echo "words.sh: does not find the long line that was planted"
    exit 1
}
{
    found "${1:-.}"
    long_lines "${1:-.}"
} >"$top/out"
cat "$top/out"
[ ! -s "$top/out" ]
