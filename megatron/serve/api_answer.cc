#include "megatron/serve/api_answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/serve/api_error.h"
#include "megatron/serve/text_pieces.h"

namespace megatron::serve {
namespace {

using Json = nlohmann::ordered_json;

Json FinishReasonJson(const ChoicePiece& piece) {
  return piece.finish_reason.empty() ? Json(nullptr) : Json(piece.finish_reason);
}

// {"token": ..., "logprob": ..., "bytes": [...]}
Json ChatToken(const Tokenizer& tokenizer, int32_t token, float logprob) {
  const std::string bytes = TokenBytes(tokenizer, token);
  Json json;
  json["token"] = ShownBytes(bytes);
  json["logprob"] = logprob;
  json["bytes"] = Json::array();
  for (const char byte : bytes) json["bytes"].push_back(static_cast<unsigned char>(byte));
  return json;
}

}  // namespace

Json ApiAnswer::Head(bool is_chunk) const {
  Json json;
  if (call_.is_chat) {
    json["id"] = absl::StrCat("chatcmpl-", head_.id);
    json["object"] = is_chunk ? "chat.completion.chunk" : "chat.completion";
  } else {
    json["id"] = absl::StrCat("cmpl-", head_.id);
    json["object"] = "text_completion";
  }
  json["created"] = head_.created;
  json["model"] = head_.model;
  return json;
}

Json ApiAnswer::Usage(int64_t completion_tokens) const {
  const int64_t prompt_tokens = call_.prompt_tokens();
  Json json;
  json["prompt_tokens"] = prompt_tokens;
  json["completion_tokens"] = completion_tokens;
  json["total_tokens"] = prompt_tokens + completion_tokens;
  return json;
}

Json ApiAnswer::Logprobs(const ChoicePiece& piece) const {
  Json json = {{"tokens", Json::array()},
               {"token_logprobs", Json::array()},
               {"top_logprobs", Json::array()},
               {"text_offset", Json::array()}};
  for (const ChoiceToken& token : piece.tokens) {
    const std::string text = ShownBytes(TokenBytes(tokenizer_, token.token));
    json["tokens"].push_back(text);
    json["text_offset"].push_back(token.offset);
    if (!token.logprob) {
      json["token_logprobs"].push_back(nullptr);
      json["top_logprobs"].push_back(nullptr);
      continue;
    }
    json["token_logprobs"].push_back(*token.logprob);
    Json top = Json::object();
    for (const TokenLogprob& likely : token.top) {
      // The first of two tokens with the same text is the likelier one, and stays.
      top.emplace(ShownBytes(TokenBytes(tokenizer_, likely.token)), likely.logprob);
    }
    top.emplace(text, *token.logprob);
    json["top_logprobs"].push_back(std::move(top));
  }
  return json;
}

Json ApiAnswer::ChatLogprobs(const ChoicePiece& piece) const {
  Json content = Json::array();
  for (const ChoiceToken& token : piece.tokens) {
    if (token.is_end) continue;  // it is no content
    Json json = ChatToken(tokenizer_, token.token, token.logprob.value_or(0));
    json["top_logprobs"] = Json::array();
    for (const TokenLogprob& likely : token.top)
      json["top_logprobs"].push_back(ChatToken(tokenizer_, likely.token, likely.logprob));
    content.push_back(std::move(json));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json ApiAnswer::Choice(int64_t index, const ChoicePiece& piece, bool is_chunk) const {
  Json json;
  json["index"] = index;
  if (!call_.is_chat) {
    json["text"] = piece.text;
    json["logprobs"] = call_.logprobs ? Logprobs(piece) : Json(nullptr);
  } else if (is_chunk) {
    json["delta"] = Json::object();
    if (!piece.text.empty()) json["delta"]["content"] = piece.text;
    json["logprobs"] =
        call_.logprobs && !piece.tokens.empty() ? ChatLogprobs(piece) : Json(nullptr);
  } else {
    json["message"] = {{"role", "assistant"}, {"content", piece.text}, {"refusal", nullptr}};
    json["logprobs"] = call_.logprobs ? ChatLogprobs(piece) : Json(nullptr);
  }
  json["finish_reason"] = FinishReasonJson(piece);
  return json;
}

Json ApiAnswer::Whole(const std::vector<ChoicePiece>& pieces, int64_t completion_tokens) const {
  Json json = Head(/*is_chunk=*/false);
  json["choices"] = Json::array();
  for (size_t i = 0; i < pieces.size(); ++i)
    json["choices"].push_back(Choice(static_cast<int64_t>(i), pieces[i], /*is_chunk=*/false));
  json["usage"] = Usage(completion_tokens);
  const std::vector<std::string> warnings = call_.Warnings();
  if (!warnings.empty()) json["warnings"] = warnings;
  return json;
}

Json ApiAnswer::Chunk(Json choice) const {
  Json json = Head(/*is_chunk=*/true);
  json["choices"] = Json::array();
  json["choices"].push_back(std::move(choice));
  if (call_.include_usage) json["usage"] = nullptr;
  return json;
}

Json ApiAnswer::FirstChunk(int64_t choice) const {
  Json json = Chunk({{"index", choice},
                     {"delta", {{"role", "assistant"}, {"content", ""}}},
                     {"logprobs", nullptr},
                     {"finish_reason", nullptr}});
  return json;
}

Json ApiAnswer::PieceChunk(int64_t choice, const ChoicePiece& piece) const {
  Json json = Chunk(Choice(choice, piece, /*is_chunk=*/true));
  const std::vector<std::string> warnings = call_.Warnings();
  if (!warnings.empty() && !piece.finish_reason.empty()) json["warnings"] = warnings;
  return json;
}

Json ApiAnswer::UsageChunk(int64_t completion_tokens) const {
  Json json = Head(/*is_chunk=*/true);
  json["choices"] = Json::array();
  json["usage"] = Usage(completion_tokens);
  return json;
}

std::string ServerSentEvent(const Json& json) {
  return absl::StrCat("data: ", JsonText(json), "\n\n");
}

}  // namespace megatron::serve
