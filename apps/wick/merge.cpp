// `wick merge`: LoRAs into the weights of a language model.
#include "wick/train/merge.h"

#include <fmt/format.h>

#include <memory>

#include "commands.h"
#include "model_path.h"
#include "validators.h"
#include "wick/models/llama_config.h"

namespace wick {
namespace {

struct MergeArguments {
  std::string model, output, dtype;
  std::vector<std::string> loras;
};

void run_merge(const MergeArguments& a) {
  const std::filesystem::path model = cli::resolve_language_model(a.model);
  LlamaConfig::read(model);  // of a kind that Wick knows
  cli::check_new_path(a.output, "--output");
  merge_loras(model, cli::parse_loras(a.loras), a.output, cli::parse_dtype(a.dtype));
  fmt::print("Merged {}\n", a.output);
}

}  // namespace

void add_merge_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("merge", "Put LoRAs into the weights of a language model");
  const auto a = std::make_shared<MergeArguments>();
  command->add_option("--model", a->model, "Transformers folder, GGUF file, or a name: tiny-llm, ORGANISATION/NAME")
      ->type_name("MODEL")
      ->required();
  command->add_option("--lora", a->loras, "LoRA, with an optional strength; may be repeated")
      ->type_name("FILE[:STRENGTH]")
      ->required();
  command->add_option("--output", a->output, "Folder to write, or GGUF file: one named so, or of one; not there yet")
      ->type_name("PATH")
      ->required();
  command
      ->add_option("--dtype", a->dtype,
                   "Of the matrices: f32, f16, bf16, and in a GGUF q8_0 or q4_0 (as the model has each)")
      ->type_name("TYPE")
      ->check(cli::written_dtype());
  command->callback([a] { run_merge(*a); });
}

}  // namespace wick
