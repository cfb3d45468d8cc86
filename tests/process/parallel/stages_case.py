"""Forms of training under a schedule of stages that is not 1F1B, for the tests beside it."""
import json

import launch

from neap_program import without
from pipeline_case import PipelineCase, STAGES, TENSOR
from rank_case import FILES, OPTIMIZER

ADAPTERS = ("actor/adapter_model.safetensors", "actor/optimizer.safetensors")


class StagesCase(PipelineCase):
    """One for each schedule; import the module, not the class, whose tests run in it."""
    DIVIDED = 3  # stages of one rank each
    SCHEDULE = {}  # options of assert_stages_are_one_rank
    LEFT_OUT = ()  # cases whose parts others cover

    def assert_one_rank(self, name, stages, *words, **options):
        return self.assert_stages_are_one_rank(name, stages, *words, **{**self.SCHEDULE, **options})

    def test_forms_of_training(self):
        self.write_model("untied", tie_word_embeddings=False)
        bf16 = "device.dtype=bfloat16"
        cases = {"untied": ["actor_rollout_ref.model.path=untied"], "streamed": ["memory.optimizer_offload=cpu", bf16], "split": ["memory.optimizer_offload=phase_split", bf16],
                 "recompute": ["actor_rollout_ref.model.activation_checkpointing=full"], "one-micro-batch": ["data.micro_batch_size_per_gpu=12"],
                 "clipped": ["actor_rollout_ref.actor.grad_clip=0.01", f"{OPTIMIZER}optimizer=adafactor"]}
        for name, words in without(*self.LEFT_OUT, of=cases).items():
            with self.subTest(name):
                self.assert_one_rank(name, self.DIVIDED, *words)

    def test_packed_micro_batches(self):
        _, divided = self.assert_one_rank("packed", self.DIVIDED, "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=130", exact=False)
        self.assert_within_plans(divided, self.DIVIDED)

    def test_replicas_and_divided_models(self):
        """The bits of as many ranks without stages: replicas, slices of states, layers that ranks divide, adapters of these."""
        start = "actor_rollout_ref.model.path=out/started/latest/actor"
        self.run_ranks(1, "started", "trainer.total_training_steps=1")
        cases = (("replicas", (), FILES), ("zero", ("parallel.zero_stage=1",), FILES), ("tensor", (TENSOR,), FILES),
                 ("rows", (TENSOR, "parallel.sequence_parallel=true", "device.dtype=bfloat16"), FILES),
                 ("lora", (TENSOR, start, "actor_rollout_ref.model.lora_rank=4"), ADAPTERS))
        for name, words, files in without(*self.LEFT_OUT, of=cases):
            with self.subTest(name):
                self.assert_one_rank(name, 2, *words, replicas=2, files=files)

    def test_reward_and_preferences(self):
        self.run_ranks(1, "sft")
        self.assert_one_rank("reward", self.DIVIDED, task="reward", step=3, files=[f.replace("actor", "reward") for f in FILES])
        cases = (("dpo", (), FILES), ("dpo-once", ("dpo.precompute_ref_log_probs=true",), FILES),
                 ("dpo-lora", ("actor_rollout_ref.model.lora_rank=4",), ADAPTERS))
        for name, words, files in without(*self.LEFT_OUT, of=cases):
            with self.subTest(name):
                one, divided = self.assert_one_rank(name, self.DIVIDED, *words, task="dpo", step=3, files=files)
                self.assertEqual(self.validations(f"out/{one}"), self.validations(f"out/{divided}"))

    def test_planned_seconds_are_those_of_the_simulation(self):
        """On every rank."""
        words = (STAGES.format(3), *self.schedule(**self.SCHEDULE), "trainer.total_training_steps=1")
        self.run_ranks(3, "seconds", *words)
        said = [launch.run(1, launch.NEAP, "plan", "sft.toml", *words, "trainer.n_gpus_per_node=3", "--json", *more, cwd=self.home)
                for more in ((), ("--simulate",))]
        planned, simulated = (json.loads(each.stdout) for each in said)
        self.assertAlmostEqual(planned["seconds"], simulated["step_seconds"], places=9)
        self.assertEqual((simulated["chunks"], simulated["zero_bubble"]), (self.SCHEDULE.get("chunks", 1), self.SCHEDULE.get("zero_bubble", False)))
        for folder in ("seconds", "seconds/ranks/1", "seconds/ranks/2"):
            own = json.loads((self.home / "out" / folder / "plan.json").read_text())
            self.assertAlmostEqual(own["seconds"], planned["seconds"], places=9, msg=folder)
            self.assertGreater(own["phases"][0]["bubble_seconds"], 0)
