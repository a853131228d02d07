"""The schedulers alone, and text to image through the tiny SDXL, held against StableDiffusionXLPipeline.

    python tools/golden/samplers.py      writes tests/golden/samplers/
"""

import importlib
import importlib.util
import sys
import types

import torch
from diffusers import (DDPMScheduler, DPMSolverMultistepScheduler, EulerAncestralDiscreteScheduler, LCMScheduler,
                       StableDiffusionXLPipeline, UniPCMultistepScheduler)

import sdxl_model
from golden import MODEL, ROOT, randn, save


def k_diffusion():
    """Its samplers and wrappers, without the rest of the package, which wants much that they do not use."""
    package = types.ModuleType("k_diffusion")
    package.__path__ = importlib.util.find_spec("k_diffusion").submodule_search_locations
    for name in "torchvision", "torchvision.transforms", "torchvision.transforms.functional":
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["torchvision.transforms"].functional = sys.modules["torchvision.transforms.functional"]
    sys.modules["k_diffusion"] = package
    return importlib.import_module("k_diffusion.external"), importlib.import_module("k_diffusion.sampling")


k_external, k_sampling = k_diffusion()

SCHEDULERS = {"euler": sdxl_model.euler, "ddim": sdxl_model.ddim}

PROMPT = "A photo of a small red fox in the snow, golden hour"
NEGATIVE = "blurry, low quality"
HEIGHT, WIDTH = 64, 96
STEPS, GUIDANCE = 6, 5.0


def follow(out, key, scheduler, steps, seed):
    """Steps of a scheduler on given model outputs."""
    scheduler.set_timesteps(steps)
    outputs = randn(f"{seed} outputs", steps, 1, 4, 3, 5)
    x = randn(f"{seed} noise", 1, 4, 3, 5) * scheduler.init_noise_sigma
    trajectory, scaled = [x], []
    for t, output in zip(scheduler.timesteps, outputs):
        scaled.append(scheduler.scale_model_input(x, t))
        x = scheduler.step(output, t, x).prev_sample
        trajectory.append(x)
    out[key + "timesteps"] = scheduler.timesteps.float()
    if hasattr(scheduler, "sigmas"):
        out[key + "sigmas"] = scheduler.sigmas
    out[key + "init_noise_sigma"] = torch.tensor(float(scheduler.init_noise_sigma))
    out[key + "model_outputs"] = outputs
    out[key + "scaled_inputs"] = torch.stack(scaled)
    out[key + "trajectory"] = torch.stack(trajectory)


def schedulers():
    out = {}
    for name, make in SCHEDULERS.items():
        for steps in 7, 20:
            follow(out, f"{name}.{steps}.", make(), steps, f"{name} {steps}")
    out["alphas_cumprod"] = sdxl_model.ddim().alphas_cumprod
    save(ROOT / "samplers" / "schedulers.safetensors", out)


def solvers():
    """DPM-Solver++(2M) by spacing, with Karras' sigmas, for both predictions; 16 steps, and few."""
    out = {}
    for spacing in "leading", "trailing", "linspace":
        for prediction in "epsilon", "v_prediction":
            for name, changes in ("dpmpp-2m", {}), ("dpmpp-2m-karras", {"use_karras_sigmas": True}), \
                    ("sigma_min", {"final_sigmas_type": "sigma_min"}):
                for steps in 1, 5, 16:
                    scheduler = DPMSolverMultistepScheduler.from_config(
                        sdxl_model.euler().config, timestep_spacing=spacing, prediction_type=prediction, **changes)
                    key = f"{name}.{spacing}.{prediction}.{steps}"
                    follow(out, key + ".", scheduler, steps, key)
    out = {key: value for key, value in out.items() if key.endswith(("timesteps", "model_outputs", "trajectory"))}
    save(ROOT / "samplers" / "solvers.safetensors", out)


# Samplers of diffusers that draw, and UniPC.
CLASSES = {"euler-ancestral": EulerAncestralDiscreteScheduler, "unipc": UniPCMultistepScheduler, "lcm": LCMScheduler}
PATHS = {f"{spacing}.{prediction}": dict(timestep_spacing=spacing, prediction_type=prediction)
         for spacing in ("leading", "trailing", "linspace") for prediction in ("epsilon", "v_prediction")} | {
    "trailing.zsnr": dict(prediction_type="v_prediction", rescale_betas_zero_snr=True, timestep_spacing="trailing")}


def drawn_from(draws):
    """In place of diffusers' randn_tensor: the given draws, one after the other, and zeros behind them, which nothing
    may need."""
    left = iter(draws)
    return lambda shape, **_: next(left, torch.zeros(shape))


def drawing():
    """From noise to the end on given outputs of the model and given draws."""
    out = {}
    for path, changes in PATHS.items():
        for name, make in CLASSES.items():
            for steps in 1, 4, 9:
                key = f"{name}.{path}.{steps}"
                scheduler = make.from_config(sdxl_model.euler().config, **changes)
                scheduler.set_timesteps(steps)
                outputs, noise = randn(f"{key} outputs", steps, 1, 4, 3, 5), randn(f"{key} noise", 1, 4, 3, 5)
                draws = randn(f"{key} draws", max(steps - 1, 1), 1, 4, 3, 5)
                sys.modules[make.__module__].randn_tensor = drawn_from(draws)
                x = noise * scheduler.init_noise_sigma
                for t, output in zip(scheduler.timesteps, outputs):
                    scheduler.scale_model_input(x, t)
                    x = scheduler.step(output, t, x).prev_sample
                out |= {f"{key}.timesteps": scheduler.timesteps.float(), f"{key}.outputs": outputs,
                        f"{key}.noise": noise, f"{key}.draws": draws, f"{key}.last": x}
    for prediction in "epsilon", "v_prediction":
        for steps in 1, 4, 9:
            stochastic(out, f"dpmpp-sde.{prediction}.{steps}", prediction, steps)
    save(ROOT / "samplers" / "drawing.safetensors", out)


def stochastic(out, key, prediction, steps):
    """k-diffusion's sample_dpmpp_sde on Karras' sigmas from the schedule's largest to its smallest."""
    evaluations = 2 * steps - 1
    outputs, noise = randn(f"{key} outputs", evaluations, 1, 4, 3, 5), randn(f"{key} noise", 1, 4, 3, 5)
    draws, timesteps = randn(f"{key} draws", max(2 * steps - 2, 1), 1, 4, 3, 5), []

    class Given(torch.nn.Module):
        def apply_model(self, x, t, cond):
            timesteps.append(t.item())
            return outputs[len(timesteps) - 1]

        forward = apply_model

    alphas = sdxl_model.ddim().alphas_cumprod
    if prediction == "epsilon":
        model = k_external.DiscreteEpsDDPMDenoiser(Given(), alphas, quantize=False)
    else:
        given = Given()
        given.alphas_cumprod = alphas
        model = k_external.CompVisVDenoiser(given, quantize=False)
    sigmas = k_sampling.get_sigmas_karras(steps, model.sigma_min.item(), model.sigma_max.item())
    left = iter(draws)
    x = k_sampling.sample_dpmpp_sde(model, noise * sigmas[0], sigmas, extra_args={"cond": None}, disable=True,
                                    noise_sampler=lambda *_: next(left))
    out |= {f"{key}.timesteps": torch.tensor(timesteps), f"{key}.outputs": outputs, f"{key}.noise": noise,
            f"{key}.draws": draws, f"{key}.last": x}


# Models that predict v, with and without signal at the last timestep.
V_MODELS = {"v": dict(prediction_type="v_prediction"),
            "v_zsnr": dict(prediction_type="v_prediction", rescale_betas_zero_snr=True, timestep_spacing="trailing")}


def v_prediction():
    out = {}
    for model, changes in V_MODELS.items():
        for name, make in SCHEDULERS.items():
            follow(out, f"{model}.{name}.", make().from_config(make().config, **changes), 7, f"{model} {name}")
        training = DDPMScheduler.from_config(sdxl_model.ddim().config, **changes)
        latents, noise = randn(f"{model} latents", 3, 4, 3, 5), randn(f"{model} added", 3, 4, 3, 5)
        timesteps = torch.tensor([0, 500, 999])
        out |= {f"{model}.latents": latents, f"{model}.noise": noise,
                f"{model}.noisy": training.add_noise(latents, noise, timesteps),
                f"{model}.velocity": training.get_velocity(latents, noise, timesteps)}
    save(ROOT / "samplers" / "v_prediction.safetensors", out)


def encode(pipeline, text):
    """Both encoders' penultimate states side by side, and the second's pooled projection."""
    states = []
    for tokenizer, encoder in [(pipeline.tokenizer, pipeline.text_encoder),
                               (pipeline.tokenizer_2, pipeline.text_encoder_2)]:
        ids = tokenizer(text, padding="max_length", max_length=77, truncation=True, return_tensors="pt").input_ids
        out = encoder(ids, output_hidden_states=True)
        states.append(out.hidden_states[-2])
    return torch.cat(states, -1), out.text_embeds


@torch.no_grad()
def text_to_image():
    pipeline = StableDiffusionXLPipeline.from_pretrained(MODEL)
    pipeline.set_progress_bar_config(disable=True)
    unet, vae = pipeline.unet, pipeline.vae
    noise = randn("text_to_image", 1, 4, HEIGHT // 8, WIDTH // 8)
    positive, negative = encode(pipeline, PROMPT), encode(pipeline, NEGATIVE)
    time_ids = torch.tensor([[HEIGHT, WIDTH, 0, 0, HEIGHT, WIDTH]], dtype=torch.float32)
    save(ROOT / "samplers" / "text_to_image.in.safetensors",
         {"noise": noise, "prompt_embeds": positive[0], "pooled_prompt_embeds": positive[1],
          "negative_prompt_embeds": negative[0], "negative_pooled_prompt_embeds": negative[1], "time_ids": time_ids},
         {"prompt": PROMPT, "negative_prompt": NEGATIVE, "height": str(HEIGHT), "width": str(WIDTH),
          "steps": str(STEPS), "guidance_scale": str(GUIDANCE)})
    out = {}
    for name, make in SCHEDULERS.items():
        scheduler = make()
        scheduler.set_timesteps(STEPS)
        latents = noise * scheduler.init_noise_sigma
        states = torch.cat([negative[0], positive[0]])
        condition = {"text_embeds": torch.cat([negative[1], positive[1]]), "time_ids": time_ids.repeat(2, 1)}
        trajectory = []
        for t in scheduler.timesteps:
            x = scheduler.scale_model_input(torch.cat([latents, latents]), t)
            without, with_ = unet(x, t, states, added_cond_kwargs=condition).sample.chunk(2)
            epsilon = without + GUIDANCE * (with_ - without)
            latents = scheduler.step(epsilon, t, latents).prev_sample
            trajectory.append(latents)
        decoded = vae.decode(latents / vae.config.scaling_factor).sample
        image = (decoded / 2 + 0.5).clamp(0, 1)

        pipeline.scheduler = make()
        common = dict(prompt=PROMPT, negative_prompt=NEGATIVE, height=HEIGHT, width=WIDTH, num_inference_steps=STEPS,
                      guidance_scale=GUIDANCE, latents=noise)
        torch.testing.assert_close(pipeline(**common, output_type="latent").images, latents, rtol=1e-5, atol=1e-4)
        pipeline.scheduler = make()
        torch.testing.assert_close(pipeline(**common, output_type="pt").images, image, rtol=1e-5, atol=1e-4)

        out[f"{name}.trajectory"] = torch.cat(trajectory)
        out[f"{name}.latents"] = latents
        out[f"{name}.decoded"] = decoded
        out[f"{name}.image"] = image
        print(name, "latents", latents.std().item(), "image", image.std().item(), image.min().item(), image.max().item())
    save(ROOT / "samplers" / "text_to_image.out.safetensors", out)


@torch.no_grad()
def stochastic_pictures():
    """k-diffusion's sample_dpmpp_sde around the UNet of diffusers, from noise and draws in the form of `--noise`."""
    pipeline = StableDiffusionXLPipeline.from_pretrained(MODEL)
    unet, vae = pipeline.unet, pipeline.vae
    (negative, negative_pooled), (positive, positive_pooled) = encode(pipeline, NEGATIVE), encode(pipeline, PROMPT)
    condition = {"text_embeds": torch.cat([negative_pooled, positive_pooled]),
                 "time_ids": torch.tensor([[HEIGHT, WIDTH, 0, 0, HEIGHT, WIDTH]], dtype=torch.float32).repeat(2, 1)}

    class Guided(torch.nn.Module):
        def forward(self, x, t):
            without, with_ = unet(x.float().repeat(2, 1, 1, 1), t.float().repeat(2), torch.cat([negative, positive]),
                                  added_cond_kwargs=condition).sample.chunk(2)
            return without + GUIDANCE * (with_ - without)

    betas = torch.linspace(0.00085 ** 0.5, 0.012 ** 0.5, 1000, dtype=torch.float64) ** 2
    model = k_external.DiscreteEpsDDPMDenoiser(Guided(), (1 - betas).cumprod(0), quantize=False)
    sigmas = k_sampling.get_sigmas_karras(STEPS, model.sigma_min.item(), model.sigma_max.item())
    noise = randn("text_to_image", 1, 4, HEIGHT // 8, WIDTH // 8)
    draws = randn("stochastic pictures", 2 * STEPS - 2, *noise.shape)
    left = iter(draws)
    latents = k_sampling.sample_dpmpp_sde(model, noise * sigmas[0], sigmas, disable=True,
                                          noise_sampler=lambda *_: next(left)).float()
    assert next(left, None) is None
    save(ROOT / "samplers" / "stochastic.in.safetensors",
         {"noise": noise} | {f"noise.{i}": draw for i, draw in enumerate(draws)})
    save(ROOT / "samplers" / "stochastic.out.safetensors",
         {"latents": latents, "decoded": vae.decode(latents / vae.config.scaling_factor).sample})


RESCALE = 0.7


@torch.no_grad()
def guidance_rescale():
    pipeline = StableDiffusionXLPipeline.from_pretrained(MODEL)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.scheduler = sdxl_model.euler()
    latents = pipeline(prompt=PROMPT, negative_prompt=NEGATIVE, height=HEIGHT, width=WIDTH, num_inference_steps=STEPS,
                       guidance_scale=GUIDANCE, guidance_rescale=RESCALE, output_type="latent",
                       latents=randn("text_to_image", 1, 4, HEIGHT // 8, WIDTH // 8)).images
    save(ROOT / "samplers" / "guidance_rescale.safetensors", {"latents": latents}, {"guidance_rescale": str(RESCALE)})


if __name__ == "__main__":
    schedulers()
    solvers()
    drawing()
    v_prediction()
    text_to_image()
    stochastic_pictures()
    guidance_rescale()
