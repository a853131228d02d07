"""The small models that ship with Wick, as diffusers and transformers run them, in f32."""

import copy
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from diffusers import FluxTransformer2DModel, SD3Transformer2DModel, UNet2DConditionModel
from transformers import AutoModelForCausalLM, CLIPTextModel, CLIPTextModelWithProjection, T5EncoderModel

MODELS = Path(__file__).resolve().parents[2] / "models"


def numbers(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def integers(seed, end, *shape):
    return torch.randint(end, shape, generator=torch.Generator().manual_seed(seed))


@dataclass
class Component:
    """A part of a model; `kind` is the class that runs it."""

    family: str
    name: str
    kind: type

    @property
    def folder(self):
        return MODELS / self.family / self.name if self.name else MODELS / self.family

    @cached_property
    def config(self):
        return json.loads((self.folder / "config.json").read_text())

    @cached_property
    def loaded(self):
        # diffusers keeps no table of sines and would leave it undrawn
        more = dict(low_cpu_mem_usage=False) if self.kind.__module__.startswith("diffusers") else {}
        return self.kind.from_pretrained(self.folder, torch_dtype=torch.float32, **more).eval().requires_grad_(False)

    def open(self):
        """One that may be changed."""
        return copy.deepcopy(self.loaded)

    @cached_property
    def weights(self):
        return {name: p.detach() for name, p in self.open().named_parameters()}

    @cached_property
    def inputs(self):
        """As `wick forward` takes them."""
        c, family = self.config, self.family
        if self.kind is UNet2DConditionModel:
            pooled = c["projection_class_embeddings_input_dim"] - 6 * c["addition_time_embed_dim"]
            return dict(sample=numbers(1, 2, 4, 16, 24), timestep=torch.tensor([801.0, 40.0]),
                        encoder_hidden_states=numbers(2, 2, 77, c["cross_attention_dim"]), text_embeds=numbers(3, 2, pooled),
                        time_ids=torch.tensor([[128, 192, 0, 0, 128, 192], [100, 128, 4, 0, 128, 128]], dtype=torch.float32))
        if self.kind is FluxTransformer2DModel:
            ids = torch.stack(torch.meshgrid(torch.zeros(1), torch.arange(4.0), torch.arange(6.0), indexing="ij"), -1).reshape(-1, 3)
            return dict(hidden_states=numbers(1, 1, 24, c["in_channels"]), encoder_hidden_states=numbers(2, 1, 20, c["joint_attention_dim"]),
                        pooled_projections=numbers(3, 1, c["pooled_projection_dim"]), timestep=torch.tensor([0.6]),
                        guidance=torch.tensor([1.0]), img_ids=ids, txt_ids=torch.zeros(20, 3))
        if self.kind is SD3Transformer2DModel:
            return dict(hidden_states=numbers(1, 1, 16, 12, 16), encoder_hidden_states=numbers(2, 1, 20, c["joint_attention_dim"]),
                        pooled_projections=numbers(3, 1, c["pooled_projection_dim"]), timestep=torch.tensor([600.0]))
        if self.kind is AutoModelForCausalLM:
            return dict(input_ids=integers(1, c["vocab_size"], 2, 24))
        end = c["eos_token_id"]
        ids = integers(1, min(c["vocab_size"], 600), 2, 77)
        ids[:, -1] = end
        return dict(input_ids=ids)

    def run(self, model):
        """Of a model that a program has changed, under Wick's names."""
        x = self.inputs
        with torch.no_grad():
            if self.kind is UNet2DConditionModel:
                more = dict(text_embeds=x["text_embeds"], time_ids=x["time_ids"])
                return dict(sample=model(x["sample"], x["timestep"], x["encoder_hidden_states"], added_cond_kwargs=more).sample)
            if self.kind in (FluxTransformer2DModel, SD3Transformer2DModel):
                return dict(sample=model(**x).sample)
            if self.kind is AutoModelForCausalLM:
                return dict(logits=model(**x).logits)
            found = model(**x)
            if self.kind is T5EncoderModel:
                return dict(last_hidden_state=found.last_hidden_state)
            pooled = found.text_embeds if self.kind is CLIPTextModelWithProjection else found.pooler_output
            return dict(last_hidden_state=found.last_hidden_state, pooled=pooled)

    def run_weights(self, weights):
        """With other weights under the names of diffusers' or transformers' parameters, some of which may be missing."""
        model = self.open()
        left = dict(weights)
        for name, p in model.named_parameters():
            if name in left:
                p.data = left.pop(name).reshape(p.shape).to(p.dtype)
        for name in [n for n in left if n.endswith(".bias")]:  # of a layer that had none
            layer = model.get_submodule(name.removesuffix(".bias"))
            layer.bias = torch.nn.Parameter(left.pop(name))
        assert not left, sorted(left)
        return self.run(model)


def parts(family, **kinds):
    return [Component(family, name, kind) for name, kind in kinds.items()]


FAMILIES = {
    "tiny": parts("tiny", unet=UNet2DConditionModel, text_encoder=CLIPTextModel, text_encoder_2=CLIPTextModelWithProjection),
    "tiny-flux": parts("tiny-flux", transformer=FluxTransformer2DModel, text_encoder=CLIPTextModel, text_encoder_2=T5EncoderModel),
    "tiny-sd3": parts("tiny-sd3", transformer=SD3Transformer2DModel, text_encoder=CLIPTextModelWithProjection,
                      text_encoder_2=CLIPTextModelWithProjection, text_encoder_3=T5EncoderModel),
    "tiny-llm": [Component("tiny-llm", "", AutoModelForCausalLM)],
}


def component(family, name):
    return next(c for c in FAMILIES[family] if c.name == name)
