"""The longest context of a model, and what --disable-sliding-window does to it."""

from dataclasses import dataclass

from ortloom.models.manifest import Manifest


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """`max_len` in tokens, and lines a user must see at start-up."""

    max_len: int
    notices: tuple[str, ...] = ()

    @classmethod
    def of(cls, manifest: Manifest, disable_sliding_window: bool) -> "ContextWindow":
        """The context of a model.

        Within a window's length, attention with the window and without it are the same: without
        windows the context ends there. Where only some layers have one, those keep it, and models
        without one are what they are.

        Args:
            manifest: the model's.
            disable_sliding_window: whether no token may be out of another one's sight.
        """
        own = manifest.architecture.max_position_embeddings
        windows = [group.window for group in manifest.kv_groups]
        found = [window for window in windows if window is not None]
        if not disable_sliding_window or not found:
            return cls(own)
        if len(found) < len(windows):
            line = (
                "--disable-sliding-window caps nothing: only some layers of this model have a "
                "window, and they keep it"
            )
            return cls(own, (line,))
        return cls(min(own, *found))
