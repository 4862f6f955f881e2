# What README.md shows: blocks marked sh run as they stand, one after the other; of dq plan, which takes minutes but for gates, what
# would be done, and what reads its recipe is left out. Other blocks with commands have words in capitals for what a user has.

mkdir readme && cd readme || exit 1
mkdir build && ln -s "$dq" build/dq && ln -s "$repo/calib" calib

awk -v q="'" '
    /^```/ { open = !open; runs = open && $0 == "```sh"; line = ""; next }
    !open { next }
    { line = line $0 }
    sub(/\\$/, "", line) { next }
    runs && line ~ / plan / && line !~ / plan gates / { split(line, word, / -o /); recipe = word[2]; print line " --dry-run"; line = ""; next }
    runs && recipe != "" && index(line, "--recipe " recipe) { line = ""; next }
    runs { print line }
    !runs && line ~ /^build\/dq/ && line !~ /(^|[ >=])[A-Z][A-Z]/ { print "false # no word in capitals: " line }
    { line = "" }' "$repo/README.md" >lines.sh

[ "$(grep -c '^build/dq' lines.sh)" -ge 15 ] || complain "readme: few lines run: $(cat lines.sh)"
while read -r line; do
    (eval "$line") >out 2>err </dev/null || complain "readme: $line: status $?: $(head -c 300 err)"
done <lines.sh
cd .. || exit 1
