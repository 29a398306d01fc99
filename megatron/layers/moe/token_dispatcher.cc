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

int64_t Sum(absl::Span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// Returns the part's rows of all that are sent, or come back.
Tensor SentOf(const TokenDispatcher::Plan& plan, size_t part, const Tensor& x_SH) {
  const TokenDispatcher::PartMessages& message = plan.messages[part];
  return x_SH.Slice(0, message.first_sent, message.first_sent + Sum(message.sent));
}

// A shared expert hides all of the way by itself, and what goes within a host is in the open.
bool DispatchesInParts(const MoeOptions& options, const ExpertGroups& groups) {
  return options.dispatch_in_parts && options.shared_ffn_hidden_size == 0 &&
         !groups.dispatches_by_host() && groups.model.size() > 1 &&
         options.num_experts > groups.expert.size();
}

}  // namespace

int64_t TokenDispatcher::Plan::num_sent() const {
  return messages.back().first_sent + Sum(messages.back().sent);
}

int64_t TokenDispatcher::Plan::num_received() const { return parts.back().end; }

TokenDispatcher::TokenDispatcher(const MoeOptions& options, const ExpertGroups& groups)
    : options_(options),
      group_(groups.dispatches_by_host() ? groups.host : groups.model),
      hosts_(groups.across_hosts.size()),
      num_experts_(options.num_experts / hosts_),
      copies_(groups.tensor.size()),
      parts_(DispatchesInParts(options, groups) ? 2 : 1) {}

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

void TokenDispatcher::SetRows(absl::Span<const int64_t> sent, absl::Span<const int64_t> received,
                              Plan* plan) const {
  const int64_t experts = local_experts();
  plan->messages.assign(parts_, {});
  plan->parts.assign(parts_, {});
  plan->groups.clear();
  int64_t sent_rows = 0, rows = 0;
  for (int64_t i = 0; i < parts_; ++i) {
    PartMessages& message = plan->messages[i];
    ExpertPart& part = plan->parts[i];
    part.experts = {ops::FirstOfPart(i, parts_, experts), ops::FirstOfPart(i + 1, parts_, experts)};
    part.begin = rows;
    message.first_sent = sent_rows;
    const size_t count = part.experts.end - part.experts.begin;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const int64_t first = rank * experts + part.experts.begin;
      message.sent.push_back(Sum(sent.subspan(first, count)));
      message.received.push_back(Sum(received.subspan(first, count)));
      sent_rows += message.sent.back();
      for (int64_t expert = part.experts.begin; expert < part.experts.end; ++expert) {
        const int64_t end = rows + received[rank * experts + expert];
        if (end > rows) {
          plan->groups.push_back({expert, rows, end});
          part.groups.push_back({expert, rows - part.begin, end - part.begin});
        }
        rows = end;
      }
    }
    part.end = rows;
  }
}

// Parts take memory for all rows together, so it does not matter whose they are.
void TokenDispatcher::PlanLargest(const LayerContext& ctx, int64_t rows, Plan* plan) const {
  std::vector<int64_t> sent(group_.size() * local_experts()), received = sent;
  sent[0] = rows * std::min<int64_t>(options_.router.topk, num_experts_) * copies_;
  received[0] = alone() ? sent[0] : MostReceived(ctx);
  SetRows(sent, received, plan);
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
  ops::PlaceByExpert(ctx.stream, expert_NK, plan->place_NKC, sent_RCL, padded, parts_);
  if (pads()) {
    const std::vector<int64_t> of_each(sent_RCL.numel(), padded);
    return SetRows(of_each, of_each, plan);
  }
  const Tensor received_GL =
      ctx.scratch->Allocate(DType::kInt64, {ranks * copies_, experts}, "rows received");
  group_.AllToAll(sent_RCL.View(received_GL.shape()), received_GL, ctx.stream);
  if (ctx.stream.is_meta()) return PlanLargest(ctx, rows, plan);

  const std::vector<int64_t> sent = OnHost(ctx.stream, sent_RCL);
  SetRows(sent, alone() ? sent : OnHost(ctx.stream, received_GL), plan);
}

std::vector<AsyncCall> TokenDispatcher::ToExperts(const LayerContext& ctx, const Plan& plan,
                                                  const Tensor& sent_SH, Arena* arena,
                                                  Tensor* rows_RH) const {
  *rows_RH = sent_SH;
  if (alone()) return {AsyncCall()};
  *rows_RH =
      arena->Allocate(sent_SH.dtype(), {plan.num_received(), sent_SH.dim(1)}, "rows of experts");
  std::vector<AsyncCall> calls;
  for (int64_t i = 0; i < parts_; ++i) {
    calls.push_back(StartAsync(
        group_, ctx.stream, TimeCategory::kExpertParallel,
        [&message = plan.messages[i], sent = SentOf(plan, i, sent_SH),
         rows = plan.parts[i].Of(*rows_RH)](const ProcessGroup& group, const Stream& stream) {
          group.AllToAllV(sent, message.sent, rows, message.received, stream);
        }));
  }
  return calls;
}

AsyncCall TokenDispatcher::FromExperts(const LayerContext& ctx, const Plan& plan, size_t part,
                                       const Tensor& rows_RH, const Tensor& returned_SH) const {
  if (alone()) return AsyncCall();
  return StartAsync(group_, ctx.stream, TimeCategory::kExpertParallel,
                    [&message = plan.messages[part], rows = plan.parts[part].Of(rows_RH),
                     returned = SentOf(plan, part, returned_SH)](const ProcessGroup& group,
                                                                 const Stream& stream) {
                      group.AllToAllV(rows, message.received, returned, message.sent, stream);
                    });
}

}  // namespace megatron
