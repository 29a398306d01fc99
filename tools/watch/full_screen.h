// The whole screen of a terminal, for a program that draws it anew now and then.
#ifndef MEGATRON_TOOLS_WATCH_FULL_SCREEN_H_
#define MEGATRON_TOOLS_WATCH_FULL_SCREEN_H_

#include <termios.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/watch/screen.h"

namespace megatron::watch {

// Takes the screen while it lives, and gives back what was there, with the cursor. One at a time.
// Signals that end a program end the wait instead, so that the screen is given back.
class FullScreen {
 public:
  FullScreen();
  ~FullScreen();
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  ScreenSize size() const;
  void Draw(const std::vector<std::string>& lines) const;

 private:
  termios before_ = {};
  bool has_modes_ = false;
};

// Makes Ctrl-C and its like end WaitFor instead of the program.
void CatchEndSignals();
// Waits, also for a change of the terminal's size. Returns false if the program is to end.
bool WaitFor(absl::Duration time);

}  // namespace megatron::watch

#endif  // MEGATRON_TOOLS_WATCH_FULL_SCREEN_H_
