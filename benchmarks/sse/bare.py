"""`python -m benchmarks.sse.bare PORT`: as little Sanic as can stream events.

POST /echo?step=SECONDS answers with a stream that repeats the request's body as one event a step.
The steps of all streams are at the same moments, as an engine's are, so that the loop wakes once
for all of them.
"""

import asyncio
import sys

from sanic import Request, Sanic

app = Sanic("bare")


@app.post("/echo")
async def echo(request: Request) -> None:
    """The stream; it ends when the client leaves."""
    step = float(request.args.get("step"))
    event = b"data: %b\n\n" % request.body
    response = await request.respond(content_type="text/event-stream; charset=utf-8")
    loop = asyncio.get_running_loop()
    due = (loop.time() // step + 1) * step
    while True:
        await asyncio.sleep(due - loop.time())
        await response.send(event)
        due += step


@app.get("/health")
async def health(request: Request) -> None:
    """It is up."""
    await (await request.respond()).eof()


if __name__ == "__main__":
    app.run("127.0.0.1", int(sys.argv[1]), single_process=True, access_log=False, motd=False)
