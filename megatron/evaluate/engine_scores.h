// Scores requests by engines that hold the same model.
#ifndef MEGATRON_EVALUATE_ENGINE_SCORES_H_
#define MEGATRON_EVALUATE_ENGINE_SCORES_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/evaluate/score_request.h"
#include "megatron/generate/text_engine.h"

namespace megatron {

// Returns the requests' scores in their order. They do not depend on how many engines share the
// requests out, nor on what else these compute. `go_on` is told several times a second how many
// requests are done; where it returns false, the result is kCancelled.
absl::StatusOr<std::vector<RequestScore>> ScoreByEngines(
    absl::Span<TextEngine* const> engines, absl::Span<const ScoreRequest> requests,
    absl::FunctionRef<bool(int64_t done)> go_on);

}  // namespace megatron

#endif  // MEGATRON_EVALUATE_ENGINE_SCORES_H_
