#include "megatron/train/inference/batch_memory.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "megatron/base/quantity.h"

namespace megatron {

int64_t ReservedBytes(int64_t available) {
  // The fixed part is that of a process with a small model: the stacks of its threads.
  // What the allocator keeps grows with what is allocated.
  constexpr int64_t kOfProcess = 16 << 20, kPart = 20;
  return kOfProcess + available / kPart;
}

absl::Status CheckBatchMemory(int64_t batch, int64_t context, std::optional<int64_t> available,
                              int64_t reserved,
                              absl::FunctionRef<int64_t(int64_t batch)> bytes_of) {
  // Places are numbered by 32 bits.
  constexpr int64_t kMostPlaces = std::numeric_limits<int32_t>::max();
  if (batch > kMostPlaces / context) {
    return absl::InvalidArgumentError(absl::StrCat("max_batch is ", batch, ", and a cache of ",
                                                   kMostPlaces, " tokens at most has room for ",
                                                   kMostPlaces / context, " requests of ", context,
                                                   "; give a smaller max_batch or max_context"));
  }
  if (!available.has_value()) return absl::OkStatus();
  const int64_t one = bytes_of(1);
  const int64_t usable = *available - reserved;
  if (one > usable) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the model and one request of ", context, " tokens take ", FormatBytes(one), ", and ",
        FormatBytes(*available), " of memory are available, of which ", FormatBytes(reserved),
        " must stay free for the rest of the process; a smaller max_context takes less"));
  }
  if (batch == 1) return absl::OkStatus();
  // Measuring costs memory by request as well, so a batch that is too large for what each of a few
  // requests takes is not measured.
  const int64_t few = std::min<int64_t>(batch, 256);
  const int64_t each = std::max<int64_t>(1, (bytes_of(few) - one) / (few - 1));
  const int64_t most_others = (usable - one) / each;
  int64_t fits = 1, too_many = batch;
  if (most_others < batch - 1) {
    too_many = most_others + 2;
  } else if (bytes_of(batch) <= usable) {
    return absl::OkStatus();
  }
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (bytes_of(middle) <= usable ? fits : too_many) = middle;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "max_batch is ", batch, ", and ", FormatBytes(*available), " of memory have room for ", fits,
      " requests of ", context, " tokens: the model takes ", FormatBytes(one - each),
      ", a request ", FormatBytes(each), ", and ", FormatBytes(reserved),
      " must stay free for the rest of the process; give a smaller max_batch or max_context"));
}

}  // namespace megatron
