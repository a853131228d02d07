#!/usr/bin/env python3
"""`wick train` and `wick generate` on what write.py wrote: do they run, how fast, and in how much memory?

    tools/full_size/run.py DIR [--wick build/release/bin/wick] [--side 1024]

A line of each, "ok: what: result" or "FAILED: …", and 1 if any failed. Memory is the largest that nvidia-smi saw taken
on the whole device while the program ran, above what was taken before: weights, context, libraries and all.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEPS = 6
# Batch, whether activations are checkpointed, and the most GiB that it may take.
TRAINED = [(1, False, 20), (1, True, 10), (4, False, None)]
PLAN_SHARE = 0.1  # how far what was planned may be from what was taken


class DeviceMemory:
    """What is taken while the block runs, above what was taken when it began."""

    QUERY = ["nvidia-smi", "--id=0", "--query-gpu=timestamp,memory.used", "--format=csv,noheader,nounits"]

    def __enter__(self):
        self.readings = []  # seconds since 1970, MiB
        self.before = self.reading(subprocess.check_output(self.QUERY, text=True))[1]
        self.watcher = subprocess.Popen(self.QUERY + ["--loop-ms=20"], stdout=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        return self

    @staticmethod
    def reading(text):
        at, mib = text.split(", ")
        return datetime.strptime(at, "%Y/%m/%d %H:%M:%S.%f").timestamp(), int(mib)

    def read(self):
        self.readings.extend(self.reading(text) for text in self.watcher.stdout)

    def __exit__(self, *_):
        self.watcher.terminate()
        self.reader.join()

    def peak(self, since=0.0):
        """GiB"""
        return (max((mib for at, mib in self.readings if at >= since), default=self.before) - self.before) / 1024


def line(ok, text):
    print(f"{'ok' if ok else 'FAILED'}: {text}", flush=True)
    return ok


def run(what, command):
    """What the program printed, and the memory that it took; None if it failed."""
    words = [str(word) for word in command]
    print("$", *words, flush=True)
    with DeviceMemory() as memory:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, flush=True)
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["nothing said"])[-1]
        line(False, f"{what}: ended with {done.returncode}: {last}")
        return None
    return done.stdout, memory


def train(args, batch, checkpointing, bar):
    what = f"train {args.side}x{args.side}, batch {batch}{', gradient checkpointing' if checkpointing else ''}"
    output = args.dir / f"train-{batch}{'-checkpointing' if checkpointing else ''}"
    shutil.rmtree(output, ignore_errors=True)  # of an earlier call: a run writes over none
    command = [args.wick, "train", "--model", args.dir / "sdxl", "--dataset", ROOT / "data" / "tiny-style",
               "--rank", 32, "--steps", STEPS, "--bf16", "--resolution", args.side, "--batch-size", batch,
               "--device", args.device, "--output", output]
    ran = run(what, command + (["--gradient-checkpointing"] if checkpointing else []))
    if not ran:
        return False
    words, memory = ran
    steps = [json.loads(text) for text in (output / "metrics.jsonl").read_text().splitlines()]
    seconds = statistics.median(step["seconds"] for step in steps[2:])
    planned = float(re.search(r"([\d.]+) GiB needed", words)[1])
    taken = memory.peak()
    ok = len(steps) == STEPS and abs(planned - taken) <= PLAN_SHARE * taken and (bar is None or taken < bar)
    return line(ok, f"{what}: {STEPS} steps, {seconds * 1e3:.0f} ms a step, loss {steps[-1]['loss']:.3f}, "
                    f"{taken:.2f} GiB{f' (bar {bar})' if bar else ''}, from the first step's end on "
                    f"{memory.peak(steps[0]['time']):.2f}, {planned:.2f} planned")


def generate(args):
    what = f"generate {args.side}x{args.side}, 4 steps"
    picture = args.dir / "picture.png"
    ran = run(what, [args.wick, "generate", "--model", args.dir / "sdxl", "--prompt", "a red circle", "--steps", 4,
                     "--width", args.side, "--height", args.side, "--bf16", "--device", args.device, "--out", picture])
    if not ran:
        return False
    words, memory = ran
    rate = re.findall(r"[\d.]+ (?:steps/s|s/step)", words)
    return line(picture.stat().st_size > 0,
                f"{what}: {rate[-1] if rate else ''}, {picture.stat().st_size >> 10} KiB of PNG, "
                f"{memory.peak():.1f} GiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--wick", type=Path, default=ROOT / "build" / "release" / "bin" / "wick")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--side", type=int, default=1024)
    args = parser.parse_args()
    sys.exit(not all([*(train(args, *of) for of in TRAINED), generate(args)]))


if __name__ == "__main__":
    main()
