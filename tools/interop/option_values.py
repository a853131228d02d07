"""The settings of a run of Wick's that other trainers' values ask for: a second table, written from those programs' code alone.

Each function takes the values that a program has after it read a file (OptionWriter.values) and gives {setting of `wick train`: value}, with
the settings named as a run's config.toml names them. What is not in the result is not compared.
"""

import math


def arguments(words):
    """["a=1", ...] as {a: "1"}."""
    return dict(w.split("=", 1) for w in words or [] if "=" in w)


def truth(text):
    return str(text).lower() in ("true", "1")


def rates(main, others):
    """As a run's lr: a number, or a list with those of patterns that differ."""
    extra = [f"{pattern}={rate:g}" for pattern, rate in others.items() if rate != main]
    return [main, *extra] if extra else main


KOHYA_OPTIMIZERS = {"adamw": ("adamw", 0.01), "adamw8bit": ("adamw8bit", 0.01), "pagedadamw8bit": ("adamw8bit", 0.01), "lion": ("lion", 0), "lion8bit": ("lion8bit", 0),
                    "adafactor": ("adafactor", 0), "prodigy": ("prodigy", 0), "adamwschedulefree": ("schedule-free", 0)}
KOHYA_DTYPES = {"no": "f32", "fp16": "f16", "bf16": "bf16", "float": "f32", None: "f32"}


def kohya(v, family):
    args, dim = arguments(v["network_args"]), v["network_dim"] or 4
    module = v["network_module"] or "networks.lora"
    algorithm = args.get("algo", "lora") if module == "lycoris.kohya" else {"networks.loha": "loha", "networks.lokr": "lokr"}.get(module, "lora")
    algorithm = "lora" if algorithm == "locon" else algorithm
    everything = module == "lycoris.kohya" and args.get("preset", "full") == "full" and family == "sdxl"  # its convolutions have its ranks unless told
    conv = int(float(args.get("conv_dim") or (dim if everything else 0)))
    s = dict(rank=dim, alpha=v["network_alpha"] or dim, adapter="dora" if algorithm == "lora" and truth(args.get("dora_wd")) else algorithm, conv_rank=conv,
             conv_alpha=float(args.get("conv_alpha") or (v["network_alpha"] if everything else 1)) if conv else 0,
             lora_dropout=v["network_dropout"] or 0, rank_dropout=float(args.get("rank_dropout", 0)), module_dropout=float(args.get("module_dropout", 0)),
             lora_plus=float(args.get("loraplus_lr_ratio", 1)), scale_weight_norms=v["scale_weight_norms"] or 0)
    optimizer = (v["optimizer_type"] or ("AdamW8bit" if v["use_8bit_adam"] else "Lion" if v["use_lion_optimizer"] else "AdamW")).lower()
    s["optimizer"], decay = KOHYA_OPTIMIZERS.get(optimizer, (optimizer, 0))
    s["weight_decay"] = float(arguments(v["optimizer_args"]).get("weight_decay", decay))
    s |= kohya_rates(v, family)
    s |= kohya_schedule(v, s["optimizer"])
    if s["optimizer"] == "adafactor" and truth(arguments(v["optimizer_args"]).get("relative_step", "True")):
        s |= dict(lr=0.01, lr_schedule="constant")  # min(0.01, 1 / sqrt(step)), whatever the rates
    s |= dict(batch_size=v["train_batch_size"], accumulate=v["gradient_accumulation_steps"], max_grad_norm=v["max_grad_norm"], gradient_checkpointing=v["gradient_checkpointing"],
              dtype=KOHYA_DTYPES[v["mixed_precision"]], save_dtype=KOHYA_DTYPES[v["save_precision"]], prior_loss_weight=v["prior_loss_weight"], masked_loss=v["masked_loss"],
              save_every_epochs=v["save_every_n_epochs"] or 0, keep_last=v["save_last_n_epochs"] or 0, name=v["output_name"],
              ip_noise_gamma=v["ip_noise_gamma"] or 0, loss_type=v["loss_type"], huber_c=v["huber_c"], huber_schedule=v["huber_schedule"], huber_scale=v["huber_scale"],
              quantize="fp8" if v["fp8_base"] or v.get("fp8_base_unet") else "none")
    if v["save_every_n_steps"]:
        s["save_every"] = v["save_every_n_steps"]
    if v["max_train_epochs"]:
        s["epochs"] = v["max_train_epochs"]
    else:
        s["steps"] = v["max_train_steps"]
    if v["seed"] is not None:
        s["seed"] = v["seed"]
    if not v["dataset_config"]:
        s |= kohya_data(v)
    return s | {"sdxl": kohya_sdxl, "sd3": kohya_sd3, "flux": kohya_flux}[family](v)


def kohya_rates(v, family):
    base = v["learning_rate"]
    unet = v["unet_lr"] if v["unet_lr"] is not None and not v["network_train_text_encoder_only"] else base
    cached = v.get("cache_text_encoder_outputs") or v.get("cache_text_encoder_outputs_to_disk")
    if v["network_train_unet_only"] or cached:
        return dict(lr=unet)
    given = v["text_encoder_lr"]
    given = given if isinstance(given, list) else [given] if given is not None else [base]
    encoders = {"sdxl": ["text_encoder.*", "text_encoder_2.*"], "sd3": ["text_encoder.*", "text_encoder_2.*"], "flux": ["text_encoder.*"]}[family]
    others = {e: given[min(i, len(given) - 1)] for i, e in enumerate(encoders)}
    return dict(lr=rates(unet, {e: r for e, r in others.items() if r != 0}))


def kohya_schedule(v, optimizer):
    if optimizer == "schedule-free":
        return {}
    name, warmup = v["lr_scheduler"], v["lr_warmup_steps"] or 0
    return dict(lr_schedule={"constant_with_warmup": "constant", "cosine_with_restarts": "cosine-with-restarts"}.get(name, name), warmup=0 if name == "constant" else warmup,
                lr_scheduler_num_cycles=v["lr_scheduler_num_cycles"], lr_scheduler_power=v["lr_scheduler_power"])


def kohya_data(v):
    sides = [float(x) for x in str(v["resolution"]).strip("[]()").split(",")]
    free = v["enable_bucket"] and not v["bucket_no_upscale"]
    return dict(resolution=math.sqrt(sides[0] * sides[-1]), no_bucket=not v["enable_bucket"], no_upscale=bool(v["enable_bucket"] and v["bucket_no_upscale"]),
                bucket_step=v["bucket_reso_steps"], min_bucket_reso=v["min_bucket_reso"] if free else 0, max_bucket_reso=v["max_bucket_reso"] if free else 0,
                caption_extension=v["caption_extension"], shuffle_caption=v["shuffle_caption"], keep_tokens=v["keep_tokens"], caption_dropout=v["caption_dropout_rate"],
                caption_tag_dropout_rate=v["caption_tag_dropout_rate"], caption_separator=v["caption_separator"], flip_aug=v["flip_aug"], color_aug=v["color_aug"],
                random_crop=v["random_crop"], alpha_mask=v["alpha_mask"])


def kohya_sdxl(v):
    return dict(prediction=("v-zero-snr" if v["zero_terminal_snr"] else "v") if v["v_parameterization"] else "auto", scale_v_pred_loss_like_noise_pred=v["scale_v_pred_loss_like_noise_pred"], min_snr_gamma=v["min_snr_gamma"] or 0, debiased_estimation_loss=v["debiased_estimation_loss"],
                noise_offset=v["noise_offset"] or 0, multires_noise_iterations=v["multires_noise_iterations"] or 0, multires_noise_discount=v["multires_noise_discount"])


def kohya_sd3(v):
    scheme, shift = v["weighting_scheme"], v["training_shift"]
    s = dict(t5_tokens=v["t5xxl_max_token_length"] or 256, t5_mask=v["apply_t5_attn_mask"], weighting_scheme="none" if scheme == "sigma_sqrt" else "sigma-squared",
             stream_blocks=str(v["blocks_to_swap"] or 0))
    if scheme == "logit_normal":
        return s | dict(timesteps="logit-normal", timestep_mean=v["logit_mean"] + math.log(shift), timestep_std=v["logit_std"])
    return s | dict(timesteps="mode" if scheme == "mode" else "uniform", timestep_shift=shift)


def kohya_flux(v):
    how, shift = v["timestep_sampling"], v["discrete_flow_shift"]
    # Without it both programs take what the model was made for, which is 0 here.
    s = dict(train_guidance=v["guidance_scale"], t5_tokens=v["t5xxl_max_token_length"] or 0, t5_mask=v["apply_t5_attn_mask"], stream_blocks=str(v["blocks_to_swap"] or 0),
             checkpoints_on_host=v["cpu_offload_checkpointing"])
    if how == "sigma":
        if v["weighting_scheme"] == "logit_normal":
            return s | dict(timesteps="logit-normal", timestep_mean=v["logit_mean"] + math.log(shift), timestep_std=v["logit_std"])
        return s | dict(timesteps="uniform", timestep_shift=shift)
    if how == "uniform":
        return s | dict(timesteps="uniform", timestep_shift=1)
    s |= dict(timesteps="logit-normal", timestep_std=v["sigmoid_scale"])
    return s | {"sigmoid": dict(timestep_mean=0), "shift": dict(timestep_shift=shift), "flux_shift": dict(timestep_shift="auto")}[how]


JOB_OPTIMIZERS = {"adamw": 0.01, "adamw8bit": 0.01, "lion": 0, "lion8bit": 0, "adafactor": 0, "prodigy": 0}
JOB_DTYPES = {"float16": "f16", "fp16": "f16", "bf16": "bf16", "bfloat16": "bf16", "float32": "f32", "fp32": "f32"}


def ai_toolkit(v, family):
    name = v["train.optimizer"].lower()
    name = {"prodigyopt": "prodigy"}.get(name, name)
    rate = v["train.unet_lr"]
    resolution = v["datasets[0].resolution"]
    s = dict(rank=v["network.linear"], alpha=v["network.linear_alpha"] if family == "sdxl" else v["network.linear"], adapter={"locon": "lora"}.get(v["network.type"], v["network.type"]),
             conv_rank=(v["network.conv"] or 0) if family == "sdxl" else 0, conv_alpha=(v["network.conv_alpha"] or 0) if family == "sdxl" else 0,
             lora_dropout=v["network.dropout"] or 0, save_every=v["save.save_every"], keep_last=v["save.max_step_saves_to_keep"], save_dtype=JOB_DTYPES[v["save.dtype"]],
             caption_extension=v["datasets[0].caption_ext"], caption_dropout=v["datasets[0].caption_dropout_rate"], shuffle_caption=v["datasets[0].shuffle_tokens"],
             keep_tokens=v["datasets[0].keep_tokens"], caption_tag_dropout_rate=v["datasets[0].token_dropout_rate"], flip_aug=v["datasets[0].flip_x"], random_crop=v["datasets[0].random_crop"],
             resolution=resolution, bucket_step=v["datasets[0].bucket_tolerance"], no_upscale=True, alpha_mask=v["datasets[0].alpha_mask"],
             batch_size=v["train.batch_size"], steps=v["train.steps"], accumulate=max(v["train.gradient_accumulation"], v["train.gradient_accumulation_steps"]),
             gradient_checkpointing=v["train.gradient_checkpointing"], optimizer=name, weight_decay=float(v["train.optimizer_params"].get("weight_decay", JOB_OPTIMIZERS.get(name, 0))),
             lr=1.0 if name == "prodigy" and rate < 0.1 else rate, lr_schedule=v["train.lr_scheduler"].replace("_with_warmup", ""), max_grad_norm=v["train.max_grad_norm"],
             ema=v["train.ema_config.ema_decay"] if v.get("train.ema_config.use_ema") else 0, ema_warmup="none" if v.get("train.ema_config.use_ema") else "updates", dtype=JOB_DTYPES[v["train.dtype"]],
             loss_type={"mse": "l2", "mae": "l1"}.get(v["train.loss_type"], v["train.loss_type"]), noise_offset=v["train.noise_offset"], prior_loss_weight=v["train.reg_weight"],
             min_snr_gamma=v["train.min_snr_gamma"] or 0, prediction="v" if v["model.is_v_pred"] else "auto",
             quantize={"qfloat8": "fp8", "float8": "fp8", "qint8": "int8"}.get(v["model.qtype"], v["model.qtype"]) if v["model.quantize"] else "none")
    if v["network.type"] == "lokr" and v["network.lokr_full_rank"]:  # said by a rank of 9999999999
        for key in ("rank", "alpha", "conv_rank", "conv_alpha"):
            del s[key]
        s["lokr_full"] = True
    if family == "sdxl":
        return s
    kind = v["train.timestep_type"]
    s |= dict(timesteps="logit-normal", timestep_mean=0, timestep_std=1) if kind == "sigmoid" else dict(timesteps="uniform", timestep_shift={"linear": 1}.get(kind, "auto"))
    return s | (dict(train_guidance=v["train.cfg_scale"]) if family == "flux" else {})


TRAINER_OPTIMIZERS = {"ADAMW": "adamw", "ADAMW_8BIT": "adamw8bit", "LION": "lion", "LION_8BIT": "lion8bit", "ADAFACTOR": "adafactor", "PRODIGY": "prodigy",
                      "SCHEDULE_FREE_ADAMW": "schedule-free"}
TRAINER_DECAYS = {"adamw": 0.01, "adamw8bit": 0.01, "schedule-free": 0.01}  # of modules/util/create.py where a file has none
TRAINER_DTYPES = {"FLOAT_16": "f16", "BFLOAT_16": "bf16", "FLOAT_32": "f32", "TFLOAT_32": "f32"}
TRAINER_TYPES = {"FLOAT_8": "fp8", "INT_8": "int8", "NFLOAT_4": "nf4"}


def onetrainer(v, family):
    part = "unet" if family == "sdxl" else "transformer"
    main = v[f"{part}.learning_rate"] or v["learning_rate"]
    encoders = {"sdxl": 2, "flux": 2, "sd3": 3}[family]
    names = ["text_encoder", "text_encoder_2", "text_encoder_3"][:encoders]
    optimizer = TRAINER_OPTIMIZERS.get(v["optimizer.optimizer"], v["optimizer.optimizer"])
    warmup = v["learning_rate_warmup_steps"]
    image, text = "concepts[0].image.", "concepts[0].text."
    s = dict(adapter={"LORA": "lora", "LOHA": "loha"}.get(v["peft_type"], v["peft_type"]), rank=v["lora_rank"], alpha=v["lora_alpha"], lora_dropout=v["dropout_probability"],
             epochs=v["epochs"], batch_size=v["batch_size"], accumulate=v["gradient_accumulation_steps"], optimizer=optimizer, weight_decay=TRAINER_DECAYS.get(optimizer, 0) if v["optimizer.weight_decay"] is None else v["optimizer.weight_decay"],
             lr=rates(main, {f"{n}.*": v[f"{n}.learning_rate"] or v["learning_rate"] for n in names if v[f"{n}.train"]}),
             warmup=math.floor(warmup / v["gradient_accumulation_steps"]) if warmup > 1 else warmup, max_grad_norm=v["clip_grad_norm"], ema=0 if v["ema"] == "OFF" else v["ema_decay"],
             dtype=TRAINER_DTYPES[v["train_dtype"]], tf32=v["train_dtype"] == "TFLOAT_32", save_dtype=TRAINER_DTYPES[v["output_dtype"]],
             quantize=TRAINER_TYPES.get(v[f"{part}.weight_dtype"], "none"), gradient_checkpointing=v[f"{part}.gradient_checkpointing"], resolution=float(v["resolution"]),
             no_bucket=not v["aspect_ratio_bucketing"], noise_offset=v["offset_noise_weight"], ip_noise_gamma=v["perturbation_noise_weight"],
             loss_type="l2" if v["mse_strength"] == 1 else "l1", flip_aug=v[image + "enable_random_flip"], shuffle_caption=v[text + "enable_tag_shuffling"],
             caption_extension=".txt", caption_lines=True, prediction="v" if v["force_v_prediction"] else "epsilon" if v["force_epsilon_prediction"] else "auto",
             targets=onetrainer_targets(v, family, part, names))
    if optimizer != "schedule-free":
        s["lr_schedule"] = {"CONSTANT": "constant", "LINEAR": "linear", "COSINE": "cosine", "COSINE_WITH_HARD_RESTARTS": "cosine-with-restarts"}.get(v["learning_rate_scheduler"])
    unit = v["save_every_unit"]
    s |= {"STEP": dict(save_every=v["save_every"]), "EPOCH": dict(save_every_epochs=v["save_every"]), "MINUTE": dict(save_every_minutes=v["save_every"])}.get(unit, {})
    if family == "sdxl":
        return s | dict(min_snr_gamma=v["loss_weight_strength"] if v["loss_weight_fn"] == "MIN_SNR_GAMMA" else 0)
    return s | onetrainer_times(v) | (dict(train_guidance=v["transformer.guidance_scale"], t5_tokens=v["text_encoder_2_sequence_length"] or 77) if family == "flux" else dict(t5_tokens=77))


def onetrainer_targets(v, family, part, names):
    # A module has one of these in its name. The page writes a preset's there: LAYER_PRESETS of BaseStableDiffusionXLSetup.py.
    words = (v["layer_filter"] or {"full": "", "attn-mlp": "attentions"}[v["layer_filter_preset"]]).split(",")
    chosen = [f"{part}.*{word.strip()}*" if word else f"{part}.*" for word in words]
    return (chosen if v[f"{part}.train"] else []) + [f"{n}.*" for n in names if v[f"{n}.train"]]


def onetrainer_times(v):
    dynamic, shift = v["dynamic_timestep_shifting"], v["timestep_shift"]
    if v["timestep_distribution"] == "UNIFORM":
        return dict(timesteps="uniform", timestep_shift="auto" if dynamic else shift)
    s = dict(timesteps="logit-normal", timestep_std=v["noising_weight"] + 1)
    return s | (dict(timestep_shift="auto") if dynamic else dict(timestep_mean=v["noising_bias"] + math.log(shift)))


def musubi(v, family):
    optimizer = v["optimizer_type"].lower()
    s = dict(rank=v["network_dim"] or 4, alpha=v["network_alpha"], adapter={"networks.loha": "loha", "networks.lokr": "lokr"}.get(v["network_module"], "lora"),
             lora_dropout=v["network_dropout"] or 0, scale_weight_norms=v["scale_weight_norms"] or 0, lr=v["learning_rate"], optimizer=KOHYA_OPTIMIZERS[optimizer][0],
             weight_decay=float(arguments(v["optimizer_args"]).get("weight_decay", KOHYA_OPTIMIZERS[optimizer][1])), max_grad_norm=v["max_grad_norm"],
             accumulate=v["gradient_accumulation_steps"], gradient_checkpointing=v["gradient_checkpointing"], checkpoints_on_host=v["gradient_checkpointing_cpu_offload"],
             dtype=KOHYA_DTYPES[v["mixed_precision"]], quantize="fp8" if v["fp8_base"] else "none", stream_blocks=str(v["blocks_to_swap"] or 0), name=v["output_name"],
             save_every_epochs=v["save_every_n_epochs"] or 0, train_guidance=1, bucket_step=16, caption_extension=".txt", batch_size=1, resolution=128, dataset=v["image_directory"])
    s |= kohya_schedule(v, s["optimizer"])
    s |= {"epochs": v["max_train_epochs"]} if v["max_train_epochs"] else {"steps": v["max_train_steps"]}
    if v["seed"] is not None:
        s["seed"] = v["seed"]
    how, shift = v["timestep_sampling"], v["discrete_flow_shift"]
    if how in ("sigma", "uniform"):
        return s | dict(timesteps="uniform", timestep_shift=shift if how == "sigma" else 1)
    s |= dict(timesteps="logit-normal", timestep_std=v["sigmoid_scale"])
    return s | {"sigmoid": dict(timestep_mean=0), "shift": dict(timestep_shift=shift), "flux_shift": dict(timestep_shift="auto")}[how]


SETTINGS = {"kohya's scripts": kohya, "ai-toolkit": ai_toolkit, "OneTrainer": onetrainer, "musubi-tuner": musubi}
