"""Blocks of quantised weights and gguf-py's values for them, for tests/core/blocks.cpp and tests/io/gguf.cpp.

blocks.safetensors: for each type T, `T.blocks` (bytes, U8) and `T.values` (F32, what they stand for): blocks with odd scales,
with single bits set or missing (of a quarter of the bytes in the k types), and random ones; for q8_0 and q4_0 also `T.input` (F32) and `T.encoded` (U8).
decoded.safetensors: the same of the types that Wick decodes as it reads them.
model.gguf: a file of gguf-py's own writer, with metadata of every type and a tensor of every type that Wick reads.
"""

import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

import golden

OUT = golden.ROOT / "gguf"
TYPES = [Type.Q8_0, Type.Q4_0, Type.Q4_K, Type.Q5_K, Type.Q6_K]
DECODED = [Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q2_K, Type.Q3_K, Type.IQ4_NL, Type.IQ4_XS, Type.MXFP4, Type.TQ1_0,
           Type.TQ2_0]
# The places of a block's scales (f16).
SCALES = {Type.Q8_0: [0], Type.Q4_0: [0], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.Q4_1: [0, 2],
          Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.IQ4_NL: [0], Type.IQ4_XS: [0],
          Type.MXFP4: [], Type.TQ1_0: [52], Type.TQ2_0: [64]}
HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x3C00, 0xBC00, 0x2E66, 0x7BFF]  # zeros, subnormals, ones, a fraction, the largest


def rng(name):
    return np.random.default_rng(list(name.encode()))


def set_half(block, at, bits):
    block[at:at + 2] = np.frombuffer(np.uint16(bits).tobytes(), np.uint8)


def plain(kind):
    """All bytes random, with scales of about one."""
    block = rng(kind.name).integers(0, 256, GGML_QUANT_SIZES[kind][1], np.uint8)
    for at in SCALES[kind]:
        set_half(block, at, 0x3C00 + at)
    return block


def blocks_of(kind):
    size = GGML_QUANT_SIZES[kind][1]
    numbers = [at for at in range(size) if not any(s <= at < s + 2 for s in SCALES[kind])]
    blocks = []
    for at in SCALES[kind]:
        for bits in HALVES:
            blocks.append(plain(kind))
            set_half(blocks[-1], at, bits)
    for at in numbers:  # one bit of each byte alone, and all but it
        for value in (1 << at % 8, 0xFF ^ 1 << at % 8):
            block = np.zeros(size, np.uint8) if value < 0x80 else np.full(size, 0xFF, np.uint8)
            for s in SCALES[kind]:
                set_half(block, s, 0x3555)
            block[at] = value
            blocks.append(block)
    chance = rng("random " + kind.name).integers(0, 256, (32, size), np.uint8)
    for block in chance:
        for at in SCALES[kind]:
            block[at + 1] &= 0xBF  # no infinity, no NaN
    return np.stack(blocks[::1 if size < 80 else 4] + list(chance))


def inputs(kind):
    """Rows that quantise: ordinary ones, ties between numbers, ties of magnitude, zeros, tiny and large ones."""
    x = rng("input " + kind.name).standard_normal((64, 32)).astype(np.float32)
    x[1] = 0
    x[2] = 1e-35
    x[3] *= 1e-6
    x[4] *= 1e4
    x[5] = np.arange(32) - 15.5
    x[6] = np.where(np.arange(32) % 2, 1, -1)
    x[7] = np.where(np.arange(32) % 2, -1, 1)
    x[8] = (np.arange(32) - 16) / 2
    x[9, 0] = 127
    x[9, 1:] = np.arange(31) - 15.5
    x[10] = -np.abs(x[10])
    x[11] = 0
    x[11, 31] = -3
    return x


def write_blocks(path, kinds):
    tensors = {}
    for kind in kinds:
        name = kind.name.lower()
        blocks = blocks_of(kind)
        tensors[f"{name}.blocks"] = torch.from_numpy(blocks)
        tensors[f"{name}.values"] = torch.from_numpy(dequantize(blocks, kind).astype(np.float32))
        if kind in (Type.Q8_0, Type.Q4_0):
            x = inputs(kind)
            tensors[f"{name}.input"] = torch.from_numpy(x)
            tensors[f"{name}.encoded"] = torch.from_numpy(quantize(x, kind))
    golden.save(OUT / path, tensors)


def write_file():
    path = OUT / "model.gguf"
    writer = GGUFWriter(path, "llama")
    kinds = GGUFValueType
    for kind, value in ((kinds.UINT8, 200), (kinds.INT8, -100), (kinds.UINT16, 60000), (kinds.INT16, -30000),
                        (kinds.UINT32, 4000000000), (kinds.INT32, -2000000000), (kinds.FLOAT32, 0.25),
                        (kinds.UINT64, 1 << 63), (kinds.INT64, -(1 << 62)), (kinds.FLOAT64, 0.1), (kinds.BOOL, True),
                        (kinds.STRING, "häuser")):
        writer.add_key_value(f"test.{kind.name.lower()}", value, kind)
    writer.add_array("test.strings", ["a", "", "ß"])
    writer.add_array("test.integers", [1, -2, 3])
    writer.add_array("test.numbers", [0.5, -1.5])
    writer.add_array("test.bools", [True, False])
    x = rng("file").standard_normal((3, 256)).astype(np.float32)
    writer.add_tensor("f32", x)
    writer.add_tensor("f16", x.astype(np.float16))
    writer.add_tensor("bf16", quantize(x, Type.BF16), raw_dtype=Type.BF16)
    writer.add_tensor("vector", x[0, :5].copy())
    for kind in TYPES:
        writer.add_tensor(kind.name.lower(), blocks_of(kind)[-24:].reshape(3, -1)[:, :GGML_QUANT_SIZES[kind][1] * 256
                          // GGML_QUANT_SIZES[kind][0]].copy(), raw_dtype=kind)
    writer.add_tensor("unknown", np.zeros((3, 84), np.uint8), raw_dtype=Type.Q2_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"gguf/model.gguf  {path.stat().st_size} bytes")


write_blocks("blocks.safetensors", TYPES)
write_blocks("decoded.safetensors", DECODED)
write_file()
