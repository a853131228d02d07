// `wick convert`: a language model to a GGUF file, either kind of model with quantised matrices, or an adapter.
#include "wick/pipelines/convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "convert_adapter.h"
#include "flag_table.h"
#include "flags.h"
#include "model_path.h"
#include "validators.h"
#include "wick/core/memory.h"
#include "wick/io/byte_size.h"
#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/pipelines/known_models.h"
#include "wick/pipelines/language_model.h"
#include "wick/pipelines/quantized_file.h"
#include "wick/text/chat.h"

namespace wick {
namespace {

struct ConvertArguments {
  std::string model, output, dtype, fp8_layout, max_shard_size, chat_template = ChatOptions::kAuto;
  bool overwrite = false;
  AdapterArguments adapter;
};

// Those that ComfyUI's and transformers' files have.
constexpr DType kOfRows[] = {DType::fp8, DType::int8, DType::nf4, DType::nf4_double};

constexpr const char *kLayout = "scaled_fp8", *kNewestLayout = "comfy_quant";

std::optional<DType> dtype_of_rows(const std::string& name) {
  const auto* found = std::ranges::find_if(kOfRows, [&](DType dtype) { return name_of(dtype) == name; });
  return found == std::end(kOfRows) ? std::nullopt : std::optional(*found);
}

void quantize(const ConvertArguments& a, const std::filesystem::path& model, DType dtype) {
  cli::check_output_path({.path = a.output, .flag = "--output", .overwrite = a.overwrite, .inputs = {model}});
  QuantizedOptions options{.dtype = dtype};
  options.chat_template = chat_template_text(model, a.chat_template);
  if (a.fp8_layout == kNewestLayout) options.fp8_layout = Fp8Layout::comfy_quant;
  if (!a.max_shard_size.empty()) {
    const std::optional<size_t> size = parse_byte_size(a.max_shard_size);
    check_usage(size && *size > 0, "--max-shard-size: expected a size like 5GB or 500MiB, found {}",
                quote(a.max_shard_size));
    options.shard_bytes = *size;
  }
  fmt::print("{}: {}\n", printable(a.output), quantized_readers(model, options));
  std::fflush(stdout);  // before minutes of work
  const Weights::Quantized made = write_quantized(model, a.output, options);
  fmt::print("Wrote {}: {} in {}{}\n", printable(a.output), count_of(made.matrices, "weight"), a.dtype,
             cli::kept_in_words(made, dtype));
}

void convert_pictures(const ConvertArguments& a, const std::filesystem::path& model) {
  const std::optional<DType> dtype = dtype_of_rows(a.dtype);
  check_usage(dtype.has_value(),
              "--dtype: a model of pictures becomes fp8, int8, nf4 or nf4-double, not {}; choose one",
              a.dtype.empty() ? "what it is" : a.dtype);
  check_usage(a.fp8_layout.empty() || (*dtype == DType::fp8 && !has_denoiser_folder(model)),
              "--fp8-layout: is for --dtype fp8 of a single file of a model of pictures; leave it out");
  quantize(a, model, *dtype);
}

void convert_language_model(const ConvertArguments& a, const std::filesystem::path& model) {
  check_usage(a.fp8_layout.empty(), "--fp8-layout: is for models of pictures; leave it out");
  if (const std::optional<DType> dtype = dtype_of_rows(a.dtype)) {
    check_usage(
        std::filesystem::path(a.output).extension() != ".gguf",
        "--output {}: --dtype {} writes a transformers folder; expected the name of one, or one of {} for a GGUF "
        "file",
        printable(a.output), a.dtype, fmt::join(cli::written_dtypes(), ", "));
    return quantize(a, model, *dtype);
  }
  cli::check_output_file({.path = a.output, .flag = "--output", .overwrite = a.overwrite, .inputs = {model}});
  const std::optional<DType> dtype = cli::parse_dtype(a.dtype);
  const Weights::Quantized made =
      convert_to_gguf(model, a.output, {.dtype = dtype, .chat_template = chat_template_text(model, a.chat_template)});
  fmt::print("Wrote {}, {}{}\n", printable(a.output), readable_bytes(std::filesystem::file_size(a.output)),
             cli::kept_in_words(made, dtype));
}

void run_convert(const ConvertArguments& a) {
  const bool has_template = a.chat_template != ChatOptions::kAuto;
  if (a.adapter.is_asked()) {
    check_usage(!has_template, "--chat-template: is for language models; leave it out with --lora and --extract");
    check_usage(a.dtype.empty() && a.fp8_layout.empty() && a.max_shard_size.empty(),
                "{}: is for models; with --lora and --extract tensors keep their types",
                !a.dtype.empty()        ? "--dtype"
                : !a.fp8_layout.empty() ? "--fp8-layout"
                                        : "--max-shard-size");
    return convert_adapter(a.adapter, a.model, a.output, a.overwrite);
  }
  check_usage(!a.model.empty(), "--model: expected a model to convert, or an adapter by --lora");
  check_usage(a.adapter.to.empty() && a.adapter.rank == 0 && a.adapter.energy.empty() && a.adapter.base.empty() &&
                  a.adapter.targets.empty(),
              "--to, --rank, --energy, --base and --targets: are for adapters; name one with --lora, or a model with "
              "--extract");
  const std::filesystem::path model = cli::resolve_model(a.model);
  const bool is_text = kind_of(model) == ModelKind::text;
  check_usage(a.max_shard_size.empty() || (is_text && dtype_of_rows(a.dtype)),
              "--max-shard-size: is for the transformers folders that --dtype fp8, int8, nf4 and nf4-double write");
  check_usage(is_text || !has_template, "--chat-template: is for language models; leave it out");
  is_text ? convert_language_model(a, model) : convert_pictures(a, model);
}

}  // namespace

void add_convert_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("convert", "Write a model as a GGUF file or quantised, or an adapter for another program");
  const auto a = std::make_shared<ConvertArguments>();
  cli::begin_group(*command, "Model");
  cli::add_model(*command, a->model,
                 "Model of either kind: folder, file or name; of an adapter, where its names do not tell it")
      ->required(false);
  add_adapter_flags(*command, a->adapter);
  cli::begin_group(*command, "Output");
  command
      ->add_option("--output", a->output,
                   "File to write; a folder for --dtype fp8 to nf4-double of a language model, and but for fp8 of a "
                   "diffusers folder")
      ->type_name("PATH")
      ->required();
  std::vector<std::string> dtypes = cli::written_dtypes();
  for (const DType dtype : kOfRows) dtypes.emplace_back(name_of(dtype));
  cli::set_dtypes(command->add_option("--dtype", a->dtype, "Of the matrices [as the model has each]"), dtypes);
  cli::set_choices(command->add_option("--fp8-layout", a->fp8_layout,
                                       "Of --dtype fp8 of a single file of a model of pictures: scaled_fp8, which old "
                                       "and new ComfyUI read, or comfy_quant, for ComfyUI from 0.4 on [scaled_fp8]"),
                   {kLayout, kNewestLayout});
  command
      ->add_option("--max-shard-size", a->max_shard_size,
                   "The most bytes of a file in a transformers folder; more become shards with an index [5GB]")
      ->type_name("SIZE");
  cli::add_chat_template(*command, a->chat_template);
  cli::add_overwrite(*command, a->overwrite);
  command->footer(
      "A GGUF file holds the tokenizer and the chat template too, and is what llama.cpp reads. Norms and biases are "
      "f32. "
      "A sliding window of Mistral stands in it, but llama.cpp does not heed that.\n"
      "\n"
      "fp8, int8, nf4 and nf4-double of a language model write a transformers folder with the matrices of its layers "
      "quantised: as bitsandbytes has them, which transformers loads, or in fp8 as compressed-tensors does, which vLLM "
      "loads too. Embeddings, norms and the head stay.\n"
      "\n"
      "Of a model of pictures the matrices of the denoiser's blocks become fp8, as ComfyUI scales it, or bitsandbytes' "
      "int8 or NF4; nf4-double has its magnitudes in 8 bits. All else in the file stays as it is; of a diffusers "
      "folder the denoiser's part is written. The first line of the output tells which programs read it: a file in "
      "int8 or NF4, and one of a diffusers folder in fp8, are not for ComfyUI.\n"
      "\n"
      "--fp8-layout scaled_fp8 gives all matrices of the denoiser a scale, and ComfyUI multiplies as with the model "
      "that was converted. comfy_quant keeps those outside the blocks, and ComfyUI multiplies in fp8 where the device "
      "can; ComfyUI before 0.4 draws noise from it.\n"
      "\n"
      "With --lora an adapter is written for another program, --to, or as the nearest one of a lower rank, and with "
      "--extract a LoRA is taken out of two models. The model of an adapter is told by names and shapes, or by "
      "--model. "
      "Factors keep their bits; fused and split modules become each other exactly.\n"
      "\n"
      "Examples:\n"
      "  wick convert --model path/to/model --output model.gguf\n"
      "  wick convert --model path/to/model --output model-q8_0.gguf --dtype q8_0\n"
      "  wick convert --model path/to/model --output model-nf4 --dtype nf4\n"
      "  wick convert --model flux1-dev.safetensors --dtype fp8 \\\n"
      "    --output flux1-dev-fp8.safetensors\n"
      "  wick convert --lora lora.safetensors --to diffusers \\\n"
      "    --output for-diffusers.safetensors\n"
      "  wick convert --lora out/lora --to gguf --model path/to/model \\\n"
      "    --output lora.gguf\n"
      "  wick convert --lora lora.safetensors --energy 0.95 \\\n"
      "    --output small.safetensors\n"
      "  wick convert --extract path/to/tuned --base path/to/model --rank 32 \\\n"
      "    --output lora.safetensors");
  command->callback([a] { run_convert(*a); });
}

}  // namespace wick
