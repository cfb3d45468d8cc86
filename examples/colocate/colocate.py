#!/usr/bin/env python3
"""A rollout engine and a trainer that share one GPU and its memory: REINFORCE on a toy reward.

    pip install ./python            # neap; torch with a GPU is yours
    python examples/colocate/colocate.py              # memory moves between the phases
    python examples/colocate/colocate.py --resident   # everything stays: the same numbers, more memory

The policy is a decoder of about 1.2 billion parameters. Rollout needs its weights, a KV cache and a
captured CUDA graph; training needs the weights, gradients and Adam's states. Each is a region with a
tag. Between the phases neap.exchange() lets the pages of one serve the other, at the same addresses, so
that the graph and every tensor stay valid.
"""

import argparse
import threading
import time

import torch
import torch.utils.checkpoint
import torch.nn.functional as F

import neap

GIB = 1 << 30
VOCABULARY, PROMPT = 512, 8


class Policy:
    """A decoder; its decoding step reads and writes the KV cache in place, as a captured graph must."""

    def __init__(self, layers, width, heads, sequences, context):
        self.heads, self.width, self.context = heads, width, context
        generator = torch.Generator("cuda").manual_seed(1)

        def weight(rows, columns):
            made = torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda")
            return made.normal_(std=0.02, generator=generator).requires_grad_()

        with neap.region("weights", policy="host"):
            self.embedding, self.positions = weight(VOCABULARY, width), weight(context, width)
            self.layers = [[weight(3 * width, width), weight(width, width),
                            weight(4 * width, width), weight(width, 4 * width)] for _ in range(layers)]
        # Worth nothing between rollouts. Places that are masked still take part in the arithmetic, so
        # zeros it is: what "discard" leaves may be anything, NaN for one.
        with neap.region("kv", policy="zero"):
            shape = (layers, 2, sequences, heads, context, width // heads)
            self.kv = torch.zeros(shape, dtype=torch.bfloat16, device="cuda")

    def parameters(self):
        return [self.embedding, self.positions, *(w for layer in self.layers for w in layer)]

    def block(self, x, layer, attend):
        qkv, out, up, down = layer
        heads = F.linear(F.layer_norm(x, (self.width,)), qkv).unflatten(-1, (3, self.heads, -1))
        mixed = attend(*(part.transpose(1, 2) for part in heads.unbind(2)))
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), out)
        return x + F.linear(F.gelu(F.linear(F.layer_norm(x, (self.width,)), up)), down)

    def logits(self, x):
        return F.linear(F.layer_norm(x, (self.width,)), self.embedding).float()

    def forward(self, tokens):   # [batch, length] -> [batch, length, VOCABULARY]
        x = self.embedding[tokens] + self.positions[:tokens.shape[1]]
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(
                self.block, x, layer,
                lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), use_reentrant=False)
        return self.logits(x)

    @torch.no_grad()
    def decode(self, tokens, place):   # [sequences, 1], [1] -> [sequences, VOCABULARY]
        seen = (torch.arange(self.context, device="cuda") <= place)[None, None, None]
        x = self.embedding[tokens] + self.positions[place]
        for layer, (keys, values) in zip(self.layers, self.kv):
            def attend(q, k, v):
                keys.index_copy_(2, place, k)
                values.index_copy_(2, place, v)
                return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            x = self.block(x, layer, attend)
        return self.logits(x)[:, 0]


class Rollout:
    """Generates with a captured decoding step; prompts go through the same step."""

    def __init__(self, policy, sequences):
        self.policy = policy
        self.token = torch.zeros(sequences, 1, dtype=torch.long, device="cuda")
        self.place = torch.zeros(1, dtype=torch.long, device="cuda")
        side = torch.cuda.Stream()   # the step runs once before it is captured
        with torch.cuda.stream(side):
            policy.decode(self.token, self.place)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with neap.graph(self.graph, tag="graphs", policy="host"):
            self.logits = policy.decode(self.token, self.place)

    def generate(self, prompts, length):
        tokens = prompts
        for place in range(prompts.shape[1] + length - 1):
            self.place.fill_(place)
            self.token.copy_(tokens[:, place:place + 1])
            self.graph.replay()
            if place >= prompts.shape[1] - 1:
                chosen = torch.multinomial(self.logits.softmax(-1), 1)
                tokens = torch.cat([tokens, chosen], 1)
        return tokens


class Trainer:
    """Adam with single-precision states; gradients and states are regions of their own."""

    def __init__(self, policy, rate):
        self.policy, self.rate, self.steps = policy, rate, 0
        with neap.region("gradients", policy="zero"):   # read as zeros after each resume
            for p in policy.parameters():
                p.grad = torch.zeros_like(p)
        with neap.region("optimizer", policy="host"):
            self.states = [(p.detach().float(), torch.zeros_like(p, dtype=torch.float32),
                            torch.zeros_like(p, dtype=torch.float32)) for p in policy.parameters()]

    def step(self, tokens, advantage, micro):
        for p in self.policy.parameters():
            p.grad.zero_()
        for rows in range(0, len(tokens), micro):
            part, weight = tokens[rows:rows + micro], advantage[rows:rows + micro]
            chosen = self.policy.forward(part[:, :-1]).log_softmax(-1).gather(2, part[:, 1:, None])[..., 0]
            (-(chosen[:, PROMPT - 1:].mean(1) * weight).sum() / len(tokens)).backward()
        self.steps += 1
        with torch.no_grad():
            for p, (master, first, second) in zip(self.policy.parameters(), self.states):
                gradient = p.grad.float()
                first.lerp_(gradient, 0.1)
                second.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
                size = (second / (1 - 0.95 ** self.steps)).sqrt_().add_(1e-8)
                master.addcdiv_(first, size, value=-self.rate / (1 - 0.9 ** self.steps))
                p.copy_(master)


class Watch(threading.Thread):
    """The card's memory in use, looked at every few milliseconds."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.over = 0, False
        self.start()

    def run(self):
        while not self.over:
            free, total = torch.cuda.mem_get_info()
            self.peak = max(self.peak, total - free)
            time.sleep(0.003)


ROLLOUT, TRAINING = ["kv", "graphs"], ["gradients", "optimizer"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--resident", action="store_true", help="keep everything on the GPU")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--context", type=int, default=1024, help="tokens that the KV cache has room for")
    parser.add_argument("--length", type=int, default=48, help="tokens that are generated")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU")
    torch.manual_seed(0)
    seconds = {}

    def timed(name, call, *values, **named):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = call(*values, **named)
        torch.cuda.synchronize()
        seconds[name] = time.perf_counter() - begin
        return result

    def change_phase(out, come):
        if not arguments.resident:
            torch.cuda.empty_cache()   # what the last phase left in torch's own cache
            neap.exchange(out, come)

    policy = Policy(arguments.layers, arguments.width, arguments.width // 128, arguments.sequences, arguments.context)
    rollout = Rollout(policy, arguments.sequences)
    if not arguments.resident:
        neap.pause(ROLLOUT)
    trainer = Trainer(policy, rate=2e-5)
    change_phase(TRAINING, ROLLOUT)
    print(f"{sum(p.numel() for p in policy.parameters()) / 1e9:.2f} billion parameters; GiB by tag:",
          {tag["tag"]: round(tag["virtual"] / GIB, 1) for tag in neap.stats()["devices"][0]["tags"]})
    watch = Watch()
    for step in range(arguments.steps):
        prompts = torch.randint(0, VOCABULARY, (arguments.sequences, PROMPT), device="cuda")
        tokens = timed("rollout", rollout.generate, prompts, arguments.length)
        reward = (tokens[:, PROMPT:] % 2 == 0).float().mean(1)   # the toy: even tokens are good ones
        timed("to training", change_phase, ROLLOUT, TRAINING)
        timed("training", trainer.step, tokens, (reward - reward.mean()) / (reward.std() + 1e-6), micro=48)
        timed("to rollout", change_phase, TRAINING, ROLLOUT)
        print(f"step {step}: reward {reward.mean():.3f}; seconds:",
              ", ".join(f"{name} {value:.2f}" for name, value in seconds.items()), flush=True)
    watch.over = True
    print(f"peak of the card's memory: {watch.peak / GIB:.1f} GiB", "(all resident)" if arguments.resident else "")


if __name__ == "__main__":
    main()
