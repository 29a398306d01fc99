// Whether a model that writes texts has memory for as many of them at once as asked.
#ifndef MEGATRON_TRAIN_INFERENCE_BATCH_MEMORY_H_
#define MEGATRON_TRAIN_INFERENCE_BATCH_MEMORY_H_

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace megatron {

// Returns how many of the available bytes a process should leave to what no plan of a model counts:
// its threads, its answers, and what the allocator keeps.
int64_t ReservedBytes(int64_t available);

// Checks that `batch` requests of `context` tokens each have fewer than 2^31 places for tokens
// together, and fit `available` bytes, of which `reserved` stay free; nothing: nobody knows how
// many there are. `bytes_of` returns what the model and so many requests take together. A further
// request takes no less than those before it. kInvalidArgument says what a request takes, and how
// many fit.
absl::Status CheckBatchMemory(int64_t batch, int64_t context, std::optional<int64_t> available,
                              int64_t reserved, absl::FunctionRef<int64_t(int64_t batch)> bytes_of);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_INFERENCE_BATCH_MEMORY_H_
