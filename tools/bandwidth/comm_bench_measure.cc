#include "tools/bandwidth/comm_bench_measure.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/collective.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"

namespace megatron {
namespace {

// Parts are cut at these boundaries, as nccl-tests cut them.
constexpr int64_t kPartAlignment = 16;

template <typename Fn>
void WithType(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::kFloat32:
      return fn([](double x) { return static_cast<float>(x); });
    case DType::kBFloat16:
      return fn([](double x) { return ToBFloat16(static_cast<float>(x)).bits; });
    case DType::kFloat16:
      return fn([](double x) { return ToFloat16(static_cast<float>(x)).bits; });
    case DType::kInt32:
      return fn([](double x) { return static_cast<int32_t>(x); });
    case DType::kInt64:
      return fn([](double x) { return static_cast<int64_t>(x); });
    case DType::kUInt8:
      return fn([](double x) { return static_cast<uint8_t>(x); });
    case DType::kUInt16:
      return fn([](double x) { return static_cast<uint16_t>(x); });
  }
}

using Formula = std::function<double(int64_t)>;

void Fill(const Tensor& tensor, const Formula& formula, const Stream& stream) {
  const HostMirror mirror(tensor, "comm_bench");
  WithType(tensor.dtype(), [&](auto convert) {
    auto* const values = static_cast<decltype(convert(0.0))*>(mirror.host().raw());
    for (int64_t i = 0; i < tensor.numel(); ++i) values[i] = convert(formula(i));
  });
  mirror.Send(stream);
}

int64_t CountWrong(const Tensor& tensor, const Formula& formula, const Stream& stream) {
  int64_t wrong = 0;
  const HostMirror mirror(tensor, "comm_bench");
  mirror.Fetch(stream);
  WithType(tensor.dtype(), [&](auto convert) {
    const auto* const values = static_cast<const decltype(convert(0.0))*>(mirror.host().raw());
    for (int64_t i = 0; i < tensor.numel(); ++i) wrong += values[i] != convert(formula(i));
  });
  return wrong;
}

// Element i of a rank's input: sums over 100 ranks are exact in every dtype.
double Value(int rank, int64_t i) { return static_cast<double>((rank + i) % 3); }

double Reduced(ReduceOp op, int ranks, int64_t i) {
  double result = Value(0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const double value = Value(rank, i);
    if (op == ReduceOp::kSum) result += value;
    if (op == ReduceOp::kMax) result = std::max(result, value);
    if (op == ReduceOp::kMin) result = std::min(result, value);
  }
  return result;
}

// One operation at one size: its buffers, what goes in, the call, and what comes out.
class Trial {
 public:
  Trial(BenchOperation operation, const CommBenchOptions& options, int64_t bytes, bool in_place,
        const ProcessGroup& group, const Stream& stream)
      : operation_(operation),
        options_(options),
        in_place_(in_place),
        group_(group),
        stream_(stream),
        count_(CountOf(bytes)),
        whole_(IsWhole() ? count_ : count_ * group.size()),
        input_(stream.device(), (in_place ? 0 : InputCount()) * SizeOf(options.dtype), "input",
               nullptr),
        output_(stream.device(), (in_place ? whole_ : OutputCount()) * SizeOf(options.dtype),
                "output", nullptr) {
    // An operation in place has its smaller buffer inside the larger one, as this rank's part.
    const int64_t part = group.rank() * count_ * SizeOf(options.dtype);
    const bool gathers = operation == BenchOperation::kAllGather;
    const bool scatters = operation == BenchOperation::kReduceScatter;
    in_ =
        in_place ? View(output_, gathers ? part : 0, InputCount()) : View(input_, 0, InputCount());
    out_ = View(output_, in_place && scatters ? part : 0, OutputCount());
  }

  static bool Exists(BenchOperation operation, bool in_place) {
    switch (operation) {
      case BenchOperation::kAllGather:
      case BenchOperation::kReduceScatter:
        return true;
      case BenchOperation::kAllReduce:
      case BenchOperation::kBroadcast:
        return in_place;
      case BenchOperation::kAllToAll:
      case BenchOperation::kSendRecv:
        return !in_place;
    }
    return false;
  }

  int64_t count() const { return count_; }
  int64_t size() const { return whole_ * SizeOf(options_.dtype); }

  void Call() const {
    switch (operation_) {
      case BenchOperation::kAllReduce:
        group_.AllReduce(in_, options_.reduce, stream_);
        return;
      case BenchOperation::kAllGather:
        group_.AllGather(in_, out_, stream_);
        return;
      case BenchOperation::kReduceScatter:
        group_.ReduceScatter(in_, out_, stream_, options_.reduce);
        return;
      case BenchOperation::kAllToAll:
        group_.AllToAll(in_, out_, stream_);
        return;
      case BenchOperation::kBroadcast:
        group_.Broadcast(in_, options_.root, stream_);
        return;
      case BenchOperation::kSendRecv: {
        const int next = (group_.rank() + 1) % group_.size();
        const int previous = (group_.rank() + group_.size() - 1) % group_.size();
        group_.Exchange({{next, in_}}, {{previous, out_}}, stream_);
        return;
      }
    }
  }

  void FillInput() const {
    const int rank = group_.rank();
    Fill(
        out_, [](int64_t) { return 0; }, stream_);
    Fill(
        in_, [rank](int64_t i) { return Value(rank, i); }, stream_);
  }

  int64_t Wrong() const {
    const int rank = group_.rank(), ranks = group_.size();
    const auto wrong = [this](const Tensor& tensor, const Formula& formula) {
      return CountWrong(tensor, formula, stream_);
    };
    switch (operation_) {
      case BenchOperation::kAllReduce:
        return wrong(in_, [&](int64_t i) { return Reduced(options_.reduce, ranks, i); });
      case BenchOperation::kAllGather:
        return wrong(out_,
                     [&](int64_t i) { return Value(static_cast<int>(i / count_), i % count_); });
      case BenchOperation::kReduceScatter:
        return wrong(out_,
                     [&](int64_t i) { return Reduced(options_.reduce, ranks, rank * count_ + i); });
      case BenchOperation::kAllToAll:
        return wrong(out_, [&](int64_t i) {
          return Value(static_cast<int>(i / count_), rank * count_ + i % count_);
        });
      case BenchOperation::kBroadcast:
        return wrong(in_, [&](int64_t i) { return Value(options_.root, i); });
      case BenchOperation::kSendRecv:
        return wrong(out_, [&](int64_t i) { return Value((rank + ranks - 1) % ranks, i); });
    }
    return 0;
  }

 private:
  // Returns whether one rank gives the whole buffer, not a part of it.
  bool IsWhole() const {
    return operation_ == BenchOperation::kAllReduce || operation_ == BenchOperation::kBroadcast ||
           operation_ == BenchOperation::kSendRecv;
  }

  int64_t CountOf(int64_t bytes) const {
    const int64_t element = SizeOf(options_.dtype);
    if (IsWhole()) return bytes / element;
    return bytes / group_.size() / kPartAlignment * kPartAlignment / element;
  }

  int64_t InputCount() const { return operation_ == BenchOperation::kAllGather ? count_ : whole_; }
  int64_t OutputCount() const {
    return operation_ == BenchOperation::kReduceScatter ? count_ : whole_;
  }
  Tensor View(const Buffer& buffer, int64_t offset, int64_t count) const {
    return buffer.At(offset, options_.dtype, {count});
  }

  const BenchOperation operation_;
  const CommBenchOptions& options_;
  const bool in_place_;
  const ProcessGroup& group_;
  const Stream& stream_;
  const int64_t count_, whole_;
  const Buffer input_, output_;
  Tensor in_, out_;
};

double Sum(double value, const ProcessGroup& group) {
  // Nanoseconds as whole numbers: there is no fp64.
  int64_t number = std::llround(value);
  ThreadPool pool(1);
  group.AllReduce(Tensor(&number, DType::kInt64, {1}), ReduceOp::kSum, Stream::Cpu(&pool));
  return static_cast<double>(number);
}

// All enqueued work is done here.
void Finish(const Stream& stream) {
  if (stream.device().type == DeviceType::kCuda) stream.cuda()->Synchronize();
}

CommBenchTiming Time(const Trial& trial, BenchOperation operation, const CommBenchOptions& options,
                     const ProcessGroup& group, const Stream& stream) {
  trial.FillInput();
  for (int i = 0; i < options.warmup; ++i) trial.Call();
  Finish(stream);
  group.Barrier(stream);
  const absl::Time begin = absl::Now();
  for (int i = 0; i < options.iterations; ++i) trial.Call();
  Finish(stream);
  const double nanoseconds = absl::ToDoubleNanoseconds(absl::Now() - begin) / options.iterations;
  CommBenchTiming timing;
  timing.microseconds = Sum(nanoseconds, group) / group.size() / 1e3;
  timing.algbw = static_cast<double>(trial.size()) / timing.microseconds / 1e3;
  timing.busbw = timing.algbw * BusBandwidthFactor(operation, group.size());
  if (options.check) {
    trial.FillInput();
    group.Barrier(stream);
    trial.Call();
    timing.wrong = std::llround(Sum(static_cast<double>(trial.Wrong()), group));
  }
  return timing;
}

}  // namespace

const char* Name(BenchOperation operation) {
  switch (operation) {
    case BenchOperation::kAllReduce:
      return "all_reduce";
    case BenchOperation::kAllGather:
      return "all_gather";
    case BenchOperation::kReduceScatter:
      return "reduce_scatter";
    case BenchOperation::kAllToAll:
      return "alltoall";
    case BenchOperation::kBroadcast:
      return "broadcast";
    case BenchOperation::kSendRecv:
      return "sendrecv";
  }
  return "?";
}

bool CommBenchResult::reduces() const {
  return operation == BenchOperation::kAllReduce || operation == BenchOperation::kReduceScatter;
}

double CommBenchResult::average_busbw() const {
  double sum = 0;
  int timings = 0;
  for (const CommBenchRow& row : rows) {
    for (const auto& timing : {row.out_of_place, row.in_place}) {
      if (!timing.has_value()) continue;
      sum += timing->busbw;
      ++timings;
    }
  }
  return timings == 0 ? 0 : sum / timings;
}

int64_t CommBenchResult::wrong() const {
  int64_t wrong = 0;
  for (const CommBenchRow& row : rows) {
    for (const auto& timing : {row.out_of_place, row.in_place}) {
      if (timing.has_value()) wrong += timing->wrong.value_or(0);
    }
  }
  return wrong;
}

double BusBandwidthFactor(BenchOperation operation, int ranks) {
  switch (operation) {
    case BenchOperation::kAllReduce:
      return BusBandwidthFactor(Collective::kAllReduce, ranks);
    case BenchOperation::kAllGather:
      return BusBandwidthFactor(Collective::kAllGather, ranks);
    case BenchOperation::kReduceScatter:
      return BusBandwidthFactor(Collective::kReduceScatter, ranks);
    case BenchOperation::kAllToAll:
      return BusBandwidthFactor(Collective::kAllToAll, ranks);
    case BenchOperation::kBroadcast:
      return BusBandwidthFactor(Collective::kBroadcast, ranks);
    case BenchOperation::kSendRecv:
      return BusBandwidthFactor(Collective::kExchange, ranks);
  }
  return 1;
}

absl::StatusOr<CommBenchResult> MeasureCollective(BenchOperation operation,
                                                  const CommBenchOptions& options,
                                                  const ProcessGroup& group, const Stream& stream) {
  CHECK_GE(options.iterations, 1);
  CommBenchResult result = {operation,      group.size(), options.dtype,
                            options.reduce, options.root, {}};
  for (int64_t bytes : options.sizes) {
    CommBenchRow row;
    for (bool in_place : {false, true}) {
      if (!Trial::Exists(operation, in_place)) continue;
      const Trial trial(operation, options, bytes, in_place, group, stream);
      row.size = trial.size();
      row.count = trial.count();
      (in_place ? row.in_place : row.out_of_place) = Time(trial, operation, options, group, stream);
      if (!group.status().ok()) return group.status();
    }
    result.rows.push_back(row);
  }
  return result;
}

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text) {
  double factor = 1;
  absl::string_view number = text;
  if (!text.empty()) {
    switch (text.back()) {
      case 'k':
      case 'K':
        factor = 1024.0;
        break;
      case 'm':
      case 'M':
        factor = 1024.0 * 1024;
        break;
      case 'g':
      case 'G':
        factor = 1024.0 * 1024 * 1024;
        break;
    }
  }
  if (factor != 1) number.remove_suffix(1);
  double value = 0;
  if (!absl::SimpleAtod(number, &value) || !(value >= 0) || value * factor > 1e15) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no size like 8, 64K, 1.5M, 2G"));
  }
  return std::llround(value * factor);
}

std::vector<int64_t> SizesBetween(int64_t begin, int64_t end, double factor) {
  CHECK_GT(factor, 1);
  std::vector<int64_t> sizes;
  for (double size = static_cast<double>(std::max<int64_t>(begin, 1)); std::llround(size) <= end;
       size *= factor) {
    const int64_t bytes = std::llround(size);
    if (sizes.empty() || bytes > sizes.back()) sizes.push_back(bytes);
  }
  return sizes;
}

}  // namespace megatron
