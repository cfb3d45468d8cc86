"""What the checks against the authors' own packages share: transformers for models, PEFT for adapters."""
import os
import subprocess
import sys

SKIPPED = 77  # exit code where a package is missing
LARGEST_DIFFERENCE = 1e-6


def use_chosen_python():
    """Goes on in the interpreter that NEAP_PYTHON names."""
    if "NEAP_PYTHON" in os.environ and os.environ["NEAP_PYTHON"] != sys.executable:
        python = os.environ.pop("NEAP_PYTHON")
        os.execv(python, [python, *sys.argv])


def skip(error):
    print(f"skipped: {error}")
    sys.exit(SKIPPED)


def difference(actual, expected):
    return (actual.double() - expected.double()).abs().max().item() / (1 + expected.abs().max().item())


def export(program, test, folder):
    """Lets a test program write its folders; False, with what it printed, where it fails."""
    done = subprocess.run([program, f"--gtest_filter=*{test}*"], capture_output=True, text=True,
                          env={**os.environ, "NEAP_EXPORT": str(folder)})
    if done.returncode != 0:
        print(done.stdout + done.stderr)
    return done.returncode == 0


def load_model(auto, folder):
    """A model of transformers, in float64, or what its folder lacks or has too much."""
    model, info = auto.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    if info["missing_keys"] or info["unexpected_keys"]:
        return f"missing {info['missing_keys']}, unexpected {info['unexpected_keys']}"
    return model.double().eval()


class Report:
    """Prints each result, a difference or what is wrong, and counts failures."""

    def __init__(self):
        self.failures = 0

    def __call__(self, what, result):
        good = isinstance(result, float) and result < LARGEST_DIFFERENCE
        self.failures += not good
        print(f"{what}: {result if isinstance(result, str) else format(result, '.1e')}{'' if good else '  FAILED'}", flush=True)
