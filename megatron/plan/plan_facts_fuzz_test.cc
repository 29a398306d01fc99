// Whatever the text: an error that says something, or facts that a step is predicted from without
// a crash.

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/step_prediction.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto facts =
      megatron::ParsePlanFacts(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!facts.ok()) {
    CHECK(!facts.status().message().empty());
    return 0;
  }
  megatron::PlanLayout layout;
  layout.sequence = 128;
  for (const auto& gpu : facts->hardware()) {
    for (const auto& program : facts->implementation()) {
      for (const auto& model : facts->model()) {
        const auto step = megatron::PredictStep(gpu, program, {}, model, layout);
        if (step.ok()) {
          CHECK(step->seconds.total > 0) << step->seconds.total;
        } else {
          CHECK(!step.status().message().empty());
        }
      }
    }
  }
  return 0;
}
