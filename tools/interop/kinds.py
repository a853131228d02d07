"""What programs make of each kind of adapter, and whether `wick inspect` says so.

    python tools/interop/kinds.py --wick build/release/bin/wick --comfyui ~/ComfyUI --sd-scripts ~/sd-scripts --a1111 ~/webui --forge ~/forge

writes a file of each kind on one layer of the small SDXL under kohya's names and, of peft's kinds, under diffusers' and peft's; loads each
with each program's own code (programs.py); and compares what the model then gives with `wick forward --lora`:

    loads      as Wick computes it
    otherwise  the model changes, but not as the format means
    ignores    the model is as it was
    raises     the program ends with an error

and with the line of that program under "loaded by" of `wick inspect`, which comes from one table (wick/pipelines/adapter_programs.cpp). A row
that differs makes the script end with 1. A row of the table has to be seen here before it is changed.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import programs
from models import FAMILIES, component
from programs import Absent, Artifact
from run import Failed, Results, TOLERANCE, Wick, first_line, relative

FAMILY = "tiny"
LAYER = "lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_v"  # 112 to 48
TARGET = "down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_v"  # that layer, by diffusers' name
OTHER = "down_blocks.1.attentions.0.transformer_blocks.0.ff.net.2"  # one that ComfyUI has a diffusers name for
CONV = "lora_unet_middle_block_0_in_layers_2"  # 64 to 64, 3 x 3
NORM = "lora_unet_input_blocks_4_1_transformer_blocks_0_norm2"
IN, OUT, RANK = 112, 48, 4


def kohya_kinds():
    draws = torch.Generator().manual_seed(3)
    draw = lambda *shape, size=0.3: torch.randn(shape, generator=draws) * size
    alpha, no_bound = torch.tensor(2.0), torch.tensor(0.0)  # the latter as LyCORIS writes it beside rotations
    lora = {"lora_down.weight": draw(RANK, IN), "lora_up.weight": draw(OUT, RANK), "alpha": alpha}
    loha = {"hada_w1_a": draw(OUT, RANK), "hada_w1_b": draw(RANK, IN), "hada_w2_a": draw(OUT, RANK), "hada_w2_b": draw(RANK, IN), "alpha": alpha}
    lokr = {"lokr_w1": draw(4, 4), "lokr_w2_a": draw(OUT // 4, RANK), "lokr_w2_b": draw(RANK, IN // 4), "alpha": alpha}
    w = component(FAMILY, "unet").weights[TARGET + ".weight"]
    inputs, outputs = w.norm(dim=0, keepdim=True) * (1 + draw(1, IN)), w.norm(dim=1, keepdim=True) * (1 + draw(OUT, 1))
    tucker = {"lora_down.weight": draw(RANK, 64, 1, 1), "lora_mid.weight": draw(RANK, RANK, 3, 3), "lora_up.weight": draw(64, RANK, 1, 1), "alpha": alpha}
    return {
        "LoRA": (LAYER, lora),
        "LoRA, Tucker": (CONV, tucker),
        "LoRA, biases": (LAYER, lora | {"lora_up.bias": draw(OUT)}),
        "DoRA of inputs": (LAYER, lora | {"dora_scale": inputs}),
        "DoRA of outputs": (LAYER, lora | {"dora_scale": outputs}),
        "LoHa": (LAYER, loha),
        "LoHa, scalar": (LAYER, loha | {"scalar": torch.tensor(0.5)}),
        "LoHa, Tucker": (CONV, {f"hada_{k}": draw(*shape, size=0.9) for k, shape in
                                {"t1": (RANK, RANK, 3, 3), "w1_a": (RANK, 64), "w1_b": (RANK, 64), "t2": (RANK, RANK, 3, 3),
                                 "w2_a": (RANK, 64), "w2_b": (RANK, 64)}.items()} | {"alpha": alpha}),
        "LoHa, DoRA": (LAYER, loha | {"dora_scale": inputs}),
        "LoKr": (LAYER, lokr),
        "LoKr, DoRA": (LAYER, lokr | {"dora_scale": inputs}),
        "full difference": (LAYER, {"diff": draw(OUT, IN)}),
        "norm difference": (NORM, {"w_norm": draw(48), "b_norm": draw(48)}),
        "GLoRA": (LAYER, {"a1.weight": draw(IN, RANK), "a2.weight": draw(RANK, IN), "b1.weight": draw(OUT, RANK), "b2.weight": draw(RANK, IN), "alpha": alpha}),
        "GLoRA before LyCORIS 3": (LAYER, {"a1.weight": draw(RANK, IN), "a2.weight": draw(IN, RANK), "b1.weight": draw(RANK, IN),
                                           "b2.weight": draw(OUT, RANK), "alpha": alpha}),
        "IA3": (LAYER, {"weight": draw(OUT), "on_input": torch.tensor(0.0)}),
        "OFT": (LAYER, {"oft_blocks": draw(6, 8, 8), "alpha": no_bound}),
        "OFT, rescale": (LAYER, {"oft_blocks": draw(6, 8, 8), "alpha": no_bound, "rescale": 1 + draw(OUT, 1)}),
        "BOFT": (LAYER, {"oft_blocks": draw(2, 6, 8, 8), "alpha": no_bound}),
        "OFT of inputs": (LAYER, {"oft_R.weight": draw(14, 28)}),
    }


def peft_kinds():
    """{kind: a folder's maker}; diffusers' files have the same tensors under "unet."."""
    import peft
    of = dict(target_modules=[OTHER])
    return {
        "LoRA": peft.LoraConfig(r=RANK, lora_alpha=RANK, **of),
        "DoRA": peft.LoraConfig(r=RANK, lora_alpha=RANK, use_dora=True, **of),
        "LoHa": peft.LoHaConfig(r=RANK, alpha=RANK, **of),
        "LoKr": peft.LoKrConfig(r=RANK, alpha=RANK, **of),
        "OFT": peft.OFTConfig(r=0, oft_block_size=8, **of),
        "BOFT": peft.BOFTConfig(boft_block_size=8, **of),
        "IA3": peft.IA3Config(feedforward_modules=[OTHER], **of),
    }


def write_peft(config, folder):
    import peft
    torch.manual_seed(5)
    model = peft.get_peft_model(component(FAMILY, "unet").open(), config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                p += 0.2 * torch.randn(p.shape) * (p.abs().mean() if "magnitude" in name else 1)
    model.save_pretrained(folder)


def artifacts(work):
    for kind, (base, tensors) in kohya_kinds().items():
        path = work / f"kohya-{kind.replace(', ', '-').replace(' ', '-')}.safetensors"
        save_file({f"{base}.{k}": v.contiguous() for k, v in tensors.items()}, path)
        yield kind, Artifact(FAMILY, "given", "given", "kohya", path, lora=path)
    for kind, config in peft_kinds().items():
        folder = work / f"peft-{kind}"
        shutil.rmtree(folder, ignore_errors=True)
        write_peft(config, folder)
        yield kind, Artifact(FAMILY, "given", "given", "peft", folder, lora=folder)
        path = work / f"diffusers-{kind}.safetensors"
        save_file({k.replace("base_model.model.", "unet."): v for k, v in load_file(folder / "adapter_model.safetensors").items()}, path)
        yield kind, Artifact(FAMILY, "given", "given", "diffusers", path, lora=folder)


def outcome(program, artifact, results):
    try:
        loaded = program.load(artifact)
    except Exception as e:  # whatever a program ends with
        return "raises", f"{type(e).__name__}: {first_line(e)}"
    bare = results.of(FAMILY)
    moved = max(relative(found, bare[name]) for name, found in loaded.outputs.items())
    if moved <= TOLERANCE:
        return "ignores", "; ".join(loaded.notes)[:160]
    try:
        want = results.of(FAMILY, artifact.lora)
    except Failed as e:
        return "loads or otherwise", f"Wick does not read it: {first_line(e)}"
    difference = max(relative(found, want[name]) for name, found in loaded.outputs.items())
    return ("loads" if difference <= TOLERANCE else "otherwise"), f"{difference:.1e}"


def told(wick, artifact, program):
    """The same four words, of the program's line in `wick inspect`."""
    path = artifact.path / "adapter_model.safetensors" if artifact.path.is_dir() else artifact.path
    lines = wick("inspect", path).splitlines()
    programs = lines[lines.index("loaded by") + 1:]
    found = next((l for l in programs if l[2:24].strip() == program), None)
    if found is None:
        return "not named"
    text = found[24:].strip()
    if "raises an error" in text:
        return "raises"
    if text.startswith("no module"):
        return "ignores"
    return "otherwise" if "; " in text else "loads"


NAMES = {"ComfyUI": "ComfyUI", "SdScripts": "sd-scripts", "A1111": "A1111", "Forge": "Forge", "Diffusers": "diffusers", "Peft": "PEFT"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--wick", required=True, type=Path, help="the program")
    for name, what in (("comfyui", "ComfyUI"), ("sd-scripts", "kohya's sd-scripts"), ("a1111", "A1111's web UI"), ("forge", "Forge")):
        parser.add_argument(f"--{name}", type=Path, help=f"checkout of {what}")
    parser.add_argument("--work", type=Path, help="folder to keep what is made [a temporary one]")
    parser.add_argument("--json", type=Path, help="the rows as JSON")
    args = parser.parse_args()
    torch.set_num_threads(2)
    FAMILIES[FAMILY] = [component(FAMILY, "unet")]  # the text encoders stay as they are, and need not run
    work = args.work or Path(tempfile.mkdtemp())
    work.mkdir(exist_ok=True)
    wick = Wick(args.wick.resolve(), "cpu")
    starts = [lambda: programs.ComfyUI(args.comfyui), lambda: programs.SdScripts(args.sd_scripts), lambda: programs.Forge(args.forge),
              lambda: programs.A1111(args.a1111), programs.Diffusers, programs.Peft]
    readers = []
    for start in starts:
        try:
            readers.append(start())
        except (Absent, ImportError) as e:
            print(f"skipped: {first_line(e)}", file=sys.stderr)
    results, rows = Results(wick), []
    for kind, artifact in artifacts(work):
        for program in readers:
            if artifact.format not in program.formats:
                continue
            name = NAMES[type(program).__name__]
            does, how = outcome(program, artifact, results)
            says = told(wick, artifact, name)
            agrees = does == says or (does == "loads or otherwise" and says in ("loads", "otherwise"))
            rows.append(dict(kind=kind, names=artifact.format, program=program.name, does=does, inspect=says, agrees=agrees, how=how))
            print("| " + " | ".join([kind, artifact.format, program.name, does, says, "" if agrees else "DIFFERS", how]) + " |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    if not args.work:
        shutil.rmtree(work)
    return not all(row["agrees"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
