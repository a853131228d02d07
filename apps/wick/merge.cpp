// `wick merge`: LoRAs into the weights of a language model.
#include "wick/train/merge.h"

#include <fmt/format.h>

#include <map>
#include <memory>

#include "commands.h"
#include "model_path.h"
#include "validators.h"
#include "wick/models/llama_config.h"

namespace wick {
namespace {

const std::map<std::string, DType> kDtypes = {
    {"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}, {"q8_0", DType::q8_0}, {"q4_0", DType::q4_0}};

struct MergeArguments {
  std::string model, output, dtype;
  std::vector<std::string> loras;
};

void run_merge(const MergeArguments& a) {
  const std::filesystem::path model = cli::resolve_model(a.model);
  check(LlamaConfig::is_here(model), "--model {}: expected a language model, found one of pictures", a.model);
  LlamaConfig::read(model);  // of a kind that Wick knows
  merge_loras(model, cli::parse_loras(a.loras), a.output,
              a.dtype.empty() ? std::nullopt : std::optional(kDtypes.at(a.dtype)));
  fmt::print("Merged {}\n", a.output);
}

}  // namespace

void add_merge_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("merge", "Put LoRAs into the weights of a language model");
  const auto a = std::make_shared<MergeArguments>();
  command->add_option("--model", a->model, "Transformers folder or GGUF file")->type_name("MODEL")->required();
  command->add_option("--lora", a->loras, "LoRA, with an optional strength; may be repeated")
      ->type_name("FILE[:STRENGTH]")
      ->required();
  command->add_option("--output", a->output, "Folder or GGUF file to write, as --model is one")
      ->type_name("PATH")
      ->required();
  command
      ->add_option("--dtype", a->dtype,
                   "Of the matrices that change: f32, f16, bf16, and in a GGUF q8_0 or q4_0 (theirs)")
      ->type_name("TYPE")
      ->check(cli::one_of({"f32", "f16", "bf16", "q8_0", "q4_0"}));
  command->callback([a] { run_merge(*a); });
}

}  // namespace wick
