// SIGTERM and SIGINT ask for a stop: the first one at the end of the step, with a checkpoint; the
// second one ends the process at once, as if nobody had listened.
#ifndef MEGATRON_TRAIN_FAILURE_STOP_SIGNALS_H_
#define MEGATRON_TRAIN_FAILURE_STOP_SIGNALS_H_

namespace megatron {

// `tell`: the first signal is answered on stderr.
void ListenForStopSignals(bool tell);
// The signal that was received, or 0.
int StopSignal();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_STOP_SIGNALS_H_
