#include "megatron/data/tokenizer/json/post_processor_json.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/json/json_reader.h"

namespace megatron {
namespace {

using nlohmann::json;

// The limit keeps a short file from naming a long list again and again.
constexpr size_t kMaxTokens = 256;

absl::Status AddId(const json& id, int64_t vocab_size, std::vector<int32_t>* ids) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size))
    return absl::InvalidArgumentError("the post-processor names an id that is no token's");
  if (ids->size() == kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("the post-processor puts more than ", kMaxTokens, " tokens around a text"));
  }
  ids->push_back(id.get<int32_t>());
  return absl::OkStatus();
}

// Reads a member such as "cls": ["[CLS]", 101].
absl::Status AddNamed(const json& step, const char* key, int64_t vocab_size,
                      std::vector<int32_t>* ids) {
  const json& named = JsonMember(step, key);
  if (named.is_array() && named.size() == 2) return AddId(named[1], vocab_size, ids);
  return absl::InvalidArgumentError(
      absl::StrCat("the post-processor has no '", key, "' that is a token and its id"));
}

absl::StatusOr<TokensAround> FromClsAndSep(const json& step, int64_t vocab_size) {
  TokensAround around;
  MEGATRON_RETURN_IF_ERROR(AddNamed(step, "cls", vocab_size, &around.before));
  MEGATRON_RETURN_IF_ERROR(AddNamed(step, "sep", vocab_size, &around.after));
  return around;
}

// Reads a template: the items of "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id":
// "</s>"}}], with ids from "special_tokens": {"</s>": {"ids": [1]}}.
absl::StatusOr<TokensAround> FromTemplate(const json& step, int64_t vocab_size) {
  const json &parts = JsonMember(step, "single"), &tokens = JsonMember(step, "special_tokens");
  if (!parts.is_array())
    return absl::InvalidArgumentError("the post-processor's template has no list 'single'");
  TokensAround around;
  bool after = false;
  for (const json& part : parts) {
    const json& token = JsonMember(part, "SpecialToken");
    if (token.is_null()) {
      if (after || !JsonMember(part, "Sequence").is_object())
        return absl::InvalidArgumentError("the post-processor's template is not of one text");
      after = true;
      continue;
    }
    MEGATRON_ASSIGN_OR_RETURN(const std::string name, JsonString(token, "id"));
    const json& ids = JsonMember(JsonMember(tokens, name.c_str()), "ids");
    if (!ids.is_array()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the post-processor has no ids of '", name.substr(0, 64), "'"));
    }
    for (const json& id : ids)
      MEGATRON_RETURN_IF_ERROR(AddId(id, vocab_size, after ? &around.after : &around.before));
  }
  if (after) return around;
  return absl::InvalidArgumentError("the post-processor's template leaves the text out");
}

absl::StatusOr<TokensAround> FromSequence(const json& step, int64_t vocab_size) {
  const json& members = JsonMember(step, "processors");
  if (!members.is_array())
    return absl::InvalidArgumentError("a Sequence has no list of processors");
  TokensAround all;
  for (const json& member : members) {
    MEGATRON_ASSIGN_OR_RETURN(const TokensAround next, PostProcessorFromJson(member, vocab_size));
    all.before.insert(all.before.begin(), next.before.begin(), next.before.end());
    all.after.insert(all.after.end(), next.after.begin(), next.after.end());
  }
  return all;
}

}  // namespace

absl::StatusOr<TokensAround> PostProcessorFromJson(const json& description, int64_t vocab_size) {
  if (description.is_null()) return TokensAround();
  MEGATRON_ASSIGN_OR_RETURN(const std::string type, JsonString(description, "type"));
  if (type == "ByteLevel") return TokensAround();
  if (type == "Sequence") return FromSequence(description, vocab_size);
  if (type == "TemplateProcessing") return FromTemplate(description, vocab_size);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return FromClsAndSep(description, vocab_size);
  return absl::InvalidArgumentError(
      absl::StrCat("this version has no post-processor of type '", type.substr(0, 64), "'"));
}

}  // namespace megatron
