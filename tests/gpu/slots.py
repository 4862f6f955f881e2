#!/usr/bin/env python3
"""slots.py: what the compiler made of the CUDA kernels, read from their machine code for sm_90a: a row a kernel.
    python3 tests/gpu/slots.py BUILD          prints the table of a build folder, or of an archive, object or cubin
    python3 tests/gpu/slots.py BUILD TABLE    compares it with a table, says what is worse, and exits 1 then
    python3 tests/gpu/slots.py --expect TABLE [TFLOPS]   how long attention of a layer should take, by a table: see expect()
docs/gpu.md says what the columns mean. Exit 77: nothing to compare (no kernels for sm_90a, or those of another compiler)."""
import struct
import subprocess
import sys
from pathlib import Path

# Operations that occur, bits 0 to 8 of an instruction, by the unit that executes them, as NVIDIA's disassembler names them.
UNITS = {
    "tensor": "037 IMMA 03c HMMA 1f0 HGMMA 1f1 IGMMA 1f3 QGMMA",
    "fma": "020 FMUL 021 FADD 023 FFMA 030 HADD2 031 HFMA2 032 HMUL2 035 HFMA2",
    "imad": "024 IMAD 025 IMAD 026 IDP 027 IMAD",
    "alu": "002 MOV 003 P2R 004 R2P 007 SEL 008 FSEL 009 FMNMX 00a FSET 00b FSETP 00c ISETP 00f VIMNMX3 010 IADD3 011 LEA 012 LOP3 "
           "013 IABS 014 VABSDIFF 015 VABSDIFF4 016 PRMT 019 SHF 01a SGXT 01b BMSK 01c PLOP3 033 HSET2 034 HSETP2 036 VIADD 039 I2IP "
           "03e F2FP 040 HMNMX2 045 I2FP 046 VIADDMNMX 048 VIMNMX",
    "mufu": "100 FLO 101 BREV 108 MUFU 109 POPC",
    "conv": "102 FCHK 104 F2F 105 F2I 106 I2F 107 FRND 110 F2F 111 F2I 112 I2F 113 FRND",
    "f64": "028 DMUL 029 DADD 02a DSETP 02b DFMA",
    "shared": "03b LDSM 044 STSM 184 LDS 188 STS 18c ATOMS 18d ATOMS 1a7 SYNCS 1b2 SYNCS",
    "global": "180 LD 181 LDG 185 ST 186 STG 18a ATOM 18e REDG 18f CCTL 1a3 ATOMG 1a8 ATOMG 1a9 ATOMG 1ae LDGSTS 1ba UBLKCP 1bb UBLKRED "
              "1bc UBLKPF 1bd STAS",
    "local": "183 LDL 187 STL",
    "uniform": "082 UMOV 086 VOTEU 087 USEL 08c UISETP 090 UIADD3 091 ULEA 092 ULOP3 096 UPRMT 097 UIADD3 099 USHF 09c UPLOP3 0a4 UIMAD "
               "0a5 UIMAD 0b9 ULDC 0bb ULDC 0bd UFLO 0ca R2UR 1c3 S2UR",
    "shuffle": "006 VOTE 02f ELECT 03a MOVM 189 SHFL 1a1 MATCH 1c4 REDUX",
    "control": "141 BSYNC 142 BREAK 144 CALL 145 BSSY 146 YIELD 147 BRA 149 BRX 14d EXIT 150 RET 15c BPT",
    "barrier": "02d PREEXIT 02e ACQBULK 11a DEPBAR 11b ENDCOLLECTIVE 11d BAR 148 WARPSYNC 15d NANOSLEEP 192 MEMBAR 1ab ERRBAR "
               "1af LDGDEPBAR 1b0 ARRIVES 1b1 SYNCS 1b7 UTMACMDFLUSH 1c5 WARPGROUP 1c6 FENCE 1c7 UCGABAR 1c8 USETMAXREG",
    "other": "005 CS2R 11c B2R 118 NOP 119 S2R 182 LDC",
}
OPS = {int(code, 16): (name, unit) for unit, text in UNITS.items() for code, name in zip(*[iter(text.split())] * 2)}
# Clocks for which an instruction of a warp keeps the unit of its scheduler busy, where an issue slot is not all.
CLOCKS = {"imad": 2, "alu": 2, "mufu": 8, "conv": 8, "f64": 2}
ENDS = ("BRA", "BRX", "EXIT", "RET", "BPT")
COLUMNS = ("kernel registers shared_bytes threads blocks local_loop local_else serialized loop slots".split() + list(UNITS)
           + "tensor_clocks shared_clocks bytes bound by".split())
# Kernels that access local memory in loops; no other may.
LOCAL_IN_LOOPS = {"encode", "reopen", "rope_table", "write_rows"}
SLACK = 1.03


class Unreadable(Exception):
    pass


def sections(elf):
    """Sections of an ELF file as (name, bytes, sh_info), in their order."""
    at, = struct.unpack_from("<Q", elf, 0x28)
    size, n, names = struct.unpack_from("<HHH", elf, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", elf, at + size * i) for i in range(n)]
    name = lambda h: elf[heads[names][4] + h[0]:elf.index(b"\0", heads[names][4] + h[0])].decode()
    return [(name(h), elf[h[4]:h[4] + h[5]] if h[1] != 8 else bytes(h[5]), h[7]) for h in heads]


def objects(data):
    """The ELF files in an archive, or the file itself."""
    if data[:8] != b"!<arch>\n":
        yield data
        return
    at = 8
    while at < len(data):
        size = int(data[at + 48:at + 58])
        if data[at + 60:at + 64] == b"\x7fELF":
            yield data[at + 60:at + 60 + size]
        at += 60 + size + size % 2


def cubins(data):
    """The images for compute capability 9.0 in an object of nvcc, or the object itself if it is one."""
    if struct.unpack_from("<H", data, 18)[0] == 190:
        yield data
        return
    for fat in (fat for name, fat, _ in sections(data) if name == ".nv_fatbin"):
        at = 0
        while at < len(fat):
            _, _, head, size = struct.unpack_from("<IHHQ", fat, at)
            end, at = at + head + size, at + head
            while at < end:
                kind, _, head, size = struct.unpack_from("<HHIQ", fat, at)
                if kind == 2 and struct.unpack_from("<I", fat, at + 28)[0] == 90:
                    if fat[at + head:at + head + 4] != b"\x7fELF":
                        raise Unreadable("code is compressed: build with -DCMAKE_CUDA_FLAGS=--no-compress")
                    yield fat[at + head:at + head + size]
                at += head + size
            at = end + 7 & ~7


def compiler(image):
    """The version of ptxas, and whether it was asked for sm_90a."""
    note = next((data for name, data, _ in sections(image) if name == ".note.nv.tkinfo"), b"")
    words = [w.decode() for w in note.split(b"\0") if w.isascii()]
    return next((w.rpartition(", ")[2] for w in words if "release" in w), "unknown"), any("sm_90a" in w for w in words)


def attributes(data, wanted):
    """The words of each attribute `wanted` of a section .nv.info."""
    at = 0
    while at < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        if form == 4 and attribute == wanted:
            yield struct.unpack_from(f"<{size // 4}I", data, at + 4)
        at += 4 + (size if form == 4 else 0)


class Instruction:
    def __init__(self, at, word):
        self.at, self.word = at, word
        if self.bits(0, 9) not in OPS:
            raise Unreadable(f"operation {self.bits(0, 9):03x} at 0x{at:x} ({word:032x}) is not in UNITS of tests/gpu/slots.py")
        self.name, self.unit = OPS[self.bits(0, 9)]
        self.tensor = self.tensor_clocks() if self.unit == "tensor" else 0
        self.bytes = 0  # of a warp, which loads or stores
        if self.unit in ("shared", "global") and self.name[:2] in ("LD", "ST"):
            self.bytes = 32 * ((1, 1, 2, 2, 4, 8, 16, 16)[self.bits(73, 3)] if self.name[2:] != "SM" else 4 << self.bits(72, 2))
        self.shared = 0  # clocks of shared memory, of which four schedulers get 128 bytes each
        if self.unit == "shared" or self.name == "LDGSTS":
            self.shared = max(self.bytes, 128) // 32
        elif self.name.endswith("GMMA"):  # 32 bytes of each column of B, and of 64 rows of A unless registers hold them
            self.shared = (self.columns() + 64 * (self.bits(9, 3) == 4)) * 32 // 128

    def bits(self, at, n):
        return self.word >> at & (1 << n) - 1

    def columns(self):
        n = self.bits(53, 6)
        if self.name == "IGMMA":
            return 8 * (n // 3 + 1) if n < 9 else 16 * (n // 3 - 1)
        return 8 * ((n & 31) + 1)

    def tensor_clocks(self):
        """2 m n k / 4096 of a warpgroup, or of a warp on each of four schedulers; k counts in 16 bits."""
        if self.name.endswith("GMMA"):
            return self.columns() // 2
        tf32 = self.name == "HMMA" and self.bits(83, 1)
        clocks = 4 if (not self.bits(78, 1) if tf32 else self.bits(75, 1)) else 2
        return clocks if self.name == "HMMA" or self.bits(86, 1) else clocks // 2

    def target(self):
        words = self.bits(16, 8) | self.bits(34, 48) << 8
        return self.at + 16 + 4 * (words - (words >> 55 << 56))

    def conditional(self):
        return self.bits(12, 4) != 7 or self.name == "BRA" and (self.bits(32, 2) == 2 or self.bits(87, 4) != 7)


class Flow:
    """Blocks of a kernel by address, who follows whom, and its loops: sets of blocks by their first. -1 enters all functions."""

    def __init__(self, code, jumps):
        self.ins = ins = [Instruction(at, int.from_bytes(code[at:at + 16], "little")) for at in range(0, len(code), 16)]
        to = {i.at: jumps[i.at] if i.name == "BRX" else [i.target()] for i in ins if i.name in ("BRA", "BRX", "CALL")}
        functions = {0, *(t for i in ins if i.name == "CALL" for t in to[i.at])}
        leaders = {*functions, *sum(to.values(), []), *(i.at + 16 for i in ins if i.name in ENDS)}
        self.blocks, self.next, self.before = {-1: []}, {-1: sorted(functions)}, {}
        for i in ins:
            if i.at in leaders:
                block = self.blocks[i.at] = []
            block.append(i)
        for at, (*_, last) in [b for b in self.blocks.items() if b[1]]:
            falls = last.at + 16 in self.blocks and (last.conditional() or last.name not in ENDS)
            self.next[at] = falls * [last.at + 16] + to.get(last.at, []) * (last.name != "CALL")
        self.line = self.reached(-1, None)
        self.rank = {at: i for i, at in enumerate(self.line)}
        for at in self.line:
            for t in self.next[at]:
                self.before.setdefault(t, []).append(at)
        self.loops = {}
        for at in self.line:
            for head in self.next[at]:
                if self.rank[head] <= self.rank[at]:
                    self.add_loop(head, at)

    def reached(self, start, without):
        """Blocks that `start` reaches without one of them, in reverse postorder."""
        seen, post, stack = {start, without}, [], [(start, iter(self.next[start]))]
        while stack:
            to = next((t for t in stack[-1][1] if t not in seen), None)
            if to is None:
                post.append(stack.pop()[0])
            else:
                seen.add(to)
                stack.append((to, iter(self.next[to])))
        return post[::-1]

    def add_loop(self, head, end):
        if end != head and end in self.reached(-1, head):
            raise Unreadable(f"the cycle from 0x{head:x} to 0x{end:x} has two entries")
        body, stack = self.loops.setdefault(head, {head}), [end]
        while stack:
            at = stack.pop()
            if at not in body:
                body.add(at)
                stack += self.before[at]

    def path(self, head, body, worth):
        """Instructions of the way from `head` through `body` that is worth most, and of those the shortest; inner loops once."""
        best = {}
        for at in sorted(body, key=self.rank.get):
            ways = [(best[b][0], b) for b in self.before.get(at, []) if b in best and self.rank[b] < self.rank[at]]
            if at == head or ways:
                (value, slots), came = max(ways) if at != head else ((0, 0), None)
                best[at] = (value + sum(map(worth, self.blocks[at])), slots - len(self.blocks[at])), came
        ends = [b for b in best if head in self.next[b]] or [b for b in best if not self.next[b]]
        at, way = max(ends, key=best.get), []
        while at is not None:
            way[:0] = self.blocks[at]
            at = best[at][1]
        return way


def serialized(ins):
    """Whether each wgmma stands alone between its fence and a wait for all: what ptxas makes of those that it cannot overlap."""
    line = [i for i in ins if i.name.endswith("GMMA") or i.name == "WARPGROUP"]
    kinds = "".join("M" if i.tensor else "fence" if not i.bits(47, 1) else "wait" if not i.bits(72, 3) else "-" for i in line)
    return int(kinds.count("M") > 1 and kinds.count("M") == kinds.count("fenceMwait"))


def row_of(name, flow, registers, shared, threads):
    looped = set().union(*flow.loops.values())
    local = [at in looped for at, block in flow.blocks.items() for i in block if i.unit == "local"]
    matrix = any(i.tensor for i in flow.ins)
    worth = (lambda i: i.tensor) if matrix else (lambda i: i.unit in ("shared", "global"))
    holds = [h for h, body in flow.loops.items() if not matrix or any(i.tensor for b in body for i in flow.blocks[b])]
    inner = {h: flow.loops[h] for h in holds if not any(o != h and o in flow.loops[h] for o in holds)}
    ways = {h: flow.path(h, body, worth) for h, body in inner.items()} or {0: flow.path(0, flow.reached(0, None), worth)}
    # A loop with several kinds of tensor instructions is not the one for odd steps. Of loops with as many of them, those of first and
    # last steps have masks besides.
    kinds = lambda h: len({i.name for i in ways[h] if i.tensor})
    head = max(ways, key=lambda h: (kinds(h), sum(i.tensor for i in ways[h]), len(ways[h]) * (-1 if matrix else 1), -h))
    way = ways[head]
    row = dict(kernel=name, registers=registers, shared_bytes=shared, threads=threads)
    warps = 4 * (16384 // (256 * -(-registers // 8))) // -(-threads // 32)
    row["blocks"] = min(warps, 2048 // threads, 32, 233472 // (shared + 1024))
    row.update(local_loop=sum(local), local_else=len(local) - sum(local), serialized=serialized(flow.ins))
    row.update(loop=sum(len(flow.blocks[b]) for b in inner.get(head, [])), slots=len(way))
    row.update({unit: sum(i.unit == unit for i in way) for unit in UNITS})
    row.update(tensor_clocks=sum(i.tensor for i in way), shared_clocks=sum(i.shared for i in way), bytes=sum(i.bytes for i in way))
    clocks = {"issue": len(way), "tensor": row["tensor_clocks"], "shared": row["shared_clocks"]}
    clocks.update((unit, each * row[unit]) for unit, each in CLOCKS.items())
    clocks["mufu"] += clocks.pop("conv")  # one unit does both
    row["by"] = max(clocks, key=clocks.get)
    row["bound"] = clocks[row["by"]]
    return row


def rows_of(image):
    parts = sections(image)
    by_name = {name: data for name, data, _ in parts}
    registers = dict(attributes(by_name[".nv.info"], 0x2F))  # by symbol, which the section of the code names
    for section, code, symbol in parts:
        name = section.removeprefix(".text.")
        about = by_name.get(".nv.info." + name, b"") if name != section else b""
        for threads in attributes(about, 0x05):
            jumps, words = {}, [w for a in attributes(about, 0x34) for w in a]
            while words:
                at, _, n = words[:3]
                jumps[at], words = words[3:3 + n], words[3 + n:]
            try:
                shared = max(len(by_name.get(".nv.shared." + name, b"")) - 1024, 0)  # less what every block has
                yield row_of(name, Flow(code, jumps), registers[symbol & 0xFFFFFF], shared, threads[0] * threads[1] * threads[2])
            except Unreadable as e:
                raise Unreadable(f"{name}: {e}") from None
        if about and not any(attributes(about, 0x05)):
            raise Unreadable(f"{name} has no __launch_bounds__")


def table_of(file):
    """Rows by kernel, and the compiler that made them."""
    rows, versions = [], set()
    for image in (image for o in objects(Path(file).read_bytes()) for image in cubins(o)):
        version, asked = compiler(image)
        if asked:
            versions.add(version)
            rows += rows_of(image)
    names = subprocess.run(["c++filt"], input="\n".join(r["kernel"] for r in rows), capture_output=True, text=True, check=True)
    for row, name in zip(rows, names.stdout.split("\n")):
        row["kernel"] = name.removeprefix("void ")
    rows.sort(key=lambda row: row["kernel"])
    for one, other in zip(rows, rows[1:]):
        if one["kernel"] == other["kernel"]:
            raise Unreadable(f"two kernels are named {one['kernel']}")
    return {row["kernel"]: row for row in rows}, " ".join(sorted(versions))


def worse(old, new):
    """Why a row is worse than it was, as sentences; a loop that is unrolled more does more."""
    unit = next((u for u in ("tensor_clocks", "bytes") if old[u] and new[u]), None)
    for column in ("loop", "slots", "bound"):
        if new[column] * (old[unit] if unit else 1) > SLACK * old[column] * (new[unit] if unit else 1):
            yield f"{column} {old[column]} -> {new[column]}" + (f", {unit} {old[unit]} -> {new[unit]}" if unit else "")
    for column in ("local_loop", "local_else"):
        if new[column] > old[column]:
            yield f"{column} {old[column]} -> {new[column]}"
    if new["blocks"] < old["blocks"]:
        yield f"blocks {old['blocks']} -> {new['blocks']}"
    if old["tensor"] and not new["tensor"]:
        yield "no tensor instruction is left"


def compare(old, new):
    """What is wrong with new rows, as sentences: what no kernel may do, and what is worse than it was."""
    for name, row in new.items():
        if row["serialized"]:
            yield f"{name}: wgmma are serialized"
        if row["local_loop"] and name.partition("(")[0] not in LOCAL_IN_LOOPS:
            yield f"{name}: {row['local_loop']} accesses to local memory in loops"
        yield from (f"{name}: {text}" for text in (worse(old[name], row) if name in old else ["no row in the table"]))
    yield from (f"{name}: a row without a kernel" for name in old if name not in new)


def read_table(lines):
    return {line.split("\t")[0]: {c: int(v) if v.isdigit() else v for c, v in zip(COLUMNS, line.split("\t"))} for line in lines}


def tile_steps(keys):
    """Steps of all tiles of 64 causal rows, in pairs: both read pages up to the pair's last; one page between codes and plain twice."""
    tiles = -(-keys // 64)
    return sum(2 * (min(t + 2, tiles) + 2) for t in range(0, tiles, 2))


def expect(table, tflops="800"):
    """Milliseconds of attention of a layer, 12 heads of two maps of 128 channels with values of 256. tflops: what a library's product
    in 16 bits reaches on the device (results/bench/gpu/h200: 800); of that, published kernels of such heads reach .78. Nothing else
    is counted: neither unfolding, nor maxima of logits, nor what an uneven division costs."""
    _, _, *lines = Path(table).read_text().splitlines()
    print("keys", "logits", "steps", "bound_ms", "expected_ms", sep="\t")
    for rounded in (False, True):
        row = read_table(lines)[f"attend_hopper<hopper_shape<128, 256, 2, 3>, {str(rounded).lower()}>(dq_attend_call)"]
        clocks = 2 * max(row["tensor_clocks"], row["slots"])  # two teams; a scheduler issues for a warp of each
        for keys in (2048, 8192, 65536):
            steps = 12 * tile_steps(keys)
            ms = steps * clocks * 4096 / float(tflops) / 1e9
            print(keys, "rounded" if rounded else "16 bits", steps, f"{ms:.3g}", f"{ms / .78:.3g}", sep="\t")
    return 0


def main(build, table=None):
    rows, version = table_of(build if Path(build).is_file() else Path(build) / "libdqdevices.a")
    if not rows:
        print(f"slots.py: {build} has no kernels for sm_90a: no nvcc, or another architecture")
        return 77
    title = f"# ptxas {version}, sm_90a: python3 tests/gpu/slots.py BUILD > results/bench/gpu/slots.tsv"
    if not table:
        print(title, "\t".join(COLUMNS), *("\t".join(str(row[c]) for c in COLUMNS) for row in rows.values()), sep="\n")
        return 0
    was, _, *lines = Path(table).read_text().splitlines()
    if was != title:
        print(f"slots.py: the table is another compiler's\n{was}\n{title}")
        return 77
    old = read_table(lines)
    bad = list(compare(old, rows))
    print(*bad, f"slots.py: {len(rows)} kernels, {len(bad)} complaints" + "; if that is meant, make a new table" * bool(bad), sep="\n")
    return int(bool(bad))


if __name__ == "__main__":
    asked = sys.argv[1:2] == ["--expect"]
    if len(sys.argv) not in ((3, 4) if asked else (2, 3)):
        sys.exit(__doc__)
    try:
        sys.exit(expect(*sys.argv[2:]) if asked else main(*sys.argv[1:]))
    except (Unreadable, OSError) as e:
        sys.exit(f"slots.py: {e}")
