#!/bin/sh
# times.sh: which tests took more than a tenth of their timeout. On an idle machine none may: a busy one would end them.
#   sh tests/times.sh FOLDER     FOLDER: a build, or one of builds, whose last run ctest wrote to FOLDER/times.xml
# Prints one line per test; always exits 0.
set -eu
folder=$1
[ -r "$folder/times.xml" ] || exit 0
find "$folder" -name CTestTestfile.cmake -exec cat {} + | awk '
    FNR == NR {
        if (match($0, /^set_tests_properties\([^ ]+/) && match($0, / TIMEOUT "[0-9]+/)) {
            limit = substr($0, RSTART + 10, RLENGTH - 10) + 0
            split($0, word, /[( ]/)
            limits[word[2]] = limit
        }
        next
    }
    /<testcase / {
        split($0, part, "\"")
        name = part[2]
        time = $0
        sub(/.* time="/, "", time)
        if (name in limits && time + 0 > limits[name] / 10)
            printf "times.sh: %s took %d s, more than a tenth of its timeout of %d s\n", name, time + 0, limits[name]
    }' - "$folder/times.xml"
