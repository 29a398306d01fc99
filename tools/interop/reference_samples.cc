#include "tools/interop/reference_samples.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/philox.h"
#include "megatron/data/chat/chat_template.h"
#include "megatron/data/chat/conversation_dataset.h"
#include "megatron/data/chat/conversations.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"

namespace megatron {
namespace {

constexpr uint64_t kSeed = 1234;
// The vocabulary of BERT's and T5's samples: words below the first special token.
constexpr int64_t kWords = 90;
constexpr int32_t kFirst = 95, kSeparator = 96, kMask = 97;  // [CLS] or [BOS], [SEP] or [EOS]
constexpr int32_t kFirstSentinel = 90;

std::vector<int32_t> NoisySequence(int64_t sample, int64_t length, int64_t words) {
  const PhiloxKey key = DeriveKey(kSeed, kPhiloxSampling, 0, 0);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < length; ++i) {
    const PhiloxBlock random =
        Philox(key, {{static_cast<uint32_t>(sample), static_cast<uint32_t>(i), 0, 0}});
    const int64_t next = i == 0 ? random.word[0] % words : tokens.back() * 3 + random.word[0] % 4;
    tokens.push_back(static_cast<int32_t>(next % words));
  }
  return tokens;
}

// A length from 8 to 28 words.
std::vector<int32_t> Text(int64_t sample) {
  return NoisySequence(sample, 8 + 5 * sample % 21, kWords);
}

// One sequence, whose labels below zero do not count.
void Finish(Sample* sample) {
  sample->positions.resize(sample->tokens.size());
  std::iota(sample->positions.begin(), sample->positions.end(), 0);
  for (int32_t label : sample->labels) sample->loss_mask.push_back(label < 0 ? 0.0f : 1.0f);
  sample->document_starts = {0};
}

std::vector<Sample> Samples(int64_t count, Sample (*sample)(int64_t index)) {
  std::vector<Sample> samples;
  for (int64_t i = 0; i < count; ++i) {
    samples.push_back(sample(i));
    Finish(&samples.back());
  }
  return samples;
}

void AppendPiece(const int32_t* begin, const int32_t* end, int32_t type, Sample* sample) {
  sample->tokens.insert(sample->tokens.end(), begin, end);
  sample->tokens.push_back(kSeparator);
  sample->types.resize(sample->tokens.size(), type);
}

}  // namespace

std::vector<Sample> NextTokenSamples(int64_t count) {
  return Samples(count, [](int64_t index) {
    const std::vector<int32_t> text = NoisySequence(index, kReferenceLength + 1, kReferenceVocab);
    Sample sample;
    sample.tokens.assign(text.begin(), text.end() - 1);
    sample.labels.assign(text.begin() + 1, text.end());
    return sample;
  });
}

std::vector<Sample> ChatSamples(int64_t count) {
  const ByteLevelTokenizer tokenizer;
  const absl::StatusOr<ChatTemplate> form = ChatTemplate::Make("plain", tokenizer);
  CHECK(form.ok()) << form.status();
  std::vector<ChatTokens> conversations;
  for (int64_t i = 0; i < 3 * count; ++i) {
    std::vector<ChatMessage> messages;
    for (int64_t turn = 0; turn <= i % 2; ++turn) {
      const int64_t a = (7 * i + turn) % 50, b = (11 * i + 3 * turn) % 50;
      messages.push_back({"user", absl::StrCat(a, "+", b)});
      messages.push_back({"assistant", absl::StrCat(a + b)});
    }
    absl::StatusOr<ChatTokens> tokens = form->Conversation(messages);
    CHECK(tokens.ok()) << tokens.status();
    conversations.push_back(*std::move(tokens));
  }
  ConversationDatasetOptions options;
  options.range = {0, static_cast<int64_t>(conversations.size())};
  options.seq_length = kReferenceChatLength;
  options.fill_token = tokenizer.eod();
  const auto dataset =
      ConversationDataset::Create(std::make_shared<const Conversations>(Conversations::Of(
                                      conversations, {kReferenceChatLength, false})),
                                  options);
  CHECK(dataset.ok()) << dataset.status();
  std::vector<Sample> samples(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const absl::Status read = (*dataset)->Get(i, &samples[static_cast<size_t>(i)]);
    CHECK(read.ok()) << read;
  }
  return samples;
}

std::vector<Sample> MaskedSamples(int64_t count) {
  return Samples(count, [](int64_t index) {
    const std::vector<int32_t> text = Text(index);
    const int32_t *begin = text.data(), *end = begin + text.size(), *cut = begin + text.size() / 3;
    Sample sample;
    sample.sequence_class = index % 3 == 0;
    const bool swapped = sample.sequence_class == 1;
    sample.tokens = {kFirst};
    AppendPiece(swapped ? cut : begin, swapped ? end : cut, /*type=*/0, &sample);
    AppendPiece(swapped ? begin : cut, swapped ? cut : end, /*type=*/1, &sample);
    sample.labels.assign(sample.tokens.size(), -1);
    for (size_t i = 1; i < sample.tokens.size(); ++i) {
      if ((static_cast<size_t>(index) + i) % 4 != 0 || sample.tokens[i] == kSeparator) continue;
      sample.labels[i] = sample.tokens[i];
      sample.tokens[i] = kMask;
    }
    return sample;
  });
}

namespace {

// Appends a sequence of two pieces of a text, the first of which has the mark and nothing else.
void AppendSequence(int64_t text_number, int32_t mark, Sample* sample) {
  std::vector<int32_t> text = Text(text_number);
  const int32_t *begin = text.data(), *cut = begin + text.size() / 3;
  std::fill_n(text.begin(), text.size() / 3, mark);
  const auto start = static_cast<int32_t>(sample->tokens.size());
  sample->document_starts.push_back(start);
  sample->tokens.push_back(kFirst);
  AppendPiece(begin, cut, /*type=*/0, sample);
  AppendPiece(cut, begin + text.size(), /*type=*/1, sample);
  for (int32_t i = start; i < static_cast<int32_t>(sample->tokens.size()); ++i)
    sample->positions.push_back(i - start);
}

// Samples of `choices` sequences. The mark is the class, or says which sequence is the right one.
std::vector<Sample> LabelledSamples(int64_t count, int64_t choices, int32_t classes) {
  std::vector<Sample> samples(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    Sample& sample = samples[static_cast<size_t>(i)];
    const int64_t labels = choices > 1 ? choices : classes;
    sample.sequence_class = static_cast<int32_t>(i % 5 % labels);
    for (int64_t choice = 0; choice < choices; ++choice) {
      const int32_t mark = choices > 1 ? sample.sequence_class == choice : sample.sequence_class;
      AppendSequence(choices * i + choice, mark, &sample);
    }
    sample.labels.assign(sample.tokens.size(), -1);
    sample.loss_mask.assign(sample.tokens.size(), 0);
  }
  return samples;
}

}  // namespace

std::vector<Sample> ClassifiedSamples(int64_t count) {
  return LabelledSamples(count, /*choices=*/1, kReferenceClasses);
}

std::vector<Sample> ChoiceSamples(int64_t count) {
  return LabelledSamples(count, kReferenceChoices, /*classes=*/1);
}

std::vector<Sample> SpanSamples(int64_t count) {
  return Samples(count, [](int64_t index) {
    const std::vector<int32_t> text = Text(index);
    Sample sample;
    sample.tokens = {kFirst};
    int32_t span = -1;
    for (size_t i = 0; i < text.size(); ++i) {
      const size_t place = i % 8, length = 1 + (static_cast<size_t>(index) + i / 8) % 3;
      if (place < 2 || place >= 2 + length) {
        sample.encoder_tokens.push_back(text[i]);
        continue;
      }
      if (place == 2) {
        sample.encoder_tokens.push_back(kFirstSentinel + ++span);
        sample.tokens.push_back(kFirstSentinel + span);
        sample.spans.push_back(-1);
      }
      sample.tokens.push_back(text[i]);
      sample.spans.push_back(span);
    }
    sample.spans.push_back(-1);
    sample.labels.assign(sample.tokens.begin() + 1, sample.tokens.end());
    sample.labels.push_back(kSeparator);
    return sample;
  });
}

}  // namespace megatron
