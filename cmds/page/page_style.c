/* page_style: see page_style.h. Two strings of constants. Colours and marks are variables of the style sheet, so
 * that a drawing follows the reader's light or dark page without being drawn again.
 * SPDX-License-Identifier: MIT */
#include "cmds/page/page_style.h"

#include <stddef.h>

#define LIGHT                                                                                      \
    "--paper:#ffffff;--ink:#1c1e21;--soft:#5a6068;--rule:#d5d9de;--grid:#e4e7ea;--wash:#f5f6f8;"   \
    "--link:#0b5a94;--s0:#0072b2;--s1:#d55e00;--s2:#00855f;--s3:#b8548f;--s4:#b07a00;"             \
    "--s5:#3a9bd0;--s6:#555b62;--heat:0,96,160;--warn:#8a4b00"
#define DARK                                                                                       \
    "--paper:#15181c;--ink:#e4e7ea;--soft:#a3abb4;--rule:#363c43;--grid:#2b3036;--wash:#1d2126;"   \
    "--link:#7cbcf0;--s0:#5aaeea;--s1:#f58d4e;--s2:#35c498;--s3:#e59cc8;--s4:#e8b84a;"             \
    "--s5:#9ad4f5;--s6:#b3bac1;--heat:31,116,176;--warn:#f0b860"

const char *const dq_page_style[] = {
    ":root{color-scheme:light dark;" LIGHT "}\n",
    "@media (prefers-color-scheme:dark){:root{" DARK "}}\n",
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;max-width:72rem;padding:2rem 1.25rem 4rem;background:var(--paper);"
    "color:var(--ink);font:1rem/1.55 system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica "
    "Neue\",\"Noto Sans\",Arial,sans-serif}\n"
    "h1{font-size:1.6rem;line-height:1.25;font-weight:600;margin:0 0 1rem;max-width:48rem;"
    "overflow-wrap:anywhere}\n"
    "h2{font-size:1.2rem;line-height:1.3;font-weight:600;margin:0 0 .6rem}\n"
    "h3{font-size:1rem;font-weight:600;margin:1.4rem 0 .4rem}\n"
    "p{margin:.4rem 0 .8rem;max-width:46rem;overflow-wrap:anywhere}\n"
    "section{margin-top:2.6rem;padding-top:1.4rem;border-top:1px solid var(--rule)}\n"
    "section.part{margin-top:3.6rem;border-top:3px solid var(--ink)}\n"
    ".part>h2{font-size:1.4rem;overflow-wrap:anywhere}\n"
    ".part h3{font-size:1.2rem;margin:0 0 .6rem}\n"
    ".part h4{font-size:1rem;font-weight:600;margin:1.4rem 0 .4rem}\n"
    ".part>h2+section{margin-top:1rem;padding-top:0;border-top:0}\n"
    "a{color:var(--link);text-underline-offset:.15em}\n"
    "nav h2{font-size:.85rem;color:var(--soft);margin:0 0 .2rem}\n"
    "nav ol{margin:0;padding-left:1.4rem;columns:2 18rem;font-size:.95rem}\n"
    "nav li{break-inside:avoid}\n"
    "nav ol ol{columns:auto;font-size:.9rem;margin-bottom:.5rem}\n"
    "code,pre{font:.86em/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,\"DejaVu Sans Mono\","
    "monospace}\n"
    "pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;max-height:24rem;overflow:auto}\n"
    "p code{white-space:nowrap}\n"
    "summary{cursor:pointer}\n"
    ".soft{color:var(--soft)}\n",
    "figure{margin:1rem 0 1.6rem;min-width:0}\n"
    "figcaption{font-size:.9rem;line-height:1.45;color:var(--soft);max-width:46rem;"
    "overflow-wrap:anywhere}\n"
    "figcaption b{color:var(--ink)}\n"
    "figure.table figcaption{margin-bottom:.4rem}\n"
    ".pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,28rem),1fr));"
    "gap:0 2rem;align-items:start}\n"
    ".pair>figure{max-width:32rem}\n"
    "figure svg.plot{display:block;width:100%;height:auto}\n"
    "svg.plot text{font-family:system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\","
    "\"Noto Sans\",Arial,sans-serif}\n"
    ".legend{list-style:none;margin:.1rem 0 .4rem;padding:0;display:flex;flex-wrap:wrap;"
    "gap:.1rem 1.1rem;font-size:.85rem;line-height:1.5}\n"
    ".legend li{display:flex;align-items:center;gap:.4rem;overflow-wrap:anywhere;min-width:0}\n"
    ".legend svg{flex:none;width:34px;height:12px}\n",
    ".scroll{overflow-x:auto;max-width:100%}\n"
    ".scroll:focus-visible{outline:2px solid var(--link);outline-offset:2px}\n"
    "table{border-collapse:collapse;font-size:.875rem;line-height:1.4;"
    "font-variant-numeric:tabular-nums;border-top:1.5px solid var(--ink);"
    "border-bottom:1.5px solid var(--ink)}\n"
    "th,td{padding:.26rem .7rem;text-align:right}\n"
    "th:first-child,td:first-child{padding-left:.2rem;white-space:nowrap}\n"
    "thead th{font-weight:600;border-bottom:1px solid var(--ink);vertical-align:bottom}\n"
    "tbody th{font-weight:400;text-align:left}\n"
    "tbody tr:nth-child(even){background:var(--wash)}\n"
    ".l{text-align:left}\n"
    "td.wrap{overflow-wrap:anywhere;min-width:12rem;max-width:40rem}\n"
    ".warn{border-left:3px solid var(--warn);padding-left:.9rem;margin:1rem 0}\n"
    ".warn ul{margin:.2rem 0;padding-left:1.1rem;max-width:48rem}\n"
    ".warn li{overflow-wrap:anywhere}\n",
    ".maps{display:flex;flex-wrap:wrap;gap:.4rem 2rem}\n"
    ".maps figure{margin:.6rem 0 1rem;max-width:100%}\n"
    ".maps figcaption{max-width:22rem;margin-bottom:.3rem}\n"
    "table.heat{border:0;font-size:.82rem}\n"
    "table.heat th{font-weight:400;color:var(--soft);border:0;padding:.2rem .5rem;"
    "text-align:center}\n"
    "table.heat tbody tr{background:none}\n"
    "table.heat tbody th{text-align:right}\n"
    "table.heat td{padding:.3rem .55rem;text-align:center;border:2px solid var(--paper);"
    "background:rgba(var(--heat),calc(.04 + .96*var(--v)));print-color-adjust:exact;"
    "-webkit-print-color-adjust:exact}\n"
    "table.heat td.hi{color:#fff}\n"
    ".swatch{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;flex:none}\n"
    ".stack{display:flex;height:1.15rem;min-width:14rem;width:22rem;max-width:46vw}\n"
    ".stack i{display:block;print-color-adjust:exact;-webkit-print-color-adjust:exact;"
    "border-right:1px solid var(--paper)}\n",
    ".s0{background:var(--s0)}.s1{background:var(--s1)}.s2{background:var(--s2)}"
    ".s3{background:var(--s3)}.s4{background:var(--s4)}.s5{background:var(--s5)}"
    ".s6{background:var(--s6)}\n"
    ".bar{position:relative;width:16rem;max-width:40vw;height:.8rem;background:var(--grid)}\n"
    ".bar i,.bar b{position:absolute;top:0;bottom:0;display:block;print-color-adjust:exact;"
    "-webkit-print-color-adjust:exact}\n"
    ".bar i{left:0;background:var(--s5)}.bar b{top:.25rem;bottom:.25rem;background:var(--ink)}\n"
    ".c0{background:var(--s0)}.c1{background:var(--s4)}.c2{background:var(--s5)}"
    ".c3{background:var(--s6)}\n"
    "@media (max-width:40rem){body{padding:1.2rem .9rem 3rem}h1{font-size:1.35rem}"
    "section{margin-top:1.8rem}}\n"
    "@media print{:root{" LIGHT "}body{max-width:none;padding:0;font-size:10pt}"
    "section{break-inside:auto}figure,tr{break-inside:avoid}h2,h3,h4{break-after:avoid}"
    ".scroll{overflow:visible}table{font-size:8pt}th,td{padding:.15rem .35rem}"
    "nav a{color:inherit;text-decoration:none}}\n",
    NULL,
};

const char dq_page_style_marks[] =
    "<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs>\n"
    "<rect id=\"gpPt3\" x=\"-.9\" y=\"-.9\" width=\"1.8\" height=\"1.8\" fill=\"var(--paper)\" "
    "stroke=\"currentColor\" stroke-width=\".35\"/>\n"
    "<rect id=\"gpPt4\" x=\"-.9\" y=\"-.9\" width=\"1.8\" height=\"1.8\" fill=\"currentColor\" "
    "stroke=\"none\"/>\n"
    "<circle id=\"gpPt5\" r=\".95\" fill=\"var(--paper)\" stroke=\"currentColor\" "
    "stroke-width=\".35\"/>\n"
    "<circle id=\"gpPt6\" r=\"1\" fill=\"currentColor\" stroke=\"none\"/>\n"
    "<path id=\"gpPt8\" d=\"M0-1.33L-1.2.75L1.2.75z\" fill=\"currentColor\" stroke=\"none\"/>\n"
    "<path id=\"gpPt10\" d=\"M0 1.33L-1.2-.75L1.2-.75z\" fill=\"currentColor\" stroke=\"none\"/>\n"
    "<path id=\"gpPt12\" d=\"M0-1.35L1.2 0L0 1.35L-1.2 0z\" fill=\"currentColor\" "
    "stroke=\"none\"/>\n"
    "</defs></svg>\n";
