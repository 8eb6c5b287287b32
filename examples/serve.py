"""Serves a model that answers questions from a folder of texts.

    pip install 'swep-ds[serve]'
    python examples/serve.py runs/mine/model articles --port 8000
    curl localhost:8000/answer --json '{"question": "Who founded the abbey?"}'

The reply has `answer` ("" = declined), `probability`, and for an answer `text`, the file's name, with its characters
`start` and `end`. A question that is missing, blank or too long is refused with status 422.
"""

import argparse
from typing import Annotated

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, StringConstraints

import swep_ds as sd

LONGEST = 1000  # characters of a question


class Question(BaseModel):
    model_config = ConfigDict(extra="forbid")
    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST)]


class Reply(BaseModel):
    answer: str
    probability: float
    text: str | None
    start: int | None
    end: int | None


def build(model: str, folder: str, **settings) -> FastAPI:
    asks = sd.QuestionAnswerer(model, **settings).over(folder)
    app = FastAPI(title="Questions about texts")

    @app.post("/answer")
    def answer(asked: Question) -> Reply:
        [reply] = asks(asked.question)
        return Reply(
            answer=reply.text, probability=reply.probability, text=reply.name, start=reply.start, end=reply.end
        )

    return app


if __name__ == "__main__":
    import uvicorn

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model")
    options.add_argument("folder")
    options.add_argument("--port", type=int, default=8000)
    given = options.parse_args()
    uvicorn.run(build(given.model, given.folder), port=given.port)
