"""The HTTP interface of the page. /openapi.json is its schema."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import FileResponse, JSONResponse, Response

from swep_ds.common.console import Progress
from swep_ds.common.errors import InputError, reason
from swep_ds.serve.exports import EXPORTS
from swep_ds.serve.labels import Labels
from swep_ds.serve.schema import Question, Reply, Text, Verdict
from swep_ds.serve.session import Session
from swep_ds.serve.shown import Changed, ShownTexts

HERE = Path(__file__).parent
LARGEST = 2**20  # bytes of a request
NAMES = 200  # that a list of texts shows
# nothing that a text, a question or a name holds is run, and nothing comes from another host
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class Json(JSONResponse):
    """In ASCII: a file's name may hold bytes that are no characters."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def build(session: Session, hosts: Sequence[str] = ("*",)) -> FastAPI:
    """The application. `hosts`: names by which it may be called, so that no other site reads the texts through a name
    of its own that leads to this machine. Each error is {"detail": a sentence}, with status 422: bad input; 409: a text
    has changed since it was shown; 413: a large request; 503: the texts or the model are still read."""
    app = FastAPI(title="Questions about texts", docs_url=None, redoc_url=None, default_response_class=Json)
    app.add_middleware(_Limits)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    _add_errors(app)

    def loaded() -> Session:
        if not session.ready:
            raise HTTPException(503, f"not ready yet: {Progress.latest or 'the model is loading'}")
        return session

    def shown() -> ShownTexts:
        if loaded().shown is None:
            raise HTTPException(404, "no texts are served: give --texts")
        return session.shown

    def labels() -> Labels:
        if loaded().labels is None:
            raise HTTPException(404, "no questions are labelled here: give --label")
        return session.labels

    def scores() -> dict[str, Any] | None:
        return session.labels and session.labels.scores(list(session.verdicts.rows.values()))

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(HERE / "page.html")

    @app.get("/page.{kind}", include_in_schema=False)
    def part(kind: Literal["css", "js"]) -> FileResponse:
        return FileResponse(HERE / f"page.{kind}")

    @app.get("/state")
    def state() -> dict[str, Any]:
        """What is served, and what is done until it is ready."""
        return {
            "mode": session.mode,
            "model": session.model,
            "folder": session.texts and session.texts.folder.name,
            "output": session.verdicts.path.name,
            "ready": session.ready,
            "doing": Progress.latest,
            "texts": len(session.shown.index.names) if session.shown else 0,
            "left_out": session.texts.left_out if session.texts else [],
            "most": session.most,
            "verdicts": len(session.verdicts.rows),
        }

    @app.post("/answer")
    async def answer(asked: Question) -> Reply:
        """The best answer to a question, and others. Questions that wait are answered together."""
        if loaded().asking is None:
            raise HTTPException(404, "questions are labelled here, not asked: start without --label")
        if asked.n_best > session.most:
            raise HTTPException(422, f"n_best: this model gives {session.most}: ask for no more")
        return await asyncio.wrap_future(session.asking.ask(asked.question, asked.n_best))

    @app.get("/passages")
    def passages(question: Text) -> dict[str, Any]:
        """The passages that share most with a question, without the model."""
        return {"passages": shown().found(question)}

    @app.get("/texts")
    def texts(part: str = "") -> dict[str, Any]:
        """The first names of texts that contain a part, in any case, and how many there are."""
        names = [name for name in shown().index.names if part.casefold() in name.casefold()]
        return {"names": names[:NAMES], "count": len(names)}

    @app.get("/text")
    def text(name: str) -> dict[str, Any]:
        """A whole text, and its version."""
        document, version = shown().document(name)
        return {"name": name, "text": document.text, "version": version}

    @app.post("/verdicts")
    def add(verdict: Verdict) -> dict[str, Any]:
        """Saves a verdict: it is on disk when this answers. Where questions are labelled, what the runs said."""
        id_ = loaded().save(verdict)
        said = session.labels and session.labels.said(verdict.asked)
        return {"id": id_, "verdicts": len(session.verdicts.rows), "said": said, "scores": scores()}

    @app.delete("/verdicts/{id_:path}")
    def undo(id_: str) -> dict[str, Any]:
        """Takes a verdict back."""
        loaded().verdicts.undo(id_)
        return {"verdicts": len(session.verdicts.rows), "scores": scores()}

    @app.get("/next")
    def next_question(skip: Annotated[list[str], Query()] = ()) -> dict[str, Any]:
        """The next question to label; those to skip come last, and `asked` is null after the last one."""
        questions = labels()
        labelled = {row["asked"] for row in list(session.verdicts.rows.values())}
        example = questions.next(labelled, skip)
        counts = {"labelled": len(labelled), "of": len(questions)}
        if example is None:
            return counts | {"asked": None, "question": None, "context": None}
        context = None if session.texts else example.context
        return counts | {"asked": example.id, "question": example.question, "context": context}

    @app.get("/scores")
    def scores_so_far() -> dict[str, Any]:
        """EM and F1 of the runs by the labels so far, in percent, with their intervals, once these are enough."""
        labels()
        return scores()

    @app.get("/exports/{name}", response_class=Response)
    def export(name: str) -> Response:
        """All verdicts: squad.json, pairs.csv or label-studio.json."""
        if name not in EXPORTS:
            raise HTTPException(404, f"{name}: is none of {', '.join(EXPORTS)}")
        content = EXPORTS[name](list(session.verdicts.rows.values())).encode(errors="backslashreplace")
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    return app


def _add_errors(app: FastAPI) -> None:
    def sentence(status: int, detail: str) -> Json:
        return Json({"detail": detail}, status)

    def invalid(_: Request, error: RequestValidationError) -> Json:  # without the input, which may be large
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        return sentence(422, f"{field or 'request'}: {first['msg'].removeprefix('Value error, ')[:200]}")

    def fault(_: Request, error: Exception) -> Json:  # which no middleware sees
        return Json({"detail": f"the server failed ({reason(error)}): its terminal says more"}, 500, HEADERS)

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Changed, lambda _, error: sentence(409, str(error)))
    app.add_exception_handler(InputError, lambda _, error: sentence(422, str(error)))
    app.add_exception_handler(Exception, fault)


class _Limits:
    """Refuses large requests without reading them to the end, and adds the `HEADERS`."""

    def __init__(self, app: Any):
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        more = True
        while more and len(body) <= LARGEST:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        parts = iter([{"type": "http.request", "body": bytes(body)}])

        async def received() -> dict[str, Any]:
            return next(parts, None) or await receive()

        async def sent(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        if len(body) > LARGEST:
            detail = f"the request is larger than {LARGEST:,} bytes: ask for less"
            await Json({"detail": detail}, 413)(scope, received, sent)
            return
        await self._app(scope, received, sent)
