"""LoRAs as other programs write them, and those programs' results with them.

    python tools/golden/adapters.py      writes tests/golden/adapters/

A folder a case: what peft or diffusers saved, and out.safetensors, which `wick forward` should give on the model and
inputs that case.json names, computed by the program that wrote the LoRA after it loaded its own file again. patterns.json: what peft's
rule (get_pattern_key) makes of patterns, first of those in the file's order.
"""

import json
import shutil
import zlib

import torch
from diffusers import UNet2DConditionModel
from diffusers.loaders import StableDiffusionXLLoraLoaderMixin
from diffusers.utils import convert_state_dict_to_diffusers, convert_state_dict_to_kohya
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.utils.other import get_pattern_key
from safetensors.torch import save_file
from transformers import AutoModel, AutoModelForCausalLM, CLIPTextModel, CLIPTextModelWithProjection

from golden import MODEL, ROOT, load, rng, save, sort_metadata

OUT = ROOT / "adapters"
LLAMA = ROOT / "llama"
IDS = torch.randint(97, (1, 7), generator=rng("adapters ids"))


def seeded(name):
    """Seeds peft's own random numbers."""
    torch.manual_seed(zlib.crc32(name.encode()))


def disturb(model, seed):
    """Moves every factor from where it began, as training does, and what of the model is trained with them."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            is_models = p.requires_grad and ("modules_to_save" in name or "trainable_tokens" in name or name.endswith(".bias"))
            if "lora_" in name or is_models:
                p += 0.3 * torch.randn(p.shape, generator=rng(f"{seed} {name}")) * p.shape[-1] ** -0.5
    return model


def finish(name, model, component, inputs, outputs, lora="."):
    """The adapter is saved in OUT/name already, as `lora` from there; `inputs` is a file from ROOT."""
    folder = OUT / name
    (folder / "README.md").unlink(missing_ok=True)
    for file in folder.glob("*.safetensors"):
        if b"__metadata__" in file.read_bytes():
            sort_metadata(file)
    for file in folder.glob("adapter_config.json"):  # peft writes a set in an order of chance
        config = json.loads(file.read_text())
        if isinstance(config.get("target_modules"), list):
            config["target_modules"].sort()
        file.write_text(json.dumps(config, indent=2).replace(f"{ROOT}/", "") + "\n")
    save(folder / "out.safetensors", outputs)
    case = dict(model=model, component=component, inputs=inputs, lora=lora)
    (folder / "case.json").write_text(json.dumps(case, indent=1) + "\n")


def turn(file, key):
    """The first becomes the last: peft sorts what it writes, but goes by the file when it reads."""
    config = json.loads(file.read_text())
    first, *others = config[key].items()
    config[key] = dict([*others, first])
    file.write_text(json.dumps(config, indent=2) + "\n")


def language(name, family, config, trained=True, head_only=False, turned=None):
    """A PEFT folder, loaded again into a fresh base."""
    path = LLAMA / family
    seeded(name)
    kind = AutoModel if head_only else AutoModelForCausalLM
    model = get_peft_model(kind.from_pretrained(path), config)
    if trained:
        disturb(model, name)
    model.save_pretrained(OUT / name)
    if turned:
        turn(OUT / name / "adapter_config.json", turned)
    fresh = AutoModelForCausalLM.from_pretrained(path)
    if head_only:
        fresh.model = PeftModel.from_pretrained(fresh.model, OUT / name)
    else:
        fresh = PeftModel.from_pretrained(fresh, OUT / name)
    with torch.no_grad():
        finish(name, f"llama/{family}", "", "adapters/ids.safetensors", dict(logits=fresh(IDS).logits))


def language_cases():
    save(OUT / "ids.safetensors", dict(input_ids=IDS))
    some = dict(target_modules=["q_proj", "down_proj"], r=3, lora_alpha=5)
    for begin in ("pissa", "olora"):
        language(f"{begin}_untrained", "llama2", LoraConfig(init_lora_weights=begin, **some), trained=False)
        language(f"{begin}_trained", "qwen3", LoraConfig(
            init_lora_weights=begin, rank_pattern={"down_proj": 2}, alpha_pattern={"q_proj": 2}, **some))
    language("pissa_rslora", "llama2", LoraConfig(init_lora_weights="pissa", use_rslora=True, **some))
    for begin in ("orthogonal", "mica", "gaussian"):  # change nothing of the base
        language(begin, "llama2", LoraConfig(init_lora_weights=begin, **some | dict(r=2)))
    language("patterns", "llama2", LoraConfig(
        **some, init_lora_weights=False, rank_pattern={r"layers\.(1|2)\..*q_proj": 1, "q_proj": 4},
        alpha_pattern={"layers.1.self_attn.q_proj": 40, r".*\.[02]\.self_attn\.\w+": 7, "q_proj": 4}))
    language("patterns_two", "llama2", LoraConfig(
        **some, init_lora_weights=False, alpha_pattern={"layers.1.self_attn.q_proj": 40, "q_proj": 4}))
    language("patterns_turned", "llama2", LoraConfig(
        **some, init_lora_weights=False,
        alpha_pattern={"layers.1.self_attn.q_proj": 40, "model.layers.2.self_attn.q_proj": 9, "q_proj": 4}),
        turned="alpha_pattern")
    language("head", "llama2", LoraConfig(r=2, lora_alpha=6, target_modules=["lm_head", "q_proj"], init_lora_weights=False))
    language("tied_head", "llama_linear", LoraConfig(r=2, lora_alpha=6, target_modules=["lm_head"], init_lora_weights=False))
    one = dict(r=2, lora_alpha=6, target_modules=["q_proj"], init_lora_weights=False)
    language("saved", "llama2", LoraConfig(modules_to_save=["embed_tokens", "lm_head"], **one))
    language("saved_table_tied", "llama_linear", LoraConfig(modules_to_save=["embed_tokens"], **one))
    language("saved_head_tied", "llama_linear", LoraConfig(modules_to_save=["lm_head"], **one))
    language("tokens", "llama2", LoraConfig(trainable_token_indices={"embed_tokens": [69, 36], "lm_head": [2, 96, 0]}, **one))
    language("tokens_tied", "llama_linear", LoraConfig(trainable_token_indices=[41, 5, 14], **one))
    language("saved_biases", "qwen2", LoraConfig(bias="all", **one))
    language("saved_biases_of_loras", "qwen2", LoraConfig(bias="lora_only", **one))
    language("base_model", "llama2", LoraConfig(
        r=2, lora_alpha=6, target_modules=["q_proj", "up_proj"], alpha_pattern={"layers.1.self_attn.q_proj": 1},
        init_lora_weights=False), head_only=True)


UNET_INPUTS = "cases/unet.in.safetensors"


def run_unet(unet):
    x = load(ROOT / UNET_INPUTS)
    cond = dict(text_embeds=x["text_embeds"], time_ids=x["time_ids"])
    with torch.no_grad():
        return dict(sample=unet(x["sample"], x["timestep"], x["encoder_hidden_states"], added_cond_kwargs=cond).sample)


def fresh_unet():
    return UNet2DConditionModel.from_pretrained(MODEL / "unet")


UNET = dict(r=2, lora_alpha=8, target_modules=r"mid_block.*(attn1\.to_q|attn2\.to_out\.0|ff\.net\.2)",
            init_lora_weights=False)


def unet_cases():
    patterned = LoraConfig(**UNET | dict(use_rslora=True), rank_pattern={"to_q": 3},
                           alpha_pattern={r"transformer_blocks\.0\.attn1\.to_q": 5, "to_q": 1})
    for name, config in [("unet_adapter", patterned), ("unet_pissa", LoraConfig(**UNET | dict(init_lora_weights="pissa")))]:
        seeded(name)
        unet = fresh_unet()
        unet.add_adapter(config)
        disturb(unet, name)
        unet.save_lora_adapter(OUT / name)
        again = fresh_unet()
        again.load_lora_adapter(OUT / name, prefix=None, low_cpu_mem_usage=False,
                                weight_name="pytorch_lora_weights.safetensors")
        finish(name, "sdxl", "unet", UNET_INPUTS, run_unet(again))

    seeded("unet_peft")
    model = disturb(get_peft_model(fresh_unet(), LoraConfig(**UNET)), "unet_peft")
    model.save_pretrained(OUT / "unet_peft")
    again = PeftModel.from_pretrained(fresh_unet(), OUT / "unet_peft")
    finish("unet_peft", "sdxl", "unet", UNET_INPUTS, run_unet(again))

    # train_dreambooth_lora_sdxl.py --output_kohya_format: alphas are integers
    state = convert_state_dict_to_kohya(
        convert_state_dict_to_diffusers({f"unet.{k}": v for k, v in get_peft_model_state_dict(unet_with(UNET)).items()}))
    (OUT / "unet_kohya").mkdir(parents=True, exist_ok=True)
    save_file(state, OUT / "unet_kohya" / "pytorch_lora_weights_kohya.safetensors")
    finish("unet_kohya", "sdxl", "unet", UNET_INPUTS, run_unet(unet_with(UNET)),
           lora="pytorch_lora_weights_kohya.safetensors")


def unet_with(config):
    seeded("unet_with")
    unet = fresh_unet()
    unet.add_adapter(LoraConfig(**config | dict(lora_alpha=2)))
    return disturb(unet, "unet_with")


class Loader(StableDiffusionXLLoraLoaderMixin):
    """save_lora_weights() and load_lora_weights() of a pipeline of these parts alone."""

    _lora_scale = 1.0
    hf_device_map = None

    def __init__(self):
        self.unet = fresh_unet()
        self.text_encoder = CLIPTextModel.from_pretrained(MODEL / "text_encoder")
        self.text_encoder_2 = CLIPTextModelWithProjection.from_pretrained(MODEL / "text_encoder_2")
        self.components = {}


def pipeline_case():
    text = dict(r=2, lora_alpha=6, target_modules=["q_proj", "fc1"], init_lora_weights=False)
    configs = dict(
        unet=LoraConfig(**UNET, rank_pattern={r"ff\.net\.2": 1}, alpha_pattern={"to_q": 3, "transformer_blocks.0.attn1.to_q": 30}),
        text_encoder=LoraConfig(**text, alpha_pattern={r"layers\.0\..*": 1}),
        text_encoder_2=LoraConfig(**text | dict(use_rslora=True, lora_alpha=3)))
    trained = Loader()
    layers, metadata = {}, {}
    for name, config in configs.items():
        seeded(name)
        getattr(trained, name).add_adapter(config)
        disturb(getattr(trained, name), name)
        layers[f"{name}_lora_layers"] = get_peft_model_state_dict(getattr(trained, name), adapter_name="default")
        metadata[f"{name}_lora_adapter_metadata"] = getattr(trained, name).peft_config["default"].to_dict()
    Loader.save_lora_weights(OUT / "pipeline", **layers, **metadata)
    again = Loader()
    again.load_lora_weights(str(OUT / "pipeline"), weight_name="pytorch_lora_weights.safetensors")
    finish("pipeline", "sdxl", "unet", UNET_INPUTS, run_unet(again.unet))
    for name in ("text_encoder", "text_encoder_2"):
        inputs = f"cases/{name}.in.safetensors"
        with torch.no_grad():
            found = getattr(again, name)(load(ROOT / inputs)["input_ids"])
        pooled = found.text_embeds if name == "text_encoder_2" else found.pooler_output
        (OUT / f"pipeline_{name}").mkdir(exist_ok=True)
        finish(f"pipeline_{name}", "sdxl", name, inputs, dict(pooled=pooled),
               lora="../pipeline/pytorch_lora_weights.safetensors")


def patterns():
    names = [f"model.layers.{i}.{m}" for i in (0, 1, 11) for m in ("self_attn.q_proj", "mlp.down_proj")] + ["lm_head"]
    several = {
        "two": ["layers.1.self_attn.q_proj", "q_proj"], "two_turned": ["q_proj", "layers.1.self_attn.q_proj"],
        "three": [r"layers\.1\..*", "q_proj", "down_proj"], "three_turned": ["down_proj", "q_proj", r"layers\.1\..*"],
        "whole": ["model.layers.11.mlp.down_proj", "lm_head", ".*"], "anchored": ["^layers.1.self_attn.q_proj", "^lm_head"],
        "anchored_whole": [r"^model\.layers\.(0|11)\.mlp\.down_proj$", "^model.layers.1.self_attn.q_proj"],
        "dots": ["self.attn.q.proj", "layers.1"], "classes": [r"layers\.\d\.[a-m]\w+\.d.*", r"layers\.[^0]\..+"],
        "alternatives": ["q_proj|down_proj"], "groups": [r"layers\.(?:0|1)\.(self_attn|mlp)\.\w+_proj"],
        "open": [r"q_proj)|(lm_head"], "look": [r"layers\.(?!1\.)\d+\.mlp\.down_proj", r"(?<=layers\.)1\.mlp\.down_proj"],
        "counts": [r"layers\.1{2}\..*", r"layers\.\d{1}\.mlp.*"], "none": ["k_proj", "proj", "layers", ""],
        "lazy": [r".*?1.*?q_proj", r".+"], "ends": [r".*proj$", r"lm_head\b"],
    }
    rows = [dict(name=name, patterns=keys, modules={m: keys.index(k) if (k := get_pattern_key(keys, m)) in keys else -1
                                                    for m in names}) for name, keys in several.items()]
    (OUT / "patterns.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    shutil.rmtree(OUT, ignore_errors=True)
    language_cases()
    unet_cases()
    pipeline_case()
    patterns()
