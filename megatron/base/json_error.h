// Where a text stops being JSON, for messages to whoever wrote it.
#ifndef MEGATRON_BASE_JSON_ERROR_H_
#define MEGATRON_BASE_JSON_ERROR_H_

#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

// Returns the line and the column, counted from 1, of the last byte that a parser reads of `text`,
// and what is wrong there: "line 2, column 7: NaN is no number of JSON". A zero byte is wrong
// everywhere. `text` must not be JSON.
std::string FirstJsonError(absl::string_view text);

}  // namespace megatron

#endif  // MEGATRON_BASE_JSON_ERROR_H_
