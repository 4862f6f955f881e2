#!/bin/sh
# race.sh: ThreadSanitizer is silent about the right kernels and names both lines of a planted race.
#   sh race.sh PROGRAM
# 77: it cannot run on this machine.
set -u
program=$1
report=$(mktemp)
trap 'rm -f "$report"' EXIT
export TSAN_OPTIONS="exitcode=66 halt_on_error=0 history_size=7"

# Where addresses are spread wider than the tool expects, it only starts without spreading.
fixed=""
try() {
    $fixed "$program" "$1" >"$report" 2>&1
    status=$?
    if [ -z "$fixed" ] && grep -q 'FATAL: ThreadSanitizer' "$report"; then
        fixed="setarch $(uname -m) -R"
        $fixed "$program" "$1" >"$report" 2>&1
        status=$?
    fi
    if grep -q 'FATAL: ThreadSanitizer' "$report" ||
        { [ -n "$fixed" ] && grep -q 'setarch:' "$report"; }; then
        echo "race.sh: ThreadSanitizer does not start here:"
        head -3 "$report"
        exit 77
    fi
}

die() {
    echo "race.sh: $1"
    cat "$report"
    exit 1
}

for kernel in clean product attend; do
    try $kernel
    [ $status = 0 ] || die "exit $status on the kernel without a race ($kernel)"
done
try stuck
grep -q 'deadlock' "$report" || die "no report of a deadlock"
export DQ_SIMT_WITHOUT=attend_second_full
try attend
[ $status = 66 ] || die "exit $status on the kernel that lacks a barrier, expected 66"
unset DQ_SIMT_WITHOUT
try racy
[ $status = 66 ] || die "exit $status on the kernel with a race, expected 66"
grep -q 'WARNING: ThreadSanitizer: data race' "$report" || die "no data race reported"
lines=$(sed -n '/ of size /{n;s/.*sample\.cu:\([0-9]*\).*/\1/p;}' "$report" | sort -un | wc -l)
[ "$lines" -ge 2 ] || die "expected two lines of sample.cu in the report"
