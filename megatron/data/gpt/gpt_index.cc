#include "megatron/data/gpt/gpt_index.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/numpy_random.h"

namespace megatron {
namespace {

// The last token of a sample opens the next one.
constexpr int64_t kOverlap = 1;

int64_t SamplesIn(int64_t epochs, int64_t tokens_per_epoch, int64_t seq_length) {
  return (epochs * tokens_per_epoch - kOverlap) / seq_length;
}

int64_t EpochsFor(const GptIndexOptions& options, int64_t tokens_per_epoch) {
  const int64_t tokens = options.num_samples.value_or(0) * options.seq_length + kOverlap;
  return options.num_samples.has_value() ? (tokens + tokens_per_epoch - 1) / tokens_per_epoch : 1;
}

absl::Status CheckSize(const GptIndexOptions& options, int64_t tokens_per_epoch) {
  if (options.seq_length < 1)
    return absl::InvalidArgumentError(absl::StrCat("seq_length is ", options.seq_length));
  if (tokens_per_epoch <= options.seq_length && !options.num_samples.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", options.num_sequences, " sequences hold ", tokens_per_epoch,
                     " tokens, not enough for one sample of ", options.seq_length, " + 1"));
  }
  if (tokens_per_epoch == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", options.num_sequences, " sequences hold no tokens"));
  }
  if (options.first_sequence > std::numeric_limits<int32_t>::max() - options.num_sequences) {
    return absl::InvalidArgumentError(absl::StrCat("sequences up to ",
                                                   options.first_sequence + options.num_sequences,
                                                   "; an index holds their numbers in 32 bits"));
  }
  const int64_t requested = options.num_samples.value_or(0);
  constexpr int64_t kMaxTokens = std::numeric_limits<int64_t>::max() / 4;
  if (requested < 0 || requested > kMaxTokens / options.seq_length) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot draw ", requested, " samples of ", options.seq_length, " tokens"));
  }
  const int64_t epochs = EpochsFor(options, tokens_per_epoch);
  if (epochs > std::numeric_limits<int32_t>::max() / options.num_sequences ||
      SamplesIn(epochs, tokens_per_epoch, options.seq_length) >=
          std::numeric_limits<uint32_t>::max() - 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        requested, " samples of ", options.seq_length, " tokens take ", epochs, " epochs over ",
        options.num_sequences,
        " sequences; an index holds up to 2^31 - 1 visits to sequences and 2^32 - 3 samples"));
  }
  return absl::OkStatus();
}

// Returns whether so little of the last epoch is used that shuffling it with the others would take
// most of its samples in place of theirs.
bool SeparateFinalEpoch(const GptIndexOptions& options, const GptIndexPlan& plan) {
  if (plan.num_epochs == 1) return false;
  const int64_t before = SamplesIn(plan.num_epochs - 1, plan.tokens_per_epoch, options.seq_length);
  const int64_t per_epoch = SamplesIn(1, plan.tokens_per_epoch, options.seq_length);
  const int64_t from_last = *options.num_samples - before;
  return from_last < static_cast<int64_t>(0.80 * static_cast<double>(per_epoch));
}

struct IndexVectors {
  std::vector<int32_t> documents;
  std::vector<StreamPosition> samples;
  std::vector<uint32_t> shuffle;
};

std::vector<int32_t> ShuffleDocuments(const GptIndexPlan& plan, const GptIndexOptions& options,
                                      NumpyRandomState* random) {
  const int64_t count = options.num_sequences;
  std::vector<int32_t> documents(static_cast<size_t>(plan.num_epochs * count));
  for (auto epoch = documents.begin(); epoch != documents.end(); epoch += count)
    std::iota(epoch, epoch + count, static_cast<int32_t>(options.first_sequence));
  const size_t together =
      documents.size() - (plan.separate_final_epoch ? static_cast<size_t>(count) : 0);
  random->Shuffle(absl::MakeSpan(documents).first(together));
  random->Shuffle(absl::MakeSpan(documents).subspan(together));
  return documents;
}

// Walks once through the stream. A sample begins in the sequence that holds token k·S, so empty
// sequences are skipped; but the first sample begins at the first visit, even if that is empty.
std::vector<StreamPosition> LocateSamples(const GptIndexPlan& plan, int64_t seq_length,
                                          absl::Span<const int32_t> documents,
                                          absl::FunctionRef<int32_t(int64_t)> length) {
  std::vector<StreamPosition> samples;
  samples.reserve(static_cast<size_t>(plan.num_samples) + 1);
  samples.push_back({0, 0});
  int64_t next = seq_length;  // stream token at which the next sample begins
  int64_t begin = 0;          // stream token at which the visit begins
  for (size_t visit = 0; visit < documents.size(); ++visit) {
    const int64_t end = begin + length(documents[visit]);
    for (; next < end; next += seq_length) {
      samples.push_back({static_cast<int32_t>(visit), static_cast<int32_t>(next - begin)});
    }
    begin = end;
  }
  CHECK_EQ(static_cast<int64_t>(samples.size()), plan.num_samples + 1);
  return samples;
}

std::vector<uint32_t> ShuffleSamples(const GptIndexPlan& plan, int64_t seq_length,
                                     NumpyRandomState* random) {
  std::vector<uint32_t> shuffle(static_cast<size_t>(plan.num_samples));
  std::iota(shuffle.begin(), shuffle.end(), 0u);
  const size_t together =
      plan.separate_final_epoch
          ? static_cast<size_t>(SamplesIn(plan.num_epochs - 1, plan.tokens_per_epoch, seq_length))
          : shuffle.size();
  random->Shuffle(absl::MakeSpan(shuffle).first(together));
  random->Shuffle(absl::MakeSpan(shuffle).subspan(together));
  return shuffle;
}

}  // namespace

absl::StatusOr<GptIndexPlan> PlanGptIndex(const GptIndexOptions& options,
                                          absl::FunctionRef<int32_t(int64_t i)> length) {
  GptIndexPlan plan;
  for (int64_t i = 0; i < options.num_sequences; ++i)
    plan.tokens_per_epoch += length(options.first_sequence + i);
  MEGATRON_RETURN_IF_ERROR(CheckSize(options, plan.tokens_per_epoch));
  plan.num_epochs = EpochsFor(options, plan.tokens_per_epoch);
  plan.num_samples = SamplesIn(plan.num_epochs, plan.tokens_per_epoch, options.seq_length);
  plan.separate_final_epoch = SeparateFinalEpoch(options, plan);
  return plan;
}

absl::StatusOr<GptIndex> BuildGptIndex(const GptIndexOptions& options,
                                       absl::FunctionRef<int32_t(int64_t i)> length) {
  GptIndex index;
  MEGATRON_ASSIGN_OR_RETURN(static_cast<GptIndexPlan&>(index), PlanGptIndex(options, length));
  auto vectors = std::make_shared<IndexVectors>();
  // One generator shuffles both, in this order.
  NumpyRandomState random(options.seed);
  vectors->documents = ShuffleDocuments(index, options, &random);
  vectors->samples = LocateSamples(index, options.seq_length, vectors->documents, length);
  vectors->shuffle = ShuffleSamples(index, options.seq_length, &random);
  index.documents = vectors->documents;
  index.samples = vectors->samples;
  index.shuffle = vectors->shuffle;
  index.storage = std::move(vectors);
  return index;
}

}  // namespace megatron
