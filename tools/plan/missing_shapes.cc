#include "tools/plan/missing_shapes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace megatron {

std::string MissingShapes(const PlannedRun& run, const Hardware& hardware,
                          const MeasuredKernels& kernels) {
  const PlanModel& model = run.model;
  const double tokens =
      double(run.layout.micro_batch * run.layout.sequence) / double(run.layout.cp);
  const double width = model.heads() * model.head_dim();
  const double keys = 2 * model.kv_heads() * model.head_dim();
  const double cut = double(run.layout.tp);
  const double inputs = model.is_gated() ? 2 : 1;
  std::vector<std::string> missing;
  for (const auto& [n, k] :
       std::vector<std::pair<double, double>>{{(width + keys) / cut, model.hidden()},
                                              {model.hidden(), width / cut},
                                              {inputs * model.ffn() / cut, model.hidden()},
                                              {model.hidden(), model.ffn() / cut}}) {
    const auto share = kernels.ShareOfPeak(hardware.name(), {"product", "forward", tokens, n, k});
    const std::string shape = absl::StrFormat("%.0fx%.0fx%.0f", tokens, n, k);
    const bool is_new = std::find(missing.begin(), missing.end(), shape) == missing.end();
    if (!share.has_value() && is_new) missing.push_back(shape);
  }
  if (missing.empty()) return "";
  return absl::StrCat("not measured on ", hardware.name(),
                      ", taken from a curve: products (rows x outputs x inputs) of ",
                      absl::StrJoin(missing, ", "));
}

}  // namespace megatron
