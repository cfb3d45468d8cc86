"""Trainings whose blocks rest on the host, in jobs whose models have stages of a pipeline, for the tests beside it."""
import pathlib
import re

import launch

from rank_case import FILES, RankCase
from train_process_test import grpo_of, MODEL, PPO, read_lines, REWARD, SFT, WIDE  # noqa: E402

# Blocks of 1 MiB beside a table as large.
DEEP = dict(WIDE, num_hidden_layers=12, tie_word_embeddings=False)
TABLES = dict(DEEP, vocab_size=8192)
# Layers that end with their norms.
AFTER = {"model_type": "opt", "vocab_size": 1024, "hidden_size": 128, "ffn_dim": 512, "num_hidden_layers": 12, "num_attention_heads": 4,
         "max_position_embeddings": 128, "word_embed_proj_dim": 128, "do_layer_norm_before": False, "tie_word_embeddings": False,
         "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
RESIDENT = ("device.memory=2GiB", "memory.offload=none")
KEPT = 'memory.allow=["recompute", "offload", "offload_optimizer"]'
CRITIC_LORA = "critic.model.lora_rank=4"
CRITIC_FILES = ("critic/adapter_model.safetensors", "critic/optimizer.safetensors")


class StreamedStagesCase(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        models = {"deep": DEEP, "tables": TABLES, "tied": dict(TABLES, tie_word_embeddings=True), "joined": dict(DEEP, tie_word_embeddings=True), "few": dict(MODEL, num_hidden_layers=4), "after": AFTER}
        for name, config in models.items():
            cls.add_model(name, config)
        (cls.home / "sft.toml").write_text(SFT.replace("total_training_steps = 8", "total_training_steps = 2"))
        (cls.home / "reward.toml").write_text(REWARD.replace("total_training_steps = 3", "total_training_steps = 1"))
        (cls.home / "dpo.toml").write_text(REWARD.replace('"reward"', '"dpo"').replace("total_training_steps = 3", "total_training_steps = 2")
                                           .replace("save_freq = -1", "save_freq = 2").replace('["pairs_val.jsonl"]', "[]"))
        once = ("trainer.total_training_steps=1", "trainer.save_freq=1", "device.memory=4GiB", "data.train_batch_size=2",
                "data.micro_batch_size_per_gpu=2")
        for task, name, path in (("sft", "small", "few"), ("sft", "deep", "deep"), ("sft", "tables", "tables"), ("sft", "tied", "tied"),
                                 ("reward", "judge", "out/deep/latest/actor"),
                                 ("reward", "shallow", "out/small/latest/actor")):
            result = launch.train(1, f"{task}.toml", f"actor_rollout_ref.model.path={path}", f"trainer.default_local_dir=out/{name}", *once, cwd=cls.home)
            assert result.returncode == 0, result.stderr
        ppo = PPO.replace("CEILING", "2GiB").replace("total_training_steps = 6", "total_training_steps = 2")
        ppo = ppo.replace("ppo_micro_batch_size_per_gpu = 4", "ppo_micro_batch_size_per_gpu = 2").replace('["prompts_val.jsonl"]', "[]")
        ppo = ppo.replace("log_prob_micro_batch_size_per_gpu = 4", "log_prob_micro_batch_size_per_gpu = 2")
        ppo = ppo.replace("out/sft/latest/actor", "out/small/latest/actor").replace("out/reward/latest/reward", "out/judge/latest/reward")
        ppo = ppo.replace("[actor_rollout_ref.rollout]", '[actor_rollout_ref.ref]\nmodel.path = "out/deep/latest/actor"\n[actor_rollout_ref.rollout]')
        (cls.home / "ppo.toml").write_text(ppo)
        (cls.home / "grpo.toml").write_text(grpo_of(ppo))

    def plan(self, ranks, task, *words):
        return launch.run(1, launch.NEAP, "plan", f"{task}.toml", "--ranks", str(ranks), *words, cwd=self.home)

    def least(self, ranks, task, *words):
        """The minimum capacity in MiB that all kinds of ranks fit in: what the first refusal says. Runs at this capacity follow."""
        result = self.plan(ranks, task, *words, "device.memory=1MiB")
        self.assertEqual(result.returncode, 3, result.stderr)
        return int(re.search(r"minimum capacity is (\d+) MiB", result.stderr).group(1))

    def assert_streamed_is_resident(self, name, ranks, models, *words, task="sft", files=FILES, room=0, trains_slices=False):
        """`models`: what each rank streams at least, at the minimum capacity with `room` MiB more; one of them something."""
        self.run_ranks(ranks, f"{name}-whole", *words, *RESIDENT, task=task)
        least = self.least(ranks, task, *words)
        self.assertLess(least, self.least(ranks, task, *words, KEPT), name)
        self.run_ranks(ranks, name, *words, f"device.memory={least + room}MiB", task=task)
        self.assert_same_files(f"{name}-whole", name, files=files)
        self.assertEqual(self.metrics(f"out/{name}-whole"), self.metrics(f"out/{name}"))
        any_streams = False
        for rank in range(ranks):
            plan = self.assert_comes_as_planned(name if rank == 0 else f"{name}/ranks/{rank}", any("zero_stage" in word for word in words), trains_slices)
            self.assertLessEqual(set(models[rank] if models else ()), set(plan["offloaded_weights"]), (name, rank))
            any_streams = any_streams or bool(plan["offloaded_weights"])
        self.assertTrue(any_streams, name)

    def assert_comes_as_planned(self, folder, sliced, trains_slices=False):
        plan = self.assert_planned_is_measured(folder)
        planned = {phase["name"]: phase for phase in plan["phases"]}
        moved, runs = {}, {}
        for record in read_lines(self.home / "out" / folder / "phases.jsonl"):
            if record["phase"] == "validate":
                continue  # of other rows
            key = record["step"], record["phase"]
            runs[key] = runs.get(key, 0) + 1
            of = moved.setdefault(key, {"loaded": 0, "written_back": 0})
            of["loaded"] += sum(use["to_device"] for use in record["streamed"])
            of["written_back"] += sum(use["to_host"] for use in record["streamed"])
        if plan["offloaded_weights"]:
            self.assertTrue(any(of["loaded"] for of in moved.values()), folder)
        for (step, phase), of in moved.items():
            self.assertEqual(runs[step, phase], planned[phase]["times"], (folder, step, phase))
            if trains_slices and plan["offloaded_weights"] and phase in ("backward", "backward_critic", "values"):  # ranks have slices of other units, each used as often as these
                self.assertGreater(of["loaded"], 0, (folder, step, phase))
                self.assertEqual(of["written_back"] > 0, phase != "values" and bool(plan["offloaded_gradients"]), (folder, step, phase))
                continue
            # Planned of the largest slice, which may be another rank's.
            if sliced and (phase.startswith("update") or (phase == "backward" and plan["offloaded_embeddings"])):
                for way, size in of.items():
                    self.assertLessEqual(size, planned[phase][way], (folder, step, phase))
                continue
            self.assertEqual(of, {way: planned[phase][way] for way in of}, (folder, step, phase))
        return plan
