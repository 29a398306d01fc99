// SIGTERM and SIGINT ask for a stop. The first one stops at the end of the step, with a checkpoint;
// the second one ends the process at once, as without a handler.
#ifndef MEGATRON_TRAIN_FAILURE_STOP_SIGNALS_H_
#define MEGATRON_TRAIN_FAILURE_STOP_SIGNALS_H_

namespace megatron {

// `answer`: the first signal is answered on stderr.
void ListenForStopSignals(bool answer);
// Returns the signal that was received, or 0.
int StopSignal();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_STOP_SIGNALS_H_
