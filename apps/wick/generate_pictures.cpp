#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

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

// Leaves out what this model has no use for, or refuses it.
void drop_unused(GenerateArguments& a, const Diffusion& model) {
  cli::PictureFlags& p = a.picture;
  const bool is_guided = p.cfg != 1;
  if (p.guidance && !model.drawing_defaults().guidance) {
    a.settings.refuse("--guidance", a.model.name() + " is not told its guidance; --cfg guides it");
    p.guidance.reset();
  }
  if (p.negative && !is_guided) {
    a.settings.refuse("--negative", "expected a --cfg other than 1 with it");
    p.negative.reset();
  }
  if (p.cfg_rescale != 0 && (!is_guided || model.process().is_flow())) {
    a.settings.refuse("--guidance-rescale",
                      !is_guided ? "expected a --cfg other than 1 with it" : "expected a model of SDXL's kind with it");
    p.cfg_rescale = 0;
  }
  if (p.skip.scale != 0 && !model.has_layers()) {
    a.settings.refuse("--skip-layer-guidance", a.model.name() + " has no layers to skip");
    p.skip = {};
  }
  if (p.shift && !model.process().is_flow()) {
    a.settings.refuse("--shift", model.process().source + " describes no rectified flow, which alone has a shift");
    p.shift.reset();
  }
  if ((p.reading.t5.tokens > 0 || p.reading.t5.mask) && model.t5_tokens() == 0) {
    a.settings.refuse(p.reading.t5.tokens > 0 ? "--t5-tokens" : "--t5-mask", a.model.name() + " has no T5");
    p.reading.t5 = {};
  }
}

// Puts the values in use in the place of those that were left to the model.
void settle(GenerateArguments& a, const Diffusion& model, const Tensor& noise) {
  cli::PictureFlags& p = a.picture;
  const LatentSpace space = model.latents();
  const int64_t wide = noise ? noise.dim(2) * space.factor : space.native,
                high = noise ? noise.dim(1) * space.factor : space.native;
  check_usage(!noise || ((p.width == 0 || p.width == wide) && (p.height == 0 || p.height == high)),
              "--noise: {} is of pictures of {}x{} pixels, but --width and --height ask for others", p.noise, wide,
              high);
  if (p.width == 0) p.width = wide;
  if (p.height == 0) p.height = high;
  const DrawingDefaults made_for = model.drawing_defaults();
  if (p.steps == 0) p.steps = made_for.steps;
  if (!p.cfg) p.cfg = made_for.cfg;
  if (p.sampler.empty()) p.sampler = name_of(made_for.sampler);
  drop_unused(a, model);
  if (!p.guidance) p.guidance = made_for.guidance;
  p.reading.t5.tokens = model.t5_tokens();
}

ImageRequest request_of(const cli::PictureFlags& p) {
  const auto* sampler =
      std::ranges::find(kSamplers, std::string_view(p.sampler), &std::pair<std::string_view, SamplerKind>::first);
  return {.negative = p.negative,
          .width = p.width,
          .height = p.height,
          .cfg = *p.cfg,
          .cfg_rescale = p.cfg_rescale,
          .guidance = p.guidance.value_or(1),
          .skip = p.skip,
          .sampling = {.kind = sampler->second, .steps = p.steps, .shift = p.shift}};
}

// Before the weights are loaded, which may take long.
void check_request(const ImageRequest& request, const Diffusion& model) {
  TextToImage::check_side("--width", request.width, model.latents());
  TextToImage::check_side("--height", request.height, model.latents());
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

// Row by row, as they are drawn.
std::vector<std::string> row_labels(const GenerateArguments& a, const std::vector<Start>& starts) {
  std::vector<std::string> labels;
  if (!a.picture.compare) {
    for (const Start& start : starts) labels.push_back(start.label);
    return labels;
  }
  for (const char* lora : {"without LoRA", "with LoRA"})
    for (const Start& start : starts)
      labels.push_back(starts.size() == 1 ? lora : fmt::format("{}, {}", lora, start.label));
  return labels;
}

// All prompts with all starts: a row a start.
void draw_rows(const GenerateArguments& a, const Checkpoint& checkpoint, const std::vector<LoraFile>& loras,
               ImageRequest request, const std::vector<Start>& starts, Progress& progress, ImageGrid& grid) {
  const std::unique_ptr<Diffusion> model = open_diffusion(checkpoint, a.picture.reading);
  Adapter adapter(model->lora().names, loras);
  model->load({.dtype = a.run_on.dtype(), .adapter = &adapter, .backend = &a.run_on.backend()}, kDrawingParts);
  TextToImage text_to_image(*model);
  for (const auto& [name, seed, noise] : starts) {
    for (const std::string& prompt : a.prompts) {
      request.prompt = prompt;
      request.seed = seed;
      request.start = noise;
      grid.cells.push_back(text_to_image(request, [&](int64_t step) { progress.step(step); }));
    }
  }
}

// Before anything is drawn.
void check_out(const GenerateArguments& a, const ImageGrid& grid, const ImageRequest& request,
               const ImageTexts& texts) {
  const bool is_one = grid.columns.size() * grid.rows.size() == 1;
  const auto [width, height] =
      is_one ? std::pair(request.width, request.height) : size_of_grid(grid, request.width, request.height);
  check_image_fits(a.picture.out, width, height, texts);
}

void check_arguments(const GenerateArguments& a, const Checkpoint& model, const std::vector<LoraFile>& loras) {
  const cli::PictureFlags& p = a.picture;
  std::vector<std::filesystem::path> inputs = cli::inputs_of(loras, a.model.files(model));
  for (const std::string& path : {p.from, p.noise})
    if (!path.empty()) inputs.emplace_back(path);
  cli::check_output_file({.path = p.out, .flag = "--out", .overwrite = p.overwrite, .inputs = inputs});
}

}  // namespace

void generate_pictures(GenerateArguments& a, const Checkpoint& folder) {
  check_usage(!a.picture.compare || !a.loras.empty(), "--compare: expected a --lora to compare with, found none");
  check_usage(!a.picture.out.empty(), "--out is required: the picture to write, {}", kWrittenImages);
  const std::vector<LoraFile> loras = cli::parse_loras(a.loras);
  check_arguments(a, folder, loras);
  const std::unique_ptr<Diffusion> model = open_diffusion(folder, a.picture.reading);  // its configs alone
  const std::vector<Start> starts = starts_of(a, model->latents());
  settle(a, *model, starts.front().noise);
  const ImageRequest request = request_of(a.picture);
  check_request(request, *model);
  const ImageTexts texts = a.settings.texts(loras);
  ImageGrid grid{.columns = a.prompts, .rows = row_labels(a, starts), .cells = {}};
  check_out(a, grid, request, texts);
  const int64_t pictures = int64_t(a.prompts.size() * starts.size()) * (a.picture.compare ? 2 : 1);
  plan(a, folder, request, loras, pictures, model->process().class_name);
  a.settings.print_notes();
  for (const std::string& remark : model->remarks()) fmt::print(stderr, "wick: {}\n", printable(remark));
  {
    Progress progress(pictures, request.sampling.steps);
    if (a.picture.compare) draw_rows(a, folder, {}, request, starts, progress, grid);
    draw_rows(a, folder, loras, request, starts, progress, grid);
  }
  write_image(a.picture.out, grid.cells.size() == 1 ? grid.cells.front() : draw_grid(grid), texts);
  fmt::print("{}\n", printable(a.picture.out));
}

}  // namespace wick
