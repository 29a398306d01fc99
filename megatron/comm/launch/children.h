// Starts processes, prints their lines, passes signals on to them, and sees them to their end: what
// starting the ranks of one machine and starting a job on several have in common.
//
// While a pipe takes no lines, since nobody reads it, the children that print wait, and this
// process does not: signals, ends and replacements are seen to. At the end it waits for the reader,
// unless a second request to end comes or the control ends; lines that are left are dropped then.
//
// Call it from the main thread of a program that has no other thread yet: signals are taken from
// the whole process while it runs.
#ifndef MEGATRON_COMM_LAUNCH_CHILDREN_H_
#define MEGATRON_COMM_LAUNCH_CHILDREN_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "megatron/comm/launch/launch_env.h"

namespace megatron {

struct Child {
  std::string name;                  // "rank 3", for messages
  std::vector<std::string> command;  // the program, found along $PATH, and its arguments
  EnvironmentMap environment;
  std::string prefix;  // prefix of each line it prints
  int inherited = -1;  // a descriptor that it gets too
  // If not empty, the child reads this from its standard input, and after that "signal N" for each
  // signal that is passed on, until the end of the input tells it to end.
  std::string input;
  // If not empty, a line on the child's errors that begins with this says why the child fails.
  std::string reason_mark;
};

struct ChildrenOptions {
  absl::Duration grace = absl::Seconds(4);
  std::vector<int> orderly_codes = {10, 11};
  int consequence_code = 30;
  // A child that is stopped, or sleeps and waits for no disk, for so long after another one has
  // ended, even in good order, hangs: it counts as one that has failed with hang_code. Zero: none
  // ever hangs.
  absl::Duration idle_limit;
  // A child that is stopped for so long while another one is not hangs, too, also before any has
  // ended. With `control`, where others may run elsewhere, it hangs even if all are stopped. Zero:
  // it does not.
  absl::Duration stop_limit;
  int hang_code = 31;
  // Whether the others go on when a signal ends a child, or it ends with hang_code. It is started
  // again beside them after `replacement_wait`, so often in all; after `grace` where it only missed
  // others, in which time these end if they miss it, too. A start that fails, as for want of
  // descriptors, counts and is repeated, and a child that was started again is lost with every
  // code of a failure. A lost child counts as failed unless the others end in good order without
  // it. One that only missed others has not failed once these have ended so.
  bool goes_on = false;
  // Whether a child that ends with this code is lost, too; null: it is not.
  std::function<bool(int code)> is_lost;
  // Returns the child that takes the place of a lost one; null: the same is started again.
  std::function<Child(size_t index)> replacement;
  int replacements = 0;
  absl::Duration replacement_wait = absl::Seconds(1);
  // A SIGINT or SIGTERM so soon after the first one belongs to the same request, and has no effect:
  // a program that sends one to all processes of a job, or to a group twice, asks once.
  absl::Duration one_request = absl::Seconds(1);
  // A child that was killed and has not ended for so long is told of, once.
  absl::Duration kill_patience = absl::Seconds(5);
  // Hears of what is started again, and of what does not end; may be null. It is called when
  // `errors` takes a line, where it writes.
  std::function<void(absl::string_view line)> tell;
  // Hears each line of the children's errors, and returns whether it takes it: such a line is not
  // passed on. Null: none is taken.
  std::function<bool(absl::string_view line)> takes_line;
  int output = 1;
  int errors = 2;
  // A descriptor with lines as a child with `input` gets them; -1: none. Then children read nothing
  // from their standard input.
  int control = -1;
};

struct LaunchResult {
  // The exit code is 0 if all ended with 0; else the code of the child that failed first,
  // consequences aside, or an orderly code. 128 + the signal for a child that a signal ended, or
  // that asked a second time for the end of all.
  int exit_code = 0;
  int child = -1;      // index of the child that the code comes from; -1 if 0
  std::string name;    // name of that child
  std::string reason;  // what that child said about it (Child::reason_mark); empty if nothing
  int signal = 0;      // signal that ended it, or all
  // Its code says that it only missed another one, or that any of them hangs.
  bool is_consequence = false;
  // Names of the children that had to be killed: after the grace, or at once when asked twice.
  std::vector<std::string> killed;
  // If not empty, the child hung, and this is how.
  std::string hang;
  bool asked_twice = false;  // asked by `signal` to end
  int asked = 0;             // the first signal that asked all to end, or 0
  int output_error = 0;      // error number of a line on `output` that could not be written, or 0
  // Lines for `errors` were dropped, since nobody reads them: whoever writes there would wait.
  bool errors_wait = false;
  // Returns "rank 2 was ended by signal 9 (Killed)", what asked all to end, or empty. A child whose
  // code may be only a consequence is not called the cause where others had to be killed: "rank 1
  // did not end and was killed, after rank 0 had ended with code 30".
  std::string Describe() const;
};

// Returns the children that such a result blames: the one that failed first; where children only
// missed others, those that did not end. None if nobody knows.
std::vector<std::string> NamesToBlame(const LaunchResult& result);

// Returns whether a signal asks a program to end: SIGINT, SIGTERM or SIGHUP.
bool IsRequestToEnd(int signal);
// Returns whether this process ignores SIGHUP, as nohup starts it: then it asks for nothing, and
// children ignore it, too.
bool IgnoresHangups();

// When a child fails, the others have `grace` to end by themselves and are killed then. Whatever
// they have started ends with them, and they end when this process is killed. An error is one of
// starting them: then none runs.
absl::StatusOr<LaunchResult> RunChildren(std::vector<Child> children,
                                         const ChildrenOptions& options);

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_CHILDREN_H_
