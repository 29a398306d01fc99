// Keeps two programs from writing one dataset at the same time.
#ifndef MEGATRON_TOOLS_COMMON_DATASET_LOCK_H_
#define MEGATRON_TOOLS_COMMON_DATASET_LOCK_H_

#include <string>

#include "absl/status/statusor.h"

namespace megatron {

// The right to write the files of a prefix, held through `<prefix>.lock`. The system takes it back
// from a process that dies, so a file that a killed one left locks nobody out. Network file systems
// may keep it between machines or not; where there are no locks at all, everybody has the right.
class DatasetLock {
 public:
  // kFailedPrecondition where another process has it, or the folder is not there.
  static absl::StatusOr<DatasetLock> Take(const std::string& prefix);
  DatasetLock(DatasetLock&& other) noexcept;
  DatasetLock& operator=(DatasetLock&&) = delete;
  ~DatasetLock();

 private:
  DatasetLock(std::string path, int fd);

  std::string path_;
  int fd_;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_COMMON_DATASET_LOCK_H_
