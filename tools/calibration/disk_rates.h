// Measures the disk of a folder, as steps meet it that update states in files there, for the
// planner's facts.
#ifndef TOOLS_CALIBRATION_DISK_RATES_H_
#define TOOLS_CALIBRATION_DISK_RATES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"

namespace megatron {

struct DiskRequest {
  std::string directory;                 // is there
  std::string hardware;                  // the file of facts to change
  std::string name;                      // that of the entry to change; empty: there is one
  int ranks = 1;                         // those that share the disk
  int64_t elements = int64_t{42} << 20;  // of the file, with 12 bytes each
};

// Updates a file of states (optim/state_file.h) in the directory, which reads and writes at once,
// and writes a rank's share of the rates and of the free space, and the folder, into the entry. All
// other fields and comments stay; the first line says where the figures are from. Returns a line
// about them. kInvalidArgument, with the file's name: the request doesn't fit the file of facts.
// kResourceExhausted, with the free bytes: the disk has no room for the file of states.
absl::StatusOr<std::string> CalibrateDisk(FileSystem& fs, const DiskRequest& request);

}  // namespace megatron

#endif  // TOOLS_CALIBRATION_DISK_RATES_H_
