"""Correction between rollout and trainer, in float64: r = trainer - rollout, sequence by sequence."""
import math
import statistics

from policy_losses import clamp, padded


def limited(x):
    return clamp(x, -20, 20)


def importance(ratios, level, threshold, normalize):
    """Weights of tokens; `threshold` as in the configuration."""
    low, high = ([float(x) for x in threshold.split("_")] if "_" in threshold else (None, float(threshold)))

    def weight(x):
        w = math.exp(limited(x))
        return min(w, high) if low is None else w if low <= w <= high else 0.0

    rows = [[weight(x) for x in r] if level == "token" else [weight(math.fsum(r))] * len(r) for r in ratios]
    if normalize:
        flat = [w for row in rows for w in row] if level == "token" else [row[0] for row in rows]
        rows = [[w / statistics.fmean(flat) for w in row] for row in rows]
    return rows


K = {"1": lambda r: -r, "2": lambda r: r * r / 2, "3": lambda r: math.exp(r) - 1 - r}


def accepted(ratios, options, thresholds):
    """Masks of tokens that every option accepts."""
    masks = [[1.0] * len(r) for r in ratios]
    thresholds = thresholds.split(",") * (len(options.split(",")) if "," not in thresholds else 1)
    for option, threshold in zip(options.split(","), thresholds):
        scope, k = option[:-3], option[-1]
        bounds = [float(x) for x in threshold.split("_")]
        if k == "1":
            low, high = math.log(bounds[0] if len(bounds) == 2 else 1 / bounds[0]), math.log(bounds[-1])
        else:
            low, high = -math.inf, bounds[-1]
        for i, r in enumerate(ratios):
            each = [K[k](limited(x)) for x in r]
            whole = {"seq_sum": math.fsum, "seq_mean": statistics.fmean, "seq_max": max}.get(scope)
            values = each if whole is None else [whole(each)] * len(each)
            masks[i] = [m * (low <= v <= high) for m, v in zip(masks[i], values)]
    return masks


def divergence(trainer, rollout):
    pairs = [(a, b) for t, r in zip(trainer, rollout) for a, b in zip(t, r)]
    ratios = [a - b for a, b in pairs]
    log_ppl = [(-statistics.fmean(t), -statistics.fmean(r)) for t, r in zip(trainer, rollout)]
    return {"kl": statistics.fmean(-r for r in ratios), "k3_kl": statistics.fmean(math.exp(r) - r - 1 for r in ratios),
            "chi2_token": statistics.fmean(math.exp(2 * r) for r in ratios) - 1,
            "chi2_seq": statistics.fmean(math.exp(2 * math.fsum(a - b for a, b in zip(t, r))) for t, r in zip(trainer, rollout)) - 1,
            "training_ppl": statistics.fmean(math.exp(t) for t, _ in log_ppl),
            "rollout_ppl": statistics.fmean(math.exp(r) for _, r in log_ppl),
            "log_ppl_diff": statistics.fmean(t - r for t, r in log_ppl),
            "ppl_ratio": statistics.fmean(math.exp(t - r) for t, r in log_ppl)}


def correction_case(trainer, rollout, **c):
    c = {"rollout_is": "null", "rollout_is_threshold": "2.0", "normalize": False, "rollout_rs": "null",
         "rollout_rs_threshold": "null"} | c
    ratios = [[a - b for a, b in zip(t, r)] for t, r in zip(trainer, rollout)]
    width = max(map(len, trainer))
    case = dict(c)
    if c["rollout_is"] != "null":
        rows = importance(ratios, c["rollout_is"], c["rollout_is_threshold"], c["normalize"])
        case["weights"] = padded(rows, width)
        flat = [w for row in rows for w in row]
        case["mean"] = statistics.fmean(flat)
        case["eff_sample_size"] = 1 / statistics.fmean((w / statistics.fmean(flat)) ** 2 for w in flat)
    if c["rollout_rs"] != "null":
        case["mask"] = padded(accepted(ratios, c["rollout_rs"], c["rollout_rs_threshold"]), width)
    return case
