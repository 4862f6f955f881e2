#!/bin/sh
# noted.sh: runs a compiler, and fails where ptxas notes that products are serialized or registers are not handed over (C7508 to
# C7515), which no option makes an error.
#   sh noted.sh COMPILER ARGUMENT...
set -u
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
"$@" >"$log" 2>&1
status=$?
cat "$log" >&2
if grep -qE 'C75(0[89]|1[0-5])' "$log"; then
    echo "noted.sh: what ptxas notes here is an error" >&2
    exit 1
fi
exit $status
