"""Compiler of the `.proto` files of `router/rpc` into descriptors, from which message classes are made at run time.

Run it with `--write` after a change to one of them; `tests/router/rpc/test_messages.py` fails if that was forgotten.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

PROTOS = Path(__file__).parent.parent / "router/rpc/protos"


def compiled() -> bytes:
    """Return the files as a serialized `FileDescriptorSet`, in the order of their names."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "descriptors.binpb"
        files = [path.name for path in sorted(PROTOS.glob("*.proto"))]
        protoc = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTOS}"]
        subprocess.run([*protoc, f"--descriptor_set_out={output}", *files], check=True)
        return output.read_bytes()


if __name__ == "__main__":
    where = PROTOS / "descriptors.binpb"
    if "--write" in sys.argv[1:]:
        where.write_bytes(compiled())
    elif where.read_bytes() != compiled():
        sys.exit(f"{where} is older than the .proto files: run this with --write")
