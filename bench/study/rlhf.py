"""Step 3 of RLHF as DeepSpeed-Chat or ColossalChat does it: four models, one PPO update of the actor and of the critic in each step.

Models have random weights. LoRA (PEFT) is on every linear layer of a decoder block. As in DeepSpeed-Chat the weights under it are frozen, and
embeddings, norms and biases train. As in ColossalChat only the adapters train, and the models that do not train are on the host meanwhile.
"""
import contextlib
import time

import peft
import planned
import torch
import transformers
from torch.nn import functional as F

INFERENCE = ("generate", "actor_logp", "ref_logp", "reward", "critic_value")
TRAINING = ("train_actor", "train_critic")
EMPTY = {"none": (), "inference": INFERENCE, "training": TRAINING, "all": INFERENCE + TRAINING}
KL, CLIP, CLIP_REWARD, CLIP_VALUE, GAMMA, LAMBDA = 0.1, 0.2, 5.0, 0.2, 1.0, 0.95

NO_DROPOUT = {"opt": ("dropout", "attention_dropout"), "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"), "llama": ("attention_dropout",)}
LORA = {"opt": ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"], "gpt2": ["c_attn", "c_proj", "c_fc"],
        "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}


def sizes(name):
    if name == "opt-350m":  # the published model's narrow embedding
        return planned.MODELS[name] | {"word_embed_proj_dim": 512, "do_layer_norm_before": False}
    return planned.MODELS[name]


def config(name, small):
    found = planned.small(sizes(name)) if small else sizes(name)
    off = dict.fromkeys(NO_DROPOUT[found["model_type"]], 0.0)
    # The models of the paper's time had no fused attention.
    return transformers.AutoConfig.for_model(**found, **off, attn_implementation="eager")


class Values(torch.nn.Module):
    """A decoder with one value per token."""

    def __init__(self, config, dtype):
        super().__init__()
        self.config = config
        self.decoder = transformers.AutoModel.from_config(config, dtype=dtype, attn_implementation="eager")
        self.head = torch.nn.Linear(getattr(config, "word_embed_proj_dim", config.hidden_size), 1, bias=False, dtype=dtype)

    def gradient_checkpointing_enable(self, **words):
        self.decoder.gradient_checkpointing_enable(**words)

    def forward(self, input_ids, attention_mask, use_cache=True):
        hidden = self.decoder(input_ids, attention_mask=attention_mask, use_cache=use_cache)[0]
        return self.head(hidden).squeeze(-1)


def build(config, dtype, values):
    if values:
        return Values(config, dtype)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")


def add_lora(model, rank, adapters_alone=False):
    kind = model.config.model_type
    settings = peft.LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules=LORA[kind], fan_in_fan_out=kind == "gpt2")
    model = peft.get_peft_model(model, settings, autocast_adapter_dtype=False)
    if not adapters_alone:
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
    """engines: actor, ref, critic, reward; each is called as a model. stack.update(engine, loss) goes one step.

    stack.rest() takes the models that do not train away for an update, stack.wake() brings them back."""

    def __init__(self, stack, engines, phases, shape, vocabulary):
        self.stack, self.phases, self.shape, self.vocabulary = stack, phases, shape, vocabulary
        self.actor, self.ref, self.critic, self.reward = engines

    def mode(self, training):
        for engine in (self.actor, self.critic):
            engine.train(training)

    def experience(self, prompts, mask):
        prompt, rest = prompts.shape[1], self.shape["response"] - self.shape["generated"]
        length = prompt + self.shape["generated"]
        self.mode(False)
        with torch.no_grad(), self.phases("generate"):
            text = self.stack.module(self.actor).generate(
                input_ids=prompts, attention_mask=mask, max_length=length, min_length=length, do_sample=False, pad_token_id=1,
                synced_gpus=self.stack.sharded)
            text = torch.cat([text[i:i + 1] for i in range(text.shape[0])])
            if rest:
                text = torch.cat([text, torch.randint(4, self.vocabulary, (text.shape[0], rest), device=text.device)], dim=1)
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
        self.stack.wake(self.ref, self.reward)
        experience = self.experience(prompts, torch.ones_like(prompts))
        self.stack.rest(self.ref, self.reward)
        losses = self.update(experience)
        return [float(loss.detach()) for loss in losses]
