# sizes.gp: KLD over bits per weight of dq and its peers, from tests/peers/real_weights.py.
#   gnuplot -e "folder='results/real'" studies/real/sizes.gp
set datafile separator ","
set datafile missing NaN
set terminal svg size 1120,940 dynamic font "sans-serif,13" background rgb "white"
set output folder."/sizes.svg"
set style line 1 lc rgb "#b35806" lw 2 pt 7 ps 0.8
set style line 2 lc rgb "#1f5fa8" lw 2 pt 5 ps 0.7
set style line 3 lc rgb "#2a7f3f" lw 2 pt 9 ps 0.8
set grid ytics lc rgb "#dddddd"
set border 3
set tics nomirror
set logscale y
set format y "%g"
set xrange [2:7]
set yrange [0.003:40]
set key top right
set ylabel "KLD, nats per token, +- standard error"
set xlabel "bits per weight over all parameters"
set multiplot layout 2,2
of(program, calibrated) = strcol("program") eq program && strcol("calibrated") eq calibrated ? 1 : NaN
size(yes) = (strcol("type")[1:5] eq "size/") == yes ? 1 : NaN
texts = "wiki howto far near"
array titles[4] = ["WikiText-2", "how-to pages", "a novel", "the kind of text that calibrates"]
do for [i=1:4] {
    file = folder."/sizes-".word(texts, i).".csv"
    set title titles[i]
    plot file every ::1 using (column("bits_all")*of("dq", "yes")*size(1)):(column("kld_nats")):(column("kld_nats_stderr")) with yerrorlines ls 1 title "dq --size, a text", \
         "" every ::1 using (column("bits_all")*of("llama", "yes")):(column("kld_nats")):(column("kld_nats_stderr")) with yerrorbars ls 2 title "llama.cpp, importance matrix", \
         "" every ::1 using (column("bits_all")*of("llama-wide", "yes")):(column("kld_nats")):(column("kld_nats_stderr")) with yerrorbars ls 3 title "llama.cpp, columns filled up to 768"
}
unset multiplot
