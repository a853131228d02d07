"""From diffusers' module names to the names in a LoRA file (kohya's, native LDM block spelling), for any SDXL config."""


def ldm_block(name, layers_per_block):
    """`down_blocks.1.attentions.0.proj_in` -> `input_blocks.4.1.proj_in`."""
    n = layers_per_block + 1
    part = name.split(".")
    match part:
        case ["down_blocks", i, "resnets", j, *rest]:
            head = ["input_blocks", str(1 + n * int(i) + int(j)), "0"]
        case ["down_blocks", i, "attentions", j, *rest]:
            return ".".join(["input_blocks", str(1 + n * int(i) + int(j)), "1", *rest])
        case ["down_blocks", i, "downsamplers", "0", "conv", *rest]:
            return ".".join(["input_blocks", str(n * (int(i) + 1)), "0", "op", *rest])
        case ["mid_block", "resnets", j, *rest]:
            head = ["middle_block", str(2 * int(j))]
        case ["mid_block", "attentions", "0", *rest]:
            return ".".join(["middle_block", "1", *rest])
        case ["up_blocks", i, "resnets", j, *rest]:
            head = ["output_blocks", str(n * int(i) + int(j)), "0"]
        case ["up_blocks", i, "attentions", j, *rest]:
            return ".".join(["output_blocks", str(n * int(i) + int(j)), "1", *rest])
        case ["up_blocks", i, "upsamplers", "0", "conv", *rest]:
            # In SDXL both upsampling blocks have attention, so the upsampler comes third.
            return ".".join(["output_blocks", str(n * int(i) + n - 1), "2", "conv", *rest])
        case _:
            for old, new in {
                "conv_in": "input_blocks.0.0", "time_embedding.linear_1": "time_embed.0",
                "time_embedding.linear_2": "time_embed.2", "add_embedding.linear_1": "label_emb.0.0",
                "add_embedding.linear_2": "label_emb.0.2", "conv_norm_out": "out.0", "conv_out": "out.2",
            }.items():
                if name == old or name.startswith(old + "."):
                    return new + name[len(old):]
            raise KeyError(name)
    inside = {"norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1", "norm2": "out_layers.0",
              "conv2": "out_layers.3", "conv_shortcut": "skip_connection"}
    return ".".join([*head, inside[rest[0]], *rest[1:]])


def unet_lora_name(module, layers_per_block):
    return "lora_unet_" + ldm_block(module, layers_per_block).replace(".", "_")


def text_encoder_lora_name(module, encoder):
    """encoder 1 or 2; module `text_model.encoder.layers.0.mlp.fc1`."""
    return f"lora_te{encoder}_" + module.replace(".", "_")
