// Flags that several commands take.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "wick/backend/registry.h"
#include "wick/nn/checkpoint.h"
#include "wick/pipelines/memory_fit.h"
#include "wick/text/chat.h"

namespace wick::cli {

// Groups of flags that several commands have.
inline constexpr const char *kDeviceGroup = "Device and precision", *kPartsGroup = "Parts of a model of pictures";

// The device and its number types: --device, --bf16, --fp16, --tf32.
class RunOn {
 public:
  static constexpr const char* kFlags[] = {"--device", "--bf16", "--fp16", "--tf32"};
  void add_flags(CLI::App& command);
  void add_gpus(CLI::App& command, const std::string& help);  // --gpus
  // Opened for the thread that asks.
  Backend& backend() const {
    Backend& opened = open_backend(devices().front());
    opened.allow_tf32(tf32_);
    return opened;
  }
  // Those of --gpus, or the one of --device.
  std::vector<std::string> devices() const;
  RunOn on(const std::string& device) const {
    RunOn one = *this;
    one.device_ = device;
    one.gpus_.clear();
    return one;
  }
  DType dtype() const { return asked_dtype().value_or(DType::f32); }
  std::optional<DType> asked_dtype() const {  // none where no flag is given
    return bf16_ ? std::optional(DType::bf16) : fp16_ ? std::optional(DType::f16) : std::nullopt;
  }

 private:
  std::string device_ = "auto", gpus_;
  bool bf16_ = false, fp16_ = false, tf32_ = false;
};

// A model by --model, by its parts (--transformer, --clip-l, ...), or by both.
struct ModelArguments {
  std::string model;
  std::map<std::string, std::string> parts;  // what is given of model_parts()

  void add_flags(CLI::App& command, const std::string& help);
  Checkpoint resolve() const;
  std::vector<std::filesystem::path> files(const Checkpoint& resolved) const;  // that no result may be written over
  std::string name() const { return model.empty() ? parts.at("transformer") : model; }
};
CLI::Option* add_model(CLI::App& command, std::string& model, const std::string& help);
CLI::Option* add_language_model(CLI::App& command, std::string& model);
CLI::Option* add_loras(CLI::App& command, std::vector<std::string>& loras);
void add_overwrite(CLI::App& command, bool& overwrite);
void add_chat_template(CLI::App& command, std::string& name);
// --chat-template, --chat-template-kwargs and --template-date.
void add_chat_options(CLI::App& command, ChatOptions& chat);

// "; 3 weights stay as they are: their rows are not whole blocks of 256", for what is written in `dtype`; empty where
// all are quantised.
std::string kept_in_words(const Weights::Quantized& written, std::optional<DType> dtype);

// How frozen weights are held: --quantize, --fp8-compute, --stream-blocks, --stream-text-encoder, or --memory, which
// chooses; and --host-memory.
struct HoldingFlags {
  std::string quantize, memory, host_memory, stream_blocks = "0";
  bool fp8_compute = false;
  bool stream_text_encoder = false;         // of pictures: `generate` adds the flag
  std::shared_ptr<HostCopies> copies = {};  // no flag: of several devices, whose threads hold the weights alike

  void add_flags(CLI::App& command);
  std::optional<DType> quantized() const;  // throws UsageError for flags that exclude each other
  // The bytes of --memory, or else those that are free on the device; none where that number is not known.
  std::optional<size_t> room(std::string_view device) const;
  // The holding that the flags ask for. With --memory it is chosen: `plan` tells the memory of a holding, `note` the
  // choice in a sentence and that weights are staged, and weights come in 8 or 4 bits only where `may_quantize`. Throws
  // Error where nothing fits, or where streaming would lock more of the host than may be.
  struct Settled {
    Holding holding;
    std::string note;
  };
  Settled settle(const Backend& backend, bool may_quantize, const PlanOfHolding& plan) const;
};

}  // namespace wick::cli
