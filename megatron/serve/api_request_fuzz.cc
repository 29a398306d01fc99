// Fuzzes the requests of the API: any bytes are a request or a mistake that is told in JSON, and
// what a request asks for is within the limits. The first byte chooses the kind of request; a
// request for texts is also answered, with its own bytes as the tokens.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"
#include "megatron/data/tokenizer/unicode.h"
#include "megatron/serve/api_answer.h"
#include "megatron/serve/api_error.h"
#include "megatron/serve/api_fields.h"
#include "megatron/serve/api_request.h"
#include "megatron/serve/choice_text.h"
#include "nlohmann/json.hpp"

namespace megatron::serve {
namespace {

void CheckJson(const nlohmann::ordered_json& json) {
  const std::string text = JsonText(json);
  CHECK(IsValidUtf8(text));
  CHECK(nlohmann::json::accept(text));
}

void CheckError(const absl::Status& error) {
  CHECK(!error.message().empty());
  const int status = HttpStatus(error);
  CHECK(status == 400 || status == 404) << error;
  CheckJson(ErrorJson(error));
}

ScoredToken Scored(int32_t token, int top) {
  ScoredToken scored;
  scored.token = token;
  scored.logprob = -1;
  for (int i = 0; i < top; ++i) scored.top.push_back({(token + i) % 257, -1.0f - i});
  return scored;
}

// Answers with the bytes as tokens, at once and as a stream, and compares the texts.
void AnswerWith(absl::string_view bytes, const TextCall& call, const Tokenizer& tokenizer) {
  const ApiAnswer answer(tokenizer, call, {"id", 1, "model"});
  ChoiceOptions options;
  options.prompt = call.prompts[0].tokens;
  options.stops = call.stops;
  options.end_tokens = call.end_tokens;
  if (call.echo) options.echo = call.prompts[0].text;
  options.echo_tokens = call.echo && call.logprobs;
  options.keep_tokens = call.logprobs;
  ChoiceText whole(tokenizer, options), pieces(tokenizer, options);
  std::vector<ScoredToken> prompt;
  for (size_t i = 1; i < options.prompt.size(); ++i)
    prompt.push_back(Scored(options.prompt[i], call.top_logprobs));
  std::string streamed;
  size_t tokens = 0;
  const auto take = [&] {
    const ChoicePiece piece = pieces.Take();
    streamed += piece.text;
    tokens += piece.tokens.size();
    CHECK(IsValidUtf8(piece.text));
    CheckJson(answer.PieceChunk(0, piece));
  };
  for (ChoiceText* text : {&whole, &pieces}) text->AddPrompt(prompt);
  for (const char byte : bytes) {
    const ScoredToken token = Scored(static_cast<unsigned char>(byte), call.top_logprobs);
    whole.AddToken(token);
    pieces.AddToken(token);
    take();
  }
  for (ChoiceText* text : {&whole, &pieces}) text->End(FinishReason::kLength);
  take();
  const ChoicePiece piece = whole.Take();
  CHECK_EQ(piece.text, streamed);
  CHECK_EQ(piece.tokens.size(), tokens);
  CheckJson(answer.Whole({piece}, whole.completion_tokens()));
}

void CheckCall(absl::string_view bytes, const absl::StatusOr<TextCall>& call,
               const ApiContext& context) {
  if (!call.ok()) return CheckError(call.status());
  CHECK_GE(call->choices(), 1);
  CHECK_LE(call->choices(), context.max_choices);
  for (int64_t i = 0; i < call->choices(); ++i) {
    const TextRequest request = call->Request(i);
    CHECK(!request.prompt.empty());
    CHECK_LE(static_cast<int64_t>(request.prompt.size()), context.limits.max_context);
    for (const int32_t token : request.prompt) CHECK(token >= 0 && token < 257);
    CHECK(request.top_logprobs >= 0 && request.top_logprobs <= context.limits.max_top_logprobs);
    CHECK_GE(request.max_new_tokens, 0);
    CHECK_GE(request.sampling.temperature, 0);
    CHECK(request.sampling.top_p > 0 && request.sampling.top_p <= 1);
  }
  AnswerWith(bytes, *call, *context.tokenizer);
}

void CheckTokens(const absl::StatusOr<std::vector<int32_t>>& tokens) {
  if (!tokens.ok()) return CheckError(tokens.status());
  for (const int32_t token : *tokens) CHECK(token >= 0 && token < 257);
}

void Check(absl::string_view bytes) {
  static const auto* const tokenizer = new ByteLevelTokenizer();
  static const auto* const chat = new ChatTemplate(*ChatTemplate::Make("plain", *tokenizer));
  const ApiContext context = {tokenizer, chat, "model", {257, 256, 4, 8, 5}, 8};
  if (bytes.empty()) return;
  const char kind = bytes[0];
  const auto body = ParseBody(bytes.substr(1));
  if (!body.ok()) return CheckError(body.status());
  switch (kind) {
    case 'c':
      return CheckCall(bytes, ReadCompletion(*body, context, 1), context);
    case 'm':
      return CheckCall(bytes, ReadChat(*body, context, 1), context);
    case 't':
      return CheckTokens(ReadTokenize(*body, context));
    default:
      return CheckTokens(ReadDetokenize(*body, context));
  }
}

}  // namespace
}  // namespace megatron::serve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  megatron::serve::Check(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
