// Compares saving and loading with writing and reading the same bytes without checksums. The
// files lie in $TEST_TMPDIR or the system's temporary directory; `--benchmark_filter` and a
// TEST_TMPDIR on another disk compare disks.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "megatron/base/crc32c.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/save_checkpoint.h"

namespace megatron {
namespace {

constexpr int64_t kTensors = 16;
constexpr int64_t kRows = 1024;
constexpr int64_t kColumns = 1024;
constexpr int64_t kTensorBytes = kRows * kColumns * int64_t{sizeof(float)};
constexpr int64_t kBytes = kTensors * kTensorBytes;

// Holds the tensors and a directory that is empty before and gone after.
class Workplace {
 public:
  Workplace() : values_(static_cast<size_t>(kBytes) / sizeof(float), 1.5f) {
    const char* const parent = std::getenv("TEST_TMPDIR");
    directory_ =
        JoinPath(parent != nullptr ? parent : std::filesystem::temp_directory_path().string(),
                 "megatron_checkpoint_benchmark");
    CHECK(fs_.RemoveTree(directory_).ok()) << directory_;
    CHECK(fs_.CreateDirs(directory_).ok()) << directory_;
  }
  ~Workplace() { fs_.RemoveTree(directory_).IgnoreError(); }

  FileSystem& fs() { return fs_; }
  const std::string& directory() const { return directory_; }

  CheckpointState State() {
    CheckpointState state;
    state.run_id = "0123456789abcdef";
    for (int64_t i = 0; i < kTensors; ++i) {
      state.tensors.push_back(
          {"layer." + std::to_string(i), Block(i), {kRows, kColumns}, {0, 0}, 0});
    }
    return state;
  }

  Tensor Block(int64_t i) {
    return Tensor(values_.data() + i * kRows * kColumns, DType::kFloat32, {kRows, kColumns});
  }

 private:
  FileSystem& fs_ = PosixFileSystem();
  std::vector<float> values_;
  std::string directory_;
};

void SaveOnce(Workplace& workplace) {
  SaveOptions options;
  options.directory = workplace.directory();
  options.keep = 1;
  const absl::Status status = SaveCheckpoint(workplace.fs(), options, workplace.State());
  CHECK(status.ok()) << status;
}

void BM_Crc32c(benchmark::State& state) {
  const std::string data(size_t{4} << 20, 'x');
  for (auto _ : state) benchmark::DoNotOptimize(Crc32c(data));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(data.size()));
}
BENCHMARK(BM_Crc32c);

// One file, chunk by chunk, synced and renamed: what a save would be without checksums and
// manifest.
void BM_WriteWithoutChecksums(benchmark::State& state) {
  Workplace workplace;
  const std::string path = JoinPath(workplace.directory(), "file");
  for (auto _ : state) {
    auto file = workplace.fs().Create(path + ".tmp");
    CHECK(file.ok()) << file.status();
    for (int64_t i = 0; i < kTensors; ++i) {
      const Tensor block = workplace.Block(i);
      CHECK((*file)->Append({static_cast<const char*>(block.raw()), size_t{kTensorBytes}}).ok());
    }
    CHECK((*file)->Sync().ok());
    CHECK((*file)->Close().ok());
    CHECK(workplace.fs().Rename(path + ".tmp", path).ok());
    CHECK(workplace.fs().SyncDir(workplace.directory()).ok());
  }
  state.SetBytesProcessed(state.iterations() * kBytes);
}
BENCHMARK(BM_WriteWithoutChecksums)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_SaveCheckpoint(benchmark::State& state) {
  Workplace workplace;
  for (auto _ : state) SaveOnce(workplace);
  state.SetBytesProcessed(state.iterations() * kBytes);
}
BENCHMARK(BM_SaveCheckpoint)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_LoadCheckpoint(benchmark::State& state) {
  Workplace workplace;
  SaveOnce(workplace);
  for (auto _ : state) {
    const auto reader =
        CheckpointReader::Open(workplace.fs(), JoinPath(workplace.directory(), "iter_0000000"));
    CHECK(reader.ok()) << reader.status();
    for (const ShardedTensor& tensor : workplace.State().tensors) CHECK(reader->Load(tensor).ok());
  }
  state.SetBytesProcessed(state.iterations() * kBytes);
}
BENCHMARK(BM_LoadCheckpoint)->UseRealTime()->Unit(benchmark::kMillisecond);

// Columns [0, 512) of each tensor, as one of two tensor-parallel ranks may want them: many short
// runs.
void BM_LoadHalfOfEachRow(benchmark::State& state) {
  Workplace workplace;
  SaveOnce(workplace);
  const auto reader =
      CheckpointReader::Open(workplace.fs(), JoinPath(workplace.directory(), "iter_0000000"));
  CHECK(reader.ok()) << reader.status();
  for (auto _ : state) {
    for (int64_t i = 0; i < kTensors; ++i) {
      const Tensor out(workplace.Block(i).raw(), DType::kFloat32, {kRows, kColumns / 2});
      CHECK(reader->Read("layer." + std::to_string(i), {0, 0}, out).ok());
    }
  }
  state.SetBytesProcessed(state.iterations() * kBytes / 2);
}
BENCHMARK(BM_LoadHalfOfEachRow)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megatron
