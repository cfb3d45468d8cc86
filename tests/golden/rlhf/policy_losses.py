"""Policy losses from the formulas of docs/algorithms.md, in float64. A sequence is {"old", "new", "advantage"}, lists of one length."""
import math
import statistics


def clamp(x, low, high):
    return max(low, min(high, x))


def vanilla(s, base, c):
    for o, n, a in zip(s["old"], s["new"], s["advantage"]):
        ratio = math.exp(clamp(n - o, -20, 20))
        plain, clipped = -a * ratio, -a * clamp(ratio, 1 - c["low"], 1 + c["high"])
        upper = max(plain, clipped)
        bound = -a * c["c"] if a < 0 and c["c"] else math.inf
        yield min(upper, bound), clipped > plain, upper > bound


def gspo(s, base, c):
    mean = sum(n - o for o, n in zip(base["old"], base["new"])) / max(len(base["old"]), 1)
    for n, frozen, a in zip(s["new"], base["new"], s["advantage"]):
        ratio = math.exp(min(n - frozen + mean, 10))
        plain, clipped = -a * ratio, -a * clamp(ratio, 1 - c["low"], 1 + c["high"])
        yield max(plain, clipped), clipped > plain, False


def cispo(s, base, c):
    for o, n, frozen, a in zip(s["old"], s["new"], base["new"], s["advantage"]):
        ratio = math.exp(clamp(frozen - o, -20, 20))
        weight = clamp(ratio, 1 - c["low"], 1 + c["high"])
        yield -weight * a * n, weight != ratio, False


def gpg(s, base, c):
    for n, a in zip(s["new"], s["advantage"]):
        yield -a * n, False, False


def dro(s, base, c):
    for o, n, a in zip(s["old"], s["new"], s["advantage"]):
        yield -(a * n - c["dro_beta"] / 2 * (n - o) ** 2), False, False


def sapo(s, base, c):
    for o, n, a in zip(s["old"], s["new"], s["advantage"]):
        tau = c["tau_pos"] if a > 0 else c["tau_neg"]
        yield -a * 4 / tau / (1 + math.exp(-tau * (math.exp(clamp(n - o, -20, 20)) - 1))), False, False


def geo_mean(s, base, c):
    deltas = [n - o for o, n in zip(s["old"], s["new"])]
    held = [clamp(d, -c["low"], c["high"]) for d in deltas]
    signs = [(a > 0) - (a < 0) for a in s["advantage"]]
    used = [sign * min(sign * d, sign * h) for sign, d, h in zip(signs, deltas, held)]
    length = len(deltas) + 1e-8
    loss = -math.fsum(s["advantage"]) / length * math.exp(math.fsum(used) / length)
    for d, h, a in zip(deltas, held, s["advantage"]):
        yield loss, d != h and a > 0, d != h and a < 0


def clip_cov(s, base, c):
    for t, (o, n, a) in enumerate(zip(s["old"], s["new"], s["advantage"])):
        left_out = (s["index"], t) in c["chosen"]
        ratio = math.exp(n - o)
        yield 0 if left_out else max(-a * ratio, -a * clamp(ratio, 1 - c["low"], 1 + c["high"])), left_out, False


def kl_cov(s, base, c):
    for t, (o, n, a) in enumerate(zip(s["old"], s["new"], s["advantage"])):
        yield -a * math.exp(n - o) + (c["ppo_kl_coef"] * abs(n - o) if (s["index"], t) in c["chosen"] else 0), False, False


def chosen(kind, batch, c):
    """Tokens that clip_cov leaves out and kl_cov pulls to the old policy."""
    tokens = [(s, t) for s in batch for t in range(len(s["new"]))]
    mean = {key: math.fsum(s[key][t] for s, t in tokens) / len(tokens) for key in ("advantage", "new")}
    cov = {(s["index"], t): (s["advantage"][t] - mean["advantage"]) * (s["new"][t] - mean["new"]) for s, t in tokens}
    count = max(1, int(c[f"{kind}_ratio"] * len(tokens)))
    if kind == "kl_cov":
        return sorted(cov, key=cov.get)[-count:]
    drawn = []
    for s, t in tokens:
        ratio, a = math.exp(s["new"][t] - s["old"][t]), s["advantage"][t]
        free = -a * clamp(ratio, 1 - c["low"], 1 + c["high"]) <= -a * ratio
        if free and c["clip_cov_lb"] < cov[s["index"], t] < c["clip_cov_ub"]:
            drawn.append((s["noise"][t], (s["index"], t)))
    return [key for _, key in sorted(drawn)[-count:]]


LOSSES = {"vanilla": vanilla, "gspo": gspo, "cispo": cispo, "gpg": gpg, "dro": dro, "sapo": sapo, "geo_mean": geo_mean,
          "clip_cov": clip_cov, "kl_cov": kl_cov}
BY_SEQUENCE = ("gspo", "sapo", "geo_mean")
OF_A_MICRO_BATCH = ("clip_cov", "kl_cov")
SETTINGS = {"dro_beta": 0.3, "tau_pos": 1.0, "tau_neg": 1.05, "clip_cov_ratio": 0.15, "clip_cov_lb": 0.05, "clip_cov_ub": 2.0,
            "kl_cov_ratio": 0.2, "ppo_kl_coef": 0.1}


def aggregate(rows, mode, length):
    """rows: losses of each sequence's tokens; sequences without tokens count as sequences."""
    tokens, sequences = sum(map(len, rows)), len(rows)
    if mode == "token-mean":
        return math.fsum(x for row in rows for x in row) / tokens
    if mode == "token-sum":
        return math.fsum(x for row in rows for x in row)
    if mode == "seq-mean-token-sum":
        return math.fsum(math.fsum(row) for row in rows) / sequences
    if mode == "seq-mean-token-mean":
        return math.fsum(math.fsum(row) / len(row) for row in rows if row) / sequences
    assert mode == "seq-mean-token-sum-norm"
    return math.fsum(math.fsum(row) / length for row in rows) / sequences


def loss_of(batch, base, kind, mode, c):
    mode = "seq-mean-token-mean" if kind in BY_SEQUENCE else mode
    return aggregate([[x[0] for x in LOSSES[kind](s, b, c)] for s, b in zip(batch, base)], mode, c["length"])


def with_token(batch, i, t, by):
    moved = [dict(s) for s in batch]
    moved[i]["new"] = [x + (by if u == t else 0) for u, x in enumerate(batch[i]["new"])]
    return moved


def gradient(f, batch, step=1e-5):
    return [[(f(with_token(batch, i, t, step)) - f(with_token(batch, i, t, -step))) / (2 * step) for t in range(len(s["new"]))]
            for i, s in enumerate(batch)]


def padded(rows, width):
    return [list(row) + [0.0] * (width - len(row)) for row in rows]


def policy_case(batch, kind, mode, width, **settings):
    c = SETTINGS | {"low": 0.2, "high": 0.2, "c": 3.0, "length": width} | settings
    if kind in OF_A_MICRO_BATCH:
        c["chosen"] = chosen(kind, batch, c)
        assert len(c["chosen"]) > 1
    cells = [list(LOSSES[kind](s, s, c)) for s in batch]
    flat = [cell for row in cells for cell in row]
    return {
        "loss_mode": kind, "loss_agg_mode": mode, **c, "loss": loss_of(batch, batch, kind, mode, c),
        "gradient": padded(gradient(lambda moved: loss_of(moved, batch, kind, mode, c), batch), width),
        "clip_fraction": statistics.fmean(float(cell[1]) for cell in flat),
        "clip_fraction_lower": statistics.fmean(float(cell[2]) for cell in flat),
        "of_a_micro_batch": kind in OF_A_MICRO_BATCH,
    }
