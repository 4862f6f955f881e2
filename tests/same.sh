#!/bin/sh
# same.sh: whether two programs say and write the same. For a change that is to change nothing.
#   sh tests/same.sh OLD NEW [FOLDER]
# Both run every variant of tests/schemas.py as document, table and CSV, all help and the demo (tests/same.py); times are left
# out, containers and exports are compared by SHA-256. Prints a diff and exits 1; also checks itself on a copy of a record with
# one digit changed, in a file of each kind. FOLDER keeps the records: a program that has one is not run again. Two
# minutes on two cores.
set -eu
LC_ALL=C
export LC_ALL OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
old=$1 new=$2 folder=${3:-$work}
mkdir -p "$folder"

record() { # PROGRAM: into the folder of its name
    to=$folder/$(name "$1")
    [ -d "$to" ] || { python3 "$here/same.py" "$1" "$here/.." "$to.part" && mv "$to.part" "$to"; }
}

name() { # PROGRAM
    sha256sum "$1" | cut -c 1-16
}

fails() { # FILE: a digit of it is changed, and the difference goes unseen
    cp -r "$folder/$(name "$old")" "$work/planted"
    sed -i "$(grep -n '[0-9]' "$work/planted/$1" | tail -1 | cut -d: -f1)s/[0-9]/x/" "$work/planted/$1"
    diff -r "$folder/$(name "$old")" "$work/planted" >"$work/report" && seen=no || seen=yes
    rm -rf "$work/planted"
    [ "$seen" = no ]
}

record "$old" &
other=$!
[ "$(name "$old")" = "$(name "$new")" ] || record "$new"
wait $other
kept=$folder/$(name "$old") made=$folder/$(name "$new")
for file in $(find "$kept" -type f -printf '%f\n' | sort | awk -F. '!seen[$NF]++'); do
    if fails "$file"; then
        echo "same: a changed digit in $file goes unseen"
        exit 1
    fi
done
diff -r "$kept" "$made" >"$work/report" || {
    cut -c 1-200 "$work/report" | head -100
    echo "same: they differ in $(grep -c '^diff\|^Only' "$work/report") of $(find "$kept" -type f | wc -l) files"
    exit 1
}
echo "same: $(find "$kept" -type f | wc -l) files alike"
