// The smallest fuzz target; it shows how cc_fuzz_test is used.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  int value = 0;
  if (absl::SimpleAtoi(std::string(reinterpret_cast<const char*>(data), size), &value)) {
    int again = 0;
    if (!absl::SimpleAtoi(std::to_string(value), &again) || again != value) __builtin_trap();
  }
  return 0;
}
