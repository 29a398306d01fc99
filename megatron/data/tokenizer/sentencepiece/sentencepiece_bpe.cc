#include "megatron/data/tokenizer/sentencepiece/sentencepiece_bpe.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "megatron/data/tokenizer/bpe/bpe_merger.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

using Kind = SentencePieceModel::Kind;
using Entries = std::vector<std::pair<absl::string_view, int32_t>>;

constexpr char32_t kSpace = 0x2581;

struct Pair {
  int32_t left, right;
  BpeMerge merge;
};

bool Merges(Kind kind) { return kind == Kind::kNormal || kind == Kind::kUserDefined; }

// Returns the ranks of scores: the greatest has rank 0, equal ones the same.
std::vector<uint32_t> RankScores(const std::vector<SentencePieceModel::Piece>& pieces) {
  std::vector<float> scores;
  for (const SentencePieceModel::Piece& piece : pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<uint32_t> ranks;
  for (const SentencePieceModel::Piece& piece : pieces) {
    const auto at = std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>());
    ranks.push_back(static_cast<uint32_t>(at - scores.begin()));
  }
  return ranks;
}

// Returns, by length in bytes, the symbol with which `piece` begins; -1 if there is none.
std::vector<int32_t> FindPrefixes(const PieceTrie& trie, absl::string_view piece) {
  std::vector<int32_t> prefixes(piece.size() + 1, -1);
  PieceTrie::Node node = PieceTrie::kRoot;
  for (size_t i = 0; i < piece.size(); ++i) {
    node = trie.Step(node, piece[i]);
    if (node == PieceTrie::kNone) break;
    prefixes[i + 1] = trie.Value(node);
  }
  return prefixes;
}

std::string Reversed(absl::string_view text) { return std::string(text.rbegin(), text.rend()); }

}  // namespace

struct SentencePieceBpe::Work {
  BpeMerger merger;
  std::vector<int32_t> symbols;
  std::vector<int32_t>* ids;
  std::vector<TextSpan>* spans;
  bool after_unknown = false;  // the last id is the unknown piece
};

absl::StatusOr<SentencePieceBpe> SentencePieceBpe::Create(const SentencePieceModel& model) {
  SentencePieceBpe bpe;
  bpe.num_pieces_ = static_cast<int32_t>(model.pieces.size());
  bpe.unk_id_ = model.unk_id;
  bpe.byte_ids_ = model.byte_ids;
  Entries user_defined;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    bpe.lengths_.push_back(piece.text.size());
    if (piece.kind == Kind::kUnused) {
      return absl::UnimplementedError(
          absl::StrCat("piece ", id, " is marked as unused, which isn't supported in BPE models"));
    }
    if (piece.kind == Kind::kUserDefined) {
      user_defined.emplace_back(piece.text, static_cast<int32_t>(id));
    }
  }
  bpe.user_defined_ = PieceTrie(std::move(user_defined));
  bpe.AddCharacters(model);
  bpe.AddMerges(model);
  return bpe;
}

void SentencePieceBpe::AddCharacters(const SentencePieceModel& model) {
  absl::flat_hash_map<absl::string_view, int32_t> symbols;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const absl::string_view piece = model.pieces[id].text;
    if (Merges(model.pieces[id].kind) && DecodeUtf8(piece, 0).length == piece.size()) {
      symbols.emplace(piece, static_cast<int32_t>(id));
    }
  }
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (!Merges(piece.kind)) continue;
    char32_t before = 0;
    for (size_t i = 0; i < piece.text.size();) {
      const Utf8Char c = DecodeUtf8(piece.text, i);
      const absl::string_view text = absl::string_view(piece.text).substr(i, c.length);
      if (symbols.emplace(text, static_cast<int32_t>(lengths_.size())).second) {
        lengths_.push_back(c.length);
      }
      if (i > 0 && c.code_point == kSpace) before_space_.insert(before);
      before = c.code_point;
      i += c.length;
    }
  }
  characters_ = PieceTrie(Entries(symbols.begin(), symbols.end()));
  for (size_t i = 0; i < ascii_.size(); ++i) {
    const char c = static_cast<char>(i);
    const int32_t symbol = characters_.Find(absl::string_view(&c, 1));
    ascii_[i] = symbol >= 0 ? symbol : -1;
  }
}

// Both halves of every split of a piece are looked up at once, in a trie of the symbols and one of
// the reversed symbols. Separate look-ups would take quadratic time for an adversarial vocabulary.
void SentencePieceBpe::AddMerges(const SentencePieceModel& model) {
  std::vector<std::string> texts(lengths_.size());
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (Merges(model.pieces[id].kind)) texts[id] = model.pieces[id].text;
  }
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    for (size_t i = 0; i < piece.text.size();) {
      const size_t length = DecodeUtf8(piece.text, i).length;
      const absl::string_view text = absl::string_view(piece.text).substr(i, length);
      const int32_t symbol = characters_.Find(text);
      if (symbol >= num_pieces_) texts[static_cast<size_t>(symbol)] = std::string(text);
      i += length;
    }
  }
  Entries entries, reversed_entries;
  std::vector<std::string> reversed;
  for (const std::string& text : texts) reversed.push_back(Reversed(text));
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) continue;
    entries.emplace_back(texts[i], static_cast<int32_t>(i));
    reversed_entries.emplace_back(reversed[i], static_cast<int32_t>(i));
  }
  const PieceTrie symbols(std::move(entries));
  const PieceTrie reversed_symbols(std::move(reversed_entries));
  const std::vector<uint32_t> ranks = RankScores(model.pieces);
  std::vector<Pair> pairs;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (texts[id].empty()) continue;
    const std::vector<int32_t> lefts = FindPrefixes(symbols, texts[id]);
    const std::vector<int32_t> rights = FindPrefixes(reversed_symbols, reversed[id]);
    for (size_t cut = 1; cut < texts[id].size(); ++cut) {
      const int32_t left = lefts[cut], right = rights[texts[id].size() - cut];
      if (left < 0 || right < 0) continue;
      pairs.push_back({left, right, {ranks[id], static_cast<int32_t>(id)}});
    }
  }
  merges_ = MergeTable(pairs.size());
  for (const Pair& pair : pairs) merges_.Insert(pair.left, pair.right, pair.merge);
}

int32_t SentencePieceBpe::SymbolOf(absl::string_view character) const {
  const auto first = static_cast<unsigned char>(character[0]);
  if (first < 128) return ascii_[first];
  const int32_t symbol = characters_.Find(character);
  return symbol >= 0 ? symbol : -static_cast<int32_t>(character.size());
}

size_t SentencePieceBpe::LengthOf(int32_t symbol) const {
  return symbol < 0 ? static_cast<size_t>(-symbol) : lengths_[static_cast<size_t>(symbol)];
}

absl::Status SentencePieceBpe::Encode(absl::string_view text, std::vector<int32_t>* ids,
                                      std::vector<TextSpan>* spans) const {
  if (text.size() >= UINT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("a text of ", text.size(), " bytes is too long: 4 GiB is the limit"));
  }
  Work work;
  work.ids = ids;
  work.spans = spans;
  char32_t before = 0;
  for (size_t at = 0; at < text.size();) {
    const PieceTrie::Match symbol =
        user_defined_.empty() ? PieceTrie::Match() : user_defined_.LongestPrefix(text.substr(at));
    if (symbol.length > 0) {
      MergeAndAppend(text, at, &work);
      ids->push_back(symbol.value);
      if (spans != nullptr) spans->push_back({at, at + symbol.length});
      work.after_unknown = false;
      at += symbol.length;
      continue;
    }
    const Utf8Char c = DecodeUtf8(text, at);
    if (c.code_point == kSpace && !MayMergeWithSpace(before)) MergeAndAppend(text, at, &work);
    work.symbols.push_back(SymbolOf(text.substr(at, c.length)));
    before = c.code_point;
    at += c.length;
  }
  MergeAndAppend(text, text.size(), &work);
  return absl::OkStatus();
}

// work->symbols are those of the text up to `end`.
void SentencePieceBpe::MergeAndAppend(absl::string_view text, size_t end, Work* work) const {
  size_t at = end;
  for (const int32_t symbol : work->symbols) at -= LengthOf(symbol);
  work->symbols.resize(work->merger.Merge(merges_, work->symbols.data(), work->symbols.size()));
  for (const int32_t symbol : work->symbols) {
    const size_t length = LengthOf(symbol);
    if (symbol < 0 || symbol >= num_pieces_) {
      AppendUnknown(text, at, length, work);
    } else {
      work->ids->push_back(symbol);
      if (work->spans != nullptr) work->spans->push_back({at, at + length});
      work->after_unknown = false;
    }
    at += length;
  }
  work->symbols.clear();
}

void SentencePieceBpe::AppendUnknown(absl::string_view text, size_t at, size_t length,
                                     Work* work) const {
  if (!byte_ids_.empty()) {
    for (size_t i = at; i < at + length; ++i) {
      work->ids->push_back(byte_ids_[static_cast<unsigned char>(text[i])]);
      if (work->spans != nullptr) work->spans->push_back({i, i + 1});
    }
    return;
  }
  if (!work->after_unknown) {
    work->ids->push_back(unk_id_);
    if (work->spans != nullptr) work->spans->push_back({at, at});
  }
  if (work->spans != nullptr) work->spans->back().end = at + length;
  work->after_unknown = true;
}

}  // namespace megatron
