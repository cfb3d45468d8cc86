"""PPO and GRPO on several CPU ranks beside one, for the tests beside it: sft.toml and reward.toml of make_home have run."""
import pathlib
import re

import launch

from rank_case import RankCase
from train_process_test import grpo_of, PPO, read_lines, REWARD, SFT  # noqa: E402

CRITIC_SGD = ("critic.optim.optimizer=sgd", "critic.optim.momentum=0.9", "critic.optim.lr=0.05")
KL_LOSS = "actor_rollout_ref.actor.use_kl_loss=true"
ZERO = "parallel.zero_stage={}"
# Its calls are counted, and its scores differ from text to text.
SCORE = """
def compute_score(solution_str, extra_info=None, **more):
    with open("CALLS", "a") as calls:
        calls.write(repr(solution_str) + "\\n")
    return sum(map(ord, solution_str)) % 17 / 17
"""


class RolloutCase(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS), fewer=1)  # held-out prompts that no number of ranks shares evenly
        (cls.home / "sft.toml").write_text(SFT.replace("total_training_steps = 8", "total_training_steps = 4"))
        (cls.home / "reward.toml").write_text(REWARD)
        for stage in ("sft", "reward"):
            result = launch.train(1, f"{stage}.toml", cwd=cls.home)
            assert result.returncode == 0, result.stderr
        ppo = PPO.replace("CEILING", "64MiB").replace("test_freq = -1", "test_freq = 1\nrollout_freq = 1")
        ppo = ppo.replace("total_training_steps = 6", "total_training_steps = 2").replace("save_freq = 2", "save_freq = -1")
        ppo = ppo.replace("use_dynamic_bsz = false", "use_dynamic_bsz = true\nppo_max_token_len_per_gpu = 64")
        ppo = ppo.replace("ppo_micro_batch_size_per_gpu = 4\n", "")
        ppo = ppo.replace("[reward_model]", "ppo_max_token_len_per_gpu = 64\n[reward_model]")
        (cls.home / "ppo.toml").write_text(ppo)
        grpo = grpo_of(ppo)
        grpo = re.sub(r"\[algorithm\].*?(?=\[trainer\])", "", grpo, flags=re.S)
        (cls.home / "grpo.toml").write_text(grpo.replace("[actor_rollout_ref.rollout]", "[actor_rollout_ref.rollout]\nn = 2"))

    def texts(self, folder):
        """Of each step's responses and of the validations'."""
        steps = read_lines(self.home / "out" / folder / "rollouts.jsonl")
        held_out = self.validations(f"out/{folder}")
        self.assertTrue(steps and held_out)
        return ([(r["step"], r["prompt"], r["response"]) for r in steps],
                [[(s["prompt"], s["response"]) for s in row["samples"]] for row in held_out])

    def assert_near(self, one, two, relative, where):
        """Losses and divergences are small differences of numbers around 1, with the rounding of these. Advantages are
        divided by their deviation, which is below 1, norms and divergences of texts add up errors."""
        self.assertEqual(one.keys(), two.keys())
        for key, value in one.items():
            if isinstance(value, float):
                near = relative if key.endswith("loss") else 30 * relative
                self.assertLessEqual(abs(value - two[key]), near * max(1, abs(value)), (where, key, value, two[key]))

    def assert_same_run(self, one, other, near=1e-6, model="model", step=2, roles=("actor",)):
        """States are sums of gradients, and so is a critic's head, which starts near zero: they have their errors."""
        self.assertEqual(self.texts(one), self.texts(other), other)
        self.assert_same_training(one, other, near=near, files=(model,), step=step)
        for role in roles:
            for file in ("optimizer",) if role == "actor" else (model, "optimizer"):
                files = (self.file(folder, f"{role}/{file}.safetensors", step) for folder in (one, other))
                self.assert_near_weights(*files, 3e-5, (other, role, file))
