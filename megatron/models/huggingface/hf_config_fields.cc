#include "megatron/models/huggingface/hf_config_fields.h"

#include <charconv>
#include <cstdlib>

namespace megatron {

double ShortestDouble(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text) - 1, value).ptr;
  *end = '\0';
  return std::strtod(text, nullptr);
}

}  // namespace megatron
