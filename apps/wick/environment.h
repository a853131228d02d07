// The environment's variables that Wick reads, held against what they may be before anything reads them.
#pragma once

namespace wick::cli {

// Throws UsageError, which names the variable, where a value means nothing. Safe before main(): initialisers of other
// files, the CPU backend's among them, may not have run yet. Folders and files that variables name are looked at where
// they are wanted, and ways of kernels (WICK_CUDA_WAY) by the module that has them.
void check_environment();

}  // namespace wick::cli
