"""The LoRA base names that ComfyUI maps for an SDXL of a given config, and which of them are kohya's default targets.

Derived from the rules: ComfyUI maps `lora_unet_` + each native UNet key without `.weight`, dots as underscores, and for
the text encoders `lora_te1_`/`lora_te2_` + `text_model_encoder_layers_N_M` for the six Linears of a layer, and the two
text projections. Native keys follow from the UNet's config by the LDM numbering written out below. Then it is checked
against diffusers' own UNet, renamed by names.py.

    python tools/golden/comfy_names.py      writes tests/golden/comfy_sdxl_{full,tiny}.json

mapped             every base name ComfyUI maps in kohya's native spelling (norms too: any key that ends in .weight)
default_targets    {base name: [in, out]} of the Linears that kohya trains by default
diffusers_spelling {base name in the flattened diffusers spelling, which ComfyUI maps too: native base name}; UNet only,
                   default targets only
"""

import json

import torch
from diffusers import UNet2DConditionModel

import sdxl_model
from golden import ROOT
from names import ldm_block


def resnet(path, c_in, c_out, emb):
    keys = {"in_layers.0": [c_in], "in_layers.2": [c_out, c_in, 3, 3], "emb_layers.1": [c_out, emb],
            "out_layers.0": [c_out], "out_layers.3": [c_out, c_out, 3, 3]}
    if c_in != c_out:
        keys["skip_connection"] = [c_out, c_in, 1, 1]
    return {f"{path}.{k}": v for k, v in keys.items()}


def transformer(path, c, depth, context):
    keys = {"norm": [c], "proj_in": [c, c], "proj_out": [c, c]}
    for i in range(depth):
        b = f"transformer_blocks.{i}"
        for attention, width in ("attn1", c), ("attn2", context):
            keys |= {f"{b}.{attention}.to_q": [c, c], f"{b}.{attention}.to_k": [c, width],
                     f"{b}.{attention}.to_v": [c, width], f"{b}.{attention}.to_out.0": [c, c]}
        keys |= {f"{b}.ff.net.0.proj": [8 * c, c], f"{b}.ff.net.2": [c, 4 * c]}
        keys |= {f"{b}.norm{n}": [c] for n in (1, 2, 3)}
    return {f"{path}.{k}": v for k, v in keys.items()}


def native_unet(config):
    """{native key without .weight: shape of the weight}."""
    widths, layers, context = config["block_out_channels"], config["layers_per_block"], config["cross_attention_dim"]
    depths = [d if "CrossAttn" in kind else 0
              for d, kind in zip(config["transformer_layers_per_block"], config["down_block_types"])]
    emb = 4 * widths[0]
    keys = {"time_embed.0": [emb, widths[0]], "time_embed.2": [emb, emb],
            "label_emb.0.0": [emb, config["projection_class_embeddings_input_dim"]], "label_emb.0.2": [emb, emb],
            "input_blocks.0.0": [widths[0], config["in_channels"], 3, 3]}
    skips, c, n = [widths[0]], widths[0], 1
    for level, width in enumerate(widths):
        for _ in range(layers):
            keys |= resnet(f"input_blocks.{n}.0", c, width, emb)
            c = width
            if depths[level]:
                keys |= transformer(f"input_blocks.{n}.1", c, depths[level], context)
            skips.append(c)
            n += 1
        if level + 1 < len(widths):
            keys[f"input_blocks.{n}.0.op"] = [c, c, 3, 3]
            skips.append(c)
            n += 1
    keys |= resnet("middle_block.0", c, c, emb)
    keys |= transformer("middle_block.1", c, config["transformer_layers_per_block"][-1], context)
    keys |= resnet("middle_block.2", c, c, emb)
    n = 0
    for level, width in reversed(list(enumerate(widths))):
        for i in range(layers + 1):
            keys |= resnet(f"output_blocks.{n}.0", c + skips.pop(), width, emb)
            c, part = width, 1
            if depths[level]:
                keys |= transformer(f"output_blocks.{n}.1", c, depths[level], context)
                part = 2
            if level > 0 and i == layers:
                keys[f"output_blocks.{n}.{part}.conv"] = [c, c, 3, 3]
            n += 1
    keys["out.0"], keys["out.2"] = [c], [config["out_channels"], c, 3, 3]
    assert not skips
    return keys


def check_against_diffusers(keys, config):
    with torch.device("meta"):
        unet = UNet2DConditionModel(**config)
    mine = {ldm_block(k.removesuffix(".weight"), config["layers_per_block"]): list(v.shape)
            for k, v in unet.state_dict().items() if k.endswith(".weight")}
    assert mine == keys
    return {k.removesuffix(".weight") for k in unet.state_dict() if k.endswith(".weight")}


def clip(prefix, config):
    d, ff = config["hidden_size"], config["intermediate_size"]
    linears = {f"self_attn_{m}_proj": [d, d] for m in ("q", "k", "v", "out")} | {"mlp_fc1": [d, ff], "mlp_fc2": [ff, d]}
    return {f"{prefix}text_model_encoder_layers_{n}_{m}": size
            for n in range(config["num_hidden_layers"]) for m, size in linears.items()}


def write(path, unet, te1, te2):
    native = native_unet(unet)
    diffusers_keys = check_against_diffusers(native, unet)
    flat = {k: "lora_unet_" + k.replace(".", "_") for k in native}
    assert len(set(flat.values())) == len(flat)
    targets = {flat[k]: [v[1], v[0]] for k, v in native.items()
               if len(v) == 2 and (".transformer_blocks." in k or k.endswith((".proj_in", ".proj_out")))}
    modules = len(targets)
    texts = clip("lora_te1_", te1) | clip("lora_te2_", te2)
    alias = {}
    for k in diffusers_keys:
        base = flat[ldm_block(k, unet["layers_per_block"])]
        if base in targets:
            alias["lora_unet_" + k.replace(".", "_")] = base
    targets |= texts
    mapped = sorted([*flat.values(), *texts, "lora_te1_text_projection", "lora_te2_text_projection"])
    out = {"mapped": mapped, "default_targets": dict(sorted(targets.items())),
           "diffusers_spelling": dict(sorted(alias.items()))}
    listed = ",\n".join(json.dumps(name) for name in out["mapped"])
    tables = [f'"{table}": {{\n' + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in out[table].items()) + "\n}"
              for table in ("default_targets", "diffusers_spelling")]
    text = f'{{\n"mapped": [\n{listed}\n],\n' + ",\n".join(tables) + "\n}\n"
    assert json.loads(text) == out
    (ROOT / path).write_text(text)
    print(f"{path}  {len(mapped)} mapped, targets: {modules} in the UNet, {len(texts)} in the text encoders; "
          f"rank 16 has {16 * sum(a + b for a, b in targets.values())} parameters")


if __name__ == "__main__":
    write("comfy_sdxl_full.json", sdxl_model.SDXL_UNET, sdxl_model.SDXL_TE1, sdxl_model.SDXL_TE2)
    write("comfy_sdxl_tiny.json", sdxl_model.TINY_UNET, sdxl_model.TINY_TE1, sdxl_model.TINY_TE2)
