"""The LoRA half of a frozen linear's backward in eager PyTorch on the CPU, float32: dA and dB from dY and X.

    python bench/peers/lora_backward.py [--runs 2000]

Y = X·Wᵀ + s·(X·Aᵀ)·Bᵀ with X, dY [tokens, width], A [rank, width], B [width, rank]. One line of JSON a shape and way:
  matmul     S = X·Aᵀ at hand from the forward: dB = s·dYᵀ·S, dS = s·dY·B, dA = dSᵀ·X, written out
  recompute  the same with S computed anew
  autograd   torch.autograd.grad through two F.linear and the scale (their forward not counted)
"""

import argparse
import json
import os
import statistics
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
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    for tokens, width, rank in SHAPES:
        x, dy = torch.randn(tokens, width), torch.randn(tokens, width)
        a, b = torch.randn(rank, width) * width**-0.5, torch.randn(width, rank) * rank**-0.5
        s = 0.5
        saved = x @ a.T

        def from_saved(low):
            db = (dy.T @ low).mul_(s)
            ds = (dy @ b).mul_(s)
            return ds.T @ x, db

        def matmul():
            return from_saved(saved)

        def recompute():
            return from_saved(x @ a.T)

        a_, b_ = a.clone().requires_grad_(), b.clone().requires_grad_()
        y = F.linear(F.linear(x, a_), b_) * s

        def autograd():
            return torch.autograd.grad(y, (a_, b_), dy, retain_graph=True)

        for got, want in zip(matmul(), autograd()):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
        for way in matmul, recompute, autograd:
            times = measure(way, args.runs)
            print(json.dumps({"bench": "lora_backward", "peer": f"torch {torch.__version__}", "way": way.__name__,
                              "tokens": tokens, "width": width, "rank": rank, "threads": args.threads,
                              "runs": args.runs, "median_us": round(statistics.median(times), 2),
                              "min_us": round(min(times), 2)}))


if __name__ == "__main__":
    main()
