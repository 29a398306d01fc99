#include "megatron/data/tokenizer/bpe/byte_level_files.h"

#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/bpe/bpe_vocabulary.h"
#include "megatron/data/tokenizer/bpe/byte_level_alphabet.h"
#include "megatron/data/tokenizer/bpe/byte_level_bpe.h"
#include "megatron/data/tokenizer/bpe/byte_level_model.h"
#include "megatron/data/tokenizer/json/json_reader.h"
#include "megatron/data/tokenizer/pipeline/pipeline_tokenizer.h"
#include "megatron/data/tokenizer/pipeline/token_decoder.h"

namespace megatron {
namespace {

constexpr absl::string_view kEndOfText = "<|endoftext|>";

AddedToken Special(int32_t id, absl::string_view content) {
  AddedToken token;
  token.id = id;
  token.content = std::string(content);
  token.special = true;
  return token;
}

std::unique_ptr<Tokenizer> Assemble(ByteLevelVocabulary vocabulary, SplitPattern pattern,
                                    PipelineParts parts) {
  ByteLevelSplit split;
  split.stages = {FirstPieceOf(pattern)};
  parts.model = std::make_unique<ByteLevelModel>(
      std::make_unique<ByteLevelBpe>(std::move(vocabulary)), std::move(split));
  parts.decoder = ByteLevelDecoder();
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

absl::Status CheckTiktokenOptions(const TiktokenOptions& options) {
  const std::vector<std::string>& names = options.special_tokens;
  if (options.num_special_tokens < static_cast<int64_t>(names.size()) ||
      (options.vocab_size > 0 && options.vocab_size <= options.num_special_tokens)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the number of special tokens is ", options.num_special_tokens, "; it must be from ",
        names.size(), ", those with names, to less than the vocabulary's size"));
  }
  if (options.num_special_tokens > (1 << 24) || options.vocab_size > (1 << 28)) {
    return absl::InvalidArgumentError("a vocabulary has at most 2^28 tokens, 2^24 of them special");
  }
  for (const char* name : {"<unk>", "<s>", "</s>"}) {
    if (absl::c_count(names, name) != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' must stand once among the special tokens"));
    }
  }
  return absl::OkStatus();
}

SpecialTokens FindSpecial(const std::vector<AddedToken>& added) {
  SpecialTokens special;
  for (const AddedToken& token : added) {
    if (token.content == "<unk>") special.unk = token.id;
    if (token.content == "<s>") special.bos = token.id;
    if (token.content == "</s>") special.eos = special.eod = token.id;
    if (token.content == "<pad>") special.pad = token.id;
    if (token.content == "<mask>") special.mask = token.id;
    if (token.content == "<cls>") special.cls = token.id;
    if (token.content == "<sep>") special.sep = token.id;
  }
  return special;
}

absl::StatusOr<std::vector<AddedToken>> SpecialTokensOf(const TiktokenOptions& options) {
  std::vector<AddedToken> added;
  TokenIds known;
  for (int64_t i = 0; i < options.num_special_tokens; ++i) {
    const bool named = i < static_cast<int64_t>(options.special_tokens.size());
    added.push_back(Special(static_cast<int32_t>(i),
                            named ? options.special_tokens[i] : absl::StrCat("<SPECIAL_", i, ">")));
  }
  for (const AddedToken& token : added) {
    if (token.content.empty() || !known.emplace(token.content, token.id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the special token '", token.content, "' is empty or stands twice"));
    }
  }
  return added;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateGpt2BpeTokenizer(absl::string_view vocab_json,
                                                                  absl::string_view merges_txt) {
  PipelineParts parts;
  parts.name = "GPT2BPETokenizer";
  MEGATRON_ASSIGN_OR_RETURN(const nlohmann::json vocabulary, ParseJson(vocab_json),
                            _ << "in the vocabulary");
  MEGATRON_ASSIGN_OR_RETURN(parts.pieces,
                            JsonVocabulary(vocabulary, MaxVocabularySize(vocabulary.size())),
                            _ << "in the vocabulary");
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<TokenPair> merges, ParseMerges(merges_txt),
                            _ << "in the merges");
  const TokenIds ids = MakeTokenIds(parts.pieces);
  const auto eod = ids.find(kEndOfText);
  if (eod == ids.end()) {
    return absl::InvalidArgumentError(absl::StrCat("the vocabulary has no ", kEndOfText));
  }
  ByteLevelVocabulary bytes;
  MEGATRON_ASSIGN_OR_RETURN(bytes.merges, ResolveMerges(merges, ids), _ << "in the merges");
  bytes.tokens.resize(parts.pieces.size());
  for (size_t id = 0; id < bytes.tokens.size(); ++id) {
    AppendSpelledBytes(parts.pieces[id], &bytes.tokens[id]);
  }
  parts.special.eod = parts.special.eos = parts.special.bos = eod->second;
  parts.added = {Special(eod->second, kEndOfText)};
  return Assemble(std::move(bytes), SplitPattern::kGpt2, std::move(parts));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTiktokenTokenizer(absl::string_view file,
                                                                   const TiktokenOptions& options) {
  MEGATRON_RETURN_IF_ERROR(CheckTiktokenOptions(options));
  const bool json = absl::StartsWith(absl::StripLeadingAsciiWhitespace(file), "[");
  const size_t room = options.vocab_size > 0 ? options.vocab_size - options.num_special_tokens
                                             : std::numeric_limits<size_t>::max();
  MEGATRON_ASSIGN_OR_RETURN(std::vector<std::string> tokens,
                            json ? ParseTiktokenJson(file, room) : ParseTiktoken(file));
  if (options.vocab_size > 0 && tokens.size() != room) {
    if (tokens.size() < room) {
      return absl::InvalidArgumentError(
          absl::StrCat("a vocabulary of ", options.vocab_size, " with ", options.num_special_tokens,
                       " special tokens needs ", room, " more, and the file has ", tokens.size()));
    }
    tokens.resize(room);
  }
  PipelineParts parts;
  parts.name = "TikTokenizer";
  MEGATRON_ASSIGN_OR_RETURN(parts.added, SpecialTokensOf(options));
  parts.special = FindSpecial(parts.added);
  ByteLevelVocabulary bytes;
  bytes.whole_pieces_first = true;
  bytes.tokens.resize(parts.added.size());
  for (const AddedToken& token : parts.added) parts.pieces.push_back(token.content);
  for (std::string& token : tokens) {
    parts.pieces.push_back(SpellBytes(token));
    bytes.tokens.push_back(std::move(token));
  }
  bytes.merges = MergesOfRanks(bytes.tokens);
  return Assemble(std::move(bytes), options.pattern, std::move(parts));
}

}  // namespace megatron
