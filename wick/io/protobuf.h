// Guards for reading untrusted protobuf messages with protozero, which only asserts that a field has the encoding asked
// for.
#pragma once

#include <protozero/pbf_reader.hpp>

namespace wick {

// Whether the reader stands at this field. A field of this number in another encoding counts as unknown, as in
// protobuf's own readers.
inline bool at_field(const protozero::pbf_reader& reader, protozero::pbf_tag_type tag, protozero::pbf_wire_type type) {
  return reader.tag_and_type() == protozero::tag_and_type(tag, type);
}
inline bool at_bytes(const protozero::pbf_reader& reader, protozero::pbf_tag_type tag) {
  return at_field(reader, tag, protozero::pbf_wire_type::length_delimited);
}
inline bool at_number(const protozero::pbf_reader& reader, protozero::pbf_tag_type tag) {
  return at_field(reader, tag, protozero::pbf_wire_type::varint);
}
inline bool at_float(const protozero::pbf_reader& reader, protozero::pbf_tag_type tag) {
  return at_field(reader, tag, protozero::pbf_wire_type::fixed32);
}

// protozero's get_bool() reads a byte that may be missing.
inline bool get_flag(protozero::pbf_reader& reader) { return reader.get_uint64() != 0; }

}  // namespace wick
