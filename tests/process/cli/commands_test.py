#!/usr/bin/env python3
"""neap plan, replay and report on files of the tests: what they print, write and refuse. usage: FILE NEAP SOURCE_DIR"""
import gzip
import html
import json
import pickle
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))
import neap_program  # noqa: E402

NEAP, SOURCE = sys.argv[1], Path(sys.argv[2])
SNAPSHOTS = SOURCE / "tests" / "data" / "gpu-snapshots"
MEASURED = {m["name"]: m for m in map(json.loads, (SNAPSHOTS / "measured.jsonl").read_text().splitlines())}
PLANNED = SOURCE / "tests" / "golden" / "plan" / "qwen7b_sft.toml"


class Commands(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def neap(self, *words, stdout=subprocess.PIPE):
        return neap_program.run(NEAP, *words, cwd=self.folder, env=neap_program.environment(NEAP_LOG="info"), stdout=stdout, timeout=250)

    def text(self, *words):
        done = self.neap(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def json(self, *words):
        return json.loads(self.text(*words, "--json"))

    def refuses(self, code, part, *words):
        done = self.neap(*words)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertIn(part, done.stderr)

    def test_a_small_stack_grows_or_is_named(self):
        def limited(limit):
            return neap_program.run("sh", "-c", f'ulimit {limit} 256 && exec "$@"', "sh", NEAP, "plan", PLANNED, "--gpu", "h200", cwd=self.folder,
                                    env=neap_program.environment(), stdout=subprocess.PIPE, timeout=250)
        soft, hard = limited("-Ss"), limited("-s")
        self.assertEqual(soft.returncode, 0, soft.stderr)
        self.assertEqual(hard.returncode, 1, hard.stderr)
        self.assertIn("The stack's limit is 256 KiB, and Neap needs 1024 KiB: raise it with `ulimit -s 8192`", hard.stderr)

    def test_a_step_of_many_ranks_is_simulated_without_them(self):
        words = ["plan", PLANNED, "--simulate", "--gpu", "h200", "--ranks", "16", "data.train_batch_size=64", "data.micro_batch_size_per_gpu=1",
                 "parallel.pipeline_model_parallel_size=4"]
        picture = self.folder / "stages.svg"
        step = self.json(*words, "--picture", picture)
        self.assertEqual((step["ranks"], step["node_ranks"], len(step["stages"]), step["device"]), (16, 8, 4, "H200 SXM"))
        self.assertEqual(step["mesh"], {"pipe": 4, "data": 4, "context": 1, "tensor": 1})
        self.assertEqual(sum(stage["ranks"] for stage in step["stages"]), 16)
        self.assertAlmostEqual(sum(step["seconds"].values()), step["step_seconds"], places=9)
        # A bar for each forward and backward of 16 micro-batches on 4 stages, one for each stage, two in the legend, and the paper.
        self.assertEqual(picture.read_text().count("<rect"), 2 * 16 * 4 + 4 + 2 + 1)
        self.assertIn("binds   operations of the device", self.text(*words))
        self.refuses(2, "A picture is an .svg or a .png file", *words, "--picture", "stages.pdf")
        self.refuses(2, "this job has one", "plan", PLANNED, "--simulate", "--gpu", "h200", "--picture", "stages.svg")
        self.refuses(2, "pipeline_model_parallel_layout has 2 stages", *words, "parallel.pipeline_model_parallel_layout=[14,14]")

    def test_output_that_cannot_be_written_fails(self):
        snapshot = SNAPSHOTS / "default.pickle.gz"
        for words in (["plan", PLANNED, "--capacity", "79GiB"], ["replay", snapshot, "--no-advice"], ["report", snapshot, "--json"],
                      ["doctor", "--quick"], ["doctor", "--quick", "--json"], ["bench", "--list"], ["--help"], ["--version"]):
            with open("/dev/full", "w") as full:
                done = self.neap(*words, stdout=full)
            self.assertEqual(done.returncode, 1, words)
            self.assertIn("standard output", done.stderr)

    def test_plan_prints_the_job_and_what_fits(self):
        plan = self.text("plan", PLANNED, "--capacity", "400GiB")
        self.assertRegex(plan, r"^sft of .*qwen7b_sft.toml on the GPU in bfloat16 \(assumed, with an H200's rates, because this machine has no GPU")
        self.assertRegex(plan.splitlines()[1], r"^needs    .* GiB in nvidia-smi with CUDA's context; \S+ B of host memory$")
        self.assertRegex(plan, r"Minimum capacity: \S+ GiB, \S+ GiB in nvidia-smi with CUDA's context")
        self.assertIn("train", plan)
        chosen = ["actor_rollout_ref.model.enable_gradient_checkpointing=false", "actor_rollout_ref.model.activation_checkpointing=auto"]
        small = SOURCE / "tests" / "golden" / "plan" / "qwen15_sft.toml"  # whose search is short
        fit = self.text("plan", small, *chosen, "--fit", "400GiB")
        self.assertIn("less 800 MiB for CUDA's context", fit.splitlines()[1])
        # Plans that need more host memory than this machine has come last.
        self.assertRegex(fit, "Plans that fit into 399.2 GiB, fastest first.*\n  1. ")
        self.assertIn("The job fits into 399.2 GiB as it is.", fit)
        tight = self.text("plan", small, "--fit", "16GiB")
        self.assertNotIn("as it is", tight)
        result = self.json("plan", small, "--fit", "16GiB")
        self.assertGreater(result["capacity"] + result["context"], 14 << 30)
        self.assertLess(result["capacity"] + result["context"], 16 << 30)  # and less what the driver has of every card
        self.assertLessEqual(result["peak"], result["capacity"])
        self.assertTrue(result["plans"] and result["plans"][0]["overrides"], result["plans"])
        self.assertNotIn("alternatives", result)
        self.assertIn("min_capacity", self.json("plan", PLANNED, "--capacity", "400GiB")["alternatives"])
        reference = self.text("plan", "--reference")
        pages = [f.read_text() for f in (SOURCE / "docs" / "configuration.md", *(SOURCE / "docs" / "configuration").glob("*.md"))]
        self.assertEqual(len(reference), sum(map(len, pages)))
        self.assertTrue(all(page in reference for page in pages))
        self.assertEqual(self.text("plan", "--peer-keys"), (SOURCE / "docs" / "verl-trl-keys.md").read_text())

    def test_a_plan_says_what_it_is_for(self):
        model = SOURCE / "tests" / "golden" / "plan" / "models" / "qwen7"
        job = self.folder / "job.toml"
        job.write_text(f'task = "sft"\n[actor_rollout_ref.model]\npath = "{model}"\nlora_rank = 16\n'
                       "[data]\nuse_dynamic_bsz = false\nmicro_batch_size_per_gpu = 1\ntrain_batch_size = 4\n")
        assumed = r"on the GPU in bfloat16 \(assumed, with an H200's rates, because this machine has no GPU, and a model of 7\.62 billion parameters"
        answer = self.text("plan", job, "--fit", "24GiB")
        self.assertRegex(answer.splitlines()[0], "^sft of .* " + assumed)
        self.assertIn("22 GiB that every card of 24 GiB has free, less 800 MiB for CUDA's context", answer.splitlines()[1])
        self.assertRegex(answer.splitlines()[2], r"^needs    \S+ GiB of device memory, \S+ GiB in nvidia-smi.* of host memory")
        plan = self.json("plan", job, "--fit", "24GiB")
        self.assertRegex(plan["assumed"], "^assumed, with an H200's rates, because this machine has no GPU")
        self.assertEqual((plan["dtype"], plan["device"]), ("bfloat16", "GPU"))
        refused = self.neap("plan", job, "--capacity", "100MiB")
        self.assertEqual(refused.returncode, 3)
        self.assertRegex(refused.stderr.splitlines()[0], "error: On .*assumed.*does not fit under 100 MiB")
        # What is named is not assumed.
        named = self.json("plan", job, "--gpu", "rtx4090")
        self.assertIsNone(named["assumed"])
        self.assertLess(named["capacity"], 23 << 30)
        on_host = self.text("plan", job, "device.kind=cpu", "--capacity", "400GiB").splitlines()
        self.assertRegex(on_host[0], r"on the host memory in float32$")
        self.assertRegex(on_host[1], r"^needs    \S+ GiB of host memory$")
        # Without bfloat16 the plan is in float32, and the run needs that key, too.
        t4 = self.json("plan", job, "--gpu", "t4")
        self.assertEqual((t4["dtype"], t4["device_keys"]), ("float32", ["device.dtype=float32"]))
        self.assertIn("it has no bfloat16: a run there needs device.dtype=float32", self.text("plan", job, "--gpu", "t4").splitlines()[0])
        self.refuses(2, "has no bfloat16", "plan", job, "--gpu", "t4", "device.dtype=bfloat16")

    def test_host_memory_is_a_part_of_the_plan(self):
        # Adapters keep to it; the full training that needs more comes behind.
        ranked = self.text("plan", SOURCE / "examples" / "gsm8k" / "qwen2.5-1.5b.toml", "--gpu", "rtx4090", "--fit", "24GiB", "--host", "8GiB")
        self.assertIn("fastest first, but those that need more host memory last", ranked)
        plans = re.findall(r"(?m)^  \d\. .*$", ranked)
        self.assertIn("lora_rank", plans[0])
        self.assertRegex(plans[0], r"; [0-9.]+ (?:B|MiB) of host memory$")
        self.assertNotIn("lora_rank", plans[-1])
        self.assertRegex(plans[-1], r"; [0-9.]+ GiB of host memory, more than 6 GiB$")
        full = ["plan", PLANNED, "--gpu", "h100", "device.memory=0B"]
        refused = self.neap(*full, "--host", "8GiB")
        self.assertEqual(refused.returncode, 3)
        self.assertIn("host budget of 6 GiB", refused.stderr)
        self.refuses(2, "--host must be greater than 0", *full, "--host", "0B")

    def test_a_model_alone_is_planned(self):
        model = SOURCE / "tests" / "golden" / "plan" / "models" / "qwen1.5"
        few = self.folder / "few-layers"
        few.mkdir()
        (few / "config.json").write_text(json.dumps(json.loads((model / "config.json").read_text()) | {"num_hidden_layers": 2}))
        text = self.text("plan", few, "--gpu", "rtx4090")
        self.assertRegex(text, r"^.*few-layers, 0\.327 billion parameters, on the RTX 4090 in bfloat16\n")
        for training in ("SFT", "DPO", "GRPO", "PPO"):
            self.assertRegex(text, rf"(?m)^{training} +\S+ GiB .* GiB")
            self.assertRegex(text, rf"(?m)^{training}, LoRA +\S+ GiB .* GiB")
        said = self.json("plan", model / "config.json", "--gpu", "rtx4090")
        self.assertEqual([(job["task"], job["lora_rank"]) for job in said["jobs"]],
                         [(task, rank) for task in ("sft", "dpo", "grpo", "ppo") for rank in (0, 16)])
        for job in said["jobs"]:
            self.assertLessEqual(job["fastest"]["peak"], said["capacity"])
            self.assertLessEqual(job["min_capacity"], job["fastest"]["peak"])
            # The keys make a job of which neap plan says the same.
            self.assertGreater(job["smallest"]["seconds"], 0)
        job = self.folder / "empty.toml"
        job.write_text("")
        plan = self.json("plan", job, *said["jobs"][1]["keys"], "--gpu", "rtx4090")
        self.assertEqual(plan["peak"], said["jobs"][1]["fastest"]["peak"])
        self.assertEqual(plan["alternatives"]["min_capacity"], said["jobs"][1]["min_capacity"])
        self.refuses(2, "--simulate needs a job", "plan", model, "--simulate")
        self.refuses(2, "config.json", "plan", self.folder)

    def test_plan_prints_formulas(self):
        examples = SOURCE / "examples" / "plan"
        model = examples / "models" / "gpt-1b"
        text = self.text("plan", "--formulas", model, "--batch", "2", "--data", "8", "--zero", "2", "--unit", "GB", "device.dtype=bfloat16")
        self.assertIn("b = 2, s = 1024, m = 1 ", text)
        self.assertRegex(text, r"model states +sum +3\.75 GB +-\n")
        self.assertRegex(text, r"optimizer states +K N +12 GB +12\.04 GB")
        self.assertEqual(text, self.text("plan", "--formulas", model / "config.json", "--batch", "2", "--data", "8", "--zero", "2", "--unit", "GB")
                         .replace(f"{model}/config.json", str(model)))
        lines = {line["id"]: line for section in self.json("plan", "--formulas", PLANNED, "--tensor", "2")["sections"] for line in section["lines"]}
        self.assertIsNone(lines["rank.weights"]["counted"])
        plan = {tag["tag"]: tag["bytes"] for tag in self.json("plan", PLANNED)["tags"]}
        self.assertEqual(lines["actor.optimizer"]["counted"], plan["actor.optimizer"])
        self.assertIn("d = 4, ZeRO-0", self.json("plan", "--formulas", PLANNED, "--ranks", "4")["letters"])
        cases = self.json("plan", "--formulas", examples / "zero-1b.toml")["cases"]
        self.assertEqual(len(cases), 5)
        for code, part, words in ((2, "requires --formulas", [PLANNED, "--tensor", "2"]),
                                  (2, "excludes", ["--formulas", PLANNED, "--fit", "9GiB"]),
                                  (2, "are for a config.json", ["--formulas", PLANNED, "--batch", "2"]),
                                  (2, "is a file of cases", ["--formulas", examples / "zero-1b.toml", "--tensor", "2"]),
                                  (2, "is a file of cases", ["--formulas", examples / "zero-1b.toml", "device.dtype=float32"]),
                                  (2, "tensor-parallel degree above 1", ["--formulas", PLANNED, "--sequence-parallel"]),
                                  (2, "excludes", ["--formulas", PLANNED, "--run", ".", "--zero", "1"]),
                                  (2, "needs the configuration of the run", ["--formulas", model, "--run", "."]),
                                  (2, "needs the configuration of the run", ["--formulas", examples / "zero-1b.toml", "--run", "."]),
                                  (2, "is not the output of a training", ["--formulas", PLANNED, "--run", examples]),
                                  (2, "needs a configuration file", ["--formulas"])):
            self.refuses(code, part, "plan", *words)

    def test_plan_refuses(self):
        self.refuses(2, "give one of them", "plan", PLANNED, "--capacity", "1GiB", "--fit", "1GiB")
        self.refuses(2, "needs a configuration file", "plan")
        self.refuses(2, "greater than 0", "plan", PLANNED, "--capacity", "0GiB")
        self.refuses(3, "minimum capacity", "plan", PLANNED, "--capacity", "1GiB")

    def test_replay_repeats_the_recorded_settings_and_tries_others(self):
        for name in ("default", "expandable", "empty-cache"):
            truth = MEASURED[name]
            result = self.json("replay", SNAPSHOTS / f"{name}.pickle.gz", "--no-advice", "--phase-at", "all=0s")
            self.assertTrue(result["fidelity"]["holds"])
            self.assertEqual(result["recorded"]["peak_reserved"], truth["peak_reserved"])
            self.assertEqual([phase["peak_reserved"] for phase in result["phases"]], [truth["peak_reserved"]], name)
            self.assertEqual(result["what_if"], [])
        result = self.json("replay", SNAPSHOTS / "default.pickle.gz", "--no-advice", "--conf", "", "--conf", "expandable_segments:True",
                           "--empty", "none", "--empty", "all")
        self.assertEqual([(w["conf"], w["empty"]) for w in result["what_if"]],
                         [("", "none"), ("", "all"), ("expandable_segments:True", "none"), ("expandable_segments:True", "all")])
        self.assertEqual(result["what_if"][0]["peak_reserved"], MEASURED["default"]["peak_reserved"])
        self.assertEqual(result["what_if"][2]["peak_reserved"], MEASURED["expandable"]["peak_reserved"])
        (self.folder / "settings.jsonl").write_text('{"conf": "max_split_size_mb:64", "empty": "none"}\n')
        result = self.json("replay", SNAPSHOTS / "default.pickle.gz", "--no-advice", "--settings", "settings.jsonl", "--conf", "",
                           "--fraction", "0.5", "--capacity", "139.80GiB")
        self.assertEqual([(w["conf"], w["fraction"]) for w in result["what_if"]], [("max_split_size_mb:64", 0), ("", 0.5)])

    def test_replay_refuses(self):
        snapshot = SNAPSHOTS / "default.pickle.gz"
        self.refuses(2, "/nowhere", "replay", "/nowhere")
        self.refuses(2, "nothing about device 7", "replay", snapshot, "--device", 7)
        self.refuses(2, "needs --capacity", "replay", snapshot, "--conf", "", "--fraction", 0.5)
        self.refuses(2, "--capacity is zero", "replay", snapshot, "--capacity", "0GiB")
        self.refuses(2, "--fraction belongs to --conf", "replay", snapshot, "--fraction", 0.5, "--capacity", "80GiB")
        self.refuses(2, 'neither a PyTorch version from 2.0 on', "replay", snapshot, "--policy", "1.0")
        for time in ("1e9", "-1"):
            self.refuses(2, "outside of the recording, which lasts from 0 to ", "replay", snapshot, "--blame-at", time)
        self.refuses(2, 'holds a function "nothing"', "replay", snapshot, "--phase-at", "x=@nothing")
        self.refuses(2, "the recording ends before, at ", "replay", snapshot, "--phase-at", "x=9999s")
        done = self.neap("replay", snapshot, "--no-advice", "--conf", "", "--empty", "no_such_phase")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('No phase is called "no_such_phase"', done.stderr)

    def test_replay_needs_a_history(self):
        with gzip.open(SNAPSHOTS / "phases.pickle.gz") as file:
            snapshot = pickle.load(file)
        for name, traces in (("no_events", [[]]), ("no_devices", []), ("no_traces", None)):
            without = {key: value for key, value in snapshot.items() if key != "device_traces"}
            if traces is not None:
                without["device_traces"] = traces
            (self.folder / name).write_bytes(pickle.dumps(without))
            self.refuses(2, "torch.cuda.memory._record_memory_history", "replay", name)

    def test_replay_of_a_cut_history_gives_no_advice(self):
        result = self.json("replay", SNAPSHOTS / "cut-ring.pickle.gz", "--conf", "", "--conf", "expandable_segments:True")
        self.assertFalse(result["history_cut"]["comparable"])
        self.assertEqual(result["advice"], [])
        self.assertIn("larger max_entries", result["warnings"][0])
        for entry in result["what_if"]:
            self.assertLess(entry["fragmentation_overhead"], entry["peak_reserved"])

    def test_replay_of_a_run_under_a_limit_names_what_advice_is_compared_with(self):
        result = self.json("replay", SNAPSHOTS / "retry-and-oom.pickle.gz", "--capacity", "80GiB")
        self.assertIn("most likely under a tighter limit", result["advice_note"])
        compared = result["advice"][0]["saves"] + result["advice"][0]["peak_reserved"]
        self.assertGreater(compared, result["recorded"]["peak_reserved"])

    def test_replay_under_a_small_capacity_keeps_the_recorded_phases(self):
        snapshot = SNAPSHOTS / "phases.pickle.gz"
        whole = self.json("replay", snapshot, "--no-advice")
        self.assertIsNone(whole["history_cut"])
        self.assertIsNone(whole["recorded_settings_oom"])
        small = self.json("replay", snapshot, "--capacity", str(whole["recorded"]["peak_allocated"] - (2 << 20)) + "B")
        self.assertEqual(small["phases"], whole["phases"])
        self.assertIsNotNone(small["recorded_settings_oom"])
        self.assertEqual(small["advice"], [])
        self.assertIn("no setting can make it fit", small["advice_note"])

    def test_report_writes_what_is_named(self):
        snapshot = SNAPSHOTS / "phases.pickle.gz"
        table = self.text("report", snapshot)
        self.assertIn("peak reserved", table)
        page = (self.folder / "phases.pickle.gz.html").read_text()
        self.assertTrue(page.lstrip().lower().startswith("<!doctype html"))
        self.assertEqual(len(list(self.folder.iterdir())), 1)
        self.text("report", snapshot, "--svg", "chart.svg", "--png", "chart.png", "--perfetto", "plain.json")
        self.text("report", snapshot, "--perfetto", "packed.json.gz", "--html", "page.html")
        self.assertEqual({p.name for p in self.folder.iterdir()}, {"phases.pickle.gz.html", "chart.svg", "chart.png", "plain.json",
                                                                  "packed.json.gz", "page.html"})
        self.assertIn("<svg", (self.folder / "chart.svg").read_text())
        self.assertEqual((self.folder / "chart.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        self.assertEqual(json.loads((self.folder / "plain.json").read_text()),
                         json.loads(gzip.decompress((self.folder / "packed.json.gz").read_bytes())))
        self.assertEqual((self.folder / "page.html").read_text(), page)
        report = self.json("report", snapshot)
        self.assertIn(MEASURED["phases"]["peak_reserved"], json_numbers(report))

    def test_report_refuses_damaged_logs_as_data(self):
        run = self.folder / "run"
        run.mkdir()
        (run / "plan.json").write_text(json.dumps({"capacity": 100, "peak_without_offload": 90, "peak": 80, "phases": []}))
        phase = {"step": 1, "phase": "train", "persistent": 6, "temporary_allocated": 20, "temporary_reserved": 25, "peak": 31,
                 "fragmentation_at_peak": 4, "moved": 0, "seconds": 0.05, "move_seconds": 0.0}
        (run / "phases.jsonl").write_text(json.dumps(phase) + "\n")
        self.assertIn("0.050", self.text("report", run))
        with (run / "phases.jsonl").open("a") as log:
            log.write(json.dumps({**phase, "seconds": 1e300}) + "\n")
        self.refuses(2, '"seconds" is missing or not from 0 to 1e9 s - while reading line 2', "report", run)
        (run / "phases.jsonl").write_text('{"step": 1, ]\n')
        self.refuses(2, "phases.jsonl:1: not valid JSON", "report", run)
        (run / "phases.jsonl").write_text(json.dumps(phase) + "\n")
        for name in ("metrics.jsonl", "validation.jsonl", "warnings.jsonl", "rollouts.jsonl", "plan.json"):
            with self.subTest(name):
                (run / name).write_text("{]\n")
                self.refuses(2, f"{name}", "report", run)
                (run / name).unlink()
        packed = (SNAPSHOTS / "default.pickle.gz").read_bytes()
        (self.folder / "cut.pickle.gz").write_bytes(packed[:len(packed) // 2])
        self.refuses(2, "cut short", "report", "cut.pickle.gz")

    def test_report_draws_the_time_that_is_asked_for(self):
        snapshot = SNAPSHOTS / "phases.pickle.gz"
        for name, words in (("whole", []), ("from", ["--from", "20ms"]), ("to", ["--to", "20ms"]), ("map", ["--at", "peak"])):
            self.text("report", snapshot, "--svg", f"{name}.svg", "--png", f"{name}.png", *words)
        drawn = {p.name: p.read_bytes() for p in self.folder.iterdir()}
        self.assertEqual(len(drawn), 8)
        self.assertEqual(len(set(drawn.values())), 8, "two charts are equal")
        height = lambda name: struct.unpack(">I", drawn[f"{name}.png"][20:24])[0]
        self.assertGreater(height("map"), height("whole"))

    def test_report_shows_what_a_replay_found(self):
        snapshot = SNAPSHOTS / "empty-cache.pickle.gz"
        replay = lambda *words: (self.folder / "replay.json").write_text(self.text("replay", snapshot, "--json", *words))
        replay()
        advice = json.loads((self.folder / "replay.json").read_text())["advice"]
        self.assertTrue(advice)
        table = self.text("report", snapshot, "--replay", "replay.json", "--html", "page.html")
        for shown in (table, html.unescape((self.folder / "page.html").read_text())):
            self.assertIn("recorded: ", shown)
            self.assertGreaterEqual(shown.count("advice: "), len(advice))
            self.assertIn(advice[0]["environment"], shown)
        settings = self.json("report", snapshot, "--replay", "replay.json")["settings"]
        self.assertEqual([s["kind"] for s in settings], ["recorded"] + ["advice"] * len(advice))
        replay("--no-advice", "--conf", "expandable_segments:True")
        self.assertIn("expandable_segments:True", self.text("report", snapshot, "--replay", "replay.json"))
        replay("--no-advice")
        self.assertIn("no other settings", self.text("report", snapshot, "--replay", "replay.json"))
        self.refuses(2, "phases.pickle.gz has", "report", SNAPSHOTS / "phases.pickle.gz", "--replay", "replay.json", "--html", "other.html")
        self.assertFalse((self.folder / "other.html").exists())

    def test_report_refuses(self):
        snapshot = SNAPSHOTS / "phases.pickle.gz"
        self.refuses(2, "/nowhere", "report", "/nowhere")
        self.refuses(2, "soon", "report", snapshot, "--svg", "x.svg", "--from", "soon")
        for words in (["--from", "30ms", "--to", "20ms"], ["--from", "500s"], ["--at", "99s"], ["--to", "0s"]):
            self.refuses(2, "long", "report", snapshot, "--svg", "x.svg", *words)
        self.refuses(2, "/nowhere/x.svg", "report", snapshot, "--svg", "/nowhere/x.svg")
        self.assertEqual(list(self.folder.iterdir()), [])


def json_numbers(value):
    if isinstance(value, dict):
        return {n for v in value.values() for n in json_numbers(v)}
    if isinstance(value, list):
        return {n for v in value for n in json_numbers(v)}
    return {value} if isinstance(value, (int, float)) else set()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
