#include "megatron/tensor/emulated_transfers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "glog/logging.h"

namespace megatron {
namespace {

bool IsBefore(const EmulatedPoint& point, const EmulatedPoint& later) {
  return std::all_of(point.begin(), point.end(), [&](const auto& of_stream) {
    const auto found = later.find(of_stream.first);
    return of_stream.second <= (found == later.end() ? 0 : found->second);
  });
}

}  // namespace

int64_t EmulatedTransfers::Add(const void* stream, Transfer transfer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Pending& pending = pending_[stream];
  pending.transfers.push_back(std::move(transfer));
  return pending.finished + static_cast<int64_t>(pending.transfers.size());
}

int64_t EmulatedTransfers::Receive(const void* stream, const EmulatedPoint& point,
                                   const void* device, void* host, size_t bytes) {
  const char* const begin = static_cast<const char*>(device);
  Transfer transfer = {true, static_cast<char*>(host), {begin, begin + bytes}, point};
  FinishOverlapping(transfer);
  std::memset(host, 0xff, bytes);
  return Add(stream, std::move(transfer));
}

int64_t EmulatedTransfers::Send(const void* stream, const EmulatedPoint& point, const void* host,
                                void* device, size_t bytes) {
  char* const begin = static_cast<char*>(const_cast<void*>(host));
  FinishOverlapping({false, begin, std::vector<char>(bytes), point});
  std::memcpy(device, host, bytes);
  return Add(stream, {false, begin, {begin, begin + bytes}, point});
}

int64_t EmulatedTransfers::Last(const void* stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Pending& pending = pending_[stream];
  return pending.finished + static_cast<int64_t>(pending.transfers.size());
}

// Operations on the same memory that come later, of their stream or behind it, find them done.
void EmulatedTransfers::FinishOverlapping(const Transfer& next) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [stream, pending] : pending_) {
    for (Transfer& before : pending.transfers) {
      if (next.host >= before.host + before.bytes.size() ||
          before.host >= next.host + next.bytes.size() || !IsBefore(before.point, next.point))
        continue;
      Finish(before);
      before.bytes.clear();
    }
    // The host may never wait for a stream whose copies it has no use for.
    for (; !pending.transfers.empty() && pending.transfers.front().bytes.empty();
         ++pending.finished)
      pending.transfers.pop_front();
  }
}

void EmulatedTransfers::Finish(const Transfer& transfer) {
  if (transfer.received) {
    std::memcpy(transfer.host, transfer.bytes.data(), transfer.bytes.size());
    return;
  }
  CHECK_EQ(std::memcmp(transfer.host, transfer.bytes.data(), transfer.bytes.size()), 0)
      << "the host has changed what it was sending before it had waited";
}

void EmulatedTransfers::Finish(const void* stream, int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pending_.find(stream);
  if (found == pending_.end()) return;
  Pending& pending = found->second;
  for (; pending.finished < number && !pending.transfers.empty(); ++pending.finished) {
    Finish(pending.transfers.front());
    pending.transfers.pop_front();
  }
}

void EmulatedTransfers::FinishBefore(const EmulatedPoint& point) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [stream, pending] : pending_) {
    while (!pending.transfers.empty() && IsBefore(pending.transfers.front().point, point)) {
      Finish(pending.transfers.front());
      pending.transfers.pop_front();
      ++pending.finished;
    }
  }
}

void EmulatedTransfers::End(const void* stream) {
  Finish(stream, Last(stream));
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.erase(stream);
}

}  // namespace megatron
