// Continues sequences of tokens for several callers at once.
//
//   MEGATRON_ASSIGN_OR_RETURN(uint64_t id, engine->Submit(request, observer));
//   ... observer->OnToken(...) is called for each new token, then observer->OnEnd(...) once ...
//
// A request's tokens and log-probabilities do not depend on what other requests there are.
#ifndef MEGATRON_GENERATE_TEXT_ENGINE_H_
#define MEGATRON_GENERATE_TEXT_ENGINE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "megatron/models/sampling.h"

namespace megatron {

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// A token, with its log-probability by softmax(logits) over the real vocabulary, before temperature
// and cuts.
struct ScoredToken {
  int32_t token = 0;
  float logprob = 0;
  bool is_greedy = false;         // no token is likelier
  std::vector<TokenLogprob> top;  // the likeliest tokens, likeliest first; as many as asked for
};

struct TextRequest {
  // 1 to limits().max_context tokens, or one more where nothing is to follow it.
  std::vector<int32_t> prompt;
  int64_t max_new_tokens = 16;  // 0: only the prompt is scored
  SamplingOptions sampling;
  int top_logprobs = 0;             // 0 to limits().max_top_logprobs
  bool score_prompt = false;        // OnPrompt is called
  int64_t first_scored = 1;         // the first token of the prompt that is scored, from 1 on
  std::vector<int32_t> end_tokens;  // each ends the text; it is shown as the last token
  absl::Time deadline = absl::InfiniteFuture();  // a time of SteadyNow()
};

enum class FinishReason {
  kLength,     // max_new_tokens, or the context is full
  kEndToken,   // one of end_tokens
  kObserver,   // OnToken returned false
  kCancelled,  // Cancel was called
  kDeadline,   // the deadline has passed
  kFailed,     // the engine has failed, ends, or cannot go on with this text
};

// Is told of a request's progress, on a thread of the engine. A slow observer holds up all
// requests.
class TextObserver {
 public:
  virtual ~TextObserver() = default;
  // The prompt's tokens from first_scored on: the very first has no log-probability.
  virtual void OnPrompt(absl::Span<const ScoredToken> tokens) {}
  // Returns false to end the request.
  virtual bool OnToken(const ScoredToken& token) = 0;
  // The last call. With kFailed the status says why: kInternal where the model gives no numbers for
  // this text, and else that of the engine, which takes no more requests.
  virtual void OnEnd(FinishReason reason, const absl::Status& status) = 0;
};

struct EngineLimits {
  int64_t vocab_size = 0;
  int64_t max_context = 0;  // the most tokens of a prompt and its continuation
  int max_batch = 0;        // the most requests that are worked on at once
  int max_queue = 0;        // the most requests that wait
  int max_top_logprobs = 0;
};

struct EngineState {
  int running = 0, waiting = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0;  // since the start
  int64_t finished_requests = 0;
  bool failed = false;  // it has failed or ended, and takes no more requests
};

// Thread safe.
class TextEngine {
 public:
  virtual ~TextEngine() = default;  // ends all requests with kFailed
  virtual const EngineLimits& limits() const = 0;
  // Fails with kInvalidArgument for a request beyond the limits, and with kResourceExhausted where
  // the queue is full. Never waits.
  virtual absl::StatusOr<uint64_t> Submit(TextRequest request,
                                          std::shared_ptr<TextObserver> observer) = 0;
  // Ends the request soon; nothing where it has ended.
  virtual void Cancel(uint64_t id) = 0;
  virtual EngineState state() const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_GENERATE_TEXT_ENGINE_H_
