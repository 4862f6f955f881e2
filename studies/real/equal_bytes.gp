# equal_bytes.gp: caches of equal bytes, of dq and of kvpress with quantized caches, from tests/peers/equal_bytes.py.
#   gnuplot -e "folder='results/real'" studies/real/equal_bytes.gp
set datafile separator ","
set datafile missing NaN
set terminal svg size 960,420 dynamic font "sans-serif,13" background rgb "white"
set output folder."/equal-bytes.svg"
set style line 1 lc rgb "#1f5fa8" lw 3 pt 7 ps 0.9
set style line 2 lc rgb "#b35806" lw 2 pt 5 ps 0.7
set style line 3 lc rgb "#2a7f3f" lw 2 pt 9 ps 0.8
set style line 4 lc rgb "#6a6a6a" lw 2 pt 13 ps 0.8
set style line 5 lc rgb "#7b3294" lw 2 pt 11 ps 0.8
set grid ytics lc rgb "#dddddd"
set border 3
set tics nomirror
set xrange [0.7:4.4]
set xtics ("1/2" 1, "1/4" 2, "1/8" 3, "1/16" 4)
set xlabel "bytes, of all tokens in f16"
methods = "kvzap kvzip compactor"
file = folder."/equal-bytes.csv"
place(s) = s eq "1/2" ? 1 : s eq "1/4" ? 2 : s eq "1/8" ? 3 : s eq "1/16" ? 4 : NaN
name(i) = i == 1 ? "dq" : "kvpress ".word(methods, i)
at(task, i) = strcol("task") eq task && word(strcol("method"), 1) eq word(methods, i) ? place(strcol("size")) + 0.05 * (i - 2) : NaN
whole(task) = strcol("task") eq task && strcol("size") eq "" ? 1 : NaN
set multiplot layout 1,2
set title "text: what 2048 tokens of context lose"
set ylabel "KLD, nats per token, +- 95 %"
set logscale y
set format y "10^{%L}"
set key bottom right
plot for [i=1:3] file using (at("text", i)):(column("value")):(column("half95")) with yerrorlines ls i title name(i)
unset logscale y
set format y "%g"
set yrange [0:1]
set key top right
set title "needles: one of four numbers, asked for later"
set ylabel "found, +- 95 %"
plot for [i=1:3] file using (at("needles", i)):(column("value")):(column("half95")) with yerrorlines ls i title name(i), \
     for [k=0:0] file using (0.75 * whole("needles")):(column("value")) with points pt 4 lc rgb "black" title "all tokens"
unset multiplot
