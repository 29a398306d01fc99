#include "megatron/plan/rank_states.h"

namespace megatron {
namespace {

bool Has32Bits(const PlanLayout& layout) { return layout.precision == PlanPrecision::k32Bits; }

double ElementBytes(const PlanLayout& layout) { return Has32Bits(layout) ? 4 : 2; }

// Returns the bytes of the states that may lie in host memory. Weights of 32 bits need no master
// copies.
double MovableBytes(const Implementation& program, const PlanLayout& layout, double parameters,
                    double copies) {
  const bool shares = program.shards_optimizer() || layout.shards_parameters;
  return (Has32Bits(layout) ? 8 : 12) * parameters / (shares ? NumStateShards(layout, copies) : 1);
}

// Returns the bytes of a parameter that compressed gradients take besides. What they lack is an
// element for each that is summed, and with codes one more for each of a rank's part of a sum that
// all need.
double ErrorBytes(const Implementation& program, const PlanLayout& layout, double copies) {
  if (layout.compression.form == PlanCompression::kNone || copies < 2) return 0;
  const bool is_between = layout.instances > 1;
  const double errors = is_between ? 4 / Shards(layout, copies) : 4;
  const bool codes_sums = layout.compression.form == PlanCompression::kCodes &&
                          (is_between || !program.shards_optimizer());
  return errors + (codes_sums ? 4 / copies : 0);
}

}  // namespace

double StateBytes(const Implementation& program, const PlanLayout& layout, double parameters,
                  double copies) {
  const double moved = HostStateBytes(program, layout, parameters, copies) +
                       FileStateBytes(program, layout, parameters, copies);
  const bool has_masters = !Has32Bits(layout);
  const double kept = has_masters ? 6 : 8, states = has_masters ? 12 : 8;
  // Islands hold a global copy and a momentum.
  const double outer = layout.sync_every > 0 ? 8 / Shards(layout, copies) : 0;
  const double errors = ErrorBytes(program, layout, copies);
  if (layout.shards_parameters) {
    const double secondary =
        layout.hosts > 1 ? ElementBytes(layout) * double(layout.hosts) / copies : 0;
    return parameters * (kept / Shards(layout, copies) + states / NumStateShards(layout, copies) +
                         secondary + outer + errors) -
           moved;
  }
  if (program.shards_optimizer())
    return parameters * (kept + states / NumStateShards(layout, copies) + outer + errors) - moved;
  const double all = has_masters && !program.holds_fp32_gradients() ? 16 : kept + states;
  return parameters * (all + errors) - moved;
}

double HostStateBytes(const Implementation& program, const PlanLayout& layout, double parameters,
                      double copies) {
  const double weights = (ElementBytes(layout) + 4) * parameters /
                         (layout.shards_parameters ? Shards(layout, copies) : 1);
  const double states =
      layout.states_in_files
          ? 0
          : layout.host_fraction * MovableBytes(program, layout, parameters, copies);
  return states + (layout.weights_on_host ? weights : 0);
}

double FileStateBytes(const Implementation& program, const PlanLayout& layout, double parameters,
                      double copies) {
  if (!layout.states_in_files) return 0;
  return layout.host_fraction * MovableBytes(program, layout, parameters, copies);
}

}  // namespace megatron
