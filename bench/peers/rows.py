"""What the peers on a GPU share: a line of JSON a row, and times by CUDA events."""

import itertools
import json

import torch


def emit(**row):
    print(json.dumps(row), flush=True)


def timed(f, runs):
    """Milliseconds of each run, on the device."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]
    marks[0].record()
    for mark in marks[1:]:
        f()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
