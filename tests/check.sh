#!/bin/sh
# check.sh: formatting and linters over all files that git knows: what CI holds a change to beside the tests.
#   sh tests/check.sh [BUILD]     BUILD: a folder with compile_commands.json, for clang-tidy; without it C is not linted
# Prints what is wrong; exits 1 if anything is. ./setup check installs the tools first.
set -u
cd "$(dirname "$0")/.." || exit 1
bad=0

# run WHAT COMMAND...
run() {
    what=$1
    shift
    "$@" || {
        echo "check.sh: $what: see above" >&2
        bad=1
    }
}

# of COMMAND PATTERN...: the command with all files of these patterns; names hold no spaces.
of() {
    command=$1
    shift
    # shellcheck disable=SC2046,SC2086
    $command $(git ls-files "$@")
}

run formatting of "clang-format-14 --dry-run -Werror" '*.c' '*.h' '*.cu' '*.cuh' '*.cpp'
for rule in layers names documents kinds words; do run "$rule" sh "tests/$rule.sh" .; done

# Parts of tests/cli are sourced: their variables come from run.sh.
run shell of "shellcheck" setup .ci/run '*.sh' ':!tests/cli/*.sh' tests/cli/run.sh
run shell of "shellcheck -x -s sh -e SC2154" 'tests/cli/*.sh' ':!tests/cli/run.sh'
run bash of shellcheck '*.bash'
run Python of flake8 '*.py'

if [ $# -gt 0 ]; then
    git ls-files 'src/*.c' 'cmds/*.c' 'calib/*.c' 'studies/*.c' 'kernels/cpu/*.c' 'kernels/paged/*.c' |
        xargs -P "$(nproc)" -n 4 clang-tidy-14 -p "$1" --quiet 2>/dev/null || {
        echo "check.sh: clang-tidy: see above" >&2
        bad=1
    }
fi
exit $bad
