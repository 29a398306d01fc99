#include "megatron/plan/update_seconds.h"

#include <algorithm>

#include "megatron/plan/rank_states.h"

namespace megatron {
namespace {

// Elements that a file of states reads, and writes, at once (optim/state_file.h).
constexpr double kExtentElements = 1 << 20;

double LinkRate(const Hardware& gpu, const Implementation& program) {
  return gpu.host_link_gb_per_s() * 1e9 * program.link_efficiency();
}

// Returns the seconds of the processor's update. A gradient of 32 bits comes to the host and a
// weight goes back; weights of 32 bits, which are their own masters, come too. The link carries
// both directions at once. Where all lie in host memory, gradients went to the GPU before, for
// their norm. AdamW reads and writes the master and both moments, reads the gradient and writes the
// weight. Elements move while others are updated. States in files are read, and written, meanwhile:
// nothing hides the read of the first extent, nor the write of the last.
double HostSeconds(const Hardware& gpu, const Implementation& program, const PlanLayout& layout,
                   double elements) {
  if (elements == 0) return 0;
  const bool has_masters = layout.precision != PlanPrecision::k32Bits;
  const double moved = has_masters ? std::max(4, 2) : std::max(4 + 4, 4);
  const double touched = has_masters ? 4 + 3 * 8 + 2 : 4 + 3 * 8;
  const double link = LinkRate(gpu, program);
  const double update = touched / (gpu.host_memory_gb_per_s() * 1e9 * program.memory_efficiency());
  double read = 0, write = 0;
  if (layout.states_in_files && KnowsDisk(gpu)) {
    const double bytes = has_masters ? 12 : 8;
    read = bytes / (gpu.disk_read_gb_per_s() * 1e9);
    write = bytes / (gpu.disk_write_gb_per_s() * 1e9);
  }
  const double ends = std::min(elements, kExtentElements) * (read + write);
  const double of_element = std::max({update, read, write});
  return ends + elements * (layout.weights_on_host ? 4 / link + of_element
                                                   : std::max(moved / link, of_element));
}

}  // namespace

// The processor updates its part while the GPU updates the rest.
double UpdateSeconds(const Hardware& gpu, const Implementation& program, const PlanLayout& layout,
                     const RankRates& rates, const RankParameters& parameters,
                     const MatrixRuleLayer& rule) {
  const bool shares = program.shards_optimizer() || layout.shards_parameters;
  // Elements of the rank that has most.
  const auto of_rank = [&](double elements, double padding, double copies) {
    return shares ? elements * padding / NumStateShards(layout, copies) : elements;
  };
  const double of_tables = of_rank(parameters.tables, rule.table_padding, NumDenseCopies(layout));
  const double of_matrices =
      of_rank(parameters.layers, rule.dense_padding, NumDenseCopies(layout)) +
      of_rank(parameters.experts, rule.expert_padding, NumExpertCopies(layout));
  const double updated = of_tables + of_matrices;
  const double on_gpu = (1 - layout.host_fraction) *
                        (UpdatedBytes(layout, /*is_of_table=*/true) * of_tables +
                         UpdatedBytes(layout, /*is_of_table=*/false) * of_matrices) /
                        rates.optimizer;
  // The outer step reads the weight, the global copy, the momentum and the sum, and writes the
  // difference and the first three.
  const double outer =
      layout.sync_every > 0 ? 8 * 4 * updated / double(layout.sync_every) / rates.optimizer : 0;
  return 6 * (parameters.layers + parameters.tables + parameters.experts) / rates.optimizer +
         outer +
         std::max(on_gpu, HostSeconds(gpu, program, layout, layout.host_fraction * updated));
}

// Gradients that are shared out are zeros in front of each micro-batch, and each rank adds its part
// of their sum to that of the micro-batches before.
double SumSeconds(const PlanLayout& layout, const RankRates& rates,
                  const RankParameters& parameters) {
  if (!layout.shards_parameters && !layout.shards_gradients) return 0;
  const auto bytes = [&](double count, double copies) {
    return count * (4 + 3 * 4 / Shards(layout, copies));
  };
  return double(layout.micro_batches) *
         (bytes(parameters.layers + parameters.tables, NumDenseCopies(layout)) +
          bytes(parameters.experts, NumExpertCopies(layout))) /
         rates.optimizer;
}

// Weights in host memory cross the link for each pass, and gradients to it and, after the first
// micro-batch, from it, while others go the other way. All but the first layer of a pass come
// beside the passes of a micro-batch.
double FetchSeconds(const Hardware& gpu, const Implementation& program, const PlanLayout& layout,
                    const RankRates& rates, const LayerCosts& layer, double layers, double table,
                    double window) {
  if (!layout.weights_on_host) return 0;
  const auto shard = [&](double parameters, double copies) {
    return parameters / (layout.shards_parameters ? Shards(layout, copies) : 1);
  };
  const double of_layer = shard(layer.parameters, NumDenseCopies(layout)) +
                          shard(layer.expert_parameters, NumExpertCopies(layout));
  const double tables = shard(table, NumDenseCopies(layout));
  const double link = LinkRate(gpu, program);
  const double m = double(layout.micro_batches);
  const double first = 2 * of_layer * rates.element_bytes / link;
  const double moved = std::max(2 * rates.element_bytes + 4 * (1 - 1 / m), 4.0);
  // Activations go one way and come the other, beside both, and so do chunks of attention.
  const double bytes = (layers * of_layer + tables) * moved + layers * layer.host_bytes;
  return m * std::max(first, bytes / link + layers * layer.link_seconds - window);
}

}  // namespace megatron
