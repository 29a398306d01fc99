// Lines for who started a program.
#ifndef MEGATRON_TRAIN_PRINT_LINES_H_
#define MEGATRON_TRAIN_PRINT_LINES_H_

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {

// Returns the exit code.
inline int PrintError(const absl::Status& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "error: %s\n", std::string(error.message()).c_str());
  return ExitCodeOf(error);
}

inline void PrintLine(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PRINT_LINES_H_
