#include "megatron/data/tokenizer/bpe/fallback_bpe_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/bpe/bpe_merger.h"
#include "megatron/data/tokenizer/byte_piece.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

// Returns the ids of "<0x00>" and so on; empty unless all of them exist.
std::vector<int32_t> FindBytePieces(const std::vector<std::string>& pieces) {
  std::vector<int32_t> ids(256, -1);
  for (size_t id = 0; id < pieces.size(); ++id) {
    const int byte = ByteOfPiece(pieces[id]);
    if (byte >= 0) ids[byte] = static_cast<int32_t>(id);
  }
  if (std::find(ids.begin(), ids.end(), -1) != ids.end()) ids.clear();
  return ids;
}

}  // namespace

absl::StatusOr<FallbackBpeModel> FallbackBpeModel::Create(std::vector<std::string> pieces,
                                                          MergeTable merges,
                                                          FallbackBpeOptions options) {
  FallbackBpeModel model;
  model.pieces_ = std::move(pieces);
  model.ids_ = MakeTokenIds(model.pieces_);
  model.merges_ = std::move(merges);
  if (!options.unk_token.empty()) {
    const auto unk = model.ids_.find(options.unk_token);
    if (unk == model.ids_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the unknown token '", options.unk_token.substr(0, 64), "' is not in the vocabulary"));
    }
    model.unk_id_ = unk->second;
  }
  if (options.byte_fallback) model.byte_ids_ = FindBytePieces(model.pieces_);
  model.options_ = std::move(options);
  return model;
}

absl::Status FallbackBpeModel::Encode(absl::string_view word, std::vector<int32_t>* ids,
                                      std::vector<TextSpan>* spans) const {
  if (word.size() >= UINT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("a text of ", word.size(), " bytes is too long: 4 GiB and more"));
  }
  Symbols symbols;
  const auto whole = options_.whole_words_first ? ids_.find(word) : ids_.end();
  const std::vector<bool>& hidden = options_.hidden;
  if (whole != ids_.end() && (hidden.empty() || !hidden[static_cast<size_t>(whole->second)])) {
    symbols = {{whole->second}, {static_cast<uint32_t>(word.size())}};
  } else {
    for (size_t at = 0; at < word.size();) {
      const size_t end = at + DecodeUtf8(word, at).length;
      MEGATRON_RETURN_IF_ERROR(AppendChar(word, at, end, &symbols));
      at = end;
    }
    symbols.ids.resize(
        BpeMerger().Merge(merges_, symbols.ids.data(), symbols.ids.size(), symbols.bytes.data()));
  }
  size_t at = 0;
  for (size_t i = 0; i < symbols.ids.size(); ++i) {
    ids->push_back(symbols.ids[i]);
    if (spans != nullptr) spans->push_back({at, at + symbols.bytes[i]});
    at += symbols.bytes[i];
  }
  return absl::OkStatus();
}

absl::Status FallbackBpeModel::AppendChar(absl::string_view word, size_t begin, size_t end,
                                          Symbols* symbols) const {
  const absl::string_view character = word.substr(begin, end - begin);
  const uint32_t length = static_cast<uint32_t>(character.size());
  const auto known = ids_.find(absl::StrCat(begin == 0 ? "" : options_.continuing_prefix, character,
                                            end == word.size() ? options_.end_of_word_suffix : ""));
  if (known != ids_.end()) {
    symbols->ids.push_back(known->second);
    symbols->bytes.push_back(length);
  } else if (!byte_ids_.empty()) {
    for (const char byte : character) {
      symbols->ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
      symbols->bytes.push_back(1);
    }
  } else if (unk_id_ < 0) {
    return absl::InvalidArgumentError(absl::StrCat("the vocabulary has no token for '",
                                                   absl::CHexEscape(character),
                                                   "', nor one for what is unknown"));
  } else if (options_.fuse_unk && !symbols->ids.empty() && symbols->ids.back() == unk_id_) {
    symbols->bytes.back() += length;
  } else {
    symbols->ids.push_back(unk_id_);
    symbols->bytes.push_back(length);
  }
  return absl::OkStatus();
}

}  // namespace megatron
