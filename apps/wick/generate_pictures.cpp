#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
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
  Progress(int64_t pictures, int64_t batch_size, int64_t steps)
      : pictures_(pictures), batch_size_(batch_size), steps_(steps) {}

  void begin_batch(int64_t pictures) { batch_ = pictures; }
  void step(int64_t step) {
    if (++done_ == 1) behind_first_ = Clock::now();
    const std::string numbers =
        batch_ == 1 ? fmt::format("{}", picture_) : fmt::format("{} to {}", picture_, picture_ + batch_ - 1);
    const int64_t behind = (pictures_ - picture_ - batch_ + batch_size_) / batch_size_;  // batches
    if (isatty(STDOUT_FILENO))
      fmt::print("\r{}/{}  step {}/{}  {}  {:.0f} s left ", numbers, pictures_, step, steps_, rate(),
                 double(behind * steps_ + steps_ - step) / per_second());
    else if (step == steps_)
      fmt::print("{} {} of {}: {}, {}\n", batch_ == 1 ? "picture" : "pictures", numbers, pictures_,
                 count_of(steps_, "step"), rate());
    if (step == steps_) picture_ += batch_;
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

  int64_t pictures_, batch_size_, steps_, batch_ = 1, picture_ = 1, done_ = 0;
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
  return {.prompt = longest_prompt(a, model),
          .negative = a.picture.negative,
          .width = a.picture.width > 0 ? a.picture.width : wide,
          .height = a.picture.height > 0 ? a.picture.height : high,
          .cfg = a.picture.cfg.value_or(made_for.cfg),
          .cfg_rescale = a.picture.cfg_rescale,
          .guidance = a.picture.guidance.value_or(made_for.guidance.value_or(1)),
          .skip = a.picture.skip,
          .sampling = {.kind = sampler,
                       .steps = a.picture.steps > 0 ? a.picture.steps : made_for.steps,
                       .shift = a.picture.shift},
          .tile = a.picture.tile};
}

// Before the weights are loaded, which may take long.
void check_request(const GenerateArguments& a, const ImageRequest& request, const Diffusion& model) {
  TextToImage::check_side("--width", request.width, model.latents());
  TextToImage::check_side("--height", request.height, model.latents());
  check_usage(!a.picture.guidance || model.drawing_defaults().guidance,
              "--guidance: {} is not told its guidance; --cfg guides it", a.model.name());
  check_usage(a.picture.tile % model.latents().side_step == 0, "--vae-tile: expected a multiple of {}, found {}",
              model.latents().side_step, a.picture.tile);
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

// Sides of tiles that a VAE decodes one by one, in pixels.
constexpr int64_t kTiles[] = {1024, 768, 512};

// Prints the memory that drawing will take, and refuses pictures that do not fit. Where only their decoding does not,
// the request gets tiles.
void plan(const GenerateArguments& a, const Checkpoint& checkpoint, ImageRequest& request,
          const std::vector<LoraFile>& loras, int64_t pictures, const std::string& scheduler) {
  const std::string_view device = a.run_on.backend().name();
  const int64_t batch = std::min(a.picture.batch_size, pictures);
  const auto needed = [&](DType dtype, int64_t tile) {
    ImageRequest tiled = request;
    tiled.tile = tile;
    const ImagePlanOptions options{.batch = batch, .dtype = dtype, .loras = loras, .reading = a.picture.reading};
    return plan_image(checkpoint, tiled, options, device_kind(device)).total();
  };
  size_t total = needed(a.run_on.dtype(), request.tile);
  const std::optional<size_t> free = free_memory(device);
  for (const int64_t tile : kTiles) {
    if (!free || total <= *free || request.tile != 0) break;
    const size_t with_tiles = needed(a.run_on.dtype(), tile);
    if (with_tiles <= *free) request.tile = tile, total = with_tiles;
  }
  if (free && total > *free) {
    const size_t in_bf16 = a.run_on.dtype() == DType::f32 ? needed(DType::bf16, request.tile) : total;
    fail(
        "{} of {}x{} pixels would need {} of memory on {}, where {} are free; a smaller --width{} or --height needs "
        "less{}",
        batch == 1 ? "a picture" : fmt::format("{} at a time", count_of(batch, "picture")), request.width,
        request.height, readable_bytes(total), device, readable_bytes(*free), batch == 1 ? "" : ", --batch-size",
        in_bf16 + total / 100 < total ? ", --bf16 " + readable_bytes(in_bf16) : "");
  }
  fmt::print("Drawing {} of {}x{} pixels in {} with --sampler {} (the folder names {}); memory on {}: {} needed{}.\n",
             count_of(pictures, "picture"), request.width, request.height, count_of(request.sampling.steps, "step"),
             name_of(request.sampling.kind), scheduler, device, readable_bytes(total),
             free ? fmt::format("; {} free", readable_bytes(*free)) : "");
  if (request.tile != 0 && a.picture.tile == 0)
    fmt::print("Decoded in tiles of {0}x{0} pixels: there is no room to decode a picture whole.\n", request.tile);
  std::fflush(stdout);
}

// All prompts with all starts: a row a start.
std::vector<ImageRequest> requests_of(const GenerateArguments& a, ImageRequest request,
                                      const std::vector<Start>& starts) {
  std::vector<ImageRequest> requests;
  for (const Start& start : starts)
    for (const std::string& prompt : a.prompts) {
      request.prompt = prompt;
      request.seed = start.seed;
      request.start = start.noise;
      requests.push_back(request);
    }
  return requests;
}

// A batch's pictures are delivered while the next batch is drawn.
void draw(const GenerateArguments& a, const Checkpoint& checkpoint, const std::vector<LoraFile>& loras,
          const std::vector<ImageRequest>& requests, Progress& progress, const std::function<void(Image)>& deliver) {
  const std::unique_ptr<Diffusion> model = open_diffusion(checkpoint, a.picture.reading);
  Adapter adapter(model->lora().names, loras);
  const DiffusionOptions options{.dtype = a.run_on.dtype(), .adapter = &adapter, .backend = &a.run_on.backend()};
  TextToImage text_to_image = TextToImage::load(*model, options, requests);
  std::vector<TextToImage::Pending> last;
  const auto deliver_last = [&] {
    for (const TextToImage::Pending& picture : last) deliver(picture.wait());
    last.clear();
  };
  for (size_t first = 0; first < requests.size(); first += size_t(a.picture.batch_size)) {
    const size_t end = std::min(requests.size(), first + size_t(a.picture.batch_size));
    progress.begin_batch(int64_t(end - first));
    std::vector<TextToImage::Pending> pictures =
        text_to_image.draw({requests.begin() + ptrdiff_t(first), requests.begin() + ptrdiff_t(end)}, [&](int64_t step) {
          progress.step(step);
          deliver_last();
        });
    last = std::move(pictures);
  }
  deliver_last();
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
  ImageRequest request = request_of(a, *model, starts);
  check_request(a, request, *model);
  const int64_t pictures = int64_t(a.prompts.size() * starts.size()) * (a.picture.compare ? 2 : 1);
  plan(a, folder, request, loras, pictures, model->process().class_name);
  for (const std::string& remark : model->remarks()) fmt::print(stderr, "wick: {}\n", printable(remark));

  ImageGrid grid{.columns = a.prompts, .rows = {}, .cells = {}};
  const std::vector<ImageRequest> requests = requests_of(a, request, starts);
  const auto keep = [&](Image image) { grid.cells.push_back(std::move(image)); };
  const auto name_rows = [&](const std::string& label) {
    for (const Start& start : starts)
      grid.rows.push_back(label.empty()        ? start.label
                          : starts.size() == 1 ? label
                                               : fmt::format("{}, {}", label, start.label));
  };
  {
    Progress progress(pictures, a.picture.batch_size, request.sampling.steps);
    if (a.picture.compare) {
      name_rows("without LoRA");
      draw(a, folder, {}, requests, progress, keep);
    }
    name_rows(a.picture.compare ? "with LoRA" : "");
    draw(a, folder, loras, requests, progress, keep);
  }
  write_image(a.picture.out, grid.cells.size() == 1 ? grid.cells.front() : draw_grid(grid));
  fmt::print("{}\n", printable(a.picture.out));
}

}  // namespace wick
