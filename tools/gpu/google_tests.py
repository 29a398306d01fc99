"""Programs of GoogleTest: each test in a process of its own, so that none hides what the others would say."""

import concurrent.futures
import json
import os
import threading

from processes import cut
from session import Crash, Failure, OutOfTime, last_words, shorten, unforeseen

_MOST_TOLD = 3  # failed tests with all that they said
_MOST_EXPLAINED = 2  # failed tests of a program that are looked into
_MOST_HUNG = 2  # tests of a program that hang before the rest is given up


def _names(text):
    """Returns the names in the answer to --gtest_list_tests."""
    names, suite = [], ""
    for line in text.splitlines():
        line = line.split("#")[0].rstrip()  # behind it stand parameters
        if line.startswith("  "):
            names.append(suite + line.strip())
        elif line.endswith("."):
            suite = line
    return names


def read_report(path):
    """Returns how many tests passed by GoogleTest's report, and what skipped and failed ones said, by name."""
    try:
        with open(path) as file:
            suites = json.load(file)["testsuites"]
    except (OSError, ValueError, KeyError):
        raise Failure("no report of what was tested")
    passed, skipped, failed = 0, {}, {}
    for suite in suites:
        for test in suite["testsuite"]:
            name = "%s.%s" % (suite["name"], test["name"])
            said = test.get("failures", ())
            if said:
                more = " (and %d more)" % (len(said) - 1) if len(said) > 1 else ""
                failed[name] = shorten(said[0]["failure"]) + more
            elif test.get("result") == "SKIPPED":
                skipped[name] = shorten(" ".join(why.get("message", "") for why in test.get("skipped", ())), 200)
            elif test.get("status") == "RUN":
                passed += 1
    return passed, skipped, failed


def _told(kind, texts):
    """"2 tests failed: A: why; B: why", the first few with all that they said."""
    parts = []
    for i, (name, text) in enumerate(texts.items()):
        if i < _MOST_TOLD:
            parts.append("%s: %s" % (name, text) if text else name)
        else:
            parts.append(shorten("%s: %s" % (name, text), 120))
    return "%d tests %s: %s" % (len(texts), kind, "; ".join(parts[:12]))


class Tests:
    """The tests of a program."""

    def __init__(self, session, name):
        self._session, self._name = session, name
        self._lock = threading.Lock()
        self._passed, self._skipped, self._failed, self._crashes = 0, {}, {}, []
        self._not_run, self._unwritten = [], ""

    def run(self, at_once):
        session = self._session
        log = self._name + ".log"
        listed = session.run([session.program(self._name), "--gtest_list_tests"], log, session.test_seconds)
        names = _names(listed.require_success().text())
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            for future in [pool.submit(self._run_one, *numbered) for numbered in enumerate(names)]:
                future.result()
        return self._verdict()

    def _run_one(self, number, name):
        session = self._session
        if sum(crash.hung for crash in self._crashes) >= _MOST_HUNG:
            self._not_run.append(name)
            return
        log, report = "%s.%d.log" % (self._name, number), session.path("%s.%d.json" % (self._name, number))
        command = [session.program(self._name), "--gtest_filter=" + name]
        crash = Crash(name, command)
        try:
            ran = session.run([*command, "--gtest_output=json:" + report], log, session.test_seconds,
                              MEGATRON_REQUIRE_GPU="1", **core_dumps(session, self._name))
            with self._lock:
                self._judge(name, ran, report, crash)
        except OutOfTime:
            self._not_run.append(name)
        except Failure as failure:  # it hung, or did not even start
            crash.hung = any(run.hung for run in failure.again)
            crash.dump = next((run.dump for run in failure.again), None)
            with self._lock:
                self._failed[name] = str(failure)
                self._crashes += [crash] if failure.again else []
        except Exception as error:  # the other tests run nonetheless
            with self._lock:
                self._failed[name] = unforeseen(error)
        finally:
            self._gather(log, report)

    def _judge(self, name, ran, report, crash):
        if not os.path.exists(report):
            how = "killed by signal %d" % -ran.code if ran.code < 0 else "exit code %d" % ran.code
            self._failed[name] = shorten("%s, no report of what was tested: %s" % (how, last_words(ran.text())))
            self._crashes.append(crash)
            return
        passed, skipped, failed = read_report(report)
        if failed:
            crash.wrong = True
            self._crashes.append(crash)
        elif ran.code != 0:
            failed = {name: shorten("exit code %d: %s" % (ran.code, last_words(ran.text())))}
            self._crashes.append(crash)
        self._passed += passed
        self._skipped.update(skipped)
        self._failed.update(failed)

    def _gather(self, log, report):
        """A program has one log, not one a test. What the test has found counts also where the disk is full."""
        path, all_tests = self._session.path(log), self._session.path(self._name + ".log")
        with self._lock:
            try:
                if os.path.exists(path):
                    with open(path, errors="replace") as one, open(all_tests, "a") as file:
                        file.write(one.read())
                    os.remove(path)
                    cut(all_tests)
                if os.path.exists(report):
                    os.remove(report)
            except OSError as error:
                self._unwritten = error.strerror

    def _verdict(self):
        figures = {"tests": self._passed}
        if self._unwritten:
            figures["log_is_not_whole"] = self._unwritten
        parts = [_told(kind, texts) for kind, texts in (("failed", self._failed), ("were skipped", self._skipped))
                 if texts]
        if self._not_run:
            why = "no time" if self._session.left() < 1 else "others hung"
            parts.append("%d tests were not run: %s" % (len(self._not_run), why))
            figures["not_run"] = self._not_run
        if self._failed or self._skipped:
            self._crashes.sort(key=lambda crash: crash.wrong)
            raise Failure("; ".join(parts), {**figures, "failures": {**self._failed, **self._skipped}},
                          self._crashes[:_MOST_EXPLAINED])
        if self._not_run:
            raise OutOfTime(parts[0])
        if self._passed == 0:
            raise Failure("no test ran")
        return figures


def core_dumps(session, name):
    """Returns environment variables with which a kernel that crashes leaves a small dump, and one that hangs if asked.

    Its program is not ended by the dump, and goes on to say what failed.
    """
    return {"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1", "CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION": "0",
            "CUDA_COREDUMP_FILE": session.path(name + ".%p.cudacore"),
            "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1", "CUDA_COREDUMP_PIPE": session.path(name + ".%p.pipe"),
            "CUDA_COREDUMP_GENERATION_FLAGS": "skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,"
                                              "skip_local_memory,skip_constbank_memory,skip_abort"}


def run_tests(session, name, at_once):
    """Runs each test of the program, `at_once` of them at a time."""
    return Tests(session, name).run(at_once)


def run_together(session, name, log, limit, prefix, filter):
    """Runs tests of a program in one process, which the program in `prefix` starts."""
    report = session.path(log + ".json")
    if os.path.exists(report):
        os.remove(report)
    done = session.run([*prefix, session.program(name), "--gtest_output=json:" + report, "--gtest_filter=" + filter],
                       log + ".log", limit, MEGATRON_REQUIRE_GPU="1")
    passed, skipped, failed = 0, {}, {}
    if done.code == 0 or os.path.exists(report):
        passed, skipped, failed = read_report(report)
    if failed:
        raise Failure(_told("failed", failed))
    done.require_success()
    if skipped:
        raise Failure(_told("were skipped", skipped))
    if passed == 0:
        raise Failure("no test ran")
    return {"tests": passed}, done
