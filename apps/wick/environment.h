// Checks the environment variables that Wick reads, before other code reads them.
#pragma once

namespace wick::cli {

// Throws UsageError, which names the variable, where a value means nothing. Folders and files that variables name are
// checked by the code that opens them, and WICK_CUDA_WAY by the CUDA module.
void check_environment();

}  // namespace wick::cli
