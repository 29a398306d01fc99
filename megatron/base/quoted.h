// Texts of foreign files in messages.
#ifndef MEGATRON_BASE_QUOTED_H_
#define MEGATRON_BASE_QUOTED_H_

#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

// Returns the first 128 bytes of `text` in single quotes, with escapes for bytes that a terminal
// would obey.
std::string Quoted(absl::string_view text);

}  // namespace megatron

#endif  // MEGATRON_BASE_QUOTED_H_
