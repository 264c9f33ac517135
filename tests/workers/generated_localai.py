"""LocalAI backend like those written in Python: generated code, threads, one call at a time. It is a program.

Its arguments are a folder for the code, and whether to be a newer backend, whose `FlashAttention` is a text. It prints its
port. Its mistakes raise exceptions, whose text the gRPC library reports.
"""

import importlib
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

PROTO = Path(__file__).parents[2] / "router/rpc/protos/backend.proto"


def generated(folder: Path, *, newer: bool) -> tuple[object, object]:
    """Generate code from the specification, and import it."""
    text = PROTO.read_text()
    if newer:
        text = text.replace("bool FlashAttention", "string FlashAttention")
        text = text.replace("int32 prompt_tokens = 3;", "int32 prompt_tokens = 3; string new = 9;")
    (folder / "backend.proto").write_text(text)
    out = [f"--python_out={folder}", f"--grpc_python_out={folder}"]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", *out, "backend.proto"]
    subprocess.run(protoc, check=True)
    sys.path.insert(0, str(folder))
    return importlib.import_module("backend_pb2"), importlib.import_module("backend_pb2_grpc")


def main(folder: Path, *, newer: bool) -> None:
    """Serve until stdin ends."""
    messages, services = generated(folder, newer=newer)

    class Backend(services.BackendServicer):  # type: ignore[name-defined, misc]
        def Health(self, request, context):  # noqa: N802
            return messages.Reply(message=b"OK")

        def LoadModel(self, request, context):  # noqa: N802
            self.tokenizer = f"{request.Model}, flash attention {request.FlashAttention}"
            return messages.Result(success=True, message="ok")

        def _reply(self, text):
            more = {"new": "field"} if newer else {}
            return messages.Reply(message=text.encode(), **more)

        def Predict(self, request, context):  # noqa: N802
            if request.UseTokenizerTemplate:
                raise AttributeError("items")
            if request.Prompt.startswith("wait"):
                (folder / "begun").touch()
                time.sleep(4)
            return self._reply(self.tokenizer)

        def PredictStream(self, request, context):  # noqa: N802
            if request.UseTokenizerTemplate:
                raise AttributeError("items")
            for word in self.tokenizer.split(" "):
                time.sleep(0.1)
                yield self._reply(word)

    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    services.add_BackendServicer_to_server(Backend(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), newer=sys.argv[2] == "newer")
