# bench.gp: the picture of the bench of a real model, from its CSV files.
#   gnuplot -e "folder='results/real'" studies/real/bench.gp
set datafile separator ","
set datafile missing NaN
set terminal svg size 1120,820 dynamic font "sans-serif,13" background rgb "white"
set output folder."/real.svg"
set style line 1 lc rgb "#b35806" lw 2 pt 7 ps 0.7
set style line 2 lc rgb "#1f5fa8" lw 2 pt 5 ps 0.7
set style line 3 lc rgb "#2a7f3f" lw 2 pt 9 ps 0.8
set style line 4 lc rgb "#6a6a6a" lw 2 pt 13 ps 0.8
set style line 5 lc rgb "#7b3294" lw 2 pt 11 ps 0.8
set grid ytics lc rgb "#dddddd"
set border 3
set tics nomirror
set logscale y
set format y "10^{%L}"
set key top right
set ylabel "KLD, nats per token, +- standard error"
set multiplot layout 2,2
own(name, value) = strcol(name) eq value ? 1 : NaN

set title "attention logits, by what shares a scale"
set key bottom right
set xrange [8.4:2.6]
set xtics ("8" 8, "6" 6, "5" 5, "4" 4, "3" 3)
set xlabel "bits"
file = folder."/logits-near.csv"
granularities = "per-tensor per-head per-row per-tile"
plot for [i=1:words(granularities)] file every ::1 using (column("logit_bits") < 16 ? column("logit_bits")*own("logit_granularity", word(granularities, i)) : NaN):(column("kld_nats")):(column("kld_nats_stderr")) \
     with yerrorlines ls i title word(granularities, i)

set title "weights in groups of 64, by method"
set key top right
set xrange [2.8:5]
set xtics auto
set xlabel "bits per weight over all parameters"
made = folder."/weights-made.csv"
table = folder."/weights-near.csv"
methods = "search gptq align"
plot for [i=1:words(methods)] sprintf("< awk -F, 'NR == FNR { bits[$1] = $3; next } FNR == 1 { for (k = 1; k <= NF; k++) at[$k] = k; next } $at[\"model\"] ~ /w-%s-[234]-64/ { print bits[$at[\"model\"]] \",\" $at[\"kld_nats\"] \",\" $at[\"kld_nats_stderr\"] }' %s %s", word(methods, i), made, table) \
     using 1:2:3 with yerrorlines ls i title word(methods, i)

set title "codes of the KV cache"
set key top left
set xrange [-0.3:3.3]
set xtics ("8:8" 0, "4:4" 1, "4:3" 2, "4:2" 3)
set xlabel "bits of keys:values"
file = folder."/codes-near.csv"
codes = "per-token per-channel mixed"
place(k, v) = k == 8 ? 0 : k == 4 ? 5 - v : NaN
plot for [i=1:words(codes)] file every ::1 using (place(column("kv_k_bits"), column("kv_v_bits"))*own("kv_quant", word(codes, i))):(column("kld_nats")):(column("kld_nats_stderr")) \
     with yerrorlines ls i title word(codes, i)

set title "tokens evicted from a context of 1024"
set key bottom right
set xrange [0.6:0.1]
set format y "%g"
set xtics ("1/2" 0.5, "1/4" 0.25, "1/8" 0.125)
set xlabel "share kept"
file = folder."/policies.csv"
pairs = "leverage:uniform h2o:uniform kvzip:uniform kvzip:global kvzap:global"
part(pair, k) = k == 1 ? pair[1:strstrt(pair, ":") - 1] : pair[strstrt(pair, ":") + 1:]
plot for [i=1:words(pairs)] file every ::1 using (column("kv_keep") < 1 ? column("kv_keep")*own("kv_policy", part(word(pairs, i), 1))*own("kv_budget", part(word(pairs, i), 2)) : NaN):(column("kld_nats")):(column("kld_nats_stderr")) \
     with yerrorlines ls i title part(word(pairs, i), 1).", ".part(word(pairs, i), 2)
unset multiplot
