#include "megatron/data/tokenizer/wordpiece/wordpiece_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/special_pieces.h"
#include "megatron/data/tokenizer/unicode.h"
#include "megatron/data/tokenizer/wordpiece/bert_normalizer.h"

namespace megatron {
namespace {

// BERT's own code has this value; Hugging Face's default for new vocabularies is 100.
constexpr int64_t kMaxCharsPerWord = 200;

// Returns `text` without the white space around it.
absl::string_view Strip(absl::string_view text) {
  const CharClasses& classes = CharClasses::Get();
  size_t begin = text.size(), end = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    if (!classes.Is(c.code_point, kWhiteSpace)) {
      begin = std::min(begin, i);
      end = i + c.length;
    }
    i += c.length;
  }
  return begin < end ? text.substr(begin, end - begin) : absl::string_view();
}

// Splits lines at "\n", "\r\n" or "\r". Text after the last line end is a line if it is not empty.
std::vector<absl::string_view> SplitLines(absl::string_view bytes) {
  std::vector<absl::string_view> lines;
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\r\n");
    lines.push_back(bytes.substr(0, end));
    if (end == absl::string_view::npos) break;
    const size_t skipped = absl::StartsWith(bytes.substr(end), "\r\n") ? 2 : 1;
    bytes.remove_prefix(end + skipped);
  }
  return lines;
}

absl::StatusOr<std::vector<std::string>> ReadVocabulary(absl::string_view bytes) {
  std::vector<std::string> pieces;
  absl::flat_hash_map<absl::string_view, size_t> lines;
  for (const absl::string_view line : SplitLines(bytes)) {
    const absl::string_view piece = Strip(line);
    if (!IsValidUtf8(piece)) {
      return absl::InvalidArgumentError(absl::StrCat("line ", pieces.size() + 1, " is not UTF-8"));
    }
    const auto inserted = lines.emplace(piece, pieces.size() + 1);
    if (!inserted.second) {
      return absl::InvalidArgumentError(absl::StrCat("lines ", inserted.first->second, " and ",
                                                     pieces.size() + 1, " are the same piece \"",
                                                     piece, "\""));
    }
    pieces.emplace_back(piece);
  }
  return pieces;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WordPieceTokenizer>> WordPieceTokenizer::Create(
    const std::string& path, const WordPieceTokenizerOptions& options) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(PosixFileSystem(), path));
  MEGATRON_ASSIGN_OR_RETURN(auto tokenizer, FromBytes(bytes, options),
                            _ << "while reading the vocabulary " << path);
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<WordPieceTokenizer>> WordPieceTokenizer::FromBytes(
    absl::string_view bytes, const WordPieceTokenizerOptions& options) {
  if (options.vocab_extra_ids < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab_extra_ids is ", options.vocab_extra_ids, ", but must not be negative"));
  }
  MEGATRON_ASSIGN_OR_RETURN(std::vector<std::string> pieces, ReadVocabulary(bytes));
  WordPieceOptions model_options;
  model_options.max_chars_per_word = kMaxCharsPerWord;
  MEGATRON_ASSIGN_OR_RETURN(WordPieceModel model, WordPieceModel::Create(pieces, model_options));
  auto tokenizer = absl::WrapUnique(
      new WordPieceTokenizer(std::move(pieces), std::move(model), options.lower_case));
  MEGATRON_RETURN_IF_ERROR(tokenizer->FindSpecialTokens(options.vocab_extra_ids));
  return tokenizer;
}

absl::Status WordPieceTokenizer::FindSpecialTokens(int32_t vocab_extra_ids) {
  SpecialPieces special(vocab_size(),
                        [this](int32_t id) { return pieces_[static_cast<size_t>(id)]; });
  for (const char* const piece : {"[CLS]", "[SEP]", "[PAD]", "[MASK]"}) {
    if (!special.Contains(piece))
      return absl::InvalidArgumentError(absl::StrCat("the vocabulary lacks ", piece));
  }
  special_.unk = special.Add("[UNK]");
  special_.cls = special.Add("[CLS]");
  special_.sep = special.Add("[SEP]");
  special_.pad = special.Add("[PAD]");
  special_.mask = special.Add("[MASK]");
  special_.bos = special.Add("[BOS]");
  special_.eos = special_.eod = special.Add("[EOS]");
  special_.sentinels = special.AddSentinels(vocab_extra_ids);
  pieces_.insert(pieces_.end(), special.added().begin(), special.added().end());
  special_texts_ = AddedTokens(special.tokens());
  return absl::OkStatus();
}

absl::Status WordPieceTokenizer::DoEncode(absl::string_view text, const EncodeOptions& options,
                                          std::vector<int32_t>* ids) const {
  for (const AddedTokens::Section& section : special_texts_.Split(text, options.parse_special)) {
    if (section.id >= 0) {
      ids->push_back(section.id);
      if (options.spans != nullptr) options.spans->push_back(section.span);
    } else {
      EncodeSection(text.substr(section.span.begin, section.span.end - section.span.begin),
                    section.span.begin, ids, options.spans);
    }
  }
  return absl::OkStatus();
}

// `text` begins at `begin` of the whole text. A span ends with the last character that is part of
// the result.
void WordPieceTokenizer::EncodeSection(absl::string_view text, size_t begin,
                                       std::vector<int32_t>* ids,
                                       std::vector<TextSpan>* spans) const {
  BertNormalizerOptions options;
  options.strip_accents = options.lowercase = lower_case_;
  options.dialect = BertDialect::kMegatron;
  std::vector<size_t> origins;
  const std::string normalized =
      NormalizeBert(text, options, spans == nullptr ? nullptr : &origins);
  for (const TextSpan& word : SplitBertWords(normalized)) {
    const size_t first = spans == nullptr ? 0 : spans->size();
    model_.Encode(absl::string_view(normalized).substr(word.begin, word.end - word.begin), ids,
                  spans);
    if (spans == nullptr) continue;
    for (size_t i = first; i < spans->size(); ++i) {
      TextSpan& span = (*spans)[i];
      const size_t last = origins[word.begin + span.end - 1];
      span = {begin + origins[word.begin + span.begin],
              begin + last + DecodeUtf8(text, last).length};
    }
  }
}

std::string WordPieceTokenizer::Decode(absl::Span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    const bool known = id >= 0 && id < vocab_size();
    absl::StrAppend(&text, " ", known ? pieces_[static_cast<size_t>(id)] : "\ufffd");
  }
  absl::StrReplaceAll({{" ##", ""}}, &text);
  text = std::string(Strip(text));
  const std::pair<absl::string_view, absl::string_view> replacements[] = {
      {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
      {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& replacement : replacements) absl::StrReplaceAll({replacement}, &text);
  return text;
}

std::string WordPieceTokenizer::Piece(int32_t id) const {
  return id < 0 || id >= vocab_size() ? "" : pieces_[static_cast<size_t>(id)];
}

}  // namespace megatron
