"""A stand-in for Hugging Face's hub on this machine, which has the config of T5-base and nothing else."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

MODEL = "google-t5/t5-base"
# Raffel et al. 2020, Section 2.1 and Table 14: 12 layers on each side, widths 768 and 3072, 12 heads of 64
CONFIG = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "d_model": 768,
    "d_ff": 3072,
    "d_kv": 64,
    "num_heads": 12,
    "num_layers": 12,
    "relative_attention_num_buckets": 32,
    "vocab_size": 32128,
    "n_positions": 512,
    "dropout_rate": 0.1,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "is_encoder_decoder": True,
}


class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        there = self.path == f"/{MODEL}/resolve/main/config.json"
        body = json.dumps(CONFIG).encode() if there else b"{}"
        self.send_response(200 if there else 404)
        self.send_header("Content-Length", str(len(body)))
        if self.path.startswith(f"/{MODEL}/"):
            self.send_header("X-Repo-Commit", 40 * "a")
        if there:
            self.send_header("ETag", f'"{40 * "b"}"')
        else:
            known = self.path.startswith(f"/{MODEL}/")
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_) -> None:
        """Prints nothing."""


@contextmanager
def stand_in() -> Iterator[str]:
    """The address, for HF_ENDPOINT."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
