#include "megatron/data/tokenizer/tokenizer_factory.h"

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/bpe/byte_level_files.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"
#include "megatron/data/tokenizer/json/tokenizer_json.h"
#include "megatron/data/tokenizer/null_tokenizer.h"
#include "megatron/data/tokenizer/sentencepiece/sentencepiece_tokenizer.h"
#include "megatron/data/tokenizer/wordpiece/story_vocabulary.h"
#include "megatron/data/tokenizer/wordpiece/wordpiece_tokenizer.h"

namespace megatron {
namespace {

using Result = absl::StatusOr<std::unique_ptr<Tokenizer>>;

// This is more than the sentinels of any vocabulary; ids must stay below 2^31.
constexpr int64_t kMaxExtraIds = 1 << 20;

absl::StatusOr<std::string> Read(const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(std::string text, ReadFileToString(PosixFileSystem(), path),
                            _ << "while reading a tokenizer");
  return text;
}

Result CreateByteLevel(const TokenizerOptions&) { return std::make_unique<ByteLevelTokenizer>(); }

Result CreateNull(const TokenizerOptions& options) {
  if (options.vocab_size < 1 || options.vocab_size > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "NullTokenizer needs a vocab_size from 1 to 2^31 - 1, not ", options.vocab_size));
  }
  const std::pair<absl::string_view, int64_t> ids[] = {
      {"null_tokenizer_eod_id", options.null_tokenizer_eod_id},
      {"null_tokenizer_pad_id", options.null_tokenizer_pad_id}};
  for (const auto& [name, id] : ids) {
    if (id < -1 || id >= options.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is ", id, ", and ids are below vocab_size = ", options.vocab_size));
    }
  }
  return std::make_unique<NullTokenizer>(static_cast<int32_t>(options.vocab_size),
                                         static_cast<int32_t>(options.null_tokenizer_eod_id),
                                         static_cast<int32_t>(options.null_tokenizer_pad_id));
}

Result CreateGpt2(const TokenizerOptions& options) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string vocab, Read(options.vocab_file));
  MEGATRON_ASSIGN_OR_RETURN(const std::string merges, Read(options.merge_file));
  MEGATRON_ASSIGN_OR_RETURN(
      std::unique_ptr<Tokenizer> tokenizer, CreateGpt2BpeTokenizer(vocab, merges),
      _ << "while reading '" << options.vocab_file << "' and '" << options.merge_file << "'");
  return tokenizer;
}

// Reads the names of special tokens from the files beside a tokenizer.json, if there are any.
absl::StatusOr<SpecialTokenNames> ReadNames(const std::string& directory) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string path = JoinPath(directory, name);
    const absl::StatusOr<std::string> text = ReadFileToString(PosixFileSystem(), path);
    if (absl::IsNotFound(text.status())) continue;
    MEGATRON_RETURN_IF_ERROR(text.status());
    MEGATRON_ASSIGN_OR_RETURN(SpecialTokenNames names, ParseSpecialTokenNames(*text),
                              _ << "while reading '" << path << "'");
    return names;
  }
  return SpecialTokenNames();
}

Result CreateHuggingFace(const TokenizerOptions& options) {
  FileSystem& fs = PosixFileSystem();
  const bool is_directory = fs.List(options.tokenizer_model).ok();
  const std::string path =
      is_directory ? JoinPath(options.tokenizer_model, "tokenizer.json") : options.tokenizer_model;
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, Read(path));
  MEGATRON_ASSIGN_OR_RETURN(const SpecialTokenNames names,
                            ReadNames(std::string(ParentPath(path))));
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                            CreateTokenizerFromJson(text, names),
                            _ << "while reading '" << path << "'");
  return tokenizer;
}

Result CreateTiktoken(const TokenizerOptions& options) {
  if (options.tiktoken_pattern != "v1" && options.tiktoken_pattern != "v2") {
    return absl::InvalidArgumentError(
        absl::StrCat("tiktoken_pattern is v1 or v2, not '", options.tiktoken_pattern, "'"));
  }
  TiktokenOptions tiktoken;
  tiktoken.pattern =
      options.tiktoken_pattern == "v1" ? SplitPattern::kTiktokenV1 : SplitPattern::kTekken;
  tiktoken.vocab_size = options.vocab_size;
  tiktoken.num_special_tokens = options.tiktoken_num_special_tokens;
  if (!options.tiktoken_special_tokens.empty()) {
    tiktoken.special_tokens = options.tiktoken_special_tokens;
  }
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, Read(options.tokenizer_model));
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                            CreateTiktokenTokenizer(text, tiktoken),
                            _ << "while reading '" << options.tokenizer_model << "'");
  return tokenizer;
}

template <SentencePieceTokenizerOptions::Flavor flavor>
Result CreateSentencePiece(const TokenizerOptions& options) {
  SentencePieceTokenizerOptions sentencepiece;
  sentencepiece.flavor = flavor;
  sentencepiece.vocab_extra_ids = static_cast<int32_t>(options.vocab_extra_ids);
  return SentencePieceTokenizer::Create(options.tokenizer_model, sentencepiece);
}

template <bool lower_case>
Result CreateWordPiece(const TokenizerOptions& options) {
  WordPieceTokenizerOptions wordpiece;
  wordpiece.lower_case = lower_case;
  wordpiece.vocab_extra_ids = static_cast<int32_t>(options.vocab_extra_ids);
  return WordPieceTokenizer::Create(options.vocab_file, wordpiece);
}

Result CreateStoryWordPiece(const TokenizerOptions& options) {
  WordPieceTokenizerOptions wordpiece;
  wordpiece.vocab_extra_ids = static_cast<int32_t>(options.vocab_extra_ids);
  return WordPieceTokenizer::FromBytes(StoryVocabulary(), wordpiece);
}

using Flavor = SentencePieceTokenizerOptions::Flavor;

struct Type {
  absl::string_view name;
  TokenizerFields fields;
  Result (*create)(const TokenizerOptions& options);
};

const std::vector<Type>& Types() {
  static const auto* const types = new std::vector<Type>{
      {"GPT2BPETokenizer", {{"vocab_file", "merge_file"}, {}}, CreateGpt2},
      {"HuggingFaceTokenizer", {{"tokenizer_model"}, {}}, CreateHuggingFace},
      {"SFTTokenizer", {{"tokenizer_model"}, {}}, CreateHuggingFace},
      {"SentencePieceTokenizer",
       {{"tokenizer_model"}, {"vocab_extra_ids"}},
       CreateSentencePiece<Flavor::kSentencePiece>},
      {"GPTSentencePieceTokenizer",
       {{"tokenizer_model"}, {}},
       CreateSentencePiece<Flavor::kGptSentencePiece>},
      {"Llama2Tokenizer", {{"tokenizer_model"}, {}}, CreateSentencePiece<Flavor::kLlama2>},
      {"TikTokenizer",
       {{"tokenizer_model"},
        {"vocab_size", "tiktoken_pattern", "tiktoken_num_special_tokens",
         "tiktoken_special_tokens"}},
       CreateTiktoken},
      {"BertWordPieceLowerCase", {{"vocab_file"}, {"vocab_extra_ids"}}, CreateWordPiece<true>},
      {"BertWordPieceCase", {{"vocab_file"}, {"vocab_extra_ids"}}, CreateWordPiece<false>},
      {"StoryWordPiece", {{}, {"vocab_extra_ids"}}, CreateStoryWordPiece},
      {"ByteLevel", {}, CreateByteLevel},
      {"NullTokenizer",
       {{"vocab_size"}, {"null_tokenizer_eod_id", "null_tokenizer_pad_id"}},
       CreateNull},
  };
  return *types;
}

absl::StatusOr<const Type*> FindType(absl::string_view name) {
  for (const Type& type : Types()) {
    if (type.name == name) return &type;
  }
  if (name == "MultimodalTokenizer" || name == "NullMultimodalTokenizer") {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is for models that see images; text alone has HuggingFaceTokenizer"));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown tokenizer type '", name, "'; there are ",
                                                 absl::StrJoin(TokenizerTypes(), ", ")));
}

absl::Status CheckFiles(const TokenizerOptions& options, const TokenizerFields& fields) {
  for (const absl::string_view field : fields.required) {
    const bool missing = (field == "vocab_file" && options.vocab_file.empty()) ||
                         (field == "merge_file" && options.merge_file.empty()) ||
                         (field == "tokenizer_model" && options.tokenizer_model.empty());
    if (missing) {
      return absl::InvalidArgumentError(absl::StrCat(options.type, " needs a ", field));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Span<const absl::string_view> TokenizerTypes() {
  static const auto* const names = [] {
    auto* const all = new std::vector<absl::string_view>;
    for (const Type& type : Types()) all->push_back(type.name);
    return all;
  }();
  return *names;
}

absl::StatusOr<TokenizerFields> TokenizerFieldsOf(absl::string_view type) {
  MEGATRON_ASSIGN_OR_RETURN(const Type* const found, FindType(type));
  return found->fields;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const TokenizerOptions& options) {
  MEGATRON_ASSIGN_OR_RETURN(const Type* const type, FindType(options.type));
  MEGATRON_RETURN_IF_ERROR(CheckFiles(options, type->fields));
  if (options.vocab_extra_ids < 0 || options.vocab_extra_ids > kMaxExtraIds) {
    return absl::InvalidArgumentError(absl::StrCat("vocab_extra_ids is from 0 to ", kMaxExtraIds,
                                                   ", not ", options.vocab_extra_ids));
  }
  return type->create(options);
}

}  // namespace megatron
