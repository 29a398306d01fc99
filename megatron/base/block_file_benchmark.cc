// The rate at which a BlockFile of 256 MiB is written and read, in pieces of 32 MiB of which two
// are on their way. tools/interop/disk_speed.bash runs fio beside it. The file lies in
// $BLOCK_FILE_DIRECTORY, or else in $TEST_TMPDIR or /tmp.
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "megatron/base/aligned_memory.h"
#include "megatron/base/block_file.h"

namespace megatron {
namespace {

constexpr int64_t kBytes = int64_t{256} << 20, kPiece = int64_t{32} << 20;

std::string Directory() {
  for (const char* name : {"BLOCK_FILE_DIRECTORY", "TEST_TMPDIR"}) {
    if (const char* value = std::getenv(name)) return value;
  }
  return "/tmp";
}

void Run(benchmark::State& state, bool writes) {
  BlockFileOptions options;
  options.may_use_uring = state.range(0) != 0;
  const absl::StatusOr<std::unique_ptr<BlockFile>> file =
      BlockFile::Create(absl::StrCat(Directory(), "/block_file_benchmark"), kBytes, options);
  if (!file.ok()) return state.SkipWithError(file.status().ToString().c_str());
  const std::unique_ptr<void, void (*)(void*)> memory(AllocateAligned(2 * kPiece, kPiece),
                                                      &std::free);
  const absl::Span<char> pieces(static_cast<char*>(memory.get()), 2 * kPiece);
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i] = static_cast<char>(i * i >> 7);
  const auto pass = [&](bool write) {
    int64_t before = -1;
    for (int64_t at = 0; at < kBytes; at += kPiece) {
      const absl::Span<char> piece = pieces.subspan(at / kPiece % 2 * kPiece, kPiece);
      const int64_t started =
          write ? (*file)->StartWrite(at, piece) : (*file)->StartRead(at, piece);
      if (before >= 0 && !(*file)->Finish(before).ok()) return state.SkipWithError("failed");
      before = started;
    }
    if (!(*file)->Finish(before).ok()) state.SkipWithError("failed");
  };
  pass(true);  // blocks that were only set aside read as zeros, without the disk
  for (auto _ : state) pass(writes);
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * static_cast<double>(kBytes * state.iterations()), benchmark::Counter::kIsRate);
  state.SetLabel((*file)->method());
}

void BM_Write(benchmark::State& state) { Run(state, true); }
void BM_Read(benchmark::State& state) { Run(state, false); }
BENCHMARK(BM_Write)->Arg(1)->Arg(0)->ArgName("uring")->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Read)->Arg(1)->Arg(0)->ArgName("uring")->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megatron
