#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands.h"
#include "defaults_help.h"
#include "model_path.h"
#include "text_flags.h"
#include "validators.h"
#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/component.h"
#include "wick/pipelines/image_grid.h"
#include "wick/pipelines/model_defaults.h"
#include "wick/pipelines/plan.h"
#include "wick/pipelines/text_to_image.h"

namespace wick {
namespace {

struct GenerateArguments {
  cli::ModelArguments model;
  std::string out, sampler, prediction;
  std::vector<std::string> loras, prompts;
  std::vector<uint64_t> seeds;
  std::optional<std::string> negative;
  // None, and 0: what the model was made for.
  int64_t width = 0, height = 0, steps = 0;
  std::optional<float> cfg, guidance;
  float cfg_rescale = 0;
  std::optional<double> shift;
  SkipLayerGuidance skip;
  std::string noise;
  ReadingOptions reading;
  cli::RunOn run_on;
  bool compare = false, overwrite = false;
  cli::TextFlags text;
  bool json = false, until_full = false, chat = false;
  std::vector<std::string> picture_flags, text_flags;  // names of those that are for one kind of model alone
};

// Steps done of all pictures, on one line of a terminal; elsewhere a line a picture.
class Progress {
 public:
  Progress(int64_t pictures, int64_t steps) : pictures_(pictures), steps_(steps) {}

  void step(int64_t step) {
    if (++done_ == 1) behind_first_ = Clock::now();
    if (isatty(STDOUT_FILENO))
      fmt::print("\r{}/{}  step {}/{}  {}  {:.0f} s left ", picture_, pictures_, step, steps_, rate(),
                 double(pictures_ * steps_ - done_) / per_second());
    else if (step == steps_)
      fmt::print("picture {} of {}: {}, {}\n", picture_, pictures_, count_of(steps_, "step"), rate());
    if (step == steps_) ++picture_;
    std::fflush(stdout);
  }

  ~Progress() {
    if (isatty(STDOUT_FILENO) && done_ > 0) std::fputs("\n", stdout);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Without the first step, before which weights are read.
  double per_second() const {
    const Clock::time_point since = done_ > 1 ? behind_first_ : start_;
    const double seconds = std::chrono::duration<double>(Clock::now() - since).count();
    return double(std::max<int64_t>(done_ - 1, 1)) / std::max(seconds, 1e-9);
  }
  std::string rate() const {
    const double steps = per_second();
    return steps >= 1 ? fmt::format("{:.1f} steps/s", steps) : fmt::format("{:.1f} s/step", 1 / steps);
  }

  int64_t pictures_, steps_, picture_ = 1, done_ = 0;
  Clock::time_point start_ = Clock::now(), behind_first_ = start_;
};

// The noise that a row of the grid begins with.
struct Start {
  std::string label;
  uint64_t seed;
  Tensor noise = {};               // [1, h, w, C], or empty: drawn from the seed
  std::vector<Tensor> draws = {};  // such tensors, for samplers that draw
};

std::vector<Start> starts_of(const GenerateArguments& a, const LatentSpace& space) {
  std::vector<Start> starts;
  if (a.noise.empty()) {
    for (const uint64_t seed : a.seeds) starts.push_back({fmt::format("seed {}", seed), seed});
    return starts;
  }
  ComponentInputs file(a.noise, /*track=*/false, host_memory());
  const Tensor all = to_channels_last(file.variable("noise", {"B", space.channels, "h", "w"}));
  if (space.side_step != space.factor) file.check_even("noise", {"h", "w"});
  std::vector<Tensor> draws;
  for (std::string name; file.has(name = fmt::format("noise.{}", draws.size()));)
    draws.push_back(to_channels_last(file.variable(name, {"B", space.channels, "h", "w"})));
  for (int64_t i = 0; i < all.dim(0); ++i) {
    const auto row = [&](const Tensor& rows) { return contiguous(slice(rows, 0, i, i + 1)); };
    Start& start = starts.emplace_back(Start{fmt::format("noise {}", i), 0, row(all)});
    for (const Tensor& draw : draws) start.draws.push_back(row(draw));
  }
  return starts;
}

ImageRequest request_of(const GenerateArguments& a, const Diffusion& model, const std::vector<Start>& starts) {
  const LatentSpace space = model.latents();
  const Tensor& noise = starts.front().noise;
  const int64_t wide = noise ? noise.dim(2) * space.factor : space.native,
                high = noise ? noise.dim(1) * space.factor : space.native;
  check_usage(!noise || ((a.width == 0 || a.width == wide) && (a.height == 0 || a.height == high)),
              "--noise: {} is of pictures of {}x{} pixels, but --width and --height ask for others", a.noise, wide,
              high);
  DrawingDefaults made_for = model.drawing_defaults();
  for (const auto& [name, kind] : kSamplers)
    if (a.sampler == name) made_for = drawn_by(kind, made_for);
  return {.negative = a.negative,
          .width = a.width > 0 ? a.width : wide,
          .height = a.height > 0 ? a.height : high,
          .cfg = a.cfg.value_or(made_for.cfg),
          .cfg_rescale = a.cfg_rescale,
          .guidance = a.guidance.value_or(made_for.guidance.value_or(1)),
          .skip = a.skip,
          .sampling = {.kind = made_for.sampler, .steps = a.steps > 0 ? a.steps : made_for.steps, .shift = a.shift},
          .draws = starts.front().draws};
}

// Before the weights are loaded, which may take long.
void check_request(const GenerateArguments& a, const ImageRequest& request, const Diffusion& model) {
  TextToImage::check_side("--width", request.width, model.latents());
  TextToImage::check_side("--height", request.height, model.latents());
  check_usage(a.prediction.empty() || !model.process().is_flow(), "--prediction: {} is a rectified flow, which has one",
              a.model.name());
  check_usage(!a.guidance || model.drawing_defaults().guidance,
              "--guidance: {} is not told its guidance; --cfg guides it", a.model.name());
  check_usage(!a.negative || request.cfg != 1, "--negative: expected a --cfg other than 1 with it");
  check_usage(a.cfg_rescale == 0 || (request.cfg != 1 && !model.process().is_flow()), "--guidance-rescale: expected {}",
              request.cfg == 1 ? "a --cfg other than 1 with it" : "a model of SDXL's kind with it");
  check_usage(request.skip.scale == 0 || model.has_layers(), "--skip-layer-guidance: {} has no layers to skip",
              a.model.name());
  check_usage((a.reading.t5.tokens == 0 && !a.reading.t5.mask) || model.t5_tokens() > 0,
              "--t5-tokens and --t5-mask: {} has no T5", a.model.name());
  const Process& process = model.process();
  const int64_t steps = request.sampling.steps;
  check(steps <= process.train_steps(), "--steps: expected at most {}, the steps of {}, found {}",
        process.train_steps(), process.source, steps);
  const Sampler sampler = process.sampler(request.sampling, latent_shape(request, model.latents()));
  const auto draws = size_t(std::ranges::count_if(sampler.steps, &SamplerStep::draws));
  check(a.noise.empty() || request.draws.size() >= draws,
        "--noise: {} has no tensor \"noise.{}\"; --sampler {} draws {} in {}: noise.0 to noise.{}", a.noise,
        request.draws.size(), name_of(request.sampling.kind), count_of(draws, "time"), count_of(steps, "step"),
        draws - 1);
}

// Prints the memory that drawing will take, and refuses a picture that does not fit.
void plan(const GenerateArguments& a, const Checkpoint& checkpoint, const ImageRequest& request,
          const std::vector<LoraFile>& loras, int64_t pictures, const std::string& scheduler) {
  const std::string_view device = a.run_on.backend().name();
  const auto needed = [&](DType dtype) {
    return plan_image(checkpoint, request, {.dtype = dtype, .loras = loras, .reading = a.reading}, device_kind(device))
        .total();
  };
  const size_t total = needed(a.run_on.dtype());
  const std::optional<size_t> free = free_memory(device);
  if (free && total > *free) {
    const size_t in_bf16 = a.run_on.dtype() == DType::f32 ? needed(DType::bf16) : total;
    fail(
        "a picture of {}x{} pixels would need {} of memory on {}, where {} are free; a smaller --width or --height "
        "needs less{}",
        request.width, request.height, readable_bytes(total), device, readable_bytes(*free),
        in_bf16 + total / 100 < total ? ", --bf16 " + readable_bytes(in_bf16) : "");
  }
  fmt::print("Drawing {} of {}x{} pixels in {} with --sampler {} (the folder names {}); memory on {}: {} needed{}.\n",
             count_of(pictures, "picture"), request.width, request.height, count_of(request.sampling.steps, "step"),
             name_of(request.sampling.kind), scheduler, device, readable_bytes(total),
             free ? fmt::format("; {} free", readable_bytes(*free)) : "");
  std::fflush(stdout);
}

// All prompts with all starts: a row a start.
void draw_rows(const GenerateArguments& a, const Checkpoint& checkpoint, const std::vector<LoraFile>& loras,
               ImageRequest request, const std::vector<Start>& starts, const std::string& label, Progress& progress,
               ImageGrid& grid) {
  const std::unique_ptr<Diffusion> model = open_diffusion(checkpoint, a.reading);
  Adapter adapter(model->lora().names, loras);
  model->load({.dtype = a.run_on.dtype(), .adapter = &adapter, .backend = &a.run_on.backend()}, kDrawingParts);
  TextToImage text_to_image(*model);
  for (const auto& [name, seed, noise, draws] : starts) {
    grid.rows.push_back(label.empty() ? name : starts.size() == 1 ? label : fmt::format("{}, {}", label, name));
    for (const std::string& prompt : a.prompts) {
      request.prompt = prompt;
      request.seed = seed;
      request.start = noise;
      request.draws = draws;
      grid.cells.push_back(text_to_image(request, [&](int64_t step) { progress.step(step); }));
    }
  }
}

void generate_pictures(const GenerateArguments& a, const Checkpoint& folder) {
  check_usage(!a.compare || !a.loras.empty(), "--compare: expected a --lora to compare with, found none");
  check_usage(!a.out.empty(), "--out is required: the PNG file to write");
  const std::vector<LoraFile> loras = cli::parse_loras(a.loras);
  cli::check_output_file({.path = a.out,
                          .flag = "--out",
                          .overwrite = a.overwrite,
                          .inputs = cli::inputs_of(loras, a.model.files(folder))});
  const std::unique_ptr<Diffusion> model = open_diffusion(folder, a.reading);  // its configs alone
  const std::vector<Start> starts = starts_of(a, model->latents());
  const ImageRequest request = request_of(a, *model, starts);
  check_request(a, request, *model);
  const int64_t pictures = int64_t(a.prompts.size() * starts.size()) * (a.compare ? 2 : 1);
  plan(a, folder, request, loras, pictures, model->process().class_name);
  for (const std::string& remark : model->remarks()) fmt::print(stderr, "wick: {}\n", printable(remark));

  ImageGrid grid{.columns = a.prompts, .rows = {}, .cells = {}};
  {
    Progress progress(pictures, request.sampling.steps);
    if (a.compare) draw_rows(a, folder, {}, request, starts, "without LoRA", progress, grid);
    draw_rows(a, folder, loras, request, starts, a.compare ? "with LoRA" : "", progress, grid);
  }
  write_png(a.out, grid.cells.size() == 1 ? grid.cells.front() : draw_grid(grid));
  fmt::print("{}\n", printable(a.out));
}

std::vector<int64_t> prompt_ids(const GenerateArguments& a, const Tokenizer& tokenizer, const std::string& source) {
  const std::string& prompt = a.prompts.front();
  // The writer of a prompt to complete may write control tokens, as with transformers.
  if (!a.chat) return tokenizer.encode(prompt, {.parse_special = true});
  const std::vector<ChatMessage> messages = {{"user", prompt}};
  return ChatTemplate::of(tokenizer, a.text.chat_template, source).encode(tokenizer, messages).ids;
}

void generate_text(const GenerateArguments& a, const std::filesystem::path& model) {
  check_usage(a.prompts.size() == 1 && a.seeds.size() == 1, "expected one --prompt and one --seed, found {} and {}",
              a.prompts.size(), a.seeds.size());
  check_usage(a.chat || a.text.chat_template == ChatTemplate::kAuto, "--chat-template: expected --chat with it");
  const LlamaConfig config = LlamaConfig::read(model);
  const int64_t context = a.text.context_of(config, config.positions);
  const int64_t most = std::clamp<int64_t>(a.text.max_tokens, 1, context);  // beside a prompt not yet read
  const auto rehearse = [&](const Llama& unread, const Tokenizer& tokenizer) {
    TextDecoder::rehearse(unread, prompt_ids(a, tokenizer, model.string()).size());
  };
  const cli::OpenedModel opened = cli::OpenedModel::open(model, a.loras, a.text, a.run_on, most, rehearse);
  const LanguageModel& language = opened.language;
  TextRequest request = a.text.request(language);
  request.sampling.seed = a.seeds.front();
  request.until_full = a.until_full;
  request.prompt = prompt_ids(a, language.tokenizer, model.string());
  a.text.fit(request, context);
  // The cache is no larger than the request.
  Generator generator(language.model, std::min(context, int64_t(request.prompt.size()) + request.max_tokens));
  const TextAnswer answer = generator(request, language.stream(/*at_start=*/a.chat), [&](std::string_view text) {
    if (!a.json) cli::print_text(text);
    return true;
  });
  if (a.json)
    fmt::print("{}", nlohmann::json({{"text", answer.text},
                                     {"finish_reason", name_of(answer.finish)},
                                     {"prompt_tokens", request.prompt.size()},
                                     {"tokens", answer.ids.size()},
                                     {"ids", answer.ids},
                                     {"prompt_seconds", answer.prompt_seconds},
                                     {"seconds", answer.answer_seconds}})
                         .dump());
  cli::print_text("\n");
  if (a.text.verbose) cli::print_statistics(answer, request.prompt.size(), opened);
}

void refuse(const CLI::App& command, const std::vector<std::string>& flags, const std::string& model,
            const char* kind) {
  for (const std::string& flag : flags)
    check_usage(command.count(flag) == 0, "{}: {} is a model of {}, which has no such flag", flag, model, kind);
}

void generate(const CLI::App& command, GenerateArguments a) {
  if (a.seeds.empty()) a.seeds.push_back(0);
  if (!a.prediction.empty()) a.reading.prediction = a.prediction == "v" ? Prediction::v : Prediction::noise;
  const Checkpoint folder = a.model.resolve();
  if (kind_of(folder) == ModelKind::pictures) {
    refuse(command, a.text_flags, a.model.name(), "pictures");
    for (const char* flag : {"--skip-layers", "--skip-layer-start", "--skip-layer-stop"})
      check_usage(command.count(flag) == 0 || command.count("--skip-layer-guidance") > 0,
                  "{}: expected a --skip-layer-guidance with it", flag);
    return generate_pictures(a, folder);
  }
  refuse(command, a.picture_flags, a.model.name(), "language");
  generate_text(a, folder.path());
}

std::vector<std::string> sampler_names() {
  std::vector<std::string> names;
  for (const auto& [name, kind] : kSamplers) names.emplace_back(name);
  return names;
}

// Flags that pictures alone have.
void add_picture_flags(CLI::App& command, GenerateArguments& a) {
  const auto picture = [&](CLI::Option* option) {
    a.picture_flags.push_back(option->get_name());
    return option->group("Pictures");
  };
  const auto number = [&](const char* name, auto& value, const char* help, double least, double most) {
    picture(command.add_option(name, value, help))->type_name("NUMBER")->transform(cli::number_in(least, most));
  };
  const auto integer = [&](const char* name, int64_t& value, const char* help, const CLI::Validator& check) {
    picture(command.add_option(name, value, help))->type_name("INT")->transform(check);
  };
  picture(command.add_option("--out", a.out, "PNG file to write"))->type_name("FILE")->check(cli::png_file());
  picture(command.add_flag("--overwrite", a.overwrite, "Write over a file that is there"));
  picture(command.add_flag("--compare", a.compare, "Draw everything without the LoRAs too, above"));
  picture(command.add_option("--negative", a.negative, "What not to draw"))->type_name("TEXT");
  integer("--steps", a.steps, "Denoising steps [as listed below]", cli::positive_integer());
  number("--cfg", a.cfg, "Scale of classifier-free guidance, away from --negative; 1 is without it [as listed below]",
         1, 100);
  number("--guidance-rescale", a.cfg_rescale,
         "SDXL: share of a guided prediction that gets the deviation of the one without guidance, about 0.7 for models "
         "that predict v [0]",
         0, 1);
  number("--guidance", a.guidance, "Guidance that FLUX dev models are told [3.5]", 0, 100);
  picture(command.add_option("--sampler", a.sampler,
                             "How noise is taken away: by euler or dpmpp-2m, SDXL by euler-ancestral, "
                             "dpmpp-2m-karras, dpmpp-sde (Karras' sigmas, two evaluations a step), ddim, unipc or lcm "
                             "too; lcm takes 4 steps at --cfg 1 unless told otherwise [as listed below]"))
      ->type_name("NAME")
      ->check(cli::one_of(sampler_names()));
  picture(command.add_option("--prediction", a.prediction,
                             "SDXL: what the model predicts, the noise (epsilon) or v, in place of what its files say; "
                             "the last timestep keeps some signal unless they say otherwise [theirs]"))
      ->type_name("NAME")
      ->check(cli::one_of({"epsilon", "v"}));
  number("--shift", a.shift, "Moves the times of FLUX and SD3 towards noise [the scheduler's]", 1e-3, 1000);
  number("--skip-layer-guidance", a.skip.scale,
         "SD3: leads away from what the model predicts without --skip-layers [0: off]", 0, 100);
  picture(command.add_option("--skip-layers", a.skip.layers, "Layers that it leaves out [7,8,9]"))
      ->type_name("INT,...")
      ->delimiter(',')
      ->transform(cli::integer_in(0, std::numeric_limits<int32_t>::max()));
  number("--skip-layer-start", a.skip.start, "Share of the steps after which it begins [0.01]", 0, 1);
  number("--skip-layer-stop", a.skip.stop, "Share of the steps before which it ends [0.2]", 0, 1);
  integer("--t5-tokens", a.reading.t5.tokens,
          "Tokens of a prompt that T5 reads: longer ones are cut, shorter ones padded [as listed below]",
          cli::integer_in(1, 4096));
  picture(command.add_flag("--t5-mask", a.reading.t5.mask, "Hide the padding of T5's tokens from all others"));
  picture(command.add_option("--noise", a.noise,
                             "Safetensors file whose `noise` [B, C, h, w] is where pictures begin, one after the "
                             "other, in place of seeds; `noise.0`, `noise.1`, ... are what samplers draw after it"))
      ->type_name("FILE");
  integer("--width", a.width, "In pixels [as listed below]", cli::positive_integer());
  integer("--height", a.height, "Likewise [as listed below]", cli::positive_integer());
}

}  // namespace

void add_generate_command(CLI::App& app) {
  const auto a = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "Draw pictures from text, or complete it");
  a->model.add_flags(*command, model_help());
  command
      ->add_option("--prompt", a->prompts,
                   "What to draw (with several prompts or seeds, --out is a labelled grid) or the text to complete")
      ->required()
      ->type_name("TEXT")
      ->allow_extra_args(false);
  cli::add_loras(*command, a->loras);
  command->add_option("--seed", a->seeds, "Seed of what is drawn by chance; may be repeated for pictures [0]")
      ->type_name("INT")
      ->allow_extra_args(false)
      ->transform(cli::seed_number());
  add_picture_flags(*command, *a);
  a->text_flags = a->text.add_to(*command);
  const auto text = [&](const char* name, bool& value, const char* help) {
    a->text_flags.emplace_back(name);
    command->add_flag(name, value, help);
  };
  text("--json", a->json, "Print the text and what is known of it as one JSON object");
  text("--until-full", a->until_full, "A full context ends the text, instead of being an error beforehand");
  text("--chat", a->chat, "The prompt is a message: put it into the model's chat template");
  for (const std::string& flag : a->text_flags) command->get_option(flag)->group("Text");
  a->run_on.add_flags(*command);
  command->footer(cli::defaults_help() +
                  "\n\n"
                  "Examples:\n"
                  "  wick generate --model tiny --prompt \"a red heart\" --out heart.png\n"
                  "  wick generate --model sdxl --bf16 --lora out/lora.safetensors:0.8 --compare \\\n"
                  "    --prompt \"a cat\" --prompt \"a dog\" --seed 1 --seed 2 --out grid.png\n"
                  "  wick generate --model flux-dev --bf16 --prompt \"a cat\" --steps 28 \\\n"
                  "    --guidance 3.5 --out cat.png\n"
                  "  wick generate --model sd3.5-medium --bf16 --prompt \"a cat\" --cfg 5 \\\n"
                  "    --skip-layer-guidance 2.5 --out cat.png\n"
                  "  wick generate --model tiny-llm --prompt \"Once upon a time\" --max-tokens 100");
  command->callback([a, command] { generate(*command, *a); });
}

}  // namespace wick
