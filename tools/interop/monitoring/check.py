"""Asks promtool about a run's metrics and the rules of alerts, and looks at a run's port while it goes.

  check.py BIN_DIRECTORY WORK_DIRECTORY
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from small_runs import SmallRuns

BIN, WORK = sys.argv[1], sys.argv[2]
TIMEOUT = 120
RUN = ["--config=gpt_demo"] + ["--set=" + field for field in (
    "model.num_layers=2", "model.hidden_size=32", "model.num_attention_heads=2", "model.seq_length=64",
    "train.global_batch_size=4", "train.micro_batch_size=2", "train.train_iters=1000000", "train.eval_interval=50",
    "train.eval_iters=1", "train.log_interval=5", "optimizer.lr_warmup_iters=2", "checkpoint.save_interval=100",
    "parallel.data_parallel_size=2", "logging.timing_log_level=2", "generation=")]

runs = SmallRuns(BIN, WORK, RUN, TIMEOUT)
check, start, wait_for, said = runs.check, runs.start, runs.wait_for, runs.log_of


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except OSError as error:
        return 0, "", str(error)


def promtool(text, *arguments):
    done = subprocess.run(["promtool", "check", *arguments], input=text, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def main():
    os.makedirs(WORK)
    textfile = f"{WORK}/run.prom"
    run = start("run", "--set=logging.metrics_port=0", f"--set=logging.prometheus_textfile={textfile}",
                "--set=logging.spike_threshold=1000", "--set=logging.spike_window=4")
    check("the run says its port", wait_for(lambda: "metrics for Prometheus" in said("run")))
    port = int(re.search(r"127\.0\.0\.1:(\d+)/metrics", said("run")).group(1))
    check("steps are counted, evaluated and saved", wait_for(
        lambda: 'kind="saved"} 0' not in get(port, "/metrics")[2] and "megatron_lm_loss_validation{" in get(port, "/metrics")[2]))
    status, kind, page = get(port, "/metrics")
    check("/metrics is of the format", status == 200 and kind == "text/plain; version=0.0.4; charset=utf-8")
    code, output = promtool(page, "metrics")
    check("promtool has nothing against /metrics: " + output, code == 0 and output == "")
    with open(textfile) as file:
        code, output = promtool(file.read(), "metrics")
    check("promtool has nothing against the file: " + output, code == 0 and output == "")
    names = set(re.findall(r"^(megatron_\w+)\{", page, re.M))
    for name in ("megatron_lm_loss", "megatron_share_compute_ratio", "megatron_slowest_rank", "megatron_mem_allocated_bytes",
                 "megatron_optimizer_time_seconds", "megatron_steps_total"):
        check(f"{name} is there", name in names)
    status, _, body = get(port, "/healthz")
    check("the run is healthy", status == 200 and json.loads(body)["healthy"] and json.loads(body)["iteration"] > 0)

    other = start("other", f"--set=logging.metrics_port={port}", f"--set=logging.prometheus_textfile={WORK}/none/a.prom")
    check("a port in use and a folder that is missing stop no run", wait_for(lambda: " iteration " in said("other")))
    check("the port is said once", said("other").count("cannot be opened") == 1)
    check("the file is said once", said("other").count("could not be written") == 1)
    other.send_signal(signal.SIGTERM)
    check("that run ends well", other.wait() == 10)

    deaf = socket.create_connection(("127.0.0.1", port))
    deaf.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000)
    steps = json.loads(get(port, "/healthz")[2])["iteration"]
    check("a client that does not read holds nothing up",
          wait_for(lambda: json.loads(get(port, "/healthz")[2])["iteration"] > steps))
    run.send_signal(signal.SIGTERM)
    check("the run ends well", run.wait() == 10)
    check("its file has gone", not os.path.exists(textfile) and not os.path.exists(textfile + ".tmp"))

    check("the tool writes its files", subprocess.run([f"{BIN}/tools/grafana/grafana", f"--output_dir={WORK}/rules"]).returncode == 0)
    code, output = promtool("", "rules", f"{WORK}/rules/megatron_alerts.yml")
    check("promtool takes the rules: " + output, code == 0 and "7 rules found" in output)
    tests = shutil.copy(os.path.join(os.path.dirname(__file__), "alerts_test.yml"), f"{WORK}/rules")
    done = subprocess.run(["promtool", "test", "rules", tests], capture_output=True, text=True)
    check("the rules fire when they should: " + done.stdout + done.stderr, done.returncode == 0)
    with open(f"{WORK}/rules/megatron_dashboard.json") as file:
        dashboard = json.load(file)
    shown = set(re.findall(r"megatron_\w+", json.dumps(dashboard["panels"])))
    # What other models, layouts, devices and options have.
    elsewhere = re.compile(r"megatron_(.*(accuracy_ratio|balancing_loss)|sop_loss|z_loss|lm_loss_test|mfu_ratio|params_norm"
                           r"|share_(bubble|cp|ep|pp|tp)_ratio|curriculum_seqlen|random_ltd_length"
                           r"|decoupled_learning_rate|epsilon|mtp_\d+_loss|task|training_file_loss"
                           r"|validation_set_loss)")
    missing = {name for name in shown - names if not elsewhere.fullmatch(name)}
    check(f"the dashboard's metrics are there in this run: {missing or 'none is missing'}", not missing)
    runs.finish()


main()
