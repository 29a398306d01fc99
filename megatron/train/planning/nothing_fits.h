// Says why a search of layouts has found none.
#ifndef MEGATRON_TRAIN_PLANNING_NOTHING_FITS_H_
#define MEGATRON_TRAIN_PLANNING_NOTHING_FITS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/planning/search_layouts.h"

namespace megatron {

// Expects the arguments of a search whose `best` is empty. Returns kInvalidArgument with the rules
// that leave nothing, or with the layout that needs least memory and the number of ranks that would
// do. That may take as long as several searches.
absl::Status NothingFits(const config::PretrainConfig& config, int64_t vocab_size,
                         const Planner& planner, const SearchOptions& options,
                         const LayoutSearch& found);

// Returns "it would fit on 64 GPUs, and on 16 GPUs with the host's memory", of numbers above that of
// the options, or "nor does it fit on more GPUs". That may take as long as several searches.
absl::StatusOr<std::string> RanksToTake(const config::PretrainConfig& config, int64_t vocab_size,
                                        const Planner& planner, SearchOptions options);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_NOTHING_FITS_H_
