// `wick merge`: LoRAs into the weights of a model.
#include "wick/pipelines/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "commands.h"
#include "flag_table.h"
#include "flags.h"
#include "model_path.h"
#include "validators.h"
#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/models/llama_config.h"
#include "wick/pipelines/diffusion.h"

namespace wick {
namespace {

struct MergeArguments {
  cli::ModelArguments model;
  std::string output, dtype;
  std::vector<std::string> loras;
  bool overwrite = false;
};

void check_output(const MergeArguments& a, const Checkpoint& model, const std::vector<LoraFile>& loras) {
  cli::check_output_path({.path = a.output,
                          .flag = "--output",
                          .overwrite = a.overwrite,
                          .inputs = cli::inputs_of(loras, a.model.files(model))});
}

void merge_language_model(const MergeArguments& a, const Checkpoint& model) {
  LlamaConfig::read(model);  // throws Error for an unknown kind
  const std::vector<LoraFile> loras = cli::parse_loras(a.loras);
  check_output(a, model, loras);
  const std::optional<DType> dtype = cli::parse_dtype(a.dtype);
  const Weights::Quantized merged = merge_loras(model, loras, a.output, dtype);
  fmt::print("Merged {}{}\n", printable(a.output), cli::kept_in_words(merged, dtype));
}

void merge_pictures(const MergeArguments& a, const Checkpoint& model) {
  const std::vector<LoraFile> loras = cli::parse_loras(a.loras, adapted_components(model));
  check_output(a, model, loras);
  const MergedPictures merged = merge_into_pictures(model, loras, a.output, cli::parse_dtype(a.dtype));
  fmt::print("Merged {}: {} changed\n", printable(a.output), count_of(merged.modules, "module"));
  for (const std::filesystem::path& file : merged.files)
    if (file != a.output) fmt::print("  {}\n", printable(file.string()));
}

void run_merge(const MergeArguments& a) {
  const Checkpoint model = a.model.resolve();
  kind_of(model) == ModelKind::text ? merge_language_model(a, model) : merge_pictures(a, model);
}

}  // namespace

void add_merge_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("merge", "Put LoRAs into the weights of a model");
  const auto a = std::make_shared<MergeArguments>();
  a->model.add_flags(*command, model_help());
  cli::begin_group(*command, "Model");
  cli::add_loras(*command, a->loras)->required()->allow_extra_args();
  cli::begin_group(*command, "Output");
  command
      ->add_option("--output", a->output,
                   "What to write, as the model came: a folder; a file, of a model in one, or of one part; a folder of "
                   "the parts that change. Of a language model also a GGUF file, if it is named so")
      ->type_name("PATH")
      ->required();
  cli::set_choices(command->add_option("--dtype", a->dtype,
                                       "Of the matrices; q8_0 to q4_0 in GGUF files alone [as the model has each]"),
                   cli::written_dtypes());
  cli::add_overwrite(*command, a->overwrite);
  command->footer(
      "Examples:\n"
      "  wick merge --model sdxl --lora out/lora.safetensors:0.8 --output merged\n"
      "  wick merge --model sdxl.safetensors --output merged.safetensors \\\n"
      "    --lora a.safetensors:unet=0.8,text_encoder=0 --lora b.safetensors\n"
      "  wick merge --transformer flux1-dev.safetensors \\\n"
      "    --lora lora.safetensors --output merged.safetensors\n"
      "  wick merge --model path/to/model --lora out/lora:0.8 \\\n"
      "    --output mine.gguf --dtype q4_k");
  command->callback([a] { run_merge(*a); });
}

}  // namespace wick
