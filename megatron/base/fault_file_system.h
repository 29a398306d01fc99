// A file system for tests that wraps another one and fails on request. A test can ask "what if the
// n-th operation finds the disk full?" for every n:
//
//   FaultFileSystem fs(&base);
//   Save(fs);                                       // counts the operations
//   const int n = fs.operation_count();
//   for (int i = 0; i < n; ++i) {
//     fs.FailAt(i, ENOSPC, /*lasting=*/true);
//     EXPECT_FALSE(Save(fs).ok());
//   }
#ifndef MEGATRON_BASE_FAULT_FILE_SYSTEM_H_
#define MEGATRON_BASE_FAULT_FILE_SYSTEM_H_

#include <atomic>

#include "megatron/base/wrapped_file_system.h"

namespace megatron {

class FaultFileSystem : public WrappedFileSystem {
 public:
  using WrappedFileSystem::WrappedFileSystem;

  // Restarts the count and makes operation `operation` (from 0, reads included) fail with
  // `error_number`. An Append that fails has written half of its data. If `lasting`, every later
  // operation that writes fails too; removing and reading work again.
  void FailAt(int operation, int error_number, bool lasting);
  // Restarts the count; no operation fails from now on.
  void ClearFault() { FailAt(-1, 0, false); }

  // The number of operations since the last FailAt or ClearFault.
  int operation_count() const { return count_; }
  // Returns whether an operation has failed since the last FailAt or ClearFault.
  bool has_failed() const { return has_failed_; }

 private:
  // Counts one operation and says whether it fails.
  absl::Status Begin(const Operation& operation) override;
  absl::string_view WrittenBeforeFailure(absl::string_view data) override {
    return data.substr(0, data.size() / 2);
  }

  std::atomic<int> count_{0};
  std::atomic<bool> has_failed_{false};
  int fail_at_ = -1;
  int error_number_ = 0;
  bool lasting_ = false;
};

}  // namespace megatron

#endif  // MEGATRON_BASE_FAULT_FILE_SYSTEM_H_
