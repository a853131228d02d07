#include "wick/pipelines/forward.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "commands.h"
#include "flag_table.h"
#include "flags.h"
#include "model_path.h"
#include "validators.h"
#include "wick/pipelines/diffusion.h"

namespace wick {
namespace {

struct ForwardArguments {
  cli::ModelArguments model;
  std::string component, in, out;
  std::vector<std::string> loras;
  cli::RunOn run_on;
  bool grad = false, overwrite = false;
};

void forward(const ForwardArguments& a) {
  const Checkpoint model = a.model.resolve();
  const bool is_of_pictures = kind_of(model) == ModelKind::pictures;
  if (is_of_pictures) {
    std::string name = a.component;
    const std::string problem = cli::one_of(component_names(model))(name);
    if (!problem.empty() && !diffusion_family(model).is_here(model)) open_diffusion(model);  // says what it lacks
    check_usage(problem.empty(), "--component: {}", problem);
  }
  const std::vector<LoraFile> loras =
      cli::parse_loras(a.loras, is_of_pictures ? adapted_components(model) : std::vector<std::string>());
  cli::check_input_file(a.in, "--in");
  std::vector<std::filesystem::path> inputs = cli::inputs_of(loras, a.model.files(model));
  inputs.emplace_back(a.in);
  cli::check_output_file({.path = a.out, .flag = "--out", .overwrite = a.overwrite, .inputs = inputs});
  run_forward(model, a.component, a.in, a.out,
              {.loras = loras, .grad = a.grad, .backend = &a.run_on.backend(), .dtype = a.run_on.dtype()});
}

// The components of all families of diffusion models.
std::string component_help() {
  std::vector<std::string> names;
  for (const DiffusionFamily& family : diffusion_families())
    for (const Component& c : family.components)
      if (std::ranges::find(names, c.name) == names.end()) names.push_back(c.name);
  return fmt::format("{} or {}; a language model is but one", fmt::join(names.begin(), names.end() - 1, ", "),
                     names.back());
}

}  // namespace

void add_forward_command(CLI::App& app) {
  const auto a = std::make_shared<ForwardArguments>();
  CLI::App* command = app.add_subcommand("forward", "Run one component of a model on given tensors");
  a->model.add_flags(*command, model_help());
  cli::begin_group(*command, "Model");
  cli::add_loras(*command, a->loras);
  command->add_option("--component", a->component, component_help())->type_name("NAME");
  cli::begin_group(*command, "Input and output");
  command
      ->add_option("--in", a->in,
                   "Safetensors file with the inputs, named as in diffusers and transformers; for a tokenizer "
                   "JSON lines of texts")
      ->required()
      ->type_name("FILE");
  command->add_option("--out", a->out, "Safetensors file to write; for a tokenizer JSON lines of lists of ids")
      ->required()
      ->type_name("FILE");
  command->add_flag(
      "--grad", a->grad,
      "Also write the gradients of the error to the input `target`: mean-squared, or cross-entropy of ids");
  cli::add_overwrite(*command, a->overwrite);
  a->run_on.add_flags(*command);
  command->footer(
      "Examples:\n"
      "  wick forward --model tiny --component unet --in in.safetensors \\\n"
      "    --out out.safetensors\n"
      "  wick forward --model tiny-flux --component transformer --grad \\\n"
      "    --in in.safetensors --out out.safetensors\n"
      "  wick forward --model tiny-llm --in ids.safetensors --out logits.safetensors");
  command->callback([a] { forward(*a); });
}

}  // namespace wick
