// oneDNN's engine, and running a primitive on the calling thread with our scratch memory.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <utility>

#include "wick/backend/cpu/scratch.h"

namespace wick {

const dnnl::engine& cpu_engine();

// A memory of `desc` over data that the primitive may not change, whatever its type says.
dnnl::memory memory_over(const dnnl::memory::desc& desc, const void* data);

using Arguments = std::unordered_map<int, dnnl::memory>;

dnnl::primitive_attr scratchpad_attributes();
void execute(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad, Arguments arguments);

// Call before any function of oneDNN that chooses a kernel, generates code or computes. This thread's calls are
// computed by this thread alone: only `parallel.h` shares work. oneDNN does not check whether its allocation of pages
// for code failed (`ulimit -v`), so this allocates as much beforehand. Throws OutOfMemory.
void prepare_onednn();

}  // namespace wick
