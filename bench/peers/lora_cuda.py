"""PyTorch's side of the LoRA linear on a GPU: the rows of bench/lora_cuda.cpp, as the best composition of cuBLAS calls.

    python3 bench/peers/lora_cuda.py

bf16; each row is captured in a CUDA graph of several calls and replayed; one line of JSON a row, microseconds, medians.
"""

import json
import statistics

import torch

GRADIENTS = [(77, 768, 16), (256, 1536, 32), (256, 3072, 64), (4096, 1280, 32), (4608, 3072, 64)]
ADAPTERS = [(tokens, width, 8) for tokens in (1, 32) for width in (512, 1024, 2048, 4096)]
LINEARS = [
    (77, 768, 768, 16),
    (256, 1536, 1536, 32),
    (256, 3072, 3072, 64),
    (4096, 640, 640, 32),
    (4096, 640, 640, 32, 3),
    (1024, 1280, 1280, 32),
    (1024, 1280, 1280, 32, 3),
    (1024, 1280, 10240, 32),
    (1024, 5120, 1280, 32),
    (4608, 3072, 3072, 16),
    (4096, 4096, 4096, 16),
    (4608, 3072, 9216, 16),
    (4096, 4096, 14336, 16),
    (4096, 14336, 4096, 16),
]
SCALE = 0.5


def normal(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def time_us(f, calls=20, warm_up=5, replays=30):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            f()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for i in range(warm_up + replays):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= warm_up:
            times.append(start.elapsed_time(end) * 1000 / calls)
    return statistics.median(times)


def gradients(tokens, width, rank):
    x, dy, down, up = normal(tokens, width), normal(tokens, width), normal(rank, width), normal(width, rank)

    def f():
        s = x @ down.T
        ds = SCALE * (dy @ up)
        return SCALE * (dy.T @ s), ds.T @ x

    print(json.dumps({"row": f"gradients {tokens}x{width} r{rank}", "us": round(time_us(f), 2)}), flush=True)


def adapter(tokens, width, rank):
    x, y, down, up = normal(tokens, width), normal(tokens, width), normal(rank, width), normal(width, rank)
    us = time_us(lambda: y.addmm_(x @ down.T, up.T, alpha=1e-6))
    print(json.dumps({"row": f"adapter {tokens}x{width} r{rank}", "us": round(us, 2)}), flush=True)


def linear(tokens, inputs, width, rank, layers=1):
    outputs = width * layers
    x, dy, w = normal(tokens, inputs), normal(tokens, outputs), normal(outputs, inputs)
    down, ups = normal(rank * layers, inputs), [normal(width, rank) for _ in range(layers)]
    calls = 4 if tokens * inputs * outputs > 1e10 else 20

    def forward():
        s, y = x @ down.T, x @ w.T
        for columns, low, up in zip(y.split(width, 1), s.split(rank, 1), ups):
            columns.addmm_(low, up.T, alpha=SCALE)
        return y, s

    def backward(s):
        parts = list(zip(dy.split(width, 1), s.split(rank, 1), ups))
        each = [torch.mul(columns @ up, SCALE) for columns, _, up in parts]
        ds = torch.cat(each, 1) if layers > 1 else each[0]
        return torch.addmm(dy @ w, ds, down), ds.T @ x, [SCALE * (columns.T @ low) for columns, low, _ in parts]

    row = {
        "row": f"linear {tokens}x{inputs}->{f'{layers}x' if layers > 1 else ''}{width} r{rank}",
        "frozen": time_us(lambda: x @ w.T, calls),
        "frozen_both": time_us(lambda: (x @ w.T, dy @ w), calls),
        "lora": time_us(forward, calls),
        "lora_both": time_us(lambda: backward(forward()[1]), calls),
    }
    print(json.dumps({k: v if k == "row" else round(v, 2) for k, v in row.items()}), flush=True)


if __name__ == "__main__":
    for shape in GRADIENTS:
        gradients(*shape)
    for shape in ADAPTERS:
        adapter(*shape)
    for shape in LINEARS:
        linear(*shape)
