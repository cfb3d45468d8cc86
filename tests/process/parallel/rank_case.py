"""Trainings on several CPU ranks, in folders of their own below out/, for the tests beside it."""
import json
import operator
import pathlib
import struct

import launch

from train_process_test import REWARD, SFT, TrainCase, read_lines  # noqa: E402

SIZE = "parallel.tensor_model_parallel_size"
CONTEXT = "parallel.context_parallel_size"
STAGES = "parallel.pipeline_model_parallel_size"
CHUNKS = "parallel.virtual_pipeline_model_parallel_size"
ZERO_BUBBLE = "parallel.pipeline_parallel_schedule=zero_bubble"
ROWS = "parallel.sequence_parallel=true"
FP8 = "device.linear_dtype=fp8"
OPTIMIZER = "actor_rollout_ref.actor.optim."
FILES = ("actor/model.safetensors", "actor/optimizer.safetensors")
# An optimizer whose steps are proportional to gradients: Adam's make large steps of gradients that are zero but for
# rounding, as those of a key's bias.
SGD = (f"{OPTIMIZER}optimizer=sgd", f"{OPTIMIZER}momentum=0.9", f"{OPTIMIZER}lr=0.05")
ARCHITECTURES = pathlib.Path(__file__).resolve().parents[2] / "golden/architectures"
# Fewer tokens than the chunks of ranks that divide them: some have none of a text, or one.
SHORT_TEXTS = "".join(json.dumps({"prompt": "a b"[:1 + 2 * (i % 2)], "response": " c" * (1 + i % 4)}) + "\n" for i in range(16))


def packed(text):
    return text.replace("use_dynamic_bsz = false", "use_dynamic_bsz = true\nmax_token_len_per_gpu = 128")


def tensors(path):
    """Name to the values of a safetensors file of float32 or float64."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        width, letter = {"F32": (4, "f"), "F64": (8, "d")}[entry["dtype"]]
        first, end = entry["data_offsets"]
        out[name] = struct.unpack(f"<{(end - first) // width}{letter}", data[8 + size + first:8 + size + end])
    return out


def name_of(mesh):
    return "-".join(f"{axis}{size}" for axis, size in mesh.items())


class RankCase(TrainCase):
    @classmethod
    def make_packed_home(cls):
        """Jobs of packed texts, and a model that one of them has trained: start."""
        cls.make_home(pathlib.Path(launch.REVIEWS))
        sft = SFT.replace("train_batch_size = 16", "train_batch_size = 8").replace("test_freq = -1", "test_freq = 2")
        sft = sft.replace("total_training_steps = 8", "total_training_steps = 2").replace("save_freq = 3", "save_freq = -1")
        (cls.home / "sft.toml").write_text(packed(sft))
        reward = REWARD.replace("test_freq = -1", "test_freq = 3").replace("out/sft/latest/actor", "model")
        (cls.home / "reward.toml").write_text(packed(reward))
        (cls.home / "dpo.toml").write_text(packed(reward).replace('"reward"', '"dpo"').replace("out/reward", "out/dpo"))
        result = launch.train(1, "sft.toml", cwd=cls.home)
        assert result.returncode == 0, result.stderr
        (cls.home / "start").symlink_to("out/sft/latest/actor")

    def run_ranks(self, ranks, folder, *words, task="sft"):
        """Trains TASK.toml into out/FOLDER."""
        result = launch.train(ranks, f"{task}.toml", f"trainer.default_local_dir=out/{folder}", *words, cwd=self.home)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def run_mesh(self, folder, *words, context=1, tensor=1, stages=1, copies=1, task="sft"):
        sizes = ((CONTEXT, context), (SIZE, tensor), (STAGES, stages))
        ranks = context * tensor * stages * copies
        self.run_ranks(ranks, folder, *words, *(f"{key}={size}" for key, size in sizes if size > 1), task=task)
        self.assert_within_plans(folder, ranks)

    def assert_within_plans(self, folder, ranks):
        """Tags exactly; of a phase no more than planned, because a packed micro-batch may be smaller."""
        for rank in range(ranks):
            of_rank = self.home / "out" / (folder if rank == 0 else f"{folder}/ranks/{rank}")
            planned = {p["name"]: p for p in json.loads((of_rank / "plan.json").read_text())["phases"]}
            phases = read_lines(of_rank / "phases.jsonl")
            self.assertTrue(phases)
            for phase in phases:
                self.assertEqual(phase["persistent"], planned[phase["phase"]]["persistent"], (folder, rank, phase["phase"]))
                self.assertLessEqual(phase["peak"], phase["planned"], (folder, rank, phase["phase"]))

    def assert_same_training(self, one, other, near=1e-6, numbers=None, files=("model", "optimizer"), step=2, role="actor"):
        for kind in (self.metrics, self.validations):
            a, b = kind(f"out/{one}"), kind(f"out/{other}")
            self.assertEqual(len(a), len(b), other)
            for x, y in zip(a, b, strict=True):
                self.assert_near(x, y, numbers or near, other)
        for file in files:
            self.assert_near_weights(self.file(one, f"{role}/{file}.safetensors", step),
                                     self.file(other, f"{role}/{file}.safetensors", step),
                                     10 * near if file == "optimizer" else near, other)

    def assert_same_files(self, one, two, step=2, files=FILES):
        for file in files:
            a, b = (self.home / "out" / folder / f"global_step_{step}" / file for folder in (one, two))
            self.assertEqual(a.read_bytes(), b.read_bytes(), (one, two, file))

    def assert_planned_is_measured(self, folder):
        """Exactly: what is resident, and what the device took at most in each phase."""
        plan = json.loads((self.home / "out" / folder / "plan.json").read_text())
        planned = {phase["name"]: phase for phase in plan["phases"]}
        phases = read_lines(self.home / "out" / folder / "phases.jsonl")
        self.assertTrue(phases)
        for phase in phases:
            self.assertEqual(phase["persistent"], planned[phase["phase"]]["persistent"], (folder, phase["phase"]))
            self.assertEqual(phase["peak"], planned[phase["phase"]]["peak"], (folder, phase["phase"]))
        return plan

    def assert_ranks_are_as_planned(self, folder, ranks):
        """By each rank's own plan."""
        for rank in range(ranks):
            self.assert_planned_is_measured(folder if rank == 0 else f"{folder}/ranks/{rank}")

    def part_bytes(self, folder, tag="actor.optimizer"):
        plan = json.loads((self.home / "out" / folder / "plan.json").read_text())
        tags = [t for t in plan["tags"] if t["tag"] == tag]
        return sum(part["bytes"] for t in tags for region in t["regions"] for part in region["parts"])

    def file(self, folder, name, step=2):
        return self.home / "out" / folder / f"global_step_{step}" / name

    def assert_near(self, one, two, relative, where):
        """A norm of gradients adds up the errors of all of them; a perplexity has those of its logarithm, times that."""
        self.assertEqual(one.keys(), two.keys())
        for key, value in one.items():
            if isinstance(value, float):
                near = max(relative, 1e-5) if key.endswith(("grad_norm", "perplexity")) else relative
                self.assertLessEqual(abs(value - two[key]), near * max(1e-2, abs(value)), (where, key, value, two[key]))

    def assert_near_weights(self, one, two, relative, where):
        a, b = tensors(one), tensors(two)
        self.assertEqual(a.keys(), b.keys())
        for name, values in a.items():
            self.assertEqual(len(values), len(b[name]), (where, name))
            scale = max([1e-3, *map(abs, values)])  # a key's bias has no gradient but by rounding
            off = max(map(abs, map(operator.sub, values, b[name])))
            self.assertLessEqual(off, relative * scale, (where, name))

    def add_window_model(self):
        """The model "window", whose tokens attend to 7: texts have more."""
        config = json.loads((ARCHITECTURES / "mistral.json").read_text())["config"]
        config |= {"vocab_size": 1024, "sliding_window": 7, "max_position_embeddings": 128, "bos_token_id": 0, "eos_token_id": 0}
        self.add_model("window", config)

    def architecture(self, name):
        """A folder with a model of that architecture without weights, and the sizes that go with it."""
        config = json.loads((ARCHITECTURES / f"{name}.json").read_text())["config"]
        heads = config.get("num_attention_heads") or config.get("n_head")
        keys = config.get("num_key_value_heads") or heads
        config |= {"vocab_size": 1024, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
        for key in ("max_position_embeddings", "n_positions", "seq_length", "n_ctx"):
            if key in config:
                config[key] = 128
        folder = self.home / f"model-{name}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        for file in ("tokenizer.json", "tokenizer_config.json"):
            if (self.home / "model" / file).exists():
                (folder / file).write_bytes((self.home / "model" / file).read_bytes())
        fused = name.startswith("phi3") or name == "olmo2"
        return folder.name, [size for size in (2, 4) if not fused or keys % size == 0]
