"""Programs whose GPU memory is recorded under one allocator setting and measured under others.

Each function takes a Context and runs seeded work: sizes and order of allocations depend on nothing
but the seed, so that two runs differ only by the allocator's settings. With --device cpu the same
code runs without a GPU, as a rehearsal.
"""

import contextlib
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

MIB = 1 << 20


class Context:
    """Phases, and where empty_cache() is called: after phases that `empty` names."""

    def __init__(self, device, empty, seed):
        self.device = device
        self.empty = empty
        self.rng = random.Random(seed)
        torch.manual_seed(seed)

    @contextlib.contextmanager
    def phase(self, name):
        with torch.profiler.record_function("phase:" + name):
            yield
        training = name.startswith("train")
        if self.empty == "all" or self.empty == ("training" if training else "inference"):
            self.release()

    def own_empty_cache(self):
        """Where the program itself empties the cache: only with the policy "recorded"."""
        if self.empty == "recorded":
            self.release()

    def release(self):
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def bytes(self, count):
        return torch.empty(int(count), dtype=torch.uint8, device=self.device)


class Block(nn.Module):
    def __init__(self, width, heads, lora=0):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.lora = nn.ParameterList()
        if lora:
            self.lora.append(nn.Parameter(torch.randn(width, lora) * 0.01))
            self.lora.append(nn.Parameter(torch.zeros(lora, 3 * width)))

    def forward(self, x, past=None):
        batch, length, width = x.shape
        hidden = self.norm1(x)
        qkv = self.qkv(hidden)
        if len(self.lora):
            qkv = qkv + hidden @ self.lora[0] @ self.lora[1]
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in qkv.chunk(3, -1))
        if past is not None:
            if past:  # a cache that grows by concatenation, as transformers' DynamicCache
                k = torch.cat([past[0], k], 2)
                v = torch.cat([past[1], v], 2)
            past[:] = [k, v]
        causal = length > 1
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """GPT-like; with head=False it gives a value for each token."""

    def __init__(self, ctx, layers, width, vocabulary, head=True, lora=0, recompute=False):
        super().__init__()
        if ctx.device == "cpu":  # a rehearsal: the same code, less work
            layers, width, vocabulary = 2, 64, 1000
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, width // 64, lora) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary if head else 1, bias=False)
        self.recompute = recompute
        self.to(ctx.device, torch.bfloat16 if ctx.device == "cuda" else torch.float32)
        if lora:
            for name, weight in self.named_parameters():
                weight.requires_grad_("lora" in name)

    def forward(self, tokens, past=None):
        x = self.embed(tokens)
        for i, block in enumerate(self.blocks):
            if self.recompute and self.training and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x, None if past is None else past[i])
        return self.head(self.norm(x))


def tokens(ctx, batch, length):
    if ctx.device == "cpu":
        length = max(4, length // 16)
    return torch.randint(0, 1000, (batch, length), device=ctx.device)


@torch.no_grad()
def generate(model, prompt, new_tokens):
    past = [[] for _ in model.blocks]
    text = prompt
    step = prompt
    for _ in range(new_tokens):
        logits = model(step, past)[:, -1].float()
        step = torch.multinomial(torch.softmax(logits, -1), 1)
        text = torch.cat([text, step], 1)
    return text


def log_probs(logits, text):
    picked = torch.log_softmax(logits[:, :-1].float(), -1)
    return picked.gather(-1, text[:, 1:, None]).squeeze(-1)


@torch.no_grad()
def score(model, text, part):
    return torch.cat([log_probs(model(rows), rows) for rows in text.split(part)])


@torch.no_grad()
def values(model, text, part):
    return torch.cat([model(rows).float().squeeze(-1) for rows in text.split(part)])


def optimizer(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-6)


def ppo_epoch(actor, steps, text, old, part):
    for rows, before in zip(text.split(part), old.split(part)):
        ratio = (log_probs(actor(rows), rows) - before).exp()
        (-torch.min(ratio, ratio.clamp(0.8, 1.2)).mean()).backward()
    steps.step()
    steps.zero_grad(set_to_none=True)


def value_epoch(critic, steps, text, returns, part):
    for rows, wanted in zip(text.split(part), returns.split(part)):
        (critic(rows).float().squeeze(-1) - wanted).square().mean().backward()
    steps.step()
    steps.zero_grad(set_to_none=True)


def ppo(ctx, lora=0, steps=4, offload=False):
    """Four models, lengths that differ from step to step."""
    vocabulary = 32000
    actor = Decoder(ctx, 6, 768, vocabulary, lora=lora)
    reference = Decoder(ctx, 6, 768, vocabulary).eval()
    critic = Decoder(ctx, 4, 512, vocabulary, head=False)
    reward = Decoder(ctx, 4, 512, vocabulary, head=False).eval()
    actor_steps, critic_steps = optimizer(actor), optimizer(critic)
    if offload:
        reference.to("cpu"), reward.to("cpu"), critic.to("cpu")

    @contextlib.contextmanager
    def on_device(model):
        """Weights that are moved here for one phase, as trainers do that offload."""
        if offload:
            model.to(ctx.device)
        yield model
        if offload:
            model.to("cpu")

    for _ in range(steps):
        batch = ctx.rng.choice([8, 12, 16])
        prompt = tokens(ctx, batch, ctx.rng.randrange(64, 384))
        with ctx.phase("generate"):
            text = generate(actor, prompt, ctx.rng.randrange(10, 24))
        with ctx.phase("actor_logp"):
            old = score(actor, text, 8)
        with ctx.phase("ref_logp"), on_device(reference):
            kl = old - score(reference, text, 8)
        with ctx.phase("critic_value"), on_device(critic):
            value = values(critic, text, 16)
        with ctx.phase("reward"), on_device(reward):
            returns = values(reward, text, 16)[:, -1:] - kl.sum(-1, keepdim=True) + value
        with ctx.phase("train_actor"):
            for part in (4, 6):
                ppo_epoch(actor, actor_steps, text, old, part)
        with ctx.phase("train_critic"), on_device(critic):
            value_epoch(critic, critic_steps, text, returns, 8)
    return actor, reference, critic, reward, actor_steps, critic_steps


def ppo_lora(ctx):
    return ppo(ctx, lora=16, steps=5)


def ppo_offload(ctx):
    return ppo(ctx, steps=3, offload=True)


def decode_graph(ctx, model, batch, longest):
    """A captured decoding step over a cache of fixed size, in a private pool of its own."""
    heads = model.blocks[0].heads
    cache = [[torch.zeros(batch, heads, longest, 64, dtype=model.norm.weight.dtype,
                          device=ctx.device)
              for _ in range(2)] for _ in model.blocks]
    step = torch.zeros(batch, 1, dtype=torch.long, device=ctx.device)

    def decode():
        past = [[k[:, :, :-1], v[:, :, :-1]] for k, v in cache]
        return torch.softmax(model(step, past)[:, -1].float(), -1)

    with torch.no_grad():
        if ctx.device != "cuda":
            return None, decode(), cache
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            decode()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        if ctx.empty == "recorded":  # torch.cuda.graph empties the cache before it captures
            with torch.cuda.graph(graph, stream=side):
                out = decode()
        else:
            with torch.cuda.stream(side):
                graph.capture_begin()
                out = decode()
                graph.capture_end()
            torch.cuda.synchronize()
    return graph, out, cache


def grpo_graphs(ctx):
    """Decoding graphs are captured for every rollout and dropped before training."""
    model = Decoder(ctx, 6, 768, 32000, recompute=True)
    reference = Decoder(ctx, 6, 768, 32000).eval()
    steps = optimizer(model)
    for _ in range(4):
        length = ctx.rng.randrange(128, 512)
        with ctx.phase("generate"):
            model.eval()
            prompt = tokens(ctx, 8, length)
            generate(model, prompt, 2)
            captured = [decode_graph(ctx, model, batch, length + 32) for batch in (8, 16)]
            for capture in captured:
                for _ in range(3 if capture[0] is not None else 0):
                    capture[0].replay()
            if ctx.device == "cuda":
                torch.cuda.synchronize()
            del capture, captured
            ctx.own_empty_cache()
        text = tokens(ctx, 16, length + 32)
        with ctx.phase("actor_logp"):
            old = score(model, text, 8)
        with ctx.phase("ref_logp"):
            score(reference, text, 4)
        with ctx.phase("train_actor"):
            model.train()
            ppo_epoch(model, steps, text, old, 8)
        ctx.own_empty_cache()
    return model, reference, steps


def sft(ctx):
    """Batches of every length, gradient accumulation, an evaluation now and then."""
    model = Decoder(ctx, 8, 768, 32000)
    steps = optimizer(model)
    for i in range(6):
        with ctx.phase("train"):
            for _ in range(3):
                rows = tokens(ctx, ctx.rng.choice([2, 4, 6]), ctx.rng.randrange(64, 900))
                (-log_probs(model(rows), rows).mean()).backward()
            steps.step()
            steps.zero_grad(set_to_none=True)
        if i % 2 == 1:
            with ctx.phase("evaluate"):
                score(model, tokens(ctx, 16, ctx.rng.randrange(200, 1000)), 4)
    return model, steps


def fragments(ctx):
    """Random sizes; every phase leaves a few tensors behind between what it frees."""
    kept = []
    for _ in range(5):
        for name, steps, largest in (("generate", 900, 12 * MIB), ("reward", 250, 48 * MIB),
                                     ("train_actor", 700, 160 * MIB)):
            with ctx.phase(name):
                live = []
                for _ in range(steps):
                    size = 2 ** ctx.rng.uniform(4, largest.bit_length() - 1)
                    live.append(ctx.bytes(max(16, size)))
                    while len(live) > 70 or (live and ctx.rng.random() < 0.45):
                        live.pop(ctx.rng.randrange(len(live)))
                ctx.rng.shuffle(live)
                kept += live[:6]
                del live
        ctx.rng.shuffle(kept)
        del kept[:12]
    return kept


def equal_sizes(ctx):
    """Few sizes, so that nearly every choice of a block is a tie broken by address."""
    sizes = [MIB // 2, MIB, 6 * MIB, 12 * MIB, 20 * MIB, 64 * MIB]
    kept = []
    for round_index in range(8):
        with ctx.phase("generate" if round_index % 2 == 0 else "train_actor"):
            live = []
            for _ in range(600):
                live.append(ctx.bytes(ctx.rng.choice(sizes)))
                while len(live) > 90 or (live and ctx.rng.random() < 0.42):
                    live.pop(ctx.rng.randrange(len(live)))
            ctx.rng.shuffle(live)
            kept += live[:10]
            del live
        ctx.rng.shuffle(kept)
        del kept[:7]
    return kept


def engine(ctx):
    """A rollout engine that gives its weights and cache up while a trainer of equal size works."""
    model = Decoder(ctx, 6, 768, 32000)
    steps = optimizer(model)
    for _ in range(4):
        with ctx.phase("generate"):
            weights = [p.detach().clone() for p in model.parameters()]
            pages = [ctx.bytes(ctx.rng.choice([24, 32, 48]) * MIB) for _ in range(12)]
            generate(model, tokens(ctx, ctx.rng.choice([8, 16, 24]), 128), 8)
        del weights, pages
        text = tokens(ctx, 8, ctx.rng.randrange(160, 640))
        with ctx.phase("actor_logp"):
            old = score(model, text, 4)
        with ctx.phase("train_actor"):
            ppo_epoch(model, steps, text, old, 4)
    return model, steps


WORK = {
    "ppo": ppo,
    "ppo-lora": ppo_lora,
    "ppo-offload": ppo_offload,
    "grpo-graphs": grpo_graphs,
    "sft": sft,
    "fragments": fragments,
    "equal-sizes": equal_sizes,
    "engine": engine,
}
