#include "megatron/plan/expert_dispatch.h"

#include <algorithm>
#include <cstdint>

namespace megatron {

// A host is left out if all choices are among the experts of the others.
double ExpectedHosts(double hosts, double experts, double choices) {
  double left_out = 1;
  for (double chosen = 0; chosen < choices; ++chosen) {
    left_out *= std::max(0.0, experts - experts / hosts - chosen) / (experts - chosen);
  }
  return hosts * (1 - left_out);
}

ExpertRows ExpertRowsOf(const PlanModel& model, const PlanLayout& layout) {
  const int64_t ranks = layout.ep * layout.etp;
  const double tokens =
      double(layout.micro_batch) * double(layout.sequence) / double(layout.cp) / double(layout.tp);
  ExpertRows rows;
  rows.to_experts = {ranks, 1};
  rows.of_experts = tokens * model.experts_per_token();
  if (!layout.deduplicates_dispatch || layout.ranks_per_host == 0) return rows;
  const int64_t of_host = std::min(ranks, layout.ranks_per_host), hosts = ranks / of_host;
  rows.to_experts = {of_host, 1};
  rows.across_hosts = {hosts, of_host};
  rows.of_hosts = tokens * ExpectedHosts(double(hosts), model.experts(), model.experts_per_token());
  return rows;
}

double ExpertExchangeSeconds(const Hardware& gpu, const Implementation& program,
                             const PlanModel& model, const PlanLayout& layout) {
  if (layout.ep * layout.etp == 1) return 0;
  const ExpertRows rows = ExpertRowsOf(model, layout);
  const double of_row = (layout.precision == PlanPrecision::k32Bits ? 4 : 2) * model.hidden();
  const auto exchange = [&](const PlanGroup& group, double bytes) {
    return CollectiveSeconds(gpu, program, TrafficCall::kAllToAll, group, bytes);
  };
  const int64_t cut = layout.etp;
  const double bytes = of_row * rows.of_experts;
  double seconds = 0;
  if (gpu.cores() > 0) {
    // A row goes to each of the ranks that share its expert, in the same call.
    seconds = 4 * exchange(rows.to_experts, bytes * double(cut));
  } else {
    // Ranks that share an expert gather its rows and add up what it gives.
    const auto whole = [&](TrafficCall call) {
      return CollectiveSeconds(gpu, program, call, {cut, 1}, bytes * double(cut));
    };
    seconds = 4 * exchange({rows.to_experts.ranks / cut, cut}, bytes) +
              2 * (whole(TrafficCall::kAllGather) + whole(TrafficCall::kReduceScatter));
  }
  const bool is_by_host = rows.across_hosts.ranks > 1;
  if (is_by_host) {
    const double to_hosts = of_row * rows.of_hosts;
    seconds += 4 * exchange(rows.across_hosts, to_hosts) +
               exchange(rows.across_hosts, BytesOfChoices(model) * rows.of_hosts) +
               exchange(rows.across_hosts, BytesOfProbabilities(model) * rows.of_hosts);
  }
  // What goes within a host of deduplicated dispatch is sent by the thread that computes.
  seconds += (is_by_host ? 6 : 4) * LaneSeconds(gpu);
  // The numbers of rows go first; what GPUs wait for them is in routing_seconds.
  if (gpu.cores() > 0 && (is_by_host || !layout.drops_tokens)) {
    const double hosts = double(rows.across_hosts.ranks);
    seconds += exchange(rows.to_experts, 8 * model.experts() / hosts * double(cut)) +
               exchange(rows.across_hosts, 8 * hosts);
  }
  return seconds;
}

}  // namespace megatron
