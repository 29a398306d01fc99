// Pictures of what a run's measured steps tell of each layer (logging.diagnostics_interval).
#ifndef MEGATRON_TOOLS_REPORT_LAYER_FIGURES_H_
#define MEGATRON_TOOLS_REPORT_LAYER_FIGURES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/report/document.h"
#include "tools/report/read_run.h"

namespace megatron::report {

// More runs would make a page too large.
inline constexpr size_t kMostRunsWithLayers = 2;

// Titles end with `of_run`, and ids begin with `id`. A run whose steps were not measured has no
// blocks. The pictures are the smaller the more `runs` there are.

// A heat map of layer by iteration for each metric of layers, but for those of experts.
std::vector<Block> LayerBlocks(const RunMetrics& metrics, const std::string& of_run,
                               absl::string_view id, size_t runs);
// The heat maps of the experts' metrics, and of layer by expert in the last step measured.
std::vector<Block> ExpertBlocks(const RunMetrics& metrics, const std::string& of_run,
                                absl::string_view id, size_t runs);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_LAYER_FIGURES_H_
