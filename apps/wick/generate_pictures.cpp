#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "generate.h"
#include "picture_output.h"
#include "validators.h"
#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/component.h"
#include "wick/pipelines/devices.h"
#include "wick/pipelines/memory_advice.h"
#include "wick/pipelines/model_defaults.h"
#include "wick/pipelines/plan.h"
#include "wick/pipelines/text_to_image.h"
#include "wick/text/foreign_syntax.h"
#include "wick/train/progress.h"

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
      line_.show(fmt::format("{}/{}  step {}/{}{}", numbers, pictures_, step, steps_,
                             time_in_words(behind * steps_ + steps_ - step)),
                 step == steps_);
    else if (step == steps_)
      fmt::print("{} {} of {}: {}, {}\n", batch_ == 1 ? "picture" : "pictures", numbers, pictures_,
                 count_of(steps_, "step"), rate());
    if (step == steps_) picture_ += batch_;
    std::fflush(stdout);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // The rate, and the time that `left` more steps take. Empty until several steps have been timed.
  std::string time_in_words(int64_t left) const {
    constexpr int64_t kFewest = 4;
    if (done_ < kFewest && left > 0) return {};
    return fmt::format("  {}  {:.0f} s left", rate(), double(left) / per_second());
  }
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
  ProgressLine line_;
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
  if (a.picture.noise.empty()) {
    for (const uint64_t seed : a.seeds) starts.push_back({fmt::format("seed {}", seed), seed});
    return starts;
  }
  ComponentInputs file(a.picture.noise, /*track=*/false, host_memory());
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
  if (!p.prediction.empty() && model.process().is_flow()) {
    a.settings.refuse("--prediction", a.model.name() + " is a rectified flow, which predicts neither noise nor v");
    p.prediction.clear();
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

// The width and height of pictures of such form, no larger than the model's own nor than the picture.
std::pair<int64_t, int64_t> size_like(const Image& image, const LatentSpace& space) {
  const double scale = std::min(1.0, double(space.native) / std::sqrt(double(image.width) * double(image.height)));
  const auto side = [&](int pixels) {
    return std::max<int64_t>(1, std::llround(pixels * scale / double(space.side_step))) * space.side_step;
  };
  return {side(image.width), side(image.height)};
}

// Puts the values in use in the place of those that were left to the model.
void settle(GenerateArguments& a, const Diffusion& model, const Tensor& noise, const std::optional<Image>& init) {
  cli::PictureFlags& p = a.picture;
  const LatentSpace space = model.latents();
  int64_t wide = space.native, high = space.native;
  if (noise)
    wide = noise.dim(2) * space.factor, high = noise.dim(1) * space.factor;
  else if (init)
    std::tie(wide, high) = size_like(*init, space);
  check_usage(!noise || ((p.width == 0 || p.width == wide) && (p.height == 0 || p.height == high)),
              "--noise: {} is of pictures of {}x{} pixels, but --width and --height ask for others", p.noise, wide,
              high);
  if (p.width == 0) p.width = wide;
  if (p.height == 0) p.height = high;
  DrawingDefaults made_for = model.drawing_defaults();
  for (const auto& [name, kind] : kSamplers)
    if (p.sampler == name) made_for = drawn_by(kind, made_for);
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
          .sampling = {.kind = sampler->second, .steps = p.steps, .shift = p.shift},
          .tile = p.tile};
}

// Before the weights are loaded, which may take long.
void check_request(const GenerateArguments& a, const ImageRequest& request, const Start& start,
                   const Diffusion& model) {
  TextToImage::check_side("--width", request.width, model.latents());
  TextToImage::check_side("--height", request.height, model.latents());
  check_usage(request.tile % model.latents().side_step == 0, "--vae-tile: expected a multiple of {}, found {}",
              model.latents().side_step, request.tile);
  const Process& process = model.process();
  const int64_t steps = request.sampling.steps;
  check_usage(request.sampling.skipped < steps, "--strength: {} of {} is no step; more of either make one at least",
              a.picture.strength, count_of(steps, "step"));
  check(steps <= process.train_steps(), "--steps: expected at most {}, the steps of {}, found {}",
        process.train_steps(), process.source, steps);
  const Sampler sampler = process.sampler(request.sampling, latent_shape(request, model.latents()));
  const auto draws = size_t(std::ranges::count_if(sampler.steps, &SamplerStep::draws));
  check(!start.noise || start.draws.size() >= draws,
        "--noise: {} has no tensor \"noise.{}\"; --sampler {} draws {} in {}: noise.0 to noise.{}", a.picture.noise,
        start.draws.size(), name_of(request.sampling.kind), count_of(draws, "time"), count_of(steps, "step"),
        draws - 1);
}

// Sides of tiles that a VAE decodes one by one, in pixels.
constexpr int64_t kTiles[] = {1024, 768, 512};

// The dtype of weights that are not quantised.
DType dtype_of(const GenerateArguments& a) {
  const bool is_bf16 =
      a.text.held.quantized() || (!a.text.held.memory.empty() && !a.run_on.backend().memory().on_host());
  return a.run_on.asked_dtype().value_or(is_bf16 ? DType::bf16 : DType::f32);
}
std::optional<Quantization> quantization_of(const Holding& held) {
  return held.quantized ? std::optional(Quantization{*held.quantized}) : std::nullopt;
}

// The settings that advice may change.
struct Way {
  int64_t width, height, batch;
  DType dtype;  // of weights that are not quantised
};
using PlanOfWay = std::function<InferencePlan(const Way& way, int64_t tile, const Holding& held)>;

// The flags with which the pictures fit into `room`: each alone, or else several.
std::string advice_for(const GenerateArguments& a, const LatentSpace& space, const Holding& held, const Way& asked,
                       size_t room, const PlanOfWay& plan) {
  // In tiles too, where the user does not choose them.
  const auto fits = [&](const Way& way, const Holding& h) {
    InferencePlan found = plan(way, a.picture.tile, h);
    for (const int64_t tile : kTiles) {
      if (found.total() <= room || a.picture.tile != 0) break;
      found = plan(way, tile, h);
    }
    return found;
  };
  const auto changed = [&](std::string flags, const Way& way) -> MemoryChange {
    return [&, flags, way] { return if_fits(flags, fits(way, held).total(), room); };
  };
  // The choice of --memory.
  const auto chosen = [&](std::string flags, Way way) -> MemoryChange {
    if (!a.run_on.backend().memory().on_host()) way.dtype = a.run_on.asked_dtype().value_or(DType::bf16);
    return [&, flags, way]() -> std::optional<Fitting> {
      const auto precisions = held.quantized ? std::vector{held.quantized} : precisions_for_memory();
      const InferenceChoices choices = choose_holding({.size = room, .host = host_limit(a.text.held.host_memory)},
                                                      precisions, [&](const Holding& h) { return fits(way, h); });
      return choices.best ? if_fits(flags, choices.best->plan.total(), room) : std::nullopt;
    };
  };
  // The largest of the same form, by whole steps of the longer side; none that is much smaller than the model's own.
  const auto smaller = [&](const std::string& flags, Way way, const Holding& h) -> MemoryChange {
    return [&, flags, way, h]() mutable -> std::optional<Fitting> {
      if (!a.picture.noise.empty()) return {};
      const int64_t longer = std::max(asked.width, asked.height), step = space.side_step;
      const auto total = [&](int64_t side) {
        const auto scaled = [&](int64_t whole) { return std::max<int64_t>(1, whole * side / longer) * step; };
        way.width = scaled(asked.width), way.height = scaled(asked.height);
        return fits(way, h).total();
      };
      const int64_t least = std::max<int64_t>(1, space.native / 4 / step);
      const int64_t side = most_that_fits(least, longer / step - 1, [&](int64_t n) { return total(n) <= room; });
      if (side == 0) return {};
      const size_t needed = total(side);
      return Fitting{fmt::format("{}--width {} --height {}", flags, way.width, way.height), needed};
    };
  };
  Way bf16 = asked, one = asked;
  bf16.dtype = DType::bf16;
  one.batch = 1;
  std::vector<MemoryChange> alone, precisions, together;
  if (asked.dtype == DType::f32) precisions.push_back(changed("--bf16", bf16));
  const bool may_choose = a.text.held.memory.empty() && !held.is_streamed();
  if (may_choose) precisions.push_back(chosen("--memory auto", asked));
  alone.push_back(first_that_fits(precisions));
  if (asked.batch > 1) {
    alone.push_back(changed("--batch-size 1", one));
    if (may_choose) together.push_back(chosen("--memory auto --batch-size 1", one));
  }
  alone.push_back(smaller("", asked, held));
  Way least = one;
  least.dtype = DType::bf16;
  const std::string batch = asked.batch > 1 ? "--batch-size 1 " : "";
  together.push_back(smaller((asked.dtype == DType::f32 ? "--bf16 " : "") + batch, least, held));
  if (!held.quantized && a.text.held.memory.empty()) {
    Holding narrow = held;
    narrow.quantized = precisions_for_memory().back();
    together.push_back(smaller(fmt::format("--quantize {} {}", name_of(*narrow.quantized), batch), least, narrow));
  }
  return memory_advice(alone, together);
}

// Says what will be drawn with how much memory, and refuses pictures that do not fit. Where only their decoding does
// not, the request gets tiles.
struct Planned {
  Holding held;
  std::string words;
};
Planned plan(const GenerateArguments& a, const Checkpoint& checkpoint, const Diffusion& model, ImageRequest& request,
             const std::vector<ImageRequest>& requests, const std::vector<std::vector<LoraFile>>& lora_sets) {
  const std::string_view device = a.run_on.backend().name();
  const int64_t batch = std::min(a.picture.batch_size, int64_t(requests.size()));
  const Way asked{request.width, request.height, batch, dtype_of(a)};
  const auto planned = [&](const Way& way, int64_t tile, const Holding& held) {
    std::vector<ImageRequest> tiled = requests;
    for (ImageRequest& one : tiled) one.tile = tile, one.width = way.width, one.height = way.height;
    const ImagePlanOptions options{.batch = way.batch,
                                   .of_picture = !a.picture.init.empty(),
                                   .dtype = way.dtype,
                                   .quantization = quantization_of(held),
                                   .block_schedule = held.block_schedule(),
                                   .stream_text_encoder = held.stream_text_encoder,
                                   .costs = !a.text.held.memory.empty(),
                                   .lora_sets = lora_sets,
                                   .reading = a.picture.reading};
    return plan_image(checkpoint, tiled, options, device_kind(device, architecture_of(device)));
  };
  const std::optional<size_t> free = free_memory(device), room = a.text.held.room(device);
  // In the largest tiles that fit, if the picture does not fit whole.
  const auto fitted = [&](const Holding& h) {
    std::pair found{planned(asked, request.tile, h), request.tile};
    for (const int64_t tile : kTiles) {
      if (!room || found.first.total() <= *room || request.tile != 0) break;
      const InferencePlan tiled = planned(asked, tile, h);
      if (tiled.total() < found.first.total()) found = {tiled, tile};
    }
    return found;
  };
  const auto [held, note] =
      a.text.held.settle(a.run_on.backend(), /*may_quantize=*/true, [&](const Holding& h) { return fitted(h).first; });
  const auto [chosen, tile] = fitted(held);
  const size_t total = chosen.total();
  if (!free || total <= *free) request.tile = tile;
  if (free && total > *free)
    fail("{} of {}x{} pixels would need {} of memory on {}, where {} are free; {}",
         batch == 1 ? "a picture" : fmt::format("{} at a time", count_of(batch, "picture")), request.width,
         request.height, readable_bytes(total), device, readable_bytes(*free),
         advice_for(a, model.latents(), held, asked, room_to_advise(*free), planned));
  std::string text = fmt::format(
      "Drawing {} of {}x{} pixels in {} with --sampler {} (the folder names {}); memory on {}: {} needed{}{}.\n",
      count_of(requests.size(), "picture"), request.width, request.height,
      count_of(request.sampling.steps - request.sampling.skipped, "step"), name_of(request.sampling.kind),
      model.process().class_name, device, readable_bytes(total),
      on_host_in_words(chosen.host_of(a.run_on.devices().size()), chosen.staged),
      free ? fmt::format("; {} free", readable_bytes(*free)) : "");
  if (request.tile != 0 && a.picture.tile == 0)
    text +=
        fmt::format("Decoded in tiles of {0}x{0} pixels: there is no room to decode a picture whole.\n", request.tile);
  return {held, note.empty() ? text : note + "\n" + text};
}

// LoRAs that all prompts and starts are drawn with.
struct LoraSet {
  std::string label;
  std::vector<LoraFile> loras;
};

std::vector<LoraSet> lora_sets_of(const GenerateArguments& a, const std::vector<std::string>& parts) {
  const std::vector<LoraFile> always = cli::parse_loras(a.loras, parts);
  std::vector<LoraSet> sets;
  for (const std::string& columns : a.picture.columns) {
    sets.push_back({columns, always});
    for (const LoraFile& lora : cli::parse_lora_set(columns, parts)) sets.back().loras.push_back(lora);
  }
  if (!sets.empty()) return sets;
  if (a.picture.compare) return {{"without LoRA", {}}, {"with LoRA", always}};
  return {{"", always}};
}

std::vector<LoraFile> files_in(const std::vector<LoraSet>& sets) {
  std::vector<LoraFile> files;
  for (const LoraSet& set : sets) files.insert(files.end(), set.loras.begin(), set.loras.end());
  return files;
}

// Everything with the first set, then with the next one: prompts with all starts, row by row.
std::vector<ImageRequest> requests_of(const GenerateArguments& a, ImageRequest request,
                                      const std::vector<Start>& starts, size_t sets) {
  std::vector<ImageRequest> requests;
  for (size_t set = 0; set < sets; ++set)
    for (const Start& start : starts)
      for (const std::string& prompt : a.prompts) {
        request.adapters = set;
        request.prompt = prompt;
        request.seed = start.seed;
        request.start = start.noise;
        request.draws = start.draws;
        requests.push_back(request);
      }
  return requests;
}

std::string joined(const std::string& a, const std::string& b) { return a.empty() || b.empty() ? a + b : a + ", " + b; }

// A row a start, above those of the next set; or each prompt with each set a column.
ImageGrid grid_of(const GenerateArguments& a, const std::vector<Start>& starts, const std::vector<LoraSet>& sets) {
  ImageGrid grid;
  const bool has_one_prompt = a.prompts.size() == 1;
  if (a.picture.columns.empty()) {
    grid.columns = a.prompts;
    for (const LoraSet& set : sets)
      for (const Start& start : starts)
        grid.rows.push_back(joined(set.label, starts.size() == 1 && !set.label.empty() ? "" : start.label));
    return grid;
  }
  for (const std::string& prompt : a.prompts)
    for (const LoraSet& set : sets) grid.columns.push_back(joined(has_one_prompt ? "" : prompt, set.label));
  for (const Start& start : starts) grid.rows.push_back(start.label);
  return grid;
}

// The places in the grid of the pictures, in the order in which they are drawn.
std::vector<size_t> places_of(const GenerateArguments& a, size_t starts, size_t sets) {
  std::vector<size_t> places;
  const size_t prompts = a.prompts.size();
  for (size_t set = 0; set < sets; ++set)
    for (size_t start = 0; start < starts; ++start)
      for (size_t prompt = 0; prompt < prompts; ++prompt)
        places.push_back(a.picture.columns.empty() ? places.size() : (start * prompts + prompt) * sets + set);
  return places;
}

// Pictures that several devices draw, delivered in their order.
class InOrder {
 public:
  InOrder(size_t count, std::function<void(Image)> deliver) : waiting_(count), deliver_(std::move(deliver)) {}

  void add(size_t index, Image picture) {
    const std::lock_guard lock(mutex_);
    waiting_[index] = std::move(picture);
    for (; next_ < waiting_.size() && waiting_[next_]; ++next_) deliver_(*std::exchange(waiting_[next_], std::nullopt));
  }

 private:
  std::mutex mutex_;
  std::vector<std::optional<Image>> waiting_;
  size_t next_ = 0;
  std::function<void(Image)> deliver_;
};

// The batches of one device of several.
struct DeviceShare {
  std::string device;
  size_t first = 0, every = 1;
};

int64_t pictures_of(const DeviceShare& share, const TextToImage::Batch& all, int64_t batch_size) {
  int64_t count = 0;
  size_t batch = 0;
  for (auto first = all.begin(), end = first; first != all.end(); first = end, ++batch) {
    end = TextToImage::end_of_batch(first, all.end(), batch_size);
    if (batch % share.every == share.first) count += end - first;
  }
  return count;
}

// A batch's pictures are delivered, by their numbers, while the next batch is drawn. `model` has none of its parts
// loaded.
void draw(const GenerateArguments& a, std::unique_ptr<Diffusion> model, const Holding& held,
          const std::vector<std::vector<LoraFile>>& lora_sets, const std::optional<Image>& init,
          std::vector<ImageRequest> requests, const DeviceShare& share, Progress* progress,
          const std::function<void(size_t, Image)>& deliver) {
  Adapter adapter(model->lora().names, lora_sets);
  const DiffusionOptions options{.dtype = dtype_of(a),
                                 .quantization = quantization_of(held),
                                 .adapter = &adapter,
                                 .backend = &a.run_on.on(share.device).backend(),
                                 .block_schedule = held.block_schedule(),
                                 .stream_text_encoder = held.stream_text_encoder};
  if (init) {
    model->load(options, {DiffusionPart::vae_encoder});
    const Tensor picture = image_to_tensor(middle_of_image(*init, int(a.picture.width), int(a.picture.height)));
    const Tensor latents =
        model->encode(reshape(picture.to(model->memory()), {1, picture.dim(0), picture.dim(1), 3})).mean;
    for (ImageRequest& request : requests) request.picture = latents;
    model->drop_encoders();
  }
  TextToImage text_to_image = TextToImage::load(*model, options, requests, a.picture.batch_size);
  const std::string quantized = model->denoiser_weights().describe_quantized();
  if (progress && !quantized.empty()) fmt::print("The {} in {}.\n", model->denoiser_in_words(), quantized);
  std::vector<TextToImage::Pending> last;
  size_t number_of_last = 0;
  const auto deliver_last = [&] {
    for (const TextToImage::Pending& picture : last) deliver(number_of_last++, picture.wait());
    last.clear();
  };
  const TextToImage::Batch& all = requests;
  size_t batch = 0;
  for (auto first = all.begin(), end = first; first != all.end(); first = end, ++batch) {
    end = TextToImage::end_of_batch(first, all.end(), a.picture.batch_size);
    if (batch % share.every != share.first) continue;
    if (progress) progress->begin_batch(end - first);
    std::vector<TextToImage::Pending> pictures = text_to_image.draw({first, end}, [&](int64_t step) {
      if (progress) progress->step(step);
      deliver_last();
    });
    last = std::move(pictures);
    number_of_last = size_t(first - all.begin());
  }
  deliver_last();
}

// A picture in a folder carries what repeats it alone.
ImageTexts texts_of(GenerateArguments& a, const ImageRequest& request, const std::vector<LoraFile>& loras) {
  const auto prompts = std::exchange(a.prompts, {request.prompt});
  const auto seeds = std::exchange(a.seeds, {request.seed});
  ImageTexts texts = a.settings.texts(loras);
  a.prompts = prompts;
  a.seeds = seeds;
  return texts;
}

// Throws Error if what is drawn cannot be written.
std::unique_ptr<cli::PictureOutput> output_of(GenerateArguments& a, const std::vector<ImageRequest>& requests,
                                              const std::vector<Start>& starts, const std::vector<LoraSet>& sets) {
  const ImageRequest& first = requests.front();
  const std::vector<LoraFile> loras = files_in(sets);
  if (!cli::is_folder(a.picture.out))
    return std::make_unique<cli::PictureFile>(a.picture.out, grid_of(a, starts, sets),
                                              places_of(a, starts.size(), sets.size()), first.width, first.height,
                                              a.settings.texts(loras));
  std::vector<ImageTexts> texts;
  for (const ImageRequest& request : requests) {
    texts.push_back(texts_of(a, request, loras));
    check_image_fits("picture.png", request.width, request.height, texts.back());
  }
  return std::make_unique<cli::PictureFolder>(a.picture.out, std::move(texts));
}

// --out names a folder, in which nothing is written over and each picture is to be repeated alone.
void check_out_folder(const GenerateArguments& a) {
  const cli::PictureFlags& p = a.picture;
  check_usage(!p.overwrite, "--overwrite: pictures in the folder {} never take the name of another", p.out);
  check_usage(!p.compare && p.columns.empty(), "{}: expected a picture as --out, for a grid, found the folder {}",
              p.compare ? "--compare" : "--column", p.out);
}

void check_out(const GenerateArguments& a, const Checkpoint& model, const std::vector<LoraFile>& loras) {
  const cli::PictureFlags& p = a.picture;
  std::vector<std::filesystem::path> inputs = cli::inputs_of(loras, a.model.files(model));
  for (const std::string& path : {p.from, p.noise, p.init})
    if (!path.empty()) inputs.emplace_back(path);
  if (cli::is_folder(p.out)) return check_out_folder(a);
  cli::check_output_file({.path = p.out, .flag = "--out", .overwrite = p.overwrite, .inputs = inputs});
}

// Says which parts of the prompts are words here and more elsewhere.
void print_foreign_syntax(const GenerateArguments& a) {
  std::vector<ForeignSyntax> found;
  const auto look_at = [&](const std::string& prompt) {
    std::ranges::move(foreign_syntax(prompt, a.picture.reading.syntax), std::back_inserter(found));
  };
  if (!a.settings.has_foreign_prompts()) std::ranges::for_each(a.prompts, look_at);
  if (a.picture.negative && !a.settings.has_foreign_prompts()) look_at(*a.picture.negative);
  if (!found.empty()) fmt::print(stderr, "wick: the prompt's {}\n", printable(read_as_words(found, /*may_draw=*/true)));
}

}  // namespace

void generate_pictures(GenerateArguments& a, const Checkpoint& folder) {
  check_usage(!a.picture.compare || !a.loras.empty(), "--compare: expected a --lora to compare with, found none");
  check_usage(!a.picture.compare || a.picture.columns.empty(),
              "--compare and --column: expected one of them; --column none is the picture without");
  check_usage(!a.picture.out.empty(), "--out is required: the picture to write, {}, or a folder", kWrittenImages);
  const std::vector<LoraSet> sets = lora_sets_of(a, adapted_components(folder));
  check_out(a, folder, files_in(sets));
  a.picture.reading.prediction = a.picture.prediction_setting();
  std::unique_ptr<Diffusion> model = open_diffusion(folder, a.picture.reading);  // its configs alone
  auto remarks = std::async(std::launch::async, [&model = *model] {
    model.read_tokenizers();
    return model.remarks();
  });
  a.run_on.backend().warm_up();  // and opens the device, meanwhile
  const std::vector<Start> starts = starts_of(a, model->latents());
  std::optional<Image> init;
  if (!a.picture.init.empty()) init = read_image(a.picture.init);
  check_usage(starts.size() == 1 || a.picture.noise.empty() || !cli::is_folder(a.picture.out),
              "--noise: {} is of {} pictures, for a grid; expected one where --out is the folder {}, whose pictures "
              "are repeated alone",
              a.picture.noise, starts.size(), a.picture.out);
  settle(a, *model, starts.front().noise, init);
  ImageRequest request = request_of(a.picture);
  if (init) request.sampling.skipped = model->process().skipped(a.picture.steps, a.picture.strength);
  check_request(a, request, starts.front(), *model);
  std::vector<std::vector<LoraFile>> lora_sets;
  for (const LoraSet& set : sets) lora_sets.push_back(set.loras);
  const std::vector<std::string> devices = a.run_on.devices();
  if (devices.size() > 1) a.text.held.copies = std::make_shared<HostCopies>(devices.size());
  const auto [held, planned] =
      plan(a, folder, *model, request, requests_of(a, request, starts, sets.size()), lora_sets);
  a.picture.tile = request.tile;
  if (held.quantized && !a.text.held.fp8_compute)
    a.text.held.quantize = name_of(*held.quantized);  // for who repeats it
  const std::vector<ImageRequest> requests = requests_of(a, request, starts, sets.size());
  const std::unique_ptr<cli::PictureOutput> output = output_of(a, requests, starts, sets);
  fmt::print("{}", planned);
  std::fflush(stdout);
  a.settings.print_notes();
  print_foreign_syntax(a);
  for (const std::string& remark : remarks.get()) fmt::print(stderr, "wick: {}\n", printable(remark));
  {
    const int64_t count = pictures_of({devices[0], 0, devices.size()}, requests, a.picture.batch_size);
    if (devices.size() > 1)
      fmt::print("{} are shared among {} devices: the lines are about {} on {}.\n",
                 count_of(requests.size(), "picture"), devices.size(), count, devices[0]);
    Progress progress(count, a.picture.batch_size, request.sampling.steps - request.sampling.skipped);
    InOrder in_order(requests.size(), [&](Image image) { output->take(std::move(image)); });
    on_threads(devices.size(), [&](size_t i) {
      std::unique_ptr<Diffusion> own = i == 0 ? std::move(model) : open_diffusion(folder, a.picture.reading);
      if (i > 0) own->read_tokenizers();
      draw(a, std::move(own), held, lora_sets, init, requests, {devices[i], i, devices.size()},
           i == 0 ? &progress : nullptr, [&](size_t number, Image image) { in_order.add(number, std::move(image)); });
    });
  }
  for (const std::filesystem::path& file : output->finish()) fmt::print("{}\n", printable(file.string()));
}

}  // namespace wick
