// How fast samples are read from the page cache, and how fast their order is computed.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "megatron/base/file_system.h"
#include "megatron/data/gpt_dataset.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/data/indexed_dataset_writer.h"

namespace megatron {
namespace {

constexpr int32_t kEod = 50256;
constexpr int kDocuments = 20000;

// Twenty million tokens in documents of 1,000 on average, as 16-bit integers.
std::shared_ptr<const IndexedDataset> Corpus() {
  static const auto& corpus = *new std::shared_ptr<const IndexedDataset>([] {
    const char* directory = std::getenv("TEST_TMPDIR");
    const std::string prefix =
        std::string(directory == nullptr ? "/tmp" : directory) + "/gpt_dataset_benchmark";
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
  GptSample sample;
  int64_t index = 0;
  for (auto _ : state) {
    CHECK(dataset->Get(index, &sample).ok());
    index = (index + 1) % dataset->size();
    benchmark::DoNotOptimize(sample.tokens.data());
  }
  state.SetItemsProcessed(state.iterations() * options.seq_length);
}
BENCHMARK(BM_GetSample)->ArgNames({"seq_length", "resets"})->ArgsProduct({{256, 2048}, {0, 1}});

void BM_BuildIndex(benchmark::State& state) {
  GptIndexOptions options;
  options.num_sequences = state.range(0);
  options.seq_length = 1024;
  for (auto _ : state) {
    const GptIndex index = BuildGptIndex(options, [](int64_t i) {
                             return static_cast<int32_t>(1 + i % 1999);
                           }).value();
    benchmark::DoNotOptimize(index.samples.data());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_BuildIndex)->ArgName("documents")->Arg(1000000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megatron
