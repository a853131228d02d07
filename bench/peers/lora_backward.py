"""The LoRA half of a frozen linear's backward in eager PyTorch on the CPU, float32: dA and dB from dY and X.

    python bench/peers/lora_backward.py [--runs 2000] [--on-request]

Y = X·Wᵀ + s·(X·Aᵀ)·Bᵀ with X, dY [tokens, width], A [rank, width], B [width, rank]. One line of JSON a shape and way:
  matmul     S = X·Aᵀ at hand from the forward: dB = s·dYᵀ·S, dS = s·dY·B, dA = dSᵀ·X, written out
  recompute  the same with S computed anew
  addmm      as recompute, the scale inside of the products (torch.addmm with beta = 0)
  autograd   torch.autograd.grad through two F.linear and the scale (their forward not counted)
With --on-request it takes numbers from stdin instead, and answers each with the times of so many runs.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F

SHAPES = [(77, 768, 16), (256, 1536, 32), (256, 3072, 64)]


def measure(f, runs):
    for _ in range(max(20, runs // 10)):
        f()
    times = []
    for _ in range(runs):
        start = time.perf_counter_ns()
        f()
        times.append((time.perf_counter_ns() - start) / 1e6)
    return times


def ways(tokens, width, rank):
    x, dy = torch.randn(tokens, width), torch.randn(tokens, width)
    a, b = torch.randn(rank, width) * width**-0.5, torch.randn(width, rank) * rank**-0.5
    s = 0.5
    saved = x @ a.T
    zero = torch.zeros(())

    def from_saved(low):
        db = (dy.T @ low).mul_(s)
        ds = (dy @ b).mul_(s)
        return ds.T @ x, db

    def matmul():
        return from_saved(saved)

    def recompute():
        return from_saved(x @ a.T)

    def addmm():
        db = torch.addmm(zero, dy.T, x @ a.T, beta=0, alpha=s)
        ds = torch.addmm(zero, dy, b, beta=0, alpha=s)
        return ds.T @ x, db

    a_, b_ = a.clone().requires_grad_(), b.clone().requires_grad_()
    y = F.linear(F.linear(x, a_), b_) * s

    def autograd():
        return torch.autograd.grad(y, (a_, b_), dy, retain_graph=True)

    for way in matmul, recompute, addmm:
        for got, want in zip(way(), autograd()):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
    return [matmul, recompute, addmm, autograd]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--on-request", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    cases = [(shape, way) for shape in SHAPES for way in ways(*shape)]
    if args.on_request:
        print(f"torch {torch.__version__}, {args.threads} threads", flush=True)
        for line in sys.stdin:
            print(json.dumps({f"{t}x{w} r{r} {way.__name__}": measure(way, int(line)) for (t, w, r), way in cases}),
                  flush=True)
        return
    for (tokens, width, rank), way in cases:
        times = measure(way, args.runs)
        print(json.dumps({"bench": "lora_backward", "peer": f"torch {torch.__version__}", "way": way.__name__,
                          "tokens": tokens, "width": width, "rank": rank, "threads": args.threads, "runs": args.runs,
                          "median_us": round(statistics.median(times) * 1e3, 2),
                          "min_us": round(min(times) * 1e3, 2)}))


if __name__ == "__main__":
    main()
