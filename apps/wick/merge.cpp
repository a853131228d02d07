// `wick merge`: LoRAs into the weights of a model, or into one.
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
#include "wick/io/file.h"
#include "wick/io/quote.h"
#include "wick/models/llama_config.h"
#include "wick/pipelines/convert_adapter.h"
#include "wick/pipelines/diffusion.h"
#include "wick/pipelines/language_model.h"
#include "wick/text/chat.h"

namespace wick {
namespace {

struct MergeArguments {
  cli::ModelArguments model;
  std::string output, dtype, chat_template = ChatOptions::kAuto;
  std::vector<std::string> loras;
  int64_t rank = 0;  // 0: those of the adapters, added
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
  const std::string name = chat_template_of(a.chat_template, loras);
  const Weights::Quantized merged = merge_loras(model, loras, a.output, dtype, chat_template_text(model, name));
  fmt::print("Merged {}{}\n", printable(a.output), cli::kept_in_words(merged, dtype));
}

void merge_pictures(const MergeArguments& a, const Checkpoint& model) {
  check_usage(a.chat_template == ChatOptions::kAuto, "--chat-template: is for language models; leave it out");
  const std::vector<LoraFile> loras = cli::parse_loras(a.loras, adapted_components(model));
  for (const LoraFile& lora : loras)
    for (const std::string& note : Adapter::notes_on_merging(lora)) fmt::print(stderr, "wick: {}\n", note);
  check_output(a, model, loras);
  const MergedPictures merged = merge_into_pictures(model, loras, a.output, cli::parse_dtype(a.dtype));
  fmt::print("Merged {}: {} changed\n", printable(a.output), count_of(merged.modules, "module"));
  for (const std::filesystem::path& file : merged.files)
    if (file != a.output) fmt::print("  {}\n", printable(file.string()));
}

// Without a model, or with one that tells what the adapters are for.
void merge_adapters(const MergeArguments& a) {
  check_usage(a.chat_template == ChatOptions::kAuto, "--chat-template: is for models; expected --model with it");
  check_usage(a.dtype.empty(), "--dtype: is for models; without --model adapters become one, of f32 where ranks add");
  const std::vector<LoraFile> loras = cli::parse_loras(a.loras, std::nullopt);
  const AdapterFile first = AdapterFile::read(loras.front().path);
  const cli::Output to{
      .path = a.output, .flag = "--output", .overwrite = a.overwrite, .inputs = cli::inputs_of(loras, {})};
  first.format == AdapterFormat::peft ? cli::check_output_path(to) : cli::check_output_file(to);
  const AdapterFile one = merged({.files = loras, .rank = a.rank > 0 ? std::optional(a.rank) : std::nullopt});
  one.write(a.output);
  if (const std::string name = chat_template_of(ChatOptions::kAuto, loras); name != ChatOptions::kAuto)
    write_file_atomically(std::filesystem::path(a.output) / kChatTemplateFile, read_file(name, jinja::kMaxSourceBytes));
  fmt::print("Merged {}: {} of {}\n", printable(a.output), count_of(one.loras.size(), "module"),
             count_of(loras.size(), "adapter"));
}

void run_merge(const MergeArguments& a) {
  if (a.model.model.empty() && a.model.parts.empty()) return merge_adapters(a);
  check_usage(a.rank == 0, "--rank: is of adapters that become one, without --model");
  const Checkpoint model = a.model.resolve();
  kind_of(model) == ModelKind::text ? merge_language_model(a, model) : merge_pictures(a, model);
}

}  // namespace

void add_merge_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("merge", "Put LoRAs into the weights of a model, or several into one");
  const auto a = std::make_shared<MergeArguments>();
  a->model.add_flags(*command, model_help());
  command->get_option("--model")->required(false);
  cli::begin_group(*command, "Model");
  cli::add_loras(*command, a->loras)->required()->allow_extra_args();
  cli::begin_group(*command, "Output");
  command
      ->add_option("--output", a->output,
                   "What to write, as the model came: a folder; a file, of a model in one, or of one part; a folder of "
                   "the parts that change. Of a language model also a GGUF file, if it is named so. Without --model an "
                   "adapter, as "
                   "the first one is")
      ->type_name("PATH")
      ->required();
  cli::set_dtypes(command->add_option("--dtype", a->dtype,
                                      "Of the matrices; q8_0 to q4_0 in GGUF files alone [as the model has each]"),
                  cli::written_dtypes());
  command
      ->add_option(
          "--rank", a->rank,
          "Without --model, the most of each module's ranks, of the nearest matrices [the sum of the adapters']")
      ->type_name("INT")
      ->transform(cli::positive_integer());
  cli::add_chat_template(*command, a->chat_template);
  cli::add_overwrite(*command, a->overwrite);
  command->footer(
      "Examples:\n"
      "  wick merge --model sdxl --lora out/lora.safetensors:0.8 --output merged\n"
      "  wick merge --model sdxl.safetensors --output merged.safetensors \\\n"
      "    --lora a.safetensors:unet=0.8,text_encoder=0 --lora b.safetensors\n"
      "  wick merge --transformer flux1-dev.safetensors \\\n"
      "    --lora lora.safetensors --output merged.safetensors\n"
      "  wick merge --model path/to/model --lora out/lora:0.8 \\\n"
      "    --output mine.gguf --dtype q4_k\n"
      "  wick merge --lora a.safetensors:0.8 --lora b.safetensors --rank 32 \\\n"
      "    --output both.safetensors");
  command->callback([a] { run_merge(*a); });
}

}  // namespace wick
