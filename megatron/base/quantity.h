// Quantities with their units, for people.
#ifndef MEGATRON_BASE_QUANTITY_H_
#define MEGATRON_BASE_QUANTITY_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

// Returns a text like "1.50 GiB".
std::string FormatBytes(int64_t bytes);

// Returns "1 rank" or "4 ranks", where `noun` is "rank".
std::string FormatQuantity(int64_t count, absl::string_view noun);

}  // namespace megatron

#endif  // MEGATRON_BASE_QUANTITY_H_
