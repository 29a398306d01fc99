// Tests that no bytes crash the reader of `.metadata`.

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "tools/torch_checkpoint/dcp_weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)megatron::ParseDcpMetadata({reinterpret_cast<const char*>(data), size});
  return 0;
}
