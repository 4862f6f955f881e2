#!/bin/sh
# barriers.sh: every barrier and wait of the kernels has a name, and a row that says what fails without it.
#   sh barriers.sh REPOSITORY TABLE DIRECTORY-OF-TEST-PROGRAMS [NAME]...
# The simulation leaves out the barrier that DQ_SIMT_WITHOUT names; no kernel is built for it. NAME: only these
# rows are run. First every program must pass with all barriers, or a failure would mean nothing. Also checks
# itself on a planted tree that must be complained about.
set -eu
LC_ALL=C
export LC_ALL
root=$1 table=$2 programs=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tab=$(printf '\t')

kernels() { # DIRECTORY...
    find "$@" -maxdepth 1 \( -name '*.cu' -o -name '*.cuh' \) ! -name ptx.cuh ! -name hopper.cuh | sort
}

# names FILE...: of all barriers, one a line.
names() {
    cat "$@" |
        grep -oE 'DQ_((WARP_|BAR_|CLUSTER_)?SYNC|(CP_ASYNC|MBARRIER|WGMMA)_WAIT|WGMMA_FENCE|FENCE_ASYNC)\([^;]*\);' |
        sed -E 's/^.*[(, ]([a-z0-9_]+)\);$/\1/'
}

# check_names TABLE DIRECTORY...: lines about what has no name, no row, or two.
check_names() {
    rows=$1
    shift
    # shellcheck disable=SC2046
    set -- $(kernels "$@")
    grep -nE 'dq_(sync|warp_sync|bar_sync|bar_arrive|cluster_(arrive|wait)|mbarrier_(try_)?wait|wgmma_fence|fence_async)\(|dq_(cp_async|wgmma)_wait<' "$@" |
        sed 's/$/ -- has no name; use DQ_SYNC or the like, which has one/'
    names "$@" | sort >"$work/names"
    grep -v '^#' "$rows" | cut -f1 | sort >"$work/rows"
    uniq -d "$work/names" | sed 's/$/: two barriers have this name/'
    uniq -d "$work/rows" | sed 's/$/: two rows/'
    sort -u "$work/names" -o "$work/names"
    sort -u "$work/rows" -o "$work/rows"
    comm -23 "$work/names" "$work/rows" | sed 's/$/: a barrier without a row/'
    comm -13 "$work/names" "$work/rows" | sed 's/$/: a row without a barrier/'
}

run() { # NAME PROGRAM and its arguments
    case $2 in race_*) fixed="setarch $(uname -m) -R" ;; *) fixed= ;; esac
    # shellcheck disable=SC2086
    (cd "$programs" && timeout 120 $fixed env ${1:+DQ_SIMT_WITHOUT="$1"} DQ_SIMT_QUIET=1 \
        TSAN_OPTIONS="exitcode=66 history_size=2 halt_on_error=1" ./$2 || exit 1) >"$work/out" 2>&1
}

# ThreadSanitizer does not start everywhere.
runs_here() { # PROGRAM and its arguments
    case $1 in race_*) ;; *) return 0 ;; esac
    [ -e "$work/race" ] || { run "" "race_kernels spans" || true; } && cp "$work/out" "$work/race"
    ! grep -qE 'FATAL: ThreadSanitizer|setarch:' "$work/race"
}

check_row() { # NAME PROGRAM CAUGHT REASON: a line if something is wrong
    right=$work/right.$(echo "$2" | tr '/ *' '___')
    if [ ! -e "$right" ]; then
        : >"$right"
        if ! run "" "$2"; then
            echo "$2 fails with all barriers:"
            cat "$work/out"
        fi
    fi
    if run "$1" "$2"; then
        [ "$3" = = ] || echo "$1: $2 passes without it"
    elif [ "$3" = = ]; then
        echo "$1: $2 fails without it, which the table calls equivalent"
    elif [ "$3" != - ] && ! grep -Eq "$3" "$work/out"; then
        echo "$1: $2 fails without it, but says nothing of \"$3\""
    fi
}

check_rows() { # [NAME]...
    while IFS="$tab" read -r name program caught reason; do
        case $name in '' | '#'*) continue ;; esac
        [ $# = 0 ] || case " $* " in *" $name "*) ;; *) continue ;; esac
        [ -n "$caught" ] || echo "$name: a column is missing"
        [ "$caught" != = ] || [ -n "$reason" ] || echo "$name: equivalent, but why?"
        if ! runs_here "$program"; then
            echo "$name" >>"$work/skipped"
            continue
        fi
        check_row "$name" "$program" "$caught" "$reason"
    done
}

# On itself: one complaint for each line.
mkdir "$work/bad"
cat >"$work/bad/a.cu" <<'END'
    dq_sync(); /* no name */
    DQ_SYNC(twice);
    DQ_WARP_SYNC(no_row);
END
cat >"$work/bad/b.cuh" <<'END'
    DQ_SYNC(twice);
    DQ_CP_ASYNC_WAIT(S::STAGES - 2, late);
END
printf '%s\t%s\t%s\n' twice x - late x - gone x - >"$work/bad/table"
check_names "$work/bad/table" "$work/bad" >"$work/self"
printf '%s\t%s\t%s\t%s\n' sample_part 'test_simt_sample' - '' none test_simt_sample - '' \
    sample_part test_simt_sample 'no such message' '' sample_part test_simt_sample = why |
    check_rows >>"$work/self"
for expected in 'a\.cu:1:.*has no name' 'twice: two barriers' 'no_row: a barrier without a row' \
    'gone: a row without a barrier' 'none: test_simt_sample passes without it' \
    'sample_part: .*nothing of "no such message"' 'sample_part: .*calls equivalent'; do
    grep -q "$expected" "$work/self" || {
        echo "barriers.sh: does not complain about its own bad row: $expected"
        cat "$work/self"
        exit 1
    }
done
[ "$(wc -l <"$work/self")" = 7 ] || { cat "$work/self" && exit 1; }

check_names "$table" "$root/kernels/cuda/device" "$root/tests/simt" >"$work/complaints"
check_rows "$@" <"$table" >>"$work/complaints"
rows=$(grep -c "^[^#]" "$table")
[ "$rows" -gt 0 ] || echo "$table holds no row" >>"$work/complaints"
cat "$work/complaints"
[ ! -s "$work/complaints" ] || exit 1
if [ -e "$work/skipped" ]; then
    echo "barriers.sh: $(wc -l <"$work/skipped") of $rows not run, ThreadSanitizer does not start here"
else
    echo "barriers.sh: $rows of $rows as the table says"
fi
