#!/usr/bin/env python3
"""Do `wick plan`'s numbers hold for write_llm.py's model? `wick generate` and `wick train`, and the memory that they take.

    tools/full_size/run_llm.py DIR [--wick build/release/bin/wick]

A line of each, "ok: what: result" or "FAILED: …", and 1 if any failed. Memory is the largest that nvidia-smi saw taken on
the whole device while the program ran, above what was taken before. Outputs go to a folder of their own, which is removed.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from watched import line, run

ROOT = Path(__file__).resolve().parents[2]
PLAN_SHARE = 0.05  # how far what was planned may be from what was taken
GENERATED = [("bf16", 512), ("bf16", 4096), ("bf16", 16384), ("q8_0", 4096), ("q4_0", 4096)]  # weights, context
TRAINED = [("bf16", []), ("bf16", ["--batch-size", 4, "--gradient-checkpointing"]), ("q4_0", ["--gradient-checkpointing"])]
LENGTH = 2048  # of the rows of a step


def weights(dtype):
    return ["--bf16"] if dtype == "bf16" else ["--quantize", dtype]


def words(count):
    """A token each: write_llm.py's tokenizer takes a space for one, and knows all words of two letters."""
    rng = random.Random(count)
    return " ".join(rng.choice("aeiou") + rng.choice("bcdfg") for _ in range(count // 2))


def planned(args, *flags):
    """GiB in all of generation and of training, as `wick plan` prints them."""
    command = [args.wick, "plan", "--model", args.dir, "--device", "cuda", *flags]
    told = subprocess.check_output([str(word) for word in command], text=True)
    print(told, flush=True)
    totals = re.findall(r"^ +total +([\d.]+) (MiB|GiB)", told, re.MULTILINE)
    return [float(size) / (1024 if unit == "MiB" else 1) for size, unit in totals]


def report(what, plan, ran):
    if not ran:
        return False
    taken = ran[1].peak()
    return line(abs(plan - taken) <= PLAN_SHARE * taken,
                f"plan, {what}: {plan:.2f} GiB planned, {taken:.2f} taken, {plan / taken - 1:+.1%}")


def generate(args, dtype, context):
    what = f"generate {dtype}, context {context}"
    return report(what, planned(args, *weights(dtype), "--context", context)[0], run(what, [
        args.wick, "generate", "--model", args.dir, "--device", "cuda", *weights(dtype), "--context", context, "--verbose",
        "--temperature", 0, "--max-tokens", 16, "--prompt", words(context - 64)]))


def train(args, folder, dtype, flags):
    what = f"train {dtype} {' '.join(str(flag) for flag in flags)}".rstrip()
    flags = [*weights(dtype), "--rank", 16, "--sequence-length", LENGTH, "--steps", 4, *flags]
    dataset = folder / "words.jsonl"
    dataset.write_text("".join(json.dumps({"text": words(LENGTH - i)}) + "\n" for i in range(16)), encoding="utf-8")
    return report(what, planned(args, *flags, "--dataset", dataset)[1], run(what, [
        args.wick, "train", "--model", args.dir, "--device", "cuda", "--dataset", dataset, *flags,
        "--output", folder / what.replace(" ", "")]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--wick", type=Path, default=ROOT / "build" / "release" / "bin" / "wick")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(not all([*(generate(args, *of) for of in GENERATED), *(train(args, Path(folder), *of) for of in TRAINED)]))


if __name__ == "__main__":
    main()
