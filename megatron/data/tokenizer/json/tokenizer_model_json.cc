#include "megatron/data/tokenizer/json/tokenizer_model_json.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/bpe/bpe_vocabulary.h"
#include "megatron/data/tokenizer/bpe/byte_level_alphabet.h"
#include "megatron/data/tokenizer/bpe/byte_level_bpe.h"
#include "megatron/data/tokenizer/bpe/byte_level_model.h"
#include "megatron/data/tokenizer/bpe/fallback_bpe_model.h"
#include "megatron/data/tokenizer/json/json_reader.h"
#include "megatron/data/tokenizer/pipeline/word_model.h"
#include "megatron/data/tokenizer/sentencepiece/unigram_model.h"
#include "megatron/data/tokenizer/unicode.h"
#include "megatron/data/tokenizer/wordpiece/wordpiece_model.h"

namespace megatron {
namespace {

using nlohmann::json;

absl::StatusOr<std::vector<std::string>> PiecesOf(const json& model) {
  const json& vocabulary = JsonMember(model, "vocab");
  MEGATRON_ASSIGN_OR_RETURN(std::vector<std::string> pieces,
                            JsonVocabulary(vocabulary, MaxVocabularySize(vocabulary.size())),
                            _ << "in the model's 'vocab'");
  return pieces;
}

absl::StatusOr<std::vector<std::string>> ScoredPiecesOf(const json& model) {
  const json& vocabulary = JsonMember(model, "vocab");
  if (!vocabulary.is_array()) return absl::InvalidArgumentError("the model's 'vocab' is no list");
  std::vector<std::string> pieces;
  for (const json& entry : vocabulary) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      return absl::InvalidArgumentError(
          absl::StrCat("entry ", pieces.size(), " of the model's 'vocab' is no token and score"));
    }
    pieces.push_back(entry[0].get_ref<const std::string&>());
  }
  return pieces;
}

// Returns which of the model's ids plain text never becomes.
std::vector<bool> HiddenIds(const std::vector<AddedToken>& added, size_t num_pieces) {
  std::vector<bool> hidden(num_pieces);
  for (const AddedToken& token : added) {
    const size_t id = static_cast<size_t>(token.id);
    const bool is_character = DecodeUtf8(token.content, 0).length == token.content.size();
    if (token.special && !is_character && id < num_pieces) hidden[id] = true;
  }
  return hidden;
}

// Reads the merges as views of `model`. Newer files have pairs, older ones strings with a space
// between.
absl::StatusOr<std::vector<TokenPair>> MergesOf(const json& model) {
  const json& list = JsonMember(model, "merges");
  if (!list.is_array()) return absl::InvalidArgumentError("the model's 'merges' is no list");
  std::vector<TokenPair> merges;
  for (const json& merge : list) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      merges.emplace_back(merge[0].get_ref<const std::string&>(),
                          merge[1].get_ref<const std::string&>());
      continue;
    }
    const absl::string_view text =
        merge.is_string() ? merge.get_ref<const std::string&>() : absl::string_view();
    const std::vector<absl::string_view> halves = absl::StrSplit(text, ' ');
    if (halves.size() != 2 || halves[0].empty() || halves[1].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", merges.size(), " of the model is no pair of tokens"));
    }
    merges.emplace_back(halves[0], halves[1]);
  }
  return merges;
}

absl::StatusOr<FallbackBpeOptions> BpeOptionsOf(const json& model) {
  FallbackBpeOptions options;
  MEGATRON_ASSIGN_OR_RETURN(options.unk_token, JsonString(model, "unk_token"));
  MEGATRON_ASSIGN_OR_RETURN(options.fuse_unk, JsonBool(model, "fuse_unk", false));
  MEGATRON_ASSIGN_OR_RETURN(options.byte_fallback, JsonBool(model, "byte_fallback", false));
  MEGATRON_ASSIGN_OR_RETURN(options.whole_words_first, JsonBool(model, "ignore_merges", false));
  MEGATRON_ASSIGN_OR_RETURN(options.continuing_prefix,
                            JsonString(model, "continuing_subword_prefix"));
  MEGATRON_ASSIGN_OR_RETURN(options.end_of_word_suffix, JsonString(model, "end_of_word_suffix"));
  const json& dropout = JsonMember(model, "dropout");
  if (!dropout.is_null() && dropout != 0) {
    return absl::InvalidArgumentError("the model's 'dropout' would make encoding random");
  }
  return options;
}

absl::StatusOr<std::unique_ptr<TextModel>> ByteLevelFrom(const std::vector<std::string>& pieces,
                                                         MergeTable merges,
                                                         const FallbackBpeOptions& options,
                                                         ByteLevelSplit split) {
  if (!options.continuing_prefix.empty() || !options.end_of_word_suffix.empty()) {
    return absl::InvalidArgumentError("a byte-level model with prefixes or suffixes of words");
  }
  ByteLevelVocabulary bytes;
  bytes.merges = std::move(merges);
  bytes.whole_pieces_first = options.whole_words_first;
  bytes.tokens.resize(pieces.size());
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (!options.hidden[id]) AppendSpelledBytes(pieces[id], &bytes.tokens[id]);
    if (pieces[id] == options.unk_token) bytes.unk = static_cast<int32_t>(id);
  }
  return std::make_unique<ByteLevelModel>(std::make_unique<ByteLevelBpe>(std::move(bytes)),
                                          std::move(split));
}

absl::StatusOr<std::unique_ptr<TextModel>> BpeFromJson(const json& description,
                                                       std::vector<std::string> pieces,
                                                       PreTokenizer pre_tokenizer,
                                                       std::vector<bool> hidden) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<TokenPair> merges, MergesOf(description));
  MEGATRON_ASSIGN_OR_RETURN(FallbackBpeOptions options, BpeOptionsOf(description));
  options.hidden = std::move(hidden);
  MEGATRON_ASSIGN_OR_RETURN(MergeTable table,
                            ResolveMerges(merges, MakeTokenIds(pieces), options.continuing_prefix));
  if (pre_tokenizer.byte_level)
    return ByteLevelFrom(pieces, std::move(table), options, std::move(pre_tokenizer.split));
  MEGATRON_ASSIGN_OR_RETURN(
      FallbackBpeModel model,
      FallbackBpeModel::Create(std::move(pieces), std::move(table), std::move(options)));
  const auto shared = std::make_shared<const FallbackBpeModel>(std::move(model));
  return std::make_unique<WordModel>(
      std::move(pre_tokenizer.words),
      [shared](absl::string_view word, std::vector<int32_t>* ids, std::vector<TextSpan>* spans) {
        return shared->Encode(word, ids, spans);
      });
}

absl::StatusOr<std::unique_ptr<TextModel>> WordPieceFromJson(const json& description,
                                                             const std::vector<std::string>& pieces,
                                                             PreTokenizer pre_tokenizer,
                                                             std::vector<bool> hidden) {
  WordPieceOptions options;
  options.hidden = std::move(hidden);
  MEGATRON_ASSIGN_OR_RETURN(options.unk_token, JsonString(description, "unk_token", "[UNK]"));
  MEGATRON_ASSIGN_OR_RETURN(options.continuing_prefix,
                            JsonString(description, "continuing_subword_prefix", "##"));
  MEGATRON_ASSIGN_OR_RETURN(options.max_chars_per_word,
                            JsonInt(description, "max_input_chars_per_word", 100));
  if (options.max_chars_per_word < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's 'max_input_chars_per_word' is ", options.max_chars_per_word));
  }
  MEGATRON_ASSIGN_OR_RETURN(WordPieceModel model, WordPieceModel::Create(pieces, options));
  const auto shared = std::make_shared<const WordPieceModel>(std::move(model));
  return std::make_unique<WordModel>(
      std::move(pre_tokenizer.words),
      [shared](absl::string_view word, std::vector<int32_t>* ids, std::vector<TextSpan>* spans) {
        shared->Encode(word, ids, spans);
        return absl::OkStatus();
      });
}

absl::StatusOr<std::unique_ptr<TextModel>> UnigramFromJson(const json& description,
                                                           std::vector<std::string> texts,
                                                           PreTokenizer pre_tokenizer,
                                                           const std::vector<bool>& hidden) {
  const json& vocabulary = JsonMember(description, "vocab");
  std::vector<UnigramPiece> pieces;
  for (size_t id = 0; id < texts.size(); ++id) {
    pieces.push_back({std::move(texts[id]), vocabulary[id][1].get<double>(),
                      hidden[id] ? UnigramPiece::Kind::kSpecial : UnigramPiece::Kind::kNormal});
  }
  UnigramOptions options;
  MEGATRON_ASSIGN_OR_RETURN(const int64_t unk, JsonInt(description, "unk_id", -1));
  if (unk < -1 || unk >= static_cast<int64_t>(pieces.size())) {
    return absl::InvalidArgumentError(absl::StrCat("the model's 'unk_id' ", unk, " is no token"));
  }
  options.unk_id = static_cast<int32_t>(unk);
  if (unk >= 0) pieces[static_cast<size_t>(unk)].kind = UnigramPiece::Kind::kNormal;
  MEGATRON_ASSIGN_OR_RETURN(options.byte_fallback, JsonBool(description, "byte_fallback", false));
  MEGATRON_ASSIGN_OR_RETURN(UnigramModel model, UnigramModel::Create(pieces, options));
  const auto shared = std::make_shared<const UnigramModel>(std::move(model));
  return std::make_unique<WordModel>(
      std::move(pre_tokenizer.words),
      [shared](absl::string_view word, std::vector<int32_t>* ids, std::vector<TextSpan>* spans) {
        return shared->Encode(word, ids, spans);
      });
}

// Guesses the type of models in old files, which do not state it.
std::string GuessType(const json& description) {
  if (JsonMember(description, "vocab").is_array()) return "Unigram";
  return JsonMember(description, "merges").is_null() ? "WordPiece" : "BPE";
}

absl::StatusOr<std::string> TypeOf(const json& description) {
  MEGATRON_ASSIGN_OR_RETURN(std::string type, JsonString(description, "type"));
  return type.empty() ? GuessType(description) : type;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> VocabularyFromJson(const json& description) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string type, TypeOf(description));
  return type == "Unigram" ? ScoredPiecesOf(description) : PiecesOf(description);
}

absl::StatusOr<std::unique_ptr<TextModel>> ModelFromJson(const json& description,
                                                         std::vector<std::string> pieces,
                                                         PreTokenizer pre_tokenizer,
                                                         const std::vector<AddedToken>& added) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string type, TypeOf(description));
  std::vector<bool> hidden = HiddenIds(added, pieces.size());
  if (type == "BPE") {
    return BpeFromJson(description, std::move(pieces), std::move(pre_tokenizer), std::move(hidden));
  }
  if (pre_tokenizer.byte_level) {
    return absl::InvalidArgumentError(
        absl::StrCat("a byte-level pre-tokenizer with a model of type ", type.substr(0, 64)));
  }
  if (type == "WordPiece")
    return WordPieceFromJson(description, pieces, std::move(pre_tokenizer), std::move(hidden));
  if (type == "Unigram")
    return UnigramFromJson(description, std::move(pieces), std::move(pre_tokenizer), hidden);
  return absl::InvalidArgumentError(absl::StrCat(
      "there are models of type BPE, WordPiece and Unigram, not '", type.substr(0, 64), "'"));
}

}  // namespace megatron
