"""The body of POST /v1/chat/completions/batch beside the fields of a chat request."""

from ortloom.server.openai.wire_chat import ChatMessage, TemplateFields


class BatchFields(TemplateFields, kw_only=True):
    """`messages` is a list of conversations."""

    messages: list[list[ChatMessage]]  # type: ignore[assignment]

    def conversations(self) -> list[TemplateFields]:
        """The same fields for each conversation alone."""
        shared = {
            name: getattr(self, name)
            for name in TemplateFields.__struct_fields__
            if name != "messages"
        }
        return [TemplateFields(messages=messages, **shared) for messages in self.messages]
