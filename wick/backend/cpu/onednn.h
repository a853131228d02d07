// oneDNN's engine, and running a primitive with our scratch memory. Making a primitive again costs 1 to 3 us:
// oneDNN keeps the compiled ones in a cache of its own.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <utility>

#include "wick/backend/cpu/gemm.h"

namespace wick {

const dnnl::engine& cpu_engine();

// A memory of `desc` over data that the primitive may not change, whatever its type says.
dnnl::memory memory_over(const dnnl::memory::desc& desc, const void* data);
dnnl::memory::desc describe(const Matrix& m);

using Arguments = std::unordered_map<int, dnnl::memory>;

dnnl::primitive_attr scratchpad_attributes();
void execute(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad, Arguments arguments);

// Call before any function of oneDNN that may generate code: it does not check whether its own allocation of pages for
// code failed (`ulimit -v`), so this allocates as much beforehand. Throws OutOfMemory.
void check_room_for_code();

// Makes a primitive from a descriptor that was chosen with scratchpad_attributes(), and runs it. Throws OutOfMemory.
template <class Primitive>
void execute(const typename Primitive::primitive_desc& chosen, Arguments arguments) {
  check_room_for_code();
  execute(Primitive(chosen), chosen.scratchpad_desc(), std::move(arguments));
}

// Copies between layouts.
void reorder(const dnnl::memory& from, const dnnl::memory& to);

}  // namespace wick
