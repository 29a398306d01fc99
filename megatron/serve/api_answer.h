// Answers of OpenAI's API for texts, as JSON: whole, or as the chunks of a stream.
#ifndef MEGATRON_SERVE_API_ANSWER_H_
#define MEGATRON_SERVE_API_ANSWER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/serve/api_request.h"
#include "megatron/serve/choice_text.h"
#include "nlohmann/json.hpp"

namespace megatron::serve {

// What all objects of an answer have.
struct AnswerHead {
  std::string id;       // without its prefix
  int64_t created = 0;  // seconds since 1970
  std::string model;
};

class ApiAnswer {
 public:
  ApiAnswer(const Tokenizer& tokenizer, const TextCall& call, AnswerHead head)
      : tokenizer_(tokenizer), call_(call), head_(std::move(head)) {}

  // The pieces are those of whole texts, in the order of choices.
  nlohmann::ordered_json Whole(const std::vector<ChoicePiece>& pieces,
                               int64_t completion_tokens) const;

  // The first chunk of a choice of a conversation, which says who speaks.
  nlohmann::ordered_json FirstChunk(int64_t choice) const;
  nlohmann::ordered_json PieceChunk(int64_t choice, const ChoicePiece& piece) const;
  nlohmann::ordered_json UsageChunk(int64_t completion_tokens) const;

 private:
  nlohmann::ordered_json Head(bool is_chunk) const;
  nlohmann::ordered_json Chunk(nlohmann::ordered_json choice) const;
  nlohmann::ordered_json Choice(int64_t index, const ChoicePiece& piece, bool is_chunk) const;
  nlohmann::ordered_json Logprobs(const ChoicePiece& piece) const;
  nlohmann::ordered_json ChatLogprobs(const ChoicePiece& piece) const;
  nlohmann::ordered_json Usage(int64_t completion_tokens) const;

  const Tokenizer& tokenizer_;
  const TextCall& call_;
  const AnswerHead head_;
};

// Returns the event of a stream (text/event-stream).
std::string ServerSentEvent(const nlohmann::ordered_json& json);
// The last event of a stream.
inline constexpr char kLastEvent[] = "data: [DONE]\n\n";

}  // namespace megatron::serve

#endif  // MEGATRON_SERVE_API_ANSWER_H_
