"""Every adapter that Wick writes, loaded whole by other programs' own code, and their results beside Wick's.

    python tools/interop/run.py --wick build/release/bin/wick --comfyui ~/ComfyUI --sd-scripts ~/sd-scripts

trains each algorithm for a few steps on each small model, converts and merges what came of it, loads every file with every program that
claims to read it (programs.py), runs each part of the model with it in f32, and compares with `wick forward`. README.md tells the rest.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import programs
from models import FAMILIES, MODELS
from programs import Absent, Artifact

ROOT = Path(__file__).resolve().parents[2]
STEPS = 5
TOLERANCE = 1e-4  # of the largest value: float32 through other kernels

ALGORITHMS = {"tiny": ["lora", "dora", "loha", "lokr"], "tiny-flux": ["lora", "dora", "loha", "lokr"],
              "tiny-sd3": ["lora", "dora", "loha", "lokr"], "tiny-llm": ["lora", "dora"]}
# What kohya's scripts can have an adapter on: they know no embedders and no projections of the text encoders.
BLOCKS = {"tiny": ["unet.*", "-unet.conv_*", "-unet.*_embedding.*"],
          "tiny-flux": ["transformer.double_blocks.*", "transformer.single_blocks.*"], "tiny-sd3": ["transformer.joint_blocks.*"]}
TEXTS = {"tiny": ["text_encoder*", "-*.text_projection"], "tiny-flux": ["text_encoder*"], "tiny-sd3": ["text_encoder*", "-*.text_projection"]}
TARGETS = {family: {"default": [], "blocks, texts": BLOCKS[family] + TEXTS[family]} for family in BLOCKS} | {"tiny-llm": {"default": []}}
CONVERSIONS = {"tiny": ["kohya", "diffusers", "peft", "comfy", "onetrainer"], "tiny-flux": ["kohya", "diffusers", "comfy", "onetrainer"],
               "tiny-sd3": ["kohya", "diffusers", "comfy", "onetrainer"], "tiny-llm": ["gguf"]}
T5S = ("tiny-flux", "tiny-sd3")


def conversions(family, algorithm, targets):
    """Those that can be (docs/adapters.md); others end with one line, which tests/pipelines has."""
    kept = list(CONVERSIONS[family])
    if algorithm != "lora":  # of which diffusers, PEFT and llama.cpp have no files, and OneTrainer none of q, k and v in one
        kept = [to for to in kept if to in ("kohya", "comfy") or (to == "onetrainer" and family == "tiny")]
    if targets != "default":  # diffusers has no adapter of a T5, PEFT one model in a folder
        kept = [to for to in kept if to != "peft" and not (to == "diffusers" and family in T5S)]
    return kept


class Failed(Exception):
    pass


class Wick:
    def __init__(self, program, device):
        self.program, self.device = program, device
        self.version = self("--version").strip()

    def __call__(self, *words):
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise Failed((done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1])
        return done.stdout

    @staticmethod
    def data(family, folder):
        """A little of the data that ships with Wick."""
        folder.mkdir(parents=True, exist_ok=True)
        if family == "tiny-llm":
            lines = (ROOT / "data/tiny-pirate/train.jsonl").read_text().splitlines(keepends=True)
            (folder / "chats.jsonl").write_text("".join(lines[:4]))
            return folder / "chats.jsonl"
        for n in (1, 2):
            for end in ("png", "txt"):
                shutil.copy(ROOT / f"data/tiny-style/{n:04}.{end}", folder)
        return folder

    def train(self, family, algorithm, targets, folder):
        language = family == "tiny-llm"
        shutil.rmtree(folder, ignore_errors=True)
        self("train", "--model", MODELS / family, "--dataset", self.data(family, folder.parent / "data"), "--output", folder, "--name", "x",
             "--steps", STEPS, "--lr", "2e-2", "--rank", 4, "--alpha", 3, "--batch-size", 2, "--seed", 1, "--device", self.device,
             *(["--adapter", algorithm] if algorithm != "lora" else []), *(["--sequence-length", 512] if language else []),
             *(["--targets", *targets] if targets else []))
        return folder / ("x" if language else "x.safetensors")

    def forward(self, family, component, lora=None):
        with tempfile.TemporaryDirectory() as scratch:
            given, found = Path(scratch) / "in.safetensors", Path(scratch) / "out.safetensors"
            save_file({k: v.contiguous() for k, v in component.inputs.items()}, given)
            self("forward", "--model", MODELS / family, *(["--component", component.name] if component.name else []), "--device", self.device,
                 *(["--lora", lora] if lora else []), "--in", given, "--out", found)
            return load_file(found)


def relative(found, want):
    worst = 0.0
    for name in found:
        if name in want:
            worst = max(worst, ((found[name] - want[name]).abs().max() / want[name].abs().max()).item())
    return worst


class Results:
    """Of Wick: once for each adapter, and without one."""

    def __init__(self, wick):
        self.wick, self.known = wick, {}

    def of(self, family, lora=None):
        key = family, lora
        if key not in self.known:
            self.known[key] = {c.name: self.one(family, c, lora) for c in FAMILIES[family]}
        return self.known[key]

    def one(self, family, component, lora):
        try:
            return self.wick.forward(family, component, lora)
        except Failed as e:
            if lora and "is in the component that was loaded" in str(e):  # the adapter leaves it as it is
                return self.of(family)[component.name]
            raise


def make(wick, family, algorithm, name, scratch, by):
    """The file of a training, and what `wick convert` and `wick merge` make of it; a step that fails is a row of its own."""
    folder = Path(scratch) / family / f"{algorithm}-{name.replace(', ', '-')}"
    row = dict(family=family, algorithm=algorithm, targets=name)
    try:
        trained = wick.train(family, algorithm, TARGETS[family][name], folder / "run")
    except Failed as e:
        yield row | dict(made_by="train"), e
        return
    more = dict(family=family, algorithm=algorithm, lora=trained)
    native = "peft" if family == "tiny-llm" else "kohya"
    if "train" in by:
        yield row | dict(made_by="train"), Artifact(**more, kind="train", format=native, path=trained)
    for to in conversions(family, algorithm, name) if "convert" in by else []:
        made = folder / to / ("adapter" if to == "peft" else "x.gguf" if to == "gguf" else "x.safetensors")
        made.parent.mkdir(parents=True, exist_ok=True)
        try:
            wick("convert", "--model", MODELS / family, "--lora", trained, "--to", to, "--output", made)
            yield row | dict(made_by=f"convert --to {to}"), Artifact(**more, kind=to, format=to, path=made)
        except Failed as e:
            yield row | dict(made_by=f"convert --to {to}"), e
    if "merge" not in by:
        return
    try:
        # The models are of f16, to which weights would be rounded.
        wick("merge", "--model", MODELS / family, "--lora", trained, "--dtype", "f32", "--output", folder / "merged")
        yield row | dict(made_by="merge"), Artifact(**more, kind="merge", format="model", path=folder / "merged")
    except Failed as e:
        yield row | dict(made_by="merge"), e


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def judge(program, artifact, results):
    """The columns from the program on."""
    row, limit = dict(program=program.name), program.limit(artifact)
    known = lambda verdict, notes: dict(verdict=f"{verdict} (known)" if limit else verdict, notes=([limit] if limit else []) + notes)
    try:
        loaded = program.load(artifact)
    except Exception as e:  # whatever a program ends with
        return row | known("not loaded", [f"{type(e).__name__}: {first_line(e)}"])
    want, bare = results.of(artifact.family, artifact.lora), results.of(artifact.family)
    difference = max(relative(found, want[name]) for name, found in loaded.outputs.items())
    effect = max(relative(want[name], bare[name]) for name in want)
    whole = loaded.keys == loaded.of
    same = difference <= TOLERANCE and effect > 10 * TOLERANCE
    row |= dict(keys=loaded.keys, of=loaded.of, difference=difference, effect=effect)
    if whole and same:
        return row | dict(verdict="same", notes=loaded.notes)
    return row | known(("whole" if whole else "in part") + (", same" if same else ", differs"), loaded.notes)


def available(args, wick, scratch):
    makers = [lambda: programs.ComfyUI(args.comfyui), lambda: programs.SdScripts(args.sd_scripts), programs.Lycoris, programs.Diffusers,
              programs.Peft, lambda: programs.LlamaCpp(wick, scratch), programs.Merged]
    for start in makers:
        try:
            yield start()
        except (Absent, ImportError, Failed) as e:
            print(f"skipped: {first_line(e)}", file=sys.stderr)


COLUMNS = ["family", "algorithm", "targets", "made by", "program", "keys", "difference", "effect", "verdict", "notes"]


def cells(row):
    number = lambda key: f"{row[key]:.1e}" if key in row else ""
    keys = f"{row['keys']} / {row['of']}" if "keys" in row else ""
    notes = "; ".join(row.get("notes", [])).replace("|", "\\|")
    return [row["family"], row["algorithm"], row.get("targets", ""), row["made_by"], row.get("program", ""), keys, number("difference"),
            number("effect"), row["verdict"], notes]


def markdown(rows):
    lines = [COLUMNS, ["---"] * len(COLUMNS), *map(cells, rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def given(text):
    family, format_, path = text.split(":", 2)
    path = Path(path).resolve()
    return dict(family=family, algorithm="given", made_by=path.name), Artifact(family, "given", "given", format_, path, lora=path)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--wick", required=True, type=Path, help="the program")
    parser.add_argument("--comfyui", type=Path, help="checkout of ComfyUI")
    parser.add_argument("--sd-scripts", type=Path, help="checkout of kohya's sd-scripts")
    parser.add_argument("--device", default="cpu", help="of Wick [cpu]")
    parser.add_argument("--family", nargs="*", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--algorithm", nargs="*", default=["lora", "dora", "loha", "lokr"])
    parser.add_argument("--targets", nargs="*", default=["default", "blocks, texts"])
    parser.add_argument("--made-by", nargs="*", choices=["train", "convert", "merge"], default=["train", "convert", "merge"])
    parser.add_argument("--file", nargs="*", default=[], metavar="FAMILY:FORMAT:PATH", help="instead of training: files that there are")
    parser.add_argument("--work", type=Path, help="folder to keep what is made [a temporary one]")
    parser.add_argument("--output", type=Path, help="the table as Markdown")
    parser.add_argument("--json", type=Path, help="the same as JSON")
    return parser.parse_args()


def main():
    args = parse()
    torch.set_num_threads(2)
    scratch = args.work or tempfile.mkdtemp()
    wick = Wick(args.wick.resolve(), args.device)
    readers = list(available(args, wick, scratch))
    results, rows = Results(wick), []
    wanted = [(f, a, t) for f in args.family for a in ALGORITHMS[f] if a in args.algorithm for t in TARGETS[f] if t in args.targets]
    made = map(given, args.file) if args.file else (pair for f, a, t in wanted for pair in make(wick, f, a, t, scratch, args.made_by))
    for row, artifact in made:
        if isinstance(artifact, Failed):
            rows.append(row | dict(verdict="not made", notes=[first_line(artifact)]))
            print(markdown(rows[-1:]).splitlines()[-1], flush=True)
            continue
        for program in readers:
            if artifact.format in program.formats and program.reads(artifact.family, artifact.algorithm):
                rows.append(row | judge(program, artifact, results))
                print(markdown(rows[-1:]).splitlines()[-1], flush=True)
    if args.output:
        args.output.write_text(markdown(rows))
    if args.json:
        args.json.write_text(json.dumps(dict(wick=wick.version, programs=[p.name for p in readers], rows=rows), indent=1) + "\n")
    if not args.work:
        shutil.rmtree(scratch)
    return any(row["verdict"] != "same" and not row["verdict"].endswith("(known)") for row in rows)


if __name__ == "__main__":
    sys.exit(main())
