# planted.sh: how checks of the tree (kinds, layers, names, documents) check themselves; sourced by them.
# `check TREE` of the check prints a line per violation; its self_test plants files, some of them wrong, in $tree.
# shellcheck shell=sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir "$tree"

plant() { # FILE TEXT...
    mkdir -p "$tree/$(dirname "$1")"
    file=$1
    shift
    printf '%s\n' "$@" >"$tree/$file"
}

wrong() { # WHAT
    echo "tests/$(basename "$0"): $1"
    exit 1
}

expect_clean() { # so far
    check "$tree" >"$work/report"
    [ ! -s "$work/report" ] || wrong "reports a clean tree: $(cat "$work/report")"
}

expect() { # PATTERN: of a line of the report of the second check
    grep -q "$1" "$work/report" || wrong "does not find its planted violation: $1"
}

expect_no() { # PATTERN
    ! grep -q "$1" "$work/report" || wrong "reports what is right: $(grep "$1" "$work/report")"
}

check_and_exit() { # REPOSITORY
    check "$1" >"$work/report"
    cat "$work/report"
    [ ! -s "$work/report" ]
    exit
}
