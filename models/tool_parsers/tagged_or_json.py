"""Calls as tags, or as a JSON object in the tags' place."""

from abc import abstractmethod

from ortloom.models.tool_parsers.json_call import JsonCall
from ortloom.models.tool_parsers.tagged_calls import TaggedCalls


class TaggedOrJson(TaggedCalls):
    """Adds the state of the object; a subclass says where one may begin and what follows it."""

    def _begin_json(self) -> None:
        """The next character is the object's `{`."""
        self._call = JsonCall()
        self._started = False
        self._state = self._json

    def _json(self) -> bool:
        call = self._call
        self._at = call.feed(self._text, self._at)
        if call.name and not self._started:
            if self.known_only and self.tools and call.name not in self.tools:
                self._refuse()
                return True
            self._started = True
            self._start(call.name)
        if self._started:
            self._arguments(call.take())
        if call.failed:
            self._refuse()
        elif call.done:
            self._end()
            self._state = self._after_json
        return call.failed or call.done

    @abstractmethod
    def _after_json(self) -> bool:
        """After the object."""
