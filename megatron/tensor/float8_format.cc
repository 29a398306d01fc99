#include "megatron/tensor/float8_format.h"

namespace megatron {

const char* Name(Float8Format format) { return format == Float8Format::kE4M3 ? "e4m3" : "e5m2"; }

bool FromName(const std::string& name, Float8Format* format) {
  for (Float8Format known : {Float8Format::kE4M3, Float8Format::kE5M2}) {
    if (name != Name(known)) continue;
    *format = known;
    return true;
  }
  return false;
}

}  // namespace megatron
