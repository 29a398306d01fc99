#include "megatron/data/masked/mock_sentences.h"

#include "glog/logging.h"
#include "megatron/data/numpy_random.h"

namespace megatron {
namespace {

constexpr int kNumDocuments = 10000;

std::vector<int32_t> WordsOf(const WordPieces& pieces) {
  const SpecialTokens& special = pieces.special;
  std::vector<bool> is_word(pieces.vocab_size(), true);
  std::vector<int32_t> ids = special.sentinels;
  ids.insert(ids.end(), {special.bos, special.eos, special.eod, special.pad, special.unk,
                         special.cls, special.sep, special.mask});
  for (const int32_t id : ids) {
    if (id >= 0) is_word[id] = false;
  }
  std::vector<int32_t> words;
  for (int32_t id = 0; id < pieces.vocab_size(); ++id) {
    if (is_word[id]) words.push_back(id);
  }
  return words;
}

}  // namespace

WordPieces MockWordPieces(int32_t vocab_size, int32_t num_sentinels) {
  WordPieces pieces;
  SpecialTokens& special = pieces.special;
  int32_t next = vocab_size - num_sentinels - 6;
  CHECK_GT(next, 0) << "a vocabulary of " << vocab_size << " tokens, " << num_sentinels
                    << " of them sentinels";
  for (int32_t* id :
       {&special.cls, &special.sep, &special.mask, &special.pad, &special.bos, &special.eos}) {
    *id = next++;
  }
  while (next < vocab_size) special.sentinels.push_back(next++);
  pieces.continues_word.assign(vocab_size, false);
  return pieces;
}

MockSentences::MockSentences(const WordPieces& pieces) : words_(WordsOf(pieces)) {
  CHECK(!words_.empty());
  NumpyGenerator generator(0);
  for (int document = 0; document < kNumDocuments; ++document) {
    const int32_t num_sentences = generator.Integer(2, 33);
    for (int32_t i = 0; i < num_sentences; ++i)
      begins_.push_back(begins_.back() + generator.Integer(4, 65));
    first_sentences_.push_back(num_sequences());
  }
}

absl::Status MockSentences::ReadTokens(int64_t i, int32_t begin, absl::Span<int32_t> out) const {
  DCHECK_LE(begin + static_cast<int64_t>(out.size()), SequenceLength(i));
  const size_t first = static_cast<size_t>(begins_[i] + begin);
  for (size_t k = 0; k < out.size(); ++k) out[k] = words_[(first + k) % words_.size()];
  return absl::OkStatus();
}

}  // namespace megatron
