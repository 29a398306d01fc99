// The words and tables of tools:plan --explain.
#ifndef MEGATRON_TOOLS_PLAN_PLAN_EXPLAIN_TEXT_H_
#define MEGATRON_TOOLS_PLAN_PLAN_EXPLAIN_TEXT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/tensor_forms.h"
#include "megatron/train/planning/explain_step.h"
#include "tools/report/document.h"
#include "tools/report/run_profile.h"

namespace megatron {

struct StageNeeds {
  double parameters = 0;
  double bytes = 0;
  double host_bytes = 0;
};

struct Explanation {
  std::string name;    // the configuration's
  std::string layout;  // "tensor 2 x pipeline 4 x data 2"
  Hardware gpu;
  ExplainedStep step;
  std::vector<StageNeeds> stages;  // one rank's needs in each
  double tokens = 0;               // the whole run's
  double price = 0;
  double watts = 0;
  std::vector<TensorForm> tensor_forms;  // in which the tensor-parallel ranks can cut the model
  std::vector<std::string> unpriced;     // fields that the prediction doesn't know: "path=value"
  std::string missing_shapes;            // of MissingShapes()
  report::RunProfile measured;           // a profile of a run of it; without ranks: none
};

// Parts of a step that take time, with what they are: computing first.
std::vector<std::pair<std::string, double>> PartsOf(const StepSeconds& seconds);

report::Table TimeTable(const Explanation& explanation);
report::Table TrafficTable(const Explanation& explanation);
// Only where there is another form than 1D. TensorSentences() say why ranks can't have a form, and
// where they have 1D alone.
report::Table TensorTable(const Explanation& explanation);
std::vector<std::string> TensorSentences(const Explanation& explanation);
report::Table MemoryTable(const Explanation& explanation);
report::Table RunTable(const Explanation& explanation);

// One sentence each: the step, the share of communication, the bubble, and what may be done about
// the greatest loss.
std::vector<std::string> Sentences(const Explanation& explanation);

// One sentence each: what the prediction doesn't know, and which of its figures are guesses.
std::vector<std::string> Doubts(const Explanation& explanation);

std::string ExplanationText(const Explanation& explanation);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PLAN_PLAN_EXPLAIN_TEXT_H_
