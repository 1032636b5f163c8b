"""The real app on a real socket, over a scripted engine and a small trained tokenizer."""

import asyncio
import json
import socket
import sys
import threading
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

from scripted_engine import ScriptedEngine  # noqa: E402

from ortloom.config import Config, FrontConfig, ModelConfig  # noqa: E402
from ortloom.models.chat_template import ChatTemplate  # noqa: E402
from ortloom.models.generation_config import GenerationDefaults  # noqa: E402
from ortloom.models.manifest import (  # noqa: E402
    Architecture,
    KVGroup,
    Manifest,
    Producer,
    Source,
)
from ortloom.models.tokenizer import Tokenizer  # noqa: E402

CORPUS = [
    "The sea is a place of endless wonder and mystery.",
    "Small boats drift home\nGuest: more",
    "Count: 1, 2, 3, 4, 5.",
    "a👍🏽b 日本語 é 한국어 🇳🇴 c",
] * 4

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'wizard' %}"
    "{{ raise_exception('wizards are not allowed') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if mood is defined %}{{ mood }}{% endif %}"
    "{% if enable_thinking is defined %}{{ 'think' if enable_thinking else 'quick' }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=340,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder):
    return Tokenizer.load(tokenizer_folder)


@pytest.fixture(scope="session")
def shared_engine(tokenizer):
    return ScriptedEngine(tokenizer.vocab_size)


@pytest.fixture
def engine(shared_engine):
    shared_engine.reset()
    return shared_engine


def manifest_of(eos):
    architecture = Architecture(
        class_name="X",
        model_type="llama",
        num_layers=1,
        hidden_size=8,
        num_heads=1,
        vocab_size=400,
        max_position_embeddings=64,
        num_parameters=1,
        tied_embeddings=True,
        eos_token_ids=(eos,),
    )
    return Manifest(
        producer=Producer(version="0"),
        source=Source(name="tiny", format="safetensors"),
        architecture=architecture,
        graphs=(),
        kv_groups=(KVGroup(id=0, layers=(0,), kv_heads=1, head_dim_k=8, head_dim_v=8),),
        weights=(),
    ).sealed()


class RunningApp:
    """One front in a thread of this process."""

    def __init__(self, context):
        self.context = context
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(64)
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._started = threading.Event()
        self._loop = None
        self._failure = None
        self._thread = threading.Thread(target=self._main, daemon=True)

    def _main(self):
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self):
        from sanic.application.constants import ServerStage
        from sanic.application.state import ApplicationServerInfo

        from ortloom.server.app import create_app
        from ortloom.server.protocol import LoomProtocol

        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        app = create_app(self.context)
        app.config.TOUCHUP = False  # it rewrites classes, which works once a process
        server = await app.create_server(
            sock=self.socket, protocol=LoomProtocol, return_asyncio_server=True
        )
        await server.startup()
        await server.before_start()
        await server.after_start()
        # as in the real front: tasks of handlers run at once
        app.state.server_info.append(ApplicationServerInfo({}, ServerStage.SERVING))
        self._started.set()
        await self._stop.wait()
        await server.before_stop()
        await server.close()
        await server.after_stop()

    def __enter__(self):
        self._thread.start()
        assert self._started.wait(20)
        if self._failure is not None:
            raise self._failure
        self.client = httpx.Client(base_url=self.url, timeout=20)
        return self

    def stop(self):
        """Let the app drain and end."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def __exit__(self, *_):
        self.client.close()
        if self._thread.is_alive():
            self.stop()
        self._thread.join(20)
        assert not self._thread.is_alive()

    def run_on_loop(self, function):
        """Call something on the server's event loop."""
        done = threading.Event()

        def call():
            function()
            done.set()

        self._loop.call_soon_threadsafe(call)
        assert done.wait(10)

    def post(self, path, body, **kwargs):
        return self.client.post(path, json=body, **kwargs)

    def events(self, path, body, **kwargs):
        """The events of a stream; [DONE] must be the last one and is left out."""
        response = self.client.post(path, json={**body, "stream": True}, **kwargs)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [x for x in response.text.split("\n\n") if x and not x.startswith(":")]
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line[6:]) for line in lines[:-1]]


@pytest.fixture(scope="session")
def start(shared_engine, tokenizer, tokenizer_folder):
    from ortloom.server.context import FrontContext
    from ortloom.server.metrics import FrontMetrics
    from ortloom.server.output_parsers import OutputParsers

    def make(front=None, model=None, defaults=None, template=None, no_template=False, parsers=None):
        config = Config(
            model=ModelConfig(bundle="tiny", served_model_names=("tiny", "other"), **(model or {})),
            front=FrontConfig(**(front or {})),
        )
        loaded = ChatTemplate.load(tokenizer_folder, tokenizer, template)
        context = FrontContext(
            config=config,
            manifest=manifest_of(tokenizer.eos_token_id),
            client=shared_engine,
            metrics=FrontMetrics("tiny", 64),
            tokenizer=tokenizer,
            chat_template=None if no_template else loaded,
            defaults=defaults or GenerationDefaults(),
            created=1,
            served_names=("tiny", "other"),
            parsers=parsers or OutputParsers(),
        )
        return RunningApp(context)

    return make


@pytest.fixture
def serve(start, engine):
    """The app with settings of its own: `with serve(front={...}) as app`."""
    return start


@pytest.fixture(scope="session")
def shared_app(start):
    with start() as running:
        yield running


@pytest.fixture
def app(shared_app, engine):
    """The app with default settings; the engine behind it is as new for every test."""
    return shared_app


@pytest.fixture
def say(engine, tokenizer):
    """Make the engine reply with a text, then the end-of-sequence token."""

    def script(text, end=True):
        ids = tokenizer.encode(text)
        if end:
            ids = [*ids, tokenizer.eos_token_id]
        engine.reply = lambda request: ids
        return ids

    return script
