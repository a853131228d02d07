// `wick merge`: LoRAs into the weights of a language model.
#include "wick/train/merge.h"

#include <fmt/format.h>

#include <memory>

#include "commands.h"
#include "flag_table.h"
#include "flags.h"
#include "model_path.h"
#include "validators.h"
#include "wick/io/quote.h"
#include "wick/models/llama_config.h"

namespace wick {
namespace {

struct MergeArguments {
  std::string model, output, dtype;
  std::vector<std::string> loras;
  bool overwrite = false;
};

void run_merge(const MergeArguments& a) {
  const std::filesystem::path model = cli::resolve_language_model(a.model);
  LlamaConfig::read(model);  // throws Error for an unknown kind
  const std::vector<LoraFile> loras = cli::parse_loras(a.loras);
  for (const LoraFile& lora : loras)
    for (const std::string& note : Adapter::notes_on_merging(lora)) fmt::print(stderr, "wick: {}\n", note);
  cli::check_output_path(
      {.path = a.output, .flag = "--output", .overwrite = a.overwrite, .inputs = cli::inputs_of(loras, {model})});
  const std::optional<DType> dtype = cli::parse_dtype(a.dtype);
  const Weights::Quantized merged = merge_loras(model, loras, a.output, dtype);
  fmt::print("Merged {}{}\n", printable(a.output), cli::kept_in_words(merged, dtype));
}

}  // namespace

void add_merge_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("merge", "Put LoRAs into the weights of a language model");
  const auto a = std::make_shared<MergeArguments>();
  cli::begin_group(*command, "Model");
  cli::add_language_model(*command, a->model);
  command->add_option("--lora", a->loras, "LoRA, with an optional strength; may be repeated")
      ->type_name("FILE[:STRENGTH]")
      ->required();
  cli::begin_group(*command, "Output");
  command->add_option("--output", a->output, "Folder to write; a GGUF file if it is named so or --model is one")
      ->type_name("PATH")
      ->required();
  cli::set_choices(command->add_option("--dtype", a->dtype,
                                       "Of the matrices; q8_0 to q4_0 in GGUF files alone [as the model has each]"),
                   cli::written_dtypes());
  cli::add_overwrite(*command, a->overwrite);
  command->footer(
      "Examples:\n"
      "  wick merge --model path/to/model --lora out/lora --output merged\n"
      "  wick merge --model path/to/model --lora out/lora:0.8 \\\n"
      "    --output mine.gguf --dtype q4_k");
  command->callback([a] { run_merge(*a); });
}

}  // namespace wick
