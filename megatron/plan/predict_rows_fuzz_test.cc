// Whatever the rows: each has a finite prediction or the reason why it has none.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/plan/csv_table.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/predict_rows.h"

namespace megatron {
namespace {

void CheckRows(const CsvTable& rows) {
  static const PlanFacts& facts = *new PlanFacts(*ParsePlanFacts(BuiltInPlanFacts()));
  static const MeasuredKernels& kernels =
      *new MeasuredKernels(*MeasuredKernels::Parse(*ParseCsv(BuiltInMeasuredKernels())));
  const auto predicted = PredictRows(facts, kernels, rows, {});
  if (!predicted.ok()) {
    CHECK(!predicted.status().message().empty());
    return;
  }
  for (const auto& row : predicted->rows) {
    CHECK_EQ(row.size(), predicted->columns.size());
    if (!row.back().empty()) continue;
    for (size_t i = rows.columns.size(); i < rows.columns.size() + 5; ++i) {
      double number = 0;
      CHECK(absl::SimpleAtod(row[i], &number) && std::isfinite(number)) << row[i];
    }
  }
}

}  // namespace
}  // namespace megatron

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto table =
      megatron::ParseCsv(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (table.ok()) megatron::CheckRows(*table);
  return 0;
}
