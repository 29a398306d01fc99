#include "megatron/train/failure/watched_world.h"

#include <utility>

namespace megatron {

WatchedWorld WatchedWorld::Of(TcpWorld* world, int size) {
  WatchedWorld watched;
  watched.size = size;
  watched.tells_aborts = true;
  watched.status = [world] { return world->status(); };
  watched.set_failure_hook = [world](std::function<void(const absl::Status&)> hook) {
    world->SetFailureHook(std::move(hook));
  };
  watched.abort = [world](const absl::Status& reason) { world->Abort(reason); };
  watched.doing = [world](int) { return world->Doing(); };
  watched.processor_time = [world](int) { return world->CallersProcessorTime(); };
  watched.in_call = [world](int) { return world->InCall(); };
  watched.is_awaited = [world](int) { return world->IsAwaited(); };
  watched.waiting = [world](int) { return world->Waiting(); };
  watched.idle = [world] { return world->Idle(); };
  watched.share_blocked = [world](const std::vector<WaitingCall>& calls) {
    world->ShareBlocked(calls);
  };
  watched.others_blocked = [world] { return world->OthersBlocked(); };
  watched.news_time = world->NewsTime();
  watched.overdue = [] { return absl::OkStatus(); };  // no rank waits for a lock of another
  watched.gather = [world](std::string state, absl::Time deadline) {
    return world->GatherStates(std::move(state), deadline);
  };
  return watched;
}

WatchedWorld WatchedWorld::Of(ThreadWorld* world) {
  WatchedWorld watched;
  watched.size = world->size();
  watched.status = [world] { return world->status(); };
  watched.set_failure_hook = [world](std::function<void(const absl::Status&)> hook) {
    world->SetFailureHook(std::move(hook));
  };
  watched.abort = [world](const absl::Status& reason) { world->Abort(reason); };
  watched.doing = [world](int rank) { return world->Doing(rank); };
  watched.processor_time = [world](int rank) { return world->CallersProcessorTime(rank); };
  watched.in_call = [world](int rank) { return world->InCall(rank); };
  watched.is_awaited = [world](int rank) { return world->IsAwaited(rank); };
  watched.waiting = [world](int rank) { return world->Waiting(rank); };
  watched.idle = [] { return true; };
  watched.share_blocked = [](const std::vector<WaitingCall>&) {};
  watched.others_blocked = [] { return WaitingRanks(); };
  watched.overdue = [world] { return world->Overdue(); };
  watched.gather = [](std::string state, absl::Time) {
    return std::map<int, std::string>{{0, std::move(state)}};
  };
  return watched;
}

}  // namespace megatron
