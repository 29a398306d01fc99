#include "megatron/data/masked/sentence_samples.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

absl::Status Check(const SentenceSampleOptions& options) {
  if (options.max_length < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("samples of at most ", options.max_length, " tokens of text; 2 is the least"));
  }
  if (!(options.short_sequence_probability >= 0 && options.short_sequence_probability <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("short_seq_prob ", options.short_sequence_probability, " is not in [0, 1]"));
  }
  if (options.num_samples.value_or(0) < 0) {
    return absl::InvalidArgumentError(absl::StrCat(*options.num_samples, " samples"));
  }
  return absl::OkStatus();
}

class SampleBuilder {
 public:
  SampleBuilder(const SentenceSampleOptions& options, absl::FunctionRef<int32_t(int64_t)> length)
      : options_(options), length_(length), random_(options.seed) {
    if (options.short_sequence_probability > 0) {
      short_ratio_ = static_cast<int64_t>(std::round(1 / options.short_sequence_probability));
    }
  }

  void AddDocument(int64_t begin, int64_t end) {
    if (!Usable(begin, end)) return;
    int64_t first = begin;
    int64_t tokens = 0;
    int32_t target = DrawTargetLength();
    for (int64_t i = begin; i < end; ++i) {
      tokens += length_(i);
      const int64_t left = end - i - 1;
      // A single remaining sentence joins the sample before it.
      const bool full = tokens >= target && left > 1 && i + 1 - first >= options_.min_sentences;
      if (!full && left > 0) continue;
      CHECK_LE(i + 1 - first, std::numeric_limits<int32_t>::max());
      samples_.push_back({first, static_cast<int32_t>(i + 1 - first), target});
      first = i + 1;
      tokens = 0;
      // The length is drawn after the last sample too, as in Megatron, although nothing uses it.
      target = DrawTargetLength();
    }
  }

  int64_t size() const { return static_cast<int64_t>(samples_.size()); }

  std::vector<SentenceSample> TakeShuffled() {
    std::mt19937_64 random(uint64_t{options_.seed} + 1);
    for (size_t i = samples_.size(); i-- > 1;) std::swap(samples_[i], samples_[random() % (i + 1)]);
    return std::move(samples_);
  }

 private:
  bool Usable(int64_t begin, int64_t end) const {
    if (end - begin < std::max(options_.min_sentences, 1)) return false;
    if (end - begin == 1) return true;
    for (int64_t i = begin; i < end; ++i) {
      if (length_(i) > kLongSentence) return false;
    }
    return true;
  }

  int32_t DrawTargetLength() {
    if (short_ratio_ == 0) return options_.max_length;
    const int64_t drawn = static_cast<int64_t>(random_());
    if (drawn % short_ratio_ != 0) return options_.max_length;
    return static_cast<int32_t>(2 + drawn % (options_.max_length - 1));
  }

  const SentenceSampleOptions& options_;
  const absl::FunctionRef<int32_t(int64_t)> length_;
  std::mt19937 random_;
  int64_t short_ratio_ = 0;
  std::vector<SentenceSample> samples_;
};

}  // namespace

absl::StatusOr<std::vector<SentenceSample>> BuildSentenceSamples(
    const SentenceSampleOptions& options, DocumentSentences document,
    absl::FunctionRef<int32_t(int64_t sentence)> length) {
  MEGATRON_RETURN_IF_ERROR(Check(options));
  SampleBuilder builder(options, length);
  do {
    const int64_t size_before = builder.size();
    for (int64_t i = options.documents.begin; i < options.documents.end; ++i) {
      const std::pair<int64_t, int64_t> sentences = document(i);
      builder.AddDocument(sentences.first, sentences.second);
    }
    if (builder.size() == size_before) {
      return absl::InvalidArgumentError(
          absl::StrCat("none of ", options.documents.size(), " documents has at least ",
                       options.min_sentences, " sentences, none of them longer than ",
                       kLongSentence, " tokens; was the text split into sentences?"));
    }
  } while (builder.size() < options.num_samples.value_or(0));
  return builder.TakeShuffled();
}

absl::Status ReadSentences(const TokenSequences& corpus, int64_t first_sentence, int64_t begin,
                           absl::Span<int32_t> out) {
  for (int64_t i = first_sentence; !out.empty(); ++i) {
    const int64_t length = corpus.SequenceLength(i);
    if (begin < length) {
      const size_t count = std::min(static_cast<size_t>(length - begin), out.size());
      MEGATRON_RETURN_IF_ERROR(corpus.ReadTokens(i, static_cast<int32_t>(begin), out.first(count)));
      out.remove_prefix(count);
    }
    begin = std::max<int64_t>(begin - length, 0);
  }
  return absl::OkStatus();
}

absl::Status CheckSpecialTokens(
    absl::string_view model, int32_t vocab_size,
    std::initializer_list<std::pair<int32_t, absl::string_view>> tokens) {
  for (const auto& [id, name] : tokens) {
    if (id >= 0 && id < vocab_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(model, " needs the token ", name, ", which the tokenizer does not have"));
  }
  return absl::OkStatus();
}

absl::Status CheckSampleIndex(int64_t index, int64_t size) {
  if (index >= 0 && index < size) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("sample ", index, " does not exist; the dataset has ", size, " samples"));
}

absl::Status CheckSentenceTokens(absl::Span<const int32_t> tokens, int32_t vocab_size,
                                 int64_t index) {
  const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                [&](int32_t token) { return token < 0 || token >= vocab_size; });
  if (bad == tokens.end()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "token ", *bad, " at position ", bad - tokens.begin(), " of the text of sample ", index,
      " is outside the vocabulary of ", vocab_size, "; was the data made with another tokenizer?"));
}

}  // namespace megatron
