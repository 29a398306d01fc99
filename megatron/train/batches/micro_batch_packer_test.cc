#include "megatron/train/batches/micro_batch_packer.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;

constexpr int kLength = 4;

// Sample i holds tokens 10 i, 10 i + 1, ...; a document starts at place 2 of odd samples, and there
// the first i % 3 predictions do not count.
class CountingSource : public SampleSource {
 public:
  int64_t size() const override { return 100; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    if (index >= size()) return absl::OutOfRangeError("no such sample");
    *sample = Sample();
    for (int i = 0; i < kLength; ++i) {
      sample->tokens.push_back(static_cast<int32_t>(10 * index + i));
      sample->labels.push_back(static_cast<int32_t>(10 * index + i + 1));
      sample->loss_mask.push_back(i < index % 3 ? 0.0f : 1.0f);
      sample->positions.push_back(i);
    }
    sample->document_starts = index % 2 == 1 ? std::vector<int32_t>{0, 2} : std::vector<int32_t>{0};
    return absl::OkStatus();
  }
};

PackerOptions Options(int64_t micro_batch_size, int64_t max_micro_batches) {
  PackerOptions options;
  options.layout.micro_batch_size = micro_batch_size;
  options.seq_length = kLength;
  options.max_micro_batches = max_micro_batches;
  return options;
}

template <typename T>
std::vector<T> Values(const Tensor& tensor) {
  return std::vector<T>(tensor.data<T>(), tensor.data<T>() + tensor.numel());
}

class FailingSource : public SampleSource {
 public:
  explicit FailingSource(absl::Status error) : error_(std::move(error)) {}

  int64_t size() const override { return 100; }
  absl::Status Get(int64_t /*index*/, Sample* /*sample*/) const override { return error_; }

 private:
  const absl::Status error_;
};

// Sample i holds 1 + i % 4 tokens and is of class i % 2.
class ClassifiedSource : public SampleSource {
 public:
  int64_t size() const override { return 100; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    *sample = Sample();
    for (int32_t i = 0; i <= index % 4; ++i) {
      sample->tokens.push_back(static_cast<int32_t>(10 * index + i));
      sample->types.push_back(i % 2);
      sample->labels.push_back(i == 0 ? 7 : -1);
      sample->loss_mask.push_back(i == 0 ? 1.0f : 0.0f);
      sample->positions.push_back(i);
    }
    sample->document_starts = {0};
    sample->sequence_class = static_cast<int32_t>(index % 2);
    return absl::OkStatus();
  }
};

// Sample i has 1 + i % 3 tokens, which all have a loss, and 1 + i % 4 tokens for the encoder.
class EncodedSource : public SampleSource {
 public:
  int64_t size() const override { return 100; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    *sample = Sample();
    for (int32_t i = 0; i <= index % 3; ++i) {
      sample->tokens.push_back(static_cast<int32_t>(10 * index + i));
      sample->labels.push_back(static_cast<int32_t>(10 * index + i + 1));
      sample->loss_mask.push_back(1.0f);
      sample->positions.push_back(i);
    }
    sample->spans = {-1, 0, 0, 1};
    sample->spans.resize(sample->tokens.size());
    for (int32_t i = 0; i <= index % 4; ++i)
      sample->encoder_tokens.push_back(static_cast<int32_t>(1000 + 10 * index + i));
    sample->document_starts = {0};
    return absl::OkStatus();
  }
};

PackerOptions EncoderOptions(int64_t micro_batch_size, int64_t max_micro_batches) {
  PackerOptions options = Options(micro_batch_size, max_micro_batches);
  options.seq_length = 3;
  options.encoder_seq_length = 4;
  return options;
}

class MicroBatchPackerTest : public ::testing::Test {
 protected:
  ThreadPool pool_{1};
  Stream stream_ = Stream::Cpu(&pool_);
  CountingSource source_;
  EncodedSource encoded_;
};

TEST_F(MicroBatchPackerTest, PacksClassifiedSamplesWithoutPaddingAndFillsUp) {
  PackerOptions options = Options(2, 2);
  options.has_classes = options.has_sample_numbers = true;
  options.token_multiple = 2;
  MicroBatchPacker packer(options, Device(), nullptr);
  const ClassifiedSource source;
  ASSERT_TRUE(packer.Pack(source, {/*consumed_samples=*/1, 2, 8}, ProcessGroup(), stream_).ok());
  // Samples 1 and 2 have five tokens, and one more fills up; samples 3 and 4 have five too.
  const MicroBatch& first = packer.batches()[0];
  EXPECT_THAT(Values<int32_t>(first.tokens_T), ElementsAre(10, 11, 20, 21, 22, 0));
  EXPECT_THAT(Values<int32_t>(first.token_type_T), ElementsAre(0, 1, 0, 1, 0, 0));
  EXPECT_THAT(Values<int32_t>(first.cu_seqlens), ElementsAre(0, 2, 5, 6));
  EXPECT_EQ(first.max_seqlen, 3);
  EXPECT_THAT(Values<float>(first.loss_weight_T), ElementsAre(1, 0, 1, 0, 0, 0));
  EXPECT_THAT(Values<float>(first.gradient_weight_T), ElementsAre(2, 0, 2, 0, 0, 0));
  EXPECT_THAT(Values<int32_t>(first.sequence_label_S), ElementsAre(1, 0, 0));
  EXPECT_THAT(Values<float>(first.sequence_weight_S), ElementsAre(1, 1, 0));
  EXPECT_THAT(Values<float>(first.sequence_gradient_weight_S), ElementsAre(2, 2, 0));
  EXPECT_THAT(Values<int32_t>(first.sample_number_T), ElementsAre(0, 0, 1, 1, 1, -1));
  EXPECT_THAT(Values<float>(first.sample_share_S), ElementsAre(0.5f, 1 / 3.f, 1));
  const MicroBatch& second = packer.batches()[1];
  EXPECT_THAT(Values<int32_t>(second.tokens_T), ElementsAre(30, 31, 32, 33, 40, 0));
  EXPECT_EQ(second.num_sequences(), 3);
}

// A document of two tokens has nothing two places on. Samples 1 and 2 are here.
TEST_F(MicroBatchPackerTest, PacksWhatMultiTokenPredictionReadsWithinSequences) {
  PackerOptions options = Options(2, 1);
  options.mtp_depths = 2;
  options.mtp_loss_factor = 0.5f;
  const MicroBatchPacker::Step step = {/*consumed_samples=*/1, 1, 8};
  MicroBatchPacker packer(options, Device(), nullptr);
  ASSERT_TRUE(packer.Pack(source_, step, ProcessGroup(), stream_).ok());
  const MtpBatch& mtp = packer.batches()[0].mtp;
  ASSERT_EQ(mtp.depths(), 2);
  const auto first = [](const Tensor& x_DT) { return x_DT.Select(0, 0); };
  const auto second = [](const Tensor& x_DT) { return x_DT.Select(0, 1); };
  EXPECT_THAT(Values<int32_t>(first(mtp.tokens_DT)), ElementsAre(11, 0, 13, 0, 21, 22, 23, 0));
  EXPECT_THAT(Values<int32_t>(first(mtp.labels_DT)), ElementsAre(12, -1, 14, -1, 22, 23, 24, -1));
  EXPECT_THAT(Values<float>(first(mtp.loss_weight_DT)), ElementsAre(1, 0, 1, 0, 0, 1, 1, 0));
  EXPECT_THAT(Values<float>(first(mtp.gradient_weight_DT)), ElementsAre(1, 0, 1, 0, 0, 1, 1, 0));
  EXPECT_THAT(Values<int32_t>(second(mtp.tokens_DT)), ElementsAre(0, 0, 0, 0, 22, 23, 0, 0));
  EXPECT_THAT(Values<int32_t>(second(mtp.labels_DT)), ElementsAre(-1, -1, -1, -1, 23, 24, -1, -1));
  EXPECT_THAT(Values<float>(second(mtp.loss_weight_DT)), ElementsAre(0, 0, 0, 0, 1, 1, 0, 0));
  EXPECT_THAT(Values<float>(second(mtp.gradient_weight_DT)), ElementsAre(0, 0, 0, 0, 2, 2, 0, 0));
  options.context_parallel_size = 2;
  for (int rank : {0, 1}) {
    options.context_parallel_rank = rank;
    MicroBatchPacker part(options, Device(), nullptr);
    ASSERT_TRUE(part.Pack(source_, step, ProcessGroup(), stream_).ok());
    const std::vector<int> mine =
        rank == 0 ? std::vector<int>{0, 3, 4, 7} : std::vector{1, 2, 5, 6};
    for (int64_t depth : {0, 1}) {
      const MicroBatch at = part.batches()[0].AtDepth(depth);
      const MicroBatch whole = packer.batches()[0].AtDepth(depth);
      ASSERT_EQ(at.num_tokens(), 4);
      for (size_t i = 0; i < mine.size(); ++i) {
        EXPECT_EQ(Values<int32_t>(at.tokens_T)[i], Values<int32_t>(whole.tokens_T)[mine[i]]);
        EXPECT_EQ(Values<int32_t>(at.labels_T)[i], Values<int32_t>(whole.labels_T)[mine[i]]);
        EXPECT_EQ(Values<float>(at.gradient_weight_T)[i],
                  Values<float>(whole.gradient_weight_T)[mine[i]]);
      }
    }
  }
}

// The tokens that one rank packs, and fillers of no weight.
TEST_F(MicroBatchPackerTest, ContextRanksShareOutSamplesOfAnyLength) {
  PackerOptions options = Options(4, 1);
  options.has_classes = true;
  const ClassifiedSource source;
  const MicroBatchPacker::Step step = {/*consumed_samples=*/1, 1, 8};
  MicroBatchPacker whole(options, Device(), nullptr);
  ASSERT_TRUE(whole.Pack(source, step, ProcessGroup(), stream_).ok());
  const MicroBatch& expected = whole.batches()[0];
  std::map<int32_t, float> weights;  // weights by token
  std::vector<float> sequences(4);
  for (int rank : {0, 1}) {
    options.context_parallel_size = 2;
    options.context_parallel_rank = rank;
    MicroBatchPacker packer(options, Device(), nullptr);
    ASSERT_TRUE(packer.Pack(source, step, ProcessGroup(), stream_).ok());
    const MicroBatch& batch = packer.batches()[0];
    ASSERT_EQ(batch.num_tokens(), 8);
    for (int t = 0; t < 8; ++t)
      weights[Values<int32_t>(batch.tokens_T)[t]] += Values<float>(batch.gradient_weight_T)[t];
    for (size_t s = 0; s < 4; ++s)
      sequences[s] += Values<float>(batch.sequence_gradient_weight_S)[s];
  }
  for (int64_t t = 0; t < expected.num_tokens(); ++t) {
    EXPECT_EQ(weights[Values<int32_t>(expected.tokens_T)[t]],
              Values<float>(expected.gradient_weight_T)[t]);
  }
  EXPECT_EQ(sequences, Values<float>(expected.sequence_gradient_weight_S));
}

// What reads the data is no rank that was lost: such errors are not restarted.
TEST_F(MicroBatchPackerTest, ErrorsOfSamplesHaveTheCodesOfDataAndOfFiles) {
  for (const auto& [error, code] : std::vector<std::pair<absl::Status, ExitCode>>{
           {absl::OutOfRangeError("no such sample"), kExitData},
           {absl::DataLossError("a token outside the vocabulary"), kExitData},
           {absl::InvalidArgumentError("no conversation"), kExitData},
           {absl::UnknownError("read 'a.bin': input/output error"), kExitIo},
           {absl::UnavailableError("read 'a.bin': try again"), kExitIo}}) {
    for (const int64_t num_workers : {0, 1}) {
      PackerOptions options = Options(2, 1);
      options.num_workers = num_workers;
      const FailingSource source(error);
      MicroBatchPacker packer(options, Device(), nullptr);
      const absl::Status status = packer.Pack(source, {0, 1, 1}, ProcessGroup(), stream_);
      EXPECT_EQ(status.code(), error.code());
      EXPECT_TRUE(HasExitCode(status)) << status;
      EXPECT_EQ(ExitCodeOf(status), code) << status;
    }
  }
}

TEST_F(MicroBatchPackerTest, PacksWhatAnEncoderReadsBesideTheDecodersTokens) {
  MicroBatchPacker packer(EncoderOptions(2, 1), Device(), nullptr);
  ASSERT_TRUE(packer.Pack(encoded_, {5, 1, 10}, ProcessGroup(), stream_).ok());
  const MicroBatch& batch = packer.batches()[0];
  EXPECT_THAT(Values<int32_t>(batch.tokens_T), ElementsAre(50, 51, 52, 60));
  EXPECT_THAT(Values<int32_t>(batch.cu_seqlens), ElementsAre(0, 3, 4));
  EXPECT_THAT(Values<float>(batch.gradient_weight_T), ElementsAre(2.5, 2.5, 2.5, 2.5));
  EXPECT_EQ(batch.max_seqlen, 3);
  const EncoderBatch& encoder = batch.encoder;
  EXPECT_THAT(Values<int32_t>(encoder.tokens_T), ElementsAre(1050, 1051, 1060, 1061, 1062));
  EXPECT_THAT(Values<int32_t>(encoder.position_T), ElementsAre(0, 1, 0, 1, 2));
  EXPECT_THAT(Values<int32_t>(encoder.sample_position_T), ElementsAre(0, 1, 0, 1, 2));
  EXPECT_THAT(Values<int64_t>(encoder.sample_T), ElementsAre(5, 5, 6, 6, 6));
  EXPECT_THAT(Values<int32_t>(encoder.cu_seqlens), ElementsAre(0, 2, 5));
  EXPECT_EQ(encoder.max_seqlen, 3);
  EXPECT_THAT(Values<int32_t>(batch.spans.span_T), ElementsAre(-1, 0, 0, -1));
  EXPECT_THAT(Values<float>(batch.spans.missing_R), ElementsAre(-1));
  EXPECT_THAT(Values<float>(batch.spans.weight_R), ElementsAre(1));
}

// Both sides are filled up, by one sequence that has a token on each.
TEST_F(MicroBatchPackerTest, FillsEncoderAndDecoderUpTogether) {
  PackerOptions options = EncoderOptions(2, 3);
  options.token_multiple = 2;
  MicroBatchPacker packer(options, Device(), nullptr);
  ASSERT_TRUE(packer.Pack(encoded_, {5, 3, 1}, ProcessGroup(), stream_).ok());
  const auto sizes = [&](size_t m) {
    const MicroBatch& batch = packer.batches()[m];
    return std::make_pair(Values<int32_t>(batch.cu_seqlens),
                          Values<int32_t>(batch.encoder.cu_seqlens));
  };
  using Bounds = std::vector<int32_t>;
  // Samples 5 and 6, of 3 + 1 and 2 + 3 tokens.
  EXPECT_EQ(sizes(0), std::make_pair(Bounds({0, 3, 4, 6}), Bounds({0, 2, 5, 6})));
  // Samples 7 and 8, of 2 + 3 and 4 + 1.
  EXPECT_EQ(sizes(1), std::make_pair(Bounds({0, 2, 5, 6}), Bounds({0, 4, 5, 6})));
  // Samples 9 and 10, of 1 + 2 and 2 + 3.
  EXPECT_EQ(sizes(2), std::make_pair(Bounds({0, 1, 3, 4}), Bounds({0, 2, 5, 6})));
  EXPECT_THAT(Values<float>(packer.batches()[0].loss_weight_T), ElementsAre(1, 1, 1, 1, 0, 0));
}

TEST_F(MicroBatchPackerTest, SpansAreNumberedThroughTheMicroBatch) {
  PackerOptions options = EncoderOptions(3, 1);
  options.token_multiple = 4;
  MicroBatchPacker packer(options, Device(), nullptr);
  ASSERT_TRUE(packer.Pack(encoded_, {1, 1, 1}, ProcessGroup(), stream_).ok());
  // Samples 1, 2 and 3, of 2, 3 and 1 tokens, and two to fill up.
  const SpanBatch& spans = packer.batches()[0].spans;
  EXPECT_THAT(Values<int32_t>(spans.span_T), ElementsAre(-1, 0, -1, 1, 1, -1, -1, -1));
  EXPECT_THAT(Values<float>(spans.missing_R), ElementsAre(0, -1));
  EXPECT_THAT(Values<float>(spans.weight_R), ElementsAre(1, 1));
}

// The samples have lengths that the number of ranks need not divide.
TEST_F(MicroBatchPackerTest, ShapesForPlanningHoldEveryBatch) {
  struct Ranks {
    int64_t token_multiple;
    int context;
  };
  for (const Ranks& ranks : {Ranks{2, 1}, Ranks{1, 2}, Ranks{2, 2}}) {
    PackerOptions options = EncoderOptions(3, 1);
    options.token_multiple = ranks.token_multiple;
    options.context_parallel_size = ranks.context;
    options.context_parallel_rank = ranks.context - 1;
    MicroBatchPacker plan(options, Device(), nullptr);
    plan.PackShapes(1);
    const MicroBatchSize largest = SizeOf(plan.batches()[0]);
    MicroBatchPacker packer(options, Device(), nullptr);
    for (int64_t begin = 0; begin < 90; begin += 3) {
      ASSERT_TRUE(packer.Pack(encoded_, {begin, 1, 1}, ProcessGroup(), stream_).ok());
      const MicroBatchSize size = SizeOf(packer.batches()[0]);
      EXPECT_LE(size.tokens, largest.tokens);
      EXPECT_LE(size.encoder_tokens, largest.encoder_tokens);
      EXPECT_LE(size.sequences, largest.sequences);
      EXPECT_EQ(size.tokens % ranks.token_multiple, 0);
      EXPECT_EQ(size.encoder_tokens % ranks.token_multiple, 0);
    }
  }
}

TEST_F(MicroBatchPackerTest, ContextRanksShareOutBothSidesOfAnEncodersSamples) {
  PackerOptions options = EncoderOptions(4, 1);
  const MicroBatchPacker::Step step = {/*consumed_samples=*/1, 1, 8};
  MicroBatchPacker whole(options, Device(), nullptr);
  ASSERT_TRUE(whole.Pack(encoded_, step, ProcessGroup(), stream_).ok());
  const MicroBatch& expected = whole.batches()[0];
  std::map<int32_t, float> weights;             // weights by token
  std::map<int32_t, int32_t> spans, positions;  // the latter by token of the encoder
  for (int rank : {0, 1}) {
    options.context_parallel_size = 2;
    options.context_parallel_rank = rank;
    MicroBatchPacker packer(options, Device(), nullptr);
    ASSERT_TRUE(packer.Pack(encoded_, step, ProcessGroup(), stream_).ok());
    const MicroBatch& batch = packer.batches()[0];
    for (int64_t t = 0; t < batch.num_tokens(); ++t) {
      const int32_t token = Values<int32_t>(batch.tokens_T)[t];
      weights[token] += Values<float>(batch.gradient_weight_T)[t];
      spans[token] = Values<int32_t>(batch.spans.span_T)[t];
    }
    for (int64_t t = 0; t < batch.encoder.num_tokens(); ++t) {
      positions[Values<int32_t>(batch.encoder.tokens_T)[t]] =
          Values<int32_t>(batch.encoder.position_T)[t];
    }
    EXPECT_EQ(batch.spans.num_spans(), expected.spans.num_spans());
    // The 2 + 3 + 1 + 2 tokens divide evenly, but the encoder's 2 + 3 + 4 + 1 do not: a filler is
    // added.
    EXPECT_EQ(batch.num_tokens(), 8);
    EXPECT_EQ(batch.encoder.num_tokens(), 8);
    EXPECT_EQ(batch.num_sequences(), 5);
  }
  for (int64_t t = 0; t < expected.num_tokens(); ++t) {
    const int32_t token = Values<int32_t>(expected.tokens_T)[t];
    EXPECT_EQ(weights[token], Values<float>(expected.gradient_weight_T)[t]);
    EXPECT_EQ(spans[token], Values<int32_t>(expected.spans.span_T)[t]);
  }
  for (int64_t t = 0; t < expected.encoder.num_tokens(); ++t) {
    const auto found = positions.find(Values<int32_t>(expected.encoder.tokens_T)[t]);
    ASSERT_NE(found, positions.end());
    EXPECT_EQ(found->second, Values<int32_t>(expected.encoder.position_T)[t]);
  }
}

TEST_F(MicroBatchPackerTest, PacksSamplesWithTheirPlacesAndDocuments) {
  MicroBatchPacker packer(Options(2, 1), Device(), nullptr);
  ASSERT_TRUE(packer.Pack(source_, {6, 1, 1.0f}, ProcessGroup(), stream_).ok());
  const MicroBatch& batch = packer.batches().front();
  EXPECT_THAT(Values<int32_t>(batch.tokens_T), ElementsAre(60, 61, 62, 63, 70, 71, 72, 73));
  EXPECT_THAT(Values<int32_t>(batch.labels_T), ElementsAre(61, 62, 63, 64, 71, 72, 73, 74));
  EXPECT_THAT(Values<int64_t>(batch.sample_T), ElementsAre(6, 6, 6, 6, 7, 7, 7, 7));
  EXPECT_THAT(Values<int32_t>(batch.sample_position_T), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_THAT(Values<int32_t>(batch.cu_seqlens), ElementsAre(0, 4, 6, 8));
  EXPECT_EQ(batch.max_seqlen, 4);
  EXPECT_THAT(Values<float>(batch.loss_weight_T), ElementsAre(1, 1, 1, 1, 0, 1, 1, 1));
  EXPECT_THAT(Values<float>(batch.gradient_weight_T),
              ElementsAre(1 / 7.f, 1 / 7.f, 1 / 7.f, 1 / 7.f, 0, 1 / 7.f, 1 / 7.f, 1 / 7.f));
}

// The denominator is the whole step's number of tokens that count, not the micro-batch's.
TEST_F(MicroBatchPackerTest, TakesTheBeginningOfSamplesThatTheStepMakesShort) {
  MicroBatchPacker packer(Options(2, 1), Device(), nullptr);
  ASSERT_TRUE(packer.Pack(source_, {6, 1, 1.0f, 3}, ProcessGroup(), stream_).ok());
  const MicroBatch& batch = packer.batches().front();
  EXPECT_THAT(Values<int32_t>(batch.tokens_T), ElementsAre(60, 61, 62, 70, 71, 72));
  EXPECT_THAT(Values<int32_t>(batch.labels_T), ElementsAre(61, 62, 63, 71, 72, 73));
  EXPECT_THAT(Values<int32_t>(batch.sample_position_T), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(Values<int32_t>(batch.cu_seqlens), ElementsAre(0, 3, 5, 6));
  EXPECT_EQ(batch.max_seqlen, 3);
  // Five of six predictions count.
  EXPECT_THAT(Values<float>(batch.gradient_weight_T),
              ElementsAre(0.2f, 0.2f, 0.2f, 0.0f, 0.2f, 0.2f));
  // A document that begins behind the cut is gone.
  ASSERT_TRUE(packer.Pack(source_, {6, 1, 1.0f, 2}, ProcessGroup(), stream_).ok());
  EXPECT_THAT(Values<int32_t>(packer.batches().front().cu_seqlens), ElementsAre(0, 2, 4));
  ASSERT_TRUE(packer.Pack(source_, {6, 1, 1.0f}, ProcessGroup(), stream_).ok());
  EXPECT_EQ(packer.batches().front().num_tokens(), 2 * kLength);
}

// Five samples on two ranks with micro-batches of two: this one has samples 14 and none.
TEST_F(MicroBatchPackerTest, FillsUpWhereThereAreNoMoreSamples) {
  PackerOptions options = Options(2, 2);
  options.layout.data_parallel_size = 2;
  MicroBatchPacker packer(options, Device(), nullptr);
  MicroBatchPacker::Step step = {10, 2, 1.0f};
  step.samples = 5;
  ASSERT_TRUE(packer.Pack(source_, step, ProcessGroup(), stream_).ok());
  EXPECT_THAT(Values<int64_t>(packer.batches()[0].sample_T),
              ElementsAre(10, 10, 10, 10, 11, 11, 11, 11));
  const MicroBatch& last = packer.batches()[1];
  EXPECT_THAT(Values<int32_t>(last.tokens_T), ElementsAre(140, 141, 142, 143, 0, 0, 0, 0));
  EXPECT_THAT(Values<float>(last.loss_weight_T), ElementsAre(0, 0, 1, 1, 0, 0, 0, 0));
  EXPECT_THAT(Values<int32_t>(last.cu_seqlens), ElementsAre(0, 4, 8));
  // Three predictions of sample 10 count, two of sample 11 and two of sample 14.
  EXPECT_EQ(Values<float>(last.gradient_weight_T)[2], 1 / 7.f);
  options.layout.data_parallel_rank = 1;
  MicroBatchPacker other(options, Device(), nullptr);
  ASSERT_TRUE(other.Pack(source_, step, ProcessGroup(), stream_).ok());
  EXPECT_THAT(Values<int32_t>(other.batches()[0].tokens_T),
              ElementsAre(120, 121, 122, 123, 130, 131, 132, 133));
  EXPECT_THAT(Values<float>(other.batches()[1].loss_weight_T), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
}

TEST_F(MicroBatchPackerTest, GradientWeightsDoNotDependOnTheMicroBatchSize) {
  std::vector<float> expected;
  for (int64_t size : {1, 2, 3, 6}) {
    MicroBatchPacker packer(Options(size, 6), Device(), nullptr);
    ASSERT_TRUE(packer.Pack(source_, {12, 6 / size, 8.0f}, ProcessGroup(), stream_).ok());
    std::vector<float> weights;
    for (const MicroBatch& batch : packer.batches()) {
      for (float weight : Values<float>(batch.gradient_weight_T)) weights.push_back(weight);
    }
    double sum = 0;
    for (float weight : weights) sum += weight;
    EXPECT_NEAR(sum, 8.0, 1e-5);
    if (expected.empty()) expected = weights;
    EXPECT_EQ(weights, expected) << size;
  }
}

TEST_F(MicroBatchPackerTest, WithoutPerTokenLossTheLossIsTheMeanOfMicroBatchMeans) {
  PackerOptions options = Options(1, 2);
  options.per_token_loss = false;
  MicroBatchPacker packer(options, Device(), nullptr);
  ASSERT_TRUE(
      packer.Pack(source_, {1, 2, 1.0f}, ProcessGroup(), stream_).ok());  // 3 and 2 tokens count
  EXPECT_THAT(Values<float>(packer.batches()[0].gradient_weight_T),
              ElementsAre(0, 1 / 6.f, 1 / 6.f, 1 / 6.f));
  EXPECT_THAT(Values<float>(packer.batches()[1].gradient_weight_T),
              ElementsAre(0, 0, 0.25f, 0.25f));
}

TEST_F(MicroBatchPackerTest, RanksShareOneDenominatorAndTakeTurns) {
  ASSERT_TRUE(RunRanks(2, [&](int rank, const ProcessGroup& world) -> absl::Status {
                PackerOptions options = Options(1, 1);
                options.layout.data_parallel_size = 2;
                options.layout.data_parallel_rank = rank;
                MicroBatchPacker packer(options, Device(), nullptr);
                ThreadPool pool(1);
                absl::Status status = packer.Pack(source_, {0, 1, 1.0f}, world, Stream::Cpu(&pool));
                EXPECT_EQ(Values<int32_t>(packer.batches()[0].tokens_T)[0], 10 * rank);
                EXPECT_FLOAT_EQ(Values<float>(packer.batches()[0].gradient_weight_T)[3], 1 / 7.f);
                return status;
              }).ok());
}

// One context-parallel rank holds more of the samples' tokens that count than the other.
TEST_F(MicroBatchPackerTest, ContextRanksWeighTheirTokensAsOneRankDoes) {
  for (const bool per_token : {true, false}) {
    PackerOptions options = Options(2, 2);
    options.per_token_loss = per_token;
    const MicroBatchPacker::Step step = {4, 2, 3.0f};
    MicroBatchPacker whole(options, Device(), nullptr);
    ASSERT_TRUE(whole.Pack(source_, step, ProcessGroup(), stream_).ok());
    for (size_t m = 0; m < 2; ++m) {
      std::map<int32_t, float> weights;  // weights by token
      for (int rank : {0, 1}) {
        options.context_parallel_size = 2;
        options.context_parallel_rank = rank;
        MicroBatchPacker packer(options, Device(), nullptr);
        ASSERT_TRUE(packer.Pack(source_, step, ProcessGroup(), stream_).ok());
        const MicroBatch& batch = packer.batches()[m];
        ASSERT_EQ(batch.num_tokens(), kLength);
        for (int t = 0; t < kLength; ++t) {
          weights[Values<int32_t>(batch.tokens_T)[t]] = Values<float>(batch.gradient_weight_T)[t];
        }
      }
      const MicroBatch& expected = whole.batches()[m];
      ASSERT_EQ(weights.size(), 2u * kLength);
      for (int t = 0; t < 2 * kLength; ++t) {
        EXPECT_EQ(weights[Values<int32_t>(expected.tokens_T)[t]],
                  Values<float>(expected.gradient_weight_T)[t]);
      }
    }
  }
}

TEST_F(MicroBatchPackerTest, ReadingAheadGivesTheSameBatches) {
  const CountingSource valid;
  for (const int64_t workers : {1, 3}) {
    MicroBatchPacker inline_packer(Options(2, 3), Device(), nullptr);
    PackerOptions options = Options(2, 3);
    options.num_workers = workers;
    MicroBatchPacker packer(options, Device(), nullptr);
    for (const int64_t consumed : {0, 6, 12, 48, 0}) {
      for (const CountingSource* source : {&std::as_const(source_), &valid}) {
        const MicroBatchPacker::Step step = {consumed, 3, 1.0f};
        ASSERT_TRUE(inline_packer.Pack(*source, step, ProcessGroup(), stream_).ok());
        ASSERT_TRUE(packer.Pack(*source, step, ProcessGroup(), stream_).ok());
        for (size_t m = 0; m < 3; ++m) {
          const MicroBatch& expected = inline_packer.batches()[m];
          const MicroBatch& batch = packer.batches()[m];
          EXPECT_EQ(Values<int32_t>(batch.tokens_T), Values<int32_t>(expected.tokens_T));
          EXPECT_EQ(Values<int32_t>(batch.cu_seqlens), Values<int32_t>(expected.cu_seqlens));
          EXPECT_EQ(Values<float>(batch.gradient_weight_T),
                    Values<float>(expected.gradient_weight_T));
        }
      }
    }
    const absl::Status status = packer.Pack(source_, {99, 1, 1.0f}, ProcessGroup(), stream_);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("sample 100"));
  }
}

TEST_F(MicroBatchPackerTest, AMissingSampleIsNamed) {
  MicroBatchPacker packer(Options(1, 1), Device(), nullptr);
  const absl::Status status = packer.Pack(source_, {100, 1, 1.0f}, ProcessGroup(), stream_);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("sample 100"));
}

}  // namespace
}  // namespace megatron
