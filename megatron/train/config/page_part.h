// Documentation whose parts are generated. A generated part of a page stands between two lines:
//
//   <!-- reference: begin, made from config.proto by: ... -->
//   <!-- reference: end -->
#ifndef MEGATRON_TRAIN_CONFIG_PAGE_PART_H_
#define MEGATRON_TRAIN_CONFIG_PAGE_PART_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

// Returns the page with `contents` between the two lines of the part `name`. InvalidArgument if the
// page does not have them.
absl::StatusOr<std::string> WithPart(absl::string_view page, absl::string_view name,
                                     absl::string_view contents);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_PAGE_PART_H_
