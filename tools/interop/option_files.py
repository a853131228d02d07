"""Original option files of other trainers: whether `wick train` starts with them, and with the settings that those programs would have had.

    python tools/interop/option_files.py --wick build/release/bin/wick --sd-scripts ~/sd-scripts --kohya-gui ~/kohya_ss --kohya-colab ~/kohya-colab \
      --fluxgym ~/fluxgym --ai-toolkit ~/ai-toolkit --node ~/node --onetrainer ~/OneTrainer --musubi ~/musubi-tuner [--only WORD] [--json rows.json]

lets each program's own code write its files (option_writers.py) with the places of the small models and of data/tiny-style in them, explains
each, starts one step of it, and compares the settings of the run's config.toml with those that the program's own values ask for
(option_values.py). Flags of the start win over the file: --steps 1, --resolution 256 and --batch-size 1, for a CPU; so these three, and what --steps takes
along, are compared as the explanation has them. A file for a model that Wick has not must end in one line.

Each row has the keys that are honoured, without meaning and refused; what the run did; and the settings that differ. --table FILE names
tests/train/option_values.txt, which has to have each key and value of a file.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

import option_values
import option_writers
from programs import Absent

ROOT = Path(__file__).resolve().parents[2]
FLAGS = {"steps": "1", "resolution": "256", "batch_size": "1"}
EXPLAINED = (*FLAGS, "epochs")  # --steps wins over epochs too


def run(wick, *words):
    environment = os.environ | {"WICK_MODELS": str(ROOT / "models"), "OMP_NUM_THREADS": "1"}
    try:
        return subprocess.run([str(wick), *map(str, words)], capture_output=True, text=True, env=environment, errors="replace", timeout=300)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", "wick: no end after 300 seconds\n")


def explained(text):
    """[(key, value, what becomes of it)] of `wick train --explain-config`."""
    return re.findall(r"^  (\S+) = (.*)\n      (.*)$", text, re.M)


def told_settings(rows):
    """{setting: value} of what is honoured."""
    found = {}
    for _, _, told in rows:
        for setting, value in re.findall(r"(\w+) = (\[.*?\]|\".*?\"|[^,]+)", told.removeprefix("honoured: ")) if told.startswith("honoured: ") else []:
            found[setting] = tomllib.loads(f"x = {value}")["x"]
    return found


def same(ours, theirs):
    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value] if len(value) != 1 else plain(value[0])
        if isinstance(value, bool):
            return value
        try:
            return float(f"{float(value):.6g}")
        except (TypeError, ValueError):
            head, equals, rate = str(value).partition("=")
            return (head, plain(rate)) if equals else str(value)
    return plain(ours) == plain(theirs)


UNSAID = {"quantize": "none", "targets": [], "adapter": "lora", "stream_blocks": "0", "conv_alpha": 0}  # where a run's config.toml says nothing


def differences(config, told, wanted):
    """Of all settings after a start, and of those that the explanation tells without one; and how many were compared."""
    found, compared = [], 0
    for setting, theirs in wanted.items():
        ours = told.get(setting, config.get(setting)) if setting in EXPLAINED or not config else config.get(setting, told.get(setting, UNSAID.get(setting)))
        if (ours is None and not config) or (setting in EXPLAINED and setting not in told):
            continue
        compared += 1
        if not same(ours, theirs):
            found.append(f"{setting}: theirs {theirs}, ours {ours}")
    return found, compared


def check(wick, file, values, work, starts):
    explanation = run(wick, "train", "--explain-config", file.path)
    rows = explained(explanation.stdout)
    output = work / "run"
    shutil.rmtree(output, ignore_errors=True)
    flags = [word for key, value in FLAGS.items() for word in ("--" + key.replace("_", "-"), value)]
    started = run(wick, "train", "--config", file.path, *flags, "--device", "cpu", "--output", output) if starts else explanation
    lines = [l for l in started.stderr.splitlines() if l.startswith("wick: ")]
    row = dict(path=file.path, starts_at_all=starts, trainer=file.trainer, name=file.name, family=file.family, starts=started.returncode == 0, code=started.returncode,
               line=lines[0].removeprefix("wick: ").replace(str(file.path), file.path.name) if lines else "", lines=len(lines), rows=rows,
               uses=Counter("refused" if told.startswith("refused") else "idle" if told.startswith("without meaning") else "empty" if told.startswith("as if") else "honoured"
                            for _, _, told in rows),
               refused=[f"{key} = {value}: {told.removeprefix('refused: ')}" for key, value, told in rows if told.startswith("refused")], differs=[], keys=len(rows))
    row["faults"] = [l for l in explanation.stdout.splitlines() + explanation.stderr.splitlines() if l.startswith("refused: ") or l.startswith("wick: ")]
    if values is not None and rows:
        config = tomllib.loads((output / "config.toml").read_text()) if (output / "config.toml").exists() else {}
        wanted = option_values.SETTINGS[file.trainer](values, file.family)
        row["differs"], row["compared"] = differences(config, told_settings(rows), wanted)
    return row


def say(row):
    uses = row["uses"]
    if not row["family"]:
        good = row["refused"] or row["faults"] if row["code"] == 0 and row["keys"] and not row["starts_at_all"] else not row["starts"] and row["code"] in (1, 2) and row["lines"] == 1
        return print(f"| {row['name']} | not a model of Wick's | {'one line' if good else 'FAULT: code %d, %d lines' % (row['code'], row['lines'])} | {row['line'][:150]} |", flush=True)
    print(f"| {row['name']} | {uses['honoured']} honoured, {uses['empty']} empty, {uses['idle']} without meaning, {uses['refused']} refused | "
          f"{'starts' if row['starts'] else 'does not start'} | {row.get('compared', 0)} compared, {len(row['differs'])} differ |", flush=True)
    for text in [*row["refused"], *row["faults"], *([] if row["starts"] or row["refused"] or row["faults"] else [row["line"]])]:
        print(f"    refused: {text[:240]}")
    for text in row["differs"]:
        print(f"    differs: {text[:240]}")


def writers(args):
    def made(*build):
        try:
            return build[0](*build[1:])
        except (Absent, ImportError) as e:
            print(f"skipped: {e}", file=sys.stderr)
    scripts = made(option_writers.SdScripts, args.sd_scripts)
    found = [scripts, made(option_writers.AiToolkit, args.ai_toolkit, args.node), made(option_writers.OneTrainer, args.onetrainer, args.onetrainer_presets),
             made(option_writers.Musubi, args.musubi)]
    if scripts:
        found[1:1] = [made(option_writers.KohyaGui, args.kohya_gui, scripts), made(option_writers.Colab, args.kohya_colab, scripts),
                      made(option_writers.Fluxgym, args.fluxgym, scripts)]
    return [w for w in found if w]


def tree_of(path):
    if path.suffix == ".toml":
        found = {}
        for key, value in tomllib.loads(path.read_text()).items():  # tables are laid flat
            found |= value if isinstance(value, dict) else {key: value}
        return found
    if path.suffix == ".json":
        found = json.loads(path.read_text())
        return found | {"concepts": json.loads(Path(found["concept_file_name"]).read_text())}
    job = option_writers.ai_toolkit_yaml(path)
    return job["config"]["process"][0] | {"job": job["job"], "config": {"name": job["config"]["name"]}, "meta": job.get("meta", {})}


def table_rows(rows):
    """(trainer and model, "key = value in JSON") of each key that a file's explanation has, without places and prompts."""
    found = {}
    for row in rows:
        if not row["family"] or row["path"].suffix == ".sh":
            continue
        tree = tree_of(row["path"])
        for key, _, _ in row["rows"]:
            if key.startswith("datasets[") and row["trainer"] == "musubi-tuner":  # of the file of data sets
                continue
            at = tree
            for part in key.split(".") if row["trainer"] not in ("kohya's scripts", "musubi-tuner") else [key]:
                name, _, index = part.partition("[")
                at = at[name] if not index else at[name][int(index[:-1])]
            if is_place(key, json.dumps(at)):
                continue
            other = CONTEXT.get(key)
            where = f" where {other} = {json.dumps(tree[other])}" if other in tree else ""
            found[f"{row['trainer']}, {row['family']}", f"{key} = {json.dumps(at)}{where}"] = None
    return sorted(found)


CONTEXT = {"optimizer_args": "optimizer_type"}  # keys that mean something with another one alone


def is_place(key, value):
    """Paths of this run, and texts, which are no settings."""
    return "/" in value or len(value) > 300 or re.search(r"prompt|neg$|seed$|comment|description|token$|_name$|^name$|\.name$|file_name", key) is not None


def in_table(rows, table, is_to_be_written):
    """The rows that the table lacks, for any model; each line of it is "trainer, model | key = value | what becomes of it", where
    " where key = value" may follow the value."""
    trainer = lambda row: (row[0].partition(",")[0], row[1])
    lines = [line.split(" | ", 2) for line in table.read_text().splitlines()] if table.exists() else []
    there = {trainer(line) for line in lines}
    missing = [row for row in table_rows(rows) if trainer(row) not in there]
    if not is_to_be_written:
        return missing
    first = {trainer(row): [*row, ""] for row in reversed(missing)}  # of one model
    table.write_text("".join(" | ".join(line) + "\n" for line in sorted([*lines, *first.values()])))
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--wick", required=True, type=Path, help="the program")
    for name, what in (("sd-scripts", "kohya's sd-scripts"), ("kohya-gui", "bmaltais' kohya_ss"), ("kohya-colab", "hollowstrawberry's kohya-colab"), ("fluxgym", "fluxgym"),
                       ("ai-toolkit", "ai-toolkit"), ("onetrainer", "OneTrainer"), ("musubi", "musubi-tuner")):
        parser.add_argument(f"--{name}", type=Path, help=f"checkout of {what}")
    parser.add_argument("--onetrainer-presets", type=Path, help="checkout with training_presets, if the other has none")
    parser.add_argument("--node", type=Path, help="node 22.7 or later, for ai-toolkit's page")
    parser.add_argument("--only", default="", help="files with this word in their names")
    parser.add_argument("--work", type=Path, help="folder to keep what is made [a temporary one]")
    parser.add_argument("--table", type=Path, help="tests/train/option_values.txt, to see whether it has each key and value")
    parser.add_argument("--write-table", action="store_true", help="add those that it lacks; the test writes what becomes of them with WICK_WRITE_DOCS=1")
    parser.add_argument("--no-start", action="store_true", help="only explain the files")
    parser.add_argument("--json", type=Path, help="the rows as JSON")
    args = parser.parse_args()
    work = (args.work or Path(tempfile.mkdtemp())).resolve()
    pictures = work / "pictures"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(ROOT / "data/tiny-style", pictures / "1_style")
    place, rows = option_writers.Place(ROOT / "models", pictures, work), []
    for writer in writers(args):
        for file in writer.files(place):
            if args.only in file.name:
                rows.append(check(args.wick.resolve(), file, writer.values(file) if file.family else None, work, not args.no_start))
                say(rows[-1])
    ours = [r for r in rows if r["family"]]
    print(f"{len(rows)} files; {len(ours)} of Wick's models, {sum(r['starts'] for r in ours)} of them start, {sum(bool(r['differs']) for r in ours)} with settings that differ")
    missing = in_table(rows, args.table, args.write_table) if args.table else []
    for row in missing:
        print(f"not in {args.table.name}: {' | '.join(row)}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1, default=str) + "\n")
    if not args.work:
        shutil.rmtree(work)
    return any(r["differs"] or not r["starts"] for r in ours) or any(r["starts"] or r["lines"] != 1 for r in rows if not r["family"]) or bool(missing)


if __name__ == "__main__":
    sys.exit(main())
