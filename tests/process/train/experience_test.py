#!/usr/bin/env python3
"""Experience that one run keeps and another trains from (trainer.experience). usage: FILE NEAP REVIEWS"""
import json
import os
import re
import shutil
import subprocess
import unittest

import neap_program
from train_process_test import PPO, TrainCase, grpo_of, main, read_lines

STEPS = 4
ACTOR, CRITIC = (tuple(f"{role}/{file}.safetensors" for file in ("model", "optimizer")) for role in ("actor", "critic"))
EPOCHS = ("actor_rollout_ref.actor.ppo_epochs=2", "critic.ppo_epochs=2")
PACKED = ("actor_rollout_ref.actor.use_dynamic_bsz=true", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=64")
KEEP = "trainer.experience=keep"
# Only generation and scoring read these files.
WITHOUT = ('data.train_files=["absent.jsonl"]', "data.val_files=[]")


def read_from(folder):
    return "trainer.experience=read", f"trainer.experience_dir=out/{folder}"


class Experience(TrainCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home()
        for words in (("sft.toml", "trainer.total_training_steps=2"), ("reward.toml", "trainer.total_training_steps=1")):
            result = cls.neap("train", *words)
            assert result.returncode == 0, result.stderr
        ppo = PPO.replace("CEILING", "64MiB").replace("total_training_steps = 6", f"total_training_steps = {STEPS}")
        (cls.home / "ppo.toml").write_text(ppo)
        grpo = re.sub(r"\[algorithm\].*?(?=\[trainer\])", "", grpo_of(ppo), flags=re.S)
        (cls.home / "grpo.toml").write_text(grpo.replace("[actor_rollout_ref.rollout]", "[actor_rollout_ref.rollout]\nn = 2"))
        (cls.home / "actor.toml").write_text(grpo_of(ppo))
        cls.train("kept", "ppo.toml", KEEP, *EPOCHS)

    @classmethod
    def train(cls, name, job, *words):
        result = cls.neap("train", job, f"trainer.default_local_dir=out/{name}", *words)
        assert result.returncode == 0, result.stderr
        return result

    def folder(self, name):
        return self.home / "out" / name

    def assert_same(self, one, other, files, metrics=None):
        rows = [[{k: v for k, v in row.items() if metrics is None or k.startswith(metrics)} for row in self.metrics(f"out/{name}")]
                for name in (one, other)]
        self.assertEqual(len(rows[0]), STEPS)
        self.assertEqual(*rows)
        for file in files:
            a, b = ((self.folder(name) / f"global_step_{STEPS}" / file).read_bytes() for name in (one, other))
            self.assertTrue(a == b, (one, other, file))

    def assert_as_planned(self, name, phases):
        plan = json.loads((self.folder(name) / "plan.json").read_text())
        self.assertEqual([phase["name"] for phase in plan["phases"]], phases)
        planned = {phase["name"]: phase for phase in plan["phases"]}
        records = read_lines(self.folder(name) / "phases.jsonl")
        self.assertEqual({record["phase"] for record in records}, set(phases))
        for record in records:
            self.assertEqual(record["persistent"], planned[record["phase"]]["persistent"], record)
            self.assertEqual(record["peak"], planned[record["phase"]]["peak"], record)
        return plan

    def test_both_models(self):
        self.train("plain", "ppo.toml", *EPOCHS)
        self.assert_same("plain", "kept", ACTOR + CRITIC)
        self.train("read", "ppo.toml", *read_from("kept"), *EPOCHS, *WITHOUT, "trainer.total_training_steps=0")
        self.assert_same("kept", "read", ACTOR + CRITIC)
        plan = self.assert_as_planned("read", ["train_critic", "train_actor"])
        whole = json.loads((self.folder("kept") / "plan.json").read_text())
        self.assertEqual({tag["tag"].partition(".")[0] for tag in plan["tags"]}, {"actor", "critic"})
        self.assertLess(plan["peak_without_offload"], whole["peak_without_offload"])
        self.assertIn("train_critic", (self.folder("read") / "report.html").read_text())
        again = self.train("read", "ppo.toml", *read_from("kept"), *EPOCHS, *WITHOUT, "trainer.total_training_steps=0")
        self.assertIn(f"step {STEPS} of {STEPS}: done", again.stderr)

    def test_the_actor_alone(self):
        self.train("actor", "actor.toml", *read_from("kept"), EPOCHS[0], *WITHOUT, "actor_rollout_ref.rollout.n=1")
        self.assert_same("kept", "actor", ACTOR, metrics=("actor/", "critic/score"))
        self.assert_as_planned("actor", ["train_actor"])

    def test_grpo_of_packed_rows(self):
        words = ("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov",
                 EPOCHS[0], *PACKED, "actor_rollout_ref.rollout.sample_lengths=true", "trainer.save_freq=-1",
                 "algorithm.rollout_correction.rollout_is=token", "algorithm.rollout_correction.rollout_rs=token_k1", "algorithm.rollout_correction.rollout_rs_threshold=1.01",
                 "actor_rollout_ref.model.lora_rank=4")
        self.train("grpo", "grpo.toml", KEEP, *words)
        self.train("grpo-read", "grpo.toml", *read_from("grpo"), *words, *WITHOUT)
        self.assert_same("grpo", "grpo-read", ("actor/adapter_model.safetensors", ACTOR[1]))

    def test_one_update_a_step_keeps_no_old_log_probabilities(self):
        words = ("data.val_files=[]", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "trainer.save_freq=-1")
        self.train("once", "grpo.toml", KEEP, *words)
        header = (self.folder("once") / "experience/step_1.safetensors").read_bytes()[:2000]
        self.assertIn(b'"advantages"', header)
        self.assertNotIn(b'"old_log_probs"', header)
        self.train("once-read", "grpo.toml", *read_from("once"), *words)
        self.assert_same("once", "once-read", ACTOR)

    def test_killed_and_resumed(self):
        self.train("long", "ppo.toml", KEEP, "trainer.total_training_steps=24", "trainer.save_freq=-1")
        text = (self.home / "ppo.toml").read_text().replace(f"total_training_steps = {STEPS}", "total_training_steps = 24")
        (self.home / "replay.toml").write_text(text + 'experience = "read"\nexperience_dir = "out/long"\n')
        self.kill_and_resume("replay", [3, 12], 1)
        self.assertEqual(self.metrics("out/replay-calm-1"), self.metrics("out/long"))

    def test_one_step_from_its_checkpoint(self):
        start = self.folder("kept") / f"global_step_{STEPS - 2}"
        alone = self.folder("last")
        shutil.copytree(self.folder("kept") / "experience", alone)
        for step in range(1, STEPS - 1):
            (alone / f"step_{step}.safetensors").unlink()
        self.train("replayed", "ppo.toml", *read_from("last"), *EPOCHS, f"trainer.resume_mode={start}")
        self.assertEqual(self.metrics("out/replayed"), self.metrics("out/kept")[-2:])
        for file in ACTOR + CRITIC:
            a, b = ((self.folder(name) / f"global_step_{STEPS}" / file).read_bytes() for name in ("kept", "replayed"))
            self.assertTrue(a == b, file)

    @neap_program.needs_namespaces
    def test_full_disk(self):
        """The coefficient of the KL is that of the saved step, so that the resumed run has equal bits."""
        step = os.path.getsize(self.folder("kept") / "experience/step_1.safetensors")
        words = " ".join(["train ppo.toml trainer.default_local_dir=out/full", KEEP, *EPOCHS])
        pages = -(-step // 4096)
        script = (f"mkdir -p out/full/experience && mount -t tmpfs -o size={4 * (2 * pages + 1)}k tmpfs out/full/experience && "
                  f"{neap_program_path()} {words} 2>full-1; echo $?; ls out/full/experience >full-files")
        done = subprocess.run([*neap_program.NAMESPACE, "sh", "-c", script], cwd=self.home, capture_output=True, text=True,
                              env=neap_program.environment(OMP_NUM_THREADS="1"), timeout=300, check=False)
        error = (self.home / "full-1").read_text()
        self.assertEqual(done.stdout.splitlines()[-1], "1", error)
        self.assertRegex(error, r"Kept experience takes up to .* for each of 4 steps. The disk has .* free")
        self.assertRegex(error, "Stopped after 2 of 4 steps: .*No space left on device")
        self.assertEqual((self.home / "full-files").read_text().split(), ["step_1.safetensors", "step_2.safetensors"])
        self.train("full", "ppo.toml", KEEP, *EPOCHS)
        self.assert_same("full", "kept", ACTOR + CRITIC)

    def test_later_steps_of_an_earlier_process_go(self):
        folder = self.folder("anew") / "experience"
        folder.mkdir(parents=True)
        for name in ("step_9.safetensors", "step_2.safetensors.tmp-123-0123456789abcdef"):
            (folder / name).write_text("x")
        result = self.train("anew", "ppo.toml", KEEP, "trainer.total_training_steps=1")
        self.assertRegex(result.stderr, "Kept experience takes up to .* for each of 1 steps")
        self.assertEqual([path.name for path in folder.iterdir()], ["step_1.safetensors"])

    def test_errors_say_what_to_do(self):
        def fails(code, text, *words, job="ppo.toml"):
            self.assert_fails(self.neap("train", job, "trainer.default_local_dir=out/failed", *EPOCHS[:1], *words), code, text)
            self.assertFalse(list(self.folder("failed").glob("global_step*")))

        fails(2, "trainer.experience_dir is empty", "trainer.experience=read")
        fails(2, 'trainer.experience is "none"', "trainer.experience_dir=out/kept")
        fails(2, "out/absent holds no experience", *read_from("absent"))
        fails(2, f"1 to {STEPS}, but not step {STEPS + 1}. Set trainer.total_training_steps = {STEPS}", *read_from("kept"),
              "trainer.total_training_steps=9")
        fails(2, "does not validate", *read_from("kept"), "trainer.best_metric=val/score/mean")
        fails(2, "data.train_batch_size", *read_from("kept"), "data.train_batch_size=16")
        broken = self.folder("broken")
        shutil.copytree(self.folder("kept") / "experience", broken)
        os.truncate(broken / "step_1.safetensors", 1000)
        result = self.neap("train", "ppo.toml", "trainer.default_local_dir=out/failed", *read_from("broken"))
        self.assert_fails(result, result.returncode, "step_1.safetensors: ", "Keep the experience again")
        # The plan has no need of the experience.
        plan = self.neap("plan", "ppo.toml", *read_from("absent"), "--json")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertEqual([p["name"] for p in json.loads(plan.stdout)["phases"]], ["train_critic", "train_actor"])

    def test_a_checkpoint_of_updates_starts_no_rollout(self):
        self.train("updates", "ppo.toml", *read_from("kept"), *EPOCHS, "trainer.total_training_steps=1")
        result = self.neap("train", "ppo.toml", "trainer.default_local_dir=out/updates", *EPOCHS)
        self.assert_fails(result, result.returncode, "a run from kept experience made it. Set actor_rollout_ref.model.path")


def neap_program_path():
    import train_process_test
    return os.path.abspath(train_process_test.NEAP)


if __name__ == "__main__":
    main()
