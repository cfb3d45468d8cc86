#!/usr/bin/env python3
"""Models of a job that ranks divide each in its own way: other stages of ZeRO, other numbers of ranks that slice it together,
or that divide it (actor_rollout_ref.actor, actor_rollout_ref.ref, critic, reward_model). usage: FILE NEAP COLLECTIVES REVIEWS
MPIRUN

Losses and weights are those of one rank, bits those of the same stage for all models, and no rank takes more memory than its
plan says. NEAP_TEST_SLOW=1: every case.
"""
import json
import math
import re
import sys
import unittest

import launch

from neap_program import SLOW, without
from rank_case import CHUNKS, CONTEXT, FILES, OPTIMIZER, ROWS, SGD, SIZE, STAGES
from rollout_case import CRITIC_SGD, KL_LOSS, RolloutCase, ZERO
from train_process_test import REWARD, WIDE  # noqa: E402

ACTOR, REFERENCE, CRITIC, JUDGE = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic", "reward_model"
ONE_STEP = ("trainer.total_training_steps=1", *SGD, *CRITIC_SGD)
# A mini-batch is one micro-batch.
WHOLE = ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096", "critic.ppo_max_token_len_per_gpu=4096")
CRITIC_FILES = ("critic/model.safetensors", "critic/optimizer.safetensors")


MODELS = {"actor": ACTOR, "reference": REFERENCE, "critic": CRITIC, "judge": JUDGE}


def keys(name, values):
    return tuple(f"{MODELS[model]}.{name}={value}" for model, value in values.items())


def zero(**stages):
    return keys("zero_stage", stages)


def tensor(**sizes):
    return keys("tensor_model_parallel_size", sizes)


def context(**sizes):
    return keys("context_parallel_size", sizes)


def rows(**switches):
    return keys("sequence_parallel", switches)


def passes(**kinds):
    return keys("cp_comm_type", kinds)


def stages(**numbers):
    return keys("pipeline_model_parallel_size", numbers)


class PlacementCase(RolloutCase):
    def plan(self, ranks, *words, task="ppo", code=0):
        result = launch.run(1, launch.NEAP, "plan", f"{task}.toml", "--ranks", str(ranks), *words, cwd=self.home)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def assert_one_step_is(self, like, folder, ranks, mesh, *words):
        """PPO on `ranks`, which divide each model as `mesh` says where `words` say nothing else."""
        self.run_mesh(folder, *words, task="ppo", copies=ranks // math.prod(mesh.values()), **mesh)
        self.assert_same_run(like, folder, near=3e-6, step=1, roles=("actor", "critic"))


class Placement(PlacementCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        dpo = REWARD.replace('"reward"', '"dpo"').replace("per_gpu = 4", "per_gpu = 2").replace("test_freq = -1", "test_freq = 2")
        (cls.home / "dpo.toml").write_text(dpo.replace("total_training_steps = 3", "total_training_steps = 2").replace("out/reward", "out/dpo"))

    def test_a_stage_of_zero_for_each_model(self):
        """Bit by bit each is what it is where all have that stage."""
        for name, own in {"mixed": dict(actor=1, reference=3, critic=3, judge=3), "others": dict(actor=3, critic=2)}.items():
            with self.subTest(name):
                self.run_mesh(name, *ONE_STEP, *WHOLE, *zero(**own), task="ppo", copies=2)
                for model, files in (("actor", FILES), ("critic", CRITIC_FILES)):
                    alike = f"all-{own[model]}"
                    if not (self.home / "out" / alike).exists():
                        self.run_mesh(alike, *ONE_STEP, *WHOLE, ZERO.format(own[model]), task="ppo", copies=2)
                    self.assert_same_files(alike, name, 1, files)
                    for tag in ("weights", "grads", "optimizer"):
                        self.assertEqual(self.part_bytes(alike, f"{model}.{tag}"), self.part_bytes(name, f"{model}.{tag}"), tag)
        self.assertLess(self.part_bytes("mixed", "reference.weights"), 0.6 * self.part_bytes("all-1", "reference.weights"))
        self.assertLess(self.part_bytes("mixed", "reward.weights"), 0.6 * self.part_bytes("all-1", "reward.weights"))
        self.assertEqual(self.part_bytes("others", "reference.weights"), self.part_bytes("all-1", "reference.weights"))

    def test_other_ranks_slice_each_model(self):
        self.run_mesh("shards-1", *ONE_STEP, *WHOLE, task="ppo")
        words = (ZERO.format(3), f"{ACTOR}.zero_shard_size=2", f"{CRITIC}.zero_shard_size=4", f"{REFERENCE}.zero_shard_size=2")
        self.run_mesh("shards", *ONE_STEP, *WHOLE, *words, task="ppo", copies=4)
        self.assert_same_run("shards-1", "shards", near=2e-6, step=1, roles=("actor", "critic"))
        self.assertAlmostEqual(self.part_bytes("shards", "actor.weights") / self.part_bytes("shards", "critic.weights"), 2, delta=0.3)

    def test_other_ranks_divide_each_model(self):
        # Parts of a reference that is the actor round otherwise: advantages of rewards less that are these rounding errors, amplified.
        one_step = (*ONE_STEP, "algorithm.use_kl_in_reward=false", KL_LOSS)
        self.run_mesh("parts-1", *one_step, task="ppo")
        cases = {"critic": (2, {}, tensor(critic=2)), "frozen": (2, {}, tensor(reference=2, judge=2)),
                 "actor": (2, {}, tensor(actor=2)), "whole": (2, {"tensor": 2}, tensor(critic=1, judge=1, reference=1)),
                 "each": (4, {}, (*tensor(actor=2, reference=4, critic=1, judge=2), *zero(critic=3), ROWS)),
                 "rows": (4, {"tensor": 2}, (ROWS, *tensor(critic=4, judge=1), *rows(reference="false"))),
                 "own rows": (2, {"tensor": 2}, rows(actor="true", judge="true")),
                 "sliced": (4, {}, (*tensor(critic=2), ZERO.format(3), *zero(reference=0))),
                 "context": (4, {"context": 2}, tensor(critic=2, reference=2)),
                 "stages": (4, {"stages": 2}, tensor(critic=2, judge=2))}
        for name, (ranks, mesh, words) in without("critic", "frozen", "own rows", of=cases).items():
            with self.subTest(name):
                self.assert_one_step_is("parts-1", f"parts-{name}", ranks, mesh, *one_step, *words)

    def test_other_ranks_divide_the_sequences_of_each_model(self):
        one_step = (*ONE_STEP, "algorithm.use_kl_in_reward=false", KL_LOSS)
        self.run_mesh("sequences-1", *one_step, task="ppo")
        cases = {"critic": (2, {}, context(critic=2)), "frozen": (4, {}, context(reference=4, judge=2)),
                 "actor": (2, {}, context(actor=2)), "ring": (4, {}, (*context(critic=4, reference=2), "parallel.cp_comm_type=p2p")),
                 "own rings": (4, {"context": 2}, (*context(critic=4), *passes(critic="p2p", judge="p2p"))),
                 "parts": (4, {"context": 2}, (*context(critic=1, judge=1), *tensor(critic=2), ZERO.format(3))),
                 "stages": (4, {"stages": 2}, context(critic=2))}
        for name, (ranks, mesh, words) in without("critic", "ring", of=cases).items():
            with self.subTest(name):
                self.assert_one_step_is("sequences-1", f"sequences-{name}", ranks, mesh, *one_step, *words)

    def test_what_a_step_may_have_besides(self):
        """Dynamic sampling and greedy baselines score responses where their prompts are; rows that no number of ranks shares evenly
        are validated."""
        words = (*SGD, KL_LOSS, "algorithm.filter_groups.enable=true", "algorithm.adv_estimator=remax", "trainer.total_training_steps=1")
        self.run_mesh("besides-1", *words, task="grpo")
        for name, own in {"judge": tensor(judge=2, reference=2), "stages": stages(judge=2, reference=2),
                          "own stages": stages(actor=2), "whole": (f"{SIZE}=2", *tensor(judge=1, reference=1))}.items():
            with self.subTest(name):
                self.run_ranks(2, f"besides-{name}", *words, *own, task="grpo")
                self.assert_within_plans(f"besides-{name}", 2)
                self.assert_same_run("besides-1", f"besides-{name}", step=1)

    def test_preferences(self):
        """Against another model: which of two equal ones is more likely is a matter of rounding."""
        other = f"{REFERENCE}.model.path=out/sft/global_step_3/actor"
        for name, more in {"dpo": (), "once": ("dpo.precompute_ref_log_probs=true",)}.items():
            self.run_mesh(f"{name}-1", *SGD, other, *more, task="dpo")
            cases = {"parts": tensor(reference=2), "whole": (f"{SIZE}=2", *tensor(reference=1)), "slices": zero(reference=3),
                     "stages": stages(reference=2), "own stages": stages(actor=2)}
            left_out = ("whole", "stages") if name == "dpo" else ("parts", "slices", "own stages")
            for case, own in without(*left_out, of=cases).items():
                with self.subTest(f"{name}-{case}"):
                    self.run_ranks(2, f"{name}-{case}", *SGD, other, *more, *own, task="dpo")
                    self.assert_ranks_are_as_planned(f"{name}-{case}", 2)
                    self.assert_same_training(f"{name}-1", f"{name}-{case}", near=2e-6)

    def test_adapters(self):
        """The reference is the actor's base, and has no ranks of its own."""
        lora = (*ONE_STEP, "actor_rollout_ref.model.lora_rank=4", "critic.model.lora_rank=4")
        self.run_mesh("lora-1", *lora, task="ppo")
        self.run_mesh("lora-2", *lora, *tensor(critic=2), *zero(actor=3), task="ppo", copies=2)
        self.assert_same_run("lora-1", "lora-2", model="adapter_model", near=3e-6, step=1, roles=("actor", "critic"))
        shown = self.plan(2, *lora, *tensor(reference=2))
        self.assertIn("the reference is the actor's base", " ".join(shown.stderr.split()))

    def test_a_run_resumes_with_another_placement(self):
        """A step without a rate: the same weights, whoever read them."""
        self.run_ranks(2, "from", *tensor(critic=2), *zero(reference=3), task="ppo")
        for name, ranks, own in (("one", 1, ()), ("parts", 2, (*tensor(actor=2), *zero(critic=3))), ("stages", 2, stages(critic=2, judge=2))):
            with self.subTest(name):
                checkpoint = self.home / "out/from/global_step_2"
                result = self.run_ranks(ranks, f"to-{name}", *own, f"{OPTIMIZER}lr=0", "critic.optim.lr=0", "trainer.total_training_steps=3",
                                        f"trainer.resume_mode={checkpoint}", task="ppo")
                self.assertNotIn("zero_", result.stderr)
                self.assertNotIn("tensor_model", result.stderr)
                for role in ("actor", "critic"):
                    self.assertEqual(self.file("from", f"{role}/model.safetensors").read_bytes(),
                                     self.file(f"to-{name}", f"{role}/model.safetensors", 3).read_bytes())

    def test_a_plan_says_how_ranks_divide_each_model(self):
        words = (*tensor(critic=2), *zero(reference=3), *rows(critic="true"), *context(judge=4), *passes(judge="p2p"))
        text = self.plan(4, *words).stdout
        self.assertRegex(text, r"Ranks of each model\n  actor +data 4\n  reference +data 4, ZeRO stage 3\n  critic +data 2 x tensor 2, sequence-parallel\n"
                         r"  reward +context 4, ring attention\n")
        shown = json.loads(self.plan(4, *words, "--json").stdout)["placements"]
        self.assertEqual((shown["critic"]["tensor"], shown["critic"]["data"], shown["reference"]["zero"], shown["actor"]["tensor"]), (2, 2, 3, 1))
        self.assertIn("Ranks of every model: data 4\n", self.plan(4).stdout)
        self.assertNotIn("Ranks of", self.plan(1).stdout)

    def test_formulas_have_each_models_part(self):
        words = (*ONE_STEP, *tensor(critic=2), *zero(actor=2, reference=3))
        self.run_mesh("formulas", *words, task="ppo", copies=2)
        sheet = self.plan(2, "--formulas", "--run", "out/formulas", "--json", *words).stdout
        lines = {line["id"]: line for section in json.loads(sheet)["sections"] for line in section["lines"]}
        for name, formula in {"critic.rank_weights": "w N / t", "critic.rank_optimizer": "K N / t", "actor.rank_weights": "w N",
                              "actor.rank_gradients": "w N / d", "reference.rank_weights": "w N / d", "reward.rank_weights": "w N"}.items():
            line = lines[name]
            self.assertEqual(line["formula"], formula)
            self.assertGreater(line["value"], 0, name)
            self.assertEqual(line["measured"]["value"], line["counted"], name)
        of_models = [lines[f"{model}.rank_weights"] for model in ("actor", "reference", "critic", "reward")]
        self.assertEqual(lines["rank.weights"]["measured"]["value"], sum(line["measured"]["value"] for line in of_models))
        self.assertAlmostEqual(lines["rank.weights"]["value"], sum(line["value"] for line in of_models))

    def test_ranks_with_other_stages_choose_alike(self):
        """The parts of a critic are on both stages of an actor, of which one has more room for what the critic keeps."""
        self.add_model("deep", dict(WIDE, num_hidden_layers=5))
        self.run_ranks(1, "deep", "actor_rollout_ref.model.path=deep", "trainer.total_training_steps=1", task="sft")
        path = "out/deep/latest/actor"
        words = ("trainer.total_training_steps=1", f"actor_rollout_ref.model.path={path}", f"critic.model.path={path}",
                 "critic.model.init_head=true", *stages(actor=2), "actor_rollout_ref.actor.pipeline_model_parallel_layout=[1,4]",
                 *tensor(critic=2), "data.train_batch_size=32", "data.val_files=[]", "trainer.test_freq=-1",
                 "actor_rollout_ref.actor.ppo_mini_batch_size=32", "critic.ppo_mini_batch_size=32",
                 "critic.model.activation_checkpointing=auto", "actor_rollout_ref.model.activation_checkpointing=auto")
        padded = ("actor_rollout_ref.actor.use_dynamic_bsz=false", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
                  "critic.ppo_micro_batch_size_per_gpu=16")
        # Ceilings at which each for itself would choose other updates of the critic, or that other tensors are computed again.
        for name, more, ceilings in (("updates", padded, (38, 42)), ("retention", ("critic.ppo_max_token_len_per_gpu=4000",), (46,))):
            self.run_ranks(2, f"{name}-free", *words, *more, "device.memory=2GiB", "memory.offload=none", task="ppo")
            for ceiling in ceilings:
                with self.subTest(name, ceiling=ceiling):
                    folder, below = f"{name}-{ceiling}", f"device.memory={ceiling}MiB"
                    self.run_ranks(2, folder, *words, *more, below, task="ppo")
                    for files in (FILES, CRITIC_FILES):
                        self.assert_same_files(f"{name}-free", folder, 1, files)
                    self.assertEqual(self.metrics(f"out/{name}-free"), self.metrics(f"out/{folder}"))
                    if more is padded:
                        self.assert_ranks_are_as_planned(folder, 2)
                    self.assert_within_plans(folder, 2)
                    planned = [json.loads((self.home / "out" / of / "plan.json").read_text()) for of in (folder, f"{folder}/ranks/1")]
                    for plan in planned:
                        self.assertLessEqual(plan["peak"], ceiling << 20)
                    printed = json.loads(self.plan(2, *words, *more, below, "--json").stdout)
                    self.assertEqual([plan["peak"] for plan in planned], [kind["peak"] for kind in printed["stages"]])
                    for plan in (*planned, printed):
                        self.assertEqual(plan["optimizer_offload"]["critic"], printed["optimizer_offload"]["critic"])
                        self.assertEqual(plan["activations"][1], printed["activations"][1])

    def test_what_does_not_fit_is_refused(self):
        all_ranks = ("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "critic.ppo_mini_batch_size=8")
        odd = "data.train_batch_size=6", "actor_rollout_ref.actor.ppo_mini_batch_size=6", "critic.ppo_mini_batch_size=6"
        for words, ranks, message in (
                (("critic.forward_max_token_len_per_gpu=20",), 4, "critic.forward_max_token_len_per_gpu is 20; it has to be at least 40"),
                (stages(critic=3), 4, "critic.pipeline_model_parallel_size 3 does not divide the 4 ranks"),
                (stages(judge=4), 4, "pipeline_model_parallel_size 4 is more than the 2 blocks of the reward model"),
                ((*stages(critic=2), "critic.pipeline_model_parallel_layout=[2,2]"), 4, "pipeline_model_parallel_layout has 2 stages with 4 blocks; "
                 "the critic model has 2 blocks for 2 stages"),
                (tensor(critic=3), 4, "critic.tensor_model_parallel_size 3 does not divide the 4 ranks"),
                ((*zero(reference=3), f"{REFERENCE}.zero_shard_size=3"), 4, "actor_rollout_ref.ref.zero_shard_size 3 does not divide the 4 ranks"),
                (("actor_rollout_ref.actor.use_dynamic_bsz=false", *context(critic=2)), 4,
                 "critic.context_parallel_size 2 does not go with actor_rollout_ref.actor.use_dynamic_bsz = false"),
                ((f"{CONTEXT}=2", *tensor(judge=4)), 4, "reward_model.tensor_model_parallel_size times parallel.context_parallel_size, 8 does not"),
                ((*odd, f"{SIZE}=2", *tensor(judge=1)), 4, "data.train_batch_size 6 cannot be shared by 4 ranks"),
                ((*all_ranks, *tensor(critic=8)), 8, "tensor_model_parallel_size 8 does not go with the critic model: it does not divide its 4 attention heads")):
            with self.subTest(words):
                self.assertIn(message, " ".join(self.plan(ranks, *words, code=2).stderr.split()))


class OwnStages(PlacementCase):
    """Models of five blocks."""
    @classmethod
    def make_home(cls, *words, **more):
        super().make_home(*words, **more)
        config = cls.home / "model/config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 5}))

    def test_other_stages_divide_each_model(self):
        one_step = (*ONE_STEP, "algorithm.use_kl_in_reward=false", KL_LOSS)
        self.run_mesh("staged-1", *one_step, task="ppo")
        bubble, chunks = ("parallel.pipeline_parallel_schedule=zero_bubble",), (f"{CHUNKS}=2", "critic.pipeline_model_parallel_size=1")
        cases = {"actor": (2, {}, stages(actor=2)), "critic": (2, {}, stages(critic=2)), "frozen": (2, {}, stages(reference=2, judge=2)),
                 "others": (4, {"stages": 4}, stages(actor=2, judge=1)), "chunks": (2, {"stages": 2}, chunks),
                 "bubble": (4, {}, (*stages(actor=2, critic=4), *bubble)),
                 # As many ranks share the batches of both, not the same ones.
                 "shares": (4, {}, (*stages(actor=2), *tensor(critic=2), *stages(judge=2))),
                 "parts": (4, {"tensor": 2}, (ROWS, *stages(critic=2, reference=2), *tensor(judge=4))),
                 "sliced": (4, {}, (*stages(actor=2, reference=2), ZERO.format(3), *zero(critic=2))),
                 "context": (4, {"context": 2}, (*stages(critic=2), *context(judge=1))),
                 "layout": (2, {}, (*stages(actor=2), "actor_rollout_ref.actor.pipeline_model_parallel_layout=[1,4]"))}
        for name, (ranks, mesh, words) in cases.items():
            with self.subTest(name):
                self.assert_one_step_is("staged-1", f"staged-{name}", ranks, mesh, *one_step, *words)

    def test_a_refusal_names_what_all_kinds_of_ranks_fit_in(self):
        """The second stage of the actor needs more than the first, where blocks stay on the device."""
        words = (*stages(actor=2), "actor_rollout_ref.actor.pipeline_model_parallel_layout=[1,4]", "critic.model.lora_rank=4",
                 "critic.ppo_max_token_len_per_gpu=64", "trainer.total_training_steps=1", 'memory.allow=["recompute","offload","offload_optimizer"]')
        refusals = [self.plan(2, *words, "device.memory=1MiB", code=3), launch.run(2, launch.NEAP, "train", "ppo.toml", *words, "device.memory=1MiB", cwd=self.home)]
        self.assertEqual(refusals[1].returncode, 3, refusals[1].stderr)
        (needed,) = {least for refusal in refusals for least in re.findall(r"minimum capacity is (\d+) MiB", refusal.stderr)}
        for refusal in refusals:
            self.assertIn("while planning rank 1", refusal.stderr)
        self.run_ranks(2, "least", *words, f"device.memory={needed}MiB", task="ppo")
        self.assert_within_plans("least", 2)

    def test_a_plan_chooses_a_stage_for_each_model(self):
        """One that fits; the run is that with the stages written out."""
        words = ("trainer.total_training_steps=1", *WHOLE, *zero(critic="auto", reference="auto"), "memory.offload=none", "memory.optimizer_offload=none")
        shown = json.loads(self.plan(2, *words, "--json").stdout)["parallel_sizes"]
        self.assertEqual(len(shown["candidates"]), 8)
        fitting = {(each["parallel_sizes"]["critic zero"], each["parallel_sizes"]["reference zero"]): each["peak"] for each in shown["candidates"] if each["fits"]}
        self.assertEqual(len(fitting), 8)
        least = min(fitting.values())
        self.assertLess(least, fitting[0, 0])
        below = f"device.memory={least // 2**20}MiB"
        chosen = json.loads(self.plan(2, *words, below, "--json").stdout)["parallel_sizes"]["overrides"]
        reference, critic = (int(word[-1]) for word in chosen)
        self.assertEqual(chosen, [f"actor_rollout_ref.ref.zero_stage={reference}", f"critic.zero_stage={critic}"])
        self.assertEqual(fitting[critic, reference], least)
        self.run_mesh("chosen", *words, below, task="ppo", copies=2)
        self.run_mesh("written", *words, *chosen, below, task="ppo", copies=2)
        for files in (FILES, CRITIC_FILES):
            self.assert_same_files("written", "chosen", 1, files)
        others = json.loads(self.plan(2, "parallel.tensor_model_parallel_size=auto", "--json").stdout)["parallel_sizes"]["candidates"]
        self.assertNotIn("critic zero", others[0]["parallel_sizes"])

    def test_a_plan_has_every_kind_of_rank(self):
        staged = stages(actor=2, critic=4)
        text = self.plan(4, *staged).stdout
        self.assertRegex(text, r"4 groups of ranks, \d+ micro-batches per mini-batch")
        self.assertRegex(text, r"  rank 1  actor layers 0 to 2, reference layers 0 to 4, critic layers 1 to 1, reward layers 0 to 4  peak")
        kinds = json.loads(self.plan(4, *staged, "--json").stdout)["stages"]
        self.assertEqual([kind["first_rank"] for kind in kinds], [0, 1, 2, 3])
        self.assertEqual(kinds[3]["models"]["reference"], {"first_block": 0, "blocks": 5})
        shown = json.loads(self.plan(4, *stages(critic=2), "--simulate", "--json").stdout)
        self.assertEqual([kind["ranks"] for kind in shown["stages"]], [2, 2])
        self.assertAlmostEqual(sum(shown["seconds"].values()), shown["step_seconds"], delta=1e-6 * shown["step_seconds"])
        self.assertGreater(shown["seconds"]["bubble"], 0)
        self.assertIn("first rank", self.plan(4, *stages(critic=2), "--simulate").stdout)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
