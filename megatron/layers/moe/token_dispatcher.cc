#include "megatron/layers/moe/token_dispatcher.h"

#include <algorithm>
#include <numeric>

#include "megatron/layers/moe/capacity.h"
#include "megatron/ops/moe/permute.h"
#include "megatron/tensor/host_mirror.h"

namespace megatron {
namespace {

// The host must know the sizes of messages, so on an accelerator this waits for them.
std::vector<int64_t> OnHost(const Stream& stream, const Tensor& x) {
  std::vector<int64_t> values(x.numel());
  Transport(stream, x, Tensor(values.data(), DType::kInt64, x.shape()));
  return values;
}

// Returns the sums of runs of `length`.
std::vector<int64_t> SumsOfRuns(const std::vector<int64_t>& values, int64_t length) {
  std::vector<int64_t> sums;
  for (size_t begin = 0; begin < values.size(); begin += length) {
    sums.push_back(
        std::accumulate(values.begin() + begin, values.begin() + begin + length, int64_t{0}));
  }
  return sums;
}

}  // namespace

int64_t TokenDispatcher::Plan::num_sent() const {
  return std::accumulate(sent.begin(), sent.end(), int64_t{0});
}

int64_t TokenDispatcher::Plan::num_received() const {
  return std::accumulate(received.begin(), received.end(), int64_t{0});
}

TokenDispatcher::TokenDispatcher(const MoeOptions& options, const ExpertGroups& groups)
    : options_(options),
      group_(groups.dispatches_by_host() ? groups.host : groups.model),
      hosts_(groups.across_hosts.size()),
      num_experts_(options.num_experts / hosts_),
      copies_(groups.tensor.size()) {}

int64_t TokenDispatcher::RowsOfExpert(const LayerContext& ctx) const {
  const int64_t ranks = ctx.tensor_group.size();
  const int64_t rows = (ctx.batch->num_tokens() + ranks - 1) / ranks;
  if (!options_.capacity_factor.has_value()) return rows;
  const int64_t here = SampleTokensHere(*ctx.batch);
  const int64_t samples = std::min(ctx.batch->num_samples, (rows + here - 1) / here + 1);
  return std::min(rows, samples * ExpertCapacity(options_, SampleLength(ctx)));
}

int64_t TokenDispatcher::MostReceived(const LayerContext& ctx) const {
  const int64_t ranks = ctx.tensor_group.size();
  const int64_t rows =
      (ctx.batch->num_tokens() + ranks - 1) / ranks;  // the most rows of one sender
  const int64_t choices = rows * std::min<int64_t>(options_.router.topk, local_experts());
  return hosts_ * group_.size() * std::min(choices, local_experts() * RowsOfExpert(ctx));
}

void TokenDispatcher::PlanPadded(int64_t of_expert, Plan* plan) const {
  const int size = group_.size();
  plan->sent.assign(size, local_experts() * of_expert);
  plan->received = plan->sent;
  plan->groups.clear();
  for (int64_t i = 0; i < size * local_experts(); ++i)
    plan->groups.push_back({i % local_experts(), i * of_expert, (i + 1) * of_expert});
}

void TokenDispatcher::PlanLargest(const LayerContext& ctx, int64_t rows, Plan* plan) const {
  const int size = group_.size();
  plan->sent.assign(size, 0);
  plan->received.assign(size, 0);
  plan->sent[0] = rows * std::min<int64_t>(options_.router.topk, num_experts_) * copies_;
  plan->received[0] = alone() ? plan->sent[0] : MostReceived(ctx);
  plan->groups = {{0, 0, plan->received[0]}};
}

void TokenDispatcher::MakePlan(const LayerContext& ctx, const Tensor& expert_NK, Plan* plan) const {
  Arena::Scope scope(ctx.scratch);
  const int64_t rows = expert_NK.dim(0);
  const int64_t experts = local_experts(), ranks = expert_ranks();
  plan->place_NKC =
      ctx.saved->Allocate(DType::kInt32, {rows, expert_NK.dim(1), copies_}, "permutation");
  const Tensor sent_RCL =
      ctx.scratch->Allocate(DType::kInt64, {ranks, copies_, experts}, "rows sent");
  const int64_t padded = pads() ? RowsOfExpert(ctx) : 0;
  ops::PlaceByExpert(ctx.stream, expert_NK, plan->place_NKC, sent_RCL, padded);
  if (pads()) return PlanPadded(padded, plan);
  const Tensor received_GL =
      ctx.scratch->Allocate(DType::kInt64, {ranks * copies_, experts}, "rows received");
  group_.AllToAll(sent_RCL.View(received_GL.shape()), received_GL, ctx.stream);
  if (ctx.stream.is_meta()) return PlanLargest(ctx, rows, plan);

  const std::vector<int64_t> sent = OnHost(ctx.stream, sent_RCL);
  const std::vector<int64_t> received = alone() ? sent : OnHost(ctx.stream, received_GL);
  plan->sent = SumsOfRuns(sent, experts);
  plan->received = SumsOfRuns(received, experts);
  plan->groups.clear();
  int64_t begin = 0;
  for (size_t i = 0; i < received.size(); ++i) {
    const int64_t end = begin + received[i];
    if (end > begin) plan->groups.push_back({static_cast<int64_t>(i) % experts, begin, end});
    begin = end;
  }
}

AsyncCall TokenDispatcher::ToExperts(const LayerContext& ctx, const Plan& plan,
                                     const Tensor& sent_SH, Arena* arena, Tensor* rows_RH) const {
  *rows_RH = sent_SH;
  if (alone()) return AsyncCall();
  *rows_RH =
      arena->Allocate(sent_SH.dtype(), {plan.num_received(), sent_SH.dim(1)}, "rows of experts");
  return StartAsync(
      group_, ctx.stream, TimeCategory::kExpertParallel,
      [&plan, sent_SH, rows = *rows_RH](const ProcessGroup& group, const Stream& stream) {
        group.AllToAllV(sent_SH, plan.sent, rows, plan.received, stream);
      });
}

AsyncCall TokenDispatcher::FromExperts(const LayerContext& ctx, const Plan& plan,
                                       const Tensor& rows_RH, Arena* arena,
                                       Tensor* returned_SH) const {
  *returned_SH = rows_RH;
  if (alone()) return AsyncCall();
  *returned_SH =
      arena->Allocate(rows_RH.dtype(), {plan.num_sent(), rows_RH.dim(1)}, "rows returned");
  return StartAsync(
      group_, ctx.stream, TimeCategory::kExpertParallel,
      [&plan, rows_RH, returned = *returned_SH](const ProcessGroup& group, const Stream& stream) {
        group.AllToAllV(rows_RH, plan.received, returned, plan.sent, stream);
      });
}

}  // namespace megatron
