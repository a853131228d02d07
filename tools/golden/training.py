"""Ten steps of LoRA training on the tiny SDXL's UNet: plain ones, and some with rates by module and factor, a schedule
and an average.

    python tools/golden/training.py      writes tests/golden/train/
"""

import torch
from diffusers import DDPMScheduler
from diffusers.optimization import get_polynomial_decay_schedule_with_warmup
from diffusers.training_utils import EMAModel

import lora
import sdxl_model
from golden import LORA_UNET, ROOT, randn, rng, save

STEPS, BATCH, HEIGHT, WIDTH = 10, 2, 8, 12
MAX_NORM = 0.2  # lower than anyone would use, so that some of these steps are clipped and some are not


def inputs():
    g = rng("train time_ids")
    sizes = torch.randint(512, 1537, (STEPS, BATCH, 2), generator=g).float()
    crops = torch.randint(0, 128, (STEPS, BATCH, 2), generator=g).float()
    target = torch.tensor([HEIGHT * 8.0, WIDTH * 8.0]).expand(STEPS, BATCH, 2)
    return {
        "latents": randn("train latents", STEPS, BATCH, 4, HEIGHT, WIDTH),
        "noise": randn("train noise", STEPS, BATCH, 4, HEIGHT, WIDTH),
        "timesteps": torch.randint(0, 1000, (STEPS, BATCH), generator=rng("train timesteps")),
        "prompt_embeds": randn("train prompt", STEPS, BATCH, 77, sdxl_model.TINY_UNET["cross_attention_dim"]),
        "text_embeds": randn("train text", STEPS, BATCH, sdxl_model.TINY_TE2["projection_dim"]),
        "time_ids": torch.cat([sizes, crops, target], -1),
    }


class Plain:
    def __init__(self, parameters):
        self.optimizer = self.adamw(list(parameters.values()))

    @staticmethod
    def adamw(parameters):
        return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2)

    def step(self):
        self.optimizer.step()

    def tensors(self):
        return {}


class Rates(Plain):
    """--lr 1e-3 '*attn2*=5e-4' --lora-plus 4 --lr-schedule polynomial --lr-scheduler-power 2 --warmup 3 --ema 0.6
    --ema-warmup power"""

    def __init__(self, parameters):
        groups = [{"params": [p], "lr": (5e-4 if "attn2" in name else 1e-3) * (4 if name.endswith("lora_up.weight") else 1)}
                  for name, p in parameters.items()]
        self.optimizer = self.adamw(groups)
        self.schedule = get_polynomial_decay_schedule_with_warmup(self.optimizer, 3, STEPS, power=2)
        self.names = list(parameters)
        self.average = EMAModel(parameters.values(), decay=0.6, use_ema_warmup=True, power=2 / 3)
        self.parameters = list(parameters.values())

    def step(self):
        self.optimizer.step()
        self.schedule.step()
        self.average.step(self.parameters)

    def tensors(self):
        return {f"ema.{name}": p for name, p in zip(self.names, self.average.shadow_params)}


def train(x, dtype, kind=Plain):
    unet = lora.apply(sdxl_model.unet(), "unet", LORA_UNET).to(dtype)
    x = {k: v.to(dtype) if v.is_floating_point() else v for k, v in x.items()}
    named = lora.parameters(unet, "unet")
    parameters, run = list(named.values()), kind(named)
    ddpm = DDPMScheduler(num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    losses, norms, noisy = [], [], []
    for i in range(STEPS):
        sample = ddpm.add_noise(x["latents"][i], x["noise"][i], x["timesteps"][i])
        condition = {"text_embeds": x["text_embeds"][i], "time_ids": x["time_ids"][i]}
        epsilon = unet(sample, x["timesteps"][i], x["prompt_embeds"][i], added_cond_kwargs=condition).sample
        loss = torch.nn.functional.mse_loss(epsilon, x["noise"][i])
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM))
        run.step()
        unet.zero_grad()
        losses.append(loss.detach())
        noisy.append(sample)
    out = {"losses": torch.stack(losses), "grad_norms": torch.stack(norms), "noisy_latents": torch.stack(noisy)}
    return out | {k: v.detach() for k, v in (lora.tensors(unet, "unet") | run.tensors()).items()}


def main():
    x = inputs()
    out, exact = train(x, torch.float32), train(x, torch.float64)
    save(ROOT / "train" / "in.safetensors", x,
         {"optimizer": "AdamW", "lr": "1e-3", "beta1": "0.9", "beta2": "0.999", "eps": "1e-8", "weight_decay": "1e-2",
          "max_grad_norm": str(MAX_NORM), "lora": LORA_UNET.name})
    save(ROOT / "train" / "out.safetensors", out)
    rates = train(x, torch.float32, Rates)
    del rates["noisy_latents"]
    save(ROOT / "train" / "rates.out.safetensors", rates)
    assert 0 < (out["grad_norms"] > MAX_NORM).sum() < STEPS
    print("losses", out["losses"].tolist(), "norms", out["grad_norms"].tolist())
    for k in "losses", "grad_norms", "noisy_latents":
        print(k, "float32 differs from float64 by", (out[k] - exact[k]).abs().max().item())
    print("LoRA tensors by", max((out[k] - exact[k]).abs().max().item() for k in out if "lora" in k))


if __name__ == "__main__":
    main()
