"""Step 3 of RLHF as DeepSpeed-Chat does it: four models, one PPO update of the actor and of the critic in each step.

Models have random weights. LoRA (PEFT) is on every linear layer of a decoder block. As in DeepSpeed-Chat the weights under it are frozen, and
embeddings, norms and biases train.
"""
import contextlib
import time

import peft
import torch
import transformers
from torch.nn import functional as F

INFERENCE = ("generate", "actor_logp", "ref_logp", "reward", "critic_value")
TRAINING = ("train_actor", "train_critic")
EMPTY = {"none": (), "inference": INFERENCE, "training": TRAINING, "all": INFERENCE + TRAINING}
KL, CLIP, CLIP_REWARD, CLIP_VALUE, GAMMA, LAMBDA = 0.1, 0.2, 5.0, 0.2, 1.0, 0.95

SIZES = {
    "opt-1.3b": dict(hidden_size=2048, ffn_dim=8192, num_hidden_layers=24, num_attention_heads=32, word_embed_proj_dim=2048),
    "opt-350m": dict(hidden_size=1024, ffn_dim=4096, num_hidden_layers=24, num_attention_heads=16, word_embed_proj_dim=512,
                     do_layer_norm_before=False),
    "tiny": dict(hidden_size=64, ffn_dim=128, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=64, vocab_size=512),
}


def config(name):
    # The models of the paper's time had no fused attention.
    return transformers.OPTConfig(**SIZES[name], dropout=0.0, attention_dropout=0.0, attn_implementation="eager")


class Values(torch.nn.Module):
    """A decoder with one value per token."""

    def __init__(self, name, dtype):
        super().__init__()
        settings = config(name)
        self.config = settings
        self.decoder = transformers.AutoModel.from_config(settings, dtype=dtype, attn_implementation="eager")
        self.head = torch.nn.Linear(settings.word_embed_proj_dim, 1, bias=False, dtype=dtype)

    def gradient_checkpointing_enable(self, **words):
        self.decoder.gradient_checkpointing_enable(**words)

    def forward(self, input_ids, attention_mask, use_cache=True):
        hidden = self.decoder(input_ids, attention_mask=attention_mask, use_cache=use_cache)[0]
        return self.head(hidden).squeeze(-1)


def build(name, dtype, values):
    if values:
        return Values(name, dtype)
    return transformers.AutoModelForCausalLM.from_config(config(name), dtype=dtype, attn_implementation="eager")


def add_lora(model, rank):
    settings = peft.LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules=["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"])
    model = peft.get_peft_model(model, settings, autocast_adapter_dtype=False)
    for name, weight in model.named_parameters():
        weight.requires_grad_(not name.endswith("base_layer.weight"))
    return model


def picked(logits, tokens):
    return F.log_softmax(logits, dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


class Phases:
    """Marks of phases, empty_cache() after those that are named, and the peaks of each."""

    def __init__(self, device, empty):
        self.cuda = device.type == "cuda"
        self.after = EMPTY[empty]
        self.peaks = {}
        self.empty_seconds = 0.0

    def note(self, name):
        if not self.cuda:
            return
        stats = torch.cuda.memory_stats()
        now = {"peak_reserved": stats["reserved_bytes.all.peak"], "peak_allocated": stats["allocated_bytes.all.peak"],
               "end_reserved": stats["reserved_bytes.all.current"], "end_allocated": stats["allocated_bytes.all.current"]}
        old = self.peaks.setdefault(name, now)
        old.update({key: max(old[key], value) if key.startswith("peak") else value for key, value in now.items()})
        torch.cuda.reset_peak_memory_stats()

    @contextlib.contextmanager
    def __call__(self, name):
        self.note("outside")
        with torch.profiler.record_function("phase:" + name):
            yield
        self.note(name)
        if name in self.after and self.cuda:
            torch.cuda.synchronize()
            begun = time.perf_counter()
            torch.cuda.empty_cache()
            self.empty_seconds += time.perf_counter() - begun


class Trainer:
    """engines: actor, ref, critic, reward; each is called as a model. stack.update(engine, loss) goes one step."""

    def __init__(self, stack, engines, phases, shape, vocabulary):
        self.stack, self.phases, self.shape, self.vocabulary = stack, phases, shape, vocabulary
        self.actor, self.ref, self.critic, self.reward = engines

    def mode(self, training):
        for engine in (self.actor, self.critic):
            engine.train(training)

    def experience(self, prompts, mask):
        prompt = prompts.shape[1]
        length = prompt + self.shape["response"]
        self.mode(False)
        with torch.no_grad(), self.phases("generate"):
            text = self.stack.module(self.actor).generate(
                input_ids=prompts, attention_mask=mask, max_length=length, min_length=length, do_sample=False, pad_token_id=1,
                synced_gpus=self.stack.sharded)
            text = torch.cat([text[i:i + 1] for i in range(text.shape[0])])
        self.mode(True)
        mask = text.not_equal(1).long()
        with torch.no_grad():
            with self.phases("actor_logp"):
                output = self.actor(text, attention_mask=mask)
            with self.phases("ref_logp"):
                output_ref = self.ref(text, attention_mask=mask)
            with self.phases("reward"):
                score = self.reward(text, mask)[:, -1].detach()
            with self.phases("critic_value"):
                values = self.critic(text, mask).detach()[:, :-1]
            logits, logits_ref = output.logits, output_ref.logits
        return {"start": prompt - 1, "text": text, "mask": mask, "score": score, "values": values,
                "old": picked(logits[:, :-1], text[:, 1:]), "ref": picked(logits_ref[:, :-1], text[:, 1:])}

    @staticmethod
    def advantages(values, rewards, start):
        last, found = 0, []
        length = rewards.shape[-1]
        for t in reversed(range(start, length)):
            next_values = values[:, t + 1] if t < length - 1 else 0.0
            last = rewards[:, t] + GAMMA * next_values - values[:, t] + GAMMA * LAMBDA * last
            found.append(last)
        advantages = torch.stack(found[::-1], dim=1)
        return advantages.detach(), advantages + values[:, start:]

    def update(self, e):
        start, text, action = e["start"], e["text"], e["mask"][:, 1:]
        with torch.no_grad():
            rewards = -KL * (e["old"] - e["ref"])
            rewards[:, -1] += e["score"].clamp(-CLIP_REWARD, CLIP_REWARD)
            advantages, returns = self.advantages(e["values"], rewards, start)
        mask = action[:, start:]
        with self.phases("train_actor"):
            logits = self.actor(text, attention_mask=e["mask"], use_cache=False).logits
            now = picked(logits[:, :-1], text[:, 1:])
            ratio = ((now[:, start:] - e["old"][:, start:]) * mask).exp()
            worst = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - CLIP, 1 + CLIP))
            actor_loss = (worst * mask).sum() / mask.sum()
            self.stack.update(self.actor, actor_loss)
        with self.phases("train_critic"):
            value = self.critic(text, e["mask"], use_cache=False)[:, :-1][:, start:]
            old = e["values"][:, start:]
            clipped = torch.max(torch.min(value, old + CLIP_VALUE), old - CLIP_VALUE).float()
            errors = torch.max((value.float() - returns) ** 2, (clipped - returns) ** 2)
            critic_loss = 0.5 * (errors * mask).sum() / mask.sum()
            self.stack.update(self.critic, critic_loss)
        return actor_loss, critic_loss

    def step(self, device):
        rows, prompt = self.shape["rows"], self.shape["prompt"]
        prompts = torch.randint(4, self.vocabulary, (rows, prompt), device=device)
        losses = self.update(self.experience(prompts, torch.ones_like(prompts)))
        return [float(loss.detach()) for loss in losses]
