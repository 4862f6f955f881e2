# install.sh: what cmake --install puts where, pages of the manual, completion, and the commit of --version; sourced by run.sh.
build=$(dirname "$dq")

# ---- forms of dq help
try 2 'dq help takes a command and a topic, or one of --man' help --forms
try 2 'expected one of bash, zsh; found "fish"' help --completion fish
try 2 'takes the name of a shell' help --completion
try 2 'unknown command "evla"' help --man evla
try 2 'takes one command' help --man plan kv more
try 0 '^plan kv$' help --commands
cp "$top/out" commands
"$dq" --help | sed -n 's/^  \([a-z][a-z ]*[a-z]\)  .*/\1/p' | while read -r c; do
    grep -qx "$c" commands || echo "$c"
    "$dq" help "$c" | sed -n "s/^  \($c [a-z]*\) .*/\1/p" | grep -vxFf commands
done >unnamed
[ ! -s unnamed ] || complain "install: help --commands lacks $(cat unnamed)"
[ "$(wc -l <commands)" -gt 20 ] || complain "install: help --commands has $(wc -l <commands) lines"

# ---- the installed tree, moved
if [ -f "$build/cmake_install.cmake" ] && command -v cmake >/dev/null; then
    DESTDIR="$work/dest" cmake --install "$build" --prefix /opt/dq >log 2>&1 ||
        complain "install: cmake --install fails (are the targets dq and pages built?): $(tail -n 3 log)"
    mv dest/opt/dq moved
    [ "$(moved/bin/dq --version)" = "$("$dq" --version)" ] || complain "install: moved, dq says $(moved/bin/dq --version)"
    for f in README.md LICENSE FORMAT.md docs/commands.md docs/math/cache.md; do
        cmp -s "$repo/$f" "moved/share/doc/dq/$f" || complain "install: share/doc/dq/$f is not the repository's"
    done
    if "$dq" doctor | grep -q '^  sanitizers  *no$' && ! readelf -S moved/bin/dq | grep -q debug_info; then
        ! grep -qaF "$repo" moved/bin/dq || complain "install: the program knows where it was built"
    fi
    pages=moved/share/man/man1 bash=moved/share/bash-completion/completions/dq zsh=moved/share/zsh/site-functions/_dq
    while read -r c; do
        present "$pages/dq-$(echo "$c" | tr ' ' -).1"
        grep -q "^_dq_of_$(echo "$c" | tr ' ' _)() {" $bash || [ "$c" = plan ] || [ "$c" = bench ] ||
            complain "install: completion knows no $c"
    done <commands
    pc=$(find moved -name libdq.pc | head -n 1)
    if [ -n "$pc" ] && command -v cc >/dev/null && command -v pkg-config >/dev/null; then # what a user of the library types
        export PKG_CONFIG_PATH="${pc%/*}"
        # shellcheck disable=SC2046 # flags are words
        cc -Wall -Werror "$repo/docs/example.c" $(pkg-config --cflags --libs libdq) -lm -o example >log 2>&1 ||
            complain "install: docs/example.c: $(tail -n 3 log)"
        LD_LIBRARY_PATH=$(pkg-config --variable=libdir libdq) ./example "$repo/calib/pair/llama" "the green mole" >log 2>&1 ||
            complain "install: the example fails: $(cat log)"
        grep -q '^" Paris" has the probability 0\.' log || complain "install: the example says $(cat log)"
        unset PKG_CONFIG_PATH
    fi
    [ "$(find $pages -name 'dq*.1' | wc -l)" = "$(($(wc -l <commands) + 1))" ] || complain "install: pages: $(ls $pages)"
else
    mkdir pages
    pages=pages bash=completion.bash zsh=_dq
    "$dq" help --completion bash >$bash
    "$dq" help --completion zsh >$zsh
    "$dq" help --man >pages/dq.1
    while read -r c; do
        # shellcheck disable=SC2086 # words of the command
        "$dq" help --man $c >"pages/dq-$(echo "$c" | tr ' ' -).1"
    done <commands
fi

# ---- pages of the manual
for section in NAME SYNOPSIS DESCRIPTION OPTIONS EXAMPLES 'EXIT STATUS' 'SEE ALSO'; do
    echo "$section"
done >sections
sed -n 's/^[.]SH //p' $pages/dq-plan-kv.1 | cmp -s sections - || complain "install: sections of dq-plan-kv.1: $(grep '^.SH' $pages/dq-plan-kv.1)"
grep -qxF '\fB\-o\fR, \fB\-\-output\fR \fIRECIPE.json\fR' $pages/dq-plan-kv.1 || complain "install: dq-plan-kv.1 lacks -o"
grep -qxF '.SS what comes out' $pages/dq-eval.1 || complain "install: dq-eval.1 has no subsection of outputs"
"$dq" help eval all | sed -n 's/^ \{2,6\}\(-., \)\{0,1\}--\([a-z-]*\).*/\2/p' >options
sed -n 's/\\-/-/g; s/^\(\\fB-.\\fR, \)\{0,1\}\\fB--\([a-z-]*\)\\fR.*/\2/p' $pages/dq-eval.1 | cmp -s options - ||
    complain "install: dq-eval.1 has other options than dq help eval all"
SOURCE_DATE_EPOCH=86400 "$dq" help --man info >dated
grep -q '^[.]TH DQ\\-INFO 1 "1970-01-02" "dq ' dated || complain "install: SOURCE_DATE_EPOCH: $(head -n 1 dated)"
if command -v groff >/dev/null; then
    LC_ALL=C groff -ww -man -Tutf8 $pages/*.1 2>&1 >/dev/null | head -n 5 >warnings
    [ ! -s warnings ] || complain "install: groff: $(cat warnings)"
fi
if command -v mandoc >/dev/null; then
    mandoc -T lint $pages/*.1 >warnings || :
    [ ! -s warnings ] || complain "install: mandoc: $(head -n 5 warnings)"
fi

# ---- what an option takes is said once: completion offers what help lists and parsing accepts
sed -n "s/^_dq_of_\([a-z_]*\)() {\$/= \1/p; s/^    --\([a-z-]*\).*) value=words words='\(.*\)' ;;\$/\1 \2/p" $bash |
    awk '$1 == "=" { of = $2; sub(/_/, " ", of); next } { print of ":" $0 }' >offered
[ "$(wc -l <offered)" -gt 40 ] || complain "install: words of $(wc -l <offered) options only"
"$dq" help --markdown | awk '
    BEGIN { while ((getline line <"offered") > 0) { colon = index(line, ":"); words[substr(line, 1, colon - 1), ++n[substr(line, 1, colon - 1)]] = substr(line, colon + 1) } }
    /^## dq / { of = substr($0, 7); next }
    /^\| `--/ && !/as for dq eval/ {
        for (i = 1; i <= n[of]; i++) {
            k = split(words[of, i], word, " ")
            if (index($0, "| `--" word[1] " ") != 1) continue
            for (w = 2; w <= k; w++) if (!index($0, word[w])) print of ": --" word[1] ": help has no " word[w]
        }
    }' >wrong
[ ! -s wrong ] || complain "install: $(head -n 5 wrong)"
checked=0
while IFS=: read -r c row; do
    option=${row%% *} words=${row#* }
    # shellcheck disable=SC2086
    "$dq" $c "--$option" no-such-word 2>"$top/err" </dev/null
    told=$(sed -n "s/.*: --$option: expected one of \(.*\); found .*/\1/p" "$top/err" | tr -d ,)
    [ -n "$told" ] || continue # an option that takes others too
    checked=$((checked + 1))
    [ "$told" = "$words" ] || complain "install: dq $c --$option takes $told, completion offers $words"
done <offered
[ $checked -gt 30 ] || complain "install: $checked options refuse a word that they do not have"

# ---- completion
if command -v bash >/dev/null; then
    cat >ask.bash <<'ASK'
. "$1"
while IFS='|' read -r -a COMP_WORDS; do
    [[ ${COMP_WORDS[-1]} != . ]] || COMP_WORDS[-1]= # nothing typed yet
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _dq
    echo "${COMP_WORDS[*]} -> ${COMPREPLY[*]}"
done
ASK
    cat >expected <<'EXPECTED'
dq ev -> eval
dq plan  -> weights kv heads gates --help
dq eval --logit-g -> --logit-granularity
dq eval --logit-granularity  -> per-tensor per-head per-row per-tile
dq eval --logit-granularity per-row,per-t -> per-row,per-tensor per-row,per-tile
dq eval --progress = al -> always
dq eval --progress = -> auto always never
dq eval --task hella -> hellaswag
dq eval --limit  -> 
dq eval --data cho -> choices.jsonl
dq eval --data mc = cho -> choices.jsonl
dq eval --data = mc = cho -> choices.jsonl
dq eval -o cho -> choices.jsonl
dq eval plain -> plain model
dq plan kv --kv-qu -> --kv-quant
dq plan kv --kv-quant m -> mixed
dq doctor --j -> --json
dq help pl -> plan
dq help bench com -> compare
dq help eval ne -> needle
dq help --man plan we -> weights
dq help --completion z -> zsh
dq nothing  -> 
EXPECTED
    sed 's/ -> .*//; s/ /|/g; s/|$/|./' expected | LC_ALL=C bash ask.bash $bash >answers 2>&1
    diff expected answers >"$top/out" || complain "install: bash completes otherwise: $(cat "$top/out")"
fi
if command -v zsh >/dev/null; then
    zsh -n $zsh 2>"$top/err" || complain "install: zsh: $(cat "$top/err")"
    # shellcheck disable=SC2016 # zsh's own
    [ "$(zsh -f -c 'compdef() { print $1 $2 $+functions[_dq_of_plan_kv] }; . "$1"' - "./$zsh")" = "_dq dq 1" ] ||
        complain "install: zsh: the script defines nothing"
fi

# ---- the commit
if command -v git >/dev/null && command -v cmake >/dev/null; then
    commit() { # commit EXPECTED FOLDER [-DCOMMIT=TEXT]: what the build would take for that of a folder
        cmake -DSOURCE="$work/$2" -DOUT="$work/commit_text.h" -DGIT="$(command -v git)" ${3:+"$3"} \
            -P "$repo/src/record/commit.cmake" 2>"$top/err" || complain "install: commit.cmake: $(cat "$top/err")"
        [ "$(cat commit_text.h)" = "#define DQ_COMMIT_TEXT \"$1\"" ] || complain "install: $2: $(cat commit_text.h), expected $1"
    }
    mkdir -p tree/part
    echo one >tree/part/file
    (
        unset GIT_DIR GIT_WORK_TREE
        export GIT_CEILING_DIRECTORIES="$work"
        git -C tree init -q
        git -C tree add .
        git -C tree -c user.name=dq -c user.email=dq@example.invalid commit -qm one
        head=$(git -C tree rev-parse HEAD | cut -c-12)
        commit "$head" tree
        touch tree/part/untracked
        commit "$head" tree
        commit "" tree/part
        echo two >tree/part/file
        commit "$head-dirty" tree
        commit 1.2-rc~1 tree -DCOMMIT=1.2-rc~1
        mkdir bare
        commit "" bare
        exit "$bad"
    ) || bad=1
fi
