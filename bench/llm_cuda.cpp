// A language model of real size on a GPU by Wick's own paths, a line of JSON a row:
//
//   bench_llm_cuda --model DIR decode [--quantize q8_0]    tokens/s of a Generator at some filling of its context, with
//                              [--lora 0 4 16 128]         the weights that `wick generate` has by the same flag; with
//                              [--fp8-compute]             LoRAs of these ranks on all linears, not merged; 0: none
//   bench_llm_cuda --model DIR prefill 512 4096            from a prompt to its first token; host_ms: to enqueue it
//   bench_llm_cuda --model DIR products 512 4096           cuBLASLt's time for the products of a prefill
//   bench_llm_cuda --model DIR train --batch 1             a training step of a LoRA on all linears, packed rows
#include <CLI/CLI.hpp>
#include <deque>

#include "device_clock.h"
#include "wick/io/safetensors.h"
#include "wick/nn/adapter.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/random.h"
#include "wick/pipelines/text_generation.h"
#include "wick/train/step.h"
#include "wick/train/text_task.h"

namespace wick::bench {
namespace {

constexpr DType kQuantizedTypes[] = {DType::q8_0, DType::q4_0,      DType::q4_k, DType::q5_k, DType::q6_k,
                                     DType::fp8,  DType::fp8_block, DType::int8, DType::nf4,  DType::nf4_double};

struct Options {
  std::filesystem::path model;
  std::string quantize, device = "cuda";
  std::vector<int64_t> lengths, loras = {0};
  int64_t context = 512, tokens = 128, rounds = 5;
  int64_t batch = 1, sequence = 2048, rank = 16, steps = 10, warmup = 4;
  bool checkpoint = false, no_graph = false, fp8 = false, fp8_compute = false, drawn = false;

  DType dtype() const {
    if (fp8_compute) return DType::fp8_product;
    for (const DType type : kQuantizedTypes)
      if (name_of(type) == quantize) return type;
    return DType::bf16;
  }
};

std::vector<int64_t> random_ids(int64_t count, int64_t vocab, Rng& rng) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  for (int64_t& id : ids) id = int64_t(rng.below(uint64_t(vocab)));
  return ids;
}

double gib(size_t bytes) { return double(bytes) / double(size_t{1} << 30); }

// The bytes that a copy on the device reads and writes per second.
double copy_rate() {
  DeviceClock clock;
  const Shape half{int64_t{1} << 25};  // 64 MiB
  const Tensor x = clock.normal(half, DType::bf16), y = clock.normal(half, DType::bf16);
  const auto call = [&](int) { clock.device.copy(y, x); };
  call(0);
  return 2e6 * double(1 << 26) / clock.time(call, {.calls = 24, .replays = 4, .runs = 9, .warm_up = 2});
}

Llama load(const Options& o, Adapter* adapter = nullptr) {
  Llama model = Llama::load(o.model, {.dtype = o.dtype(), .adapter = adapter, .backend = &open_backend(o.device)});
  const Weights::Quantized counted = model.weights().quantized();
  check(!is_quantized(o.dtype()) || (counted.matrices > 0 && counted.kept == 0),
        "{}: expected matrices that all become {}, found {} that stay {}: their rows are not whole blocks",
        o.model.string(), name_of(o.dtype()), counted.kept, name_of(DType::bf16));
  return model;
}

// The dtype of the embeddings. They stay bf16 where the matrices are rows of codes.
size_t table_bytes(const LlamaConfig& c, DType dtype) {
  return size_t(c.vocab * row_bytes(has_row_format(dtype) ? DType::bf16 : dtype, c.hidden));
}

// A file of a LoRA on all linears.
void write_lora(const std::filesystem::path& file, const LlamaConfig& c, int64_t rank) {
  const auto module_names = llama_module_names();
  Rng rng(3);
  std::map<std::pair<int64_t, int64_t>, Tensor> factors;  // by shape: which numbers they are makes no difference
  const auto factor = [&](int64_t rows, int64_t cols) {
    Tensor& t = factors[{rows, cols}];
    if (!t) t = cast(affine(random_uniform({rows, cols}, rng), 0.02f, -0.01f), DType::bf16);
    return t;
  };
  std::map<std::string, Tensor> tensors;
  for (int64_t layer = 0; layer < c.layers; ++layer)
    for (const auto& [name, in, out] : {std::tuple{"self_attn.q_proj", c.hidden, c.query_width()},
                                        {"self_attn.k_proj", c.hidden, c.kv_width()},
                                        {"self_attn.v_proj", c.hidden, c.kv_width()},
                                        {"self_attn.o_proj", c.query_width(), c.hidden},
                                        {"mlp.gate_proj", c.hidden, c.intermediate},
                                        {"mlp.up_proj", c.hidden, c.intermediate},
                                        {"mlp.down_proj", c.intermediate, c.hidden}}) {
      const std::string module = module_names(fmt::format("llama.model.layers.{}.{}", layer, name)).front().name;
      tensors[module + ".lora_down.weight"] = factor(rank, in);
      tensors[module + ".lora_up.weight"] = factor(out, rank);
      tensors[module + ".alpha"] = full({}, float(rank));
    }
  save_safetensors(file, tensors);
}

TextAnswer answer(Generator& generator, const std::vector<int64_t>& prompt, int64_t tokens) {
  TextRequest request;
  request.prompt = prompt;
  request.max_tokens = tokens;
  request.sampling.temperature = 0;
  return generator(request, {[](int64_t) { return std::string(); }, [] { return std::string(); }});
}

// Half of the tokens come before the context has its length, and half after.
void decode_with(const Options& o, int64_t rank) {
  Adapter adapter(llama_module_names());
  if (rank > 0) {
    const std::filesystem::path file = std::filesystem::temp_directory_path() / "bench_llm_cuda.safetensors";
    write_lora(file, LlamaConfig::read(o.model), rank);
    adapter.add_file(file, 1, false);
    std::filesystem::remove(file);
  }
  const Llama model = load(o, rank > 0 ? &adapter : nullptr);
  const LlamaConfig& c = model.config();
  Memory& memory = *model.place().memory;
  // All weights but the table, of which a token reads a row; and the keys and values of the context.
  const size_t table = c.tied ? 0 : table_bytes(c, o.dtype());
  const size_t bytes = memory.held(Purpose::weights) + memory.held(Purpose::adapter) - table +
                       estimate_kv_cache_memory(c, 1, o.context, DType::bf16);
  Generator generator(model, o.context + o.tokens);
  Rng rng(1);
  const std::vector<int64_t> prompt = random_ids(o.context - o.tokens / 2, c.vocab, rng);
  answer(generator, prompt, 8);  // first-use work, and the graph
  std::vector<double> rates;
  for (int64_t i = 0; i < o.rounds; ++i)
    rates.push_back(double(o.tokens - 1) / answer(generator, prompt, o.tokens).answer_seconds);
  const double rate = median(rates), copy = memory.on_host() ? 1 : copy_rate();
  fmt::print(
      "{{\"row\": \"decode {}{}\", \"tokens_s\": {:.2f}, \"min\": {:.2f}, \"max\": {:.2f}, \"GB_a_token\": {:.3f}, "
      "\"copy_TB_s\": {:.3f}, \"of_copy\": {:.4f}, \"reserved_gib\": {:.2f}}}\n",
      name_of(o.dtype()), rank > 0 ? fmt::format(", LoRA of rank {}", rank) : "", rate,
      *std::min_element(rates.begin(), rates.end()), *std::max_element(rates.begin(), rates.end()),
      double(bytes) * 1e-9, copy * 1e-12, rate * double(bytes) / copy, gib(memory.stats().reserved));
}

void decode(const Options& o) {
  for (const int64_t rank : o.loras) decode_with(o, rank);
}

void prefill(const Options& o) {
  const Llama model = load(o);
  const int64_t vocab = model.config().vocab;
  Rng rng(1);
  for (const int64_t length : o.lengths) {
    TextDecoder decoder(model, length);
    std::vector<double> ms, host_ms;
    for (int64_t i = 0; i < o.rounds + 2; ++i) {
      const std::vector<int64_t> prompt = random_ids(length, vocab, rng);
      decoder.truncate(0);
      ms.push_back(time_ms([&] {
        host_ms.push_back(time_ms([&] { decoder.read(prompt); }));
        decoder.likeliest().wait();
      }));
    }
    const std::vector<double> warm(ms.begin() + 2, ms.end());
    fmt::print(
        "{{\"row\": \"prefill {}\", \"ms\": {:.3f}, \"min\": {:.3f}, \"max\": {:.3f}, \"host_ms\": {:.3f}, "
        "\"first_ms\": {:.3f}}}\n",
        length, median(warm), *std::min_element(warm.begin(), warm.end()), *std::max_element(warm.begin(), warm.end()),
        host_ms.back(), ms.front());
  }
}

// Plain linears, layer after layer as in a prefill, for as long as prefills take: a device at its power limit is slower
// than in a short run. Two layers' weights take turns, so that the L2 cache does not keep them.
void products(const Options& o) {
  const LlamaConfig c = LlamaConfig::read(o.model);
  DeviceClock clock;
  for (const int64_t length : o.lengths) {
    struct Product {
      Tensor y, x, w[2];
    };
    std::vector<Product> layer;
    for (const auto& [outputs, inputs] : {std::pair{c.query_width() + 2 * c.kv_width(), c.hidden},
                                          {c.hidden, c.query_width()},
                                          {2 * c.intermediate, c.hidden},
                                          {c.hidden, c.intermediate}}) {
      const auto normal = [&](int64_t rows, int64_t width) { return clock.normal({rows, width}, DType::bf16); };
      layer.push_back(
          {normal(length, outputs), normal(length, inputs), {normal(outputs, inputs), normal(outputs, inputs)}});
    }
    const auto call = [&](int i) {
      for (const Product& p : layer) clock.device.linear(p.y, p.x, p.w[i % 2], {});
    };
    call(0);
    const double layer_us =
        clock.time(call, {.calls = int(c.layers), .replays = 1, .runs = int(o.rounds), .warm_up = 2});
    fmt::print("{{\"row\": \"products {}\", \"ms\": {:.3f}}}\n", length, 1e-3 * layer_us * double(c.layers));
  }
}

TextDataset full_rows(const Options& o, int64_t vocab) {
  Rng rng(2);
  TextDataset data;
  for (int64_t i = 0; i < 64 * o.batch; ++i)
    data.documents.push_back({random_ids(o.sequence, vocab, rng), std::vector<bool>(size_t(o.sequence), true)});
  return data;
}

// Milliseconds from the end of one step to the end of the next. As in the trainer, a device gets its next step before
// the current one is awaited.
std::vector<double> step_times(TrainStep& step, TrainRng& rng, int64_t count) {
  std::deque<StepReport> begun;
  std::vector<double> ms;
  for (int64_t i = 0, started = 0; i < count; ++i)
    ms.push_back(time_ms([&] {
      for (; started < std::min(count, i + 2); ++started) begun.push_back(step(rng, 1e-4f));
      const StepOutcome outcome = begun.front().wait();
      check(!outcome.halted, "the loss is not finite: {}", outcome.loss);
      begun.pop_front();
    }));
  return ms;
}

void train(const Options& o) {
  TrainConfig config;
  config.model = o.model.string();
  config.rank = o.rank;
  config.alpha = double(o.rank);
  config.batch_size = o.batch;
  config.dtype = DType::bf16;
  config.fp8_compute = o.fp8_compute;
  if (o.fp8 || o.fp8_compute) config.quantize = Quantize::fp8;
  config.from_scratch = o.drawn;
  const TextDataset data = full_rows(o, LlamaConfig::read(o.model).vocab);
  Backend& backend = open_backend(o.device);
  Memory& memory = backend.memory();
  const auto task = make_text_task(config, o.model, backend, {&data, nullptr, o.sequence},
                                   BlockSchedule::recomputing_all(o.checkpoint));
  Optimizer optimizer(task->parameters(), {.max_grad_norm = 1});
  TrainStep step(*task, optimizer, StepOrder{}, !o.no_graph);
  TrainRng rng(0);
  memory.reset_peak();
  step_times(step, rng, o.warmup);
  const std::vector<double> ms = step_times(step, rng, o.steps);
  int64_t trained = 0;
  for (const Parameter& p : optimizer.parameters()) trained += p.value.numel();
  fmt::print(
      "{{\"row\": \"train batch {}{}{}\", \"tokens_s\": {:.0f}, \"median_ms\": {:.2f}, \"min_ms\": {:.2f}, \"max_ms\": "
      "{:.2f}, \"peak_gib\": {:.2f}, \"reserved_gib\": {:.2f}, \"graph\": {}, \"parameters\": {}}}\n",
      o.batch, o.checkpoint ? ", checkpointing" : "",
      o.fp8_compute ? ", products in fp8"
      : o.fp8       ? ", fp8"
                    : "",
      1e3 * double(o.batch * o.sequence) / median(ms), median(ms), *std::min_element(ms.begin(), ms.end()),
      *std::max_element(ms.begin(), ms.end()), gib(memory.peak()), gib(memory.stats().most_reserved), !o.no_graph,
      trained);
}

void add_commands(CLI::App& app, Options& o) {
  app.add_option("--model", o.model, "a transformers folder (tools/full_size/write_llm.py)")->required();
  app.add_option("--device", o.device, "to try it elsewhere: cpu, which has no copy's rate and no products");
  app.require_subcommand(1);
  const auto add = [&](const char* name, void (*run)(const Options&)) {
    CLI::App* command = app.add_subcommand(name);
    command->callback([&o, run] { run(o); });
    return command;
  };
  CLI::App* command = add("decode", decode);
  std::vector<std::string> types;
  for (const DType type : kQuantizedTypes) types.emplace_back(name_of(type));
  CLI::Option* quantize = command->add_option("--quantize", o.quantize, "as of wick generate; bf16 unless given")
                              ->check(CLI::IsMember(types));
  command->add_flag("--fp8-compute", o.fp8_compute, "as of wick generate")->excludes(quantize);
  command->add_option("--lora", o.loras, "ranks of LoRAs that are not merged; 0 is none");
  command->add_option("--context", o.context);
  command->add_option("--tokens", o.tokens);
  command->add_option("--rounds", o.rounds);
  for (auto* some : {add("prefill", prefill), add("products", products)})
    some->add_option("lengths", o.lengths, "of prompts, in tokens")->required();
  command = add("train", train);
  command->add_option("--batch", o.batch);
  command->add_option("--sequence", o.sequence, "tokens of a row");
  command->add_option("--rank", o.rank);
  command->add_option("--steps", o.steps);
  command->add_option("--warmup", o.warmup, "the second step is recorded");
  command->add_flag("--checkpoint", o.checkpoint, "gradient checkpointing");
  command->add_flag("--fp8", o.fp8, "the matrices of the layers in fp8");
  command->add_flag("--fp8-compute", o.fp8_compute, "and their products");
  command->add_flag("--drawn", o.drawn, "random weights: --model needs its config.json alone");
  command->add_flag("--no-graph", o.no_graph, "give the device every step call by call");
}

}  // namespace
}  // namespace wick::bench

int main(int argc, char** argv) {
  wick::bench::Options options;
  CLI::App app{"Times a language model of real size on a GPU."};
  wick::bench::add_commands(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_llm_cuda: {}\n", e.what());
    return 1;
  }
}
