#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "commands.h"
#include "file_family.h"
#include "flag_table.h"
#include "flags.h"
#include "inspect_adapter.h"
#include "validators.h"
#include "wick/core/memory.h"
#include "wick/io/count.h"
#include "wick/io/gguf.h"
#include "wick/io/image.h"
#include "wick/io/quote.h"
#include "wick/nn/adapter.h"
#include "wick/nn/checkpoint.h"
#include "wick/nn/recognise.h"
#include "wick/text/clip_tokenizer.h"
#include "wick/text/t5_tokenizer.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

std::string grouped(uint64_t n) {  // 2,567,463,684
  std::string text = std::to_string(n);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

// "3,722,884 parameters in 512 tensors: F16 7.1 MiB, I64 8 B"
std::string contents(const TensorFile& file) {
  uint64_t parameters = 0;
  std::map<std::string, uint64_t> bytes;
  for (const auto& [name, tensor] : file.tensors()) {
    parameters += uint64_t(tensor.shape.numel());
    bytes[tensor.dtype_name] += tensor.bytes.value_or(0);
  }
  std::string text = fmt::format("{} {} in {}", grouped(parameters), noun_of(parameters, "parameter"),
                                 count_of(file.tensors().size(), "tensor"));
  const char* separator = ": ";
  for (const auto& [type, size] : bytes) {
    text += fmt::format("{}{} {}", separator, printable(type), readable_bytes(size));
    separator = ", ";
  }
  return text;
}

void print_metadata(const std::vector<std::pair<std::string, std::string>>& metadata) {
  if (metadata.empty()) return;
  fmt::print("\nmetadata\n");
  for (const auto& [key, value] : metadata) fmt::print("  {} = {}\n", excerpt(key), excerpt(value));
}

void print_tensors(const TensorFile& file) {
  fmt::print("\ntensors\n");
  for (const auto& [name, tensor] : file.tensors())
    fmt::print("  {:<5} {:<24} {:>10}  {}\n", printable(tensor.dtype_name), to_string(tensor.shape),
               readable_bytes(tensor.bytes.value_or(0)), excerpt(name));
}

// By its architecture if it is a language model, else by its tensors.
std::string kind_of_gguf(const std::shared_ptr<const GgufFile>& file) {
  if (file->metadata().text_or("general.type", "model") == "adapter")
    return fmt::format("LoRA for a {} model, loaded by llama.cpp",
                       excerpt(file->metadata().text_or("general.architecture", "unknown")));
  const TensorSource source = gguf_source(file);
  if (!networks_in(source).empty()) return contents_in_words(source);
  const auto& entries = file->metadata().entries();
  const bool known = std::ranges::any_of(entries, [](const auto& entry) {
    return entry.first == "general.architecture" && std::holds_alternative<std::string>(entry.second);
  });
  return known ? excerpt(file->metadata().text("general.architecture")) + " model" : "a model of an unknown kind";
}

void inspect_gguf(const fs::path& path, bool tensors) {
  const auto file = std::make_shared<const GgufFile>(GgufFile::open(path));
  fmt::print("{}\n{}, GGUF version {}\n{}\n", printable(path.string()), kind_of_gguf(file), file->version(),
             contents(*file));
  std::vector<std::pair<std::string, std::string>> metadata;
  for (const auto& [key, value] : file->metadata().entries()) metadata.emplace_back(key, to_string(value));
  print_metadata(metadata);
  if (tensors) print_tensors(*file);
}

// With the texts that it carries, line by line.
void inspect_picture(const fs::path& path) {
  const ImageInfo info = probe_image(path);
  fmt::print("{}\n{}, {}x{} pixels\n", printable(path.string()), info.format, info.width, info.height);
  for (const auto& [keyword, text] : read_image_texts(path))
    fmt::print("\n{}\n{}\n", excerpt(keyword), printable_text(text));
}

void inspect_file(const fs::path& path, bool tensors) {
  if (is_image_name(path) || image_start(path).is_read) return inspect_picture(path);
  if (GgufFile::is_gguf(path)) return inspect_gguf(path, tensors);
  const SafetensorsFile file = SafetensorsFile::open(path);
  const FileFamily family = family_of(file);
  fmt::print("{}\n{}\n{}\n", printable(path.string()), family.name, contents(file));
  if (family.lora) print_adapter(path);
  print_metadata({file.metadata().begin(), file.metadata().end()});
  if (tensors) print_tensors(file);
}

void inspect_folder(const fs::path& folder, bool tensors) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied)) {
    if (entry.path().extension() == ".safetensors" && entry.is_regular_file()) files.push_back(entry.path());
    check(files.size() < 1000, "{}: expected one model, found a folder with over a thousand files", folder.string());
  }
  check(!files.empty(), "{}: expected a folder with safetensors files, found none in it", folder.string());
  std::sort(files.begin(), files.end());

  fmt::print("{}\n", printable(folder.string()));
  if (const Checkpoint model(folder); model.is_pipeline())
    fmt::print("diffusers folder of {}\n", excerpt(model.config().text_or("_class_name", "an unnamed pipeline")));
  for (const fs::path& path : files) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    fmt::print("\n{}\n  {}\n  {}\n", printable(fs::relative(path, folder).string()), family_of(file).name,
               contents(file));
    if (tensors) print_tensors(file);
  }
}

struct InspectArguments {
  std::string path;
  std::vector<std::pair<std::string, std::string>> parts;  // name and path, in the order of the flags
  bool tensors = false;
};

void inspect_path(const std::string& part, const fs::path& path, bool tensors) {
  check(fs::exists(path), "{}: no such file or folder", path.string());
  const auto print_tokenizer = [&](const char* of, int64_t tokens) {
    fmt::print("{}\na tokenizer of {}, {}\n", printable(path.string()), of, count_of(tokens, "token"));
  };
  if (part == "clip_tokenizer")
    print_tokenizer("CLIP", ClipTokenizer::load(path).size());
  else if (part == "t5_tokenizer")
    print_tokenizer("T5", T5Tokenizer::load(path).vocabulary());
  else if (fs::is_directory(path) && fs::exists(lora_weights(path)))
    inspect_file(lora_weights(path), tensors);
  else
    fs::is_directory(path) ? inspect_folder(path, tensors) : inspect_file(path, tensors);
}

void inspect(const InspectArguments& a) {
  auto parts = a.parts;
  if (!a.path.empty()) parts.insert(parts.begin(), {"", a.path});
  for (const auto& [part, path] : parts) {
    if (&path != &parts.front().second) fmt::print("\n");
    inspect_path(part, path, a.tensors);
  }
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  const auto a = std::make_shared<InspectArguments>();
  CLI::App* command =
      app.add_subcommand("inspect", "Show what a LoRA, a checkpoint, a model folder or a picture holds");
  cli::begin_group(*command, "Input");
  CLI::Option* file =
      command->add_option("file", a->path, "Safetensors or GGUF file, a folder of safetensors, or a picture");
  file->required()->type_name("FILE")->check(cli::not_empty());
  cli::begin_group(*command, cli::kPartsGroup);
  for (const ModelPart& part : model_parts()) {
    const auto remember = [a, file, name = part.name](const std::string& path) {
      a->parts.emplace_back(name, path);
      file->required(false);
    };
    command->add_option_function<std::string>(part_flag(part.name), remember, part.help)
        ->type_name(part.item)
        ->check(cli::not_empty());
  }
  cli::begin_group(*command, "Output");
  command->add_flag("--tensors", a->tensors, "List every tensor");
  command->footer(
      "Examples:\n"
      "  wick inspect out/lora.safetensors\n"
      "  wick inspect flux1-dev.safetensors\n"
      "  wick inspect heart.png\n"
      "  wick inspect path/to/model --tensors");
  command->callback([a] { inspect(*a); });
}

}  // namespace wick
