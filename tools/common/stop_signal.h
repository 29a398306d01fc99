// Lets SIGINT and SIGTERM end a server: at once while it starts, and later when its work is done.
//
//   StopSignal stop("the model was being loaded");
//   ... start ...
//   stop.Started();
//   stop.Await();
//   ... end the work ...
#ifndef MEGATRON_TOOLS_COMMON_STOP_SIGNAL_H_
#define MEGATRON_TOOLS_COMMON_STOP_SIGNAL_H_

#include <atomic>
#include <csignal>
#include <thread>

namespace megatron {

// A process has one, made before its other threads: they leave the signals to it.
class StopSignal {
 public:
  // Until Started() is called, a signal ends the process with code 130 and "error: interrupted;
  // `what`". `what` must outlive this.
  explicit StopSignal(const char* what);
  ~StopSignal() { Started(); }

  // From now on a signal waits for Await().
  void Started();
  // Returns when there is a signal. The next one ends the process at once. Started() must have been
  // called.
  void Await();

 private:
  void Watch();

  const char* const what_;
  sigset_t signals_;
  std::atomic<bool> started_{false};
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_COMMON_STOP_SIGNAL_H_
