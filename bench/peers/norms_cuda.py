"""PyTorch's side of the norms on a GPU: the rows of bench/norms_cuda.cpp that it has in one call or two, eager.

    python3 bench/peers/norms_cuda.py

Each row is captured in a CUDA graph of several calls, on several sets of tensors in turn, and replayed; one line of JSON
a row, microseconds, medians. Group norms, with SiLU, run in both memory formats; the faster one counts.
"""

import json
import statistics

import torch
from torch.nn import functional as F

GROUP_NORMS = [((1, 320, 128, 128), torch.bfloat16), ((1, 640, 64, 64), torch.bfloat16),
               ((1, 1280, 32, 32), torch.bfloat16), ((4, 320, 128, 128), torch.bfloat16),
               ((1, 320, 128, 128), torch.float32)]
LAYER_NORMS = [(1, 16384, 1280), (1, 4096, 1280), (4, 4096, 640), (1, 77, 768)]
RMS_NORMS = [(1, 4096, 4096), (1, 8192, 4096)]
NAMES = {torch.bfloat16: "bf16", torch.float32: "f32"}


def time_us(f, sets, calls=24, warm_up=3, replays=20):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for of in sets:
            f(*of)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            f(*sets[i % len(sets)])
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


def emit(row, us):
    print(json.dumps({"row": row, "us": round(us, 2)}), flush=True)


def several(shape, dtype, memory_format=torch.contiguous_format):
    """Sets of x and dy: more than the L2 cache holds."""
    x = torch.empty(shape, device="cuda", dtype=dtype, memory_format=memory_format)
    count = max(2, min(16, int(150e6 / (3 * x.numel() * x.element_size())) + 1))
    return [tuple(torch.empty_like(x).normal_() for _ in range(2)) for _ in range(count)]


def rows(name, forward, sets):
    """The forward pass, and the gradient of x alone, as under frozen weights."""
    def backward(x, dy):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(forward(x), x, dy)

    with torch.no_grad():
        ahead = time_us(lambda x, _: forward(x), sets)
    return {name: ahead, f"{name} dx": time_us(backward, sets) - ahead}


def group_norm(shape, dtype):
    w, b = (torch.randn(shape[1], device="cuda", dtype=dtype) for _ in range(2))
    batch, channels, height, width = shape
    name = f"group_norm {NAMES[dtype]} [{batch}, {height * width}, {channels}]"
    formats = [rows(name, lambda x: F.silu(F.group_norm(x, 32, w, b)), several(shape, dtype, memory_format))
               for memory_format in (torch.contiguous_format, torch.channels_last)]
    for row in formats[0]:
        emit(row, min(f[row] for f in formats))


def row_norm(kind, norm, shape, with_bias):
    parameters = [torch.randn(shape[-1], device="cuda", dtype=torch.bfloat16) for _ in range(1 + with_bias)]
    found = rows(f"{kind} bf16 [{', '.join(map(str, shape))}]", lambda x: norm(x, shape[-1:], *parameters),
                 several(shape, torch.bfloat16))
    for row, us in found.items():
        emit(row, us)


if __name__ == "__main__":
    for of in GROUP_NORMS:
        group_norm(*of)
    for shape in LAYER_NORMS:
        row_norm("layer_norm", F.layer_norm, shape, True)
    for shape in RMS_NORMS:
        row_norm("rms_norm", F.rms_norm, shape, False)
