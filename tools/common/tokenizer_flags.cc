#include "tools/common/tokenizer_flags.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"

ABSL_FLAG(
    std::string, tokenizer_type, "",
    "GPT2BPETokenizer, HuggingFaceTokenizer, SentencePieceTokenizer, "
    "GPTSentencePieceTokenizer, Llama2Tokenizer, TikTokenizer, BertWordPieceLowerCase, "
    "BertWordPieceCase, ByteLevel (which preprocess_data takes by default) or NullTokenizer.");
ABSL_FLAG(std::string, vocab_file, "",
          "vocab.json of GPT2BPETokenizer, vocab.txt of BertWordPieceLowerCase and "
          "BertWordPieceCase.");
ABSL_FLAG(std::string, merge_file, "", "merges.txt of GPT2BPETokenizer.");
ABSL_FLAG(std::string, tokenizer_model, "",
          "tokenizer.json of HuggingFaceTokenizer, or the folder that has it; the model's file of "
          "TikTokenizer and of those with SentencePiece or Llama2 in their names.");
ABSL_FLAG(int64_t, vocab_size, 0,
          "Number of token ids of NullTokenizer; of TikTokenizer, where 0 takes all of its file.");
ABSL_FLAG(int64_t, null_tokenizer_eod_id, -1,
          "The id of NullTokenizer that ends a document; -1: the last one.");
ABSL_FLAG(int64_t, null_tokenizer_pad_id, -1, "The id of NullTokenizer that fills up; -1: none.");
ABSL_FLAG(int64_t, vocab_extra_ids, 0,
          "Sentinels, <extra_id_0> and on, to add to SentencePieceTokenizer, "
          "BertWordPieceLowerCase or BertWordPieceCase, as T5 needs them.");
ABSL_FLAG(std::string, tiktoken_pattern, "v2", "How TikTokenizer splits text: v1 or v2.");
ABSL_FLAG(int64_t, tiktoken_num_special_tokens, 1000, "Ids that TikTokenizer sets aside.");
ABSL_FLAG(std::vector<std::string>, tiktoken_special_tokens, {},
          "What the first of TikTokenizer's special tokens are called.");

namespace megatron {
namespace {

constexpr absl::string_view kFields[] = {"vocab_file",
                                         "merge_file",
                                         "tokenizer_model",
                                         "vocab_size",
                                         "null_tokenizer_eod_id",
                                         "null_tokenizer_pad_id",
                                         "vocab_extra_ids",
                                         "tiktoken_pattern",
                                         "tiktoken_num_special_tokens",
                                         "tiktoken_special_tokens"};

bool IsGiven(absl::string_view flag) {
  const absl::CommandLineFlag* const found = absl::FindCommandLineFlag(flag);
  CHECK(found != nullptr) << flag;
  return found->CurrentValue() != found->DefaultValue();
}

// A flag that the tokenizer type would ignore is an error, since the user expects an effect.
absl::Status CheckFlagsOf(const std::string& type) {
  MEGATRON_ASSIGN_OR_RETURN(const TokenizerFields taken, TokenizerFieldsOf(type));
  for (const absl::string_view field : kFields) {
    const auto has = [field](const std::vector<absl::string_view>& fields) {
      return std::find(fields.begin(), fields.end(), field) != fields.end();
    };
    if (IsGiven(field) && !has(taken.required) && !has(taken.optional))
      return absl::InvalidArgumentError(absl::StrCat("--", field, " means nothing to ", type));
  }
  return absl::OkStatus();
}

}  // namespace

bool HasTokenizerFlags() { return IsGiven("tokenizer_type"); }

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromFlags() {
  TokenizerOptions options;
  options.type = HasTokenizerFlags() ? absl::GetFlag(FLAGS_tokenizer_type) : "ByteLevel";
  options.vocab_file = absl::GetFlag(FLAGS_vocab_file);
  options.merge_file = absl::GetFlag(FLAGS_merge_file);
  options.tokenizer_model = absl::GetFlag(FLAGS_tokenizer_model);
  options.vocab_size = absl::GetFlag(FLAGS_vocab_size);
  options.null_tokenizer_eod_id = absl::GetFlag(FLAGS_null_tokenizer_eod_id);
  options.null_tokenizer_pad_id = absl::GetFlag(FLAGS_null_tokenizer_pad_id);
  options.vocab_extra_ids = absl::GetFlag(FLAGS_vocab_extra_ids);
  options.tiktoken_pattern = absl::GetFlag(FLAGS_tiktoken_pattern);
  options.tiktoken_num_special_tokens = absl::GetFlag(FLAGS_tiktoken_num_special_tokens);
  options.tiktoken_special_tokens = absl::GetFlag(FLAGS_tiktoken_special_tokens);
  MEGATRON_RETURN_IF_ERROR(CheckFlagsOf(options.type));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = CreateTokenizer(options);
  // A missing or damaged file is a wrong flag too, just as it is a wrong field for pretrain_gpt.
  if (!tokenizer.ok()) return absl::InvalidArgumentError(tokenizer.status().message());
  return tokenizer;
}

}  // namespace megatron
