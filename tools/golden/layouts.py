"""The same small weights in two layouts of names, converted by diffusers' and gguf-py's own code, for tests/nn/layout.cpp and tests/models/layouts.cpp.

layouts/FAMILY.{native,diffusers}.safetensors: flux (2 double and 2 single blocks), sd3 (3 blocks, the first one dual, the
last without text output), vae (4 levels), clip (OpenCLIP and transformers), t5 (llama.cpp's names and transformers').
"""

import inspect

import torch
from diffusers.loaders import single_file_utils as single_file
from gguf import MODEL_ARCH, get_tensor_name_map
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

import golden

OUT = golden.ROOT / "layouts"
D = 8


def tensors(family, shapes):
    return {name: golden.randn(f"{family} {name}", *shape) for name, shape in shapes.items()}


def linear(shapes, name, rows, columns):
    shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (rows, columns), (rows,)


def write(family, native, diffusers):
    golden.save(OUT / f"{family}.native.safetensors", native)
    golden.save(OUT / f"{family}.diffusers.safetensors", diffusers)


def flux():
    shapes = {}
    for name, columns in (("img_in", 4), ("txt_in", 6), ("time_in.in_layer", 4), ("guidance_in.in_layer", 4),
                          ("vector_in.in_layer", 5), ("time_in.out_layer", D), ("guidance_in.out_layer", D),
                          ("vector_in.out_layer", D)):
        linear(shapes, name, D, columns)
    for i in range(2):
        for side in ("img", "txt"):
            block = f"double_blocks.{i}.{side}"
            linear(shapes, f"{block}_mod.lin", 6 * D, D)
            linear(shapes, f"{block}_attn.qkv", 3 * D, D)
            linear(shapes, f"{block}_attn.proj", D, D)
            linear(shapes, f"{block}_mlp.0", 4 * D, D)
            linear(shapes, f"{block}_mlp.2", D, 4 * D)
            for norm in ("query", "key"):
                shapes[f"{block}_attn.norm.{norm}_norm.scale"] = (4,)
        block = f"single_blocks.{i}"
        linear(shapes, f"{block}.modulation.lin", 3 * D, D)
        linear(shapes, f"{block}.linear1", 7 * D, D)
        linear(shapes, f"{block}.linear2", D, 5 * D)
        for norm in ("query", "key"):
            shapes[f"{block}.norm.{norm}_norm.scale"] = (4,)
    linear(shapes, "final_layer.adaLN_modulation.1", 2 * D, D)
    linear(shapes, "final_layer.linear", 4, D)
    native = tensors("flux", shapes)
    # The converter knows one width alone.
    source = inspect.getsource(single_file.convert_flux_transformer_checkpoint_to_diffusers)
    scope = dict(vars(single_file))
    exec(source.replace("inner_dim = 3072", f"inner_dim = {D}"), scope)
    write("flux", native, scope["convert_flux_transformer_checkpoint_to_diffusers"](dict(native)))


def sd3():
    shapes = {"pos_embed": (1, 9, D), "x_embedder.proj.weight": (D, 3, 2, 2), "x_embedder.proj.bias": (D,)}
    for name, columns in (("t_embedder.mlp.0", 4), ("t_embedder.mlp.2", D), ("y_embedder.mlp.0", 5),
                          ("y_embedder.mlp.2", D), ("context_embedder", 6)):
        linear(shapes, name, D, columns)
    for i in range(3):
        for side in ("x", "context"):
            block, last, dual = f"joint_blocks.{i}.{side}_block", side == "context" and i == 2, side == "x" and i == 0
            linear(shapes, f"{block}.adaLN_modulation.1", (2 if last else 9 if dual else 6) * D, D)
            for attention in ("attn", "attn2") if dual else ("attn",):
                linear(shapes, f"{block}.{attention}.qkv", 3 * D, D)
                shapes[f"{block}.{attention}.ln_q.weight"] = shapes[f"{block}.{attention}.ln_k.weight"] = (4,)
                if not last:
                    linear(shapes, f"{block}.{attention}.proj", D, D)
            if not last:
                linear(shapes, f"{block}.mlp.fc1", 4 * D, D)
                linear(shapes, f"{block}.mlp.fc2", D, 4 * D)
    linear(shapes, "final_layer.adaLN_modulation.1", 2 * D, D)
    linear(shapes, "final_layer.linear", 12, D)
    native = tensors("sd3", shapes)
    scope = dict(vars(single_file))
    exec(inspect.getsource(single_file.convert_sd3_transformer_checkpoint_to_diffusers), scope)
    scope["get_caption_projection_dim"] = lambda checkpoint: D  # the real one wants the width of a published model
    write("sd3", native, scope["convert_sd3_transformer_checkpoint_to_diffusers"](dict(native)))


def vae():
    shapes, widths = {}, (2, 3, 4, 4)

    def conv(name, out, into, size=3):
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (out, into, size, size), (out,)

    def norm(name, width):
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (width,)

    def resnet(name, into, out):
        norm(f"{name}.norm1", into)
        conv(f"{name}.conv1", out, into)
        norm(f"{name}.norm2", out)
        conv(f"{name}.conv2", out, out)
        if into != out:
            conv(f"{name}.nin_shortcut", out, into, 1)

    for half in ("encoder", "decoder"):
        top = widths[-1]
        for i in (1, 2):
            resnet(f"{half}.mid.block_{i}", top, top)
        norm(f"{half}.mid.attn_1.norm", top)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{half}.mid.attn_1.{part}", top, top, 1)
    conv("encoder.conv_in", widths[0], 3)
    conv("decoder.conv_in", widths[-1], 2)
    norm("encoder.norm_out", widths[-1])
    norm("decoder.norm_out", widths[0])
    conv("encoder.conv_out", 4, widths[-1])
    conv("decoder.conv_out", 3, widths[0])
    conv("quant_conv", 4, 4, 1)
    conv("post_quant_conv", 2, 2, 1)
    for i, width in enumerate(widths):
        for j in range(2):
            resnet(f"encoder.down.{i}.block.{j}", widths[max(i - 1, 0)] if j == 0 else width, width)
        for j in range(3):
            resnet(f"decoder.up.{i}.block.{j}", widths[min(i + 1, 3)] if j == 0 else width, width)
        if i < 3:
            conv(f"encoder.down.{i}.downsample.conv", width, width)
        if i > 0:
            conv(f"decoder.up.{i}.upsample.conv", width, width)
    native = tensors("vae", shapes)
    levels = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    write("vae", native, single_file.convert_ldm_vae_checkpoint(dict(native), levels))


def clip():
    shapes = {"token_embedding.weight": (10, D), "positional_embedding": (7, D), "text_projection": (D, 5)}
    for norm in ["ln_final"] + [f"transformer.resblocks.{i}.ln_{n}" for i in range(2) for n in (1, 2)]:
        shapes[f"{norm}.weight"] = shapes[f"{norm}.bias"] = (D,)
    for i in range(2):
        block = f"transformer.resblocks.{i}"
        shapes[f"{block}.attn.in_proj_weight"], shapes[f"{block}.attn.in_proj_bias"] = (3 * D, D), (3 * D,)
        linear(shapes, f"{block}.attn.out_proj", D, D)
        linear(shapes, f"{block}.mlp.c_fc", 4 * D, D)
        linear(shapes, f"{block}.mlp.c_proj", D, 4 * D)
    native = tensors("clip", shapes)
    config = CLIPTextConfig(vocab_size=10, hidden_size=D, intermediate_size=4 * D, num_hidden_layers=2,
                            num_attention_heads=2, max_position_embeddings=7, projection_dim=5)
    model = CLIPTextModelWithProjection(config)
    converted = single_file.convert_open_clip_checkpoint(model, dict(native), prefix="")
    missing, unexpected = model.load_state_dict(converted, strict=False)
    assert not unexpected and all("position_ids" in name for name in missing), (missing, unexpected)
    write("clip", native, converted)


def t5():
    shapes = {"shared.weight": (10, D), "encoder.final_layer_norm.weight": (D,),
              "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (32, 2)}
    for i in range(2):
        layer = f"encoder.block.{i}.layer"
        shapes[f"{layer}.0.layer_norm.weight"] = shapes[f"{layer}.1.layer_norm.weight"] = (D,)
        for part in "qkvo":
            shapes[f"{layer}.0.SelfAttention.{part}.weight"] = (D, D)
        shapes[f"{layer}.1.DenseReluDense.wi_0.weight"] = shapes[f"{layer}.1.DenseReluDense.wi_1.weight"] = (12, D)
        shapes[f"{layer}.1.DenseReluDense.wo.weight"] = (D, 12)
    theirs = tensors("t5", shapes)
    names = get_tensor_name_map(MODEL_ARCH.T5ENCODER, 2)
    write("t5", {names.get_name(name, (".weight",)): value for name, value in theirs.items()}, theirs)


torch.manual_seed(0)
for family in (flux, sd3, vae, clip, t5):
    family()
