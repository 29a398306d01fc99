// What is known of a run of several ranks when it ends.
#ifndef MEGATRON_TRAIN_METRICS_RUN_SUMMARY_H_
#define MEGATRON_TRAIN_METRICS_RUN_SUMMARY_H_

#include <optional>
#include <vector>

#include "megatron/train/metrics/communication_table.h"
#include "megatron/train/metrics/what_if.h"

namespace megatron {

struct RunSummary {
  std::vector<CommunicationRow> communication;
  std::optional<WhatIf> what_if;  // unset if no step could be replayed
  std::vector<Saving> savings;    // those of what_if
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_RUN_SUMMARY_H_
