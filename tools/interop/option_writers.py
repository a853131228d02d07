"""Option files as other trainers' own code writes them, and the values that their own code has after it read them.

A writer is a class with `trainer` (as `wick train --explain-config` names it), a constructor that imports the program, which raises Absent
with a reason where it is not there, files(place) -> OptionFile..., and values(file) -> {key: value} with the program's defaults.
Nothing is replaced in a file but the places of models, pictures and outputs (`Place`), the resolution of data sets' files and the sizes in prompts'
files, for a CPU; of notebooks and pages that ask, `choices` name what is chosen there.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path

from programs import Absent

MODELS = {"sdxl": "tiny", "sd3": "tiny-sd3", "flux": "tiny-flux"}


@dataclass
class OptionFile:
    trainer: str
    name: str
    path: Path
    family: str  # of MODELS; "" where the file is for a model that Wick has not
    read_as: object = None  # what values() needs


@dataclass
class Place:
    """Where the small models, the pictures and what is written lie."""
    models: Path
    pictures: Path  # with one folder, 1_style
    work: Path
    count: int = field(default=0)

    def model(self, family):
        return self.models / MODELS[family]

    def part(self, family, name):
        return str(self.model(family) / name)

    def folder(self):
        self.count += 1
        made = self.work / f"made{self.count}"
        made.mkdir(parents=True)
        return made


@contextlib.contextmanager
def standing_in(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        os.chdir(before)


def small(data):
    """A data set's TOML with a resolution for a CPU, which no flag wins over."""
    return re.sub(r"^(\s*)resolution = .*", r"\1resolution = 256", data, flags=re.M)


def needs(folder, flag):
    if not folder:
        raise Absent(f"no {flag} DIR")
    sys.path.insert(0, str(folder))
    return Path(folder).resolve()


class SdScripts:
    """The parsers of sd-scripts' trainers, which write a file with --output_config and read one with --config_file."""

    trainer = "kohya's scripts"
    scripts = {"sdxl": "sdxl_train_network", "sd3": "sd3_train_network", "flux": "flux_train_network"}
    parts = {"ae": "vae", "clip_l": "text_encoder", "clip_g": "text_encoder_2", "t5xxl": {"sd3": "text_encoder_3", "flux": "text_encoder_2"}}

    def __init__(self, folder):
        self.folder = needs(folder, "--sd-scripts")
        import transformers
        if not hasattr(transformers, "CLIPFeatureExtractor"):  # its name before version 5
            transformers.CLIPFeatureExtractor = transformers.CLIPImageProcessor
        with standing_in(self.folder):
            self.parsers = {family: __import__(script).setup_parser() for family, script in self.scripts.items()}
            from library import config_util, train_util
        self.train_util, self.config_util = train_util, config_util

    def values(self, file):
        """All options of the parser, and those of the first subset of its data set's file."""
        parser = self.parsers[file.family]
        before, sys.argv = sys.argv, ["script", "--config_file", str(file.path)]
        try:
            with standing_in(self.folder):
                args = self.train_util.read_config_from_file(parser.parse_args(), parser)
        finally:
            sys.argv = before
        found = dict(vars(args))
        if found.get("dataset_config"):
            found |= self.data_values(args)
        return found

    def data_values(self, args):
        util = self.config_util
        sanitizer = util.ConfigSanitizer(True, True, False, True)
        with standing_in(self.folder):
            blueprint = util.BlueprintGenerator(sanitizer).generate(util.load_user_config(args.dataset_config), args, tokenizer=None)
        data = blueprint.dataset_group.datasets[0]
        of_data = {k: v for k, v in vars(data.params).items() if k not in ("tokenizer",)}
        of_subset = dict(vars(data.subsets[0].params))
        return {k: v for k, v in (of_subset | of_data).items() if k not in ("image_dir", "metadata_file")} | {"train_batch_size": of_data["batch_size"]}

    def write(self, family, arguments, path):
        """The file that --output_config writes for a command line."""
        before, sys.argv = sys.argv, ["script", *arguments, "--output_config", "--config_file", str(path)]
        parser, said = self.parsers[family], io.StringIO()
        try:
            with standing_in(self.folder), contextlib.redirect_stderr(said):
                self.train_util.read_config_from_file(parser.parse_args(), parser)
        except SystemExit:
            pass  # it ends when it has written
        finally:
            sys.argv = before
        if not path.exists():
            raise RuntimeError((said.getvalue().strip().splitlines() or ["sd-scripts wrote no file"])[-1])

    def placed(self, arguments, family, place, dataset):
        """Arguments with places of ours."""
        all_, found = [], dict(output_dir=str(place.folder()), pretrained_model_name_or_path=str(place.model(family)), dataset_config=str(dataset))
        for key, part in self.parts.items():
            found[key] = place.part(family, part[family] if isinstance(part, dict) else part) if not isinstance(part, dict) or family in part else ""
        i = 0
        while i < len(arguments):
            key, equals, _ = arguments[i].partition("=")
            name = key.removeprefix("--")
            if key.startswith("--") and name in found:
                all_.append(f"{key}={found[name]}")
                i += 1 if equals else 2
            else:
                all_.append(arguments[i])
                i += 1
        return all_

    def files(self, place):
        for family in self.scripts:
            page = (self.folder / f"docs/{self.scripts[family]}.md").read_text()
            data = next((b for b in re.findall(r"```toml\n(.*?)```", page, re.S) if "image_dir" in b), None)
            data = data or re.findall(r"```toml\n(.*?)```", (self.folder / "docs/config_README-en.md").read_text(), re.S)[1]
            for k, command in enumerate(re.findall(rf"accelerate launch[^`]*?{self.scripts[family]}\.py(.*?)```", page, re.S)):
                arguments = shlex.split(re.sub(r"[\\^]\n", " ", command), comments=True)
                if "..." in arguments or any("chroma" in a for a in arguments):
                    continue
                if any(ord(c) > 127 for a in arguments for c in a) and k:  # the same once more, in Japanese
                    continue
                folder = place.folder()
                dataset = folder / "dataset.toml"
                dataset.write_text(small(re.sub(r"image_dir = .*", f"image_dir = '{place.pictures / '1_style'}'", data)))
                path = folder / f"docs-{family}-{k + 1}.toml"
                try:
                    self.write(family, self.placed(arguments, family, place, dataset), path)
                except RuntimeError as e:
                    print(f"sd-scripts: docs/{self.scripts[family]}.md: its own parser refuses the command: {e}", file=sys.stderr)
                    continue
                yield OptionFile(self.trainer, f"sd-scripts/{path.stem}", path, family)


class KohyaGui:
    """kohya_ss' page: its presets opened by open_configuration(), and the file that train_model() writes then."""

    trainer = "kohya's scripts"

    def __init__(self, folder, scripts):
        self.folder, self.scripts = needs(folder, "--kohya-gui"), scripts
        with standing_in(self.folder):
            import gradio
            from kohya_gui import lora_gui
            from kohya_gui.class_gui_config import KohyaSSGUIConfig
            with gradio.Blocks():
                lora_gui.lora_tab(headless=True, config=KohyaSSGUIConfig())
        self.gui = lora_gui
        self.defaults = {name: component.value for name, component in lora_gui.last_built_field_registry}

    def opened(self, preset):
        """The page's values after a preset was opened."""
        with standing_in(self.folder):
            found = self.gui.open_configuration(False, False, str(preset), **self.defaults, training_preset="none")
        return dict(zip(self.defaults, found[1:]))

    def files(self, place):
        for preset in sorted((self.folder / "presets/lora").glob("*.json")):
            said = json.loads(preset.read_text())
            family = "flux" if said.get("flux1_checkbox") else "sdxl" if said.get("sdxl") else ""
            if not family:
                continue
            folder = place.folder()
            values = self.opened(preset) | dict(output_dir=str(folder), logging_dir=str(folder / "logs"), train_data_dir=str(place.pictures), vae="", reg_data_dir="",
                                                pretrained_model_name_or_path=str(place.model(family)), resume="", network_weights="", dataset_config="")
            if family == "flux":
                values |= dict(ae=place.part(family, "vae"), clip_l=place.part(family, "text_encoder"), t5xxl=place.part(family, "text_encoder_2"))
            with standing_in(self.folder):
                self.gui.train_model(headless=True, print_only=True, **values)
            made = list(folder.glob("config_lora-*.toml"))
            if not made:
                print(f"kohya_ss: {preset.name}: its own page starts no run with it", file=sys.stderr)
                continue
            for caption in (place.pictures / "1_style").glob("*.txt"):  # presets have extensions of their own
                caption.with_suffix(values.get("caption_extension") or ".txt").write_text(caption.read_text())
            for prompts in folder.rglob("prompt.txt"):  # pictures that a CPU can draw
                lines = [re.sub(r" --[whs] \S+", "", line) + " --w 64 --h 64 --s 1" for line in prompts.read_text().splitlines() if line.strip()]
                prompts.write_text("\n".join(lines))
            yield OptionFile(self.trainer, f"kohya_ss/{preset.stem}", made[0], family)

    def values(self, file):
        return self.scripts.values(file)


class Colab:
    """hollowstrawberry's notebooks: their cells as they are, without shell lines, with `choices` in their forms, up to create_config()."""

    trainer = "kohya's scripts"
    notebooks = {
        "Lora_Trainer_XL.ipynb": [{}, dict(lora_type="LoCon", network_dim=16, network_alpha=8), dict(optimizer="Prodigy"), dict(optimizer="AdaFactor", precision="mixed bf16"),
                                  dict(training_model="NoobAI V-Pred 1.0"), dict(cache_text_encoder_outputs=True, precision="full bf16"),
                                  dict(lr_scheduler="constant", text_encoder_lr=0, ip_noise_gamma_enabled=True),
                                  dict(optimizer="Lion", recommended_values=False, lr_scheduler="polynomial", preferred_unit="Steps", how_many=500)],
        "Lora_Trainer_XL_Legacy.ipynb": [{}, dict(optimizer="Prodigy", lora_type="LoCon")],
    }

    def __init__(self, folder, scripts):
        self.folder, self.scripts = needs(folder, "--kohya-colab"), scripts

    def source(self, notebook, choices):
        cells = json.loads((self.folder / notebook).read_text())["cells"]
        text = next(s for c in cells if c["cell_type"] == "code" for s in ["".join(c["source"])] if "def create_config" in s)
        text = re.sub(r"^(\s*)[!%](?:.*\\\n)*.*$", r"\1pass", text, flags=re.M)
        for name, value in choices.items():
            text, n = re.subn(rf"^{name}\s*=.*#\s*@param", f"{name} = {value!r} #@param", text, flags=re.M)
            if n != 1:
                raise RuntimeError(f"{notebook}: no form asks for {name}")
        return re.sub(r"^main\(\)\s*$", "", text, flags=re.M)

    def files(self, place):
        display = types.ModuleType("IPython.display")
        display.Markdown = display.display = None
        sys.modules.setdefault("IPython", types.ModuleType("IPython"))
        sys.modules.setdefault("IPython.display", display)
        for notebook, all_choices in self.notebooks.items():
            for k, choices in enumerate(all_choices):
                folder = place.folder()
                cell = {}
                with standing_in(folder):
                    exec(compile(self.source(notebook, {"project_name": "style"} | choices), notebook, "exec"), cell)
                    cell |= dict(model_file=str(place.model("sdxl")), vae_file=place.part("sdxl", "vae"), images_folder=str(place.pictures / "1_style"), output_folder=str(folder),
                                 config_file=str(folder / "training_config.toml"), dataset_config_file=str(folder / "dataset_config.toml"),
                                 model_url=str(place.model("sdxl")))
                    cell["validate_dataset"]()  # counts the steps of the warm-up
                    cell["create_config"]()
                path, dataset = Path(cell["config_file"]), Path(cell["dataset_config_file"])
                dataset.write_text(small(dataset.read_text()))
                path.write_text(path.read_text() + f"\n[command_line]\ndataset_config = {cell['dataset_config_file']!r}\n")  # which names it beside the file
                name = ", ".join(f"{a}={b}" for a, b in choices.items()) or "as it is"
                yield OptionFile(self.trainer, f"{Path(notebook).stem}: {name}", path, "sdxl")

    def values(self, file):
        return self.scripts.values(file)


class Fluxgym:
    """fluxgym's gen_sh() and gen_toml(): the command line as train.sh, and the same through sd-scripts' --output_config."""

    trainer = "kohya's scripts"
    # What its page has at the beginning, then its other choices.
    defaults = dict(base_model="flux-dev", output_name="style", resolution=512, seed=42, workers=2, learning_rate="8e-4", network_dim=4, max_train_epochs=16,
                    save_every_n_epochs=4, timestep_sampling="shift", guidance_scale=1, vram="20G", sample_prompts="", sample_every_n_steps=0)
    choices = [{}, dict(vram="16G"), dict(vram="12G"), dict(network_dim=16, timestep_sampling="sigmoid", learning_rate="1e-4")]

    def __init__(self, folder, scripts):
        self.folder, self.scripts = needs(folder, "--fluxgym"), scripts
        tree = ast.parse((self.folder / "app.py").read_text())
        wanted = ("gen_sh", "gen_toml", "resolve_path", "resolve_path_without_quotes")
        body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in wanted]
        self.code = compile(ast.Module(body=body, type_ignores=[]), "app.py", "exec")

    def files(self, place):
        for k, choices in enumerate(self.choices):
            folder = place.folder()
            app = {"os": os, "sys": sys, "__file__": str(folder / "app.py"), "models": {"flux-dev": {"file": "flux1-dev.sft", "repo": ""}},
                   "advanced_component_ids": [], "original_advanced_component_values": []}
            said = self.defaults | choices
            with standing_in(folder):
                exec(self.code, app)
                command = app["gen_sh"](**said)
                dataset = folder / "outputs/style/dataset.toml"
                dataset.parent.mkdir(parents=True)
                dataset.write_text(small(app["gen_toml"](str(place.pictures / "1_style"), said["resolution"], "style", 10)))
            arguments = shlex.split(command.replace("\\\n", " ").rstrip("\\ \n"))
            arguments = self.scripts.placed(arguments[arguments.index("sd-scripts/flux_train_network.py") + 1:], "flux", place, dataset)
            name = ", ".join(f"{a}={b}" for a, b in choices.items()) or "as it is"
            path = folder / "train.toml"
            self.scripts.write("flux", arguments, path)
            yield OptionFile(self.trainer, f"fluxgym: {name}, by --output_config", path, "flux")
            script = folder / "train.sh"
            script.write_text("accelerate launch --mixed_precision bf16 --num_cpu_threads_per_process 1 sd-scripts/flux_train_network.py \\\n"
                              + " \\\n".join(f"  {shlex.quote(a)}" for a in arguments) + "\n")
            yield OptionFile(self.trainer, f"fluxgym: {name}, train.sh", script, "flux", read_as=path)

    def values(self, file):
        path = file.read_as or file.path
        return self.scripts.values(OptionFile(file.trainer, file.name, path, file.family))


def ai_toolkit_yaml(path):
    """A job's file, in which 1e-4 is a number."""
    from toolkit import config
    return config.get_config(str(path))


class AiToolkit:
    """config/examples, and the job of the page's jobConfig.ts after handleModelArchChange() of utils.ts and choices of SimpleJob.tsx."""

    trainer = "ai-toolkit"
    parts = {"network": "NetworkConfig", "train": "TrainConfig", "model": "ModelConfig", "save": "SaveConfig"}
    # {architecture of the page: choices there}
    jobs = [("sdxl", {}), ("flux", {}), ("flux_kontext", {}), ("sdxl", {"network.type": "lokr"}), ("sdxl", {"train.optimizer": "prodigyopt"}),
            ("sdxl", {"train.optimizer": "adafactor", "train.loss_type": "mae"}), ("flux", {"train.timestep_type": "linear", "train.optimizer": "adamw"}),
            ("flux", {"train.timestep_type": "shift", "datasets[0].flip_x": True}), ("flux", {"train.timestep_type": "weighted"}),
            ("sdxl", {"train.ema_config.use_ema": True, "datasets[0].resolution": [512]}), ("flux", {"train.content_or_style": "style"}),
            ("sdxl", {"train.optimizer": "automagic"})]

    def __init__(self, folder, node):
        self.folder, self.node = needs(folder, "--ai-toolkit"), node
        with standing_in(self.folder):
            from toolkit import config, config_modules
        self.get_config, self.classes = config.get_config, config_modules

    def page(self, jobs):
        """What the page's TypeScript gives, by a node that strips types; what draws the page is left out."""
        source, text = self.folder / "ui/src", []
        for name in ("helpers/defaultSamples.ts", "app/jobs/new/jobConfig.ts", "app/jobs/new/options.tsx", "app/jobs/new/utils.ts"):
            page = re.sub(r"^import [^;]*;$", "", (source / name).read_text(), flags=re.M)
            page = re.sub(r"\w+: \(\s*<div\b.*?</div>\s*\),", "", page, flags=re.S)
            text.append(re.sub(r"^export (?!type|interface)", "", page, flags=re.M).replace("'use client';", ""))
        text.append("""
const objectCopy = (x: any) => JSON.parse(JSON.stringify(x));
const isMac = () => false;
function put(job: any, value: any, path: string) {
  const keys = path.replace(/\\[(\\d+)\\]/g, '.$1').split('.');
  let at = job;
  for (const key of keys.slice(0, -1)) at = at[key];
  at[keys[keys.length - 1]] = value;
}
const all = JOBS.map(([arch, choices]: any) => {
  const job: any = objectCopy(defaultJobConfig);
  handleModelArchChange(job.config.process[0].model.arch, arch, job, (value: any, path: string) => put(job, value, path));
  for (const [key, value] of Object.entries(choices)) put(job, value, 'config.process[0].' + key);
  return job;
});
console.log(JSON.stringify(all));
""".replace("JOBS", json.dumps(jobs)))
        done = subprocess.run([str(self.node), "--experimental-strip-types", "--input-type=module-typescript", "-"], input="\n".join(text), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError("ai-toolkit's page: " + done.stderr.strip()[-400:])
        return json.loads(done.stdout)

    def place_in(self, job, family, place):
        process = job["config"]["process"][0]
        process["training_folder"] = str(place.folder())
        process["datasets"] = process["datasets"][:1]
        process["datasets"][0]["folder_path"] = str(place.pictures / "1_style")
        process["model"]["name_or_path"] = str(place.model(family))
        process["sample"] |= dict(width=64, height=64, sample_steps=1)  # for a CPU

    def files(self, place):
        import yaml
        for path in sorted((self.folder / "config/examples").rglob("train_lora_*.yaml")):
            try:
                model = yaml.safe_load(path.read_text())["config"]["process"][0]["model"]
            except yaml.YAMLError:  # one has a quote too few
                model = {}
            family = "flux" if model.get("is_flux") or model.get("arch") == "flux" else "sd3" if model.get("is_v3") else ""
            text = path.read_text()
            if family:  # the text stays as it is, with its comments
                folder = place.folder()
                text = re.sub(r"^(\s*training_folder: ).*$", rf'\1"{folder}"', text, flags=re.M)
                text = re.sub(r"^(\s*- folder_path: ).*$", rf'\1"{place.pictures / "1_style"}"', text, flags=re.M)
                text = re.sub(r"^(\s*name_or_path: ).*$", rf'\1"{place.model(family)}"', text, flags=re.M)
                for key, least in (("width", 64), ("height", 64), ("sample_steps", 1)):  # for a CPU
                    text = re.sub(rf"^(\s*{key}: )\d+", rf"\g<1>{least}", text, flags=re.M)
            made = place.folder() / path.name
            made.write_text(text)
            yield OptionFile(self.trainer, f"ai-toolkit/examples/{path.stem}", made, family)
        if not self.node:
            return print("ai-toolkit: its page's jobs are left out: no --node FILE of version 22.7 or later", file=sys.stderr)
        for (arch, choices), job in zip(self.jobs, self.page(self.jobs)):
            family = "" if arch == "flux_kontext" else arch
            self.place_in(job, family or "flux", place)
            made = place.folder() / "job.yaml"
            made.write_text(yaml.dump(job, sort_keys=False))
            name = ", ".join([arch, *(f"{a}={b}" for a, b in choices.items())])
            yield OptionFile(self.trainer, f"ai-toolkit page: {name}", made, family)

    def values(self, file):
        with standing_in(self.folder):
            process = self.get_config(str(file.path))["config"]["process"][0]
            found = {}
            for part, name in self.parts.items():
                given = process.get(part, {})
                if part == "model":
                    given = given | {"dtype": process.get("train", {}).get("dtype", "fp32")}
                found |= {f"{part}.{k}": v for k, v in vars(getattr(self.classes, name)(**given)).items()}
            found |= {f"datasets[0].{k}": v for k, v in vars(self.classes.DatasetConfig(**process["datasets"][0])).items()}
            found["trigger_word"] = process.get("trigger_word")
        ema = found.get("train.ema_config")
        return found | ({f"train.ema_config.{k}": v for k, v in vars(ema).items()} if ema else {})


class OneTrainer:
    """training_presets, loaded as TopBarController loads them; each as it is, and as its page saves it, with concepts beside it."""

    trainer = "OneTrainer"
    families = {"STABLE_DIFFUSION_XL_10_BASE": "sdxl", "STABLE_DIFFUSION_3": "sd3", "STABLE_DIFFUSION_35": "sd3", "FLUX_DEV_1": "flux"}
    # Settings of the page beside a preset's; "optimizer" as change_optimizer() sets it.
    choices = [{}, dict(optimizer="ADAFACTOR"), dict(optimizer="PRODIGY"), dict(optimizer="LION"), dict(optimizer="ADAMW_8BIT"), dict(optimizer="SCHEDULE_FREE_ADAMW"),
               dict(loss_weight_fn="MIN_SNR_GAMMA", learning_rate_scheduler="COSINE", ema="GPU"), dict(peft_type="LOHA", epochs=10, save_every=1, save_every_unit="EPOCH")]

    def __init__(self, folder, presets):
        self.folder = needs(folder, "--onetrainer")
        self.presets = Path(presets or self.folder) / "training_presets"
        with standing_in(self.folder):
            from modules.util import optimizer_util
            from modules.util.config.ConceptConfig import ConceptConfig
            from modules.util.config.SampleConfig import SampleConfig
            from modules.util.config.TrainConfig import TrainConfig
            from modules.util.enum.Optimizer import Optimizer
        self.util, self.Concept, self.Sample, self.Config, self.Optimizer = optimizer_util, ConceptConfig, SampleConfig, TrainConfig, Optimizer

    def loaded(self, given, is_preset):
        config = self.Config.default_values().from_dict(given, migrate=not is_preset).to_unpacked_config()
        return self.Config.default_values().from_dict(config.to_dict())

    def concepts(self, place, folder):
        concept = self.Concept.default_values()
        concept.path, concept.name = str(place.pictures / "1_style"), "style"
        path = folder / "concepts.json"
        path.write_text(json.dumps([concept.to_dict()], indent=4))
        return str(path)

    def samples(self, folder, config):
        sample = self.Sample.default_values(config.model_type)
        sample.prompt, sample.width, sample.height, sample.diffusion_steps = "a house", 64, 64, 1
        path = folder / "samples.json"
        path.write_text(json.dumps([sample.to_dict()], indent=4))
        return str(path)

    def files(self, place):
        for preset in sorted(self.presets.rglob("#*.json")):
            given = json.loads(preset.read_text())
            family = self.families.get(given.get("model_type"), "") if given.get("training_method") == "LORA" else ""
            folder = place.folder()
            if not family:
                path = folder / preset.name
                path.write_text(json.dumps(given, indent=4))
                yield OptionFile(self.trainer, f"OneTrainer/{preset.stem}", path, "")
                continue
            with standing_in(self.folder):
                config = self.loaded(given, True)
                places = dict(base_model_name=str(place.model(family)), concept_file_name=self.concepts(place, folder), workspace_dir=str(folder / "run"),
                              sample_definition_file_name=self.samples(folder, config))
            path = folder / preset.name
            path.write_text(json.dumps(given | places, indent=4))
            yield OptionFile(self.trainer, f"OneTrainer/{preset.stem}, as it is", path, family, read_as=True)
            for choices in self.choices if family == "sdxl" else self.choices[:2]:
                folder = place.folder()
                with standing_in(self.folder):
                    config = self.loaded(given | places | {k: v for k, v in choices.items() if k != "optimizer"} | dict(workspace_dir=str(folder / "run")), True)
                    if "optimizer" in choices:
                        config.optimizer.optimizer = self.Optimizer[choices["optimizer"]]
                        config.optimizer = self.util.change_optimizer(config)
                    path = folder / "saved.json"
                    path.write_text(json.dumps(config.to_settings_dict(secrets=False), indent=4))
                name = ", ".join(f"{a}={b}" for a, b in choices.items())
                yield OptionFile(self.trainer, f"OneTrainer/{preset.stem}, saved{': ' + name if name else ''}", path, family, read_as=False)

    def values(self, file):
        with standing_in(self.folder):
            config = self.loaded(json.loads(file.path.read_text()), file.read_as).to_dict()
            concept = self.Concept.default_values().from_dict(json.loads(Path(config["concept_file_name"]).read_text())[0]).to_dict()
        found = {}

        def add(path, value):
            if isinstance(value, dict) and value:
                for key, item in value.items():
                    add(f"{path}.{key}" if path else key, item)
            else:
                found[path] = value

        add("", config)
        add("concepts[0]", concept)
        return found


class Musubi:
    """The command lines of musubi-tuner's documentation, as scripts and as the TOML of their options; those of FLUX.1 with choices of its documents."""

    trainer = "musubi-tuner"
    choices = [{}, {"optimizer_type": ["adafactor"], "optimizer_args": ["relative_step=False", "scale_parameter=False", "warmup_init=False"], "max_grad_norm": ["0"]},
               {"timestep_sampling": ["shift"], "discrete_flow_shift": ["3.0"], "network_alpha": ["16"], "network_args": ["loraplus_lr_ratio=4"]},
               {"network_module": ["networks.loha"], "lr_scheduler": ["cosine"], "lr_warmup_steps": ["10"]},
               {"fp8_base": [], "fp8_scaled": [], "blocks_to_swap": ["2"], "gradient_checkpointing_cpu_offload": []},
               {"timestep_sampling": ["sigmoid"], "network_dropout": ["0.1"], "gradient_accumulation_steps": ["4"]}]

    def __init__(self, folder):
        self.folder = needs(folder, "--musubi")
        sys.path.insert(0, str(self.folder / "src"))
        with standing_in(self.folder):
            from musubi_tuner import flux_kontext_train_network
        self.script = flux_kontext_train_network

    def options(self, command):
        """{name: words} of a command."""
        words, found = shlex.split(command.replace("\\\n", " ").replace("^\n", " "), comments=True), {}
        for word in words[next(i for i, a in enumerate(words) if a.endswith("_train_network.py")) + 1:]:
            if word.startswith("--"):
                found[key := word.removeprefix("--")] = []
            elif found:  # one page has dots before its options
                found[key].append(word)
        return found

    def places(self, place, folder):
        dataset = folder / "dataset.toml"
        dataset.write_text(f"[general]\nresolution = [128, 128]\ncaption_extension = '.txt'\nbatch_size = 1\nenable_bucket = true\n[[datasets]]\n"
                           f"image_directory = '{place.pictures / '1_style'}'\ncache_directory = '{folder / 'cache'}'\n")
        places = dict(dit=place.model("flux"), vae=place.part("flux", "vae"), text_encoder1=place.part("flux", "text_encoder_2"),
                      text_encoder2=place.part("flux", "text_encoder"), dataset_config=dataset, output_dir=folder)
        return {key: [str(value)] for key, value in places.items()}

    def files(self, place):
        for page in sorted((self.folder / "docs").glob("*.md")):
            for k, command in enumerate(re.findall(r"(accelerate launch[^`]*?_train_network\.py.*?)```", page.read_text(), re.S)):
                if any(ord(c) > 127 for c in command):
                    continue
                family = "flux" if "flux_kontext" in command else ""
                start = command[:command.index("_train_network.py") + len("_train_network.py")]
                for choices in self.choices if family else [{}]:
                    folder = place.folder()
                    options = self.options(command) | (self.places(place, folder) if family else {}) | choices
                    name = ", ".join(f"{key}={' '.join(value)}" for key, value in choices.items())
                    for path in (folder / f"{page.stem}-{k + 1}.sh", folder / f"{page.stem}-{k + 1}.toml"):
                        path.write_text(self.script_of(start, options) if path.suffix == ".sh" else self.toml_of(options))
                        yield OptionFile(self.trainer, f"musubi-tuner/docs/{path.name}{': ' + name if name else ''}", path, family)

    @staticmethod
    def script_of(start, options):
        return start + "".join(f" \\\n    --{' '.join([key, *map(shlex.quote, value)])}" for key, value in options.items()) + "\n"

    @staticmethod
    def toml_of(options):
        def written(key, value):
            if not value:
                return "true"
            if len(value) > 1 or key.endswith("_args"):
                return json.dumps(value)
            return value[0] if re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", value[0]) else json.dumps(value[0])
        return "".join(f"{key} = {written(key, value)}\n" for key, value in options.items())

    def values(self, file):
        if file.path.suffix == ".toml":
            arguments = ["--config_file", str(file.path)]
        else:
            words = shlex.split(file.path.read_text().replace("\\\n", " ").replace("^\n", " "), comments=True)
            arguments = words[next(i for i, a in enumerate(words) if a.endswith("_train_network.py")) + 1:]
        import tomllib
        with standing_in(self.folder):
            parser = self.script.flux_kontext_setup_parser(self.script.setup_parser_common())
            before, sys.argv = sys.argv, ["flux_kontext_train_network.py", *arguments]
            try:
                found = vars(self.script.read_config_from_file(parser.parse_args(), parser))
            finally:
                sys.argv = before
        data = tomllib.loads(Path(found["dataset_config"]).read_text())
        return found | dict(image_directory=data["datasets"][0]["image_directory"])
