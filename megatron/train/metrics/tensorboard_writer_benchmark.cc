// Measures what a step's TensorBoard events cost, with the write to the operating system, and how
// many bytes they are.

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "megatron/base/file_system.h"
#include "megatron/train/metrics/full_step.h"
#include "megatron/train/metrics/tensorboard_writer.h"

namespace megatron {
namespace {

int64_t BytesIn(FileSystem& fs, const std::string& directory) {
  int64_t bytes = 0;
  const std::vector<std::string> names = *fs.List(directory);
  for (const std::string& name : names) bytes += fs.Stat(JoinPath(directory, name))->size;
  return bytes;
}

void WriteStep(benchmark::State& state, bool logged) {
  FileSystem& fs = PosixFileSystem();
  const char* const temporary = std::getenv("TEST_TMPDIR");
  const std::string directory =
      JoinPath(temporary == nullptr ? "/tmp" : temporary, "tensorboard_writer_benchmark");
  CHECK_EQ(fs.RemoveTree(directory), absl::OkStatus());
  TensorboardWriter writer(fs, directory, {});
  StepMetrics step = logged ? FullStep() : StepMetrics();
  step.iteration = 100000;
  step.loss = 2.5;
  step.grad_norm = 0.5;
  step.speed.mfu = 0.4;
  step.world_size = 8;
  CHECK_EQ(writer.WriteStep(step), absl::OkStatus());
  const int64_t before = BytesIn(fs, directory);
  for (auto _ : state) {
    ++step.iteration;
    step.consumed_samples += 512;
    CHECK_EQ(writer.WriteStep(step), absl::OkStatus());
  }
  state.counters["bytes_per_step"] = static_cast<double>(BytesIn(fs, directory) - before) /
                                     static_cast<double>(state.iterations());
  CHECK_EQ(fs.RemoveTree(directory), absl::OkStatus());
}

BENCHMARK_CAPTURE(WriteStep, each_step, false);
BENCHMARK_CAPTURE(WriteStep, each_log_line, true);

}  // namespace
}  // namespace megatron
