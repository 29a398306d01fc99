#include "megatron/data/tokenizer/wordpiece/wordpiece_model.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

int64_t CountChars(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

}  // namespace

absl::StatusOr<WordPieceModel> WordPieceModel::Create(const std::vector<std::string>& vocabulary,
                                                      const WordPieceOptions& options) {
  WordPieceModel model;
  model.max_chars_per_word_ = options.max_chars_per_word;
  const absl::string_view prefix = options.continuing_prefix;
  std::vector<std::pair<absl::string_view, int32_t>> first, continuing;
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    const absl::string_view piece = vocabulary[i];
    const int32_t id = static_cast<int32_t>(i);
    if (piece.empty()) continue;
    if (piece == options.unk_token) model.unk_id_ = id;
    if (!options.hidden.empty() && options.hidden[i]) continue;
    first.emplace_back(piece, id);
    if (piece.size() > prefix.size() && absl::StartsWith(piece, prefix)) {
      continuing.emplace_back(piece.substr(prefix.size()), id);
    }
  }
  if (model.unk_id_ < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the vocabulary lacks the unknown token ", options.unk_token));
  }
  model.first_ = PieceTrie(std::move(first));
  model.continuing_ = PieceTrie(std::move(continuing));
  return model;
}

void WordPieceModel::Encode(absl::string_view word, std::vector<int32_t>* ids,
                            std::vector<TextSpan>* spans) const {
  if (word.empty()) return;
  const size_t old_size = ids->size();
  const size_t old_spans = spans == nullptr ? 0 : spans->size();
  const auto max_chars = static_cast<size_t>(max_chars_per_word_);
  const bool fits = word.size() <= max_chars || CountChars(word) <= max_chars_per_word_;
  if (fits && EncodePieces(word, ids, spans)) return;
  ids->resize(old_size);
  ids->push_back(unk_id_);
  if (spans == nullptr) return;
  spans->resize(old_spans);
  spans->push_back({0, word.size()});
}

bool WordPieceModel::EncodePieces(absl::string_view word, std::vector<int32_t>* ids,
                                  std::vector<TextSpan>* spans) const {
  for (size_t at = 0; at < word.size();) {
    const PieceTrie& trie = at == 0 ? first_ : continuing_;
    const PieceTrie::Match match = trie.LongestPrefix(word.substr(at));
    if (match.length == 0) return false;
    ids->push_back(match.value);
    if (spans != nullptr) spans->push_back({at, at + match.length});
    at += match.length;
  }
  return true;
}

}  // namespace megatron
