#include "text_flags.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <future>
#include <system_error>

#include "validators.h"
#include "wick/io/count.h"
#include "wick/io/gguf.h"
#include "wick/io/quote.h"
#include "wick/pipelines/convert_adapter.h"
#include "wick/pipelines/memory_advice.h"
#include "wick/pipelines/plan.h"
#include "wick/pipelines/text_decoder.h"
#include "wick/train/text_task.h"

namespace wick::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void print_start(double device, double all, double weights, const Memory& memory) {
  const size_t bytes = memory.held(Purpose::weights);
  fmt::print(stderr,
             "start: {:.3f} s to open the device, {:.3f} s more for the tokenizer, {:.3f} s for {} of weights\n",
             device, all - weights - device, weights, readable_bytes(bytes));
}

InferencePlan plan_of(const std::filesystem::path& path, std::optional<DType> dtype, int64_t positions,
                      const Backend& backend, const BlockSchedule& blocks) {
  const LlamaConfig config = LlamaConfig::read(path);
  return plan_text(config, dtype ? *dtype : planned_dtype(TrainConfig{}, path), std::min(positions, config.positions),
                   device_kind(backend.name(), architecture_of(backend.name())), blocks);
}

// A model, the dtype of its weights, and the tokens in its cache.
struct Held {
  std::filesystem::path path;
  std::optional<DType> dtype;
  int64_t prompt, tokens;

  InferencePlan plan(const Backend& backend) const { return plan_of(path, dtype, prompt + tokens, backend, {}); }
};

// Flags with which it would fit into `room`: shorter texts, or weights of less precision, or both.
std::string advice_for(const Held& held, const OpenedModel::Asked& asked, bool may_be_bf16, bool may_quantize,
                       const Backend& backend, size_t room) {
  const auto shorter = [&](Held some, const std::string& flags) -> MemoryChange {
    return [&backend, &asked, some, flags, room]() mutable -> std::optional<Fitting> {
      constexpr int64_t kUnit = 256;
      const auto total = [&](int64_t units) {
        some.tokens = units * kUnit;
        return some.plan(backend).total();
      };
      const int64_t units = most_that_fits(1, (some.tokens - 1) / kUnit, [&](int64_t n) { return total(n) <= room; });
      if (units == 0) return {};
      return Fitting{fmt::format("{}{} {}", flags, asked.flag, units * kUnit), total(units)};
    };
  };
  std::vector<MemoryChange> precisions, together;
  const auto add = [&](const std::string& flags, DType dtype) {
    Held changed = held;
    changed.dtype = dtype;
    precisions.emplace_back(
        [&backend, flags, changed, room] { return if_fits(flags, changed.plan(backend).total(), room); });
    together.push_back(shorter(changed, flags + " "));
  };
  if (may_be_bf16) add("--bf16", DType::bf16);
  if (may_quantize)
    for (const std::optional<DType>& type : precisions_for_memory())
      if (type) add(fmt::format("--quantize {}", name_of(*type)), *type);
  return memory_advice({shorter(held, ""), first_that_fits(precisions)}, together);
}

// A device reports quickly that it is full; the system may overcommit memory, and kill the process that uses it.
void check_fits(const Held& held, const OpenedModel::Asked& asked, bool may_be_bf16, bool may_quantize,
                const Backend& backend) {
  const std::optional<size_t> free = free_memory(backend.name());
  if (backend.name() != "cpu" || !free) return;
  InferencePlan plan{};
  try {
    plan = held.plan(backend);
  } catch (const Error&) {  // not storable in this dtype: loading names file and tensor
    return;
  }
  if (plan.total() <= *free) return;
  fail("{}: would need {} of memory on {}, {} of them for {}, where {} are free; {}", held.path.string(),
       readable_bytes(plan.total()), backend.name(), readable_bytes(plan.cache),
       count_of(held.prompt + held.tokens, "token"), readable_bytes(*free),
       advice_for(held, asked, may_be_bf16, may_quantize, backend, room_to_advise(*free)));
}

}  // namespace

std::vector<std::string> TextFlags::add_to(CLI::App& command, const std::string& context_otherwise) {
  std::vector<std::string> names;
  const auto add = [&](const char* name, auto& value, const std::string& help, const char* type) {
    names.emplace_back(name);
    return command.add_option(name, value, help)->type_name(type);
  };
  add("--max-tokens", max_tokens, "Tokens of an answer, at most, which must fit [256, or what does]", "INT")
      ->transform(positive_integer());
  add("--context", context,
      fmt::format("Tokens that the model sees at once; prompt and answer must fit [{}]", context_otherwise), "INT")
      ->transform(positive_integer());
  add("--temperature", sampling.temperature, "Divides the logits; 0 takes the likeliest token [0.8]", "NUMBER")
      ->transform(number_in(0, 100));
  add("--top-k", sampling.top_k, "Draw from so many of the likeliest tokens; 0: from all [0]", "INT")
      ->transform(integer_in(0, std::numeric_limits<int32_t>::max()));
  add("--top-p", sampling.top_p, "Draw from the fewest likeliest that have this probability together [1]", "NUMBER")
      ->transform(number_above(0, 1));  // of 0 no token would be left; transformers' TopPLogitsWarper: "> 0"
  add("--min-p", sampling.min_p, "Draw from those with this share of the likeliest one's probability [0]", "NUMBER")
      ->transform(number_in(0, 1));
  add("--repetition-penalty", sampling.repetition_penalty,
      "Lowers the logits of tokens that the text has; 1: does not [1]", "NUMBER")
      ->transform(number_in(0.01, 100));
  add("--stop", stops, "Text that ends an answer, and is no part of it; may be repeated", "TEXT")
      ->allow_extra_args(false)
      ->check(not_empty());
  names.insert(names.end(), {"--chat-template", "--chat-template-kwargs", "--template-date", "--verbose"});
  add_chat_options(command, chat);
  command.add_flag("--verbose", verbose, "Say on standard error how long it took, and what memory is in use");
  return names;
}

int64_t TextFlags::context_of(const LlamaConfig& config, int64_t fallback) const {
  check(context <= config.positions, "--context: expected at most {}, the positions that the model has, found {}",
        config.positions, context);
  return context > 0 ? context : std::min(fallback, config.positions);
}

ChatOptions TextFlags::chat_of(const std::vector<std::string>& loras) const {
  ChatOptions options = chat;
  options.name = chat_template_of(chat.name, parse_loras(loras));
  return options;
}

TextRequest TextFlags::request(const LanguageModel& language) const {
  return {.sampling = sampling, .stop_ids = language.stop_ids(), .stops = stops};
}

void TextFlags::fit(TextRequest& request, int64_t room) const {
  const int64_t left = room - int64_t(request.prompt.size());
  request.max_tokens = max_tokens > 0 ? max_tokens : std::clamp<int64_t>(left, 1, kMaxTokens);
  request.check(room);
}

OpenedModel OpenedModel::open(const std::filesystem::path& path, const std::vector<std::string>& loras,
                              const TextFlags& flags, const RunOn& run_on, const Asked& asked) {
  const std::vector<LoraFile> files = with_gguf_read(parse_loras(loras), path);
  auto adapter = files.empty() ? nullptr : std::make_unique<Adapter>(llama_module_names(), files);
  std::optional<DType> dtype = run_on.asked_dtype();
  check_usage(dtype != DType::f16 || !flags.held.quantized(),
              "--quantize: a language model's other weights are bf16; expected it or --fp16, found both");
  const Clock::time_point start = Clock::now();
  // While a device is opened, which takes as long.
  std::future<Tokenizer> tokenizer = std::async(std::launch::async, load_tokenizer, path);
  Backend& backend = run_on.backend();
  const double device_seconds = seconds_since(start);
  Tokenizer read = tokenizer.get();  // it is quickly told if something is wrong with it
  const size_t prompt = asked.prompt ? asked.prompt(read) : 0;
  const int64_t positions = int64_t(prompt) + asked.tokens;
  const bool fits_itself = !flags.held.memory.empty(), is_gguf = GgufFile::is_gguf(path);
  const bool is_bf16 = dtype == DType::bf16;
  if (fits_itself && !dtype && !is_gguf && !backend.memory().on_host()) dtype = DType::bf16;
  const auto [held, note] = flags.held.settle(backend, !is_gguf && dtype != DType::f16, [&](const Holding& h) {
    return plan_of(path, h.quantized ? h.quantized : dtype, positions, backend, h.block_schedule());
  });
  if (!note.empty()) fmt::print(stderr, "wick: {}\n", note);
  if (held.quantized) dtype = held.quantized;
  check_fits({path, dtype, int64_t(prompt), asked.tokens}, asked, !dtype && !is_gguf,
             !held.quantized && (!dtype || is_bf16), backend);
  const Clock::time_point begin = Clock::now();
  LlamaOptions options{
      .dtype = dtype, .adapter = adapter.get(), .backend = &backend, .block_schedule = held.block_schedule()};
  if (prompt > 0) options.rehearse = [&](const Llama& unread) { TextDecoder::rehearse(unread, prompt); };
  Llama model = Llama::load(path, options);
  const std::string quantized = model.weights().describe_quantized();
  if (!quantized.empty() && (flags.verbose || model.weights().quantized().kept > 0))
    fmt::print(stderr, "weights: {}\n", quantized);
  if (flags.verbose) print_start(device_seconds, seconds_since(start), seconds_since(begin), backend.memory());
  return {std::move(adapter), {std::move(model), std::move(read)}};
}

void print_text(std::string_view text) {
  const std::string shown = isatty(STDOUT_FILENO) ? printable_text(text) : std::string(text);
  if (std::fwrite(shown.data(), 1, shown.size(), stdout) != shown.size() || std::fflush(stdout) != 0)
    throw std::system_error(errno, std::generic_category(), "standard output");
}

void print_statistics(const TextAnswer& answer, size_t prompt, const OpenedModel& opened) {
  const auto rate = [](size_t tokens, double seconds) { return double(tokens) / std::max(seconds, 1e-9); };
  const size_t read = prompt - size_t(answer.reused);
  fmt::print(stderr, "prompt: {} ({} of them known), {:.1f} tokens/s, {:.3f} s to the first of the answer\n",
             count_of(prompt, "token"), answer.reused, rate(read, answer.prompt_seconds), answer.prompt_seconds);
  fmt::print(stderr, "answer: {}, {:.1f} tokens/s, ended by {}\n", count_of(answer.ids.size(), "token"),
             rate(answer.ids.size(), answer.answer_seconds), name_of(answer.finish));
  const Memory& memory = *opened.language.model.place().memory;
  const MemoryStats stats = memory.stats();
  fmt::print(stderr, "memory: {}; {} in use, {} at most, {} reserved, {}, {} of them from the pool\n",
             memory.holdings(), readable_bytes(stats.in_use), readable_bytes(stats.peak),
             readable_bytes(stats.reserved), count_of(stats.requests, "request"), stats.hits);
}

}  // namespace wick::cli
