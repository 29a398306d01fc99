#include "megatron/data/tokenizer/null_tokenizer.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"

namespace megatron {

NullTokenizer::NullTokenizer(int32_t vocab_size, int32_t eod, int32_t pad)
    : vocab_size_(vocab_size) {
  CHECK_GE(vocab_size, 1);
  CHECK_LT(eod, vocab_size);
  CHECK_LT(pad, vocab_size);
  special_.eod = special_.eos = eod < 0 ? vocab_size - 1 : eod;
  special_.pad = pad;
}

absl::Status NullTokenizer::DoEncode(absl::string_view text, const EncodeOptions& options,
                                     std::vector<int32_t>* ids) const {
  const size_t old_size = ids->size();
  std::vector<TextSpan> spans;
  for (absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \t\n\v\f\r"), absl::SkipEmpty())) {
    int32_t id;
    if (!absl::SimpleAtoi(word, &id) || id < 0 || id >= vocab_size_) {
      ids->resize(old_size);
      return absl::InvalidArgumentError(
          absl::StrCat("'", word.substr(0, 32), "' is no token id below ", vocab_size_));
    }
    ids->push_back(id);
    const size_t begin = word.data() - text.data();
    if (options.spans != nullptr) spans.push_back({begin, begin + word.size()});
  }
  if (options.spans != nullptr) {
    options.spans->insert(options.spans->end(), spans.begin(), spans.end());
  }
  return absl::OkStatus();
}

std::string NullTokenizer::Decode(absl::Span<const int32_t> ids) const {
  return absl::StrJoin(ids, " ");
}

std::string NullTokenizer::Piece(int32_t id) const {
  return 0 <= id && id < vocab_size_ ? absl::StrCat(id) : std::string();
}

}  // namespace megatron
