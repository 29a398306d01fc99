#include "megatron/data/tokenizer/sentencepiece/sentencepiece_tokenizer.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/byte_piece.h"
#include "megatron/data/tokenizer/sentencepiece/precompiled_charsmap.h"
#include "megatron/data/tokenizer/special_pieces.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

using Kind = SentencePieceModel::Kind;
using Type = SentencePieceModel::Type;

UnigramPiece::Kind UnigramKind(Kind kind) {
  if (kind == Kind::kNormal) return UnigramPiece::Kind::kNormal;
  if (kind == Kind::kUserDefined) return UnigramPiece::Kind::kUserDefined;
  return UnigramPiece::Kind::kHidden;
}

absl::StatusOr<UnigramModel> CreateUnigram(const SentencePieceModel& model) {
  std::vector<UnigramPiece> pieces;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    pieces.push_back({piece.text, piece.score, UnigramKind(piece.kind)});
  }
  UnigramOptions options;
  options.unk_id = model.unk_id;
  options.byte_fallback = model.byte_fallback;
  options.float_sums = true;
  return UnigramModel::Create(pieces, options);
}

absl::StatusOr<std::variant<UnigramModel, SentencePieceBpe>> CreateEncoder(
    const SentencePieceModel& model) {
  switch (model.type) {
    case Type::kUnigram:
      return CreateUnigram(model);
    case Type::kBpe:
      return SentencePieceBpe::Create(model);
    case Type::kWord:
    case Type::kChar:
      break;
  }
  return absl::UnimplementedError(
      absl::StrCat(model.type == Type::kWord ? "word" : "character",
                   " models aren't supported, only BPE and unigram models"));
}

PieceTrie UserDefinedPieces(const SentencePieceModel& model) {
  std::vector<std::pair<absl::string_view, int32_t>> pieces;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].kind != Kind::kUserDefined) continue;
    pieces.emplace_back(model.pieces[id].text, static_cast<int32_t>(id));
  }
  return PieceTrie(std::move(pieces));
}

absl::StatusOr<SentencePieceNormalizer> CreateNormalizer(const SentencePieceModel& model) {
  MEGATRON_ASSIGN_OR_RETURN(PrecompiledCharsmap rules,
                            PrecompiledCharsmap::Create(model.normalizer.charsmap));
  SentencePieceNormalizerOptions options;
  options.add_dummy_prefix = model.normalizer.add_dummy_prefix;
  options.remove_extra_whitespaces = model.normalizer.remove_extra_whitespaces;
  options.escape_whitespaces = model.normalizer.escape_whitespaces;
  options.space_last = model.treat_whitespace_as_suffix;
  return SentencePieceNormalizer(std::move(rules), options, UserDefinedPieces(model));
}

absl::StatusOr<SentencePieceNormalizer> CreateDenormalizer(const SentencePieceModel& model) {
  MEGATRON_ASSIGN_OR_RETURN(PrecompiledCharsmap rules,
                            PrecompiledCharsmap::Create(model.denormalizer_charsmap),
                            _ << "in the denormalizer");
  SentencePieceNormalizerOptions options;
  options.add_dummy_prefix = false;
  options.remove_extra_whitespaces = false;
  options.escape_whitespaces = false;
  return SentencePieceNormalizer(std::move(rules), options, PieceTrie());
}

}  // namespace

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::Create(
    const std::string& path, const SentencePieceTokenizerOptions& options) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(PosixFileSystem(), path));
  MEGATRON_ASSIGN_OR_RETURN(auto tokenizer, FromBytes(bytes, options),
                            _ << "while reading the SentencePiece model " << path);
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::FromBytes(
    absl::string_view bytes, const SentencePieceTokenizerOptions& options) {
  const bool extra_ids = options.flavor == Flavor::kSentencePiece;
  if (options.vocab_extra_ids < 0 || (options.vocab_extra_ids > 0 && !extra_ids)) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab_extra_ids is ", options.vocab_extra_ids, ", but ",
                     extra_ids ? "must not be negative" : "SentencePieceTokenizer alone has any"));
  }
  MEGATRON_ASSIGN_OR_RETURN(SentencePieceModel model, ParseSentencePieceModel(bytes));
  MEGATRON_ASSIGN_OR_RETURN(Encoder encoder, CreateEncoder(model));
  MEGATRON_ASSIGN_OR_RETURN(SentencePieceNormalizer normalizer, CreateNormalizer(model));
  MEGATRON_ASSIGN_OR_RETURN(SentencePieceNormalizer denormalizer, CreateDenormalizer(model));
  auto tokenizer = absl::WrapUnique(
      new SentencePieceTokenizer(std::move(model), options.flavor, std::move(encoder),
                                 std::move(normalizer), std::move(denormalizer)));
  if (extra_ids) {
    tokenizer->AddMegatronsSpecialTokens(options.vocab_extra_ids);
  }
  return tokenizer;
}

SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceModel model, Flavor flavor,
                                               Encoder encoder, SentencePieceNormalizer normalizer,
                                               SentencePieceNormalizer denormalizer)
    : model_(std::move(model)),
      flavor_(flavor),
      encoder_(std::move(encoder)),
      normalizer_(std::move(normalizer)),
      denormalizer_(std::move(denormalizer)) {
  FindModelsSpecialTokens();
}

void SentencePieceTokenizer::FindModelsSpecialTokens() {
  special_.unk = model_.unk_id;
  special_.bos = FindControl(model_.bos_piece);
  special_.eos = FindControl(model_.eos_piece);
  special_.pad = FindControl(model_.pad_piece);
  special_.eod = special_.eos;
  std::vector<AddedToken> texts;
  for (size_t id = 0; id < model_.pieces.size(); ++id) {
    if (model_.pieces[id].kind != Kind::kControl) continue;
    AddedToken text;
    text.id = static_cast<int32_t>(id);
    text.content = model_.pieces[id].text;
    text.special = true;
    texts.push_back(std::move(text));
  }
  special_texts_ = AddedTokens(std::move(texts));
}

void SentencePieceTokenizer::AddMegatronsSpecialTokens(int32_t vocab_extra_ids) {
  SpecialPieces pieces(vocab_size(), [this](int32_t id) { return Piece(id); });
  const auto add_unless_there = [&](int32_t id, const std::string& piece) {
    return pieces.Add(id < 0 ? piece : Piece(id));
  };
  special_.cls = pieces.Add("<CLS>");
  special_.sep = pieces.Add("<SEP>");
  special_.eod = pieces.Add("<EOD>");
  special_.mask = pieces.Add("<MASK>");
  special_.pad = add_unless_there(special_.pad, "<PAD>");
  special_.bos = add_unless_there(special_.bos, "<BOS>");
  special_.eos = add_unless_there(special_.eos, "<EOS>");
  special_.sentinels = pieces.AddSentinels(vocab_extra_ids);
  added_ = pieces.added();
  is_special_.assign(static_cast<size_t>(vocab_size()), false);
  for (const AddedToken& token : pieces.tokens()) is_special_[static_cast<size_t>(token.id)] = true;
  special_texts_ = AddedTokens(pieces.tokens());
}

int32_t SentencePieceTokenizer::FindControl(absl::string_view piece) const {
  for (size_t id = 0; id < model_.pieces.size(); ++id) {
    if (model_.pieces[id].text != piece) continue;
    return model_.pieces[id].kind == Kind::kControl ? static_cast<int32_t>(id) : -1;
  }
  return -1;
}

absl::string_view SentencePieceTokenizer::name() const {
  switch (flavor_) {
    case Flavor::kSentencePiece:
      return "SentencePieceTokenizer";
    case Flavor::kGptSentencePiece:
      return "GPTSentencePieceTokenizer";
    case Flavor::kLlama2:
      return "Llama2Tokenizer";
  }
  return "";
}

std::string SentencePieceTokenizer::Piece(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return "";
  const size_t i = static_cast<size_t>(id);
  return i < model_.pieces.size() ? model_.pieces[i].text : added_[i - model_.pieces.size()];
}

absl::Status SentencePieceTokenizer::DoEncode(absl::string_view text, const EncodeOptions& options,
                                              std::vector<int32_t>* ids) const {
  if (text.size() >= UINT32_MAX / 32) {  // a rule may lengthen a character
    return absl::InvalidArgumentError(
        absl::StrCat("a text of ", text.size(), " bytes is too long: 128 MiB is the limit"));
  }
  for (const AddedTokens::Section& section : special_texts_.Split(text, options.parse_special)) {
    if (section.id >= 0) {
      ids->push_back(section.id);
      if (options.spans != nullptr) options.spans->push_back(section.span);
      continue;
    }
    const absl::string_view part =
        text.substr(section.span.begin, section.span.end - section.span.begin);
    MEGATRON_RETURN_IF_ERROR(EncodeSection(part, section.span.begin, ids, options.spans));
  }
  return absl::OkStatus();
}

// `text` begins at `begin` of the whole text.
absl::Status SentencePieceTokenizer::EncodeSection(absl::string_view text, size_t begin,
                                                   std::vector<int32_t>* ids,
                                                   std::vector<TextSpan>* spans) const {
  std::vector<size_t> origins;
  const std::string normalized = normalizer_.Normalize(text, spans == nullptr ? nullptr : &origins);
  const size_t first = spans == nullptr ? 0 : spans->size();
  MEGATRON_RETURN_IF_ERROR(std::visit(
      [&](const auto& encoder) { return encoder.Encode(normalized, ids, spans); }, encoder_));
  if (spans == nullptr) return absl::OkStatus();
  for (size_t i = first; i < spans->size(); ++i) {
    TextSpan& span = (*spans)[i];
    span = {begin + origins[span.begin], begin + origins[span.end]};
  }
  return absl::OkStatus();
}

std::string SentencePieceTokenizer::Decode(absl::Span<const int32_t> ids) const {
  if (flavor_ != Flavor::kSentencePiece) return DecodePieces(ids);
  std::string text;
  size_t begin = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size() || !is_special_[static_cast<size_t>(ids[i])]) continue;
    absl::StrAppend(&text, DecodePieces(ids.subspan(begin, i - begin)), " ", Piece(ids[i]), " ");
    begin = i + 1;
  }
  return text + DecodePieces(ids.subspan(begin));
}

std::string SentencePieceTokenizer::DecodePieces(absl::Span<const int32_t> ids) const {
  std::string text, bytes;
  const auto flush = [&] {
    text += ReplaceInvalidUtf8(bytes);
    bytes.clear();
  };
  bool first = true, took_space = false;
  for (const int32_t id : ids) {
    const bool in_model = id >= 0 && static_cast<size_t>(id) < model_.pieces.size();
    if (in_model && model_.pieces[static_cast<size_t>(id)].kind == Kind::kByte) {
      const std::string& piece = model_.pieces[static_cast<size_t>(id)].text;
      bytes.push_back(static_cast<char>(ByteOfPiece(piece)));
      continue;
    }
    flush();
    if (took_space || !text.empty()) first = false;
    text += in_model ? DecodePiece(id, first, &took_space) : "\ufffd";
  }
  flush();
  return model_.denormalizer_charsmap.empty() ? text : denormalizer_.Normalize(text, nullptr);
}

// The piece at the `first` position loses the space that encoding added in front.
std::string SentencePieceTokenizer::DecodePiece(int32_t id, bool first, bool* took_space) const {
  const SentencePieceModel::Piece& piece = model_.pieces[static_cast<size_t>(id)];
  *took_space = false;
  if (piece.kind == Kind::kControl) return "";
  if (piece.kind == Kind::kUnknown) return model_.unk_surface;
  absl::string_view text = piece.text;
  const SentencePieceModel::Normalizer& spec = model_.normalizer;
  if (first && (spec.add_dummy_prefix || spec.remove_extra_whitespaces)) {
    const bool took = absl::ConsumePrefix(&text, kSentencePieceSpace);
    *took_space = took && !spec.remove_extra_whitespaces;
  }
  return absl::StrReplaceAll(text, {{kSentencePieceSpace, " "}});
}

}  // namespace megatron
