// `wick convert`: a language model to a GGUF file.
#include "wick/pipelines/convert.h"

#include <fmt/format.h>

#include <memory>

#include "commands.h"
#include "flags.h"
#include "model_path.h"
#include "validators.h"
#include "wick/core/memory.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

struct ConvertArguments {
  std::string model, output, dtype;
  bool overwrite = false;
};

void run_convert(const ConvertArguments& a) {
  const std::filesystem::path model = cli::resolve_language_model(a.model);
  cli::check_output_file({.path = a.output, .flag = "--output", .overwrite = a.overwrite, .inputs = {model}});
  convert_to_gguf(model, a.output, {.dtype = cli::parse_dtype(a.dtype)});
  fmt::print("Wrote {}, {}\n", printable(a.output), readable_bytes(std::filesystem::file_size(a.output)));
}

}  // namespace

void add_convert_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("convert", "Write a language model as a GGUF file, quantised if asked");
  const auto a = std::make_shared<ConvertArguments>();
  cli::add_language_model(*command, a->model);
  command->add_option("--output", a->output, "GGUF file to write")->type_name("FILE")->required();
  command->add_option("--dtype", a->dtype, "Of the matrices [as the model has each]")
      ->type_name(cli::kWrittenDtypes)
      ->check(cli::written_dtype());
  cli::add_overwrite(*command, a->overwrite);
  command->footer(
      "The file holds the tokenizer and the chat template too, and is what llama.cpp reads. Norms and biases are f32. "
      "A sliding window of Mistral stands in it, but llama.cpp does not heed that.\n"
      "\n"
      "Examples:\n"
      "  wick convert --model path/to/model --output model.gguf\n"
      "  wick convert --model path/to/model --output model-q8_0.gguf --dtype q8_0");
  command->callback([a] { run_convert(*a); });
}

}  // namespace wick
