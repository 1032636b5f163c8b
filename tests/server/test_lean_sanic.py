"""Sanic's HTML error pages: not loaded with a front, and drawn where somebody asks for one."""

import subprocess
import sys

PAGE = """
import asyncio, sys
from ortloom.server import lean_sanic
lean_sanic.install()
import sanic, sanic.errorpages
assert "tracerite" not in sys.modules
lean_sanic.install()  # after Sanic's import it does nothing
app = sanic.Sanic("pages", configure_logging=False)
app.config.FALLBACK_ERROR_FORMAT = "html"
class Request:
    name, app, path = "x", app, "/"
    headers, route, id = {"accept": "text/html"}, None, 1
request = Request()
page = sanic.errorpages.ErrorPage(False, "Title", "Text of it", request, ValueError("x"))
print(type(page).__module__, "Text of it" in page.render())
"""


def run(code):
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_a_front_does_without_them():
    code = "from ortloom.server import lean_sanic\nlean_sanic.install()\n"
    code += "import ortloom.server.front, sys\nprint('tracerite' in sys.modules)"
    assert run(code) == ["False"]
    assert run("import sanic, sys\nprint('tracerite' in sys.modules)") == ["True"]


def test_a_page_that_is_asked_for_is_drawn():
    assert run(PAGE) == ["sanic.pages.error", "True"]
