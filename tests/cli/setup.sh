# setup.sh: what a fresh machine types, as README.md begins with it, and what ./setup makes of it; sourced by run.sh.

# ---- the first lines of README.md name the commands, each with its minutes
head -n 20 "$repo/README.md" >head.txt
grep -q '^git clone ' head.txt || complain "setup: README.md does not begin with git clone"
for word in demo test; do
    grep -q "^\./setup $word  *# [0-9].* minutes" head.txt || complain "setup: README.md does not begin with ./setup $word and its minutes"
    sh "$repo/setup" help 2>&1 | grep -q "^  ./setup $word " || complain "setup: ./setup does not know $word"
done
# ... and a first try whose sentences are those that the page shows
tried=$(sed -n '/^dq generate calib/{p;q}' "$repo/README.md")
[ -n "$tried" ] || complain "setup: README.md begins with no model of the checkout"
(cd "$repo" && eval "\"\$dq\" ${tried#dq}" 2>/dev/null) >out
grep -qxF -e "$(cat out)" "$repo/README.md" || complain "setup: $tried: writes $(cat out)"
[ "$(wc -l <"$repo/README.md")" -le 120 ] || complain "setup: README.md has more than 120 lines"

# ---- the demo compiles kernels only where something runs them. Tools that only write down how they are called stand for cmake and dpkg.
mkdir -p fresh/calib tools && cp "$repo/setup" fresh/
echo 'echo demo "$@"' >fresh/calib/demo.sh
printf '#!/bin/sh\necho "$*" >>"%s/calls"\nwhile [ $# -gt 0 ]; do [ "$1" != -B ] || mkdir -p "$2"; [ "$1" != -B ] || : >"$2/CMakeCache.txt"; shift; done\n' \
    "$PWD" >tools/cmake
printf '#!/bin/sh\necho " installed"\n' >tools/dpkg-query
chmod +x tools/*
typed() { # typed WORD: ./setup WORD in the fresh clone; its calls of cmake in calls
    : >calls
    PATH=$PWD/tools:$PATH sh fresh/setup "$1" >out 2>err || complain "setup: ./setup $1: status $?: $(cat err)"
}
cuda="-DDQ_CUDA=OFF"
[ ! -e /dev/nvidiactl ] || cuda="-DCMAKE_BUILD_TYPE=Release"
typed demo
grep -q -e "$cuda" calls || complain "setup: the demo configures with: $(cat calls)"
grep -q -e "--target dq$" calls || complain "setup: the demo builds more than dq: $(cat calls)"
[ -e /dev/nvidiactl ] || grep -q "no GPU here" err || complain "setup: nothing says that kernels are left out: $(cat err)"
grep -q "^demo build/dq results/demo$" out || complain "setup: the demo does not run: $(cat out)"
typed build
grep -q -e "-DDQ_CUDA=AUTO" calls || complain "setup: ./setup build leaves kernels out: $(cat calls)"
typed demo
! grep -q -e "DQ_CUDA" calls || complain "setup: the demo changes a build that is there: $(cat calls)"
