#include "convert_adapter.h"

#include <fmt/format.h>

#include <optional>

#include "commands.h"
#include "flag_table.h"
#include "flags.h"
#include "model_path.h"
#include "validators.h"
#include "wick/io/count.h"
#include "wick/io/gguf.h"
#include "wick/io/quote.h"
#include "wick/pipelines/adapter_modules.h"
#include "wick/pipelines/convert_adapter.h"
#include "wick/pipelines/extract_adapter.h"
#include "wick/pipelines/known_models.h"
#include "wick/train/progress.h"

namespace wick {
namespace {

std::optional<Checkpoint> model_of(const std::string& model) {
  return model.empty() ? std::nullopt : std::optional(cli::resolve_model_to_plan(ModelFiles{.model = model}));
}

// The model that the adapter's file names, where Wick finds it: a path of PEFT's, or a name by which Wick knows it, as
// kohya's metadata has it.
std::optional<Checkpoint> model_named_in(const AdapterFile& file) {
  std::error_code ignored;
  std::vector<std::string> names;
  if (!file.base_model.empty() && std::filesystem::exists(file.base_model, ignored)) names.push_back(file.base_model);
  const auto told = file.metadata.find("ss_sd_model_name");
  for (const std::string& name : {file.base_model, told == file.metadata.end() ? std::string() : told->second})
    if (!name.empty() && find_known(name)) names.push_back(name);
  for (const std::string& name : names) {
    try {
      std::optional<Checkpoint> model = model_of(name);
      if (model && AdapterModules::of(*model).fits(file)) return model;
    } catch (const Error&) {  // not here, or another one of that name: then its own names have to tell
    }
  }
  return {};
}

AdapterFile read_adapter(const std::filesystem::path& path, const std::optional<Checkpoint>& model) {
  if (!GgufFile::is_gguf(path)) return AdapterFile::read(path);
  check_usage(model.has_value(), "--lora {}: is a GGUF file, whose rows follow its model's heads; add --model",
              printable(path.string()));
  return read_gguf_adapter(path, *model);
}

void check_output(const AdapterArguments& a, AdapterFormat format, const std::string& output, bool overwrite) {
  const cli::Output to{.path = output, .flag = "--output", .overwrite = overwrite, .inputs = {a.lora}};
  format == AdapterFormat::peft ? cli::check_output_path(to) : cli::check_output_file(to);
}

void convert_lora(const AdapterArguments& a, const std::string& model, const std::string& output, bool overwrite) {
  std::optional<Checkpoint> of = model_of(model);
  AdapterFile file = read_adapter(a.lora, of);
  if (!of && !a.to.empty()) of = model_named_in(file);
  const bool is_resized = a.rank > 0 || !a.energy.empty();
  check_usage(!a.to.empty() || is_resized,
              "--lora: add --to, with the program whose names it should have, or --rank or "
              "--energy to resize it");
  const AdapterFormat format = a.to.empty() ? file.format : *parse_adapter_format(a.to);
  check_usage(format != AdapterFormat::gguf || of,
              "--to gguf: the file names the model's architecture, and its rows follow the model's heads; add --model");
  check_output(a, format, output, overwrite);
  if (is_resized) file = resized(file, {.rank = a.rank, .energy = a.energy.empty() ? 0 : std::stod(a.energy)});
  if (format == AdapterFormat::gguf)
    write_gguf_adapter(file, *of, output);
  else if (!a.to.empty())
    file = converted(file, of ? AdapterModules::of(*of) : AdapterModules::recognised(file), format);
  if (format != AdapterFormat::gguf) file.write(output);
  const std::string others =
      file.others.empty() ? "" : fmt::format(", {} of other kinds", count_of(file.others.size(), "tensor"));
  fmt::print("Wrote {}: {}{}, {}\n", printable(output), count_of(file.loras.size(), "LoRA module"), others,
             adapter_format_names()[size_t(format)]);
}

void extract(const AdapterArguments& a, const std::string& output, bool overwrite) {
  check_usage(!a.base.empty(), "--extract: add --base, the model from which that one was trained");
  check_usage(a.rank > 0, "--extract: add --rank, the rank of the LoRA");
  check_usage(a.lora.empty() && a.to.empty() && a.energy.empty(),
              "--extract: makes a LoRA; convert or resize that one with --lora");
  const auto files_of = [](const std::string& model) { return ModelFiles{.model = model}; };
  const Checkpoint tuned = cli::resolve_model(files_of(a.extract)), base = cli::resolve_model(files_of(a.base));
  const cli::Output to{.path = output, .flag = "--output", .overwrite = overwrite, .inputs = {a.extract, a.base}};
  kind_of(base) == ModelKind::text ? cli::check_output_path(to) : cli::check_output_file(to);
  ProgressLine progress;
  const Extracted found =
      extract_lora(tuned, base, {.rank = a.rank, .targets = a.targets, .on_module = [&](size_t done, size_t all) {
                                   progress.show(fmt::format("{} of {}", done, count_of(all, "module")));
                                 }});
  progress.clear();
  found.lora.write(output);
  fmt::print("Wrote {}: {} of rank {}, which hold {:.2f} % of what changed in them; {} alike in both models\n",
             printable(output), count_of(found.lora.loras.size(), "LoRA module"), a.rank, 100 * found.energy,
             count_of(found.unchanged, "module"));
  if (found.left_out > 0)
    fmt::print("{} more {} in the models: norms, biases, and modules that --targets may add\n",
               count_of(found.left_out, "tensor"), found.left_out == 1 ? "differs" : "differ");
}

}  // namespace

void add_adapter_flags(CLI::App& command, AdapterArguments& a) {
  cli::begin_group(command, "Adapter");
  command.add_option("--lora", a.lora, "Adapter to write for another program, or with another rank")
      ->type_name("PATH")
      ->check(cli::not_empty());
  cli::set_choices(command.add_option("--to", a.to, "Program whose names and layout it gets [as it is]"),
                   adapter_format_names());
  command.add_option("--rank", a.rank, "At most this rank, of the nearest matrices [as it is]")
      ->type_name("INT")
      ->transform(cli::positive_integer());
  command
      .add_option("--energy", a.energy,
                  "The least ranks whose squared singular values make up this share of all, up to --rank")
      ->type_name("NUMBER")
      ->transform(cli::number_above(0, 1));
  command.add_option("--extract", a.extract, "Model to take a LoRA of --rank out of: its difference to --base")
      ->type_name("MODEL")
      ->check(cli::not_empty());
  command.add_option("--base", a.base, "Model from which that one was trained")
      ->type_name("MODEL")
      ->check(cli::not_empty());
  command
      .add_option("--targets", a.targets,
                  "Of --extract, module patterns beside the usual ones; - in front excludes; may be repeated")
      ->type_name("GLOB")
      ->allow_extra_args(false);
}

void convert_adapter(const AdapterArguments& a, const std::string& model, const std::string& output, bool overwrite) {
  if (!a.extract.empty()) return extract(a, output, overwrite);
  convert_lora(a, model, output, overwrite);
}

}  // namespace wick
