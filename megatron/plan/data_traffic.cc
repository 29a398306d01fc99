#include "megatron/plan/data_traffic.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace megatron {
namespace {

// Bytes of an element in codes with their scales, of ZeRO++ (optim/quantized_collectives.h): 8 bits
// and a scale for 256 elements, 4 bits and one for 64.
constexpr double kWeightCode = 1 + 4.0 / 256;
constexpr double kGradientCode = 0.5 + 4.0 / 64;
// Bytes of an element in 32 bits with its place.
constexpr double kPlacedElement = 4 + 4;

double ElementBytes(const PlanLayout& layout) {
  return layout.precision == PlanPrecision::k32Bits ? 4 : 2;
}

class Rows {
 public:
  Rows(const Implementation& program, const PlanLayout& layout, const SharedParameters& parameters)
      : program_(program),
        l_(layout),
        parameters_(parameters),
        elements_(parameters.count),
        micro_batches_(double(layout.micro_batches)),
        element_bytes_(ElementBytes(layout)),
        gradient_bytes_(GradientBytes(program, layout)),
        shards_(Part(layout.instances)) {}

  std::vector<TrafficRow> Make() {
    if (elements_ <= 0) return {};
    AddBetweenInstances();
    if (compresses() && l_.instances == 1) {
      AddCompressed(shards_, 1, /*everywhere=*/!program_.shards_optimizer());
      if (program_.shards_optimizer()) AddGatherOfWeights();
    } else if (l_.shards_parameters) {
      AddGathers();
      AddReductions();
    } else if (program_.shards_optimizer()) {
      const double reductions = l_.shards_gradients ? micro_batches_ : 1;
      Add(TrafficCall::kReduceScatter, gradients(), shards_, gradient_bytes_, reductions)
          .hideable_calls = 1;
      AddGatherOfWeights();
    } else {
      Add(TrafficCall::kAllReduce, gradients(), shards_, gradient_bytes_, 1);
    }
    rows_.erase(std::remove_if(rows_.begin(), rows_.end(),
                               [](const TrafficRow& row) {
                                 return row.group.ranks < 2 || row.bytes <= 0 || row.calls <= 0;
                               }),
                rows_.end());
    if (program_.sends_by_layer()) CutByLayer();
    return std::move(rows_);
  }

 private:
  // Outer gradients, which nothing hides, are sent whole.
  void CutByLayer() {
    for (TrafficRow& row : rows_) {
      if (row.hideable_calls == 0) continue;
      row.bytes /= parameters_.layers;
      row.coded_bytes /= parameters_.layers;
      row.calls *= parameters_.layers;
      row.hideable_calls *= parameters_.layers;
    }
  }

  const char* gradients() const {
    return parameters_.are_of_experts ? "gradients of experts" : "gradients";
  }
  const char* weights() const {
    return parameters_.are_of_experts ? "weights of experts" : "weights";
  }

  // The ranks are so many runs of neighbours: the ranks of one, and those in the same place of all.
  PlanGroup Part(int64_t runs) const {
    if (runs == 1) return parameters_.ranks;
    return {std::max<int64_t>(1, parameters_.ranks.ranks / runs), parameters_.ranks.stride};
  }
  PlanGroup Across(int64_t runs) const {
    const PlanGroup part = Part(runs);
    return {runs, part.stride * part.ranks};
  }

  // Adds calls which all may run beside the backward pass.
  TrafficRow& Add(TrafficCall call, const char* what, PlanGroup group, double bytes_of_element,
                  double calls) {
    TrafficRow row;
    row.axis = TrafficAxis::kData;
    row.call = call;
    row.what = what;
    row.group = group;
    row.bytes = bytes_of_element * elements_;
    row.calls = row.hideable_calls = calls;
    row.is_of_experts = parameters_.are_of_experts;
    if (l_.ranks_per_host > 0) row.ranks_of_host = RanksInDomain(group, l_.ranks_per_host);
    rows_.push_back(std::move(row));
    return rows_.back();
  }

  void AddGatherOfWeights() { Add(TrafficCall::kAllGather, weights(), shards_, element_bytes_, 1); }

  bool compresses() const { return l_.compression.form != PlanCompression::kNone; }

  // Adds the sum of gradients over a group of which each rank has a part 1 / cut of the elements.
  // Errors are added to them before they are coded, and are what codes lack of them behind that:
  // the bytes of memory are those of the passes over elements and errors.
  void AddCompressed(PlanGroup group, double cut, bool everywhere) {
    const PlanCompression& form = l_.compression;
    const double elements = elements_ / cut, ranks = double(group.ranks);
    switch (form.form) {
      case PlanCompression::kCodes: {
        TrafficRow& sums = Add(TrafficCall::kAllToAll, gradients(), group, kWeightCode / cut, 1);
        sums.ranks_of_host = 1;
        sums.coded_bytes = elements * (12 + 2 * kWeightCode + 4 / ranks);
        if (!everywhere) return;
        TrafficRow& shards = Add(TrafficCall::kAllGather, gradients(), group, kWeightCode / cut, 1);
        shards.coded_bytes = elements * ((12 + kWeightCode) / ranks + kWeightCode + 4);
        return;
      }
      case PlanCompression::kLargest: {
        const double sent = kPlacedElement * form.density * ranks;
        TrafficRow& row = Add(TrafficCall::kAllGather, gradients(), group, sent / cut, 1);
        row.coded_bytes = elements * (40 + 2 * sent);
        return;
      }
      case PlanCompression::kLowRank: {
        const double sent = 4 * parameters_.low_rank_count / elements_;
        TrafficRow& row = Add(TrafficCall::kAllReduce, gradients(), group, sent / cut, 1);
        row.coded_bytes = 32 * elements;
        return;
      }
      case PlanCompression::kNone:
        return;
    }
  }

  TrafficRow& AddBetween(TrafficCall call, const char* what, double bytes_of_element) {
    return Add(call, what, Across(l_.instances), bytes_of_element / double(shards_.ranks), 1);
  }

  void AddBetweenInstances() {
    if (l_.sync_every > 0) return AddOuterGradients();
    if (l_.shards_states_over_instances) {
      AddBetween(TrafficCall::kReduceScatter, gradients(), gradient_bytes_);
      AddBetween(TrafficCall::kAllGather, weights(), element_bytes_);
    } else if (compresses()) {
      AddCompressed(Across(l_.instances), double(shards_.ranks), /*everywhere=*/true);
    } else {
      AddBetween(TrafficCall::kAllReduce, gradients(), gradient_bytes_);
    }
  }

  // Islands sum outer gradients of 32 bits, or gather the codes of all. Nothing is beside it.
  void AddOuterGradients() {
    const double code = l_.outer_code_bytes, islands = double(l_.instances);
    const char* const what =
        parameters_.are_of_experts ? "outer gradients of experts" : "outer gradients";
    TrafficRow& row = code > 0 ? AddBetween(TrafficCall::kAllGather, what, islands * code)
                               : AddBetween(TrafficCall::kAllReduce, what, 4);
    row.calls = 1 / double(l_.sync_every);
    row.hideable_calls = 0;
    if (code > 0)
      row.coded_bytes = elements_ / double(shards_.ranks) * (4 + code + islands * code + 4);
  }

  // Weights come for each pass; with secondary shards after the first one within a host.
  void AddGathers() {
    const double calls = 2 * micro_batches_;
    const double gathered = calls * elements_ + micro_batches_ * parameters_.gathered_besides;
    TrafficRow& row =
        Add(TrafficCall::kAllGather, weights(), shards_,
            l_.quantizes_weights ? kWeightCode : element_bytes_, l_.hosts > 1 ? 1 : calls);
    if (l_.hosts == 1) row.bytes *= gathered / (calls * elements_);
    if (l_.quantizes_weights)
      row.coded_bytes =
          elements_ * (kWeightCode + element_bytes_) * (1 + 1 / double(shards_.ranks));
    if (l_.hosts == 1) return;
    TrafficRow& in_host =
        Add(TrafficCall::kAllGather,
            parameters_.are_of_experts ? "weights of experts, in a host" : "weights, in a host",
            Part(l_.hosts), element_bytes_, calls - 1);
    in_host.bytes = element_bytes_ * (gathered - elements_) / (calls - 1);
    in_host.ranks_of_host = 1;
  }

  // Gradients go once for each micro-batch; as codes within a host, and their sums across hosts.
  void AddReductions() {
    if (!l_.quantizes_gradients) {
      Add(TrafficCall::kReduceScatter, gradients(), shards_, gradient_bytes_, micro_batches_);
      return;
    }
    const PlanGroup host = Part(l_.hosts);
    AddExchange(host, 1);
    if (l_.hosts > 1) AddExchange(Across(l_.hosts), double(host.ranks));
  }

  // Each rank codes its elements, and adds up those of its part that all have sent.
  void AddExchange(PlanGroup group, double cut) {
    TrafficRow& row =
        Add(TrafficCall::kAllToAll, gradients(), group, kGradientCode / cut, micro_batches_);
    row.ranks_of_host = 1;
    row.coded_bytes = elements_ / cut * (4 + 2 * kGradientCode + 4 / double(group.ranks));
  }

  const Implementation& program_;
  const PlanLayout& l_;
  const SharedParameters& parameters_;
  const double elements_;
  const double micro_batches_;
  const double element_bytes_;
  const double gradient_bytes_;
  const PlanGroup shards_;
  std::vector<TrafficRow> rows_;
};

}  // namespace

PlanGroup DenseCopies(const PlanLayout& layout) {
  const int64_t copies = layout.dp * layout.cp;
  if (!layout.data_is_outermost) return {copies, layout.tp};
  const int64_t stride = layout.tp * layout.cp * layout.pp;
  if (layout.cp == 1) return {copies, stride};
  return {copies, layout.tp, layout.cp, stride};
}

PlanGroup ExpertCopies(const PlanLayout& layout) {
  const int64_t ranks = layout.ep * layout.etp;
  return {std::max<int64_t>(1, layout.dp * layout.cp * layout.tp / ranks),
          layout.data_is_outermost ? ranks * layout.pp : ranks};
}

double GradientBytes(const Implementation& program, const PlanLayout& layout) {
  if (program.gradient_bytes() > 0) return program.gradient_bytes();
  return program.shards_optimizer() || layout.shards_parameters ? 4 : ElementBytes(layout);
}

std::vector<TrafficRow> DataTraffic(const Implementation& program, const PlanLayout& layout,
                                    const SharedParameters& parameters) {
  return Rows(program, layout, parameters).Make();
}

}  // namespace megatron
