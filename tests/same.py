"""What a program says and writes, in a form that another one's can be compared with: tests/same.sh does.

    python3 tests/same.py DQ REPOSITORY FOLDER

FOLDER gets a file for every document, table, CSV and message of the variants of tests/schemas.py, every --help, and the
demo; containers, exports and other binaries as their SHA-256. What depends on the clock is left out: members that are
times or rates, and numbers with such units in text; of `dq bench` and `dq doctor` every measured number.
"""
import csv
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

DQ, REPO, OUT = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3]).resolve()
CLOCK = re.compile(r"seconds|per_second|^commit$|^peak_bytes$|available_bytes|free_bytes")
UNITS = re.compile(r"~?\b[\d.:]+(?:e[+-]\d+)? ?"
                   r"(?:s|ms|us|µs|min|h|GFLOP/s|GB/s|MB/s|tok/s|tokens/s|a second|tokens a second)\b(?:\s+left)?")
MADE_HERE = {"old.json"}
TIMED = {"dq-bench/1", "dq-doctor/1"}
TABLES = ("eval", "stats", "plan", "quantize", "info", "verify", "export", "judged", "logits", "generate")
CSV = ("eval", "stats", "judged")
count = 0


def without_clock(x, timed):
    if isinstance(x, dict):
        if x.get("path") in MADE_HERE:
            x = {"path": x["path"]}  # its own seconds are in its bytes and SHA-256
        return {k: without_clock(v, timed) for k, v in x.items() if not CLOCK.search(k)}
    if isinstance(x, list):
        return [without_clock(v, timed) for v in x]
    if isinstance(x, float) and timed:
        return "a number"
    return x


def of_csv(text):
    """Without columns of the clock."""
    rows = list(csv.reader(io.StringIO(text)))
    keep_at = [i for i, title in enumerate(rows[0]) if not CLOCK.search(title)]
    return "".join("\t".join(row[i] for i in keep_at) + "\n" for row in rows)


def without_rates(text):
    """Tables without their column tokens/s, whose width the clock decides."""
    out, end = [], None
    for line in text.splitlines(True):
        title = re.search(r"\btok(?:en)?s?/s\b", line)
        if title or not line.strip():
            end = title.end() if title else None
        elif end and line[end - 1:end].isdigit():
            line = re.sub(r"[0-9.]+$", "TIME", line[:end]) + line[end:]
        out.append(re.sub(r" {2,}|-{2,}", " ", line) if end else line)
    return "".join(out)


def of_text(text):
    """A document, lines of documents, or text."""
    text = text.replace(os.getcwd(), ".").replace(DQ, "dq").replace(str(REPO), "REPO")
    try:
        x = json.loads(text)
        timed = isinstance(x, dict) and x.get("schema") in TIMED
        return json.dumps(without_clock(x, timed), indent=1, ensure_ascii=False) + "\n"
    except json.JSONDecodeError:
        return re.sub(r"[0-9a-f]{7,40}(-dirty)?\b(?=\))", "COMMIT", UNITS.sub("TIME", without_rates(text)))


def keep(name, text):
    (OUT / name).write_text(text, encoding="utf-8")


def keep_file(path, name):
    data = pathlib.Path(path).read_bytes()
    try:
        if b"\0" in data or len(data) > 4 << 20:
            raise UnicodeDecodeError("utf-8", data, 0, 1, "binary")
        keep(name, of_csv(data.decode()) if str(path).endswith(".csv") else of_text(data.decode()))
    except UnicodeDecodeError:
        keep(name + ".sha256", hashlib.sha256(data).hexdigest() + "\n")


def run(*args, ending="txt"):
    """Runs a command and keeps what it says."""
    global count
    p = subprocess.run([DQ, *map(str, args)], capture_output=True, text=True, check=False, errors="replace")
    count += 1
    line = " ".join(map(str, args)).replace(str(REPO), "REPO")
    keep(f"{count:03}-{args[0]}.{ending}", f"$ dq {line}\nstatus {p.returncode}\n" + of_text(p.stdout) + "---\n" +
         "".join(x for x in of_text(p.stderr).splitlines(True) if " %  " not in x))
    return p.stdout


def printed(*args, status=0):
    """As tests/schemas.py calls it: the document; then the table, and the CSV where there is one."""
    run(*args, ending="json")
    if args[0] not in TABLES:
        return
    table = [x for x in args if x != "--json"]
    if ("-o" in table or "--dump-completions" in table) and "--force" not in table:
        table.append("--force")
    run(*table)
    if args[0] in CSV and "--dry-run" not in table:
        run(*table, "--csv", "kept.csv", *(() if "--force" in table else ("--force",)))
        if os.path.exists("kept.csv"):
            keep_file("kept.csv", f"{count:03}-{args[0]}.csv")
            os.remove("kept.csv")


def keep_folder(folder, name):
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file() and not path.is_symlink() and ".svg" not in path.name and ".html" not in path.name:
            keep_file(path, name + "-" + str(path.relative_to(folder)).replace("/", "-"))


def variants():
    sys.argv = ["schemas.py", DQ, str(REPO)]
    sys.path.insert(0, str(REPO / "tests"))
    import schemas
    schemas.printed, schemas.dq, schemas.written = printed, lambda *args, status=0: run(*args), lambda path: None
    for step in (schemas.sizes_and_files, schemas.evaluations, schemas.plans, schemas.benches):
        step()


def helps():
    run("--help")
    run("help", "--markdown")
    for option in ("--man", "--commands"):
        run("help", option)
    for shell in ("bash", "zsh"):
        run("help", "--completion", shell)
    for name in re.findall(r"^## dq ([a-z ]+)$", (REPO / "docs" / "commands.md").read_text(), re.M):
        run(*name.split(), "--help")


def demo():
    p = subprocess.run(["sh", "calib/demo.sh", DQ, "out"], capture_output=True, text=True, check=False,
                       env=os.environ | {"DQ_DEMO_ITEMS": "30", "DQ_DEMO_WINDOWS": "10"})
    keep("demo.txt", f"status {p.returncode}\n" + of_text(p.stdout))
    keep_folder("out", "demo")


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.symlink(REPO / "calib", "calib")
        os.symlink(REPO / "calib" / "pair" / "llama", "llama")
        os.symlink(REPO / "calib" / "pair" / "diffllama", "diff")
        helps()
        variants()
        keep_folder(".", "left")
        demo()
        os.chdir("/")


if __name__ == "__main__":
    main()
