#include "megatron/base/fault_file_system.h"

#include "absl/strings/str_cat.h"

namespace megatron {

void FaultFileSystem::FailAt(int operation, int error_number, bool lasting) {
  count_ = 0;
  has_failed_ = false;
  fail_at_ = operation;
  error_number_ = error_number;
  lasting_ = lasting;
}

absl::Status FaultFileSystem::Begin(const Operation& operation) {
  const int number = count_++;
  const bool fails = number == fail_at_ || (has_failed_ && lasting_ && operation.writes);
  if (!fails) return absl::OkStatus();
  has_failed_ = true;
  return absl::ErrnoToStatus(error_number_,
                             absl::StrCat(operation.name, " '", operation.path, "'"));
}

}  // namespace megatron
