#!/usr/bin/env python3
"""`wick train` and `wick generate` on write.py's models: do they run, how fast, and in how much memory?

    tools/full_size/run.py DIR --model sdxl|flux|sd3-large|sd3-medium [--wick build/release/bin/wick] [--side 1024]

A line of each, "ok: what: result" or "FAILED: …", and 1 if any failed. Memory is the largest that nvidia-smi saw taken
on the whole device while the program ran, above what was taken before: weights, context, libraries and all.
"""

import argparse
import re
import statistics
import sys
from pathlib import Path

from watched import line, run, trained

ROOT = Path(__file__).resolve().parents[2]
STEPS = 6
# Rank, and of each run its batch, whether activations are checkpointed, and the most GiB that it may take. The bars of FLUX
# and SD3 are those of bench/flow_step.
FLOW = 16, [(1, False, None), (1, True, None)]
TRAINED = {"sdxl": (32, [(1, False, 20), (1, True, 10), (4, False, None)]), "flux": FLOW, "sd3-large": FLOW,
           "sd3-medium": FLOW}
PLAN_SHARE = 0.1  # how far what was planned may be from what was taken


def needed(words):
    """GiB that were planned."""
    size, unit = re.search(r"([\d.]+) (MiB|GiB) needed", words).groups()
    return float(size) / (1024 if unit == "MiB" else 1)


def train(args, rank, batch, checkpointing, bar):
    what = f"{args.model}, train {args.side}x{args.side}, batch {batch}{', gradient checkpointing' if checkpointing else ''}"
    output = args.dir / f"{args.model}.train-{batch}{'-checkpointing' if checkpointing else ''}"
    command = [args.wick, "train", "--model", args.dir / args.model, "--dataset", ROOT / "data" / "tiny-style",
               "--rank", rank, "--steps", STEPS, "--bf16", "--resolution", args.side, "--batch-size", batch,
               "--device", args.device]
    ran = trained(what, command + (["--gradient-checkpointing"] if checkpointing else []), output)
    if not ran:
        return False
    words, memory, steps = ran
    seconds = statistics.median(step["seconds"] for step in steps[2:])
    planned, taken = needed(words), memory.peak()
    ok = len(steps) == STEPS and abs(planned - taken) <= PLAN_SHARE * taken and (bar is None or taken < bar)
    return line(ok, f"{what}: {STEPS} steps, {seconds * 1e3:.0f} ms a step, loss {steps[-1]['loss']:.3f}, "
                    f"{taken:.2f} GiB{f' (bar {bar})' if bar else ''}, from the first step's end on "
                    f"{memory.peak(steps[0]['time']):.2f}, {planned:.2f} planned")


def generate(args):
    what = f"{args.model}, generate {args.side}x{args.side}, 4 steps"
    picture = args.dir / f"{args.model}.png"
    ran = run(what, [args.wick, "generate", "--model", args.dir / args.model, "--prompt", "a red circle", "--steps", 4,
                     "--width", args.side, "--height", args.side, "--bf16", "--device", args.device, "--out", picture,
                     "--overwrite"])
    if not ran:
        return False
    words, memory = ran
    rate = re.findall(r"[\d.]+ (?:steps/s|s/step)", words)
    return line(picture.stat().st_size > 0,
                f"{what}: {rate[-1] if rate else ''}, {picture.stat().st_size >> 10} KiB of PNG, "
                f"{memory.peak():.2f} GiB, {needed(words):.2f} planned")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--model", default="sdxl", choices=list(TRAINED))
    parser.add_argument("--wick", type=Path, default=ROOT / "build" / "release" / "bin" / "wick")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--side", type=int, default=1024)
    args = parser.parse_args()
    rank, runs = TRAINED[args.model]
    sys.exit(not all([*(train(args, rank, *of) for of in runs), generate(args)]))


if __name__ == "__main__":
    main()
