// How other programs' own code handles kinds of adapters, for `wick inspect`. The table is proven row by row by
// tools/interop/kinds.py, which runs that code.
#pragma once

#include <span>
#include <string_view>

namespace wick {

// A kind of module, or what it has beside the factors of that.
enum class AdapterTrait {
  lora,
  loha,
  lokr,
  full_difference,
  norm_difference,
  glora,
  old_glora,  // of LyCORIS before 3
  ia3,
  oft,  // of outputs, as LyCORIS and kohya's scripts have it
  boft,
  peft_ia3,
  peft_oft,  // of inputs
  peft_boft,
  embedding,
  input_magnitude,   // DoRA's, [1, in]
  output_magnitude,  // [out, 1]
  peft_magnitude,    // of outputs, under PEFT's name
  core,              // Tucker's
  bias,
  scalar,  // LyCORIS'
  gain     // `rescale` of an OFT or BOFT
};

// From the best to the worst.
enum class Handling {
  loads,      // as the format means
  otherwise,  // in another way, which the remark tells
  ignores,    // the module changes nothing, and the rest of the file does
  raises      // the program ends with an error, and nothing of the file is loaded
};

struct ProgramHandling {
  Handling how;
  const char* remark = "";
};

struct AdapterProgram {
  const char* name;
  // Whether its loader has a module's name, by lora_formats.md sections 1, 3.3, 4.3 and 5.3. One that reads folders
  // with PEFT's settings has those names alone.
  bool (*knows)(std::string_view base, bool is_sd3);
  ProgramHandling (*handles)(AdapterTrait trait);
  bool reads_settings = false;  // alphas beside the tensors
};

std::span<const AdapterProgram> adapter_programs();

}  // namespace wick
