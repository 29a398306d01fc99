// SIGTERM, SIGINT and SIGHUP ask for a stop. The first one stops at the end of the step, with a
// checkpoint; a second SIGTERM or SIGINT ends the process at once, as without a handler. A second
// SIGHUP has no effect: a terminal that is closed may send several. None has where the process was
// started without them, as nohup does.
#ifndef MEGATRON_TRAIN_FAILURE_STOP_SIGNALS_H_
#define MEGATRON_TRAIN_FAILURE_STOP_SIGNALS_H_

namespace megatron {

// `answer`: the first signal is answered on stderr.
void ListenForStopSignals(bool answer);
// Returns the signal that was received, or 0.
int StopSignal();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_STOP_SIGNALS_H_
