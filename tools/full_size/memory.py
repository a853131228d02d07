#!/usr/bin/env python3
"""`wick train --memory SIZE` on write.py's and write_llm.py's models: does it stay within SIZE, and what does that cost?

    tools/full_size/memory.py DIR --model flux|sdxl|sd3-large|sd3-medium|7b|nemo [--wick build/release/bin/wick] [--seconds 500]

A line for each SIZE, "ok: …", "missed: …" (a bar of speed) or "FAILED: …", and 1 if any failed: the largest memory that
nvidia-smi saw over 20 steps and a save, what was planned, and the step beside bf16's with all blocks recomputed. Where
the base is bf16 the losses must be the same.
"""

import argparse
import json
import re
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from run_llm import words
from watched import line, trained

ROOT = Path(__file__).resolve().parents[2]
STEPS = 20
TOKENS = 2048  # a row of text


@dataclass
class Run:
    bars: dict  # of each SIZE in GiB, of its step
    targets: list = field(default_factory=list)
    flags: dict = field(default_factory=dict)  # of a SIZE
    is_text: bool = False


FLUX_TARGETS = [f"transformer.*{part}" for part in ("attn*", "mlp*", "linear1", "linear2")]
RUNS = {
    "flux": Run({24: 1.00, 16: 1.02, 12: 1.05, 8: 1.10, 6: 1.20}, targets=FLUX_TARGETS),
    "sdxl": Run({6: 1.10}),
    "sd3-large": Run({9: 1.10}),
    "sd3-medium": Run({5: 1.10}),
    "7b": Run({6: 1.10, 8: 1.10}, flags={6: ["--quantize", "nf4-double"], 8: ["--quantize", "int8"]}, is_text=True),
    "nemo": Run({11: 1.10}, is_text=True),
}


def data(args):
    if not RUNS[args.model].is_text:
        return ["--dataset", ROOT / "data" / "tiny-style", "--resolution", args.side]
    rows = args.dir / "words.jsonl"
    rows.write_text("".join(json.dumps({"text": words(TOKENS - i)}) + "\n" for i in range(16)), encoding="utf-8")
    return ["--dataset", rows, "--sequence-length", TOKENS]


def train(args, what, flags):
    """The median step in ms, the peak in GiB, what was said, and the losses; None where it failed."""
    targets = RUNS[args.model].targets
    output = args.dir / f"{args.model}.{what.replace(' ', '-')}"
    command = [args.wick, "train", "--model", args.dir / args.model, *data(args), "--rank", 16, "--steps", STEPS,
               "--save-every", STEPS, "--device", args.device]
    ran = trained(what, command + (["--targets", *targets] if targets else []) + flags, output)
    if not ran:
        return None
    said, memory, steps = ran
    return statistics.median(step["seconds"] for step in steps[5:]) * 1e3, memory.peak(), said, [step["loss"] for step in steps]


def told(said):
    chosen = re.search(r"--memory [^:]*: ([\d.]+) GiB with (the base[^;]*)", said)
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
    kind = RUNS[args.model]
    bars = kind.bars
    name = f"{args.model} {TOKENS} tokens" if kind.is_text else f"{args.model} {args.side}x{args.side}"
    beside = train(args, f"{name} recomputed", ["--bf16", "--gradient-checkpointing"])
    if beside is None:
        sys.exit(1)
    line(True, f"{name}, bf16, all blocks recomputed: {beside[0]:.0f} ms a step, {beside[1]:.2f} GiB; loss {beside[3][0]:.6f}")
    ok = True
    for size in args.sizes or bars:
        if time.monotonic() - begin > args.seconds:
            break
        ran = train(args, f"{name} {size:g} GiB", ["--memory", f"{size:g}GiB", *kind.flags.get(size, [])])
        if ran is None:
            ok = False
            continue
        step, peak, said, losses = ran
        planned, way = told(said)
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
