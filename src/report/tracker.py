# Sends a run's metrics to W&B or MLflow. Reads JSON lines from stdin: first the run, then steps.
# Ends at the end of stdin. A line "#shown TEXT" on stdout is logged.
import json
import os
import re
import sys

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # output of libraries must not reach the program


def show(text):
    print("#shown " + " ".join(str(text).split()), file=out, flush=True)


def read_state(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def write_state(path, state):
    with open(path + ".new", "w") as file:
        json.dump(state, file)
    os.replace(path + ".new", path)


def flat(config, prefix=""):
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flat(value, prefix + key + ".")
        else:
            yield prefix + key, value


class Wandb:
    def __init__(self, run):
        import wandb

        path = os.path.join(run["folder"], "wandb.json")
        known = read_state(path).get("id") if run["resumed"] else None
        self.run = wandb.init(project=run["project"], name=run["experiment"], config=run["config"], dir=run["folder"],
                              id=known, resume="allow")
        write_state(path, {"id": self.run.id})
        show("W&B run " + str(self.run.url or self.run.dir))

    # W&B drops rows of steps that it already has.
    def log(self, step, metrics):
        self.run.log(metrics, step=step)

    def finish(self):
        self.run.finish()


class Mlflow:
    def __init__(self, run):
        import mlflow

        self.mlflow = mlflow
        mlflow.set_experiment(run["project"])
        path = os.path.join(run["folder"], "mlflow.json")
        known = read_state(path).get("run_id") if run["resumed"] else None
        started = mlflow.start_run(run_id=known) if known else mlflow.start_run(run_name=run["experiment"])
        write_state(path, {"run_id": started.info.run_id})
        self.last = -1  # last step that a resumed run already has
        if known:
            self.last = int(started.data.metrics.get("training/global_step", -1))
        else:
            params = [(key, str(value)[:500]) for key, value in flat(run["config"])]
            for first in range(0, len(params), 100):
                mlflow.log_params(dict(params[first:first + 100]))
        show(f"MLflow run {started.info.run_id} at {mlflow.get_tracking_uri()}")

    def log(self, step, metrics):
        if step <= self.last:
            return
        named = {re.sub(r"[^\w\-. /]", "_", key.replace("@", "_at_")): value for key, value in metrics.items()}
        self.mlflow.log_metrics(named, step=step)

    def finish(self):
        self.mlflow.end_run()


run = json.loads(sys.stdin.readline())
tracker = {"wandb": Wandb, "mlflow": Mlflow}[run["kind"]](run)
for line in sys.stdin:
    row = json.loads(line)
    tracker.log(row["step"], row["metrics"])
tracker.finish()
