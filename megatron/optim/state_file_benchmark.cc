// The rate at which AdamW updates masters and both moments of 24 * 2^20 elements in a StateFile,
// read and written bytes together, beside a pass that changes nothing, and beside the update in
// memory. tools/interop/disk_speed.bash runs fio beside it. The file lies in $BLOCK_FILE_DIRECTORY,
// or else in $TEST_TMPDIR or /tmp.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/optimizer.h"
#include "megatron/optim/state_file.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {
namespace {

constexpr int64_t kExtents = 24, kElements = kExtents * StateFile::kExtentElements;
constexpr int64_t kBytesOfElement = 12;  // a master and two moments
enum Work { kNothing, kAdamW };

std::string Directory() {
  for (const char* name : {"BLOCK_FILE_DIRECTORY", "TEST_TMPDIR"}) {
    if (const char* value = std::getenv(name)) return value;
  }
  return "/tmp";
}

// Gradients, weights, and memory for masters and moments, of one extent.
class Extent {
 public:
  Tensor Of(int64_t index, DType dtype) const {
    return memory_.At(index * StateFile::kExtentElements * SizeOf(DType::kFloat32), dtype,
                      {StateFile::kExtentElements});
  }

 private:
  const Buffer memory_{Device(), 5 * StateFile::kExtentElements* SizeOf(DType::kFloat32),
                       "benchmark", nullptr};
};

void Update(const Extent& extent, const Tensor& masters, const Tensor& exp_avg,
            const Tensor& exp_avg_sq, const Stream& stream) {
  ops::OptimizerSegment all = {0, StateFile::kExtentElements};
  all.lr = 1e-3f;
  ops::AdamWUpdate(stream, ops::AdamWOptions(), {&all, 1}, extent.Of(0, DType::kFloat32), exp_avg,
                   exp_avg_sq, masters, extent.Of(1, DType::kBFloat16));
}

void SetRate(benchmark::State& state) {
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * static_cast<double>(2 * kBytesOfElement * kElements * state.iterations()),
      benchmark::Counter::kIsRate);
}

void RunFile(benchmark::State& state, Work work) {
  StateFile file({DType::kFloat32, DType::kFloat32, DType::kFloat32}, kElements,
                 StateFile::kExtentElements, Device(), nullptr);
  const absl::Status opened =
      file.Open(absl::StrCat(Directory(), "/state_file_benchmark.", getpid()));
  if (!opened.ok()) return state.SkipWithError(opened.ToString().c_str());
  ThreadPool pool(AvailableCores());
  const Stream stream = Stream::Cpu(&pool);
  const Extent extent;
  const auto pass = [&](StateFile::Access access) {
    file.StartPass(access);
    for (int64_t i = 0; i < kExtents && file.Enter(i).ok(); ++i) {
      const int64_t begin = i * StateFile::kExtentElements, end = file.ExtentEnd(begin);
      if (work == kAdamW)
        Update(extent, file.Elements(0, begin, end), file.Elements(1, begin, end),
               file.Elements(2, begin, end), stream);
    }
    if (!file.EndPass().ok()) state.SkipWithError("failed");
  };
  pass(StateFile::Access::kWrite);  // blocks that were only set aside read as zeros, without a disk
  for (auto _ : state) pass(StateFile::Access::kUpdate);
  SetRate(state);
  state.SetLabel(file.method());
}

void BM_Pass(benchmark::State& state) { RunFile(state, kNothing); }
void BM_AdamW(benchmark::State& state) { RunFile(state, kAdamW); }

// The same update of masters and moments that stay in memory.
void BM_AdamWInMemory(benchmark::State& state) {
  const Buffer memory(Device(), kElements * kBytesOfElement, "benchmark", nullptr);
  ThreadPool pool(AvailableCores());
  const Stream stream = Stream::Cpu(&pool);
  const Extent extent;
  const auto at = [&](int64_t i, int64_t tensor) {
    return memory.At((3 * i + tensor) * StateFile::kExtentElements * SizeOf(DType::kFloat32),
                     DType::kFloat32, {StateFile::kExtentElements});
  };
  for (auto _ : state) {
    for (int64_t i = 0; i < kExtents; ++i) Update(extent, at(i, 0), at(i, 1), at(i, 2), stream);
  }
  SetRate(state);
}

BENCHMARK(BM_Pass)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(BM_AdamW)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(BM_AdamWInMemory)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megatron
