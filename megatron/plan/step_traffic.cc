#include "megatron/plan/step_traffic.h"

#include <algorithm>
#include <utility>

#include "megatron/plan/data_traffic.h"
#include "megatron/plan/expert_dispatch.h"
#include "megatron/plan/hybrid_layers.h"
#include "megatron/plan/low_rank_costs.h"
#include "megatron/plan/matrix_rule_costs.h"

namespace megatron {
namespace {

class Traffic {
 public:
  Traffic(const Implementation& program, const PlanModel& model, const PlanLayout& layout,
          const TrafficStage& stage)
      : program_(program), model_(model), l_(layout), stage_(stage) {}

  std::vector<TrafficRow> Rows() {
    AddTensor();
    AddContext();
    AddExperts();
    AddPipeline();
    AddData();
    for (TrafficRow& row : rows_) row.route = program_.route();
    return std::move(rows_);
  }

 private:
  double element_bytes() const { return l_.precision == PlanPrecision::k32Bits ? 4 : 2; }
  double micro_batches() const { return double(l_.micro_batches); }
  double tokens() const { return double(l_.micro_batch) * l_.sequence / l_.cp; }
  double activation() const { return element_bytes() * tokens() * model_.hidden(); }
  // What an encoder reads.
  double read() const { return double(l_.micro_batch) * model_.encoder_sequence() / double(l_.cp); }
  double read_activation() const { return element_bytes() * read() * model_.hidden(); }
  // The layers that are no encoder's, and those of them that attend to one.
  double layers() const {
    return double(stage_.layers.dense + stage_.layers.mixtures +
                  AllBranches(stage_.layers.branches));
  }
  double encoders() const { return double(stage_.layers.encoders); }
  double Of(PlanBranch branch) const { return double(stage_.layers.branches[branch]); }
  // The layers that attend to each other's tokens, and those that have experts.
  double attending() const {
    return double(stage_.layers.dense + stage_.layers.mixtures) + Of(kAttentionBranch);
  }
  double mixtures() const { return double(stage_.layers.mixtures) + Of(kExpertsBranch); }
  double readers() const { return model_.encoder_layers() > 0 ? layers() : 0; }
  // Passes forward of a micro-batch, and passes in all: recomputation is a forward pass.
  double forwards() const { return l_.recompute == PlanRecompute::kFull ? 2 : 1; }
  double kv_width() const { return model_.kv_heads() * model_.head_dim(); }
  // Keys and values of a rank, whole heads of them: several ranks have the same where there are
  // more ranks than heads.
  double own_kv_width() const { return kv_width() * double(KeySharers()) / double(l_.tp); }
  // The tensor-parallel ranks that have the same keys and values.
  int64_t KeySharers() const {
    if (l_.grid.is_grid() || model_.kv_heads() < 1) return 1;
    return std::max<int64_t>(1, l_.tp / int64_t(model_.kv_heads()));
  }
  double query_width() const { return model_.heads() * model_.head_dim(); }

  void Add(TrafficAxis axis, TrafficCall call, const char* what, PlanGroup group, double bytes,
           double calls, bool is_of_experts = false) {
    if (group.ranks < 2 || bytes <= 0 || calls <= 0) return;
    TrafficRow row;
    row.axis = axis;
    row.call = call;
    row.what = what;
    row.group = group;
    row.bytes = bytes;
    row.calls = calls;
    row.is_of_experts = is_of_experts;
    rows_.push_back(std::move(row));
  }

  MatrixRuleLayer Rule(bool is_mixture) const {
    return MatrixRuleCosts(program_, model_, l_, is_mixture);
  }

  // The first rank has most of the weights of each layer.
  void AddRule() {
    for (const bool is_mixture : {false, true}) {
      const int64_t count = is_mixture ? stage_.layers.mixtures : stage_.layers.dense;
      if (count == 0) continue;
      MatrixRuleLayer rule = Rule(is_mixture);
      for (TrafficRow& row : rule.traffic) {
        row.calls *= double(count);
        rows_.push_back(std::move(row));
      }
    }
  }

  // What embedding, head and norms send is left out.
  void AddGrid() {
    const LayerMatrices layer =
        MatricesOf(int64_t(model_.hidden()), int64_t(model_.ffn()), model_.is_gated(),
                   int64_t(model_.heads()), int64_t(model_.kv_heads()), int64_t(model_.head_dim()));
    for (const GridCall& call : GridCallsOf(layer, l_.grid, tokens(), element_bytes())) {
      Add(TrafficAxis::kTensor, call.sums ? TrafficCall::kReduceScatter : TrafficCall::kAllGather,
          call.what, {call.ranks, call.stride}, call.bytes,
          call.calls * micro_batches() * layers() * (call.is_forward ? forwards() : 1));
    }
    if (!l_.grid.is_cube) {
      Add(TrafficAxis::kTensor, TrafficCall::kAllReduce, "gradients over levels",
          {l_.grid.depth, 1},
          4 * (layers() * double(layer.elements) / weight_ranks() + NumTables() * WordTable()), 1);
    }
  }

  void AddTensor() {
    if (l_.grid.is_grid()) return AddGrid();
    const PlanGroup group{l_.tp, 1};
    const auto add = [&](TrafficCall call, const char* what, double bytes, double calls) {
      Add(TrafficAxis::kTensor, call, what, group, bytes, calls);
    };
    const double m = micro_batches();
    // Attention and the MLP of a dense layer, and one branch of a hybrid model's. Experts gather
    // rows and give them back themselves.
    const double cut = 2 * double(stage_.layers.dense) + double(stage_.layers.mixtures) +
                       double(AllBranches(stage_.layers.branches)) - Of(kExpertsBranch);
    const double shared = model_.shared_ffn() > 0 ? mixtures() : 0;
    // The projection to keys and values that ranks share is one of its own, which reads its input
    // and gives back the gradient of it beside the projection to queries.
    const double shared_keys = KeySharers() > 1 ? attending() : 0;
    const char* const of_keys = "activations of shared keys and values";
    const char* const inner = "activations of attention and MLP";
    const char* const of_shared = "activations of shared experts";
    const char* const ends = "activations of embedding and head";
    const char* const encoder = "activations of the encoder";
    const char* const cross = "activations of attention to the encoder";
    const char* const output = "the encoder's output";
    if (l_.is_sequence_parallel) {
      add(TrafficCall::kAllGather, encoder, read_activation(),
          m * 2 * encoders() * (forwards() + 2));
      add(TrafficCall::kReduceScatter, encoder, read_activation(),
          m * 2 * encoders() * (forwards() + 1));
      add(TrafficCall::kAllGather, cross, activation(), m * readers() * (forwards() + 2));
      add(TrafficCall::kReduceScatter, cross, activation(), m * readers() * (forwards() + 1));
      add(TrafficCall::kAllGather, output, read_activation(), m * readers() * (forwards() + 1));
      add(TrafficCall::kReduceScatter, output, read_activation(), m * readers());
      add(TrafficCall::kAllGather, "activations of the encoder's embedding", read_activation(),
          m * stage_.has_embedding);
      add(TrafficCall::kReduceScatter, "activations of the encoder's embedding", read_activation(),
          m * stage_.has_embedding);
      add(TrafficCall::kAllGather, inner, activation(), m * cut * (forwards() + 2));
      add(TrafficCall::kReduceScatter, inner, activation(), m * cut * (forwards() + 1));
      add(TrafficCall::kAllGather, of_shared, activation(), m * shared * (forwards() + 2));
      add(TrafficCall::kReduceScatter, of_shared, activation(), m * shared * (forwards() + 1));
      add(TrafficCall::kAllGather, ends, activation(),
          m * (stage_.has_embedding + 2 * stage_.has_head));
      add(TrafficCall::kReduceScatter, ends, activation(),
          m * (stage_.has_embedding + stage_.has_head));
      const double norms = (model_.hybrid_layers().empty() ? 2 : 1) * layers() + 2 * encoders() +
                           readers() + stage_.has_head;
      add(TrafficCall::kAllReduce, "gradients of norms", 4 * model_.hidden() * norms, 1);
      add(TrafficCall::kAllGather, of_keys, activation(), m * shared_keys * (forwards() + 1));
      add(TrafficCall::kReduceScatter, of_keys, activation(), m * shared_keys);
    } else {
      add(TrafficCall::kAllReduce, encoder, read_activation(),
          m * 2 * encoders() * (forwards() + 1));
      add(TrafficCall::kAllReduce, cross, activation(), m * readers() * (forwards() + 1));
      add(TrafficCall::kAllReduce, output, read_activation(), m * readers());
      add(TrafficCall::kAllReduce, "activations of the encoder's embedding", read_activation(),
          m * stage_.has_embedding);
      add(TrafficCall::kAllReduce, inner, activation(), m * cut * (forwards() + 1));
      add(TrafficCall::kAllReduce, of_shared, activation(), m * shared * (forwards() + 1));
      add(TrafficCall::kAllReduce, of_keys, activation(), m * shared_keys);
      add(TrafficCall::kAllReduce, ends, activation(),
          m * (stage_.has_embedding + stage_.has_head));
      // Results and input gradients of experts, of which each rank has a share of the rows.
      add(TrafficCall::kAllReduce, "rows of experts", activation(),
          m * mixtures() * (forwards() + 1));
    }
    add(TrafficCall::kAllReduce, "gradients of routers",
        4 * model_.hidden() * model_.experts() * mixtures(), 1);
    Add(TrafficAxis::kTensor, TrafficCall::kAllReduce, "gradients of shared keys and values",
        {KeySharers(), 1}, 4 * 2 * own_kv_width() * model_.hidden() * shared_keys, 1);
    add(TrafficCall::kAllReduce, "gradients of heads' norms",
        4 * Of(kDeltaBranch) * model_.delta_value_dim(), 1);
    AddNormSums(TrafficAxis::kTensor, group);
    add(TrafficCall::kAllReduce, "largest logits", 4 * tokens(), m * stage_.has_head);
    add(TrafficCall::kAllReduce, "sums of the loss", 2 * 4 * tokens(), m * stage_.has_head);
    AddRule();
  }

  // So many layers have queries of some tokens, which see keys and values of others.
  struct Attention {
    const char* what;
    const char* gradients;
    double queries = 0;
    double keys = 0;
    double layers = 0;
  };

  void AddContext() {
    const char* const keys = "keys and values";
    const char* const gradients = "gradients of keys and values";
    AddContext({keys, gradients, tokens(), tokens(), attending()});
    AddStates(kMambaBranch);
    AddStates(kDeltaBranch);
    AddContext({"keys and values of the encoder", "gradients of keys and values of the encoder",
                read(), read(), encoders()});
    AddContext({"keys and values of the encoder's output",
                "gradients of keys and values of the encoder's output", tokens(), read(),
                readers()});
  }

  void AddContext(const Attention& attention) {
    const PlanGroup all{l_.cp, l_.tp};
    switch (l_.context) {
      case PlanContext::kRing:
        return AddRing(all, attention);
      case PlanContext::kAllToAll:
        AddHeadExchange(all, attention);
        return AddChunks(all, attention);
      case PlanContext::kGather:
        return AddGather(all, attention);
      case PlanContext::kTeams:
        AddHeadExchange({l_.cp_team, l_.tp}, attention);
        return AddRing({l_.cp / l_.cp_team, l_.tp * l_.cp_team}, attention);
    }
  }

  // Tokens are exchanged for groups of heads in front of a recurrence, and back behind its norm; in
  // backward gradients go both ways, and what the norm gives once more.
  void AddStates(PlanBranch branch) {
    if (Of(branch) == 0) return;
    const RecurrenceCosts costs = Recurrence(branch);
    const auto add = [&](const char* what, double channels, double passes) {
      Add(TrafficAxis::kContext, TrafficCall::kAllToAll, what, {l_.cp, l_.tp},
          element_bytes() * tokens() * channels, micro_batches() * Of(branch) * passes);
    };
    add("projections of groups of heads", costs.packed, forwards() + 1);
    add("outputs of groups of heads", costs.outputs, forwards() + 2);
    if (branch == kMambaBranch) AddNormSums(TrafficAxis::kContext, {l_.cp, l_.tp});
  }

  // Each rank that has some groups of heads which are normalized together has all of their tokens.
  void AddNormSums(TrafficAxis axis, const PlanGroup& group) {
    if (!NormsAllGroups(kMambaBranch, model_)) return;
    Add(axis, TrafficCall::kAllReduce, "sums of norms of all groups of heads", group,
        NormSumBytes(tokens() * double(l_.cp)),
        micro_batches() * Of(kMambaBranch) * (forwards() + 1));
  }

  // Those of each tensor-parallel rank.
  RecurrenceCosts Recurrence(PlanBranch branch) const {
    LayerShape layer;
    SetStateSizes(model_, double(l_.tp), &layer);
    return RecurrenceOf(branch, layer);
  }

  double CallsOf(const Attention& attention) const { return micro_batches() * attention.layers; }
  // Elements of a rank's keys and values, which are as many behind an exchange of heads.
  double KeysOf(const Attention& attention) const { return 2 * attention.keys * own_kv_width(); }

  void AddHeadExchange(const PlanGroup& group, const Attention& attention) {
    const double queries = attention.queries * query_width() / l_.tp;
    Add(TrafficAxis::kContext, TrafficCall::kAllToAll, "heads of attention", group,
        element_bytes() * (2 * queries + KeysOf(attention)), CallsOf(attention) * (forwards() + 1));
  }

  void AddChunks(const PlanGroup& group, const Attention& attention) {
    if (l_.attention_chunk == 0 || l_.attention_chunk >= l_.sequence) return;
    Add(TrafficAxis::kContext, TrafficCall::kAllToAll, "outputs of attention in chunks", group,
        element_bytes() * attention.queries * query_width() / l_.tp, CallsOf(attention));
  }

  void AddRing(const PlanGroup& group, const Attention& attention) {
    const double hops = double(group.ranks - 1);
    Add(TrafficAxis::kContext, TrafficCall::kMessage, attention.what, group,
        element_bytes() * KeysOf(attention), CallsOf(attention) * (forwards() + 1) * hops);
    Add(TrafficAxis::kContext, TrafficCall::kMessage, attention.gradients, group,
        4 * KeysOf(attention), CallsOf(attention) * double(group.ranks));
  }

  void AddGather(const PlanGroup& group, const Attention& attention) {
    const double all_keys = double(group.ranks) * KeysOf(attention);
    Add(TrafficAxis::kContext, TrafficCall::kAllGather, attention.what, group,
        element_bytes() * all_keys, CallsOf(attention) * (forwards() + 1));
    Add(TrafficAxis::kContext, TrafficCall::kReduceScatter, attention.gradients, group,
        4 * all_keys, CallsOf(attention));
  }

  // Rows go to each part of their experts and come back, in either pass; so they do to hosts.
  void AddExperts() {
    const ExpertRows rows = ExpertRowsOf(model_, l_);
    const double of_row = element_bytes() * model_.hidden();
    const auto add = [&](const char* what, const PlanGroup& group, double bytes, double calls) {
      Add(TrafficAxis::kExpert, TrafficCall::kAllToAll, what, group, bytes,
          calls * micro_batches() * mixtures(), /*is_of_experts=*/true);
    };
    add("rows of experts", rows.to_experts, of_row * rows.of_experts * double(l_.etp),
        2 * (forwards() + 1));
    add("rows to hosts", rows.across_hosts, of_row * rows.of_hosts, 2 * (forwards() + 1));
    add("choices of experts", rows.across_hosts, BytesOfChoices(model_) * rows.of_hosts,
        forwards());
    add("gradients of probabilities", rows.across_hosts,
        BytesOfProbabilities(model_) * rows.of_hosts, 1);
  }

  void AddPipeline() {
    if (l_.pp < 2) return;
    const int64_t stride = l_.pipeline_stride();
    const int64_t parts = MessageParts(program_, l_.tp, l_.shares_rows());
    Add(TrafficAxis::kPipeline, TrafficCall::kMessage, "activations and gradients", {l_.pp, stride},
        (activation() + read_activation()) / double(parts), stage_.messages);
    if (model_.is_tied() && stage_.has_embedding != stage_.has_head) {
      Add(TrafficAxis::kPipeline, TrafficCall::kAllReduce, "gradients of the tied embedding",
          {2, stride * (l_.pp - 1)}, GradientBytes(program_, l_) * WordTable(), 1);
    }
  }

  double weight_ranks() const { return double(l_.weight_ranks()); }
  double WordTable() const { return model_.vocab() * model_.hidden() / weight_ranks(); }

  // Parameters of the rank that all of its data-parallel ranks have.
  double DenseParameters() const {
    const double h = model_.hidden();
    double attention =
        h * (2 * query_width() + 2 * kv_width() * double(KeySharers())) / weight_ranks();
    if (model_.key_value_rank() > 0) {
      attention = h * (model_.query_rank() + model_.key_value_rank() + model_.rope_dim()) +
                  (model_.query_rank() * model_.heads() * (model_.head_dim() + model_.rope_dim()) +
                   2 * model_.key_value_rank() * query_width() + h * query_width()) /
                      l_.tp;
    }
    const double halves = model_.is_gated() ? 3 : 2;
    const double mixture =
        h * model_.experts() + halves * h * model_.shared_ffn() / l_.tp;  // with the router
    const double mlp = halves * h * model_.ffn() / weight_ranks();
    if (!model_.hybrid_layers().empty()) {
      double branches = layers() * h + Of(kAttentionBranch) * attention + Of(kMlpBranch) * mlp +
                        Of(kExpertsBranch) * mixture;
      for (const PlanBranch branch : {kMambaBranch, kDeltaBranch}) {
        if (Of(branch) == 0) continue;
        const RecurrenceCosts costs = Recurrence(branch);
        branches += Of(branch) * (h * (costs.packed + costs.outputs) + costs.vectors);
      }
      return branches + EndParameters();
    }
    return (layers() + encoders()) * (attention + 2 * h) + readers() * (attention + h) +
           double(stage_.layers.mixtures) * mixture +
           (double(stage_.layers.dense) + encoders()) * mlp + EndParameters();
  }

  // The backward pass does not need the embedding, but a head that is tied to it.
  double GatheredBesides() const {
    if (!stage_.has_embedding) return 0;
    return model_.is_tied() && stage_.has_head ? WordTable() : -WordTable();
  }

  // Those of embedding, head and last norm.
  double EndParameters() const {
    return NumTables() * WordTable() + (stage_.has_head ? model_.hidden() : 0);
  }

  double NumTables() const {
    const bool has_two_tables = stage_.has_embedding && stage_.has_head && !model_.is_tied();
    return has_two_tables ? 2 : stage_.has_embedding || stage_.has_head ? 1 : 0;
  }

  double ExpertParameters() const {
    const double halves = model_.is_gated() ? 3 : 2;
    return mixtures() * halves * model_.hidden() * model_.expert_ffn() * model_.experts() /
           double(l_.ep * l_.etp);
  }

  void AddData() {
    // Padding is that of layers which are as most of the stage's.
    const MatrixRuleLayer rule = Rule(stage_.layers.mixtures > stage_.layers.dense);
    const double ends = EndParameters();
    const double dense =
        ends * rule.table_padding + (DenseParameters() - ends) * rule.dense_padding;
    const double experts = ExpertParameters() * rule.expert_padding;
    const LowRankSavings of_dense = LowRankSavingsOfLayer(model_, l_, /*is_mixture=*/false),
                         of_mixture = LowRankSavingsOfLayer(model_, l_, /*is_mixture=*/true);
    const double saved = double(stage_.layers.dense) * of_dense.dense +
                         mixtures() * of_mixture.dense +
                         NumTables() * LowRankSavingsOfWordTable(model_, l_);
    for (const SharedParameters& parameters :
         {SharedParameters{DenseCopies(l_), dense, false, GatheredBesides() * rule.table_padding,
                           dense - saved,
                           layers() + encoders() + stage_.has_embedding + stage_.has_head},
          SharedParameters{ExpertCopies(l_), experts, true, 0,
                           experts - mixtures() * of_mixture.experts, std::max(1.0, mixtures())}}) {
      for (TrafficRow& row : DataTraffic(program_, l_, parameters)) rows_.push_back(std::move(row));
    }
    if (l_.clips_scores) {
      Add(TrafficAxis::kData, TrafficCall::kAllReduce, kLargestScores, {l_.gpus(), 1},
          ScoreBytes(model_), 1);
    }
  }

  const Implementation& program_;
  const PlanModel& model_;
  const PlanLayout& l_;
  const TrafficStage& stage_;
  std::vector<TrafficRow> rows_;
};

}  // namespace

std::vector<TrafficRow> StepTraffic(const Implementation& program, const PlanModel& model,
                                    const PlanLayout& layout, const TrafficStage& stage) {
  return Traffic(program, model, layout, stage).Rows();
}

}  // namespace megatron
