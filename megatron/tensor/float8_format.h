// The formats of 8-bit floats (float8.h).
#ifndef MEGATRON_TENSOR_FLOAT8_FORMAT_H_
#define MEGATRON_TENSOR_FLOAT8_FORMAT_H_

#include <cstdint>
#include <string>

namespace megatron {

enum class Float8Format : uint8_t {
  kE4M3,  // up to 448 in steps of 1/8 to 1/16 of a number, from 2^-9
  kE5M2   // up to 57344 in steps of 1/4 to 1/8, from 2^-16
};

const char* Name(Float8Format format);  // "e4m3", "e5m2"
bool FromName(const std::string& name, Float8Format* format);

}  // namespace megatron

#endif  // MEGATRON_TENSOR_FLOAT8_FORMAT_H_
