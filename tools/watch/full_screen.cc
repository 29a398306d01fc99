#include "tools/watch/full_screen.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace megatron::watch {
namespace {

volatile sig_atomic_t end_asked = 0;

void AskForTheEnd(int) { end_asked = 1; }
void Interrupt(int) {}

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

// Returns the signals that WaitFor lets through.
sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) sigaddset(&signals, signal);
  return signals;
}

void Write(const std::string& text) {
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t written = write(STDOUT_FILENO, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    at += written;
  }
}

}  // namespace

FullScreen::FullScreen() {
  has_modes_ = tcgetattr(STDIN_FILENO, &before_) == 0;
  if (has_modes_) {
    termios quiet = before_;
    quiet.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON);
    tcsetattr(STDIN_FILENO, TCSANOW, &quiet);
  }
  // The alternate screen, without a cursor.
  Write("\x1b[?1049h\x1b[?25l");
}

FullScreen::~FullScreen() {
  Write("\x1b[?25h\x1b[?1049l");
  // Keys that were pressed meanwhile were meant for this program.
  if (has_modes_) tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
}

ScreenSize FullScreen::size() const {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0)
    return ScreenSize();
  return {size.ws_col, size.ws_row};
}

void FullScreen::Draw(const std::vector<std::string>& lines) const {
  std::string text = "\x1b[H";
  for (size_t i = 0; i < lines.size(); ++i)
    absl::StrAppend(&text, i == 0 ? "" : "\r\n", lines[i], "\x1b[K");
  Write(text + "\x1b[J");
}

void CatchEndSignals() {
  // They come in WaitFor alone, so that none is missed before it.
  const sigset_t signals = Signals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) Handle(signal, AskForTheEnd);
  Handle(SIGWINCH, Interrupt);
}

bool WaitFor(absl::Duration time) {
  sigset_t during;
  sigprocmask(SIG_BLOCK, nullptr, &during);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) sigdelset(&during, signal);
  const timespec timeout = absl::ToTimespec(time);
  pselect(0, nullptr, nullptr, nullptr, &timeout, &during);
  return end_asked == 0;
}

}  // namespace megatron::watch
