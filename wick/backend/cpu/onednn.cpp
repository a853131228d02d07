#include "wick/backend/cpu/onednn.h"

namespace wick {

const dnnl::engine& cpu_engine() {
  static const auto* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);  // outlives every static tensor
  return *engine;
}

dnnl::memory memory_over(const dnnl::memory::desc& desc, const void* data) {
  return dnnl::memory(desc, cpu_engine(), const_cast<void*>(data));
}

dnnl::memory::desc describe(const Matrix& m) {
  const dnnl::memory::dims strides = m.transposed ? dnnl::memory::dims{1, m.ld} : dnnl::memory::dims{m.ld, 1};
  return {{m.rows, m.cols}, dnnl::memory::data_type::f32, strides};
}

dnnl::primitive_attr scratchpad_attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // the library's own is not safe to share among threads
  return attributes;
}

void execute(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad, Arguments arguments) {
  const Scratch work(int64_t((scratchpad.get_size() + sizeof(float) - 1) / sizeof(float)));
  arguments.emplace(DNNL_ARG_SCRATCHPAD, memory_over(scratchpad, work.data()));
  dnnl::stream stream(cpu_engine());
  primitive.execute(stream, arguments);
  stream.wait();
}

void reorder(const dnnl::memory& from, const dnnl::memory& to) {
  const dnnl::reorder::primitive_desc chosen(from, to, scratchpad_attributes());
  execute(dnnl::reorder(chosen), chosen.scratchpad_desc(), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

}  // namespace wick
