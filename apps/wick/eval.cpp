// `wick eval`: how well a language model foretells texts.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "flag_table.h"
#include "model_path.h"
#include "text_flags.h"
#include "validators.h"
#include "wick/io/count.h"
#include "wick/pipelines/devices.h"
#include "wick/train/finite.h"
#include "wick/train/text_batch.h"

namespace wick {
namespace {

struct EvalArguments {
  std::string model;
  ChatOptions chat;
  std::vector<std::string> dataset, loras;
  int64_t context = 0, stride = 0, batch_size = 1;
  bool json = false;
  cli::RunOn run_on;
  cli::HoldingFlags held;
};

void print_result(const EvalArguments& a, double loss, int64_t counted, int64_t tokens, size_t documents) {
  if (a.json) {
    const nlohmann::ordered_json line = {{"perplexity", std::exp(loss)},
                                         {"loss", loss},
                                         {"counted", counted},
                                         {"tokens", tokens},
                                         {"documents", documents}};
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("perplexity {:.4f}, loss {:.5f} a token, of {} of {} in {}\n", std::exp(loss), loss, counted,
               count_of(tokens, "token"), count_of(documents, "document"));
  }
}

// Summed in the order of batches, whichever devices have them: the same bits on any number.
double loss_on_all(const EvalArguments& a, const std::filesystem::path& path, const std::vector<TextDocument>& pieces,
                   int64_t context, int64_t row_length) {
  cli::TextFlags flags;
  flags.held = a.held;
  const std::vector<std::string> devices = a.run_on.devices();
  if (devices.size() > 1) flags.held.copies = std::make_shared<HostCopies>(devices.size());
  std::vector<std::vector<double>> losses(devices.size());
  on_threads(devices.size(), [&](size_t i) {
    const cli::OpenedModel opened =
        cli::OpenedModel::open(path, a.loras, flags, a.run_on.on(devices[i]), {context, "--context"});
    losses[i] = losses_of_batches(opened.language.model, pieces, row_length, a.batch_size, i, devices.size());
  });
  double sum = 0;
  for (size_t batch = 0; batch < losses.front().size(); ++batch) sum += losses[batch % devices.size()][batch];
  return sum;
}

void run_eval(const EvalArguments& a) {
  constexpr int64_t kContext = 2048;
  check_usage(a.context == 0 || a.stride < a.context, "--stride: expected less than the {} of --context, found {}",
              count_of(a.context, "token"), a.stride);
  const std::filesystem::path path = cli::resolve_language_model(a.model);
  const LlamaConfig config = LlamaConfig::read(path);
  check(a.context <= config.positions, "--context: expected at most {}, the positions that the model has, found {}",
        config.positions, a.context);
  const int64_t context = a.context > 0 ? a.context : std::min(kContext, config.positions);
  const int64_t stride = a.stride > 0 ? a.stride : context / 2;
  check(stride > 0 && stride < context, "--stride: expected less than the {} of --context, found {}",
        count_of(context, "token"), stride);
  ChatOptions chat = a.chat;
  chat.name = chat_template_of(chat.name, cli::parse_loras(a.loras));
  const TextDataset data = TextDataset::read(a.dataset, TextEncoder(path, {.chat = chat}),
                                             std::numeric_limits<int64_t>::max(), LongDocuments::error);
  std::vector<TextDocument> pieces;
  for (const TextDocument& document : data.documents)
    for (TextDocument& piece : windows(document, context, stride))
      if (piece.counted() > 0) pieces.push_back(std::move(piece));

  const double sum = loss_on_all(a, path, pieces, context, std::min(context, data.longest));
  if (!std::isfinite(sum)) {
    const std::string where = not_finite_in_files(path);
    fail("{}: the loss is not a finite number{}{}", path.string(),
         where.empty() ? "" : "; neither are the weights, first in ", where);
  }
  print_result(a, sum / double(data.counted), data.counted, data.tokens, data.documents.size());
}

}  // namespace

void add_eval_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "Tell the perplexity of texts for a language model");
  const auto a = std::make_shared<EvalArguments>();
  cli::begin_group(*command, "Model");
  cli::add_language_model(*command, a->model);
  cli::add_loras(*command, a->loras)->allow_extra_args();  // --lora A B too: there is no prompt to mistake for one
  cli::begin_group(*command, "Texts");
  command->add_option("--dataset", a->dataset, "Files of JSON lines, as `wick train` takes them")
      ->type_name("FILE ...")
      ->check(cli::not_empty())
      ->required();
  command->add_option("--context", a->context, "Tokens that the model sees at once [2048, or its positions]")
      ->type_name("INT")
      ->transform(cli::integer_in(2, std::numeric_limits<int32_t>::max()));
  command->add_option("--stride", a->stride, "Tokens from one window of a longer text to the next [half the context]")
      ->type_name("INT")
      ->transform(cli::positive_integer());
  command->add_option("--batch-size", a->batch_size, "Rows of --context tokens at once [1]")
      ->type_name("INT")
      ->transform(cli::integer_in(1, 65536));
  cli::add_chat_options(*command, a->chat);
  a->run_on.add_flags(*command);
  a->run_on.add_gpus(*command, "Share the texts among several CUDA devices: how many, all, or their numbers");
  a->held.add_flags(*command);
  cli::begin_group(*command, "Output");
  command->add_flag("--json", a->json, "Print the result as one JSON object");
  command->footer(
      "Of chats and of prompts with completions only what the model says counts. Each token of a text that is longer "
      "than the context is foretold in the first window that holds it.\n"
      "\n"
      "Examples:\n"
      "  wick eval --model path/to/model --dataset held-back.jsonl\n"
      "  wick eval --model path/to/model --lora out/lora --json \\\n"
      "    --dataset a.jsonl b.jsonl");
  command->callback([a] { run_eval(*a); });
}

}  // namespace wick
