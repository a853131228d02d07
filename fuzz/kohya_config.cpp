// An option file of kohya's scripts of unknown origin: settings that may be resolved, or an Error of one line.
#include "wick/train/kohya_config.h"

#include "memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace wick;
  static fuzz::MemoryFile memory_file;
  memory_file.assign(data, size);
  fuzz::attempt([&] {
    KohyaConfig read = read_kohya_config(memory_file.path());
    for (const std::string& key : read.taken)
      if (key.find('\n') != key.npos) std::abort();
    resolve(read.config);
    to_toml(read.config);
  });
  return 0;
}
