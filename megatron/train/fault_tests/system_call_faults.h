// Runs a program, with all that it starts, under the eye of ptrace, and strikes at the n-th system
// call with which it changes something below a directory: kills the process right behind the call,
// or lets the call fail. What `strace --inject` does, for tests that go through every n. x86-64.
//
//   SystemCallFault none;
//   const int n = RunWithFault(command, log, directory, none).calls;
//   for (int i = 0; i < n; ++i) RunWithFault(command, log, directory, {i, ENOSPC, true});
#ifndef MEGATRON_TRAIN_FAULT_TESTS_SYSTEM_CALL_FAULTS_H_
#define MEGATRON_TRAIN_FAULT_TESTS_SYSTEM_CALL_FAULTS_H_

#include <string>

#include "megatron/train/pretrain_harness.h"

namespace megatron {

struct SystemCallFault {
  int at = -1;           // from 0; -1: never
  int error_number = 0;  // 0: the process is killed behind the call
  bool lasting = false;  // every later call fails too, but those that remove
};

struct FaultedRun {
  Outcome outcome;
  int calls = 0;     // that change something there
  std::string what;  // the system call that was struck, and the path
};

FaultedRun RunWithFault(const Arguments& command, const std::string& log,
                        const std::string& directory, const SystemCallFault& fault);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAULT_TESTS_SYSTEM_CALL_FAULTS_H_
