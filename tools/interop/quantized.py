"""What ComfyUI's own loader makes of the quantised files of models of pictures that `wick convert --dtype` writes.

    python tools/interop/quantized.py --wick build/release/bin/wick --comfyui ~/ComfyUI-0.3.64 --comfyui ~/ComfyUI

writes FLUX.1 of one block each at full width (a width that every ComfyUI knows; 1 GB) with random weights, converts it to every kind, and
loads each file with every checkout, in a process of its own: comfy.sd.load_diffusion_model() and one call of the model in f32. A row has the
difference of the output from that of the file in bf16, relative to its largest value, and what `wick convert` told before it wrote. It ends
with 1 where ComfyUI does otherwise than told. With Python's torchaudio missing, ComfyUI's newer versions do not start.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WIDTH = 3072
KINDS = {"fp8": ["--dtype", "fp8"], "fp8, comfy_quant": ["--dtype", "fp8", "--fp8-layout", "comfy_quant"], "int8": ["--dtype", "int8"],
         "nf4": ["--dtype", "nf4"], "nf4-double": ["--dtype", "nf4-double"]}
RIGHT = 0.2  # e4m3 has three bits: what the codes lose in two blocks; noise is 1 and more


def write_model(path):
    generator, tensors = torch.Generator().manual_seed(0), {}

    def linear(name, out, inputs, size=1.0):
        weight = torch.randn(out, inputs, generator=generator) * size / inputs**0.5
        tensors[name + ".weight"] = weight.to(torch.bfloat16)
        tensors[name + ".bias"] = (torch.randn(out, generator=generator) * 0.02).to(torch.bfloat16)

    def norms(name):
        for kind in ("query_norm", "key_norm"):
            tensors[f"{name}.{kind}.scale"] = torch.ones(128, dtype=torch.bfloat16)

    linear("img_in", WIDTH, 64)
    linear("txt_in", WIDTH, 4096)
    for name, inputs in (("time_in", 256), ("vector_in", 768), ("guidance_in", 256)):
        linear(name + ".in_layer", WIDTH, inputs)
        linear(name + ".out_layer", WIDTH, WIDTH)
    for stream in ("img", "txt"):
        block = f"double_blocks.0.{stream}_"
        linear(block + "mod.lin", 6 * WIDTH, WIDTH, 0.3)
        linear(block + "attn.qkv", 3 * WIDTH, WIDTH)
        linear(block + "attn.proj", WIDTH, WIDTH)
        linear(block + "mlp.0", 4 * WIDTH, WIDTH)
        linear(block + "mlp.2", WIDTH, 4 * WIDTH)
        norms(block + "attn.norm")
    linear("single_blocks.0.linear1", 7 * WIDTH, WIDTH)
    linear("single_blocks.0.linear2", WIDTH, 5 * WIDTH)
    linear("single_blocks.0.modulation.lin", 3 * WIDTH, WIDTH, 0.3)
    norms("single_blocks.0.norm")
    linear("final_layer.linear", 64, WIDTH, 0.02)  # small ones, which fp8 without a scale rounds to nothing
    linear("final_layer.adaLN_modulation.1", 2 * WIDTH, WIDTH, 0.3)
    save_file(tensors, path)


def run_comfyui(folder, model, output):
    """In a process of its own: prints what is wrong, or writes the output of the model."""
    sys.path.insert(0, str(folder))
    sys.argv = [sys.argv[0], "--cpu"]
    import comfy.options
    comfy.options.enable_args_parsing()
    import comfy.sd

    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(shape, generator=generator)
    patcher = comfy.sd.load_diffusion_model(str(model), model_options={})
    network = patcher.model.diffusion_model
    inputs = dict(x=draw(1, 16, 8, 8), timestep=torch.tensor([0.6]), context=draw(1, 8, 4096), y=draw(1, 768), guidance=torch.tensor([3.5]))
    with torch.no_grad():
        found = network(*inputs.values())
    save_file({"output": found.float().contiguous()}, output)


def relative(found, want):
    return ((found - want).abs().max() / want.abs().max()).item()


def version_of(folder):
    text = (folder / "comfyui_version.py").read_text()
    return "ComfyUI " + text.split('"')[-2]


def outcome(folder, model, want):
    """(the output, or the error's last line)"""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "out.safetensors"
        done = subprocess.run([sys.executable, __file__, "--run", folder, model, output], capture_output=True, text=True)
        if done.returncode:
            return None, (done.stderr.strip().splitlines() or ["no message"])[-1][:150]
        found = load_file(output)["output"]
    return found, "" if want is None else f"{relative(found, want):.1e}"


def expected(told, version):
    """Whether `wick convert` says that this version reads the file."""
    number = [int(n) for n in version.split()[-1].split(".")]
    if "ComfyUI reads it, since" in told:
        return True
    if "ComfyUI reads it from 0.4 on" in told:
        return number >= [0, 4]
    assert "Wick alone" in told or "ComfyUI itself does not" in told, told
    return False


def main():
    if sys.argv[1:2] == ["--run"]:
        return run_comfyui(*map(Path, sys.argv[2:5]))
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--wick", required=True, type=Path, help="the program")
    parser.add_argument("--comfyui", required=True, type=Path, action="append", help="checkout of a version of ComfyUI")
    parser.add_argument("--work", type=Path, help="folder to keep what is made [a temporary one]")
    parser.add_argument("--json", type=Path, help="the rows as JSON")
    args = parser.parse_args()
    work = args.work or Path(tempfile.mkdtemp())
    plain = work / "flux.safetensors"
    if not plain.exists():
        write_model(plain)
    rows = []
    wants = {folder: outcome(folder, plain, None)[0] for folder in args.comfyui}
    for kind, words in KINDS.items():
        made = work / (kind.replace(", ", "-") + ".safetensors")
        made.unlink(missing_ok=True)
        done = subprocess.run([args.wick, "convert", "--model", plain, "--output", made, *words], capture_output=True, text=True, check=True)
        told = done.stdout.splitlines()[0].split(": ", 1)[1]
        for folder in args.comfyui:
            found, how = outcome(folder, made, wants[folder])
            reads = found is not None and relative(found, wants[folder]) <= RIGHT
            rows.append(dict(kind=kind, program=version_of(folder), reads=reads, how=how, told=told, agrees=reads == expected(told, version_of(folder))))
            print(json.dumps(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return not all(row["agrees"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
