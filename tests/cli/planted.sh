# planted.sh: dq stats names each outlier that tests/golden/planted.py has planted, first of its kind, and only where it is
# planted; the planted models compute what the models compute that they were made from. Sourced by run.sh.

planted=$repo/tests/golden/planted
cp -r "$planted" models
for folder in models/*/; do cp "$planted/tokenizer.json" "$folder"; done

# named MODEL VALUES CLASS: layer, head, map, channel, first and last layer of the first line of that kind, "-" where it has none.
# Of weights CLASS is a role, and the line is the matrix with the largest crest factor: two lines, by its two columns.
named() {
    awk -v values="$2" -v class="$3" '
        /^ *"(outliers|weights)": \[/ { split($0, part, "\""); list = part[2]; next }
        /^      \]/ { list = "" }
        list != "" && $1 == "{" { split("", at); next }
        list != "" && /^ *"/ {
            name = $1; value = $2
            gsub(/[":]/, "", name); gsub(/[",]/, "", value)
            at[name] = value == "" || value == "null" ? "-" : value
        }
        function shown(name) { return name in at ? at[name] : "-" }
        list == "outliers" && $1 ~ /^}/ && at["values"] == values && at["tokens"] == class && !found {
            print shown("layer"), shown("head"), shown("map"), shown("channel"), shown("first_layer"), shown("last_layer")
            found = 1
        }
        list == "weights" && $1 ~ /^}/ && values == "weights" && at["role"] == class && at["crest"] + 0 > crest {
            crest = at["crest"] + 0
            best = at["layer"] " - - " at["column"] " - -\n" at["layer"] " - - " at["largest_column"] " - -"
        }
        END { if (best != "") print best }' "$work/$1.json"
}

# is FOUND WANT: "-" in WANT is anything, and its fourth word is a list of channels.
is() {
    echo "$1 $2" | awk '{
        same = 1
        for (i = 1; i <= 6; i++)
            if ($(i + 6) != "-" && (i == 4 ? index("," $10 ",", "," $i ",") == 0 : $i != $(i + 6))) same = 0
        exit !same
    }'
}

for folder in models/*/; do
    model=$(basename "$folder")
    "$dq" stats "$folder" --text models/text.txt --ctx 256 --one-pass --json -q >"$model.json" 2>"$top/err" ||
        complain "dq stats of $model fails: $(cat "$top/err")"
done

tab=$(printf '\t')
while IFS="$tab" read -r model made_from values class layer head which channels first last; do
    want="$layer $head $which $channels $first $last"
    found=$(named "$model" "$values" "$class")
    [ -n "$found" ] || complain "$model: no line of $values of $class"
    echo "$found" >found
    while read -r line; do
        is "$line" "$want" || complain "$model: of $values of $class, \"$line\" is named, not what is planted: \"$want\""
    done <found
    named "$made_from" "$values" "$class" >found
    while read -r line; do
        ! is "$line" "$want" || complain "$made_from: of $values of $class, what is planted in $model is named without it: \"$line\""
    done <found
done <models/places.tsv
[ "$(cut -f 1 models/places.tsv | uniq | wc -l)" = 14 ] || complain "places.tsv: not 14 planted models"

# The function is that of the model before: rounding of weights to f32 is all that is between them.
for made_from in llama diffllama; do
    set --
    for model in $(awk -v from=$made_from '$2 == from { print $1 }' models/places.tsv | uniq); do set -- "$@" "models/$model"; done
    try 0 "KLD" eval "$@" --ref models/$made_from --text models/text.txt --ctx 256 --csv kld.csv --force --progress never
    [ "$(wc -l <kld.csv)" -gt "$#" ] || complain "dq eval: $(wc -l <kld.csv) lines of $# planted models"
    rows=$#
    row=1
    while [ $row -le "$rows" ]; do
        holds "$(column kld.csv $row model) is $made_from" "$(column kld.csv $row kld_nats) < 1e-9 && $(column kld.csv $row same_top1) == 1"
        row=$((row + 1))
    done
done
