#include "megatron/comm/tcp/tcp_routed_move.h"

#include <algorithm>
#include <cstring>

#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/host_reduce.h"
#include "megatron/tensor/stream.h"

namespace megatron {
namespace {

constexpr int64_t kAlignment = 64;  // bytes, of segments and of scratch memory
// A segment has at most, and unless there is less, at least these bytes.
constexpr int64_t kMostSegmentBytes = 1 << 18, kLeastSegmentBytes = 1 << 14;
// Scratch memory is kept below this where segments need not be shorter than the least for it.
constexpr int64_t kMostScratchBytes = 1 << 23;
constexpr int kMostParts = 5;  // a slot's parts: two children, own values, sum, result
// Below this many bytes a sum is not worth a thread pool's wake-up.
constexpr int64_t kParallelBytes = 1 << 18;

}  // namespace

TcpRoutedMove::TcpRoutedMove(TcpGroup* group, const CollectiveCall& call, const Stream& stream)
    : group_(*group),
      call_(call),
      stream_(stream),
      rank_(group->rank),
      size_(group->size()),
      number_(group->calls),
      whole_(call.collective == Collective::kAllGather ? call.out : call.in),
      dtype_(whole_.dtype()),
      partial_dtype_(reduces() ? PartialDType(dtype_) : dtype_),
      element_(SizeOf(dtype_)),
      partial_element_(SizeOf(partial_dtype_)) {
  CutIntoSegments();
  if (reduces()) {
    PlanReduction();
  } else {
    PlanSpread();
  }
}

bool TcpRoutedMove::reduces() const {
  return call_.collective == Collective::kAllReduce ||
         call_.collective == Collective::kReduceScatter;
}

// A tensor has several segments for each step of the way, so that most of the way is used at once.
void TcpRoutedMove::CutIntoSegments() {
  window_ = LongestWay(call_.algorithm, size_) + 1;
  const int64_t most =
      std::clamp(kMostScratchBytes / (window_ * kMostParts), kLeastSegmentBytes, kMostSegmentBytes);
  const int64_t count = whole_.numel();
  const int64_t bytes = std::clamp(RoundUp(count * partial_element_ / (4 * window_), kAlignment),
                                   kLeastSegmentBytes, most);
  segment_elements_ = bytes / partial_element_;
  const bool owned =
      call_.collective == Collective::kReduceScatter || call_.collective == Collective::kAllGather;
  const int owners = owned ? size_ : 1;
  const int64_t part = count / owners;
  for (int owner = 0; owner < owners; ++owner) {
    for (int64_t begin = 0; begin < part; begin += segment_elements_) {
      Segment segment;
      segment.begin = owner * part + begin;
      segment.count = std::min(segment_elements_, part - begin);
      if (owned) segment.owner = owner;
      if (call_.collective == Collective::kBroadcast) segment.owner = call_.root;
      segments_.push_back(segment);
    }
  }
}

void TcpRoutedMove::PlanReduction() {
  const int root = SumRoot(call_.algorithm, size_);
  up_ = SumRoute(call_.algorithm, size_, rank_);
  down_ = SpreadRoute(call_.algorithm, size_, root, rank_);
  lag_ = down_.parent < 0 ? 0 : up_.depth + down_.depth;
  parts_ = static_cast<int>(up_.children.size()) + 3;
  partials_.resize(window_);
  results_.resize(window_);
  sent_.resize(window_);
  const size_t scratch =
      window_ * parts_ * RoundUp(segment_elements_ * partial_element_, kAlignment);
  if (group_.scratch.size() < scratch) group_.scratch.resize(scratch);
  if (call_.collective != Collective::kReduceScatter) return;
  passes_.resize(size_);
  child_passes_.assign(down_.children.size(), std::vector<bool>(size_));
  for (int owner = 0; owner < size_; ++owner) {
    passes_[owner] = IsOnWay(call_.algorithm, size_, root, owner, rank_);
    for (size_t i = 0; i < down_.children.size(); ++i) {
      child_passes_[i][owner] = IsOnWay(call_.algorithm, size_, root, owner, down_.children[i]);
    }
  }
}

// What comes from near is there before what comes from far.
void TcpRoutedMove::PlanSpread() {
  spread_.resize(size_);
  for (size_t i = 0; i < segments_.size(); ++i) {
    const int owner = segments_[i].owner;
    if (i == 0 || owner != segments_[i - 1].owner) {
      spread_[owner] = SpreadRoute(call_.algorithm, size_, owner, rank_);
    }
    order_.push_back(static_cast<int>(i));
  }
  std::stable_sort(order_.begin(), order_.end(), [this](int a, int b) {
    return spread_[segments_[a].owner].depth < spread_[segments_[b].owner].depth;
  });
  received_.resize(segments_.size());
}

char* TcpRoutedMove::Slot(int segment, int part) const {
  const int64_t stride = RoundUp(segment_elements_ * partial_element_, kAlignment);
  return group_.scratch.data() + ((segment % window_) * parts_ + part) * stride;
}

TcpRoutedMove::Piece TcpRoutedMove::Whole(const Segment& segment) const {
  return {static_cast<char*>(whole_.raw()) + segment.begin * element_, segment.count * element_};
}

// Nothing if the segment's result does not pass this rank.
TcpRoutedMove::Piece TcpRoutedMove::Result(int index) const {
  const Segment& segment = segments_[index];
  if (segment.owner < 0) return Whole(segment);
  if (segment.owner == rank_) {
    const int64_t begin = segment.begin - rank_ * call_.out.numel();
    return {static_cast<char*>(call_.out.raw()) + begin * element_, segment.count * element_};
  }
  if (!passes_[segment.owner]) return {};
  return {Slot(index, parts_ - 1), segment.count * element_};
}

void TcpRoutedMove::ExpectPartials(int index) {
  for (size_t i = 0; i < up_.children.size(); ++i) {
    ExpectFrom(up_.children[i], 2 * index,
               {Slot(index, static_cast<int>(i)), segments_[index].count * partial_element_},
               &partials_[index % window_]);
  }
}

void TcpRoutedMove::ExpectResult(int index) {
  if (down_.parent < 0) return;
  ExpectFrom(down_.parent, 2 * index + 1, Result(index), &results_[index % window_]);
}

void TcpRoutedMove::Expect() {
  const int segments = static_cast<int>(segments_.size());
  if (reduces()) {
    for (int index = 0; index < std::min(segments, window_); ++index) {
      ExpectPartials(index);
      ExpectResult(index);
    }
    return;
  }
  for (int index = 0; index < segments; ++index) {
    const int parent = spread_[segments_[index].owner].parent;
    if (parent >= 0) ExpectFrom(parent, index, Whole(segments_[index]), &received_[index]);
  }
}

absl::Status TcpRoutedMove::Run(const Await& await) {
  return reduces() ? RunReduction(await) : RunSpread(await);
}

// Before a rank sends a segment up, it has passed on the result of the one `window_` before. That
// result was made of what every rank had sent up, so the segment's place is free everywhere.
absl::Status TcpRoutedMove::RunReduction(const Await& await) {
  const int segments = static_cast<int>(segments_.size());
  for (int step = 0; step < segments + lag_; ++step) {
    if (step < segments) {
      MEGATRON_RETURN_IF_ERROR(SumUp(step, await));
    }
    if (step >= lag_) {
      MEGATRON_RETURN_IF_ERROR(PassResult(step - lag_, await));
    }
  }
  for (TcpOperation& sent : sent_) MEGATRON_RETURN_IF_ERROR(await(&sent));
  return absl::OkStatus();
}

absl::Status TcpRoutedMove::SumUp(int index, const Await& await) {
  MEGATRON_RETURN_IF_ERROR(await(&partials_[index % window_]));
  if (index >= window_) {
    MEGATRON_RETURN_IF_ERROR(await(&sent_[index % window_]));  // until the slot is free
    ExpectResult(index);
  }
  const int64_t count = segments_[index].count;
  char* const sum = Slot(index, parts_ - 2);
  if (up_.parent < 0 && partial_dtype_ == dtype_) {
    Sum(index, Result(index).data);
  } else {
    Sum(index, sum);
  }
  if (index + window_ < static_cast<int>(segments_.size())) ExpectPartials(index + window_);
  if (up_.parent >= 0) {
    SendTo(up_.parent, 2 * index, {sum, count * partial_element_}, &sent_[index % window_]);
  } else if (partial_dtype_ != dtype_) {
    FromPartial(dtype_, sum, count, Result(index).data);
  }
  return absl::OkStatus();
}

void TcpRoutedMove::Sum(int index, void* output) const {
  const Segment& segment = segments_[index];
  const void* own = Whole(segment).data;
  if (partial_dtype_ != dtype_) {
    char* const wide = Slot(index, parts_ - 3);
    ToPartial(dtype_, own, segment.count, wide);
    own = wide;
  }
  // A rank stands between the ranks below it on either side.
  std::vector<const void*> inputs;
  size_t child = 0;
  for (; child < up_.children.size() && up_.children[child] < rank_; ++child) {
    inputs.push_back(Slot(index, static_cast<int>(child)));
  }
  inputs.push_back(own);
  for (; child < up_.children.size(); ++child) {
    inputs.push_back(Slot(index, static_cast<int>(child)));
  }
  const auto body = [&](int64_t begin, int64_t end) {
    ReduceOnHost(partial_dtype_, call_.reduce, inputs, begin, end, absl::MakeSpan(&output, 1));
  };
  if (segment.count * partial_element_ < kParallelBytes) return body(0, segment.count);
  stream_.pool()->ParallelFor(segment.count, body);
}

absl::Status TcpRoutedMove::PassResult(int index, const Await& await) {
  MEGATRON_RETURN_IF_ERROR(await(&results_[index % window_]));  // the root waits for none
  const int owner = segments_[index].owner;
  for (size_t i = 0; i < down_.children.size(); ++i) {
    const bool passes = owner < 0 || child_passes_[i][owner];
    SendTo(down_.children[i], 2 * index + 1, passes ? Result(index) : Piece{},
           &sent_[index % window_]);
  }
  return absl::OkStatus();
}

absl::Status TcpRoutedMove::RunSpread(const Await& await) {
  const bool gathers = call_.collective == Collective::kAllGather;
  for (const int index : order_) {
    const Segment& segment = segments_[index];
    MEGATRON_RETURN_IF_ERROR(await(&received_[index]));
    Piece piece = Whole(segment);
    if (gathers && segment.owner == rank_) {
      const int64_t begin = segment.begin - rank_ * call_.in.numel();
      piece.data = static_cast<char*>(call_.in.raw()) + begin * element_;
    }
    for (const int child : spread_[segment.owner].children) {
      SendTo(child, index, piece, &moving_);
    }
  }
  if (gathers && call_.in.bytes() > 0) {
    char* const place = static_cast<char*>(call_.out.raw()) + rank_ * call_.in.bytes();
    if (place != call_.in.raw()) std::memcpy(place, call_.in.raw(), call_.in.bytes());
  }
  return await(&moving_);
}

void TcpRoutedMove::ExpectFrom(int peer, uint32_t tag, const Piece& piece,
                               TcpOperation* operation) {
  group_.mesh->ReceiveData(group_.Key(FrameKind::kData, peer, number_, tag), piece.data,
                           piece.bytes, operation);
}

void TcpRoutedMove::SendTo(int peer, uint32_t tag, const Piece& piece, TcpOperation* operation) {
  group_.mesh->SendData(group_.Key(FrameKind::kData, peer, number_, tag), piece.data, piece.bytes,
                        operation);
}

}  // namespace megatron
