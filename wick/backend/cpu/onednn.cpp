#include "wick/backend/cpu/onednn.h"

#include <omp.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "wick/core/error.h"

namespace wick {

const dnnl::engine& cpu_engine() {
  static const auto* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);  // outlives every static tensor
  return *engine;
}

dnnl::memory memory_over(const dnnl::memory::desc& desc, const void* data) {
  return dnnl::memory(desc, cpu_engine(), const_cast<void*>(data));
}

dnnl::primitive_attr scratchpad_attributes() {
  dnnl::primitive_attr attributes;
  prepare_onednn();                                             // for the primitives made with them
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // the library's own is not safe to share among threads
  return attributes;
}

namespace {

// oneDNN's threads are OpenMP's, whose number each thread sets for its own calls.
void compute_alone() {
  thread_local const bool done = [] {
    omp_set_num_threads(1);
    return true;
  }();
  (void)done;
}

void check_room_for_code() {
  static const bool is_limited = [] {
    rlimit limit{};
    return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  }();
  if (!is_limited) return;
  constexpr size_t kRoom = size_t{32} << 20;  // a primitive's kernels have 256 KiB each
  void* const room = ::mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) throw OutOfMemory("out of memory: the CPU could not give oneDNN room for its code");
  ::munmap(room, kRoom);
}

}  // namespace

void prepare_onednn() {
  compute_alone();
  check_room_for_code();
}

void execute(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad, Arguments arguments) {
  const Scratch work(int64_t((scratchpad.get_size() + sizeof(float) - 1) / sizeof(float)));
  arguments.emplace(DNNL_ARG_SCRATCHPAD, memory_over(scratchpad, work.data()));
  prepare_onednn();
  static thread_local dnnl::stream stream(cpu_engine());
  primitive.execute(stream, arguments);
}

}  // namespace wick
