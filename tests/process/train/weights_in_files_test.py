#!/usr/bin/env python3
"""Frozen blocks that are read from the model's own files: the same training without another copy. usage: FILE NEAP REVIEWS"""
import hashlib
import json
import os
import re
import shutil
import struct
import time

from neap_program import logged_steps, outcome, read_lines, wait_for, without
from streamed_weights_test import DISK, LORA, STEPS, TABLES, UNTIED_TABLES, StreamedCase
from train_process_test import MODEL, REWARD, PPO, main

GRPO = re.sub(r"\[critic\][^\[]*", "", PPO.replace("CEILING", "2GiB").replace('"ppo"', '"grpo"')).replace("out/reward/", "out/judge/")
WIDE = dict(MODEL, hidden_size=256, intermediate_size=1024, num_attention_heads=4, num_key_value_heads=4, head_dim=64, num_hidden_layers=6)
# By job and model; a scalar head ties no embedding.
TABLES_OF = {("sft untied", "actor"): {"embed"}, ("sft tables", "actor"): {"embed"}, ("dpo tables", "actor"): {"embed", "head"},
             ("grpo", "reward"): {"embed"}}
BASE = ["trainer.save_lora_base=true"]
# Models whose blocks are in files; others that stream from disk.
JOBS = {"sft": (["sft.toml", *LORA, *STEPS], ["actor"], []),
        # Rows of the embedding, and a head or a tied one in turns.
        "sft untied": (["sft.toml", *LORA, *STEPS, "actor_rollout_ref.model.path=out/untied/latest/actor"], ["actor"], []),
        "sft tables": (["sft.toml", *LORA, *STEPS, "actor_rollout_ref.model.path=out/tables/latest/actor"], ["actor"], []),
        "dpo tables": (["dpo.toml", *LORA, *STEPS, "actor_rollout_ref.model.path=out/untied_tables/latest/actor"], ["actor"], []),
        # Blocks come together for its rollout.
        "grpo": (["grpo.toml", *LORA, *STEPS, "data.val_files=[]"], ["actor", "reward"], []),
        "dpo": (["dpo.toml", *STEPS, "actor_rollout_ref.model.path=out/wide/latest/actor"], ["reference"], ["actor"])}


def hashes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}


def read_tensors(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    begin = 8 + length
    return {name: (entry["dtype"], entry["shape"], raw[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


def write_tensors(path, tensors, spaces):
    header, at = {}, 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode() + b" " * spaces
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(raw for _, _, raw in tensors.values()))


def shard(source, target, count=3):
    """The same model in shards, its tensors in no order and where no word begins, without the names' prefix and checksums."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors*"))
    tensors = read_tensors(source / "model.safetensors")
    names = sorted(tensors, key=lambda name: hashlib.md5(name.encode()).hexdigest())
    weight_map = {}
    for i in range(count):
        file = f"model-{i + 1:05}-of-{count:05}.safetensors"
        part = {name.removeprefix("model."): tensors[name] for name in names[i::count]}
        write_tensors(target / file, part, 2 * i + 1)
        weight_map.update(dict.fromkeys(part, file))
    (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


class WeightsInFiles(StreamedCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home()
        models = {"wide": WIDE, "untied": dict(WIDE, tie_word_embeddings=False), "tables": dict(TABLES, num_hidden_layers=6),
                  "untied_tables": dict(UNTIED_TABLES, num_hidden_layers=6)}
        for name, config in models.items():
            cls.add_model(name, config)
        (cls.home / "dpo.toml").write_text(REWARD.replace('"reward"', '"dpo"').replace("out/reward", "out/dpo"))
        (cls.home / "grpo.toml").write_text(GRPO.replace("ref.rollout]", "ref.rollout]\nn = 2"))
        once = ["trainer.total_training_steps=1", "data.train_batch_size=2", "data.micro_batch_size_per_gpu=2", "device.memory=2GiB"]
        for words in (*(["sft.toml", f"actor_rollout_ref.model.path={name}", f"trainer.default_local_dir=out/{name}", *once] for name in models),
                      ["reward.toml", "actor_rollout_ref.model.path=out/wide/latest/actor", "trainer.default_local_dir=out/judge", *once]):
            result = cls.neap("train", *words)
            assert result.returncode == 0, result.stderr
        cls.wide = (cls.home / "out/wide/latest/actor").resolve()

    def tight(self, *words, room=8):
        """A ceiling and a host budget that leave room only for blocks that rest on disk."""
        ceiling = f"device.memory={self.least(*words, DISK) + room}MiB"
        budget = self.least_host(*words, DISK, ceiling)
        return [*words, DISK, ceiling, f"memory.host_budget={budget}B"], budget

    def test_equal_bits_without_a_copy(self):
        for name, (words, in_files, on_disk) in without("sft untied", of=JOBS).items():
            with self.subTest(name):
                before = hashes(self.wide)
                room = 2 if "tables" in name else 8
                resident = self.resident(f"{name} resident", *words)
                tight, budget = self.tight(*words, room=room)
                scratch = self.home / f"scratch-{name}"
                scratch.mkdir()
                run = self.train(f"{name} in files", *tight, f"memory.nvme_path={scratch}")
                self.assertEqual(list(scratch.iterdir()), [])
                self.assert_equal_runs(resident, run)
                self.assertEqual(hashes(self.wide), before)
                plan = json.loads((run / "plan.json").read_text())
                self.assertEqual(plan["weights_in_model_files"], in_files)
                self.assertEqual(set(plan["weights_on_nvme"]), {*in_files, *on_disk})
                self.assertEqual(plan["host_bytes"], budget)
                rests = {tag["tag"]: [part for part in tag.get("offloaded", [])] for tag in plan["tags"]}
                for model in in_files:
                    names = [part["name"] for part in rests[f"{model}.prefetch"] if part.get("on") == "files"]
                    self.assertEqual(names[:6], [f"block.{i}" for i in range(6)])
                    self.assertEqual(set(names[6:]), TABLES_OF.get((name, model), set()))
                    self.assertFalse([part for part in rests[f"{model}.prefetch"] if part["kind"] == "weights" and "on" not in part])
                taken = [part["bytes"] for parts in rests.values() for part in parts if part.get("on") == "disk"]
                self.assertEqual(sum(taken), plan["disk_bytes"])
                self.assertEqual(bool(taken), bool(on_disk))
                self.check_phases(run, plan, int(tight[-2][14:-3]) << 20)
                self.check_disk(run, plan)

    def check_disk(self, run, plan):
        phases = {phase["name"]: phase for phase in plan["phases"]}
        for key in ("disk_read", "disk_written"):
            moved = {}
            for record in read_lines(run / "phases.jsonl"):
                if record["step"] == 1 and record["phase"] != "validate":
                    moved[record["phase"]] = moved.get(record["phase"], 0) + sum(s.get(key, 0) for s in record["streamed"])
            self.assertEqual(moved, {phase: phases[phase][key] for phase in moved})
            self.assertTrue(sum(moved.values()) > 0 or key == "disk_written")

    def test_shards_in_any_order(self):
        shard(self.wide, self.home / "sharded")
        words = ["sft.toml", *LORA, *STEPS]
        resident = self.resident("sft resident", *words)  # of the file that the shards are made of
        tight, budget = self.tight(*words, "actor_rollout_ref.model.path=sharded")
        run = self.train("sharded in files", *tight)
        plan = json.loads((run / "plan.json").read_text())
        self.assertEqual((plan["weights_in_model_files"], plan["disk_bytes"], plan["host_bytes"]), (["actor"], 0, budget))
        self.assertEqual(self.metrics(resident), self.metrics(run))
        for file in ("global_step_2/actor/adapter_model.safetensors", "global_step_3/actor/adapter_model.safetensors"):
            self.assertEqual(read_tensors(resident / file), read_tensors(run / file))  # their metadata names the base's files
        self.check_disk(run, plan)

    def test_resumes(self):
        words = ["sft.toml", *LORA, *STEPS]
        tight, _ = self.tight(*words)
        whole = self.resident("sft resident", *words)
        for more in ([], BASE):
            source = self.resident("sft base resident", *words, *more)
            resumed = self.train(f"resumed {len(more)}", *tight, f"trainer.resume_mode={source}/global_step_2")
            plan = json.loads((resumed / "plan.json").read_text())
            self.assertEqual(plan["weights_in_model_files"], ["actor"])
            self.assertEqual(self.metrics(whole)[2:], self.metrics(resumed)[-1:])
            self.assert_equal_files(whole / "global_step_3", resumed / "global_step_3")

    def test_copies_what_files_have_in_another_form(self):
        words = ["sft.toml", *LORA, *STEPS]
        for name, more, room in (("bfloat16", ["device.dtype=bfloat16"], 2), ("base", BASE, 8)):
            with self.subTest(name):
                tight, budget = self.tight(*words, *more, room=room)
                resident = self.resident(f"sft {name} resident", *words, *more)
                run = self.train(f"{name} copied", *tight)
                plan = json.loads((run / "plan.json").read_text())
                self.assertEqual((plan["weights_in_model_files"], plan["weights_on_nvme"]), ([], ["actor"]))
                self.assertGreater(plan["disk_bytes"], 0)
                self.assertEqual(plan["host_bytes"], budget)
                self.assert_equal_runs(resident, run)

    def test_says_what_is_read(self):
        tight, _ = self.tight("sft.toml", *LORA, *STEPS)
        shown = self.neap("plan", *tight)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertRegex(shown.stdout, r"actor\.prefetch: 6 layers[a-z, ]*, [0-9.]+ MiB in all, read from the model's files through [0-9.]+ MiB of pinned staging buffers")
        self.assertNotIn("on disk", shown.stdout)

    def started(self, name, model):
        """A run whose model's files may be changed, in its second step or later."""
        shutil.copytree(self.wide, self.home / model)
        words = ["sft.toml", *LORA, f"actor_rollout_ref.model.path={model}", "trainer.total_training_steps=400", "trainer.save_freq=-1"]
        tight, _ = self.tight(*words)
        output = self.home / "out" / name
        process = self.start("train", *tight, f"trainer.default_local_dir={output}")
        wait_for(process, lambda: logged_steps(output) >= 2)
        return process, self.home / model / "model.safetensors"

    def test_a_file_that_changes_ends_the_run_by_a_message(self):
        for name, change in (("shorter", lambda file: os.truncate(file, 100_000)), ("touched", lambda file: os.utime(file, (time.time(), 1)))):
            with self.subTest(name):
                process, file = self.started(name, f"changed-{name}")
                change(file)
                result = outcome(process)
                self.assertGreater(result.returncode, 0, result.stderr)
                self.assertRegex(result.stderr, f"changed-{name}/model.safetensors (ends at byte|was changed)")

    def test_a_file_that_is_removed_stays(self):
        shutil.copytree(self.wide, self.home / "removed")
        words = ["sft.toml", *LORA, "actor_rollout_ref.model.path=removed", "trainer.total_training_steps=6", "trainer.save_freq=6"]
        tight, _ = self.tight(*words)
        calm = self.train("calm", *tight)
        output = self.home / "out/removed"
        process = self.start("train", *tight, f"trainer.default_local_dir={output}")
        wait_for(process, lambda: logged_steps(output) >= 1)
        (self.home / "removed" / "model.safetensors").unlink()
        # The checkpoint has an adapter alone, whose base is gone.
        result = outcome(process)
        self.assertGreater(logged_steps(output), 1, result.stderr)
        self.assertEqual(self.metrics(calm)[:logged_steps(output)], self.metrics(output))


if __name__ == "__main__":
    main()
