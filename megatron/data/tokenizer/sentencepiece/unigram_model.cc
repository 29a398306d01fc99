#include "megatron/data/tokenizer/sentencepiece/unigram_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/data/tokenizer/byte_piece.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

constexpr double kUnkPenalty = 10;
constexpr uint32_t kNowhere = UINT32_MAX;

std::vector<int32_t> FindBytes(const std::vector<UnigramPiece>& pieces) {
  std::vector<int32_t> ids(256, -1);
  int found = 0;
  for (size_t id = 0; id < pieces.size(); ++id) {
    const int byte = ByteOfPiece(pieces[id].text);
    if (byte < 0 || pieces[id].text != absl::StrFormat("<0x%02X>", byte)) continue;
    ids[static_cast<size_t>(byte)] = static_cast<int32_t>(id);
    ++found;
  }
  if (found < 256) ids.clear();
  return ids;
}

}  // namespace

// The best split of the text up to some byte: its sum and its last piece.
template <typename Sum>
struct UnigramModel::PathEnd {
  Sum sum = 0;
  int32_t id = -1;
  uint32_t begin = kNowhere;

  void Improve(double new_sum, int32_t new_id, size_t new_begin) {
    if (begin != kNowhere && !(new_sum > sum)) return;
    sum = static_cast<Sum>(new_sum);
    id = new_id;
    begin = static_cast<uint32_t>(new_begin);
  }
};

absl::StatusOr<UnigramModel> UnigramModel::Create(const std::vector<UnigramPiece>& pieces,
                                                  const UnigramOptions& options) {
  UnigramModel model;
  model.options_ = options;
  if (options.unk_id >= static_cast<int64_t>(pieces.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("unk_id is ", options.unk_id, ", but there are ", pieces.size(), " pieces"));
  }
  // SentencePiece starts from the smallest positive float; Hugging Face has no such bonus.
  model.max_score_ = std::numeric_limits<float>::min();
  double min_score = std::numeric_limits<double>::infinity();
  std::vector<std::pair<absl::string_view, int32_t>> entries;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const UnigramPiece& piece = pieces[i];
    if (piece.text.empty() || !std::isfinite(piece.score)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "piece ", i, " is ", piece.text.empty() ? "empty" : "scored by no finite number"));
    }
    model.scores_.push_back(piece.score);
    model.user_defined_.push_back(piece.kind == UnigramPiece::Kind::kUserDefined);
    model.has_user_defined_ |= piece.kind == UnigramPiece::Kind::kUserDefined;
    if (piece.kind == UnigramPiece::Kind::kHidden) continue;
    if (piece.kind != UnigramPiece::Kind::kSpecial)
      entries.emplace_back(piece.text, static_cast<int32_t>(i));
    if (piece.kind == UnigramPiece::Kind::kUserDefined) continue;
    min_score = std::min(min_score, piece.score);
    model.max_score_ = std::max(model.max_score_, piece.score);
  }
  std::sort(entries.begin(), entries.end());
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].first == entries[i - 1].first) {
      return absl::InvalidArgumentError(absl::StrCat("pieces ", entries[i - 1].second, " and ",
                                                     entries[i].second, " are spelled alike"));
    }
  }
  if (std::isinf(min_score)) min_score = 0;
  model.unk_score_ = min_score - kUnkPenalty;
  model.trie_ = PieceTrie(std::move(entries));
  if (options.byte_fallback) model.byte_ids_ = FindBytes(pieces);
  return model;
}

absl::Status UnigramModel::Encode(absl::string_view text, std::vector<int32_t>* ids,
                                  std::vector<TextSpan>* spans) const {
  if (text.size() >= kNowhere) {
    return absl::InvalidArgumentError(
        absl::StrCat("a text of ", text.size(), " bytes is too long: 4 GiB is the limit"));
  }
  return options_.float_sums ? EncodeWith<float>(text, ids, spans)
                             : EncodeWith<double>(text, ids, spans);
}

template <typename Sum>
absl::Status UnigramModel::EncodeWith(absl::string_view text, std::vector<int32_t>* ids,
                                      std::vector<TextSpan>* spans) const {
  struct Token {
    int32_t id;
    TextSpan span;
  };
  std::vector<PathEnd<Sum>> ends(text.size() + 1);
  FindPaths(text, &ends);
  std::vector<Token> tokens;  // last token first
  tokens.reserve(text.size() / 2 + 1);
  for (size_t end = text.size(); end > 0; end = ends[end].begin) {
    const int32_t id = ends[end].id;
    if (id == options_.unk_id && !tokens.empty() && tokens.back().id == id) {
      tokens.back().span.begin = ends[end].begin;
    } else {
      tokens.push_back({id, {ends[end].begin, end}});
    }
    if (id < 0 && byte_ids_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the character at byte ", ends[end].begin,
                       " is not in the vocabulary, which has no unknown token"));
    }
  }
  for (size_t i = tokens.size(); i-- > 0;) {
    if (tokens[i].id == options_.unk_id) {
      AppendUnknown(text, tokens[i].span, ids, spans);
    } else {
      ids->push_back(tokens[i].id);
      if (spans != nullptr) spans->push_back(tokens[i].span);
    }
  }
  return absl::OkStatus();
}

template <typename Sum>
void UnigramModel::FindPaths(absl::string_view text, std::vector<PathEnd<Sum>>* ends) const {
  for (size_t begin = 0; begin < text.size();) {
    const Sum sum = (*ends)[begin].sum;
    const size_t char_length = DecodeUtf8(text, begin).length;
    bool covered = false;
    PieceTrie::Node node = PieceTrie::kRoot;
    for (size_t i = begin; i < text.size(); ++i) {
      node = trie_.Step(node, text[i]);
      if (node == PieceTrie::kNone) break;
      const int32_t id = trie_.Value(node);
      if (id < 0) continue;
      const size_t length = i + 1 - begin;
      (*ends)[i + 1].Improve(ScoreOf<Sum>(id, length) + sum, id, begin);
      covered |= length == char_length;
    }
    if (!covered) {
      const Sum unknown = static_cast<Sum>(unk_score_) + sum;
      (*ends)[begin + char_length].Improve(unknown, options_.unk_id, begin);
    }
    begin += char_length;
  }
}

template <typename Sum>
double UnigramModel::ScoreOf(int32_t id, size_t length) const {
  const size_t i = static_cast<size_t>(id);
  if (!has_user_defined_ || !user_defined_[i]) return scores_[i];
  return static_cast<Sum>(length) * static_cast<Sum>(max_score_) - 0.1;
}

void UnigramModel::AppendUnknown(absl::string_view text, TextSpan span, std::vector<int32_t>* ids,
                                 std::vector<TextSpan>* spans) const {
  const absl::string_view unknown = text.substr(span.begin, span.end - span.begin);
  // If the unknown token is a piece like others, text may spell it.
  const bool spelled = options_.unk_id >= 0 && trie_.Find(unknown) == options_.unk_id;
  if (byte_ids_.empty() || spelled) {
    ids->push_back(options_.unk_id);
    if (spans != nullptr) spans->push_back(span);
    return;
  }
  for (size_t i = span.begin; i < span.end; ++i) {
    ids->push_back(byte_ids_[static_cast<unsigned char>(text[i])]);
    if (spans != nullptr) spans->push_back({i, i + 1});
  }
}

}  // namespace megatron
