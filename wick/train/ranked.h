// A run on several devices: in one process with a thread for each, or as one of the processes that torchrun, mpirun or
// srun has started.
#pragma once

#include "wick/ranks/ranks.h"
#include "wick/train/trainer.h"

namespace wick {

// train() on this process's share of the devices that the launcher's variables or --gpus say; alone without either. An
// error is that of the rank that failed first, with its number and machine.
RunResult train_on_ranks(TrainConfig config, const Checkpoint& model);

}  // namespace wick
