"""PyTorch's side of the norms on a GPU: the rows of bench/norms_cuda.cpp that it has in one call or two, eager; those of
diffusion transformers, which are several calls, compiled as well.

    python3 bench/peers/norms_cuda.py

Each row is captured in a CUDA graph of several calls, on several sets of tensors in turn, and replayed; one line of JSON
a row, microseconds, medians. Group norms, with SiLU, run in both memory formats; the faster one counts.
"""

import json
import statistics
import sys

import torch
from torch.nn import functional as F

GROUP_NORMS = [((1, 320, 128, 128), torch.bfloat16), ((1, 640, 64, 64), torch.bfloat16),
               ((1, 1280, 32, 32), torch.bfloat16), ((4, 320, 128, 128), torch.bfloat16),
               ((1, 320, 128, 128), torch.float32)]
LAYER_NORMS = [(1, 16384, 1280), (1, 4096, 1280), (4, 4096, 640), (1, 77, 768)]
RMS_NORMS = [(1, 4096, 4096), (1, 8192, 4096)]
MODULATED = [(4, 4608, 3072), (1, 4608, 3072), (1, 512, 3072), (1, 4096, 2432), (1, 4096, 1536)]
QKV = [("FLUX single", 4608, 24, 128, True), ("FLUX double", 4096, 24, 128, True), ("FLUX text", 512, 24, 128, True),
       ("SD3.5 large", 4096, 38, 64, False), ("SD3.5 medium", 4096, 24, 64, False)]
GATED_ADDS = [(1, 4608, 3072), (1, 512, 3072), (1, 4096, 2432), (4, 4608, 3072)]
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


def rows(name, forward, sets, gradient="dx"):
    """The forward pass, and the gradient of x alone, as under frozen weights."""
    def backward(x, dy):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(forward(x), x, dy)

    with torch.no_grad():
        ahead = time_us(lambda x, _: forward(x), sets)
    return {name: ahead, f"{name} {gradient}": time_us(backward, sets) - ahead}


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


def both(name, forward, sets, gradient="dx"):
    """Eager and compiled; where compiling fails, without it."""
    eager, compiled = rows(name, forward, sets, gradient), {}
    try:
        compiled = rows(name, torch.compile(forward, dynamic=False), sets, gradient)
    except Exception as error:  # whatever the compiler throws
        print(f"{name}, compiled: {error}", file=sys.stderr)
    for row, us in eager.items():
        more = {"compiled_us": round(compiled[row], 2)} if row in compiled else {}
        print(json.dumps({"row": row, "us": round(us, 2)} | more), flush=True)


def qk_norm_rope(of, tokens, heads, width, turned):
    """As diffusers has it, with q, k and v as parts of one projection, turned in f32."""
    weights = [torch.randn(width, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    cos, sin = (torch.randn(1, tokens, 1, width, device="cuda") for _ in range(2))

    def turn(x):
        real, imaginary = x.unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack([-imaginary, real], dim=-1).flatten(3)
        return (x.float() * cos + turned.float() * sin).to(x.dtype)

    def forward(x):
        q, k, v = x.unbind(2)
        q, k = (F.rms_norm(part, (width,), weight, 1e-6) for part, weight in zip((q, k), weights))
        if turned:
            q, k = turn(q), turn(k)
        return torch.stack([q, k, v], dim=2)

    sets = several((1, tokens, 3, heads, width), torch.bfloat16)
    both(f"qk_norm_rope {of} [1, {tokens}, {heads}, {width}]", forward, sets)


def gated_add(shape):
    """x + gate * h; "dh" is the gradient of h."""
    gate = torch.randn(shape[0], 1, shape[-1], device="cuda", dtype=torch.bfloat16)
    residual = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    name = f"gated_add by bf16 [{', '.join(map(str, shape))}]"
    both(name, lambda h: residual + gate * h, several(shape, torch.bfloat16), "dh")


def modulated(shape):
    """LayerNorm without weights, times (1 + scale), plus shift."""
    scale, shift = (torch.randn(shape[0], 1, shape[-1], device="cuda", dtype=torch.bfloat16) for _ in range(2))
    both(f"layer_norm modulated bf16 [{', '.join(map(str, shape))}]",
         lambda x: F.layer_norm(x, shape[-1:], eps=1e-6) * (1 + scale) + shift, several(shape, torch.bfloat16))


if __name__ == "__main__":
    for of in GROUP_NORMS:
        group_norm(*of)
    for shape in LAYER_NORMS:
        row_norm("layer_norm", F.layer_norm, shape, True)
    for shape in RMS_NORMS:
        row_norm("rms_norm", F.rms_norm, shape, False)
    for shape in MODULATED:
        modulated(shape)
    for of in QKV:
        qk_norm_rope(*of)
    for shape in GATED_ADDS:
        gated_add(shape)
