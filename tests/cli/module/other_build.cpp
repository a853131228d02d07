// A CUDA module that another build of Wick left behind.
#include "wick/backend/module.h"

extern "C" __attribute__((visibility("default"))) const wick::BackendModule* wick_backend_module() {
  static const wick::BackendModule module{"of another build", nullptr, nullptr, nullptr, nullptr};
  return &module;
}
