// Pictures of the metrics of runs, over iterations.
#ifndef MEGATRON_TOOLS_REPORT_METRIC_FIGURES_H_
#define MEGATRON_TOOLS_REPORT_METRIC_FIGURES_H_

#include <string>
#include <vector>

#include "tools/report/document.h"
#include "tools/report/metric_groups.h"
#include "tools/report/read_run.h"

namespace megatron::report {

class MetricFigures {
 public:
  // `runs` must outlive this.
  explicit MetricFigures(const std::vector<RunRecord>& runs);

  // Returns the pictures of a group: a picture for each metric that changes, with all runs in it.
  // kShares has a picture for each run and each whole, and the losses on training files are in one
  // picture for each run.
  std::vector<Block> Of(MetricGroup group);

  // Returns the metrics that never changed, with their values; no rows if all did.
  Table Constants() const;

  // Pictures beyond this number are left out, so that a page stays small.
  static constexpr int kMostFigures = 40;
  int left_out() const { return left_out_; }

 private:
  void AddCurves(const std::string& base, std::vector<Block>* blocks);
  // Adds the losses on training files.
  void AddFiles(const std::vector<std::string>& bases, std::vector<Block>* blocks);
  void AddShares(const std::vector<std::string>& bases, std::vector<Block>* blocks);
  std::string NextId();

  const std::vector<RunRecord>& runs_;
  std::vector<std::string> bases_;  // those of all runs, in the table's order
  int figures_ = 0, left_out_ = 0;
};

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_METRIC_FIGURES_H_
