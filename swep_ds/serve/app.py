"""The HTTP interface of the page. /openapi.json is its schema."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Body, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles

from swep_ds.common.console import Progress
from swep_ds.common.errors import InputError, reason
from swep_ds.serve.exports import EXPORTS
from swep_ds.serve.schema import TOO_LONG, Given, Question, Reply, Text, Verdict
from swep_ds.serve.session import Session

LARGEST = 2**20  # bytes of a request
LISTED = 200  # texts or verdicts that a list shows
# nothing that a text, a question or a name holds is run, and nothing comes from another host
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
# why a session that is ready has no such part
LACKING = {
    "asking": "questions are labelled here, not asked: start without --label",
    "shown": "no texts are served: give --texts",
    "labels": "no questions are labelled here: give --label",
}


class Json(JSONResponse):
    """In ASCII: a file's name may hold bytes that are no characters."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def build(session: Session, hosts: Sequence[str] = ("*",)) -> FastAPI:
    """The application. `hosts`: names by which it may be called, so that no other site reads the texts through a name
    of its own that leads to this machine. Each error is {"detail": a sentence}, with status 422: bad input; 409: a text
    has changed since it was shown; 413: a large request; 503: the texts or the model are still read."""
    app = FastAPI(title="Questions about texts", docs_url=None, redoc_url=None, default_response_class=Json)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)

    @app.middleware("http")
    async def limit(request: Request, handle: Callable[[Request], Awaitable[Response]]) -> Response:
        """Refuses a large request, none of which is kept, and adds the headers."""
        size = int(request.headers.get("content-length", 0))  # which the server holds a client to
        if size <= LARGEST and "transfer-encoding" not in request.headers:
            response = await handle(request)
        else:
            async for _ in request.stream():
                pass  # a client that still sends would not read the reply
            detail = f"the request is larger than {LARGEST:,} bytes, or has no Content-Length: ask for less, or send it"
            response = Json({"detail": detail}, 413)
        response.headers.update(HEADERS)
        return response

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> Json:  # without the input, which may be large
        first = error.errors()[0]
        if first["type"] == "string_too_long":  # only questions have a limit
            return Json({"detail": TOO_LONG}, 422)
        field = ".".join(map(str, first["loc"][1:])) or "request"
        return Json({"detail": f"{field}: {first['msg'].removeprefix('Value error, ')[:200]}"}, 422)

    @app.exception_handler(InputError)
    def refused(_: Request, error: InputError) -> Json:
        return Json({"detail": session.public(str(error))}, getattr(error, "status", 422))

    @app.exception_handler(Exception)
    def fault(_: Request, error: Exception) -> Json:  # which no middleware sees
        detail = session.public(f"the server failed ({reason(error)}): its terminal says more")
        return Json({"detail": detail}, 500, HEADERS)

    def check_ready() -> None:
        if not session.ready:
            raise HTTPException(503, f"not ready yet: {Progress.latest or 'the model is loading'}")

    def loaded(name: Literal["asking", "shown", "labels"]) -> Any:
        """This attribute of the session. Raises HTTPException: it is not loaded yet, or its mode has none."""
        check_ready()
        if getattr(session, name) is None:
            raise HTTPException(404, LACKING[name])
        return getattr(session, name)

    def totals() -> dict[str, Any]:
        """How many verdicts there are and, where questions are labelled, the scores of the runs."""
        rows = session.verdicts.rows
        return {"verdicts": len(rows), "scores": session.labels and session.labels.scores(rows.values())}

    @app.get("/state")
    def state() -> dict[str, Any]:
        """What is served, and what is done until it is ready."""
        served = {name: getattr(session, name) for name in ("mode", "ready", "most")}
        served["model"] = ", ".join(session.names[source] for source in session.served)
        if len(session.served) > 1:  # whose scores are pooled
            served["model"] = f"the mean of {served['model']}"
        served |= {"output": session.verdicts.path.name, "verdicts": len(session.verdicts.rows)}
        served |= {"doing": Progress.latest, "folder": None, "texts": 0, "left_out": []}
        if session.shown:
            served |= {"folder": session.texts.folder.absolute().name, "texts": len(session.shown.index.names)}
            served["left_out"] = list(map(session.public, session.texts.left_out))
        return served

    @app.post("/answer")
    async def answer(asked: Question) -> Reply:
        """The best answer to a question, and others. Questions that wait are answered together."""
        reply = await asyncio.wrap_future(loaded("asking").ask(asked.question, asked.n_best))
        return reply | {"judged": session.verdicts.latest(asked.question)}

    @app.get("/passages")
    def passages(question: Text) -> dict[str, Any]:
        """The passages that share most with a question, without the model."""
        return {"passages": loaded("shown").search(question)}

    @app.get("/texts")
    def texts(part: str = "") -> dict[str, Any]:
        """The first names of texts that contain a part, in any case, and how many there are."""
        names = [name for name in loaded("shown").index.names if part.casefold() in name.casefold()]
        return {"names": names[:LISTED], "count": len(names)}

    @app.post("/text")
    def text(name: Annotated[str, Body(embed=True)]) -> dict[str, Any]:
        """A whole text, and its version. An address cannot hold each name: some are no UTF-8."""
        document, version = loaded("shown").document(name)
        return {"name": name, "text": document.text, "version": version}

    @app.get("/verdicts")
    def latest() -> dict[str, list[Given]]:
        """The latest verdicts, the last one first."""
        return {"latest": session.verdicts.latest()[:LISTED]}

    @app.post("/verdicts")
    def add(verdict: Verdict) -> dict[str, Any]:
        """Saves a verdict: it is on disk when this answers. `text`: that of the saved passage, which does not say.
        Where questions are labelled, what the runs said."""
        check_ready()
        id_ = session.save(verdict)
        text = None
        if session.texts and verdict.start is None:
            text = session.verdicts.rows[id_]["title"]
        said = session.labels and session.labels.said(verdict.asked)
        return {"id": id_, "text": text, "said": said, **totals()}

    @app.delete("/verdicts/{id_:path}")
    def undo(id_: str) -> dict[str, Any]:
        """Takes a verdict back."""
        session.verdicts.undo(id_)
        return totals()

    @app.get("/next")
    def next_question(skip: Annotated[list[str], Query()] = ()) -> dict[str, Any]:
        """The next question to label, and the scores so far: EM and F1 of the runs in percent, with their intervals,
        once labels are enough. Questions to skip come last, and `asked` is null after the last one."""
        rows = session.verdicts.rows.values()
        example = loaded("labels").next({row["asked"] for row in rows}, skip)
        asked = {"asked": None, "question": None, "context": None}
        if example:
            asked = {"asked": example.id, "question": example.question, "context": example.context}
            if session.texts:
                asked["context"] = None
        return asked | totals()

    @app.get("/exports/{name}", response_class=Response)
    def export(name: Literal[tuple(EXPORTS)]) -> Response:
        """All verdicts."""
        content = EXPORTS[name](session.verdicts.rows.values()).encode(errors="backslashreplace")
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    app.mount("/", StaticFiles(directory=Path(__file__).parent / "page", html=True))
    return app
