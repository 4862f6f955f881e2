#!/bin/sh
# layers.sh: who may include whom, who may print, and who may name options.
#   sh tests/layers.sh [REPOSITORY]
# The table "Layers" of ARCHITECTURE.md says which folders a folder may include, besides itself; neither folders nor
# headers form a circle. Prints one line per violation and exits 1; also checks itself on a planted tree
# that breaks every rule.
set -eu
LC_ALL=C
export LC_ALL
# shellcheck source=tests/planted.sh
. "$(dirname "$0")/planted.sh"

# Lines "folder other..." of the table in $1.
layers() {
    sed -n '/^## Layers$/,/^## /s/^| `\([^`]*\)` | [^|]* | \([^|]*\) |.*/\1 \2/p' "$1" | tr -d '`,' | sed 's/ –//'
}

# Lines "file line kind header" of every #include below $1; kind is " or <.
includes() {
    # shellcheck disable=SC2046 # names of sources hold no spaces
    (cd "$1" && grep -n '^[[:space:]]*#[[:space:]]*include' $(files) /dev/null) |
        sed -n 's/^\([^:]*\):\([0-9]*\):[^"<]*\(["<]\)\([^">]*\)[">].*/\1 \2 \3 \4/p'
}

files() {
    find src kernels calib cmds lib -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null | sort
}

# A folder of the table is named from src, or from the root; the longest name that fits a path is its folder.
check_layers() {
    includes "$1" | LAYERS="$(layers "$1/ARCHITECTURE.md")" awk '
    function folder(path,   name) {
        sub(/^src\//, "", path)
        for (name = path; sub(/\/[^\/]*$/, "", name);)
            if (name in may) return name
        return ""
    }
    function allowed(mine, other,   words, n, i) {
        if (mine == other) return 1
        n = split(may[mine], words, " ")
        for (i = 1; i <= n; i++)
            if (words[i] == other || (words[i] == "src" && other !~ /^(kernels|cmds|calib|lib)(\/|$)/)) return 1
        return 0
    }
    function say(text) { print $1 ":" $2 ": " text }
    BEGIN {
        n = split(ENVIRON["LAYERS"], rows, "\n")
        for (i = 1; i <= n; i++) {
            name = rows[i]; sub(/ .*/, "", name)
            rest = rows[i]; sub(/^[^ ]* ?/, "", rest)
            may[name] = rest
        }
    }
    $3 == "\"" {
        mine = folder($1); other = folder($4)
        if ($4 ~ /^tests\/simt\//) next # in its #ifdef: the same kernels on the CPU
        else if (mine == "") say("is in no folder of the table in ARCHITECTURE.md")
        else if (other == "") say("includes " $4 ", which is not named from src or from the root")
        else if (!allowed(mine, other)) say("includes " $4 "; " mine " may not include " other)
    }
    $3 == "\"" && $4 == "checkpoint/h5.h" && $1 !~ /^src\/checkpoint\// {
        say("includes " $4 "; only checkpoint knows HDF5")
    }
    $3 == "\"" && $4 ~ /^engine\// && $4 != "engine/backend.h" && $1 ~ /^kernels\// {
        say("includes " $4 "; kernels see engine/backend.h alone of it")
    }
    $3 == "<" && $4 ~ /hdf5|^H5/ && $1 !~ /^src\/checkpoint\// {
        say("includes " $4 "; only checkpoint knows HDF5")
    }
    $3 == "<" && $4 ~ /^mpi/ && $1 != "src/work/ranks_mpi.c" {
        say("includes " $4 "; only src/work/ranks_mpi.c knows MPI")
    }
    $3 == "<" && $4 ~ /cuda|cublas/ && $1 !~ /^kernels\/cuda\// {
        say("includes " $4 "; only kernels/cuda knows CUDA")
    }
    $3 == "<" && $4 ~ /^(unistd|fcntl|signal|sched|dirent|dlfcn|pthread|getopt)\.h$|^sys\// &&
        $1 !~ /^(cmds|src\/(base|work))\// && !($4 == "getopt.h" && $1 == "src/settings/options.c") {
        say("includes " $4 "; only base, work and cmds need POSIX")
    }'
}

# The folders that lie on a circle of the table; `src` is all of its rooms. tsort names them.
check_table() {
    layers "$1/ARCHITECTURE.md" | awk '
    { for (i = 2; i <= NF; i++) print $1, $i }
    $1 !~ /^(kernels|cmds|calib|lib)(\/|$)/ { print "src", $1 }' | tsort 2>&1 >/dev/null |
        sed -n 's/^tsort: \([a-z/]*\)$/ARCHITECTURE.md: \1 is part of a circle of folders/p'
}

# What engine/backend.h includes, and that in turn, shows kernels no model.
check_backend() {
    includes "$1" | awk '
    $3 == "\"" && $1 ~ /^src\/.*\.h$/ {
        place = $1 ":" $2
        sub(/^src\//, "", $1)
        if ($4 == "model/model.h") bad[$1] = place
        else to[$1] = to[$1] " " $4
    }
    function visit(name,   n, i, next_of) {
        if (seen[name]++) return
        if (name in bad) print bad[name] ": includes model/model.h; what kernels include shows them no model"
        n = split(to[name], next_of, " ")
        for (i = 1; i <= n; i++) visit(next_of[i])
    }
    END { visit("engine/backend.h") }'
}

# A circle among headers: tsort names its members.
check_circles() {
    includes "$1" | awk '$1 ~ /\.h$/ && $3 == "\"" { sub(/^src\//, "", $1); print $1, $4 }' |
        tsort 2>&1 >/dev/null | sed -n 's/^tsort: \([^ ]*\.h\)$/\1: is part of a circle of headers/p'
}
# Printing and leaving belong to cmds. Files of data may be written with fprintf, so the streams count
# there, not the function.
check_output() {
    (cd "$1" && for f in $(files | grep -v '^cmds/'); do
        sed -e 's://.*$::' -e 's:/\*.*\*/::g' -e 's:^[[:space:]]*\*.*$::' -e 's:^[[:space:]]*/\*.*$::' \
            -e 's:"[^"]*"::g' "$f" |
            grep -nE '(^|[^a-zA-Z0-9_])((printf|vprintf|puts|putchar|perror|exit|_exit|_Exit|quick_exit|abort)[[:space:]]*\(|stdout|stderr)' |
            sed "s|^\([0-9]*\):.*|$f:\1: prints or ends the process; only cmds may|" || true
    done)
}

# The library does not know how it was called: what would help is a remedy (src/base/base.h), which settings put into
# words. Looks into string literals only.
check_words() {
    # shellcheck disable=SC2046 # names of sources hold no spaces
    (cd "$1" && awk '
    /^[[:space:]]*(\/\*|\* |\*$)/ { next }
    {
        rest = $0
        gsub(/\/\*.*\*\/|'"'"'\\?"'"'"'/, "", rest)
        while (match(rest, /"([^"\\]|\\.)*"/)) {
            literal = substr(rest, RSTART, RLENGTH)
            rest = substr(rest, RSTART + RLENGTH)
            if (literal ~ /--[a-z]/ ||
                literal ~ /[^a-z]dq (bench|doctor|eval|export|info|logits|plan|quantize|report|stats|tokenize|verify)[^a-z_]/)
                print FILENAME ":" FNR ": names an option or a command; only cmds and src/settings may"
        }
    }' $(files | grep -v -e '^cmds/' -e '^src/settings/'))
}

check() {
    check_layers "$1"
    check_table "$1"
    check_backend "$1"
    check_circles "$1"
    check_output "$1"
    check_words "$1"
}

self_test() {
    mkdir -p "$tree/src" "$tree/kernels" "$tree/calib" "$tree/cmds"
    plant ARCHITECTURE.md '## Layers' '| Folder | Holds | May include |' '|---|---|---|' '| `base` | x | – |' \
        '| `checkpoint` | x | `base` |' '| `kernels/cpu` | x | `base` |' '| `cmds/cli` | x | `src` |' \
        '| `lib` | x | `src` |' '| `cmds` | x | `src`, `cmds/cli` |' '## More' '| `other` | x | – |'
    plant src/base/base.h '#include <stddef.h>'
    plant src/base/os.c '#include "base/base.h"' '#include <unistd.h>' '/* printf( is only named here */'
    plant cmds/main.c '#include "checkpoint/container.h"' '#include "cmds/cli/cli.h"' 'int main(void) { puts("x"); }'
    plant src/checkpoint/h5.c '#include <hdf5.h>' 'static int n; void f(char *s) { snprintf(s, 1, "exit(1)"); }' \
        '/* "--force" and "dq eval" are only named here */' "char quote = '\"', *s = \"a - -b, dq evaluates\";"
    expect_clean
    plant src/base/text.c '#include "checkpoint/h5.h"' '#include "base.h"'
    plant src/nobody/x.c '#include "base/base.h"'
    plant src/checkpoint/container.c '#include "other/x.h"' '#include "kernels/cpu/cpu.h"'
    plant src/base/random.c '#include <mpi.h>'
    plant cmds/cli/table.c '#include <hdf5.h>'
    plant cmds/cli/cli.c '#include "kernels/cpu/cpu.h"'
    plant kernels/cpu/cpu_x.c '#include <cuda_runtime.h>' '#include <sys/stat.h>' 'void h(FILE *f) { fprintf(stderr, "x"); }'
    plant src/engine/backend.h '#include "engine/batch.h"'
    plant src/engine/batch.h '#include "base/base.h"' '#include "model/model.h"'
    plant src/engine/runner.h '#include "model/model.h"' # which kernels do not see
    plant kernels/cpu/cpu_z.c '#include "engine/backend.h"' '#include "engine/batch.h"'
    plant lib/lm.c '#include "cmds/cli/cli.h"'
    cp "$tree/ARCHITECTURE.md" "$tree/table"
    sed 's/^| `cmds.cli` | x | `src` |/| `cmds\/cli` | x | `src`, `cmds` |/' "$tree/table" >"$tree/ARCHITECTURE.md"
    plant src/base/file.c 'void h(void)' '{' '    abort();' '}'
    plant src/base/json.h '#include "base/text.h"'
    plant src/base/text.h '#include "base/json.h"'
    plant src/base/words.c 'char *a = "x",' '     *b = "give \"--force\"";' "char c = '\"'; char *d = \"see dq info\";"
    plant kernels/cpu/cpu_y.c 'char *a = "use --device cpu";'
    check "$tree" >"$work/report"
    expect '^src/base/words.c:2: names an option or a command'
    expect '^src/base/words.c:3: names an option or a command'
    expect '^kernels/cpu/cpu_y.c:1: names an option or a command'
    expect '^src/base/text.c:1: includes checkpoint/h5.h; base may not include checkpoint$'
    expect '^src/base/text.c:1: includes checkpoint/h5.h; only checkpoint knows HDF5$'
    expect '^src/base/text.c:2: includes base.h, which is not named from'
    expect '^src/nobody/x.c:1: is in no folder of the table'
    expect '^src/checkpoint/container.c:1: includes other/x.h, which is not named'
    expect '^src/checkpoint/container.c:2: includes kernels/cpu/cpu.h; checkpoint may not include kernels/cpu$'
    expect '^src/base/random.c:1: includes mpi.h; only src/work/ranks_mpi.c knows MPI$'
    expect '^cmds/cli/table.c:1: includes hdf5.h'
    expect '^cmds/cli/cli.c:1: includes kernels/cpu/cpu.h; cmds/cli may not include kernels/cpu$'
    expect '^kernels/cpu/cpu_x.c:1: includes cuda_runtime.h'
    expect '^kernels/cpu/cpu_x.c:2: includes sys/stat.h'
    expect '^kernels/cpu/cpu_x.c:3: prints'
    expect '^src/engine/batch.h:2: includes model/model.h; what kernels'
    expect '^kernels/cpu/cpu_z.c:2: includes engine/batch.h; kernels see'
    expect '^lib/lm.c:1: includes cmds/cli/cli.h; lib may not include cmds/cli$'
    expect '^ARCHITECTURE.md: cmds/cli is part of a circle of folders$'
    expect '^ARCHITECTURE.md: cmds is part of a circle of folders$'
    expect_no 'runner.h:1: includes model/model.h; what kernels\|^ARCHITECTURE.md: checkpoint'
    expect '^src/base/file.c:3: prints'
    expect '^base/json.h: is part of a circle'
}

self_test
root=${1:-$(dirname "$0")/..}
[ -n "$(layers "$root/ARCHITECTURE.md")" ] || wrong "ARCHITECTURE.md has no table of layers"
check_and_exit "$root"
