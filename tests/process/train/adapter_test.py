#!/usr/bin/env python3
"""Adapters in PEFT's form: opened by `neap generate` and `neap eval`, merged, continued. usage: FILE NEAP REVIEWS"""
import json
import shutil
import struct

import neap_program
from neap_program import write_safetensors
from train_process_test import TrainCase, main

PROMPT = ["--prompt", "Last night we ate", "--temperature", "0", "--max-new-tokens", "12"]
LORA = ["actor_rollout_ref.model.path=out/sft/latest/actor", "actor_rollout_ref.actor.optim.lr=0.02", "trainer.total_training_steps=3"]


class Adapters(TrainCase):
    """out/lora: an adapter that was trained on out/sft; "adapter": its two files alone, which name that base."""

    @classmethod
    def setUpClass(cls):
        cls.make_home()
        for name, words in (("sft", []), ("lora", [*LORA, "actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora_alpha=8"])):
            result = cls.neap("train", "sft.toml", *words, f"trainer.default_local_dir=out/{name}")
            assert result.returncode == 0, result.stderr
        cls.adapter = cls.home / "adapter"
        cls.adapter.mkdir()
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(cls.home / "out/lora/latest/actor" / file, cls.adapter)
        base = json.loads((cls.adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
        assert base == str((cls.home / "out/sft/latest/actor").resolve()), base
        cls.configure(cls.adapter, base_model_name_or_path="../out/sft/latest/actor")
        cls.tuned = cls.text("out/lora")

    @classmethod
    def configure(cls, folder, **changes):
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    @classmethod
    def text(cls, *words):
        result = cls.neap("generate", *words, *PROMPT)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def test_generate_opens_an_adapter_on_its_base(self):
        self.assertNotEqual(self.text("out/sft"), self.tuned, "the adapter does something")
        self.assertEqual(self.text("adapter"), self.tuned)
        self.assertEqual(self.text("out/sft", "--adapter", "adapter"), self.tuned)

    def test_checkpoints_hold_the_adapter_and_go_on(self):
        """Without its base, unless a key asks for that; resumed runs are the same, bit by bit."""
        actor = self.home / "out/lora/latest/actor"
        self.assertEqual({p.name for p in actor.iterdir()}, {"adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "tokenizer.json"})
        lora = [*LORA, "actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora_alpha=8", "trainer.total_training_steps=4"]
        runs = {"calm": [], "cut": ["trainer.save_freq=2"], "whole": ["trainer.save_lora_base=true"]}
        for name, words in runs.items():
            process = self.start("train", "sft.toml", *lora, *words, f"trainer.default_local_dir=out/lora-{name}")
            if name == "cut":
                neap_program.wait_for(process, lambda: neap_program.logged_steps(self.home / "out/lora-cut") >= 3)
                process.kill()
                process.communicate()
                process = self.start("train", "sft.toml", *lora, *words, f"trainer.default_local_dir=out/lora-{name}")
            result = neap_program.outcome(process)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Resuming from", self.neap("train", "sft.toml", *lora, *runs["whole"], "trainer.default_local_dir=out/lora-whole",
                                                 "trainer.total_training_steps=5").stderr)
        self.assertEqual(self.metrics("out/lora-cut"), self.metrics("out/lora-calm"))
        for file in ("adapter_model.safetensors", "optimizer.safetensors"):
            self.assertEqual(*((self.home / f"out/lora-{run}/latest/actor" / file).read_bytes() for run in ("calm", "cut")), file)
        whole = {p.name for p in (self.home / "out/lora-whole/latest/actor").iterdir()}
        self.assertTrue({"config.json", "model.safetensors", "adapter_config.json"} <= whole, whole)
        self.assertEqual(self.text("out/lora-whole/global_step_4"), self.text("out/lora-calm"))
        # The adapter is for this base only.
        other = self.home / "other-base"
        shutil.copytree(self.home / "out/sft/latest/actor", other)
        weights = bytearray((other / "model.safetensors").read_bytes())
        weights[-4000] ^= 1
        (other / "model.safetensors").write_bytes(weights)
        changed = self.neap("train", "sft.toml", *lora, "actor_rollout_ref.model.path=other-base", "trainer.total_training_steps=5",
                            "trainer.default_local_dir=out/lora-calm")
        self.assert_fails(changed, 2, "holds an adapter of another model than actor_rollout_ref.model.path")

    def test_a_base_that_leaves_during_training_is_not_saved(self):
        """What checkpoints hold is decided when the base is read."""
        base = self.home / "leaving"
        shutil.copytree(self.home / "out/sft/latest/actor", base)
        process = self.start("train", "sft.toml", *LORA, "actor_rollout_ref.model.path=leaving", "actor_rollout_ref.model.lora_rank=4",
                             "trainer.total_training_steps=60", "trainer.save_freq=-1", "trainer.default_local_dir=out/left")
        neap_program.wait_for(process, lambda: neap_program.logged_steps(self.home / "out/left") >= 1)
        (base / "model.safetensors").unlink()
        self.assertLess(neap_program.logged_steps(self.home / "out/left"), 60)
        result = neap_program.outcome(process)
        self.assertEqual(result.returncode, 0, result.stderr)
        names = {p.name for p in (self.home / "out/left/latest/actor").iterdir()}
        self.assertEqual(names, {"adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "tokenizer.json"})

    def test_training_starts_from_a_runs_folder(self):
        start = ["trainer.total_training_steps=1", "actor_rollout_ref.actor.optim.lr=0.02"]
        losses = []
        for number, path in enumerate(("out/lora", "out/lora/latest", "out/lora/latest/actor")):
            result = self.neap("train", "sft.toml", *start, f"actor_rollout_ref.model.path={path}", f"trainer.default_local_dir=out/from-run-{number}")
            self.assertEqual(result.returncode, 0, result.stderr)
            losses.append(self.validations(f"out/from-run-{number}")[0]["val/loss"])
        self.assertEqual(losses, losses[:1] * 3)
        plan = self.neap("plan", "sft.toml", "actor_rollout_ref.model.path=out/sft")
        self.assertEqual(plan.returncode, 0, plan.stderr)

    def test_eval_opens_it(self):
        rows = "".join(json.dumps({"prompt": "Last night we ate", "reward_model": {"ground_truth": "good"}}) + "\n" for _ in range(2))
        (self.home / "eval.jsonl").write_text(rows)
        texts = []
        for words in (["out/lora"], ["adapter"], ["out/sft", "--adapter", "adapter"], ["out/sft"]):
            result = self.neap("eval", words[0], "eval.jsonl", *words[1:], "data.max_response_length=12", "device.kind=cpu",
                               "--output", "rows.jsonl")
            self.assertEqual(result.returncode, 0, result.stderr)
            texts.append((self.home / "rows.jsonl").read_text())
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(texts[0], texts[2])
        self.assertNotEqual(texts[0], texts[3])

    def test_merge_writes_a_model_that_needs_no_adapter(self):
        result = self.neap("merge", "adapter", "merged", "--max-shard-size", "1MB")
        self.assertEqual(result.returncode, 0, result.stderr)
        names = {p.name for p in (self.home / "merged").iterdir()}
        self.assertTrue({"config.json", "generation_config.json", "tokenizer.json", "model.safetensors.index.json"} <= names, names)
        self.assertFalse({n for n in names if n.startswith("adapter")}, names)
        self.assertEqual(self.text("merged"), self.tuned)
        self.assert_fails(self.neap("merge", "adapter", "merged"), 2, "holds a model already")
        self.assert_fails(self.neap("merge", "out/sft", "again"), 2, "has no adapter")
        result = self.neap("merge", "out/sft", "half", "--adapter", "adapter", "--dtype", "bfloat16")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads((self.home / "half/config.json").read_text())["torch_dtype"], "bfloat16")

    def test_merge_of_a_run_says_what_it_merged(self):
        result = self.neap("merge", "out/lora", "merged-run")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"wrote merged-run: \S*out/sft/\S*/actor with the adapter in out/lora/latest/actor$")
        result = self.neap("merge", "adapter", "merged-adapter")
        self.assertRegex(result.stderr, r"wrote merged-adapter: \S+ with the adapter in adapter$")

    def test_training_continues_it(self):
        go_on = [*LORA, "actor_rollout_ref.model.lora_adapter_path=adapter", "trainer.default_local_dir=out/on"]
        result = self.neap("train", "sft.toml", *go_on)
        self.assertEqual(result.returncode, 0, result.stderr)
        before, after = self.validations("out/on")[0], self.validations("out/on")[-1]
        self.assertEqual(before["val/loss"], self.validations("out/lora")[-1]["val/loss"], "it starts where the adapter ended")
        self.assertNotEqual(after["val/loss"], before["val/loss"])
        # It is still the same kind of adapter, on the same base, and a resumed run goes on with it.
        config = json.loads((self.home / "out/on/latest/actor/adapter_config.json").read_text())
        self.assertEqual((config["r"], config["lora_alpha"]), (4, 8.0))
        result = self.neap("train", "sft.toml", *go_on, "trainer.total_training_steps=4")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Resuming from", result.stderr)
        # A model whose path is an adapter starts merged.
        result = self.neap("train", "sft.toml", "actor_rollout_ref.model.path=adapter", "trainer.total_training_steps=1",
                           "trainer.default_local_dir=out/from-adapter")
        self.assertEqual(result.returncode, 0, result.stderr)
        start = self.validations("out/from-adapter")[0]["val/loss"]
        self.assertAlmostEqual(start, before["val/loss"], places=4)

    def test_layers_may_have_ranks_of_their_own(self):
        """The plan counts them as the run takes them: an unplanned byte would fail the run."""
        mixed = self.home / "mixed"
        shutil.copytree(self.adapter, mixed)
        self.configure(mixed, target_modules=["q_proj", "model.layers.1.mlp.up_proj"], rank_pattern={"layers.1.self_attn.q_proj": 3},
                       alpha_pattern={"up_proj": 2}, use_rslora=True)
        shapes = {"layers.0.self_attn.q_proj": (4, 128, 128), "layers.1.self_attn.q_proj": (3, 128, 128), "layers.1.mlp.up_proj": (4, 128, 256)}
        tensors = {}
        for path, (rank, wide, out) in shapes.items():
            for part, shape in (("A", (rank, wide)), ("B", (out, rank))):
                tensors[f"base_model.model.model.{path}.lora_{part}.weight"] = (shape, [((i * 37) % 101 - 50) / 500 for i in range(shape[0] * shape[1])])
        write_safetensors(mixed / "adapter_model.safetensors", tensors)
        result = self.neap("train", "sft.toml", *LORA, "actor_rollout_ref.model.lora_adapter_path=mixed", "trainer.default_local_dir=out/mixed")
        self.assertEqual(result.returncode, 0, result.stderr)
        merged = self.neap("merge", "mixed", "mixed-merged")
        self.assertEqual(merged.returncode, 0, merged.stderr)
        start = self.neap("train", "sft.toml", "actor_rollout_ref.model.path=mixed-merged", "trainer.total_training_steps=1",
                          "trainer.default_local_dir=out/mixed-merged")
        self.assertEqual(start.returncode, 0, start.stderr)
        self.assertAlmostEqual(self.validations("out/mixed")[0]["val/loss"], self.validations("out/mixed-merged")[0]["val/loss"], places=4)
        self.assertEqual(self.text("out/mixed"), self.text(*self.merge_of("out/mixed")))

    def merge_of(self, run):
        result = self.neap("merge", run, f"{run}-written")
        self.assertEqual(result.returncode, 0, result.stderr)
        return [f"{run}-written"]

    def test_what_is_wrong_with_an_adapter_is_said(self):
        def broken(name, **changes):
            folder = self.home / name
            shutil.copytree(self.adapter, folder)
            self.configure(folder, **changes)
            return name

        nowhere = broken("nowhere", base_model_name_or_path="Qwen/Qwen2.5-1.5B")
        self.assert_fails(self.neap("generate", nowhere, *PROMPT), 2, '"Qwen/Qwen2.5-1.5B" is not a folder', "--adapter")
        self.assertEqual(self.text("out/sft", "--adapter", nowhere), self.tuned)
        for name, code, changes, part in (("rank", 2, {"r": 5}, "[4, 128]"), ("unknown", 2, {"target_modules": ["query"]}, "chooses no linear layer"),
                                          ("more", 2, {"modules_to_save": ["norm"]}, "has no tensor"),
                                          ("kind", 1, {"peft_type": "IA3"}, "peft_type")):
            self.assert_fails(self.neap("generate", broken(name, **changes), *PROMPT), code, part)
        dora = broken("dora", use_dora=True)
        for words, part in ((["path=adapter", "lora_adapter_path=adapter"], "would be added twice"),
                            (["lora_adapter_path=missing"], "missing/adapter_config.json"), (["lora_adapter_path=" + dora], "use_dora"),
                            (["lora_adapter_path=adapter", "lora_rank=8"], "has r 4"),
                            (["lora_adapter_path=adapter", 'target_modules=["q_proj"]'], "leave it out")):
            result = self.neap("train", "sft.toml", *LORA, *(f"actor_rollout_ref.model.{word}" for word in words),
                               "trainer.default_local_dir=out/wrong")
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(part, result.stderr)
            self.assertFalse((self.home / "out/wrong").exists())
        data = (self.adapter / "adapter_model.safetensors").read_bytes()
        size, = struct.unpack("<Q", data[:8])
        head = "base_model.model.lm_head.weight"
        end = len(data) - 8 - size
        header = json.dumps(json.loads(data[8:8 + size]) | {head: {"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]}}).encode()
        tied = broken("tied", modules_to_save=["lm_head"])
        (self.home / tied / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size:] + bytes(4))
        self.assert_fails(self.neap("generate", tied, *PROMPT), 1, f'"{head}"', "is tied with its embeddings", "tie_word_embeddings = false")
        cut = self.home / broken("cut") / "adapter_model.safetensors"
        cut.write_bytes(data[:len(data) // 2])
        self.assert_fails(self.neap("generate", "cut", *PROMPT), 2, "adapter_model.safetensors")


if __name__ == "__main__":
    main()
