// Measures how fast samples are read from the page cache, and how fast their order is computed.

#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "megatron/base/file_system.h"
#include "megatron/data/gpt/gpt_dataset.h"
#include "megatron/data/gpt/gpt_index_cache.h"
#include "megatron/data/indexed/indexed_dataset.h"
#include "megatron/data/indexed/indexed_dataset_writer.h"
#include "megatron/data/prefetch.h"

namespace megatron {
namespace {

constexpr int32_t kEod = 50256;
constexpr int kDocuments = 20000;

std::string TemporaryPath(const std::string& name) {
  const char* directory = std::getenv("TEST_TMPDIR");
  return std::string(directory == nullptr ? "/tmp" : directory) + "/" + name;
}

// Returns twenty million tokens in documents of 1,000 tokens on average, as 16-bit integers.
std::shared_ptr<const IndexedDataset> Corpus() {
  static const auto& corpus = *new std::shared_ptr<const IndexedDataset>([] {
    const std::string prefix = TemporaryPath("gpt_dataset_benchmark");
    auto writer = IndexedDatasetWriter::Create(PosixFileSystem(), prefix, TokenType::kU16).value();
    std::vector<int32_t> tokens;
    for (int i = 0; i < kDocuments; ++i) {
      tokens.assign(1 + (i * 7919) % 1999, i % 50000);
      tokens.back() = kEod;
      CHECK(writer->AddDocument(tokens).ok());
    }
    CHECK(writer->Finalize().ok());
    auto opened = std::make_shared<IndexedDataset>(IndexedDataset::Open(prefix).value());
    CHECK(PosixFileSystem().Remove(prefix + ".bin").ok() &&
          PosixFileSystem().Remove(prefix + ".idx").ok());
    return opened;
  }());
  return corpus;
}

void BM_GetSample(benchmark::State& state) {
  GptDatasetOptions options;
  options.range = {0, Corpus()->num_sequences()};
  options.seq_length = state.range(0);
  options.vocab_size = 50257;
  options.eod = kEod;
  options.reset_position_ids = options.reset_attention_mask = options.eod_mask_loss =
      state.range(1) != 0;
  const auto dataset = GptDataset::Create(Corpus(), options).value();
  Sample sample;
  int64_t index = 0;
  for (auto _ : state) {
    CHECK(dataset->Get(index, &sample).ok());
    index = (index + 1) % dataset->size();
    benchmark::DoNotOptimize(sample.tokens.data());
  }
  state.SetItemsProcessed(state.iterations() * options.seq_length);
}
BENCHMARK(BM_GetSample)->ArgNames({"seq_length", "resets"})->ArgsProduct({{256, 2048}, {0, 1}});

// If threads read ahead, the caller itself spends little time; their time is that of BM_GetSample.
void BM_PrefetchSample(benchmark::State& state) {
  GptDatasetOptions options;
  options.range = {0, Corpus()->num_sequences()};
  options.seq_length = 2048;
  options.vocab_size = 50257;
  const auto dataset = GptDataset::Create(Corpus(), options).value();
  SamplePrefetcher prefetcher(dataset.get(), {{4, 1, 0}, state.range(0), 16});
  Sample sample;
  int64_t index = 0;
  for (auto _ : state) {
    CHECK(prefetcher.Get(index, &sample).ok());
    index = (index + 1) % dataset->size();
    benchmark::DoNotOptimize(sample.tokens.data());
  }
  state.SetItemsProcessed(state.iterations() * options.seq_length);
}
BENCHMARK(BM_PrefetchSample)->ArgName("workers")->Arg(0)->Arg(1)->Arg(2)->UseRealTime();

// A thousand million tokens in a million documents.
int32_t LengthOf(int64_t i) { return static_cast<int32_t>(1 + i % 1999); }

double IndexMegabytes(const GptIndex& index) {
  return 1e-6 * static_cast<double>(index.documents.size() * sizeof(int32_t) +
                                    index.samples.size() * sizeof(StreamPosition) +
                                    index.shuffle.size() * sizeof(uint32_t));
}

double PeakMegabytes() {
  rusage usage;
  CHECK_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  return 1.024e-3 * static_cast<double>(usage.ru_maxrss);
}

void BM_BuildIndex(benchmark::State& state) {
  GptIndexOptions options;
  options.num_sequences = state.range(0);
  options.seq_length = state.range(1);
  const double before = PeakMegabytes();
  for (auto _ : state) {
    const GptIndex index = BuildGptIndex(options, LengthOf).value();
    benchmark::DoNotOptimize(index.samples.data());
    state.counters["index_MB"] = IndexMegabytes(index);
  }
  state.counters["peak_growth_MB"] = PeakMegabytes() - before;
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_BuildIndex)
    ->ArgNames({"documents", "seq_length"})
    ->Args({1000000, 1024})
    ->Args({1000000, 128})
    ->Unit(benchmark::kMillisecond);

// The index is built once into files; the benchmark measures the cost for another process:
// checksums and a mapping.
void BM_LoadIndex(benchmark::State& state) {
  const std::string directory = TemporaryPath("gpt_dataset_benchmark_cache");
  const IndexCache cache(PosixFileSystem(), directory);
  GptIndexOptions options;
  options.num_sequences = state.range(0);
  options.seq_length = 1024;
  for (auto _ : state) {
    const GptIndex index = LoadOrBuildGptIndex(cache, {}, options, LengthOf).value();
    benchmark::DoNotOptimize(index.samples.data());
  }
  CHECK(PosixFileSystem().RemoveTree(directory).ok());
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_LoadIndex)->ArgName("documents")->Arg(1000000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megatron
