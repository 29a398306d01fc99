// Lets an engine write the texts of a request, and gives them out while they grow.
#ifndef MEGATRON_SERVE_TEXT_RUN_H_
#define MEGATRON_SERVE_TEXT_RUN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/generate/text_engine.h"
#include "megatron/serve/api_request.h"
#include "megatron/serve/choice_text.h"

namespace megatron::serve {

// Threads: one at a time.
class TextRun {
 public:
  // All must outlive this. It has `time` from `start` on, a time of SteadyNow().
  TextRun(TextEngine* engine, const Tokenizer& tokenizer, const TextCall& call, absl::Time start,
          absl::Duration time);
  // Ends what the engine still does for it.
  ~TextRun();

  // Asks the engine for as many choices as its queue takes; Wait asks for the others when there is
  // room. kResourceExhausted where it takes none.
  absl::Status Start();

  // Waits for news, at most so long. Returns whether all choices have ended. kDeadlineExceeded
  // after its time; the engine's error, or kUnavailable, where it could not go on.
  absl::StatusOr<bool> Wait(absl::Duration time);

  // The choices as far as Wait has seen them.
  std::vector<ChoiceText>& choices() { return choices_; }
  int64_t completion_tokens() const;

 private:
  class Inbox;
  class Observer;

  absl::Status SubmitMore();
  absl::Status Take(absl::Duration time);
  absl::Status Late() const;

  TextEngine* const engine_;
  const TextCall& call_;
  const absl::Duration time_;
  const absl::Time deadline_;
  std::shared_ptr<Inbox> inbox_;
  std::vector<ChoiceText> choices_;
  std::vector<uint64_t> ids_;  // the ids of the choices that were submitted
  std::vector<bool> running_;  // for each of them: the engine has not ended it
};

}  // namespace megatron::serve

#endif  // MEGATRON_SERVE_TEXT_RUN_H_
