"""Serves a model that answers questions from a folder of texts.

    pip install '.[serve]'
    python examples/serve.py mine/model articles --port 8000
    curl localhost:8000/answer -H 'content-type: application/json' -d '{"question": "Who founded the abbey?"}'

The reply has `answer` ("" = declined), `probability`, `confidence` (of all answers that say the same), and for an
answer `text`, the file's name, with its characters `start` and `end`, and its `page` and `heading`, if it has them. A
question that is missing, blank or too long is refused with status 422. Texts may change while they are served: those
that a question needs are compared with the index each time, and the whole folder at most every 10 seconds.
"""

import argparse
import threading
import time
from typing import Annotated

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, StringConstraints

import swep_ds as sd

LOOK_EVERY = 10  # seconds between two looks at the whole folder, which take a file system call for each text


class Question(BaseModel, extra="forbid"):
    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]


def build(model: str, folder: str, **settings) -> FastAPI:
    asks = sd.QuestionAnswerer(model, **settings).over(folder)
    app = FastAPI(title="Questions about texts")
    lock = threading.Lock()  # FastAPI asks in many threads, and the model answers one
    looked = time.monotonic()

    app.add_exception_handler(sd.InputError, lambda request, error: JSONResponse({"detail": str(error)}, 422))

    @app.post("/answer")
    def answer(asked: Question) -> dict:
        nonlocal looked
        with lock:
            if time.monotonic() - looked > LOOK_EVERY:
                asks.index.refresh()
                looked = time.monotonic()
            [best] = asks(asked.question)
        place = {"text": best.name, "start": best.start, "end": best.end, "page": best.page, "heading": best.heading}
        return {"answer": best.text, "probability": best.probability, "confidence": best.confidence, **place}

    return app


if __name__ == "__main__":
    import uvicorn

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model")
    options.add_argument("folder")
    options.add_argument("--null_threshold", type=float)
    options.add_argument("--min_confidence", type=float, default=0.0)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=8000)
    given = options.parse_args()
    try:
        app = build(given.model, given.folder, null_threshold=given.null_threshold, min_confidence=given.min_confidence)
    except sd.InputError as error:
        options.error(str(error))
    uvicorn.run(app, host=given.host, port=given.port)
