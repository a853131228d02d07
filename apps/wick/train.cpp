// `wick train`.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "commands.h"
#include "defaults_help.h"
#include "model_path.h"
#include "train_flags.h"
#include "wick/core/error.h"
#include "wick/io/quote.h"
#include "wick/train/foreign/option_file.h"
#include "wick/train/ranked.h"

namespace wick {
namespace {

constexpr const char* kFooter =
    "Ends with code 75 where a signal stopped it: --resume goes on with the same bits.\n"
    "\n"
    "--targets takes patterns of modules' names, in which * matches anything, dots included. A leading - excludes, and "
    "of several patterns that match the last one decides:\n"
    "  'unet.*.attentions.*'             kohya's of SDXL: the linears of all\n"
    "                                    transformers\n"
    "  'unet.*.attn2.to_k'               one kind of them\n"
    "  'unet.*' 'text_encoder*'          everything, convolutions, text encoders\n"
    "  'unet.*.resnets.*.conv*'          the convolutions of the residual blocks\n"
    "  'text_encoder.*.q_proj'           of the first text encoder; text_encoder_2\n"
    "                                    is the second, 'text_encoder*' both\n"
    "  '*.layers.*_proj'                 all linears of a language model's layers\n"
    "'unet.*' also trains conv_in, conv_out and the embeddings of time and sizes, and 'text_encoder_2.*' "
    "text_projection: ComfyUI and diffusers take them, kohya's scripts drop them and stable-diffusion.cpp does not "
    "know all. To leave them out:\n"
    "  --targets 'unet.*' '-unet.conv_*' '-unet.*_embedding.*' \\\n"
    "    'text_encoder*' '-*.text_projection'\n"
    "Modules of FLUX and SD3 have the names of Black Forest Labs' and Stability's files:\n"
    "  'transformer.double_blocks.*'     FLUX's blocks with two streams\n"
    "  'transformer.*.img_attn.qkv'      their queries, keys and values of pictures\n"
    "  'transformer.joint_blocks.*.attn*'  SD3's attention\n"
    "  'text_encoder.*'                  CLIP-L; T5 is text_encoder_2 of FLUX and\n"
    "                                    text_encoder_3 of SD3\n"
    "A pattern that matches nothing is an error that names what there is.\n"
    "\n"
    "Examples:\n"
    "  wick train --model sdxl --dataset pictures --output out --rank 32 --bf16\n"
    "  wick train --model flux-dev --dataset pictures --output out --rank 16 \\\n"
    "    --steps 1500 --lr 1e-4 --bf16 --resolution 512 768 1024\n"
    "  wick train --model sd3.5-medium --dataset pictures --output out --bf16\n"
    "  wick train --model path/to/llm --dataset chats.jsonl --output out \\\n"
    "    --rank 16 --steps 500 --lr 2e-4 --sequence-length 1024 --bf16\n"
    "  wick train --config out/config.toml --resume";

constexpr int kInterrupted = 75;  // EX_TEMPFAIL: run it again with --resume

constexpr std::string_view in_words(KeyUse use) {
  constexpr std::string_view kWords[] = {"honoured", "without meaning here", "as if it were not there", "refused"};
  return kWords[size_t(use)];
}

// Prints each key of another trainer's option file, and how Wick uses it.
void explain_file(const std::string& file) {
  const std::optional<Trainer> trainer = trainer_of(file);
  check_usage(trainer.has_value(), "{}: has Wick's own settings, which `wick train --help` tells of", file);
  const ForeignConfig read = explain_options(file, *trainer);
  fmt::print("{}: options of {}\n", file, read.program);
  for (const KeyReport& key : read.keys)
    fmt::print("  {} = {}\n      {}{}{}\n", printable(key.key), excerpt(key.value), in_words(key.use),
               key.told.empty() ? "" : ": ", printable(key.told));
  for (const std::string& fault : read.faults) fmt::print("  refused: {}\n", printable(fault));
  for (const std::string& remark : read.remarks) fmt::print("{}\n", remark);
  fmt::print("{} honoured, {} without meaning here, {} refused\n", read.count(KeyUse::honoured),
             read.count(KeyUse::idle) + read.count(KeyUse::empty), read.count(KeyUse::refused) + read.faults.size());
}

void run_train(cli::TrainFlags& flags) {
  TrainConfig config = flags.config();
  const std::optional<RankPlace> place = rank_from_environment();
  const bool speaks = !place || place->rank == 0;
  for (const std::string& remark : flags.remarks())
    if (speaks) fmt::print("{}\n", remark);
  resolve(config);
  const Checkpoint model = cli::resolve_model(model_files(config));
  flags.check_model(model);
  const RunResult result = train_on_ranks(config, model);
  // All is saved. Ranks are signalled one after the other, and the first ends the run on all: it keeps its code.
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, SIG_IGN);
  if (result == RunResult::finished) return;
  std::fflush(stdout);
  std::exit(kInterrupted);
}

}  // namespace

void add_train_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "train", "Train a LoRA, the denoiser or the VAE on pictures, or a LoRA or all of a language model on text");
  const auto flags = std::make_shared<cli::TrainFlags>();
  const auto explained = std::make_shared<std::string>();
  flags->add_to(*command);
  command
      ->add_option("--explain-config", *explained,
                   "Print how Wick uses each key of another trainer's option file, and end")
      ->type_name("FILE")
      ->group(std::string(kSubjects[size_t(Subject::model)]));
  command->footer(cli::defaults_help() + "\n\n" + kFooter);
  command->callback([flags, explained] { explained->empty() ? run_train(*flags) : explain_file(*explained); });
}

}  // namespace wick
