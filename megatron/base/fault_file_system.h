// A file system that fails on request, around another one: "what if the n-th operation meets a full
// disk?", for every n.
//
//   FaultFileSystem fs(&base);
//   Save(fs);                                       // counts
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

  // Restarts the count; operation `operation` (from 0, reads included) fails with `error_number`. A
  // failing Append has written half of its data. `lasting`: so does every later operation that
  // writes; removing and reading work again.
  void FailAt(int operation, int error_number, bool lasting);
  // Restarts the count, and nothing fails.
  void Heal() { FailAt(-1, 0, false); }

  // Operations since the last FailAt or Heal.
  int operation_count() const { return count_; }
  // Whether a fault has struck since then.
  bool struck() const { return struck_; }

 private:
  // Counts one operation and says whether it fails.
  absl::Status Begin(const Operation& operation) override;
  absl::string_view WrittenInVain(absl::string_view data) override {
    return data.substr(0, data.size() / 2);
  }

  std::atomic<int> count_{0};
  std::atomic<bool> struck_{false};
  int fail_at_ = -1;
  int error_number_ = 0;
  bool lasting_ = false;
};

}  // namespace megatron

#endif  // MEGATRON_BASE_FAULT_FILE_SYSTEM_H_
