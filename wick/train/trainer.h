// A training run from a configuration to the files it leaves in `output`:
//
//   NAME.safetensors, NAME-000100.safetensors …   what was trained (folders, for --train full and vae, and PEFT's for
//                                                 language models)
//   config.toml                                   the settings, to do it again
//   metrics.jsonl, logs/, loss.png                how it went
//   index.html                                    all of this as a page, which a browser opens from the disk
//   state/state-000100.safetensors …              where it stands, for --resume: the newest two
//   state/dataset.sha256                          the files of its data set, to tell which of them changed
//
// A folder that holds a run takes no other one, but is resumed with --resume. New files replace existing ones of their
// names, links among them. `output` may be a link; a folder in it that is one ends the run before it writes.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "wick/autograd/host_copies.h"
#include "wick/ranks/ranks.h"
#include "wick/train/config.h"

namespace wick {

enum class RunResult { finished, interrupted };

// `model` is that of model_files(config), its name resolved. Throws Error where the run cannot start or go on.
RunResult train(TrainConfig config, const Checkpoint& model);
// One of several ranks that call this with the same settings, each on its own `device`, whatever config.device says.
// Rank 0 alone writes to `output`, but for caches of encodings, of which each rank makes a share. A rank that does not
// run on the main thread takes no signals; a signal to one stops all behind the same step. Where all ranks are threads
// of one process they share `copies`.
RunResult train(TrainConfig config, const Checkpoint& model, Ranks& ranks, const std::string& device,
                bool takes_signals = true, std::shared_ptr<HostCopies> copies = {});

}  // namespace wick
