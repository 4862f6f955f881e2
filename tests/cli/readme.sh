# What README.md shows, and with DQ_PAGES=all the pages of docs: blocks marked sh run as they stand, one after the other, those of a page in a folder of
# its own. Other blocks with commands have words in capitals for what a user has. Sourced by run.sh.

PATH=$(dirname "$dq"):$PATH
set -- "$repo/README.md"
least=6
[ "${DQ_PAGES:-}" != all ] || {
    set -- "$@" "$repo"/docs/*.md
    least=40
}
for page; do
    name=$(basename "$page" .md)
    mkdir "page $name" && cd "page $name" || exit 1
    mkdir build && ln -s "$dq" build/dq && ln -s "$repo/calib" "$repo/tests" "$repo/results" .
    [ "$name" != ci ] || { # a script: ci.sh runs it
        cd .. || exit 1
        continue
    }
    [ "$name" != README ] || { # what it calls the reader's own
        cp "$repo/tests/golden/gguf/model/model.gguf" . && cp -r "$repo/calib/pair/llama" model
        fold -w 4000 "$repo/calib/pair/text.txt" | sed 's/.*/{"text": "&"}/' >test.jsonl && cp "$repo/calib/pair/text.txt" train.txt
    }
    awk '
        /^```/ { open = !open; runs = open && $0 == "```sh"; line = ""; next }
        !open { next }
        { line = line $0 }
        sub(/\\$/, "", line) { next }
        runs { print line }
        !runs && line ~ /^(build\/)?dq [a-z]/ && line !~ /(^|[ >=])[A-Z][A-Z]/ { print "false # no word in capitals: " line }
        { line = "" }' "$page" >lines.sh
    while read -r line; do
        (eval "$line") >out 2>err </dev/null || complain "$name.md: $line: status $?: $(head -c 300 err)"
    done <lines.sh
    cd .. || exit 1
done
[ "$(cat page*/lines.sh | grep -cE '^(build/)?dq ')" -ge $least ] || complain "readme: few lines run: $(cat page*/lines.sh)"
