"""Other programs' own loaders of adapters, each upon the small models: what they load of a file, and what the model then gives.

A program is a class with its `name`, `formats` (the spellings that it claims to read), a constructor that imports it, which raises Absent
with a reason where it is not there, and load(family, artifact) -> Loaded.
"""

import contextlib
import importlib
import importlib.metadata
import io
import logging
import subprocess
import sys
import tempfile
import types
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

import makers
from models import FAMILIES, MODELS


class Absent(Exception):
    pass


class Program:
    formats = ()
    families = ("tiny", "tiny-flux", "tiny-sd3")
    algorithms = None  # all

    def reads(self, family, algorithm):
        return family in self.families and (self.algorithms is None or algorithm in (*self.algorithms, "given"))

    def limit(self, artifact):
        """Why this program does not compute what the file's format means, if it is known not to."""
        return None


def dora_axis(artifact):
    """"input" or "output": whose norms the file's dora_scale are."""
    if artifact.path.is_file():
        with safe_open(artifact.path, "pt") as file:
            for key in file.keys():
                if key.endswith(".dora_scale"):
                    return "input" if file.get_slice(key).get_shape()[0] == 1 else "output"
    return None


@dataclass
class Loaded:
    keys: int  # taken, of
    of: int
    outputs: dict  # {component: {name: tensor}}
    notes: list = field(default_factory=list)


@dataclass
class Artifact:
    family: str
    algorithm: str
    kind: str  # train, or what --to asked for, or merge
    format: str  # kohya, diffusers, peft, comfy, onetrainer, gguf, model
    path: Path
    targets: tuple = ()
    lora: Path | None = None  # what `wick forward` takes: the file itself unless given


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as e:
        raise Absent(f"{package} is not installed") from e


def revision_of(folder):
    head = subprocess.run(["git", "-C", folder, "log", "-1", "--format=%h"], capture_output=True, text=True)
    return head.stdout.strip() if head.returncode == 0 else "a copy without git"


@contextlib.contextmanager
def messages():
    """What is logged, as lines."""
    lines = []

    class Handler(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    handler, root = Handler(logging.WARNING), logging.getLogger()
    named = [logging.getLogger(n) for n in ("diffusers", "peft", "transformers", "LyCORIS")]
    for logger in [root, *named]:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield lines
        lines += [str(w.message) for w in caught if "key" in str(w.message)]
    finally:
        for logger in [root, *named]:
            logger.removeHandler(handler)


def read(artifact):
    return load_file(artifact.path)


def denoiser(family):
    return FAMILIES[family][0]


def text_encoders(family):
    return FAMILIES[family][1:]


class ComfyUI(Program):
    """comfy.lora's maps of names and load_lora(), then calculate_weight() of every weight, as ModelPatcher does."""

    formats = ("kohya", "comfy", "diffusers", "onetrainer")

    def __init__(self, folder):
        if not folder:
            raise Absent("no --comfyui DIR")
        sys.path.insert(0, str(folder))
        arguments, sys.argv = sys.argv, [sys.argv[0], "--cpu"]
        import comfy.options
        comfy.options.enable_args_parsing()
        import comfy.lora
        import comfy.lora_convert
        import comfy.model_base
        import comfy.utils
        sys.argv = arguments
        self.name = f"ComfyUI {revision_of(folder)}"
        self.comfy = comfy

    def model(self, family, weights):
        """Of ComfyUI's class, with a config of these sizes; only its names count."""
        kind = {"tiny": "SDXL", "tiny-flux": "Flux", "tiny-sd3": "SD3"}[family]
        c = denoiser(family).config
        if family == "tiny":
            depths = [d if "CrossAttn" in b else 0 for d, b in zip(self.depths(c), c["down_block_types"])]
            each = [d for d in depths for _ in range(c["layers_per_block"])]
            up = [d for d in depths for _ in range(c["layers_per_block"] + 1)]
            unet = dict(num_res_blocks=[c["layers_per_block"]] * len(depths), channel_mult=[1] * len(depths), transformer_depth=each,
                        transformer_depth_output=up, transformer_depth_middle=depths[-1])
        elif family == "tiny-flux":
            unet = dict(depth=c["num_layers"], depth_single_blocks=c["num_single_layers"],
                        hidden_size=c["num_attention_heads"] * c["attention_head_dim"])
        else:
            class Depth(int):  # ComfyUI takes 64 times it for the width
                def __mul__(self, other):
                    return c["num_attention_heads"] * c["attention_head_dim"] if other == 64 else int(self) * other

            unet = dict(depth=Depth(c["num_layers"]), num_blocks=c["num_layers"])
        theirs = getattr(self.comfy.model_base, kind)
        stand_in = type(kind, (theirs,), dict(__init__=lambda self: torch.nn.Module.__init__(self), state_dict=lambda self: weights))()
        stand_in.model_config = type("Config", (), dict(unet_config=unet))
        return stand_in

    @staticmethod
    def depths(config):
        depth = config["transformer_layers_per_block"]
        return depth if isinstance(depth, list) else [depth] * len(config["block_out_channels"])

    def limit(self, artifact):
        if artifact.family == "tiny" and artifact.format == "diffusers":
            return "has no names for diffusers' attn1.to_q and its like of SDXL"
        return "takes the norms of the base's rows for those of the sum's" if dora_axis(artifact) == "output" else None

    CLIPS = {"tiny": ["clip_l", "clip_g"], "tiny-flux": ["clip_l", "t5xxl"], "tiny-sd3": ["clip_l", "clip_g", "t5xxl"]}

    def load(self, artifact):
        family = artifact.family
        unet = {f"diffusion_model.{k}": v for k, v in makers.to_makers(denoiser(family)).items()}
        texts = {f"{prefix}.transformer.{k}": v.clone() for prefix, c in zip(self.CLIPS[family], text_encoders(family))
                 for k, v in c.weights.items()}
        names = self.comfy.lora.model_lora_keys_unet(self.model(family, unet), {})
        clip = type("Clip", (), dict(state_dict=lambda self: texts))()
        names = self.comfy.lora.model_lora_keys_clip(clip, names)
        file = self.comfy.utils.load_torch_file(str(artifact.path), safe_load=True)
        with messages() as lines:
            patches = self.comfy.lora.load_lora(self.comfy.lora_convert.convert_lora(file), names)
            missed = {line.removeprefix("lora key not loaded: ") for line in lines if line.startswith("lora key not loaded: ")}
            everything = unet | texts
            for target, patch in patches.items():
                key, offset, function = (target, None, None) if isinstance(target, str) else (*target, None)[:3]
                if key not in everything:
                    missed.add(f"(no weight {key})")
                    continue
                everything[key] = self.comfy.lora.calculate_weight([(1.0, patch, 1.0, offset, function)], everything[key].clone(), key)
        changed = {k.removeprefix("diffusion_model."): v for k, v in everything.items() if k in unet}
        outputs = {denoiser(family).name: denoiser(family).run_weights(makers.from_makers(denoiser(family), changed))}
        for prefix, c in zip(self.CLIPS[family], text_encoders(family)):
            prefix += ".transformer."
            outputs[c.name] = c.run_weights({k.removeprefix(prefix): everything[k] for k in texts if k.startswith(prefix)})
        return Loaded(len(file) - len(missed), len(file), outputs, sorted(missed)[:3] + [l for l in lines if l.startswith("ERROR")][:2])


def run_tree(artifact, hang):
    """`hang(tree, text encoders)` puts a program's network upon the modules; the outputs with it."""
    family = artifact.family
    top, texts = makers.tree(denoiser(family), hang.root), [c.open() for c in text_encoders(family)]
    hang(top, texts)
    outputs = {denoiser(family).name: denoiser(family).run_weights(makers.from_makers(denoiser(family), makers.probe(top)))}
    for c, model in zip(text_encoders(family), texts):
        outputs[c.name] = c.run(model)
    return outputs


class SdScripts(Program):
    """create_network_from_weights() of networks.lora, lora_flux and lora_sd3, applied to modules of the classes that it looks for."""

    formats = ("kohya",)
    algorithms = ("lora",)

    def __init__(self, folder):
        if not folder:
            raise Absent("no --sd-scripts DIR")
        sys.path.insert(0, str(folder))
        from library.sdxl_original_unet import SdxlUNet2DConditionModel
        from networks import lora, lora_flux, lora_sd3
        self.modules = {"tiny": lora, "tiny-flux": lora_flux, "tiny-sd3": lora_sd3}
        self.root = SdxlUNet2DConditionModel
        self.name = f"sd-scripts {revision_of(folder)}"

    def load(self, artifact):
        file = read(artifact)
        info = {}

        def hang(top, texts):
            network, weights = self.modules[artifact.family].create_network_from_weights(
                1.0, str(artifact.path), None, texts, top, for_inference=True)
            network.apply_to(texts, top, True, True)
            info["found"] = network.load_state_dict(weights, False)
            network.requires_grad_(False)

        hang.root = self.root if artifact.family == "tiny" else torch.nn.Module
        with contextlib.redirect_stdout(io.StringIO()):
            outputs = run_tree(artifact, hang)
        unknown, missing = info["found"].unexpected_keys, [k for k in info["found"].missing_keys if "org_module" not in k]
        return Loaded(len(file) - len(unknown), len(file), outputs, sorted(unknown)[:3] + [f"(not in the file: {k})" for k in missing[:3]])


def denoiser_with(family, top):
    """The outputs of a family whose denoiser has the weights of a tree, and whose text encoders are as they were."""
    outputs = {denoiser(family).name: denoiser(family).run_weights(makers.from_makers(denoiser(family), makers.weights_of(top)))}
    return outputs | {c.name: c.run(c.open()) for c in text_encoders(family)}


def stand_in_module(name, **members):
    """For what a program's loader imports and does not call."""
    module = types.ModuleType(name)
    module.__path__ = []
    module.__getattr__ = lambda member: type(member, (), dict(__init__=lambda self, *_, **__: None, __iter__=lambda self: iter(())))
    module.__dict__.update(members)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)
    return module


class A1111(Program):
    """load_network() of extensions-builtin/Lora, and calc_updown() of what it made, as network_apply_weights() does. The denoiser alone."""

    formats = ("kohya",)
    families = ("tiny",)

    def __init__(self, folder):
        if not folder:
            raise Absent("no --a1111 DIR")
        sys.path.insert(0, str(folder / "extensions-builtin/Lora"))
        stand_in_module("gradio")
        modules = stand_in_module("modules")
        for name in ("shared", "devices", "sd_models", "errors", "scripts", "sd_hijack", "cache", "hashes", "patches"):
            stand_in_module("modules." + name)
        modules.devices.cpu, modules.devices.dtype = torch.device("cpu"), torch.float32
        modules.sd_models.read_state_dict = load_file
        for name in ("textual_inversion", "textual_inversion.textual_inversion", "models", "models.sd3", "models.sd3.mmdit"):
            stand_in_module("modules." + name)
        modules.shared.cmd_opts = type("Options", (), dict(lora_dir=tempfile.mkdtemp(), lyco_dir_backcompat=tempfile.mkdtemp()))
        sys.modules.pop("networks", None)  # sd-scripts has a package of this name
        self.networks, self.shared = importlib.import_module("networks"), modules.shared
        self.name = f"A1111 {revision_of(folder)}"

    def load(self, artifact):
        top = makers.tree(denoiser(artifact.family), norms=True)
        layers = {"diffusion_model_" + name.replace(".", "_"): layer for name, layer in top.named_modules()}
        self.shared.sd_model = type("Model", (), dict(network_layer_mapping=layers))()
        file = read(artifact)
        on_disk = type("OnDisk", (), dict(filename=str(artifact.path), sd_version=None))()
        net = self.networks.load_network("x", on_disk)
        net.te_multiplier = net.unet_multiplier = 1.0
        net.dyn_dim = None  # as of a prompt that names none
        left = []
        with torch.no_grad():
            for key, module in net.modules.items():
                try:
                    change, of_bias = module.calc_updown(layers[key].weight)
                    layers[key].weight += change
                    if of_bias is not None:
                        layers[key].bias += of_bias
                except RuntimeError as e:  # which network_apply_weights() counts, and goes on
                    left.append(f"{key}: {e}")
        return Loaded(0 if left else len(file), len(file), denoiser_with(artifact.family, top), left)


class Forge(Program):
    """load_lora() of backend.patcher.lora with its maps of names, and merge_lora_to_weight(). The denoiser alone."""

    formats = ("kohya",)
    families = ("tiny",)

    def __init__(self, folder):
        if not folder:
            raise Absent("no --forge DIR")
        sys.path.insert(0, str(folder))
        for name in ("backend.memory_management", "backend.utils", "backend.args"):
            stand_in_module(name)
        backend = stand_in_module("backend")
        backend.__path__ = [str(folder / "backend")]
        backend.memory_management = sys.modules["backend.memory_management"]
        backend.memory_management.cast_to_device = lambda x, device, dtype, copy=False: x.to(device, dtype)
        backend.utils = sys.modules["backend.utils"]
        backend.args = sys.modules["backend.args"]
        from backend.patcher import lora
        self.lora = lora
        self.name = f"Forge {revision_of(folder)}"

    def load(self, artifact):
        top = makers.tree(denoiser(artifact.family), norms=True)
        weights = makers.weights_of(top)
        names = {"lora_unet_" + k.removesuffix(".weight").replace(".", "_"): k for k in weights if k.endswith(".weight")}
        file = read(artifact)
        patches, left = self.lora.load_lora(file, names)
        changed = dict(weights)
        for target, patch in patches.items():
            with torch.no_grad():
                changed[target] = self.lora.merge_lora_to_weight([(1.0, patch, 1.0, None, None)], weights[target].clone(), target)
        makers.put_weights(top, changed)
        return Loaded(len(file) - len(left), len(file), denoiser_with(artifact.family, top), sorted(left)[:3])


class Lycoris(Program):
    """lycoris.kohya.create_network_from_weights(), applied, so that its modules' forward() counts."""

    formats = ("kohya",)

    def __init__(self):
        self.name = f"LyCORIS {version_of('lycoris_lora')}"
        from lycoris import kohya
        logging.getLogger("LyCORIS").setLevel(logging.WARNING)
        self.kohya = kohya

    def limit(self, artifact):
        if dora_axis(artifact) == "input":
            return "its loader takes every dora_scale for that of the outputs"
        t5_of_flux = artifact.family == "tiny-flux" and any(key.startswith("lora_te3_") for key in read(artifact))
        return "counts FLUX's T5 as the second text encoder, ComfyUI and kohya's scripts as the third" if t5_of_flux else None

    def load(self, artifact):
        file = read(artifact)
        bases = {k.split(".")[0] for k in file}
        taken = set()

        def hang(top, texts):
            with torch.no_grad():
                network, _ = self.kohya.create_network_from_weights(1.0, str(artifact.path), None, texts, top, for_inference=True)
            network.apply_to(texts, top, True, True)
            network.requires_grad_(False).eval()
            taken.update(lora.lora_name for lora in network.loras)

        hang.root = torch.nn.Module
        outputs = run_tree(artifact, hang)
        missed = [k for k in file if k.split(".")[0] not in taken]
        return Loaded(len(file) - len(missed), len(file), outputs, sorted(bases - taken)[:3])


class Diffusers(Program):
    """load_lora_weights() of the family's pipeline."""

    formats = ("kohya", "diffusers")
    algorithms = ("lora", "dora")

    def __init__(self):
        self.name = f"diffusers {version_of('diffusers')}"
        import diffusers
        diffusers.utils.logging.disable_progress_bar()
        self.pipelines = {"tiny": diffusers.StableDiffusionXLPipeline, "tiny-flux": diffusers.FluxPipeline,
                          "tiny-sd3": diffusers.StableDiffusion3Pipeline}

    def limit(self, artifact):
        if dora_axis(artifact):
            return "leaves dora_scale out"  # 0.42; 0.39 took each for that of the outputs
        if artifact.format != "kohya":
            return None
        return {"tiny-sd3": "knows no names of kohya's for SD3",
                "tiny-flux": "takes kohya's FLUX apart at 3072 channels, whatever the model's width"}.get(artifact.family)

    def load(self, artifact):
        parts = {c.name: c.open() for c in FAMILIES[artifact.family]}
        pipeline = self.pipelines[artifact.family].from_pretrained(MODELS / artifact.family, torch_dtype=torch.float32, **parts)
        file = read(artifact)
        with messages() as lines:
            pipeline.load_lora_weights(str(artifact.path.parent), weight_name=artifact.path.name)
        complaints = [l for l in lines if "unexpected" in l or "not " in l and "key" in l]
        outputs = {c.name: c.run(getattr(pipeline, c.name)) for c in FAMILIES[artifact.family]}
        adapted = sum(len({n for n, _ in getattr(pipeline, name).named_modules() if n.endswith("lora_A.default_0")}) for name in parts)
        return Loaded(0 if not adapted else len(file), len(file), outputs, [l[:150] for l in complaints[:2]])


class Peft(Program):
    """PeftModel.from_pretrained()."""

    formats = ("peft",)
    families = ("tiny", "tiny-llm")

    def __init__(self):
        self.name = f"peft {version_of('peft')}"
        import peft
        self.peft = peft

    def load(self, artifact):
        c = denoiser(artifact.family)
        file = load_file(artifact.path / "adapter_model.safetensors")
        model = self.peft.PeftModel.from_pretrained(c.open(), artifact.path)
        found = model.load_adapter(artifact.path, "default")
        missing = [k for k in found.missing_keys if "default" in k]
        unknown = list(found.unexpected_keys)
        return Loaded(len(file) - len(unknown), len(file), {c.name: c.run(model.eval())},
                      unknown[:3] + [f"(not in the file: {k})" for k in missing[:3]])


class LlamaCpp(Program):
    """llama_adapter_lora_init() upon the model as `wick convert` makes a GGUF file of it."""

    formats = ("gguf",)
    families = ("tiny-llm",)
    algorithms = ("lora",)

    def __init__(self, wick, scratch):
        self.name = f"llama.cpp (llama-cpp-python {version_of('llama_cpp_python')})"
        from llama_cpp import llama_cpp
        self.engine = llama_cpp
        self.model = Path(scratch) / "base.gguf"
        if not self.model.exists():
            wick("convert", "--model", MODELS / "tiny-llm", "--output", self.model, "--dtype", "f32")

    def load(self, artifact):
        import gguf
        import numpy as np
        engine, c = self.engine, denoiser(artifact.family)
        ids = c.inputs["input_ids"]
        engine.llama_backend_init()
        model = engine.llama_model_load_from_file(str(self.model).encode(), engine.llama_model_default_params())
        adapter = engine.llama_adapter_lora_init(model, str(artifact.path).encode())
        if not adapter:
            raise RuntimeError("llama_adapter_lora_init gave none")
        rows = []
        for line in ids.tolist():
            settings = engine.llama_context_default_params()
            settings.n_ctx = settings.n_batch = settings.n_ubatch = 64
            settings.type_k = settings.type_v = 0  # a cache of f32, not f16
            settings.flash_attn_type = 0
            context = engine.llama_init_from_model(model, settings)
            engine.llama_set_adapter_lora(context, adapter, 1.0)
            batch = engine.llama_batch_init(len(line), 0, 1)
            batch.n_tokens = len(line)
            for i, token in enumerate(line):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
            assert engine.llama_decode(context, batch) == 0
            logits = [np.ctypeslib.as_array(engine.llama_get_logits_ith(context, i), shape=(c.config["vocab_size"],)).copy()
                      for i in range(len(line))]
            rows.append(np.stack(logits))
            engine.llama_free(context)
        tensors = len(gguf.GGUFReader(artifact.path).tensors)
        return Loaded(tensors, tensors, {c.name: dict(logits=torch.from_numpy(np.stack(rows)))})


class Merged(Program):
    """A merged model, as diffusers or transformers loads it."""

    formats = ("model",)
    families = tuple(FAMILIES)

    def __init__(self):
        self.name = f"diffusers {version_of('diffusers')}, transformers {version_of('transformers')}"

    def load(self, artifact):
        outputs, keys = {}, 0
        for c in FAMILIES[artifact.family]:
            folder = artifact.path / c.name if c.name else artifact.path
            more = dict(low_cpu_mem_usage=False) if c.kind.__module__.startswith("diffusers") else {}
            model, info = c.kind.from_pretrained(folder, torch_dtype=torch.float32, output_loading_info=True, **more)
            keys += len(list(model.named_parameters()))
            assert not info["unexpected_keys"], info["unexpected_keys"][:3]
            outputs[c.name] = c.run(model.eval().float())  # its vectors are as they were
        return Loaded(keys, keys, outputs)
