"""The two stacks of the study: DeepSpeed as DeepSpeed-Chat sets it up, and PyTorch's FSDP2 with ColossalChat's schedule. Each makes the four
engines and takes a step."""
import contextlib
import functools
import inspect
import sys
import types

import accelerate
import torch

import rlhf

# The paper's strategies: ZeRO stage, offloading to the host, gradient checkpointing.
STRATEGIES = {
    "none": (0, False, False), "zero1": (1, False, False), "zero2": (2, False, False), "zero3": (3, False, False),
    "zero3-offload": (3, True, False), "checkpointing": (0, False, True), "all": (3, True, True),
}
REMADE = 1 << 20  # elements
BLOCKS = ("OPTDecoderLayer", "GPT2Block", "LlamaDecoderLayer")
LR = {"actor": 9.65e-6, "critic": 5e-6}
ROLES = {"actor": (False, True), "ref": (False, False), "critic": (True, True), "reward": (True, False)}  # gives values, trains


def fused_adam():
    """torch's fused AdamW under the class by which DeepSpeed knows its own, which it would have to compile."""
    from deepspeed.ops.adam import FusedAdam
    from torch.optim import adamw

    class Adam(FusedAdam):
        def __init__(self, groups, lr):
            torch.optim.Optimizer.__init__(self, groups, dict(lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0))

        @torch.no_grad()
        def step(self, closure=None, **_):
            for group in self.param_groups:
                lists = [[], [], [], [], []]
                for weight in group["params"]:
                    if weight.grad is None:
                        continue
                    state = self.state[weight]
                    if not state:
                        state.update(step=torch.zeros((), dtype=torch.float32, device=weight.device), exp_avg=torch.zeros_like(weight),
                                     exp_avg_sq=torch.zeros_like(weight))
                    for some, value in zip(lists, (weight, weight.grad, state["exp_avg"], state["exp_avg_sq"], state["step"])):
                        some.append(value)
                if lists[0]:
                    adamw.adamw(*lists[:4], [], lists[4], fused=True, amsgrad=False, beta1=group["betas"][0], beta2=group["betas"][1],
                                lr=group["lr"], weight_decay=0.0, eps=group["eps"], maximize=False)

    return Adam


def import_deepspeed():
    """DeepSpeed without what only takes time in Python: ranges for a profiler, messages that are not printed, and a signature inspected for each
    module that runs. Memory is the same."""
    name = "deepspeed.utils.nvtx"
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].instrument_w_nvtx = lambda function: function
        torch.autograd.function.inspect = types.SimpleNamespace(signature=functools.lru_cache(None)(inspect.signature))
    import deepspeed
    deepspeed.runtime.zero.partition_parameters.print_rank_0 = lambda *_, **__: None
    return deepspeed


class DeepSpeed:
    def __init__(self, strategy, device, shape, world, dtype, remade=False):
        deepspeed = import_deepspeed()
        from transformers.integrations import HfDeepSpeedConfig
        self.deepspeed, self.hf = deepspeed, HfDeepSpeedConfig
        self.stage, self.offload, self.checkpointing = STRATEGIES[strategy]
        self.sharded = self.stage == 3
        self.device, self.shape, self.world, self.dtype = device, shape, world, dtype
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # compiled, and for CPUs only
        if device.type == "cpu":  # a rehearsal: slow, but the same code
            deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
        deepspeed.init_distributed(dist_backend=torch.distributed.get_backend(), auto_mpi_discovery=False, verbose=False)

    def config(self, stage, offload, training):
        where = {"device": "cpu" if offload else "none"}
        zero = {"stage": stage, "stage3_param_persistence_threshold": 10000, "offload_param": where, "memory_efficient_linear": False}
        if training:
            zero |= {"overlap_comm": True, "offload_optimizer": where, "stage3_max_live_parameters": 30000000, "stage3_prefetch_bucket_size": 30000000}
        precision = {"fp16": {"enabled": True, "loss_scale_window": 100, "initial_scale_power": 4}} if self.dtype == torch.float16 else \
            {"bf16": {"enabled": True}}
        return {"train_micro_batch_size_per_gpu": self.shape["rows"], "train_batch_size": self.shape["rows"] * self.world, "steps_per_print": 10000,
                "zero_optimization": zero, "gradient_clipping": 1.0, "prescale_gradients": False, "wall_clock_breakdown": False,
                "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True, **precision}

    def engine(self, role, config, rank):
        values, training = ROLES[role]
        # DeepSpeed-Chat shards models that do not train with ZeRO-3 only. It offloads only the reward model.
        stage = self.stage if training or self.sharded else 0
        settings = self.config(stage, self.offload and role != "ref", training)
        kept = self.hf(settings) if self.sharded else None  # transformers looks for it while it lives
        with contextlib.nullcontext() if self.sharded else torch.device(self.device):
            model = rlhf.build(config, self.dtype, values)
            if training:
                model = rlhf.add_lora(model, rank)
        del kept
        if training and self.checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        words = {}
        if training:
            words["optimizer"] = fused_adam()([p for p in model.parameters() if p.requires_grad], LR[role])
        engine, *_ = self.deepspeed.initialize(model=model, config=settings, **words)
        if not training:
            engine.eval()
        return engine

    @staticmethod
    def module(engine):
        return engine.module

    @staticmethod
    def update(engine, loss):
        engine.backward(loss)
        engine.step()

    @staticmethod
    def skipped(engine):
        return engine.skipped_steps

    @staticmethod
    def rest(*_):
        """DeepSpeed-Chat keeps all models where they are."""

    wake = rest


class Fsdp2:
    """ColossalChat's schedule: everything in one half precision, only adapters train, and the models that do not train are on the host
    meanwhile; only the models that train are sharded. ZeRO-3 is fully_shard(). FSDP2 has no ZeRO-1.

    remade: the large weights of a model that comes back from the host are made anew, not copied, which takes the same device memory."""

    def __init__(self, strategy, device, shape, world, dtype, remade=False):
        self.remade = remade
        self.stage, self.offload, self.checkpointing = STRATEGIES[strategy]
        if self.stage == 1:
            raise NotImplementedError("FSDP2 shards gradients whenever it shards optimizer states: there is no ZeRO-1")
        self.sharded = self.stage == 3
        self.device, self.dtype = device, dtype
        self.mesh = torch.distributed.device_mesh.init_device_mesh(device.type, (world,))
        self.optimizers = {}

    def shards(self):
        from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
        offload = CPUOffloadPolicy(pin_memory=self.device.type == "cuda") if self.offload else OffloadPolicy()
        return functools.partial(fully_shard, mesh=self.mesh, reshard_after_forward=self.sharded, offload_policy=offload)

    def engine(self, role, config, rank):
        values, training = ROLES[role]
        with accelerate.init_empty_weights(include_buffers=False):
            model = rlhf.build(config, self.dtype, values)
            if training:
                model = rlhf.add_lora(model, rank, adapters_alone=True)
        if hasattr(model, "tie_weights"):
            model.tie_weights()
        shard = self.shards() if training and self.stage >= 2 else None
        made = {}
        for module in list(model.modules()):
            if shard and type(module).__name__ in BLOCKS:
                materialize(module, self.device, made)
                shard(module)
        materialize(model, self.device, made)
        if training and self.checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if shard:
            shard(model)
            if hasattr(model, "generate"):
                torch.distributed.fsdp.register_fsdp_forward_method(model, "generate")
        if training:
            some = [p for p in model.parameters() if p.requires_grad]
            self.optimizers[model] = torch.optim.AdamW(some, lr=LR[role], weight_decay=0.0, fused=True)
        return model.train(training)

    @staticmethod
    def module(engine):
        return engine

    def update(self, engine, loss):
        loss.backward()
        optimizer = self.optimizers[engine]
        some = [p for p in engine.parameters() if p.grad is not None]
        if self.stage < 2:
            for weight in some:
                torch.distributed.all_reduce(weight.grad)
        torch.nn.utils.clip_grad_norm_(some, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    @staticmethod
    def skipped(engine):
        return 0

    def rest(self, *models):
        self.move(models, torch.device("cpu"))

    def wake(self, *models):
        self.move(models, self.device)

    def move(self, models, device):
        def moved(some):
            if some.device == device or not self.remade or some.numel() < REMADE:
                return some.to(device)
            there = torch.empty_like(some, device=device)
            return there if device.type == "cpu" else there.normal_(0.0, 0.02)
        for model in models:
            model._apply(moved)


def materialize(module, device, made):
    """Gives the parameters that are on no device yet, those of a module, random values; `made` keeps parameters that are tied."""
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is None or weight.device.type != "meta":
                continue
            if weight not in made:
                some = torch.empty(weight.shape, dtype=weight.dtype, device=device)
                if some.dim() > 1:
                    some.normal_(0.0, 0.02)
                else:
                    some.fill_(float(name == "weight"))
                made[weight] = torch.nn.Parameter(some, weight.requires_grad)
            part._parameters[name] = made[weight]
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else buffer.to(device)


STACKS = {"deepspeed": DeepSpeed, "fsdp2": Fsdp2}
