"""Trainings on several CPU ranks, in folders of their own below out/, for the tests beside it."""
import json

import launch

from train_process_test import TrainCase, read_lines  # noqa: E402

OPTIMIZER = "actor_rollout_ref.actor.optim."
FILES = ("actor/model.safetensors", "actor/optimizer.safetensors")


class RankCase(TrainCase):
    def run_ranks(self, ranks, folder, *words, task="sft"):
        """Trains TASK.toml into out/FOLDER."""
        result = launch.run(ranks, launch.NEAP, "train", f"{task}.toml", f"trainer.default_local_dir=out/{folder}", *words,
                            cwd=self.home)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

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
