#include "megatron/tensor/emulated_order.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "glog/logging.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/emulated_cuda.h"

namespace megatron {
namespace {

int64_t ThisThread() {
  static std::atomic<int64_t> threads{0};
  static thread_local const int64_t number = ++threads;
  return number;
}

int64_t Count(const EmulatedPoint& point, int64_t stream) {
  const auto found = point.find(stream);
  return found == point.end() ? 0 : found->second;
}

void Merge(const EmulatedPoint& from, EmulatedPoint* to) {
  for (const auto& [stream, count] : from) {
    int64_t& mine = (*to)[stream];
    mine = std::max(mine, count);
  }
}

thread_local LostWait* lost_wait = nullptr;

bool Collide(const EmulatedAccess& a, const EmulatedAccess& b) {
  return (a.writes || b.writes) && a.begin < b.end && b.begin < a.end;
}

struct Operation {
  int64_t number;
  std::string name;
  std::vector<EmulatedAccess> accesses;
};

struct StreamState {
  int64_t number = 0, thread = 0;
  int64_t operations = 0;
  EmulatedPoint after;              // what all of its operations from now on come after
  std::deque<Operation> unordered;  // operations that some other stream may overtake
};

class Order {
 public:
  static Order& Get() {
    static Order& order = *new Order;
    return order;
  }

  void Start(const void* stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    StreamState& state = streams_[stream];
    state.number = ++numbers_;
    state.thread = ThisThread();
    ++of_thread_[state.thread];
  }

  void End(const void* stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    --of_thread_[streams_.at(stream).thread];
    streams_.erase(stream);
  }

  EmulatedPoint Point(const void* stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const StreamState& state = streams_.at(stream);
    EmulatedPoint point = state.after;
    point[state.number] = state.operations;
    return point;
  }

  void After(const EmulatedPoint& point, const void* stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    StreamState& state = streams_.at(stream);
    const bool is_new = std::any_of(point.begin(), point.end(), [&](const auto& of_stream) {
      return of_stream.first != state.number &&
             of_stream.second > Count(state.after, of_stream.first);
    });
    if (is_new && lost_wait != nullptr && IsLost(state)) return;
    Merge(point, &state.after);
  }

  void HostAfter(const EmulatedPoint& point) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Merge(point, &host_[ThisThread()]);
    // A thread without streams enqueues nothing: it works beside the host.
    const auto found = of_thread_.find(ThisThread());
    if (record_ != nullptr && found != of_thread_.end() && found->second > 0)
      record_->HostWaited(point);
  }

  void Record(EmulatedRecord* record) {
    const std::lock_guard<std::mutex> lock(mutex_);
    record_ = record;
  }

  void RecordHostWait(const EmulatedPoint& point) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (record_ != nullptr) record_->HostWaited(point);
  }

  void RecordHostWork(const std::string& name, const EmulatedCost& cost) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (record_ != nullptr) record_->AddOfHost(name, cost);
  }

  EmulatedPoint RecordDiskTransfer(const std::string& name, const EmulatedCost& cost) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return record_ == nullptr ? EmulatedPoint() : record_->AddOfDisk(name, cost);
  }

  EmulatedPoint RecordWorkBeside(const std::string& name, const EmulatedCost& cost,
                                 const EmulatedPoint& after) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return record_ == nullptr ? EmulatedPoint() : record_->AddBeside(name, cost, after);
  }

  void Forget(const EmulatedAccess& memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [handle, state] : streams_) {
      for (Operation& operation : state.unordered) {
        auto& accesses = operation.accesses;
        accesses.erase(std::remove_if(accesses.begin(), accesses.end(),
                                      [&](const auto& access) { return Collide(access, memory); }),
                       accesses.end());
      }
    }
  }

  bool Compares(const void* stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return of_thread_[streams_.at(stream).thread] > 1;
  }

  void Add(const void* stream, const std::string& name, std::vector<EmulatedAccess> accesses,
           const EmulatedCost& cost) {
    const std::lock_guard<std::mutex> lock(mutex_);
    StreamState& mine = streams_.at(stream);
    Merge(host_[mine.thread], &mine.after);
    ++mine.operations;
    if (record_ != nullptr) record_->Add(mine.number, mine.operations, name, cost, mine.after);
    if (of_thread_[mine.thread] == 1) return;
    int64_t known_to_all = std::numeric_limits<int64_t>::max();
    for (const auto& [handle, other] : streams_) {
      if (handle == stream || other.thread != mine.thread) continue;
      known_to_all = std::min(known_to_all, Count(other.after, mine.number));
      for (const Operation& before : other.unordered) {
        if (before.number > Count(mine.after, other.number)) Check(before, name, accesses);
      }
    }
    while (!mine.unordered.empty() && mine.unordered.front().number <= known_to_all)
      mine.unordered.pop_front();
    mine.unordered.push_back({mine.operations, name, std::move(accesses)});
  }

 private:
  // Returns whether the wait of the stream, which is to be counted, is the missing one.
  static bool IsLost(const StreamState& state) {
    auto& [operations, number] = lost_wait->last.try_emplace(state.number, -1, -1).first->second;
    if (operations != state.operations) {
      operations = state.operations;
      number = lost_wait->waits++;
    }
    return number == lost_wait->number;
  }

  static void Check(const Operation& before, const std::string& name,
                    const std::vector<EmulatedAccess>& accesses) {
    for (const EmulatedAccess& a : accesses) {
      for (const EmulatedAccess& b : before.accesses) {
        CHECK(!Collide(a, b)) << name << (a.writes ? " writes " : " reads ") << a.end - a.begin
                              << " bytes that " << before.name << (b.writes ? " writes" : " reads")
                              << " on another stream, and nothing puts one behind the other";
      }
    }
  }

  std::mutex mutex_;
  int64_t numbers_ = 0;
  std::map<const void*, StreamState> streams_;
  std::map<int64_t, int64_t> of_thread_;   // numbers of streams
  std::map<int64_t, EmulatedPoint> host_;  // by thread
  EmulatedRecord* record_ = nullptr;
};

thread_local OrderedOperation* current = nullptr;

}  // namespace

EmulatedAccess ReadOf(const Tensor& tensor) {
  if (tensor.empty() || tensor.numel() == 0) return {};
  int64_t last = 0;
  for (int d = 0; d < tensor.rank(); ++d) last += (tensor.dim(d) - 1) * tensor.stride(d);
  const char* const begin = static_cast<const char*>(tensor.raw());
  return {begin, begin + (last + 1) * SizeOf(tensor.dtype()), false};
}

EmulatedAccess WriteOf(const Tensor& tensor) {
  EmulatedAccess access = ReadOf(tensor);
  access.writes = true;
  return access;
}

void StartOrder(const void* stream) { Order::Get().Start(stream); }
void EndOrder(const void* stream) { Order::Get().End(stream); }
EmulatedPoint PointOf(const void* stream) { return Order::Get().Point(stream); }
void OrderAfter(const EmulatedPoint& point, const void* stream) {
  Order::Get().After(point, stream);
}
void LoseWait(LostWait* lost) { lost_wait = lost; }
void OrderHostAfter(const EmulatedPoint& point) { Order::Get().HostAfter(point); }
void ForgetMemory(const char* begin, int64_t bytes) {
  Order::Get().Forget({begin, begin + bytes, true});
}
void OrderOperation(const CudaStream& stream, const std::string& name,
                    const std::vector<EmulatedAccess>& accesses, const EmulatedCost& cost) {
  Order::Get().Add(stream.handle(), name, accesses, cost);
}

void RecordEmulatedWork(EmulatedRecord* record) { Order::Get().Record(record); }
void RecordHostWait(const EmulatedPoint& point) { Order::Get().RecordHostWait(point); }
void RecordHostWork(const std::string& name, const EmulatedCost& cost) {
  Order::Get().RecordHostWork(name, cost);
}

EmulatedPoint RecordDiskTransfer(const std::string& name, const EmulatedCost& cost) {
  return Order::Get().RecordDiskTransfer(name, cost);
}

EmulatedPoint RecordWorkBeside(const std::string& name, const EmulatedCost& cost,
                               const EmulatedPoint& after) {
  return Order::Get().RecordWorkBeside(name, cost, after);
}

OrderedOperation::OrderedOperation(const CudaStream& stream, std::string name)
    : stream_(stream), name_(std::move(name)), checked_(Order::Get().Compares(stream.handle())) {
  CHECK(current == nullptr) << name_;
  current = this;
}

void OrderedOperation::Start() {
  current = nullptr;
  for (Operand& operand : operands_)
    operand.before.assign(operand.accessible, operand.access.end - operand.access.begin);
}

OrderedOperation::~OrderedOperation() {
  std::vector<EmulatedAccess> accesses;
  for (Operand& operand : operands_) {
    const std::string& before = operand.before;
    operand.access.writes = std::memcmp(operand.accessible, before.data(), before.size()) != 0;
    accesses.push_back(operand.access);
  }
  OrderOperation(stream_, name_, accesses, cost_);
}

Tensor EmulatedOperand(const Tensor& tensor) {
  const Tensor view = EmulatedView(tensor);
  if (current == nullptr || tensor.empty() || tensor.numel() == 0 ||
      tensor.device().type != DeviceType::kCuda)
    return view;
  current->cost_.bytes += static_cast<double>(tensor.bytes());
  if (current->checked_)
    current->operands_.push_back({ReadOf(tensor), static_cast<const char*>(view.raw()), ""});
  return view;
}

}  // namespace megatron
