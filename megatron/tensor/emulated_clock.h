// The time that the emulated device's operations would take on a device of given speed.
//
//   EmulatedRecord record;
//   RecordEmulatedWork(&record);   // tensor/emulated_order.h
//   ... operations, copies, waits of streams and of the host ...
//   RecordEmulatedWork(nullptr);
//   const EmulatedTimes times = PlayEmulated(record.works(), rates);
//
// The emulated device does everything at once, in the order of the host, and writes down what each
// operation costs and which operations it has to wait for: those before it on its stream, those
// that an event puts before it, and those that the host had waited for when it was enqueued. From
// this the times follow, for any rates: an engine does one operation at a time, the one that could
// begin first.
//
// The host enqueues in no time. An update in host memory (optim/host_update.h) occupies the
// processor, also one beside what the host does (optim/update_ahead.h). Transfers of a disk begin
// when the host starts them, in their order. Communication between ranks takes no time.
#ifndef MEGATRON_TENSOR_EMULATED_CLOCK_H_
#define MEGATRON_TENSOR_EMULATED_CLOCK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megatron/tensor/emulated_point.h"

namespace megatron {

// What does an operation: the device's multiprocessors, its two engines for copies, one for each
// direction, the host's processor, or a disk, which reads and writes at the same time.
enum class EmulatedEngine { kKernels, kToHost, kFromHost, kProcessor, kDiskReads, kDiskWrites };
inline constexpr size_t kNumEmulatedEngines = 6;

struct EmulatedCost {
  EmulatedEngine engine = EmulatedEngine::kKernels;
  double operations = 0;  // of floating-point numbers; of kProcessor, elements that it updates
  double bytes = 0;       // of kKernels, those of all operands; of the others, those that are moved
};

struct EmulatedWork {
  std::string name;
  int64_t stream = 0;  // 0: the host; less: a disk, or the processor beside the host
  EmulatedCost cost;
  std::vector<size_t> after;  // the numbers of earlier works that it waits for
};

// The works of a rank, in the order in which the host enqueued them. The emulated device calls the
// methods.
class EmulatedRecord {
 public:
  // Operation `number` of a stream, which comes after the point.
  void Add(int64_t stream, int64_t number, const std::string& name, const EmulatedCost& cost,
           const EmulatedPoint& after);
  // The host has waited for the point.
  void HostWaited(const EmulatedPoint& point);
  // The host did this, and nothing else meanwhile.
  void AddOfHost(const std::string& name, const EmulatedCost& cost);
  // The host has started this transfer of a disk. Returns the point behind it.
  EmulatedPoint AddOfDisk(const std::string& name, const EmulatedCost& cost);
  // This was done behind the point, whatever the host had waited for. Returns the point behind it.
  EmulatedPoint AddBeside(const std::string& name, const EmulatedCost& cost,
                          const EmulatedPoint& after);

  const std::vector<EmulatedWork>& works() const { return works_; }

 private:
  void AddWork(EmulatedWork work, const EmulatedPoint& after);
  // Adds work of the cost's engine as an operation of a stream of the engine.
  EmulatedPoint AddOfEngine(const std::string& name, const EmulatedCost& cost,
                            const EmulatedPoint& after);

  std::vector<EmulatedWork> works_;
  // By stream: numbers of its operations, ascending, and those of their works.
  std::map<int64_t, std::vector<std::pair<int64_t, size_t>>> of_stream_;
  EmulatedPoint host_;  // what the host has waited for
};

struct EmulatedRates {
  double operations_per_second = 0;        // of kernels
  double bytes_per_second = 0;             // of the device's memory
  double link_bytes_per_second = 0;        // of each direction
  double updated_elements_per_second = 0;  // by the processor
  double disk_read_bytes_per_second = 0, disk_write_bytes_per_second = 0;
};

struct EmulatedTimes {
  // Seconds from the beginning, by work.
  std::vector<std::pair<double, double>> begin_and_end;
  double end = 0;                                  // of the last work
  std::array<double, kNumEmulatedEngines> busy{};  // seconds, by engine
};

EmulatedTimes PlayEmulated(const std::vector<EmulatedWork>& works, const EmulatedRates& rates);

}  // namespace megatron

#endif  // MEGATRON_TENSOR_EMULATED_CLOCK_H_
