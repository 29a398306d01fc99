// A file that appears whole or not at all, and that one process at a time writes.
#ifndef MEGATRON_TOOLS_COMMON_WHOLE_FILE_H_
#define MEGATRON_TOOLS_COMMON_WHOLE_FILE_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace megatron {

// Calls `make` with a function that appends to the file. The text goes to `<path>.partial`, which
// is made durable and gets the file's name at the end; an older file of that name is replaced. If
// `make` fails, nothing is left. kFailedPrecondition if another process is writing the file.
absl::Status WriteWholeFile(
    const std::string& path,
    absl::FunctionRef<absl::Status(absl::FunctionRef<absl::Status(absl::string_view)> append)>
        make);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_COMMON_WHOLE_FILE_H_
