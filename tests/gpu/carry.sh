#!/bin/sh
# carry.sh: what carry.cmake packs is what python3 and tar unpack, the same bytes each time, and never too much.
#   sh tests/gpu/carry.sh CMAKE
# Prints one line per failed check; exits 1 if there was one.
set -u
LC_ALL=C
export LC_ALL
[ $# -eq 1 ] || {
    echo "usage: carry.sh CMAKE" >&2
    exit 2
}
cmake=$1
here=$(cd "$(dirname "$0")" && pwd)
top=$(mktemp -d) || exit 1
trap 'rm -rf "$top"' EXIT
bad=0

complain() {
    echo "carry: $*"
    bad=1
}

pack() { # OUT MOST_MIB FILES: below $top/build
    (cd "$top/build" && "$cmake" "-DFILES=$3" "-DOUT=$1" "-DMOST_MIB=$2" -P "$here/carry.cmake") >"$top/said" 2>&1
}

unpacked() { # FOLDER
    diff -r "$top/build" "$1" >/dev/null || complain "$1 differs from what was packed: $(ls -R "$1")"
    [ -x "$1/tests/gpu/program" ] || complain "$1/tests/gpu/program cannot be run"
    [ ! -x "$1/library.so.0" ] || complain "$1/library.so.0 became a program"
}

mkdir -p "$top/build/tests/gpu" "$top/python" "$top/tar"
head -c 1100000 /dev/urandom >"$top/build/tests/gpu/program"
cp "$top/build/tests/gpu/program" "$top/build/tests/again"
head -c 10000000 /dev/zero >"$top/build/tests/between" # further than xz looks back by default
echo library >"$top/build/library.so.0"
chmod +x "$top/build/tests/gpu/program"
files="tests/gpu/program;library.so.0;tests/between;$top/build/tests/again"
pack "$top/one.tar.xz" 2 "$files" || {
    complain "packing failed, or equal files are not kept once: $(cat "$top/said")"
    exit 1
}
grep -q '/one.tar.xz: 4 files, 1\.1 MiB$' "$top/said" || complain "the size: $(cat "$top/said")"
touch -d 2020-02-02 "$top/build/tests/again"
pack "$top/two.tar.xz" 2 "$top/build/tests/again;tests/between;library.so.0;tests/gpu/program" || complain "packing again failed"
cmp -s "$top/one.tar.xz" "$top/two.tar.xz" || complain "the same files gave other bytes"
if python3 -c 'import lzma' 2>/dev/null; then
    python3 -m tarfile -e "$top/one.tar.xz" "$top/python" >/dev/null
    unpacked "$top/python"
fi
if command -v xz >/dev/null; then
    tar -xf "$top/one.tar.xz" -C "$top/tar"
    unpacked "$top/tar"
fi

pack "$top/one.tar.xz" 1 "$files" && complain "1.1 MiB are not above 1 MiB"
grep -q '1\.1 MiB (expected at most 1)' "$top/said" || complain "above the limit: $(cat "$top/said")"
[ ! -e "$top/one.tar.xz" ] || complain "above the limit, and there is an archive"
pack "$top/three.tar.xz" 2 "library.so.0;no-such-file" && complain "a file that is missing was not missed"
pack "$top/three.tar.xz" 2 "library.so.0;../two.tar.xz" && complain "a file from elsewhere was packed"
[ ! -e "$top/three.tar.xz" ] || complain "an archive without a file that was asked for"
exit $bad
