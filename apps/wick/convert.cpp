// `wick convert`: a language model to a GGUF file, or the denoiser of a model of pictures to a quantised file.
#include "wick/pipelines/convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "flags.h"
#include "model_path.h"
#include "validators.h"
#include "wick/core/memory.h"
#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/pipelines/known_models.h"
#include "wick/pipelines/quantized_file.h"

namespace wick {
namespace {

struct ConvertArguments {
  std::string model, output, dtype;
  bool overwrite = false;
};

constexpr DType kForPictures[] = {DType::fp8, DType::int8, DType::nf4, DType::nf4_double};

std::optional<DType> dtype_for_pictures(const std::string& name) {
  const auto* found = std::ranges::find_if(kForPictures, [&](DType dtype) { return name_of(dtype) == name; });
  return found == std::end(kForPictures) ? std::nullopt : std::optional(*found);
}

void convert_pictures(const ConvertArguments& a, const std::filesystem::path& model) {
  const std::optional<DType> dtype = dtype_for_pictures(a.dtype);
  check_usage(dtype.has_value(),
              "--dtype: a model of pictures becomes fp8, int8, nf4 or nf4-double, not {}; choose one",
              a.dtype.empty() ? "what it is" : a.dtype);
  cli::check_output_path({.path = a.output, .flag = "--output", .overwrite = a.overwrite, .inputs = {model}});
  const QuantizedFile made = write_quantized(model, a.output, *dtype);
  std::string kept;
  if (made.kept > 0)
    kept = fmt::format("; {} stay, whose rows are not whole blocks of {}", made.kept, block_of(*dtype).elements);
  fmt::print("Wrote {}: {} in {}{}\n", printable(a.output), count_of(made.matrices, "weight"), a.dtype, kept);
}

void run_convert(const ConvertArguments& a) {
  const std::filesystem::path model = cli::resolve_model(a.model);
  if (kind_of(model) != ModelKind::text) return convert_pictures(a, model);
  check_usage(!dtype_for_pictures(a.dtype), "--dtype {}: is for models of pictures; a GGUF file holds {}", a.dtype,
              fmt::join(cli::written_dtypes(), ", "));
  cli::check_output_file({.path = a.output, .flag = "--output", .overwrite = a.overwrite, .inputs = {model}});
  convert_to_gguf(model, a.output, {.dtype = cli::parse_dtype(a.dtype)});
  fmt::print("Wrote {}, {}\n", printable(a.output), readable_bytes(std::filesystem::file_size(a.output)));
}

}  // namespace

void add_convert_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("convert", "Write a language model as a GGUF file, or quantise a model of pictures");
  const auto a = std::make_shared<ConvertArguments>();
  cli::add_model(*command, a->model, "Model of either kind: folder, file or name");
  command->add_option("--output", a->output, "File to write; a folder for --dtype int8 or nf4 of a diffusers folder")
      ->type_name("PATH")
      ->required();
  std::vector<std::string> dtypes = cli::written_dtypes();
  for (const DType dtype : kForPictures) dtypes.emplace_back(name_of(dtype));
  command->add_option("--dtype", a->dtype, "Of the matrices [as the model has each]")
      ->type_name(fmt::format("{}", fmt::join(dtypes, "|")))
      ->check(cli::one_of(dtypes));
  cli::add_overwrite(*command, a->overwrite);
  command->footer(
      "A GGUF file holds the tokenizer and the chat template too, and is what llama.cpp reads. Norms and biases are "
      "f32. "
      "A sliding window of Mistral stands in it, but llama.cpp does not heed that.\n"
      "\n"
      "Of a model of pictures the matrices of the denoiser's blocks become fp8, as ComfyUI scales it, or bitsandbytes' "
      "int8 or NF4; nf4-double has its magnitudes in 8 bits. All else in the file stays as it is; of a diffusers "
      "folder "
      "the denoiser's part is written.\n"
      "\n"
      "Examples:\n"
      "  wick convert --model path/to/model --output model.gguf\n"
      "  wick convert --model path/to/model --output model-q8_0.gguf --dtype q8_0\n"
      "  wick convert --model flux1-dev.safetensors --dtype fp8 \\\n"
      "    --output flux1-dev-fp8.safetensors");
  command->callback([a] { run_convert(*a); });
}

}  // namespace wick
