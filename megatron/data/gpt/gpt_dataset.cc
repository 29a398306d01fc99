#include "megatron/data/gpt/gpt_dataset.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/gpt/mock_sequences.h"

namespace megatron {
namespace {

absl::Status BadIndex(int64_t sample) {
  return absl::DataLossError(absl::StrCat("the index says no place in the data for sample ", sample,
                                          "; remove it from the cache"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GptDataset>> GptDataset::Create(
    std::shared_ptr<const TokenSequences> sequences, const GptDatasetOptions& options) {
  const SequenceRange range = options.range;
  CHECK(0 <= range.begin && range.begin <= range.end && range.end <= sequences->num_sequences())
      << "sequences [" << range.begin << ", " << range.end << ") of " << sequences->num_sequences();
  if (options.vocab_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a vocabulary of ", options.vocab_size, " tokens"));
  }
  if (options.seq_length > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("seq_length ", options.seq_length, " is above 2^31 - 1"));
  }
  GptIndexOptions index_options;
  index_options.first_sequence = range.begin;
  index_options.num_sequences = range.size();
  index_options.seq_length = options.seq_length;
  index_options.seed = options.seed;
  index_options.num_samples = options.num_samples;
  const auto length = [&](int64_t i) { return sequences->SequenceLength(i); };
  MEGATRON_ASSIGN_OR_RETURN(
      GptIndex index,
      options.cache == nullptr
          ? BuildGptIndex(index_options, length)
          : LoadOrBuildGptIndex(*options.cache, options.identity, index_options, length));
  return std::unique_ptr<GptDataset>(
      new GptDataset(std::move(sequences), options, std::move(index)));
}

GptDataset::GptDataset(std::shared_ptr<const TokenSequences> sequences,
                       const GptDatasetOptions& options, GptIndex index)
    : sequences_(std::move(sequences)), options_(options), index_(std::move(index)) {}

absl::Status GptDataset::Get(int64_t index, Sample* sample) const {
  if (index < 0 || index >= size()) {
    return absl::OutOfRangeError(
        absl::StrCat("sample ", index, " does not exist; the dataset has ", size(), " samples"));
  }
  const size_t seq_length = static_cast<size_t>(options_.seq_length);
  // The inputs and the token after them are read into this vector, whose capacity then serves all
  // later samples.
  sample->tokens.resize(seq_length + 1);
  // The index may come from a file, so its numbers are checked before they are used as positions.
  const uint32_t place = index_.shuffle[index];
  if (place >= index_.samples.size()) return BadIndex(index);
  MEGATRON_RETURN_IF_ERROR(
      ReadStream(index, index_.samples[place], absl::MakeSpan(sample->tokens)));
  MEGATRON_RETURN_IF_ERROR(CheckTokens(index, *sample));
  int64_t num_tokens = options_.seq_length + 1;
  if (options_.fill_in_the_middle != nullptr) {
    MEGATRON_ASSIGN_OR_RETURN(
        num_tokens, options_.fill_in_the_middle->Apply(index, absl::MakeSpan(sample->tokens)));
  }
  sample->labels.assign(sample->tokens.begin() + 1, sample->tokens.end());
  sample->tokens.resize(seq_length);
  FillMasks(sample);
  // The label of the last token is the first token of the padding.
  std::fill(sample->loss_mask.begin() + std::max<int64_t>(num_tokens - 1, 0),
            sample->loss_mask.end(), 0.0f);
  return absl::OkStatus();
}

absl::Status GptDataset::ReadStream(int64_t index, StreamPosition from,
                                    absl::Span<int32_t> out) const {
  int32_t offset = from.offset;
  for (size_t visit = static_cast<uint32_t>(from.visit); !out.empty(); ++visit) {
    if (visit >= index_.documents.size()) return BadIndex(index);
    const int64_t sequence = index_.documents[visit];
    if (sequence < options_.range.begin || sequence >= options_.range.end) return BadIndex(index);
    const int32_t length = sequences_->SequenceLength(sequence);
    if (offset < 0 || offset > length) return BadIndex(index);
    const size_t available = static_cast<size_t>(length - offset);
    const size_t count = std::min(available, out.size());
    if (count > 0) {
      MEGATRON_RETURN_IF_ERROR(sequences_->ReadTokens(sequence, offset, out.first(count)));
    }
    out.remove_prefix(count);
    offset = 0;
  }
  return absl::OkStatus();
}

absl::Status GptDataset::CheckTokens(int64_t index, const Sample& sample) const {
  // The loop has no early exit, so it is a few vector instructions.
  uint32_t largest = 0;
  for (const int32_t token : sample.tokens)
    largest = std::max(largest, static_cast<uint32_t>(token));
  if (largest < static_cast<uint32_t>(options_.vocab_size)) return absl::OkStatus();
  const auto bad = std::find_if(sample.tokens.begin(), sample.tokens.end(), [&](int32_t token) {
    return token < 0 || token >= options_.vocab_size;
  });
  return absl::DataLossError(absl::StrCat("token ", *bad, " at position ",
                                          bad - sample.tokens.begin(), " of sample ", index,
                                          " is outside the vocabulary of ", options_.vocab_size,
                                          "; was the data made with another tokenizer?"));
}

void GptDataset::FillMasks(Sample* sample) const {
  const size_t length = sample->tokens.size();
  sample->loss_mask.assign(length, 1.0f);
  sample->positions.resize(length);
  std::iota(sample->positions.begin(), sample->positions.end(), 0);
  // The capacity is the maximum, so that no later sample needs more.
  sample->document_starts.reserve(options_.reset_attention_mask ? length : 1);
  sample->document_starts.assign(1, 0);
  if (!options_.reset_position_ids && !options_.reset_attention_mask && !options_.eod_mask_loss)
    return;
  const auto tokens_end = sample->tokens.end();
  for (auto eod = std::find(sample->tokens.begin(), tokens_end, options_.eod); eod != tokens_end;
       eod = std::find(eod + 1, tokens_end, options_.eod)) {
    const size_t start = static_cast<size_t>(eod - sample->tokens.begin()) + 1;
    if (options_.eod_mask_loss) sample->loss_mask[start - 1] = 0.0f;
    if (start == length) break;
    if (options_.reset_position_ids)
      std::iota(sample->positions.begin() + start, sample->positions.end(), 0);
    if (options_.reset_attention_mask)
      sample->document_starts.push_back(static_cast<int32_t>(start));
  }
}

absl::StatusOr<std::unique_ptr<GptDataset>> CreateMockGptDataset(Split split,
                                                                 GptDatasetOptions options) {
  auto sequences = std::make_shared<MockSequences>(options.vocab_size, options.eod);
  options.range = SplitRange(split, {1.0 / 3, 1.0 / 3, 1.0 / 3}, sequences->num_sequences());
  return GptDataset::Create(std::move(sequences), options);
}

}  // namespace megatron
