#!/usr/bin/env python3
"""`wick train --memory SIZE` on write.py's models: does it stay within SIZE, and what does that cost?

    tools/full_size/memory.py DIR --model flux|sdxl|sd3-large|sd3-medium [--wick build/release/bin/wick] [--seconds 500]

A line for each SIZE, "ok: …", "missed: …" (a bar of speed) or "FAILED: …", and 1 if any failed: the largest memory that
nvidia-smi saw over 20 steps and a save, what was planned, and the step beside bf16's with all blocks recomputed. Where
the base is bf16 the losses must be the same.
"""

import argparse
import re
import statistics
import sys
import time
from pathlib import Path

from watched import line, trained

ROOT = Path(__file__).resolve().parents[2]
STEPS = 20
# What the LoRA is on, and of each SIZE in GiB the bar of its step.
RUNS = {
    "flux": ([f"transformer.*{part}" for part in ("attn*", "mlp*", "linear1", "linear2")], {24: 1.00, 16: 1.02, 12: 1.05, 8: 1.10, 6: 1.20}),
    "sdxl": ([], {6: 1.10}),
    "sd3-large": ([], {9: 1.10}),
    "sd3-medium": ([], {5: 1.10}),
}


def train(args, what, flags):
    """The median step in ms, the peak in GiB, what was said, and the losses; None where it failed."""
    targets, _ = RUNS[args.model]
    output = args.dir / f"{args.model}.{what.replace(' ', '-')}"
    command = [args.wick, "train", "--model", args.dir / args.model, "--dataset", ROOT / "data" / "tiny-style", "--rank", 16,
               "--steps", STEPS, "--save-every", STEPS, "--resolution", args.side, "--device", args.device]
    ran = trained(what, command + (["--targets", *targets] if targets else []) + flags, output)
    if not ran:
        return None
    words, memory, steps = ran
    return statistics.median(step["seconds"] for step in steps[5:]) * 1e3, memory.peak(), words, [step["loss"] for step in steps]


def told(words):
    chosen = re.search(r"--memory [^:]*: ([\d.]+) GiB with (the base[^;]*)", words)
    return float(chosen[1]), chosen[2].rstrip(".")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--model", default="flux", choices=list(RUNS))
    parser.add_argument("--wick", type=Path, default=ROOT / "build" / "release" / "bin" / "wick")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--sizes", type=float, nargs="*", help="GiB [those with a bar]")
    parser.add_argument("--seconds", type=float, default=500, help="nothing begins after these")
    args = parser.parse_args()
    begin = time.monotonic()
    bars = RUNS[args.model][1]
    name = f"{args.model} {args.side}x{args.side}"
    beside = train(args, f"{name} recomputed", ["--bf16", "--gradient-checkpointing"])
    if beside is None:
        sys.exit(1)
    line(True, f"{name}, bf16, all blocks recomputed: {beside[0]:.0f} ms a step, {beside[1]:.2f} GiB; loss {beside[3][0]:.6f}")
    ok = True
    for size in args.sizes or bars:
        if time.monotonic() - begin > args.seconds:
            break
        ran = train(args, f"{name} {size:g} GiB", ["--memory", f"{size:g}GiB"])
        if ran is None:
            ok = False
            continue
        step, peak, words, losses = ran
        planned, way = told(words)
        bar = bars.get(size)
        fits = peak <= size and (not way.startswith("the base in bf16") or losses == beside[3])
        verdict = "FAILED" if not fits else "ok" if bar is None or step <= bar * beside[0] else "missed"
        print(f"{verdict}: {name} in {size:g} GiB: {way}; {peak:.2f} GiB, {planned:.1f} planned; {step:.0f} ms a step, "
              f"{step / beside[0]:.3f} of recomputed bf16{f' (bar {bar:.2f})' if bar else ''}; "
              f"loss {losses[0]:.6f}{', the same in all steps' if losses == beside[3] else ''}", flush=True)
        ok = ok and fits
    sys.exit(not ok)


if __name__ == "__main__":
    main()
