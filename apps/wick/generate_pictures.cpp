#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "generate.h"
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
  Tensor noise = {};  // [1, h, w, C], or empty: drawn from the seed
};

std::vector<Start> starts_of(const GenerateArguments& a, const LatentSpace& space) {
  std::vector<Start> starts;
  if (a.picture.noise.empty()) {
    for (const uint64_t seed : a.seeds) starts.push_back({fmt::format("seed {}", seed), seed});
    return starts;
  }
  ComponentInputs file(a.picture.noise, /*track=*/false, host_memory());
  const Tensor all = to_channels_last(file.variable("noise", {"B", space.channels, "h", "w"}));
  if (space.side_step != space.factor) file.check_even("noise", {"h", "w"});
  for (int64_t i = 0; i < all.dim(0); ++i)
    starts.push_back({fmt::format("noise {}", i), 0, contiguous(slice(all, 0, i, i + 1))});
  return starts;
}

// The prompt that takes the most memory. All are read, so that a fault is told before weights are loaded.
std::string longest_prompt(const GenerateArguments& a, const Diffusion& model) {
  if (a.picture.reading.syntax == PromptSyntax::plain) return {};  // all are cut or padded to one length
  return std::ranges::max(a.prompts, {}, [&](const std::string& prompt) { return model.length(prompt).tokens; });
}

ImageRequest request_of(const GenerateArguments& a, const Diffusion& model, const std::vector<Start>& starts) {
  const LatentSpace space = model.latents();
  const Tensor& noise = starts.front().noise;
  const int64_t wide = noise ? noise.dim(2) * space.factor : space.native,
                high = noise ? noise.dim(1) * space.factor : space.native;
  check_usage(!noise || ((a.picture.width == 0 || a.picture.width == wide) &&
                         (a.picture.height == 0 || a.picture.height == high)),
              "--noise: {} is of pictures of {}x{} pixels, but --width and --height ask for others", a.picture.noise,
              wide, high);
  const DrawingDefaults made_for = model.drawing_defaults();
  SamplerKind sampler = made_for.sampler;
  for (const auto& [name, kind] : kSamplers)
    if (a.picture.sampler == name) sampler = kind;
  return {
      .prompt = longest_prompt(a, model),
      .negative = a.picture.negative,
      .width = a.picture.width > 0 ? a.picture.width : wide,
      .height = a.picture.height > 0 ? a.picture.height : high,
      .cfg = a.picture.cfg.value_or(made_for.cfg),
      .cfg_rescale = a.picture.cfg_rescale,
      .guidance = a.picture.guidance.value_or(made_for.guidance.value_or(1)),
      .skip = a.picture.skip,
      .sampling = {
          .kind = sampler, .steps = a.picture.steps > 0 ? a.picture.steps : made_for.steps, .shift = a.picture.shift}};
}

// Before the weights are loaded, which may take long.
void check_request(const GenerateArguments& a, const ImageRequest& request, const Diffusion& model) {
  TextToImage::check_side("--width", request.width, model.latents());
  TextToImage::check_side("--height", request.height, model.latents());
  check_usage(!a.picture.guidance || model.drawing_defaults().guidance,
              "--guidance: {} is not told its guidance; --cfg guides it", a.model.name());
  check_usage(!a.picture.negative || request.cfg != 1, "--negative: expected a --cfg other than 1 with it");
  check_usage(a.picture.cfg_rescale == 0 || (request.cfg != 1 && !model.process().is_flow()),
              "--guidance-rescale: expected {}",
              request.cfg == 1 ? "a --cfg other than 1 with it" : "a model of SDXL's kind with it");
  check_usage(request.skip.scale == 0 || model.has_layers(), "--skip-layer-guidance: {} has no layers to skip",
              a.model.name());
  check_usage((a.picture.reading.t5.tokens == 0 && !a.picture.reading.t5.mask) || model.t5_tokens() > 0,
              "--t5-tokens and --t5-mask: {} has no T5", a.model.name());
  const Process& process = model.process();
  const int64_t steps = request.sampling.steps;
  check(steps <= process.train_steps(), "--steps: expected at most {}, the steps of {}, found {}",
        process.train_steps(), process.source, steps);
  process.sampler(request.sampling, latent_shape(request, model.latents()));
}

// Prints the memory that drawing will take, and refuses a picture that does not fit.
void plan(const GenerateArguments& a, const Checkpoint& checkpoint, const ImageRequest& request,
          const std::vector<LoraFile>& loras, int64_t pictures, const std::string& scheduler) {
  const std::string_view device = a.run_on.backend().name();
  const auto needed = [&](DType dtype) {
    return plan_image(checkpoint, request, {.dtype = dtype, .loras = loras, .reading = a.picture.reading},
                      device_kind(device))
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
  const std::unique_ptr<Diffusion> model = open_diffusion(checkpoint, a.picture.reading);
  Adapter adapter(model->lora().names, loras);
  model->load({.dtype = a.run_on.dtype(), .adapter = &adapter, .backend = &a.run_on.backend()}, kDrawingParts);
  TextToImage text_to_image(*model);
  for (const auto& [name, seed, noise] : starts) {
    grid.rows.push_back(label.empty() ? name : starts.size() == 1 ? label : fmt::format("{}, {}", label, name));
    for (const std::string& prompt : a.prompts) {
      request.prompt = prompt;
      request.seed = seed;
      request.start = noise;
      grid.cells.push_back(text_to_image(request, [&](int64_t step) { progress.step(step); }));
    }
  }
}

}  // namespace

void generate_pictures(const GenerateArguments& a, const Checkpoint& folder) {
  check_usage(!a.picture.compare || !a.loras.empty(), "--compare: expected a --lora to compare with, found none");
  check_usage(!a.picture.out.empty(), "--out is required: the PNG file to write");
  const std::vector<LoraFile> loras = cli::parse_loras(a.loras);
  cli::check_output_file({.path = a.picture.out,
                          .flag = "--out",
                          .overwrite = a.picture.overwrite,
                          .inputs = cli::inputs_of(loras, a.model.files(folder))});
  const std::unique_ptr<Diffusion> model = open_diffusion(folder, a.picture.reading);  // its configs alone
  const std::vector<Start> starts = starts_of(a, model->latents());
  const ImageRequest request = request_of(a, *model, starts);
  check_request(a, request, *model);
  const int64_t pictures = int64_t(a.prompts.size() * starts.size()) * (a.picture.compare ? 2 : 1);
  plan(a, folder, request, loras, pictures, model->process().class_name);
  for (const std::string& remark : model->remarks()) fmt::print(stderr, "wick: {}\n", printable(remark));

  ImageGrid grid{.columns = a.prompts, .rows = {}, .cells = {}};
  {
    Progress progress(pictures, request.sampling.steps);
    if (a.picture.compare) draw_rows(a, folder, {}, request, starts, "without LoRA", progress, grid);
    draw_rows(a, folder, loras, request, starts, a.picture.compare ? "with LoRA" : "", progress, grid);
  }
  write_image(a.picture.out, grid.cells.size() == 1 ? grid.cells.front() : draw_grid(grid));
  fmt::print("{}\n", printable(a.picture.out));
}

}  // namespace wick
