#include "megatron/data/chat/conversation_dataset.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "megatron/data/numpy_random.h"

namespace megatron {
namespace {

// The number of samples that are filled at a time. Those before them are full enough.
constexpr size_t kOpenSamples = 64;

// Returns the conversations of each sample.
std::vector<std::vector<int64_t>> PackSamples(const Conversations& conversations,
                                              const ConversationDatasetOptions& options) {
  std::vector<int64_t> order(static_cast<size_t>(options.range.size()));
  std::iota(order.begin(), order.end(), options.range.begin);
  NumpyRandomState(options.seed).Shuffle(absl::MakeSpan(order));
  std::vector<std::vector<int64_t>> samples;
  std::vector<int64_t> room;  // the positions that are left of each sample
  for (const int64_t i : order) {
    const int64_t length = static_cast<int64_t>(conversations.Get(i).tokens.size()) - 1;
    CHECK_LE(length, options.seq_length);
    size_t place = samples.size() - std::min(samples.size(), kOpenSamples);
    while (place < samples.size() && room[place] < length) ++place;
    if (place == samples.size()) {
      samples.emplace_back();
      room.push_back(options.seq_length);
    }
    samples[place].push_back(i);
    room[place] -= length;
  }
  return samples;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConversationDataset>> ConversationDataset::Create(
    std::shared_ptr<const Conversations> conversations, const ConversationDatasetOptions& options) {
  const SequenceRange range = options.range;
  CHECK(0 <= range.begin && range.begin <= range.end && range.end <= conversations->size());
  if (range.size() == 0) return absl::InvalidArgumentError("there is no conversation");
  std::vector<std::vector<int64_t>> members = PackSamples(*conversations, options);
  return std::unique_ptr<ConversationDataset>(
      new ConversationDataset(std::move(conversations), options, std::move(members)));
}

ConversationDataset::ConversationDataset(std::shared_ptr<const Conversations> conversations,
                                         const ConversationDatasetOptions& options,
                                         std::vector<std::vector<int64_t>> members)
    : conversations_(std::move(conversations)),
      options_(options),
      members_(std::move(members)),
      order_(samples_of_epoch(), options.seed),
      size_(std::max(samples_of_epoch(), options.num_samples.value_or(0))) {}

absl::Status ConversationDataset::Get(int64_t index, Sample* sample) const {
  if (index < 0 || index >= size_) {
    return absl::OutOfRangeError(
        absl::StrCat("sample ", index, " does not exist; the dataset has ", size_, " samples"));
  }
  const size_t length = static_cast<size_t>(options_.seq_length);
  sample->tokens.assign(length, options_.fill_token);
  sample->labels.assign(length, options_.fill_token);
  sample->loss_mask.assign(length, 0.0f);
  sample->positions.resize(length);
  sample->document_starts.reserve(length);  // the most, so that no later sample needs more
  sample->document_starts.clear();
  size_t begin = 0;
  for (const int64_t i : members_[order_.SampleOf(index)]) {
    const Conversations::View conversation = conversations_->Get(i);
    const auto tokens = conversation.tokens;
    std::copy(tokens.begin(), tokens.end() - 1, sample->tokens.begin() + begin);
    std::copy(tokens.begin() + 1, tokens.end(), sample->labels.begin() + begin);
    // An answer's token is predicted from the one before it.
    for (const ChatTokens::Range& answer : conversation.answers) {
      std::fill(sample->loss_mask.begin() + begin + answer.begin - 1,
                sample->loss_mask.begin() + begin + answer.end - 1, 1.0f);
    }
    std::iota(sample->positions.begin() + begin,
              sample->positions.begin() + begin + tokens.size() - 1, 0);
    sample->document_starts.push_back(static_cast<int32_t>(begin));
    begin += tokens.size() - 1;
  }
  if (begin == length) return absl::OkStatus();
  std::iota(sample->positions.begin() + begin, sample->positions.end(), 0);
  sample->document_starts.push_back(static_cast<int32_t>(begin));
  return absl::OkStatus();
}

}  // namespace megatron
