// Requests of OpenAI's API for texts, /v1/completions and /v1/chat/completions, read from JSON.
#ifndef MEGATRON_SERVE_API_REQUEST_H_
#define MEGATRON_SERVE_API_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/data/chat/chat_template.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/generate/text_engine.h"
#include "nlohmann/json.hpp"

namespace megatron::serve {

// What requests are compared with.
struct ApiContext {
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat = nullptr;  // null: there are no conversations
  std::string model;                   // the name of the only model
  EngineLimits limits;
  int max_choices = 128;                                       // prompts times texts for each
  size_t max_text_bytes = std::numeric_limits<size_t>::max();  // a prompt's, a conversation's
};

struct CallPrompt {
  std::vector<int32_t> tokens;  // at least one
  std::string text;             // what echo gives back
  int64_t cut = 0;              // how many tokens were taken away at its front
  bool from_tokens = false;     // the request has tokens and no text
};

// A request, checked.
struct TextCall {
  bool is_chat = false;
  std::vector<CallPrompt> prompts;
  int64_t n = 1;           // texts for each prompt
  int64_t max_tokens = 0;  // of each text; what exceeds the context of the model is not written
  SamplingOptions sampling;
  bool logprobs = false;
  int top_logprobs = 0;
  bool echo = false;
  std::vector<std::string> stops;
  std::vector<int32_t> end_tokens;
  bool stream = false, include_usage = false;

  // The bytes that the texts' tokens take at most while they are written, as the engine and the
  // answer hold them.
  size_t HeldBytes(const EngineLimits& limits) const;
  int64_t choices() const { return static_cast<int64_t>(prompts.size()) * n; }
  // The tokens of all prompts, each counted once.
  int64_t prompt_tokens() const;
  // What the engine is asked for choice i: the prompt is i / n.
  TextRequest Request(int64_t choice) const;
  // A sentence for each prompt that was cut.
  std::vector<std::string> Warnings() const;
};

// What reading a request may take of memory, and holding it. More than MostValueBytes (ParseBody)
// and MostTextBytes (of a prompt that is a text, or a conversation) are refused.
struct ReadingLimits {
  EngineLimits engine;
  int max_choices = 128;
  size_t body_bytes = 0;

  // What a body's values take: the most and longest prompts, as tokens, and 1 MiB.
  size_t MostValueBytes() const;
  // The length of a text: 32 bytes for each token of the context, and no less than 256 KiB.
  size_t MostTextBytes() const;
  // What reading one body takes at once beside the body itself.
  size_t MostReadingBytes() const;
  // What HeldBytes of all requests together may be: that of as many texts of the whole context as
  // the engine works on and has waiting, and no less than that of the largest request.
  size_t AllHeldBytes() const;
};

// These return kInvalidArgument, or kNotFound for a model of another name, with a message that
// names the field. `seed` is taken where the request has none.
absl::StatusOr<TextCall> ReadCompletion(const nlohmann::json& body, const ApiContext& context,
                                        uint64_t seed);
absl::StatusOr<TextCall> ReadChat(const nlohmann::json& body, const ApiContext& context,
                                  uint64_t seed);

// Returns the tokens of /tokenize's "prompt" or "messages".
absl::StatusOr<std::vector<int32_t>> ReadTokenize(const nlohmann::json& body,
                                                  const ApiContext& context);
// Returns the ids of /detokenize's "tokens".
absl::StatusOr<std::vector<int32_t>> ReadDetokenize(const nlohmann::json& body,
                                                    const ApiContext& context);

}  // namespace megatron::serve

#endif  // MEGATRON_SERVE_API_REQUEST_H_
