#include "megatron/serve/scripted_engine.h"

#include <algorithm>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "megatron/serve/serial_text_engine.h"

namespace megatron::serve {
namespace {

constexpr int32_t kEod = 256;

int32_t LikeliestAfter(int32_t token) {
  if (token >= 'a' && token < 'z') return token + 1;
  switch (token) {
    case 'z':
      return kEod;
    case '$':
      return 0xE2;
    case 0xE2:
      return 0x82;
    case 0x82:
      return 0xAC;
    default:
      return 'a';
  }
}

}  // namespace

std::unique_ptr<TextEngine> MakeScriptedEngine(int64_t max_context, int max_queue,
                                               const std::atomic<int>* delay) {
  EngineLimits limits;
  limits.vocab_size = kEod + 1;
  limits.max_context = max_context;
  limits.max_queue = max_queue;
  limits.max_top_logprobs = 5;
  return std::make_unique<SerialTextEngine>(
      limits,
      [delay, logits = std::vector<float>()](absl::Span<const int32_t> tokens, int64_t at) mutable {
        const int milliseconds = *delay;
        if (milliseconds > 0) absl::SleepFor(absl::Milliseconds(milliseconds));
        logits.assign(kEod + 1, 0);
        logits[LikeliestAfter(tokens[at])] = 4;
        return absl::MakeConstSpan(logits);
      });
}

}  // namespace megatron::serve
