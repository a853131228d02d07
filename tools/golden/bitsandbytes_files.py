"""Files that bitsandbytes' modules, transformers and diffusers save, with what bitsandbytes makes of them, for tests/nn/bitsandbytes.cpp.

    python tools/golden/bitsandbytes_files.py      writes tests/golden/bitsandbytes/

layers.safetensors: the states of linear layers, a format each, and values.safetensors: their weights as bitsandbytes dequantises them to float32;
fp4.safetensors and fp4.values.safetensors: the same of FP4.
llama/ and flux/: a tiny transformers folder (NF4 with double quantisation) and a diffusers transformer (NF4), with a case of `wick forward` each:
case.in.safetensors, and case.out.safetensors from the dequantised weights in float32.
flux/plain/: the same transformer's weights in bfloat16, and quantised.json: the SHA-256 of what bitsandbytes and ComfyUI's kernels
(comfy-kitchen) make of the matrices of its blocks, by format and name.
tiny-llm.json: the same of some matrices of models/tiny-llm, its fp8 by compressed-tensors.
"""

import copy
import hashlib
import json
import shutil
from pathlib import Path

import bitsandbytes as bnb
import diffusers
import torch
import transformers
from comfy_kitchen.tensor import QuantizedTensor
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams
from diffusers import FluxTransformer2DModel
from diffusers.quantizers.bitsandbytes import BnB4BitDiffusersQuantizer
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

import flux
import llama
from golden import ROOT, randn, rng, save

OUT = ROOT / "bitsandbytes"
REPOSITORY = Path(__file__).resolve().parents[2]

# Name of a layer: rows, columns, and what Params4bit is told.
FOUR_BITS = {
    "plain": (6, 128, dict(compress_statistics=False)),
    "double": (24, 832, dict(compress_statistics=True)),  # 312 magnitudes: two scales
    "wide": (4, 256, dict(compress_statistics=False, blocksize=128)),
    "wide_double": (4, 256, dict(compress_statistics=True, blocksize=128)),
    "straddling": (5, 33, dict(compress_statistics=True)),  # blocks across rows, and half a byte too much
    "as_bf16": (6, 128, dict(compress_statistics=False, quant_storage=torch.bfloat16)),
}


def values_of(weight):
    """In float32, whatever dtype the weight had before."""
    state = copy.copy(weight.quant_state)
    state.dtype = torch.float32
    return bnb.functional.dequantize_4bit(weight.data, state)


def in_four_bits(quant_type, names):
    """The states of linear layers, and their values."""
    state, values = {}, {}
    for name in names:
        rows, cols, options = FOUR_BITS[name]
        x = randn(f"bnb {name}", rows, cols) * torch.rand(rows, 1, generator=rng(name)) * 3
        x[1] = 0
        layer = bnb.nn.Linear4bit(cols, rows, bias=False, quant_type=quant_type)
        layer.weight = bnb.nn.Params4bit(x, requires_grad=False, quant_type=quant_type, **options)
        layer = layer.to("cpu")
        state |= {f"{name}.{key}": value for key, value in layer.state_dict().items()}
        values[f"{name}.weight"] = values_of(layer.weight)
    return state, values


def fp4_layers():
    state, values = in_four_bits("fp4", ["plain", "double", "straddling"])
    save(OUT / "fp4.safetensors", state, {"format": "pt"})
    save(OUT / "fp4.values.safetensors", values)


def layers():
    state, values = in_four_bits("nf4", FOUR_BITS)
    layer = bnb.nn.Linear8bitLt(40, 7, bias=False, has_fp16_weights=False)
    layer.weight = bnb.nn.Int8Params(randn("bnb int8", 7, 40), requires_grad=False, has_fp16_weights=False)
    layer = layer.to("cpu")
    if layer.weight.dtype != torch.int8:  # only moving to a device quantises
        codes, scales, _ = bnb.functional.int8_vectorwise_quant(layer.weight.data.half())
        layer.weight.data, layer.weight.SCB = codes, scales
    state |= {f"int8.{key}": value for key, value in layer.state_dict().items()}
    values["int8.weight"] = bnb.functional.int8_vectorwise_dequant(layer.weight.data, layer.weight.SCB)
    save(OUT / "layers.safetensors", state, {"format": "pt"})
    save(OUT / "values.safetensors", values)


def dequantised(quantised, plain):
    """The weights of `quantised` in the module `plain`."""
    weights = quantised.state_dict()
    for name, module in quantised.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            weights[name + ".weight"] = values_of(module.weight)
    wanted = plain.state_dict()
    plain.load_state_dict({name: weights[name].float() for name in wanted})
    return plain.eval().requires_grad_(False)


def language_model():
    folder = OUT / "llama"
    config = LlamaConfig(**llama.SIZES | dict(num_hidden_layers=1, hidden_size=64, intermediate_size=72), num_key_value_heads=2)
    plain = llama.randomise(LlamaForCausalLM(config), "bnb llama")
    plain.save_pretrained(folder / "plain")
    quantised = LlamaForCausalLM.from_pretrained(folder / "plain", device_map="cpu", quantization_config=transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.float32))
    shutil.rmtree(folder / "plain")
    quantised.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    x = llama.ids("bnb llama ids", 2, 11)
    save(OUT / "llama/case.in.safetensors", {"input_ids": x})
    save(OUT / "llama/case.out.safetensors", {"logits": dequantised(quantised, plain)(x).logits})


def in_bitsandbytes(name, x):
    """By format: the tensors that stand for a matrix."""
    layer = name.removesuffix(".weight")
    formats = {}
    for kind, nested in ("nf4", False), ("nf4-double", True):
        weight = bnb.nn.Params4bit(x, requires_grad=False, quant_type="nf4", compress_statistics=nested).to("cpu")
        state = weight.quant_state.as_dict(packed=True)
        formats[kind] = {name: weight.data} | {f"{name}.{key}": value for key, value in state.items()}
    codes, scales, _ = bnb.functional.int8_vectorwise_quant(x.half())
    formats["int8"] = {name: codes, layer + ".SCB": scales, layer + ".weight_format": torch.tensor(0, dtype=torch.uint8)}
    return formats


def in_formats(name, x):
    layer = name.removesuffix(".weight")
    formats = in_bitsandbytes(name, x)
    formats["fp8"] = QuantizedTensor.from_float(x.float(), "TensorCoreFP8Layout", scale="recalculate").state_dict(name)
    formats["fp8"][layer + ".comfy_quant"] = torch.tensor(list(json.dumps({"format": "float8_e4m3fn"}).encode()), dtype=torch.uint8)
    return formats


def in_formats_of_transformers(name, x):
    formats = in_bitsandbytes(name, x)
    args = QuantizationArgs(num_bits=8, type="float", strategy="channel", symmetric=True)
    scales, zeros = calculate_qparams(x.float().amin(1, keepdim=True), x.float().amax(1, keepdim=True), args)
    codes = quantize(x.float(), scales, zeros, args, dtype=torch.float8_e4m3fn)
    formats["fp8"] = {name: codes, name.removesuffix("weight") + "weight_scale": scales}
    return formats


def add_hashes(all, formats):
    for kind, tensors in formats.items():
        for key, value in tensors.items():
            data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            all.setdefault(kind, {})[key] = [list(value.shape), hashlib.sha256(data).hexdigest()]


def quantised_language_model():
    weights, all = load_file(REPOSITORY / "models/tiny-llm/model.safetensors"), {}
    for layer in "q_proj", "k_proj", "v_proj":
        name = f"model.layers.0.self_attn.{layer}.weight"
        formats = in_formats_of_transformers(name, weights[name])
        if layer != "k_proj":  # the CPU kernel's table misses the nearest code of one magnitude in 700, by one code
            del formats["nf4-double"][name + ".absmax"]
        add_hashes(all, formats)
    (OUT / "tiny-llm.json").write_text(json.dumps(all) + "\n")


def hashes(weights):
    all = {}
    for name, x in weights.items():
        outer = name == "proj_out.weight"  # which diffusers cannot tell from the blocks'
        if outer or ("transformer_blocks." in name and x.dim() == 2 and ".linear." not in name):
            formats = in_formats(name, x)
            if outer:
                del formats["fp8"]
            add_hashes(all, formats)
    return all


def transformer():
    folder = OUT / "flux"
    sizes = flux.MODELS["schnell"] | dict(num_attention_heads=2)
    plain = flux.randomise(FluxTransformer2DModel(**sizes), "bnb flux")
    narrow = copy.deepcopy(plain).bfloat16()
    narrow.save_pretrained(folder / "plain/transformer")
    (folder / "plain/quantised.json").write_text(json.dumps(hashes(narrow.state_dict())) + "\n")
    for model in folder, folder / "plain":
        (model / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}) + "\n")
    plain.save_pretrained(folder / "f32")
    BnB4BitDiffusersQuantizer.validate_environment = lambda *args, **options: None  # it asks for a GPU
    quantised = FluxTransformer2DModel.from_pretrained(
        folder / "f32", device_map="cpu", quantization_config=diffusers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32))
    shutil.rmtree(folder / "f32")
    quantised.save_pretrained(folder / "transformer")
    config = json.loads((folder / "transformer/config.json").read_text())
    del config["_name_or_path"]
    (folder / "transformer/config.json").write_text(json.dumps(config, indent=2) + "\n")
    x = {"hidden_states": randn("bnb flux tokens", 1, 6, sizes["in_channels"]),
         "encoder_hidden_states": randn("bnb flux text", 1, 3, sizes["joint_attention_dim"]),
         "pooled_projections": randn("bnb flux pooled", 1, sizes["pooled_projection_dim"]),
         "timestep": torch.tensor([0.625]), "img_ids": torch.zeros(6, 3), "txt_ids": torch.zeros(3, 3)}
    save(OUT / "flux/case.in.safetensors", x)
    save(OUT / "flux/case.out.safetensors", {"sample": dequantised(quantised, plain)(**x).sample})


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    layers()
    fp4_layers()
    language_model()
    quantised_language_model()
    transformer()
    for path in sorted(OUT.rglob("*")):
        print(path.relative_to(OUT), path.stat().st_size)


if __name__ == "__main__":
    main()
