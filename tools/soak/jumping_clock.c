// A preloaded clock that jumps, for programs whose machine's clock must stay as it is:
//
//   LD_PRELOAD=jumping_clock.so SOAK_CLOCK=FILE PROGRAM
//
// CLOCK_REALTIME, gettimeofday and time are those of the machine plus the nanoseconds in FILE, a
// number of 8 bytes that may change while the program runs. Times at which a wait is to end are
// moved back, so that the machine's clock ends the wait when the program's would. A jump does not
// end a wait that has begun. Other clocks stay as they are.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t no_offset = 0;
static const volatile int64_t* offset = &no_offset;

typedef long (*SystemCall)(long number, ...);
static SystemCall RealSystemCall(void) {
  static SystemCall real;
  if (real == NULL) real = (SystemCall)dlsym(RTLD_NEXT, "syscall");
  return real;
}

__attribute__((constructor)) static void OpenClock(void) {
  const char* path = getenv("SOAK_CLOCK");
  const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  if (mapped != MAP_FAILED) offset = mapped;
  close(fd);
}

static void Move(struct timespec* time, int64_t nanoseconds) {
  const int64_t second = 1000000000;
  time->tv_sec += nanoseconds / second;
  time->tv_nsec += nanoseconds % second;
  if (time->tv_nsec < 0) {
    time->tv_nsec += second;
    --time->tv_sec;
  } else if (time->tv_nsec >= second) {
    time->tv_nsec -= second;
    ++time->tv_sec;
  }
  if (time->tv_sec < 0) time->tv_sec = time->tv_nsec = 0;  // it is over
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  const int result = (int)RealSystemCall()(SYS_clock_gettime, clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    Move(time, *offset);
  return result;
}

int gettimeofday(struct timeval* restrict time, void* restrict zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* result) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result != NULL) *result = now.tv_sec;
  return now.tv_sec;
}

// Libraries wait for futexes by this function.
long syscall(long number, ...) {
  va_list words;
  va_start(words, number);
  long word[6];
  for (int i = 0; i < 6; ++i) word[i] = va_arg(words, long);
  va_end(words);
  struct timespec until;
  if (number == SYS_futex && (word[1] & FUTEX_CLOCK_REALTIME) != 0 && word[3] != 0) {
    until = *(const struct timespec*)word[3];
    Move(&until, -*offset);
    word[3] = (long)&until;
  }
  return RealSystemCall()(number, word[0], word[1], word[2], word[3], word[4], word[5]);
}

int pthread_cond_timedwait(pthread_cond_t* restrict condition, pthread_mutex_t* restrict mutex,
                           const struct timespec* restrict end) {
  typedef int (*Wait)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*);
  static Wait real;
  if (real == NULL) real = (Wait)dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  struct timespec until = *end;
  Move(&until, -*offset);
  return real(condition, mutex, &until);
}
