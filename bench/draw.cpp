// Pictures of a diffusion model in a folder, as `wick generate` draws them: bench/peers/draw.py does the same. Prints a
// line of JSON: seconds until the model and the first picture are there, and milliseconds of further ones, of a step
// and of the rest.
#include <CLI/CLI.hpp>
#include <chrono>

#include "timing.h"
#include "wick/backend/registry.h"
#include "wick/pipelines/text_to_image.h"

namespace {

using namespace wick;

struct Options {
  std::string model, device = "cuda", lora;
  int64_t batch = 1, width = 1024, height = 1024, steps = 30, few = 10, repeats = 5;
  bool f16 = false, f32 = false;

  DType dtype() const { return f32 ? DType::f32 : f16 ? DType::f16 : DType::bf16; }
};

void measure(const Options& o) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [start = Clock::now()] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  Backend& backend = open_backend(o.device);
  const double opened = seconds();
  const std::unique_ptr<Diffusion> model = open_diffusion(std::filesystem::path(o.model));
  std::vector<LoraFile> loras;
  if (!o.lora.empty()) loras.push_back({o.lora, 1});
  Adapter adapter(model->lora().names, loras);
  const DrawingDefaults made_for = model->drawing_defaults();
  const auto requests = [&](int64_t steps) {
    TextToImage::Batch batch;
    for (int64_t i = 0; i < o.batch; ++i) {
      ImageRequest request{.prompt = "a photo of a red fox in the snow", .width = o.width, .height = o.height};
      request.cfg = made_for.cfg;
      request.guidance = made_for.guidance.value_or(1);
      request.sampling.steps = steps;
      request.seed = uint64_t(i);
      batch.push_back(request);
    }
    return batch;
  };
  TextToImage text_to_image =
      TextToImage::load(*model, {.dtype = o.dtype(), .adapter = &adapter, .backend = &backend}, requests(o.steps));
  const double loaded = seconds();
  const auto pictures = [&](int64_t steps) {
    return bench::time_ms([&] { text_to_image(requests(steps), [](int64_t) {}); });
  };
  pictures(o.steps);
  const double first = seconds();
  std::vector<double> all, few;
  for (int64_t i = 0; i < o.repeats; ++i) {  // in turn, since a device's clock drifts
    all.push_back(pictures(o.steps));
    few.push_back(pictures(o.few));
  }
  const double whole = bench::median(all), step = (whole - bench::median(few)) / double(o.steps - o.few);
  fmt::print(
      "{{\"bench\": \"draw\", \"peer\": \"wick\", \"batch\": {}, \"width\": {}, \"height\": {}, \"steps\": {}, "
      "\"lora\": {}, \"open_s\": {:.3f}, \"load_s\": {:.3f}, \"first_s\": {:.3f}, \"median_ms\": {:.2f}, \"step_ms\": "
      "{:.3f}, "
      "\"rest_ms\": {:.2f}, \"peak_mib\": {}}}\n",
      o.batch, o.width, o.height, o.steps, !o.lora.empty(), opened, loaded, first, whole, step,
      whole - step * double(o.steps), backend.memory().stats().most_reserved >> 20);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Draws with a model");
  app.add_option("model", o.model, "a diffusers folder")->required();
  app.add_option("--device", o.device);
  app.add_option("--lora", o.lora);
  app.add_option("--batch", o.batch);
  app.add_option("--width", o.width);
  app.add_option("--height", o.height);
  app.add_option("--steps", o.steps);
  app.add_option("--few", o.few, "steps of the pictures that tell a step from the rest");
  app.add_option("--repeats", o.repeats);
  app.add_flag("--f32", o.f32)->excludes(app.add_flag("--f16", o.f16));
  CLI11_PARSE(app, argc, argv);
  try {
    check(o.few > 0 && o.few < o.steps && o.repeats > 0,
          "--few {}: expected at least 1 step and fewer than --steps {}; the time of a step is their difference", o.few,
          o.steps);
    measure(o);
  } catch (const Error& e) {
    fmt::print(stderr, "bench_draw: {}\n", e.what());
    return 1;
  }
}
