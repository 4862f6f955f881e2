#!/usr/bin/env python3
"""What slots.py reads and forbids, on kernels with planted counts: python3 test_slots.py NVCC; 77: no nvcc."""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import slots

MATRIX = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, d1, d1, 1, 1, 1, 0, 0;\n"
FENCE, WAIT = "wgmma.fence.sync.aligned;\n", "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
PRODUCTS = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {f0, f1, f2, f3}, {r2, r3, r4, r5}, {r6, r7}, {f0, f1, f2, f3};\n"
# Bodies of loops; the 40 roots run in every other step, so the shortest way leaves them out.
BODIES = {
    "counted": ("ld.shared.v4.b32 {r2, r3, r4, r5}, [r8];\nld.shared.f32 f4, [r8 + 16];\n"
                + 2 * "ex2.approx.ftz.f32 f0, f0;\n" + 5 * "fma.rn.f32 f0, f0, f1, f4;\n" + PRODUCTS + "st.shared.f32 [r8], f0;\n"
                + "and.b32 r9, r1, 1;\nsetp.eq.u32 q, r9, 0;\n@q bra over;\n" + 40 * "sqrt.approx.ftz.f32 f1, f1;\n" + "over:\n"),
    "plain": "ld.global.f32 f4, [d0];\nadd.f32 f0, f0, f4;\nst.volatile.global.f32 [d0], f0;\n",
    "spilling": "st.local.f32 [r10], f0;\nld.local.f32 f0, [r11];\nst.volatile.global.f32 [d0], f0;\n",
    "together": FENCE + 4 * MATRIX + WAIT,
    "serial": FENCE + 4 * MATRIX + WAIT.replace("\n", "\nmov.f32 f0, f4;\n", 1),
}
KERNEL = """.visible .entry {name}(.param .u64 to, .param .u32 steps) .maxntid 256 {{
.reg .b64 d<2>; .reg .b32 r<12>; .reg .f32 f<8>; .reg .pred p, q; .local .align 8 .b8 room[1024]; .shared .align 16 .b8 words[4096];
ld.param.u64 d0, [to]; ld.param.u32 r1, [steps]; mov.u32 r8, words; cvt.u64.u32 d1, r8;
ld.global.v4.f32 {{f0, f1, f2, f3}}, [d0]; ld.global.v4.b32 {{r2, r3, r4, r5}}, [d0 + 16]; ld.global.v2.b32 {{r6, r7}}, [d0 + 32];
mov.u32 r10, room; and.b32 r11, r1, 508; add.s32 r10, r10, r11; add.s32 r11, r10, r11; st.local.f32 [r11], f2;
again: .pragma "nounroll";
{body}
add.s32 r1, r1, -1; setp.ne.s32 p, r1, 0; @p bra again;
ld.local.f32 f2, [r10]; st.shared.f32 [r8], f1;
st.global.v4.f32 [d0], {{f0, f1, f2, f3}}; ret;
}}
"""


def check(condition, what):
    if not condition:
        sys.exit(f"test_slots: {what}")


def refused(image, code):
    """What is said of an image whose first operation is replaced by `code`."""
    at = image.index(dict((n, d) for n, d, _ in slots.sections(image))[".text.plain"])
    try:
        list(slots.rows_of(image[:at] + bytes([code & 255, image[at + 1] & ~1 | code >> 8]) + image[at + 2:]))
    except slots.Unreadable as e:
        return str(e)


def complaints(rows, **changes):
    """What is said of row `counted` that has changed, in a table that holds it alone."""
    return list(slots.compare({"counted": rows["counted"]}, {"counted": {**rows["counted"], **changes}}))


def main(nvcc):
    with tempfile.TemporaryDirectory(prefix="dq-slots-") as top:
        ptx, cubin = Path(top) / "planted.ptx", Path(top) / "planted.cubin"
        kernels = (KERNEL.format(name=name, body=body) for name, body in BODIES.items())
        ptx.write_text(".version 8.4\n.target sm_90a\n.address_size 64\n" + "".join(kernels))
        made = subprocess.run([nvcc, "-cubin", "-arch=sm_90a", ptx, "-o", cubin], capture_output=True, text=True)
        check(made.returncode == 0 and "serialized due to" in made.stderr, made.stdout + made.stderr)
        (image,) = slots.cubins(cubin.read_bytes())
    check(slots.compiler(image)[1], "the image is not known to be for sm_90a")
    rows = {row["kernel"]: row for row in slots.rows_of(image)}
    expected = {
        "counted": dict(mufu=2, fma=5, shared=3, tensor=1, tensor_clocks=4, shared_clocks=24, bytes=768, local_loop=0, local_else=2,
                        shared_bytes=4096, threads=256, bound=24, by="shared"),
        "plain": dict(tensor=0, bytes=256, fma=1, **{"global": 2}),
        "spilling": dict(local=2, local_loop=2, local_else=1, **{"global": 1}),
        "together": dict(tensor=4, tensor_clocks=16, shared_clocks=72, serialized=0),
        "serial": dict(tensor=4, serialized=1),
    }
    for name, columns in expected.items():
        found = {column: rows[name][column] for column in columns}
        check(found == columns, f"{name}: {found}, expected {columns}")
    row = rows["counted"]
    check(row["slots"] + 40 <= row["loop"], f"the rare branch counts: {row['slots']} of {row['loop']}")
    check(row["slots"] == sum(row[unit] for unit in slots.UNITS), "an instruction has no unit, or two")
    check(row["blocks"] == 8, f"{row['blocks']} blocks of 256 threads fit")

    check("plain: operation 1ff at 0x0" in (refused(image, 0x1FF) or ""), "an unknown operation is not named")
    said = sorted(slots.compare(rows, rows))
    check(said == ["serial: wgmma are serialized", "spilling: 2 accesses to local memory in loops"], f"{said}")
    for changes in (dict(slots=row["slots"] * 2), dict(loop=row["loop"] * 2), dict(bound=25), dict(blocks=7), dict(local_else=3),
                    dict(tensor=0, tensor_clocks=0), dict(tensor_clocks=2)):
        check(complaints(rows, **changes), f"{changes} is not worse")
    double = {column: 2 * row[column] for column in ("slots", "loop", "bound", "tensor_clocks")}
    for changes in ({}, dict(bound=23), dict(registers=99), double):
        check(not complaints(rows, **changes), f"{changes} is worse")
    check(list(slots.compare({"a": row}, {"b": row})) == ["b: no row in the table", "a: a row without a kernel"], "a lost row is not seen")
    check([slots.tile_steps(keys) for keys in (64, 128, 256)] == [6, 8, 20], "steps of one, two and four tiles")
    print("slots.py reads what was planted")


if not shutil.which(sys.argv[1]):
    sys.exit(77)
main(sys.argv[1])
