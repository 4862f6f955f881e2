# html.sh: the page of dq eval --html, with gnuplot, without it, and with one that fails; sourced by run.sh.
set -- eval "plain model" --task mc --data choices.jsonl --limit 3 --logit-bits 16,4
mkdir none

# missing: said before anything is scored or written
PATH=$work/none "$dq" "$@" --html gone.html -o gone.json >"$top/out" 2>"$top/err"
got=$?
[ $got -eq 5 ] || complain "dq eval --html without gnuplot: expected status 5, found $got"
grep -q "gnuplot is missing.*gnuplot-nox" "$top/err" || complain "dq eval --html without gnuplot: $(cat "$top/err")"
[ ! -s "$top/out" ] || complain "dq eval --html without gnuplot: printed on stdout"
absent gone.html gone.html.partial gone.json
try 2 "write this file" "$@" -o twice --html twice
try 2 "input and output are the same file" "$@" --html choices.jsonl

# one that fails at drawing: the data are written all the same, and the scores stay
mkdir fake
cat >fake/gnuplot <<'EOF'
#!/bin/sh
[ "$1" = --version ] && echo "gnuplot 5.4 patchlevel 4" && exit
echo "line 7: no such terminal" >&2
exit 1
EOF
chmod +x fake/gnuplot
PATH=$work/fake:$PATH "$dq" "$@" --html gone.html -o data.json --csv data.csv >"$top/out" 2>"$top/err"
got=$?
[ $got -eq 5 ] || complain "dq eval --html, gnuplot fails: expected status 5, found $got"
grep -q "no such terminal.*The scores are in dq-eval-.*resume" "$top/err" ||
    complain "dq eval --html, gnuplot fails: $(cat "$top/err")"
grep -q "plain model" "$top/out" || complain "dq eval --html, gnuplot fails: no table on stdout"
present data.json data.csv
absent gone.html gone.html.partial
PATH=$work/fake:$PATH "$dq" "$@" --html gone.html --fail-if 'acc <= 1' --resume >"$top/out" 2>"$top/err"
got=$?
[ $got -eq 5 ] || complain "dq eval --html --fail-if, gnuplot fails: expected status 5, found $got"
grep -q "error: 2 results meet a condition.*no such terminal" "$top/err" ||
    complain "dq eval --html --fail-if, gnuplot fails: $(cat "$top/err")"

if command -v gnuplot >/dev/null; then
    try 0 "plain model" "$@" --html page.html -o data.json --csv data.csv --resume --force
    absent dq-eval-*.resume
    present page.html
    grep -q '<section id="accuracy">' page.html || complain "dq eval --html: no accuracy in the page"
    grep -q '<section id="kld">' page.html && complain "dq eval --html: KLD in a page without text"
    cp page.html first.html
    try 0 "dq-eval/1" "$@" --html page.html --json --force
    json dq-eval/1
    # equal but for the speed of the two runs
    for f in first page; do sed 's/<td>[0-9]*<\/td><\/tr>/<\/tr>/' $f.html >$f.cut; done
    cmp -s first.cut page.cut || complain "dq eval --html: two runs make two pages"
    # no room for what gnuplot draws
    (
        trap '' XFSZ
        ulimit -f 4
        exec "$dq" "$@" --html gone.html
    ) >"$top/out" 2>"$top/err"
    got=$?
    [ $got -eq 6 ] || complain "dq eval --html on a full disk: expected status 6, found $got: $(cat "$top/err")"
    grep -q "what gnuplot draws: File too large" "$top/err" || complain "dq eval --html on a full disk: $(cat "$top/err")"
    absent gone.html gone.html.partial
    # names that are not UTF-8, or steer a terminal
    odd=$(printf 'od\377d \033[31mmodel')
    cp -r "plain model" "$odd"
    cp choices.jsonl "$(printf 'choices\376.jsonl')"
    "$dq" eval "$odd" --task mc --data "$(printf 'choices\376.jsonl')" --limit 3 --logit-bits 16,4 -v --html odd.html \
        --progress always -o odd.json >"$top/out" 2>"$top/err" || complain "a name that is not UTF-8: $(cat "$top/err")"
    for f in odd.html odd.json "$top/out" "$top/err"; do
        grep -q "$(printf '\033')" "$f" && complain "a name with control characters: raw in $f"
    done
    for f in odd.html odd.json "$top/out" "$top/err"; do
        grep -q "$(printf 'od\357\277\275d ')" "$f" || complain "a name that is not UTF-8: nothing of it in $f"
    done
    grep -q "\"path\": \"$(printf 'choices\357\277\275.jsonl')\"" odd.json ||
        complain "a file's name that is not UTF-8: $(grep path odd.json)"
    rm -r "$odd" odd.html odd.json "$(printf 'choices\376.jsonl')"
    rm -f first.* page.*
fi
rm -rf none fake data.json data.csv dq-eval-*.resume
