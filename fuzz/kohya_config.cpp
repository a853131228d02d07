// An option file of kohya's scripts of unknown origin: settings that may be resolved, or an Error of one line.
#include "wick/train/foreign/kohya.h"

#include "memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace wick;
  static fuzz::MemoryFile memory_file;
  memory_file.assign(data, size);
  fuzz::attempt([&] {
    ForeignConfig read = explain_kohya(memory_file.path());
    for (const KeyReport& key : read.keys)
      if (key.use != KeyUse::honoured && key.told.empty()) std::abort();
    read.check();
    resolve(read.config);
    to_toml(read.config);
  });
  return 0;
}
