"""Quantised rows by the programs that made the formats up, for tests/core/row_formats.cpp.

row_formats.safetensors: `x` (F32 [24, 320], with a row and a run of zeros), `nf4.codes` and `nf4.magnitudes` of bitsandbytes' quantize_4bit,
`nested.codes`, `nested.scales` and `nested.mean` of its double quantisation with `nested.values` (F32 [24, 320], what they stand for), `map`
(its signed dynamic map), `half` (F16, x), `int8.codes` and `int8.scales` of its int8_vectorwise_quant; `fp8.codes` and `fp8.scales` of
torch.float8_e4m3fn with a scale a row, `numbers` (F32) and `e4m3` (U8, as PyTorch rounds them).
"""

import torch
import bitsandbytes.functional as bnb
from safetensors.torch import save_file

import golden

ROWS, COLS = 24, 320


def main():
    torch.manual_seed(3)
    x = torch.randn(ROWS, COLS) * torch.rand(ROWS, 1) * 3
    x[3] = 0
    x[5, 64:128] = 0
    tensors = {"x": x, "half": x.half()}
    codes, state = bnb.quantize_4bit(x, blocksize=64, quant_type="nf4")
    tensors |= {"nf4.codes": codes.flatten(), "nf4.magnitudes": state.absmax}
    codes, state = bnb.quantize_4bit(x, blocksize=64, quant_type="nf4", compress_statistics=True)
    tensors |= {"nested.codes": state.absmax, "nested.scales": state.state2.absmax, "nested.mean": state.offset.reshape(1),
                "nested.values": bnb.dequantize_4bit(codes, state), "map": bnb.create_dynamic_map(signed=True)}
    codes, scales, _ = bnb.int8_vectorwise_quant(x.half())
    tensors |= {"int8.codes": codes.view(torch.uint8), "int8.scales": scales}
    scales = x.abs().amax(1) / 448
    scales[scales == 0] = 1
    fp8 = (x / scales[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    tensors |= {"fp8.codes": fp8.view(torch.uint8), "fp8.scales": scales}
    numbers = torch.randint(-(1 << 31), 1 << 31, (4096,), dtype=torch.int64).to(torch.int32).view(torch.float32)
    numbers = torch.cat([numbers[numbers.isfinite()], torch.randn(4096), torch.randn(4096) * 2.0 ** -7,
                         (torch.arange(0, 1 << 14).float() + 0.5) * 2.0 ** -11, torch.arange(0, 512) * 2.0 ** -11])
    tensors |= {"numbers": numbers, "e4m3": numbers.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)}
    save_file({name: value.contiguous() for name, value in tensors.items()}, golden.ROOT / "row_formats.safetensors")


if __name__ == "__main__":
    main()
