// Keeps two programs from writing one dataset at the same time.
#ifndef MEGATRON_TOOLS_COMMON_DATASET_LOCK_H_
#define MEGATRON_TOOLS_COMMON_DATASET_LOCK_H_

#include <string>

#include "absl/status/statusor.h"

namespace megatron {

// The right to write the files of a prefix, held through `<prefix>.lock`. The system releases the
// lock when its process ends, so a file that a killed process left does not lock others out. On a
// network file system the lock may hold between machines or not; without locks in the file system,
// every process has the right.
class DatasetLock {
 public:
  // Returns kFailedPrecondition if another process holds it, or if the folder does not exist.
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
